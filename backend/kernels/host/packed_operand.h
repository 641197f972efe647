// An operand in the order in which a `fast` build reads it, kept for the other cores that were sent
// the same bytes: whichever core multiplies first packs, the others find it ready.
#pragma once

#include <atomic>
#include <cstdint>

#include "aligned.h"

namespace npu {

struct PackedOperand {
  enum State : int { kEmpty, kBeingPacked, kReady, kRefused };

  // Before the operand's bytes change; no kernel may be using it.
  void clear() { state.store(kEmpty, std::memory_order_relaxed); }

  std::atomic<int> state{kEmpty};
  // What was packed, written by the packing thread before the state says so.
  const void* form = nullptr;  // which packing function
  int64_t shape = 0;           // and its dimensions
  AlignedBytes bytes;
};

}  // namespace npu
