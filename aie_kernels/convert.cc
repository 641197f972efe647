// Narrows fp32 to bf16, rounding to nearest even. `count` elements, a multiple of 16.
#include <stdint.h>

#include <aie_api/aie.hpp>

extern "C" {

void convert_f32_bf16(const float* __restrict src, bfloat16* __restrict dst, int32_t count) {
  constexpr int32_t kLanes = 16;
  // A core resets to floor, which would bias every result; the mode stays set afterwards.
  aie::set_rounding(aie::rounding_mode::conv_even);
  for (int32_t i = 0; i < count; i += kLanes) {
    const aie::accum<accfloat, kLanes> wide(aie::load_v<kLanes>(src + i));
    aie::store_v(dst + i, wide.to_vector<bfloat16>());
  }
}

}  // extern "C"
