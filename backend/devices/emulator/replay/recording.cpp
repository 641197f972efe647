// What a recorded run holds (recording.h).
#include "devices/emulator/replay/recording.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "aligned.h"
#include "rounding.h"

namespace npu::emulator {

void Recording::keep_blocks(std::vector<std::unique_ptr<BlockPool>> pools) {
  blocks = std::move(pools);
  for (const auto& pool : blocks) {
    for (const auto& block : pool->all()) {
      block_places.push_back({block->data.data(), block->data.size(), 0});
    }
  }
  std::ranges::sort(block_places, {}, &BlockPlace::begin);
  constexpr auto kLine = static_cast<int64_t>(AlignedAllocator<std::byte>::kLine);
  size_t next = 0;
  for (BlockPlace& place : block_places) {
    place.offset = next;
    next += static_cast<size_t>(round_up(static_cast<int64_t>(place.bytes), kLine));
  }
}

uint64_t Recording::next_number() {
  static std::atomic<uint64_t> all{0};
  return ++all;
}

const CopyNumbers& Recording::copies_left_before(const Recording& next) const {
  const auto known = std::ranges::find(next_, next.number_, &Next::number);
  if (known != next_.end()) return known->left;
  if (next_.size() == kMostNext) next_.erase(next_.begin());
  next_.push_back({next.number_, copies_left(phases, last, next.last)});
  return next_.back().left;
}

size_t Recording::bytes() const {
  size_t sum = sizeof *this + end.bytes() + steering.bytes() + data.size() * sizeof data[0] +
               patches.size() * sizeof patches[0] + block_places.size() * sizeof block_places[0] +
               phases.bytes() + last.bytes();
  for (const auto& range : steering_bytes) sum += sizeof range + range.second.size();
  for (const OperandLists::Kept& list : operands) sum += list.bytes();
  for (const auto& pool : blocks) sum += pool->bytes();
  return sum;
}

}  // namespace npu::emulator
