// One host build of all kernels. Compiled several times (aie_kernels/host_kernels.cmake) with
// AIE_HOST_VARIANT naming the build; every function of the kernel sources gets that name appended.
#include "aie_host/variants.h"

#define NPU_JOIN_(a, b) a##_##b
#define NPU_JOIN(a, b) NPU_JOIN_(a, b)
#define NPU_STRING_(x) #x
#define NPU_STRING(x) NPU_STRING_(x)
#define matmul_bf16_f32 NPU_JOIN(matmul_bf16_f32, AIE_HOST_VARIANT)
#define matmul_i8_i32 NPU_JOIN(matmul_i8_i32, AIE_HOST_VARIANT)
#define zero_f32 NPU_JOIN(zero_f32, AIE_HOST_VARIANT)
#define zero_i32 NPU_JOIN(zero_i32, AIE_HOST_VARIANT)
#define convert_f32_bf16 NPU_JOIN(convert_f32_bf16, AIE_HOST_VARIANT)

#include "convert.cc"
#include "matmul.cc"
#include "zero.cc"

namespace {

// bfloat16 is a different type in every variant, so the table passes untyped pointers.
void matmul_bf16(const void* a, const void* b, float* c, int32_t m, int32_t k, int32_t n) {
  matmul_bf16_f32(static_cast<const bfloat16*>(a), static_cast<const bfloat16*>(b), c, m, k, n);
}
void convert(const float* src, void* dst, int32_t count) {
  convert_f32_bf16(src, static_cast<bfloat16*>(dst), count);
}

}  // namespace

#undef matmul_bf16_f32
#undef matmul_i8_i32
#undef zero_f32
#undef zero_i32
#undef convert_f32_bf16

namespace npu::aie_host {

extern const KernelTable AIE_HOST_VARIANT = {
    .name = NPU_STRING(AIE_HOST_VARIANT),
    .bf16 = {Bf16Tile::r, Bf16Tile::s, Bf16Tile::t},
    .i8 = {I8Tile::r, I8Tile::s, I8Tile::t},
    .matmul_bf16_f32 = matmul_bf16,
    .matmul_i8_i32 = NPU_JOIN(matmul_i8_i32, AIE_HOST_VARIANT),
    .zero_f32 = NPU_JOIN(zero_f32, AIE_HOST_VARIANT),
    .zero_i32 = NPU_JOIN(zero_i32, AIE_HOST_VARIANT),
    .convert_f32_bf16 = convert,
};

}  // namespace npu::aie_host
