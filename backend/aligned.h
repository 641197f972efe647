// Vectors whose memory starts on a cache line, so that no vector register loaded from an aligned
// offset straddles two lines.
#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace npu {

template <typename T>
struct AlignedAllocator {
  using value_type = T;
  static constexpr std::align_val_t kAlignment{64};

  AlignedAllocator() = default;
  template <typename U>
  AlignedAllocator(const AlignedAllocator<U>&) {}

  T* allocate(size_t count) {
    return static_cast<T*>(::operator new(count * sizeof(T), kAlignment));
  }
  void deallocate(T* memory, size_t) { ::operator delete(memory, kAlignment); }
  bool operator==(const AlignedAllocator&) const { return true; }
};

using AlignedBytes = std::vector<std::byte, AlignedAllocator<std::byte>>;

}  // namespace npu
