// Blocks of 4-bit codes to row-major bfloat16 in the `fast` builds, the same bits as the kernels'
// own form (aie_kernels/dequant_q4nx.cc).
//
// A row has 16 possible values per group of 32 columns: they are computed once, with the formula's
// roundings, and looked up by code. Codes of a column are neighbours in the block, those of a row
// are wanted: 8 x 8 byte transposes put 32 columns of a pair of rows next to each other.
#pragma once

#include "aie_kernels/weight_block.h"
#include "simd.hpp"

#define AIE_HOST_DEQUANT aie::host::dequantize_block

AIE_HOST_BEGIN
namespace host {

inline constexpr int32_t kDqRows = npu::q4nx::kRows, kDqColumns = npu::q4nx::kColumns;
inline constexpr int32_t kDqGroup = npu::q4nx::kGroup, kDqHalfRows = 16;
inline constexpr int32_t kDqGroups = npu::q4nx::kGroups;
inline constexpr int32_t kDqPlane = npu::q4nx::kPlaneBytes;
inline constexpr int32_t kDqColumnBytes = kDqHalfRows / 2;

AIE_HOST_INLINE float widen_one(uint16_t bits) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(bits) << 16);
}

// Scales and minima. A block that has none has codes from -8 on.
template <bool kMinima>
struct dq_planes {
  const uint16_t* scales;
  static constexpr int32_t kBytes = npu::blocks::Int4Layout<kMinima>::kCodesAt;
  static constexpr float kFirst = -npu::blocks::Int4Layout<kMinima>::kZero;
  AIE_HOST_INLINE float d(int32_t at) const { return widen_one(scales[at]); }
  AIE_HOST_INLINE float m(int32_t at) const {
    return kMinima ? widen_one(scales[kDqPlane / 2 + at]) : 0;
  }
};

// The product on its own: contracted into the addition it would not overflow where the formula
// does.
template <typename V>
AIE_HOST_INLINE V rounded(V product) {
  asm("" : "+v"(product));
  return product;
}

#if defined(__AVX512BW__)

// The 16 values of a row and group as 16 bf16.
template <bool kMinima>
AIE_HOST_INLINE __m256i values_of(const dq_planes<kMinima>& planes, int32_t at) {
  const __m512 number = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512 code = _mm512_add_ps(number, _mm512_set1_ps(dq_planes<kMinima>::kFirst));
  const __m512 product = rounded(_mm512_mul_ps(_mm512_set1_ps(planes.d(at)), code));
  const __m512 sum = _mm512_add_ps(product, _mm512_set1_ps(planes.m(at)));
  const __m512i bits = _mm512_castps_si512(sum);
  // To nearest even; a NaN stays one.
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
  const __mmask16 nan = _mm512_cmp_ps_mask(sum, sum, _CMP_UNORD_Q);
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(up, nan, quiet), 16));
}

// 8 columns of 8 bytes to 8 rows of 8 columns.
AIE_HOST_INLINE __m512i transpose_bytes(__m512i v) {
  // Within 128-bit lanes: (2 columns, 8 bytes) to 8 pairs; then words to their rows.
  const __m512i pairs =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15));
  const __m512i order = _mm512_set_epi16(31, 23, 15, 7, 30, 22, 14, 6, 29, 21, 13, 5, 28, 20, 12, 4,
                                         27, 19, 11, 3, 26, 18, 10, 2, 25, 17, 9, 1, 24, 16, 8, 0);
  return _mm512_permutexvar_epi16(order, _mm512_shuffle_epi8(v, pairs));
}

template <bool kMinima>
[[gnu::noinline]] inline void dequantize_block(const uint8_t* block, bfloat16* out) {
  const dq_planes<kMinima> planes{reinterpret_cast<const uint16_t*>(block)};
  const uint8_t* codes = block + dq_planes<kMinima>::kBytes;
  auto* rows = reinterpret_cast<uint16_t*>(out);
  const __m512i low = _mm512_set1_epi16(15);
  for (int32_t half = 0; half < 2; ++half) {
    for (int32_t g = 0; g < kDqGroups; ++g, codes += kDqGroup * kDqColumnBytes) {
      alignas(64) uint64_t bytes[4][8];  // of 8 columns: pair of rows, columns
      unroll<4>([&](auto i) {
        _mm512_store_si512(bytes[i.value],
                           transpose_bytes(_mm512_loadu_si512(codes + i.value * 64)));
      });
      for (int32_t pair = 0; pair < kDqHalfRows / 2; ++pair) {
        const __m256i packed = _mm256_setr_epi64x(
            static_cast<long long>(bytes[0][pair]), static_cast<long long>(bytes[1][pair]),
            static_cast<long long>(bytes[2][pair]), static_cast<long long>(bytes[3][pair]));
        const __m512i both = _mm512_cvtepu8_epi16(packed);
        const int32_t row = half * kDqHalfRows + 2 * pair, at = g * kDqRows + row;
        uint16_t* to = rows + row * kDqColumns + g * kDqGroup;
        const __m512i even = _mm512_castsi256_si512(values_of(planes, at));
        const __m512i odd = _mm512_castsi256_si512(values_of(planes, at + 1));
        _mm512_storeu_si512(to, _mm512_permutexvar_epi16(_mm512_and_si512(both, low), even));
        _mm512_storeu_si512(to + kDqColumns,
                            _mm512_permutexvar_epi16(_mm512_srli_epi16(both, 4), odd));
      }
    }
  }
}

