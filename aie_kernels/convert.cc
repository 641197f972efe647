// Narrows a result: fp32 to bf16, int32 to int8 or int16 by a right shift. Rounds to nearest even,
// integers with saturation. `count` elements, a multiple of 16. dst may be src: elements are loaded
// in order, and those that a store overwrites before it (so the pointers are not __restrict).
#include <stdint.h>

#include <aie_api/aie.hpp>

namespace {

template <typename T>
inline void narrow(const int32_t* src, T* dst, int32_t count, int32_t shift) {
  constexpr int32_t kLanes = 16;
  // A core resets to floor and no saturation; the modes stay set afterwards.
  aie::set_rounding(aie::rounding_mode::conv_even);
  aie::set_saturation(aie::saturation_mode::saturate);
  for (int32_t i = 0; i < count; i += kLanes) {
    const aie::accum<acc32, kLanes> wide(aie::load_v<kLanes>(src + i));
    aie::store_v(dst + i, wide.to_vector<T>(shift));
  }
}

}  // namespace

extern "C" {

void convert_f32_bf16(const float* src, bfloat16* dst, int32_t count) {
  constexpr int32_t kLanes = 16;
  // A core resets to floor, which would bias every result; the mode stays set afterwards.
  aie::set_rounding(aie::rounding_mode::conv_even);
  for (int32_t i = 0; i < count; i += kLanes) {
    const aie::accum<accfloat, kLanes> wide(aie::load_v<kLanes>(src + i));
    aie::store_v(dst + i, wide.to_vector<bfloat16>());
  }
}

void narrow_i32_i8(const int32_t* src, int8_t* dst, int32_t count, int32_t shift) {
  narrow(src, dst, count, shift);
}
void narrow_i32_i16(const int32_t* src, int16_t* dst, int32_t count, int32_t shift) {
  narrow(src, dst, count, shift);
}

}  // extern "C"
