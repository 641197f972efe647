// Instruction buffers in the device heap (instruction_pool.h).
#include "instruction_pool.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "failure.h"

namespace npu::xrt_module {

namespace {

// Words that are synchronised sooner than a second call is made.
constexpr uint64_t kGap = 1024;

void upload(xrt::bo& bo, size_t bytes, size_t offset) {
  calling(NPU_XRT_SYNC, bytes, [&] { bo.sync(XCL_BO_SYNC_BO_TO_DEVICE, bytes, offset); });
}

}  // namespace

uint64_t count_words(std::span<const npu_xrt_words> parts) {
  uint64_t count = 0;
  for (const npu_xrt_words& part : parts) count += part.count;
  return count;
}

const xrt::bo& InstructionPool::pin(uint64_t id, std::span<const npu_xrt_words> parts) {
  const auto found = by_id_.find(id);
  if (found != by_id_.end()) {
    slots_.splice(slots_.begin(), slots_, found->second);
  } else {
    slots_.push_front(make(id, (count_words(parts) * 4 + kGranule - 1) / kGranule * kGranule));
    by_id_[id] = slots_.begin();
    try {
      write(slots_.front(), parts);
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
        Slot slot{
            id, bytes,
            calling(NPU_XRT_MEMORY, bytes,
                    [&] { return xrt::bo(device_, bytes, xrt::bo::flags::cacheable, group_); }),
            nullptr};
        slot.words = slot.bo.map<uint32_t*>();
        use_.bytes += bytes;
        return slot;
      } catch (Failure& failure) {
        // Other processes' or other contexts' shares are not known: less than the budget may fit. A
        // heap that grows locks more memory.
        const bool full = heap_is_full(failure);
        if (!full && !is_lock_limit(failure)) throw;
        if (evict_one()) continue;
        if (!full) throw;
        throw Failure{NPU_XRT_HEAP, failure.code, failure.text, bytes, use_.bytes};
      }
    }
    if (!evict_one()) {
      throw Failure{NPU_XRT_HEAP, 0, "other contexts hold the heap", bytes, kHeapBudget};
    }
  }
}

void InstructionPool::write(Slot& slot, std::span<const npu_xrt_words> parts) {
  uint32_t* to = slot.words;
  for (const npu_xrt_words& part : parts) to = std::copy_n(part.words, part.count, to);
  upload(slot.bo, static_cast<size_t>(to - slot.words) * 4, 0);
}

void InstructionPool::patch(uint64_t id, std::span<const npu_xrt_patch> patches) {
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return;
  Slot& slot = *found->second;
  places_.clear();
  for (const npu_xrt_patch& patch : patches) {
    if (patch.word >= slot.bytes / 4) {
      throw Failure{NPU_XRT_INTERNAL, 0, "a patch outside the stream", patch.word, slot.bytes / 4};
    }
    slot.words[patch.word] = patch.value;
    places_.push_back(patch.word);
  }
  std::sort(places_.begin(), places_.end());
  try {
    for (size_t i = 0; i < places_.size();) {
      const uint64_t first = places_[i];
      while (++i < places_.size() && places_[i] - places_[i - 1] <= kGap) {
      }
      upload(slot.bo, (places_[i - 1] - first + 1) * 4, first * 4);
    }
  } catch (...) {
    erase(found->second);  // what the device has is not known
    throw;
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
