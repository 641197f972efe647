// Instruction sets of the `fast` kernel builds and which of them this machine executes.
#pragma once

namespace npu::kernels {

enum class CpuLevel { kV2, kV3, kV4, kV4Bf16 };  // v4bf16: x86-64-v4, AVX512_BF16, AVX512_VNNI
inline constexpr CpuLevel kCpuLevels[] = {CpuLevel::kV2, CpuLevel::kV3, CpuLevel::kV4,
                                          CpuLevel::kV4Bf16};

const char* cpu_level_name(CpuLevel level);
// The best level of this machine.
CpuLevel best_cpu_level();
// The level kernels are taken from: NPU_CPU (v2, v3, v4, v4bf16) if set, else the best.
CpuLevel cpu_level();

}  // namespace npu::kernels
