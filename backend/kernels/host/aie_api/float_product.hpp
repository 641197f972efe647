// Products of fp32 lanes, which cores make of bf16 ones (aie_api: mac_elem_*, its accuracy "fast").
//
// A number is three bf16 parts, largest first, each what the ones before leave, rounded as the
// core's mode says. With the parts a, b, c and d, e, f of the factors, products are added in the
// order a f, b e, c d, b d, a e, each rounded as a bf16 product of the generation is; the last one,
// a d, meets their sum and the accumulator at once.
//
// One fused multiply-add instead: where a factor or the accumulator is not finite, a factor's parts
// overflow or vanish (above 0x1.fep127, below 2^-110), or the product is outside 2^-100 .. 2^126.
#pragma once

#include "fused_dot8.hpp"
#include "rounding.hpp"

AIE_HOST_BEGIN

#if AIE_HOST_SILICON

namespace detail {

// a b + c + d, rounded once as the generation does. All finite; on AIE2P a b is exact in fp32.
AIE_HOST_INLINE float product_and_sums(bfloat16 a, bfloat16 b, float c, float d = 0) {
#if __AIE_ARCH__ == 20
  const factor x = decode(a), y = decode(b);
  const int32_t significand = x.significand * y.significand * 512;
  if (significand == 0 && d == 0) return c;
  const term product{significand, significand == 0 ? 0 : x.exponent + y.exponent + 1};
  const term first = decode(c), second = decode(d);
  int32_t exponent = product.exponent;
  if (first.exponent > exponent) exponent = first.exponent;
  if (second.exponent > exponent) exponent = second.exponent;
  const int64_t sum = align(product, exponent) + align(first, exponent) + align(second, exponent);
  return __builtin_bit_cast(float, normalise(sum, exponent));
#else
  const float product = static_cast<float>(a) * static_cast<float>(b);
  if (d == 0) return product + c;
  // Exact: the other five products reach 2^-38 below this one. With the accumulator the sum is
  // rounded to odd first, so that the second rounding does what rounding once does.
  const double inner = static_cast<double>(product) + static_cast<double>(c), outer = d;
  double sum = inner + outer;
  const double back = sum - inner, rest = (inner - (sum - back)) + (outer - back);
  auto bits = __builtin_bit_cast(uint64_t, sum);
  if (rest != 0) {
    if ((rest > 0) != (sum > 0)) --bits;
    sum = __builtin_bit_cast(double, bits | 1);
  }
  return static_cast<float>(sum);
#endif
}

struct parts {
  bfloat16 of[3] = {};

  AIE_HOST_INLINE parts(float value, rounding_mode mode) {
    const bfloat16 one{0x3F80};
    for (int i = 0; i < 3 && value != 0; ++i) {
      const auto bits = __builtin_bit_cast(uint32_t, value);
      of[i] = {mode == rounding_mode::conv_even ? narrow_bf16_even(bits) : narrow_bf16(bits, mode)};
      const bfloat16 negative{static_cast<uint16_t>(of[i].bits ^ 0x8000)};
      if (i < 2) value = product_and_sums(negative, one, value);
    }
  }
};

AIE_HOST_INLINE bool has_parts(float value) {
  const float size = __builtin_fabsf(value);
  return size == 0 || (size >= 0x1p-110f && size <= 0x1.fep127f);
}

AIE_HOST_INLINE float multiply_add(float v1, float v2, float sum, rounding_mode mode) {
  const float size = __builtin_fabsf(v1 * v2);
  const bool ordinary = size == 0 ? v1 == 0 || v2 == 0 : size >= 0x1p-100f && size <= 0x1p126f;
  if (!ordinary || !has_parts(v1) || !has_parts(v2) || !(__builtin_fabsf(sum) <= 0x1.fffffep127f)) {
    return __builtin_fmaf(v1, v2, sum);
  }
  const parts x(v1, mode), y(v2, mode);
  float below = product_and_sums(x.of[0], y.of[2], 0);
  below = product_and_sums(x.of[1], y.of[1], below);
  below = product_and_sums(x.of[2], y.of[0], below);
  below = product_and_sums(x.of[1], y.of[0], below);
  below = product_and_sums(x.of[0], y.of[1], below);
  return product_and_sums(x.of[0], y.of[0], below, sum);
}

}  // namespace detail

#endif

AIE_HOST_END
