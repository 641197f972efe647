// How a `fast` build multiplies: the element that operands are packed as, how many consecutive k
// share a 32-bit lane, and the instruction that multiplies and accumulates such lanes.
//
//   bf16   AVX512BF16: pairs of bf16, vdpbf16ps: two fp32 FMA roundings per pair, odd k before
//          even k; denormal operands and results count as zero. Else fp32, one k after the other.
//   int8   AVX512VNNI: four bytes, vpdpbusd. It multiplies unsigned by signed bytes: A enters as
//          a + 128, and 128 * sum_k(b) is subtracted from C. Else widened to int16.
//   int16  pairs, vpdpwssd or vpmaddwd.
//   bfp16  mantissas as integers, whose sums are scaled (block_products.hpp).
// Integer sums are exact modulo 2^32 in every case.
#pragma once

#include "simd.hpp"

AIE_HOST_BEGIN
namespace host {

using lanes = simd<int32_t, kLanes>;
using float_lanes = simd<float, kLanes>;

struct float_format {
  using packed = float;
  using accumulator = float;
  static constexpr unsigned kPerLane = 1;
  using vector = simd<float, kLanes>;
  AIE_HOST_INLINE static vector dot(vector sum, int32_t a, lanes b) {
    return sum + __builtin_bit_cast(float, a) * reinterpret_cast<vector>(b);
  }
};

#if defined(__AVX512BF16__)
struct bf16_format {
  using packed = uint16_t;
  using accumulator = float;
  static constexpr unsigned kPerLane = 2;
  using vector = simd<float, kLanes>;
  AIE_HOST_INLINE static vector dot(vector sum, int32_t a, lanes b) {
    return (vector)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(a), (__m512bh)b);
  }
};
#else
using bf16_format = float_format;
#endif

struct i16_format {
  using packed = int16_t;
  using accumulator = int32_t;
  static constexpr unsigned kPerLane = 2;
  using vector = lanes;
  AIE_HOST_INLINE static vector dot(vector sum, int32_t a, lanes b) {
#if defined(__AVX512VNNI__)
    return (vector)_mm512_dpwssd_epi32((__m512i)sum, _mm512_set1_epi32(a), (__m512i)b);
#else
    sum += products(splat<int32_t, kLanes>(a), b);
    asm("" : "+v"(sum));  // GCC would add products of several k first, and spill them
    return sum;
#endif
  }
  // Of the pairs of a lane, added.
  AIE_HOST_INLINE static vector products(lanes a, lanes b) {
#if defined(__AVX512BW__)
    return (vector)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (vector)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#else
    return (vector)_mm_madd_epi16((__m128i)a, (__m128i)b);
#endif
  }
};

#if defined(__AVX512VNNI__)
struct i8_format {
  using packed = int8_t;
  using accumulator = int32_t;
  static constexpr unsigned kPerLane = 4;
  using vector = lanes;
  AIE_HOST_INLINE static vector dot(vector sum, int32_t a, lanes b) {
    return (vector)_mm512_dpbusd_epi32((__m512i)sum, _mm512_set1_epi32(a), (__m512i)b);
  }
};
#else
using i8_format = i16_format;
#endif

template <typename T>
struct format_of;
template <>
struct format_of<bfloat16> {
  using type = bf16_format;
};
template <>
struct format_of<int8_t> {
  using type = i8_format;
};
template <>
struct format_of<int16_t> {
  using type = i16_format;
};

// What A is off by when it is multiplied as unsigned bytes.
template <typename T>
inline constexpr int kOffset =
    std::is_same_v<T, int8_t> && format_of<T>::type::kPerLane == 4 ? 128 : 0;

}  // namespace host
AIE_HOST_END
