// Vectors whose memory starts on a cache line, so that no vector register loaded from an aligned
// offset straddles two lines. Large ones lie in huge pages where the system gives them: each takes
// one entry of the CPU's translation tables instead of 512.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <new>
#include <vector>

namespace npu {

template <typename T>
struct AlignedAllocator {
  using value_type = T;
  static constexpr size_t kLine = 64, kHugePage = size_t{2} << 20;

  AlignedAllocator() = default;
  template <typename U>
  AlignedAllocator(const AlignedAllocator<U>&) {}

  T* allocate(size_t count) {
    const size_t bytes = count * sizeof(T);
    void* const memory = ::operator new(bytes, alignment(count));
    // Whole pages only: what lies behind is somebody else's.
    if (bytes >= kHugePage) madvise(memory, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, size_t count) { ::operator delete(memory, alignment(count)); }
  bool operator==(const AlignedAllocator&) const { return true; }

 private:
  static std::align_val_t alignment(size_t count) {
    return std::align_val_t{count * sizeof(T) >= kHugePage ? kHugePage : kLine};
  }
};

template <typename T>
using AlignedVector = std::vector<T, AlignedAllocator<T>>;
using AlignedBytes = AlignedVector<std::byte>;

}  // namespace npu
