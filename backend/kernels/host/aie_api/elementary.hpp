// exp2 and tanh of the AIE2P unit for elementary functions: fp32 in, bf16 out. Its accuracy is not
// documented. Modelled: results rounded to nearest even whatever the core's mode, denormals kept.
//
// `silicon` rounds the double value; `fast` an fp32 one within 2^-19 of it, so that a result next
// to the middle of two bf16 numbers may be the other one.
#pragma once

#include <cmath>

#include "lanewise.hpp"

AIE_HOST_BEGIN

namespace detail {

// 2^x within 2^-21, 0 below -150, infinite above 128; without branches.
AIE_HOST_INLINE float exp2_fp32(float x) {
  const float bounded = x < -160.0f ? -160.0f : (x > 130.0f ? 130.0f : x);
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
  const float shifted = bounded + kMagic, f = bounded - (shifted - kMagic);
  float p = 1.54034309e-4f;  // Taylor, ln(2)^k / k!; |f| <= 1/2
  p = p * f + 1.33335581e-3f;
  p = p * f + 9.61812911e-3f;
  p = p * f + 5.55041087e-2f;
  p = p * f + 2.40226507e-1f;
  p = p * f + 6.93147181e-1f;
  p = p * f + 1.0f;
  // 2^n in two factors: n leaves the range of normal numbers.
  const int32_t n = __builtin_bit_cast(int32_t, shifted) - 0x4B400000, half = n >> 1;
  return p * __builtin_bit_cast(float, (half + 127) << 23) *
         __builtin_bit_cast(float, (n - half + 127) << 23);
}

}  // namespace detail

AIE_HOST_END

#if __AIE_ARCH__ >= 21

AIE_HOST_BEGIN

namespace detail {

#if AIE_HOST_SILICON

// To nearest even once: the fp32 number on the way keeps what was cut in its last bit.
AIE_HOST_INLINE uint16_t narrow_bf16_even(double value) {
  const auto cut = static_cast<float>(value);
  uint32_t bits = __builtin_bit_cast(uint32_t, cut);
  if ((bits & 0xFFFF) == 0x8000 && static_cast<double>(cut) != value) {
    bits += __builtin_fabs(static_cast<double>(cut)) < __builtin_fabs(value) ? 1 : -1;
  }
  return narrow_bf16_even(bits);
}

inline uint16_t exp2_bf16(float x) { return narrow_bf16_even(std::exp2(static_cast<double>(x))); }
inline uint16_t tanh_bf16(float x) { return narrow_bf16_even(std::tanh(static_cast<double>(x))); }

#else

AIE_HOST_INLINE float tanh_fp32(float x) {
  const float size = __builtin_fabsf(x), square = size * size;
  const float e = exp2_fp32(size * -2.88539008f);
  const float large = (1.0f - e) / (1.0f + e);
  const float small = size * (1.0f - square * (0.333333333f - square * 0.133333333f));
  return __builtin_copysignf(size < 0.0625f ? small : large, x);
}

AIE_HOST_INLINE uint16_t exp2_bf16(float x) {
  return narrow_bf16_even(__builtin_bit_cast(uint32_t, exp2_fp32(x)));
}
AIE_HOST_INLINE uint16_t tanh_bf16(float x) {
  return narrow_bf16_even(__builtin_bit_cast(uint32_t, tanh_fp32(x)));
}

#endif

}  // namespace detail

template <typename T, unsigned N>
AIE_HOST_INLINE vector<T, N> exp2(const vector<float, N>& v) {
  static_assert(std::is_same_v<T, bfloat16>, "the unit gives bfloat16");
  vector<T, N> out;
  for (unsigned i = 0; i < N; ++i) out.set(bfloat16{detail::exp2_bf16(v.get(i))}, i);
  return out;
}

template <typename T, unsigned N>
AIE_HOST_INLINE vector<T, N> tanh(const vector<float, N>& v) {
  static_assert(std::is_same_v<T, bfloat16>, "the unit gives bfloat16");
  vector<T, N> out;
  for (unsigned i = 0; i < N; ++i) out.set(bfloat16{detail::tanh_bf16(v.get(i))}, i);
  return out;
}

AIE_HOST_END

#endif
