// The host builds of aie_kernels/: one table of functions per generation, arithmetic mode and
// instruction set. Included by the variants themselves (variant.cpp), hence plain C data only.
#pragma once

#include <cstdint>

namespace npu::aie_host {

// A BFP16 tile, 8 x 8 elements, has 72 bytes in memory.
inline constexpr int32_t kBlockSide = 8, kBlockTile = 64;

struct MmulShape {
  int32_t r, s, t;  // A tile r x s, B tile s x t, C tile r x t
};

// A kernel of a build, behind untyped pointers: bfloat16 is a different type in every build.
// Exactly one of the functions is set; a shift is ignored unless `shift` says otherwise.
struct HostFunction {
  const char* name;
  int32_t in_bytes, out_bytes;  // per element
  bool shift;                   // an operand after the sizes is a shift
  bool in_blocks, out_blocks;   // those elements are BFP16: 9 bytes per 8, not in_, out_bytes
  bool depth;                   // convert: the last operand is k
  bool row;                     // matmul: the last operand is the first row of C; k is limited
  MmulShape tile;
  void (*matmul)(const void* a, const void* b, void* c, int32_t m, int32_t k, int32_t n,
                 int32_t shift, int32_t row);
  void (*zero)(void* c, int32_t count);
  void (*convert)(const void* src, void* dst, int32_t count, int32_t shift_or_depth);
  void (*dequant)(const uint8_t* block, void* out);
  void (*setup)(const void* table, int32_t* words, int32_t* state, float* sums, int32_t index);
  void (*gemv)(const uint8_t* block, const void* x, float* sums, int32_t* y, const int32_t* words,
               int32_t* state, int32_t batch);

  // Bytes of so many elements.
  int64_t in_size(int64_t count) const { return in_blocks ? count / 8 * 9 : count * in_bytes; }
  int64_t out_size(int64_t count) const { return out_blocks ? count / 8 * 9 : count * out_bytes; }
};

inline constexpr int kMaxFunctions = 44;

struct KernelTable {
  const char* name;
  HostFunction functions[kMaxFunctions];  // unused entries have no name
};

// Elements that zero and the conversions handle per step; counts are multiples of it.
inline constexpr int32_t kVectorElements = 16;
// Shifts between an accumulator and a narrow C: less than the bits of an acc32.
inline constexpr int32_t kMaxShift = 31;

// Steps of s along k that pipelined kernels are unrolled for.
inline constexpr int kMinPipelinedSteps = 2, kMaxPipelinedSteps = 8;

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
