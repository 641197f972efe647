// What a declaration says about one call: whether its operands fit, which bytes it accesses, how
// long it takes.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "kernels/declaration.h"
#include "kernels/kernel.h"

namespace npu::kernels {

using Arguments = std::span<const KernelArgument>;
using Integers = std::array<int64_t, kMaxOperands>;

// Throws Error(kKernel) unless the call's operands are what the kernel takes.
void check_call(const Declaration& kernel, Arguments arguments);

// The bytes from its address on that a call accesses through one buffer operand.
struct OperandUse {
  uint64_t bytes = UINT64_MAX;  // UINT64_MAX: unknown
  bool read_only = false;
};
using OperandUses = std::array<OperandUse, kMaxOperands>;
// Of every operand; those of integers mean nothing. Only the number of operands is as declared.
OperandUses operand_uses(const Declaration& kernel, Arguments arguments);

// The word of each buffer operand with which those that steer the core begin.
using SteeringFirsts = std::array<uint32_t, kMaxOperands>;
SteeringFirsts steering_firsts(const Declaration& kernel, Arguments arguments);

// Cycles of a call, and what they are: "scheduled" (perf/kernel_schedules.h), "scheduled in part",
// else what the kernel declares, "published" or "counted".
struct Cost {
  double cycles;
  const char* source;
};

// Throws Error(kKernel) if the kernel declares no cost, or for operands of another number or kind.
Cost call_cost(const Declaration& kernel, const arch::Timing& timing, Arguments arguments);
Cost call_cost(const Declaration& kernel, const arch::Timing& timing, const Integers& integers);
inline double call_cycles(const Declaration& kernel, const arch::Timing& timing,
                          const Integers& integers) {
  return call_cost(kernel, timing, integers).cycles;
}

// Throw Error(kKernel) unless an integer operand may have a value, and unless the integers are
// multiples of what depends on others of them.
void check_integer(const Declaration& kernel, const Operand& operand, int64_t value);
void check_multiples(const Declaration& kernel, const Integers& integers);

}  // namespace npu::kernels
