// The AIE2 bf16 multiply-accumulate, bit by bit: an output lane sums eight products and the
// accumulator in one step.
//
//   1. A product is the exact 16-bit significand with exponent ea + eb + 1, an fp32 accumulator 24
//      bits with exponent e + 128. Denormal inputs count (exponent 1, no hidden bit).
//   2. Every term is aligned to the largest exponent, keeping 23 fraction bits, and rounded to
//      nearest even on its own.
//   3. The integers are summed exactly and rounded once (nearest even). Underflow gives +0,
//      overflow infinity.
//   4. NaN from a NaN operand, infinity * 0 or infinities of both signs. Infinities and NaNs take
//      part in the sum, with hidden bit and exponent 255; a NaN result keeps its sign and mantissa
//      (0 if it overflowed) and sets bit 0. A NaN accumulator stays as it is if all products are 0.
// Reproduces all published silicon vectors bit by bit, NaNs included. They start from an
// accumulator of 0: the accumulator as ninth term and the sign of a flushed result are modelled.
// The rounding mode has no influence.
#pragma once

#include "bfloat16.hpp"

AIE_HOST_BEGIN

namespace detail {

// value = significand * 2^(exponent - 278); a product keeps 9 zero bits below its significand.
struct term {
  int32_t significand;
  int32_t exponent;  // 0 exactly for a zero, which does not take part in the alignment
};

inline constexpr uint32_t kNan = 0x7F800001;  // of a sum that is 0 or overflows to +infinity
inline constexpr uint32_t kInfinity = 0x7F800000;

// A bf16 factor: signed significand of 8 bits and biased exponent, 1 for denormals.
struct factor {
  int32_t significand;
  int32_t exponent;
};

AIE_HOST_INLINE factor decode(bfloat16 x) {
  const int32_t exponent = x.bits >> 7 & 0xFF, mantissa = x.bits & 0x7F;
  const int32_t significand = exponent == 0 ? mantissa : mantissa | 0x80;
  return {(x.bits & 0x8000) != 0 ? -significand : significand, exponent == 0 ? 1 : exponent};
}

AIE_HOST_INLINE term decode(float x) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  const int32_t exponent = static_cast<int32_t>(bits >> 23 & 0xFF);
  const int32_t mantissa = static_cast<int32_t>(bits & 0x7FFFFF);
  const int32_t significand = exponent == 0 ? mantissa : mantissa | 0x800000;
  if (significand == 0) return {0, 0};
  return {bits >> 31 != 0 ? -significand : significand, (exponent == 0 ? 1 : exponent) + 128};
}

AIE_HOST_INLINE uint64_t shift_right_even(uint64_t magnitude, int shift) {
  if (shift <= 0) return magnitude;
  if (shift > 40) return 0;  // magnitudes have fewer than 32 bits
  const uint64_t half = uint64_t{1} << (shift - 1);
  const uint64_t kept = magnitude >> shift;
  const uint64_t rest = magnitude & (half * 2 - 1);
  return kept + (rest > half || (rest == half && (kept & 1) != 0) ? 1 : 0);
}

AIE_HOST_INLINE int64_t align(term t, int32_t exponent) {
  const int64_t value = t.significand;
  const uint64_t magnitude = static_cast<uint64_t>(value < 0 ? -value : value);
  const auto aligned = static_cast<int64_t>(shift_right_even(magnitude, exponent - t.exponent));
  return value < 0 ? -aligned : aligned;
}

