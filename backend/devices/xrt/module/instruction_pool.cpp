// Instruction buffers in the device heap (instruction_pool.h).
#include "instruction_pool.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "failure.h"

namespace npu::xrt_module {

const xrt::bo& InstructionPool::pin(uint64_t id, std::span<const uint32_t> words) {
  const auto found = by_id_.find(id);
  if (found != by_id_.end()) {
    slots_.splice(slots_.begin(), slots_, found->second);
  } else {
    slots_.push_front(make(id, (words.size_bytes() + kGranule - 1) / kGranule * kGranule));
    by_id_[id] = slots_.begin();
    try {
      write(slots_.front(), words);
    } catch (...) {
      erase(slots_.begin());
      throw;
    }
    ++use_.uploads;
  }
  pinned_ = id;
  return slots_.front().bo;
}

InstructionPool::Slot InstructionPool::make(uint64_t id, size_t bytes) {
  if (bytes > kHeapBudget) {
    throw Failure{NPU_XRT_HEAP, 0, "the stream is larger than the heap", bytes, kHeapBudget};
  }
  for (;;) {
    if (use_.bytes + bytes <= kHeapBudget) {
      try {
        Slot slot{id, bytes, xrt::bo(device_, bytes, xrt::bo::flags::cacheable, group_), nullptr};
        slot.words = slot.bo.map<uint32_t*>();
        use_.bytes += bytes;
        return slot;
      } catch (const std::exception& error) {
        // Other processes' or other contexts' shares are not known: less than the budget may fit.
        if (!evict_one()) {
          throw Failure{NPU_XRT_HEAP, errno_of(error), error.what(), bytes, use_.bytes};
        }
        continue;
      }
    }
    if (!evict_one()) {
      throw Failure{NPU_XRT_HEAP, 0, "other contexts hold the heap", bytes, kHeapBudget};
    }
  }
}

void InstructionPool::write(Slot& slot, std::span<const uint32_t> words) {
  std::memcpy(slot.words, words.data(), words.size_bytes());
  slot.bo.sync(XCL_BO_SYNC_BO_TO_DEVICE, words.size_bytes(), 0);
}

void InstructionPool::patch(uint64_t id, std::span<const npu_xrt_patch> patches) {
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return;
  Slot& slot = *found->second;
  uint64_t first = UINT64_MAX, last = 0;
  for (const npu_xrt_patch& patch : patches) {
    if (patch.word >= slot.bytes / 4) {
      throw Failure{NPU_XRT_INTERNAL, 0, "a patch outside the stream", patch.word, slot.bytes / 4};
    }
    slot.words[patch.word] = patch.value;
    first = std::min(first, patch.word);
    last = std::max(last, patch.word);
  }
  if (first <= last) {
    slot.bo.sync(XCL_BO_SYNC_BO_TO_DEVICE, static_cast<size_t>(last - first + 1) * 4,
                 static_cast<size_t>(first) * 4);
  }
}

void InstructionPool::forget(uint64_t id) {
  const auto found = by_id_.find(id);
  if (found != by_id_.end() && id != pinned_) erase(found->second);
}

bool InstructionPool::evict_one() {
  for (auto slot = slots_.end(); slot != slots_.begin();) {
    --slot;
    if (slot->id == pinned_) continue;
    erase(slot);
    ++use_.evictions;
    return true;
  }
  return false;
}

void InstructionPool::erase(Slots::iterator slot) {
  use_.bytes -= slot->bytes;
  by_id_.erase(slot->id);
  slots_.erase(slot);
}

void InstructionPool::clear() {
  while (!slots_.empty()) erase(slots_.begin());
}

}  // namespace npu::xrt_module
