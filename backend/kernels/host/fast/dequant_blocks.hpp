// Blocks of 8-bit and bfloat16 weights to row-major bfloat16 in the `fast` builds, the same bits as
// the kernels' own forms (aie_kernels/dequant_q8.cc, dequant_bf16.cc).
#pragma once

#include "aie_kernels/weight_block.h"
#include "gemv.hpp"
#include "simd.hpp"

#define AIE_HOST_DEQUANT_Q8 aie::host::dequantize_q8
#define AIE_HOST_DEQUANT_BF16 aie::host::dequantize_bf16

AIE_HOST_BEGIN
namespace host {

// 8 columns of 8 numbers, kBlockRows apart, to 8 rows, `stride` apart.
AIE_HOST_INLINE void transpose_8x8(const uint16_t* columns, uint16_t* rows, int32_t stride) {
  __m128i in[8], two[8], four[8];
  unroll<8>([&](auto i) {
    in[i.value] = _mm_loadu_si128((const __m128i*)(columns + int32_t(i.value) * kBlockRows));
  });
  unroll<4>([&](auto i) {
    two[i.value] = _mm_unpacklo_epi16(in[2 * i.value], in[2 * i.value + 1]);
    two[i.value + 4] = _mm_unpackhi_epi16(in[2 * i.value], in[2 * i.value + 1]);
  });
  unroll<4>([&](auto i) {
    four[2 * i.value] = _mm_unpacklo_epi32(two[2 * i.value], two[2 * i.value + 1]);
    four[2 * i.value + 1] = _mm_unpackhi_epi32(two[2 * i.value], two[2 * i.value + 1]);
  });
  // four[0..3]: rows 0-1 and 2-3 of columns 0-3, then of columns 4-7; four[4..7]: rows 4-7.
  unroll<4>([&](auto i) {
    const __m128i left = four[i.value % 2 + i.value / 2 * 4];
    const __m128i right = four[i.value % 2 + i.value / 2 * 4 + 2];
    uint16_t* to = rows + 2 * int32_t(i.value) * stride;
    _mm_storeu_si128((__m128i*)to, _mm_unpacklo_epi64(left, right));
    _mm_storeu_si128((__m128i*)(to + stride), _mm_unpackhi_epi64(left, right));
  });
}

// All columns of a block, stored by column, to rows.
template <int32_t kColumns>
AIE_HOST_INLINE void transpose_block(const uint16_t* columns, uint16_t* rows) {
  for (int32_t c = 0; c < kColumns; c += 8) {
    for (int32_t r = 0; r < kBlockRows; r += 8) {
      transpose_8x8(columns + c * kBlockRows + r, rows + r * kColumns + c, kColumns);
    }
  }
}

[[gnu::noinline]] inline void dequantize_bf16(const uint8_t* block, bfloat16* out) {
  transpose_block<kBf16Columns>(reinterpret_cast<const uint16_t*>(block),
                                reinterpret_cast<uint16_t*>(out));
}

template <typename Layout>  // q8, q8_0
[[gnu::noinline]] inline void dequantize_q8(const uint8_t* block, bfloat16* out) {
  const auto* d = reinterpret_cast<const float*>(block);
  const auto* codes = reinterpret_cast<const int8_t*>(block + Layout::kCodesAt);
  alignas(64) uint16_t values[Layout::kColumns * kBlockRows];
  for (int32_t c = 0; c < Layout::kColumns; ++c) {
    unroll<kBlockRows / kLanes>([&](auto p) {
      const auto at = int32_t(p.value * kLanes);
      const auto scale = load<float_lanes>(d + c / Layout::kGroup * kBlockRows + at);
      // The kernel adds its product to zero: -0 becomes 0.
      const float_lanes product = widen_int8(codes + c * kBlockRows + at) * scale + 0.0f;
      // To nearest even; a NaN stays one.
      const auto bits = (simd<uint32_t, kLanes>)product;
      const auto up = bits + ((bits >> 16 & 1) + 0x7FFF);
      const auto kept = product == product ? up : (bits | 0x400000);
      store(__builtin_convertvector(kept >> 16, simd<uint16_t, kLanes>),
            values + c * kBlockRows + at);
    });
  }
  transpose_block<Layout::kColumns>(values, reinterpret_cast<uint16_t*>(out));
}

}  // namespace host
AIE_HOST_END