// sum * 2^(exponent - 278) as fp32; `nan`: the NaN that the sum gives.
AIE_HOST_INLINE uint32_t normalise(int64_t sum, int32_t exponent, bool nan = false) {
  if (sum == 0) return nan ? kNan : 0;
  const uint32_t sign = sum < 0 ? 0x80000000u : 0;
  uint64_t magnitude = static_cast<uint64_t>(sum < 0 ? -sum : sum);
  const int lead = 63 - __builtin_clzll(magnitude);
  int32_t biased = exponent + lead - 23 - 128;
  magnitude = lead > 23 ? shift_right_even(magnitude, lead - 23) : magnitude << (23 - lead);
  if (magnitude == 0x1000000) {
    magnitude >>= 1;
    biased += 1;
  }
  const uint32_t mantissa = static_cast<uint32_t>(magnitude) & 0x7FFFFF;
  if (nan) return sign | kNan | (biased > 0 && biased < 255 ? mantissa : 0);
  if (biased >= 255) return sign | kInfinity;
  if (biased <= 0) return 0;
  return sign | static_cast<uint32_t>(biased) << 23 | mantissa;
}

// The class of a sum in which some operand is infinite or NaN: kNan, an infinity, or 0 if the sum
// is finite after all.
template <unsigned Stride>
inline uint32_t special_dot8(const bfloat16* a, const bfloat16* b, float acc) {
  bool positive = false, negative = false;
  const auto see = [&](uint32_t sign) { (sign != 0 ? negative : positive) = true; };
  const uint32_t acc_bits = __builtin_bit_cast(uint32_t, acc);
  if ((acc_bits & 0x7FFFFFFF) > kInfinity) return kNan;
  if ((acc_bits & 0x7FFFFFFF) == kInfinity) see(acc_bits >> 31);
  for (unsigned k = 0; k < 8; ++k) {
    const uint32_t x = a[k].bits, y = b[k * Stride].bits;
    const uint32_t x_size = x & 0x7FFF, y_size = y & 0x7FFF;
    if (x_size > 0x7F80 || y_size > 0x7F80) return kNan;
    if (x_size != 0x7F80 && y_size != 0x7F80) continue;
    if (x_size == 0 || y_size == 0) return kNan;
    see((x ^ y) & 0x8000);
  }
  if (positive && negative) return kNan;
  if (!positive && !negative) return 0;
  return (negative ? 0x80000000u : 0) | kInfinity;
}

// c[M][N] += a[M][8] @ b[8][N]
template <unsigned M, unsigned N>
inline void fused_dot8_tile(const bfloat16* a, const bfloat16* b, float* c) {
  factor fb[8 * N];
  bool special = false;
  for (unsigned i = 0; i < 8 * N; ++i) {
    fb[i] = decode(b[i]);
    special |= (b[i].bits & 0x7F80) == 0x7F80;
  }
  for (unsigned i = 0; i < M; ++i) {
    factor fa[8];
    bool row_special = special;
    for (unsigned k = 0; k < 8; ++k) {
      fa[k] = decode(a[i * 8 + k]);
      row_special |= (a[i * 8 + k].bits & 0x7F80) == 0x7F80;
    }
    for (unsigned j = 0; j < N; ++j) {
      float& out = c[i * N + j];
      const term acc = decode(out);
      bool nan = false;
      if (row_special || acc.exponent == 255 + 128) {
        const uint32_t bits = special_dot8<N>(a + i * 8, b + j, out);
        nan = bits == kNan;
        if (bits != 0 && !nan) {
          out = __builtin_bit_cast(float, bits);
          continue;
        }
      }
      term products[8];
      int32_t exponent = acc.exponent, largest = 0;
      for (unsigned k = 0; k < 8; ++k) {
        const factor y = fb[k * N + j];
        const int32_t product = fa[k].significand * y.significand * 512;
        products[k] = {product, product == 0 ? 0 : fa[k].exponent + y.exponent + 1};
        largest = products[k].exponent > largest ? products[k].exponent : largest;
      }
      if (nan && largest == 0 && (__builtin_bit_cast(uint32_t, out) & 0x7FFFFFFF) > kInfinity)
        continue;
      exponent = largest > exponent ? largest : exponent;
      int64_t sum = align(acc, exponent);
      for (unsigned k = 0; k < 8; ++k) sum += align(products[k], exponent);
      out = __builtin_bit_cast(float, normalise(sum, exponent, nan));
    }
  }
}

}  // namespace detail

AIE_HOST_END