#else

// The 16 values of a row and group, low bytes and high bytes apart.
template <bool kMinima>
AIE_HOST_INLINE void values_of(const dq_planes<kMinima>& planes, int32_t at, __m128i& low,
                               __m128i& high) {
  const __m128 scale = _mm_set1_ps(planes.d(at)), minimum = _mm_set1_ps(planes.m(at));
  __m128i narrow[4];
  unroll<4>([&](auto i) {
    constexpr float kFirst = dq_planes<kMinima>::kFirst + 4 * i.value;
    const __m128 code = _mm_setr_ps(kFirst, kFirst + 1, kFirst + 2, kFirst + 3);
    const __m128 sum = _mm_add_ps(rounded(_mm_mul_ps(scale, code)), minimum);
    const __m128i bits = _mm_castps_si128(sum);
    // To nearest even; a NaN stays one.
    const __m128i odd = _mm_and_si128(_mm_srli_epi32(bits, 16), _mm_set1_epi32(1));
    const __m128i up = _mm_add_epi32(bits, _mm_add_epi32(odd, _mm_set1_epi32(0x7FFF)));
    const __m128i quiet = _mm_or_si128(bits, _mm_set1_epi32(0x400000));
    const __m128i nan = _mm_castps_si128(_mm_cmpunord_ps(sum, sum));
    narrow[i.value] = _mm_srli_epi32(_mm_blendv_epi8(up, quiet, nan), 16);
  });
  const __m128i first = _mm_packus_epi32(narrow[0], narrow[1]);
  const __m128i second = _mm_packus_epi32(narrow[2], narrow[3]);
  const __m128i byte = _mm_set1_epi16(0xFF);
  low = _mm_packus_epi16(_mm_and_si128(first, byte), _mm_and_si128(second, byte));
  high = _mm_packus_epi16(_mm_srli_epi16(first, 8), _mm_srli_epi16(second, 8));
}

template <bool kMinima>
[[gnu::noinline]] inline void dequantize_block(const uint8_t* block, bfloat16* out) {
  const dq_planes<kMinima> planes{reinterpret_cast<const uint16_t*>(block)};
  const uint8_t* codes = block + dq_planes<kMinima>::kBytes;
  auto* rows = reinterpret_cast<uint16_t*>(out);
  const __m128i mask = _mm_set1_epi8(15);
  for (int32_t half = 0; half < 2; ++half) {
    for (int32_t g = 0; g < kDqGroups; ++g, codes += kDqGroup * kDqColumnBytes) {
      alignas(16) uint8_t bytes[kDqHalfRows / 2][kDqGroup];  // pair of rows, column
      for (int32_t c = 0; c < kDqGroup; ++c) {
        for (int32_t pair = 0; pair < kDqHalfRows / 2; ++pair) {
          bytes[pair][c] = codes[c * kDqColumnBytes + pair];
        }
      }
      for (int32_t r = 0; r < kDqHalfRows; ++r) {
        const int32_t row = half * kDqHalfRows + r, at = g * kDqRows + row;
        __m128i low, high;
        values_of(planes, at, low, high);
        uint16_t* to = rows + row * kDqColumns + g * kDqGroup;
        for (int32_t c = 0; c < kDqGroup; c += 16) {
          const __m128i both = _mm_load_si128(reinterpret_cast<const __m128i*>(bytes[r / 2] + c));
          const __m128i code = _mm_and_si128(r % 2 ? _mm_srli_epi16(both, 4) : both, mask);
          const __m128i below = _mm_shuffle_epi8(low, code), above = _mm_shuffle_epi8(high, code);
          _mm_storeu_si128(reinterpret_cast<__m128i*>(to + c), _mm_unpacklo_epi8(below, above));
          _mm_storeu_si128(reinterpret_cast<__m128i*>(to + c + 8), _mm_unpackhi_epi8(below, above));
        }
      }
    }
  }
}

#endif

}  // namespace host
AIE_HOST_END
