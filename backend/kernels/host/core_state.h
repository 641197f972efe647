// What the kernels of this thread see besides their operands: the core's rounding and saturation
// modes, and where packed operands are kept.
#pragma once

#include "kernels/host/packed_operand.h"
#include "kernels/kernel.h"

namespace npu::aie_host {

// Where the packed forms of operands 0 and 1 of this thread's kernel call are kept for others; null
// where nobody else reads the operand. A call sets both.
void set_packed_operands(PackedOperand* a, PackedOperand* b);

// Makes `core` the current one of this thread until the scope ends.
class CoreScope {
 public:
  explicit CoreScope(CoreState& core);
  ~CoreScope();
  CoreScope(const CoreScope&) = delete;
  CoreScope& operator=(const CoreScope&) = delete;

 private:
  CoreState* previous_;
};

}  // namespace npu::aie_host
