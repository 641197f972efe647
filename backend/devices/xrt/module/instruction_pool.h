// Instruction buffers of one hardware context: streams are written into BOs of the device heap and
// stay there until the space is needed. The heap is 64 MiB per process and gives out whole granules
// of 32 KiB (the shim of xdna-driver), so about 2,000 streams fit whatever their size; the
// least recently used is evicted, never one that a run uses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "module_abi.h"
#include "xrt_api.h"

namespace npu::xrt_module {

inline constexpr size_t kGranule = size_t{32} << 10;
// Of the 64 MiB: PDIs and command buffers take their share.
inline constexpr size_t kHeapBudget = size_t{48} << 20;

// Of all parts of a stream.
uint64_t count_words(std::span<const npu_xrt_words> parts);

// Bytes that all pools of a device hold together, and what they did.
struct HeapUse {
  size_t bytes = 0;
  uint64_t evictions = 0, uploads = 0;
};

class InstructionPool {
 public:
  InstructionPool(const xrt::device& device, xrt::memory_group group, HeapUse& use)
      : device_(device), group_(group), use_(use) {}
  ~InstructionPool() { clear(); }
  InstructionPool(const InstructionPool&) = delete;
  InstructionPool& operator=(const InstructionPool&) = delete;

  // The BO that holds the stream `id`; written now if it is not there. It stays until unpin().
  // Throws Failure(NPU_XRT_HEAP, NPU_XRT_MEMORY, NPU_XRT_SYNC).
  const xrt::bo& pin(uint64_t id, std::span<const npu_xrt_words> parts);
  void unpin() { pinned_ = 0; }
  // Changes words of a stream that is there and syncs them; one that is not there is written with
  // the new words when it is pinned.
  void patch(uint64_t id, std::span<const npu_xrt_patch> patches);
  void forget(uint64_t id);
  // Frees the least recently used BO; false if there is none but the pinned one.
  bool evict_one();

 private:
  struct Slot {
    uint64_t id = 0;
    size_t bytes = 0;  // whole granules
    xrt::bo bo;
    uint32_t* words = nullptr;
  };
  using Slots = std::list<Slot>;  // most recently used first

  Slot make(uint64_t id, size_t bytes);
  void erase(Slots::iterator slot);
  void clear();
  static void write(Slot& slot, std::span<const npu_xrt_words> parts);

  const xrt::device& device_;
  const xrt::memory_group group_;
  HeapUse& use_;
  Slots slots_;
  std::unordered_map<uint64_t, Slots::iterator> by_id_;
  uint64_t pinned_ = 0;           // no stream has this number
  std::vector<uint64_t> places_;  // of a patch
};

}  // namespace npu::xrt_module
