// Calls a kernel of a host build with a worker's operands: checks their number, kind, sizes and
// shapes (Error(kKernel) with the kernel's name), then makes the core's modes current.
#pragma once

#include "aie_host/variants.h"
#include "kernel.h"

namespace npu::aie_host {

using Arguments = std::span<const KernelArgument>;

void call(const HostFunction& function, Arguments arguments, CoreState& core);
// See npu::OperandUses.
OperandUse operand_use(const HostFunction& function, Arguments arguments, size_t i);

}  // namespace npu::aie_host
