// Instruction sets of the `fast` kernel builds and which of them this machine executes.
#pragma once

namespace npu::kernels {

enum class CpuLevel { kV2, kV3, kV4, kV4Bf16 };  // v4bf16: v4, AVX512_{BF16,VNNI,VBMI}
inline constexpr CpuLevel kCpuLevels[] = {CpuLevel::kV2, CpuLevel::kV3, CpuLevel::kV4,
                                          CpuLevel::kV4Bf16};

const char* cpu_level_name(CpuLevel level);
// The best level of this machine.
CpuLevel best_cpu_level();
// The level kernels are taken from: NPU_CPU (v2, v3, v4, v4bf16) if set, else the best.
CpuLevel cpu_level();
// The level that kernels which multiply floats are taken from, of `level` for all others: where
// vdpbf16ps multiplies less per cycle than FMAs of fp32, v4 in place of v4bf16, unless NPU_CPU is
// set.
CpuLevel product_cpu_level(CpuLevel level);

}  // namespace npu::kernels
