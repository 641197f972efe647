// Fills a C tile with zeros. `count` elements, a multiple of 16.
#include <stdint.h>

#include <aie_api/aie.hpp>

#include "kernel.h"

namespace {

constexpr int32_t kZeroLanes = 16;

template <typename T>
inline void zero(T* __restrict c, int32_t count) {
  const auto nothing = aie::zeros<T, kZeroLanes>();
  for (int32_t i = 0; i < count; i += kZeroLanes) aie::store_v(c + i, nothing);
}

#if NPU_DECLARATIONS
template <typename T>
consteval Declaration zeroing() {
  return {.operands = {buffer("c", "count"), multiple("count", kZeroLanes)},
          .cycles = [](const Timing& timing, const int64_t* count) {
            return npu::perf::zero_cycles(timing, double(count[0]), sizeof(T));
          }};
}
#endif

}  // namespace

NPU_KERNEL void zero_f32(float* c, int32_t count) { zero(c, count); }
NPU_KERNEL void zero_i32(int32_t* c, int32_t count) { zero(c, count); }
NPU_KERNEL void zero_i16(int16_t* c, int32_t count) { zero(c, count); }
NPU_KERNEL void zero_i8(int8_t* c, int32_t count) { zero(c, count); }
NPU_KERNEL void zero_bf16(bfloat16* c, int32_t count) { zero(c, count); }

NPU_DECLARE(zero_f32, zeroing<float>());
NPU_DECLARE(zero_i32, zeroing<int32_t>());
NPU_DECLARE(zero_i16, zeroing<int16_t>());
NPU_DECLARE(zero_i8, zeroing<int8_t>());
NPU_DECLARE(zero_bf16, zeroing<bfloat16>());
