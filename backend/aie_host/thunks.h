// Calls a kernel of a host build with a worker's operands: checks their number, kind, sizes and
// shapes (Error(kKernel) with the kernel's name), then makes the core's modes current.
#pragma once

#include "aie_host/variants.h"
#include "kernel.h"

namespace npu::aie_host {

using Arguments = std::span<const KernelArgument>;

void call_matmul_bf16_f32(const KernelTable& table, Arguments arguments, CoreState& core);
void call_matmul_i8_i32(const KernelTable& table, Arguments arguments, CoreState& core);
void call_zero_f32(const KernelTable& table, Arguments arguments, CoreState& core);
void call_zero_i32(const KernelTable& table, Arguments arguments, CoreState& core);
void call_convert_f32_bf16(const KernelTable& table, Arguments arguments, CoreState& core);

}  // namespace npu::aie_host
