// The host builds of aie_kernels/: one table of functions per generation, arithmetic mode and
// instruction set. Included by the variants themselves (variant.cpp), hence plain C data only.
#pragma once

#include <cstdint>

namespace npu::aie_host {

struct MmulShape {
  int32_t r, s, t;  // A tile r x s, B tile s x t, C tile r x t
};

struct KernelTable {
  const char* name;
  MmulShape bf16, i8;
  void (*matmul_bf16_f32)(const void* a, const void* b, float* c, int32_t m, int32_t k, int32_t n);
  void (*matmul_i8_i32)(const int8_t* a, const int8_t* b, int32_t* c, int32_t m, int32_t k,
                        int32_t n);
  void (*zero_f32)(float* c, int32_t count);
  void (*zero_i32)(int32_t* c, int32_t count);
  void (*convert_f32_bf16)(const float* src, void* dst, int32_t count);
};

// Elements that zero and convert handle per step; counts are multiples of it.
inline constexpr int32_t kVectorElements = 16;

extern const KernelTable npu1_fast_v2, npu1_fast_v3, npu1_fast_v4, npu1_fast_v4bf16;
extern const KernelTable npu2_fast_v2, npu2_fast_v3, npu2_fast_v4, npu2_fast_v4bf16;
extern const KernelTable npu1_silicon, npu2_silicon;

// Instruction sets of the `fast` builds; v4bf16 = x86-64-v4 with AVX512_BF16 and AVX512_VNNI.
enum class CpuLevel { kV2, kV3, kV4, kV4Bf16 };
const char* cpu_level_name(CpuLevel level);
// The best level of this machine.
CpuLevel best_cpu_level();
// The level kernels are taken from: NPU_CPU (v2, v3, v4, v4bf16) if set, else the best.
CpuLevel cpu_level();

}  // namespace npu::aie_host
