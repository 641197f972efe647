// Narrows a result: fp32 to bf16, int32 to int8 or int16 by a right shift. Rounds to nearest even,
// integers with saturation. `count` elements, a multiple of 16. dst may be src: elements are loaded
// in order, and those that a store overwrites before it (so the pointers are not __restrict).
#include <stdint.h>

#include <aie_api/aie.hpp>

#include "kernel.h"

namespace {

constexpr int32_t kConvertLanes = 16;

template <typename T>
inline void narrow(const int32_t* src, T* dst, int32_t count, int32_t shift) {
  // A core resets to floor and no saturation; the modes stay set afterwards.
  aie::set_rounding(aie::rounding_mode::conv_even);
  aie::set_saturation(aie::saturation_mode::saturate);
  for (int32_t i = 0; i < count; i += kConvertLanes) {
    const aie::accum<acc32, kConvertLanes> wide(aie::load_v<kConvertLanes>(src + i));
    aie::store_v(dst + i, wide.to_vector<T>(shift));
  }
}

#if NPU_DECLARATIONS
template <typename TIn, typename TOut>
consteval Declaration conversion() {
  return {.operands = {buffer("src", "count"), buffer("dst", "count"),
                       multiple("count", kConvertLanes)},
          .cycles =
              [](const Timing& timing, const int64_t* count) {
                return npu::perf::elementwise_cycles(timing, double(count[0]), sizeof(TIn),
                                                     sizeof(TOut));
              },
          .in_place = true};
}
#endif

}  // namespace

NPU_KERNEL void convert_f32_bf16(const float* src, bfloat16* dst, int32_t count) {
  // A core resets to floor, which would bias every result; the mode stays set afterwards.
  aie::set_rounding(aie::rounding_mode::conv_even);
#ifdef AIE_HOST_NARROW  // x86 `fast` builds
  AIE_HOST_NARROW(src, dst, count);
#else
  for (int32_t i = 0; i < count; i += kConvertLanes) {
    const aie::accum<accfloat, kConvertLanes> wide(aie::load_v<kConvertLanes>(src + i));
    aie::store_v(dst + i, wide.to_vector<bfloat16>());
  }
#endif
}

NPU_KERNEL void narrow_i32_i8(const int32_t* src, int8_t* dst, int32_t count, int32_t shift) {
  narrow(src, dst, count, shift);
}
NPU_KERNEL void narrow_i32_i16(const int32_t* src, int16_t* dst, int32_t count, int32_t shift) {
  narrow(src, dst, count, shift);
}

NPU_DECLARE(convert_f32_bf16, conversion<float, bfloat16>());
NPU_DECLARE(narrow_i32_i8, conversion<int32_t, int8_t>().with(integer("shift", 0, 31)));
NPU_DECLARE(narrow_i32_i16, conversion<int32_t, int16_t>().with(integer("shift", 0, 31)));
