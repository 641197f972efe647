// Data memories of the tiles of an array (tile_memories.h).
#include "devices/emulator/tile_memories.h"

#include <algorithm>
#include <new>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) && !defined(__SANITIZE_ADDRESS__)
#define __SANITIZE_ADDRESS__  // as GCC says it
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

namespace npu::emulator {

namespace {

// Buffers of cores have the same addresses in each: in memories that follow each other at a power
// of two all of them would share a few sets of the CPU's caches.
constexpr size_t kLine = 64, kBetween = 4096 + kLine;
// Of copies, one from the next.
constexpr size_t kShift = 2 * 4096 + 3 * kLine;
static_assert(arch::kRows * sizeof(CoreState) <= kLine);

}  // namespace

TileMemories::TileMemories(const arch::Geometry& device)
    : size_(static_cast<size_t>(device.columns) * kLine) {
  for (int col = 0; col < device.columns; ++col) {
    for (int row = 0; row < arch::kRows; ++row) {
      const size_t bytes = arch::tile_geometry(arch::tile_kind(row)).memory_bytes;
      sizes_.push_back(bytes);
      offsets_.push_back(size_);
      size_ += bytes + kBetween;
    }
  }
  make();
}

TileMemories::TileMemories(const TileMemories& other, size_t number)
    : sizes_(other.sizes_),
      offsets_(other.offsets_),
      begin_((number + 1) * kShift),
      size_(other.size_) {
  make();
  auto& from = const_cast<TileMemories&>(other);  // which is only read
  for (size_t tile = 0; tile < sizes_.size(); ++tile) {
    std::ranges::copy(from.of(tile), at(tile));
    modes(tile) = from.modes(tile);
  }
}

TileMemories::~TileMemories() { guard(false); }

void TileMemories::make() {
  bytes_.resize(begin_ + size_);
  for (size_t tile = 0; tile < sizes_.size(); ++tile) new (&modes(tile)) CoreState;
  guard(true);
}

CoreState& TileMemories::modes(size_t tile) {
  std::byte* const column = bytes_.data() + begin_ + tile / arch::kRows * kLine;
  return reinterpret_cast<CoreState*>(column)[tile % arch::kRows];
}

void TileMemories::guard([[maybe_unused]] bool on) {
#ifdef __SANITIZE_ADDRESS__
  for (size_t tile = 0; tile < sizes_.size(); ++tile) {
    std::byte* const gap = at(tile) + sizes_[tile];
    if (on) {
      __asan_poison_memory_region(gap, kBetween);
    } else {
      __asan_unpoison_memory_region(gap, kBetween);
    }
  }
#endif
}

}  // namespace npu::emulator
