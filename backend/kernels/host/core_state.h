// What the kernels of this thread see besides their operands: the core's rounding and saturation
// modes, and where packed operands are kept.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/host/packed_operand.h"
#include "kernels/kernel.h"

namespace npu::aie_host {

inline constexpr size_t kPackedOperands = 4;  // the first ones of a call may have packed forms

// Where the packed forms of the operands of this thread's kernel call are kept for others; null
// where nobody else reads the operand. A call sets all.
void set_packed_operands(std::span<const KernelArgument> operands);

// Makes `core` the current one of this thread until the scope ends.
class CoreScope {
 public:
  explicit CoreScope(CoreState& core);
  ~CoreScope();
  CoreScope(const CoreScope&) = delete;
  CoreScope& operator=(const CoreScope&) = delete;

 private:
  CoreState** const running_;  // the thread's
  CoreState* const previous_;
};

}  // namespace npu::aie_host
