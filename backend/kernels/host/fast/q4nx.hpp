// Blocks of 4-bit weights times vectors in the `fast` builds, with the arithmetic of
// aie_kernels/gemv_q4nx.h; without minima y += d (s - 8 X), which takes one product less.
// With AVX512BF16 the codes enter as bf16 pairs 128 + code (vdpbf16ps: denormal factors and results
// count as zero); with AVX2 alone x becomes bytes (q4nx_bytes.hpp); else codes are exact
// fp32 and s = sum code x.
#pragma once

#include "q4nx_bytes.hpp"
#include "q4nx_layout.hpp"

AIE_HOST_BEGIN
namespace host {

#if defined(__AVX512BF16__)

// Rows 0-15 of one half's columns c and c + 1 as bf16 pairs 128 + code.
AIE_HOST_INLINE __m512i code_pairs(const uint8_t* columns, __m512i bytes, __m512i shift) {
  const __m512i both = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)columns));
  const __m512i nibbles = _mm512_srlv_epi32(_mm512_shuffle_epi8(both, bytes), shift);
  // (nibbles & 0x000F000F) | 0x43004300
  return _mm512_ternarylogic_epi32(nibbles, _mm512_set1_epi32(0x000F000F),
                                   _mm512_set1_epi32(0x43004300), 0xEA);
}

// Rows of a half in the order of q4_few's sums: in 128-bit lanes pairs of rows 0-3 (of columns 0
// and 1, then 2 and 3 of four) and 4-7; even rows are one vector, odd ones another.
AIE_HOST_INLINE __m512 rows_in_order(__m512 even, __m512 odd) {
  const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 8, 24, 9, 25, 10, 26, 11, 27);
  const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(4));
  return _mm512_permutex2var_ps(even, first, odd) + _mm512_permutex2var_ps(even, second, odd);
}

// y += block x for up to four lines of 256: four columns at a time and four sums of each half, so
// that a byte's two codes take one shuffle and no product waits for the one before it.
template <bool kMinima, int32_t kVectors, typename Vectors>
[[gnu::noinline]] inline void q4_few(const uint8_t* block, const Vectors& vectors) {
  const auto* d = reinterpret_cast<const uint16_t*>(block);
  const auto* m = reinterpret_cast<const uint16_t*>(block + kQ4Plane);
  const uint16_t* lines[kVectors];
  float* sums[kVectors];
  unroll<kVectors>([&](auto v) {
    lines[v.value] = vectors.line(v.value);
    sums[v.value] = vectors.sums(v.value);
  });
  // Byte j of two columns' eight as two 16-bit words: bytes 0-3, or 4-7.
  const __m128i low =
      _mm_setr_epi8(0, -128, 8, -128, 1, -128, 9, -128, 2, -128, 10, -128, 3, -128, 11, -128);
  const __m128i high =
      _mm_setr_epi8(4, -128, 12, -128, 5, -128, 13, -128, 6, -128, 14, -128, 7, -128, 15, -128);
  const __m512i bytes =
      _mm512_inserti64x4(_mm512_broadcast_i32x4(low), _mm256_broadcastsi128_si256(high), 1);
  const __m512i pairs = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1);
  const __m512i code = _mm512_set1_epi32(0x000F000F), plus_128 = _mm512_set1_epi32(0x43004300);
  const __m512bh ones = (__m512bh)_mm512_set1_epi16(0x3F80);
  const __m512 zero = _mm512_set1_ps(128 + kQ4Zero<kMinima>);
  __m512 rows[2][kVectors];
  unroll<2>([&](auto half) {
    unroll<kVectors>([&](auto v) {
      rows[half.value][v.value] = _mm512_loadu_ps(sums[v.value] + half.value * kQ4HalfRows);
    });
  });
  for (int32_t g = 0; g < kQ4Groups; ++g) {
    __m512 even[2][kVectors] = {}, odd[2][kVectors] = {}, totals[kVectors] = {};
    unroll<kQ4Group / 4>([&](auto quad) {
      const int32_t c = g * kQ4Group + static_cast<int32_t>(4 * quad.value);
      __m512bh factors[kVectors];
      unroll<kVectors>([&](auto v) {
        long long four;
        __builtin_memcpy(&four, lines[v.value] + c, 8);
        factors[v.value] = (__m512bh)_mm512_permutexvar_epi32(pairs, _mm512_set1_epi64(four));
        totals[v.value] = _mm512_dpbf16_ps(totals[v.value], factors[v.value], ones);
      });
      unroll<2>([&](auto half) {
        const uint8_t* columns =
            block + kQ4Codes<kMinima> + half.value * kQ4HalfBytes + c * kQ4ColumnBytes;
        const __m512i both = _mm512_shuffle_epi8(
            _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i*)columns)), bytes);
        const auto above = (__m512bh)_mm512_or_si512(_mm512_srli_epi16(both, 4), plus_128);
        // (both & code) | plus_128
        const auto below = (__m512bh)_mm512_ternarylogic_epi32(both, code, plus_128, 0xEA);
        unroll<kVectors>([&](auto v) {
          __m512 &e = even[half.value][v.value], &o = odd[half.value][v.value];
          e = _mm512_dpbf16_ps(e, below, factors[v.value]);
          o = _mm512_dpbf16_ps(o, above, factors[v.value]);
        });
      });
    });
    prefetch_ahead<kQ4Bytes<kMinima>>(block, g, kQ4Groups);
    unroll<kVectors>([&](auto v) {
      totals[v.value] += _mm512_shuffle_f32x4(totals[v.value], totals[v.value], 0xB1);
    });
    unroll<2>([&](auto half) {
      const int32_t at = g * kQ4Rows + static_cast<int32_t>(half.value) * kQ4HalfRows;
      const auto scale = (__m512)widen_bf16(d + at);
      unroll<kVectors>([&](auto v) {
        __m512& row = rows[half.value][v.value];
        const __m512 sum = rows_in_order(even[half.value][v.value], odd[half.value][v.value]);
        row = _mm512_fmadd_ps(scale, _mm512_fnmadd_ps(zero, totals[v.value], sum), row);
      });
      if constexpr (kMinima) {
        const auto minimum = (__m512)widen_bf16(m + at);
        unroll<kVectors>([&](auto v) {
          __m512& row = rows[half.value][v.value];
          row = _mm512_fmadd_ps(minimum, totals[v.value], row);
        });
      }
    });
  }
  unroll<2>([&](auto half) {
    unroll<kVectors>([&](auto v) {
      _mm512_storeu_ps(sums[v.value] + half.value * kQ4HalfRows, rows[half.value][v.value]);
    });
  });
}

// y += block x for kVectors lines of 256.
template <bool kMinima, int32_t kVectors>
[[gnu::noinline]] inline void q4_many(const uint8_t* block, const bfloat16* x, float* y) {
  const auto* d = reinterpret_cast<const uint16_t*>(block);
  const auto* m = reinterpret_cast<const uint16_t*>(block + kQ4Plane);
  const auto* lines = reinterpret_cast<const uint16_t*>(x);
  // Dword r of four: byte r / 2 of each column, in 128-bit lane r / 4.
  const __m512i first = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  const __m512i bytes = _mm512_or_si512(
      _mm512_or_si512(first, _mm512_slli_epi32(_mm512_add_epi32(first, _mm512_set1_epi32(8)), 16)),
      _mm512_set1_epi32(static_cast<int>(0x80008000)));
  const __m512i shift = _mm512_setr_epi32(0, 4, 0, 4, 0, 4, 0, 4, 0, 4, 0, 4, 0, 4, 0, 4);
  const __m512bh ones = (__m512bh)_mm512_set1_epi16(0x3F80);
  const __m512 zero = _mm512_setzero_ps();
  // Sums of groups, times 1: the start of every row's sum.
  float totals[kQ4Groups][kVectors];
  for (int32_t g = 0; g < kQ4Groups; ++g) {
    unroll<kVectors>([&](auto v) {
      const __m512i part = _mm512_loadu_si512(lines + v.value * kQ4Columns + g * kQ4Group);
      totals[g][v.value] = _mm512_reduce_add_ps(_mm512_dpbf16_ps(zero, (__m512bh)part, ones));
    });
  }
  for (int32_t half = 0; half < 2; ++half) {
    __m512 rows[kVectors];
    unroll<kVectors>([&](auto v) {
      rows[v.value] = _mm512_loadu_ps(y + v.value * kQ4Rows + half * kQ4HalfRows);
    });
    const uint8_t* codes = block + kQ4Codes<kMinima> + half * kQ4HalfBytes;
    for (int32_t g = 0; g < kQ4Groups; ++g) {
      __m512 sums[kVectors];
      unroll<kVectors>([&](auto v) {
        sums[v.value] = _mm512_set1_ps(-(128 + kQ4Zero<kMinima>)*totals[g][v.value]);
      });
      unroll<kQ4Group / 2>([&](auto pair) {
        const int32_t c = g * kQ4Group + static_cast<int32_t>(2 * pair.value);
        const __m512bh w = (__m512bh)code_pairs(codes + c * kQ4ColumnBytes, bytes, shift);
        unroll<kVectors>([&](auto v) {
          int32_t factor;
          __builtin_memcpy(&factor, lines + v.value * kQ4Columns + c, 4);
          sums[v.value] = _mm512_dpbf16_ps(sums[v.value], w, (__m512bh)_mm512_set1_epi32(factor));
        });
      });
      prefetch_ahead<kQ4Bytes<kMinima>>(block, 2 * g + half, 2 * kQ4Groups);
      const int32_t at = g * kQ4Rows + half * kQ4HalfRows;
      const auto scale = (__m512)widen_bf16(d + at);
      unroll<kVectors>(
          [&](auto v) { rows[v.value] = _mm512_fmadd_ps(scale, sums[v.value], rows[v.value]); });
      if constexpr (kMinima) {
        const auto minimum = (__m512)widen_bf16(m + at);
        unroll<kVectors>([&](auto v) {
          const __m512 total = _mm512_set1_ps(totals[g][v.value]);
          rows[v.value] = _mm512_fmadd_ps(minimum, total, rows[v.value]);
        });
      }
    }
    unroll<kVectors>([&](auto v) {
      _mm512_storeu_ps(y + v.value * kQ4Rows + half * kQ4HalfRows, rows[v.value]);
    });
  }
}

// y += block x for kVectors lines of 256.
template <bool kMinima, int32_t kVectors>
AIE_HOST_INLINE void q4_block(const uint8_t* block, const bfloat16* x, float* y) {
  if constexpr (kVectors <= 2) {
    const auto* const lines = reinterpret_cast<const uint16_t*>(x);
    q4_few<kMinima, kVectors>(block, adjacent_vectors<kQ4Columns>{lines, y});
  } else {
    q4_many<kMinima, kVectors>(block, x, y);
  }
}

// The same for `count` vectors, each with the sums of q4_block<kMinima, 1>.
template <bool kMinima>
inline void q4_joint(const uint8_t* block, separate_vectors vectors, int32_t count) {
  for_vectors<kJointVectors>(vectors, count, [&]<int32_t kVectors>(const separate_vectors& some) {
    q4_few<kMinima, kVectors>(block, some);
  });
}

#elif defined(AIE_HOST_Q4_BYTES)

// y += block x for kVectors lines of 256.
template <bool kMinima, int32_t kVectors>
AIE_HOST_INLINE void q4_block(const uint8_t* block, const bfloat16* x, float* y) {
  const auto* const lines = reinterpret_cast<const uint16_t*>(x);
  q4_bytes<kMinima>(block, adjacent_vectors<kQ4Columns>{lines, y}, kVectors);
}

// The same for `count` vectors, each with the sums of q4_block<kMinima, 1>.
template <bool kMinima>
inline void q4_joint(const uint8_t* block, separate_vectors vectors, int32_t count) {
  q4_bytes<kMinima>(block, vectors, count);
}

#else

// y += block x for kVectors lines of 256.
template <bool kMinima, int32_t kVectors, typename Vectors>
[[gnu::noinline]] inline void q4_floats(const uint8_t* block, const Vectors& vectors) {
  const auto* d = reinterpret_cast<const uint16_t*>(block);
  const auto* m = reinterpret_cast<const uint16_t*>(block + kQ4Plane);
  alignas(64) float wide[kVectors * kQ4Columns];
  widen_lines<kVectors, kQ4Columns>(vectors, wide);
  constexpr unsigned kParts = kQ4HalfRows / kLanes;  // vectors per column of a half
  for (int32_t g = 0; g < kQ4Groups; ++g) {
    float totals[kVectors];
    unroll<kVectors>([&](auto v) {
      float_lanes part{};
      for (int32_t i = 0; i < kQ4Group; i += static_cast<int32_t>(kLanes)) {
        part += load<float_lanes>(wide + v.value * kQ4Columns + g * kQ4Group + i);
      }
      totals[v.value] = sum_of(part);
    });
    for (int32_t half = 0; half < 2; ++half) {
      float_lanes sums[kVectors][kParts] = {};
      if constexpr (!kMinima) {
        unroll<kVectors>([&](auto v) {
          for (float_lanes& sum : sums[v.value]) sum -= kQ4Zero<kMinima> * totals[v.value];
        });
      }
      const uint8_t* codes =
          block + kQ4Codes<kMinima> + half * kQ4HalfBytes + g * kQ4Group * kQ4ColumnBytes;
      for (int32_t c = 0; c < kQ4Group; ++c) {
        unroll<kParts>([&](auto p) {
          const float_lanes w = codes_of<p.value * kLanes>(codes + c * kQ4ColumnBytes);
          unroll<kVectors>([&](auto v) {
            sums[v.value][p.value] += w * wide[v.value * kQ4Columns + g * kQ4Group + c];
          });
        });
      }
      unroll<kParts>([&](auto p) {
        const int32_t row = half * kQ4HalfRows + static_cast<int32_t>(p.value * kLanes);
        const float_lanes scale = widen_bf16(d + g * kQ4Rows + row);
        unroll<kVectors>([&](auto v) {
          float* out = vectors.sums(v.value) + row;
          float_lanes sum = load<float_lanes>(out) + scale * sums[v.value][p.value];
          if constexpr (kMinima) sum += widen_bf16(m + g * kQ4Rows + row) * totals[v.value];
          store(sum, out);
        });
      });
    }
  }
}

template <bool kMinima, int32_t kVectors>
AIE_HOST_INLINE void q4_block(const uint8_t* block, const bfloat16* x, float* y) {
  const auto* const lines = reinterpret_cast<const uint16_t*>(x);
  q4_floats<kMinima, kVectors>(block, adjacent_vectors<kQ4Columns>{lines, y});
}

// The same for `count` vectors, each with the sums of q4_block<kMinima, 1>.
template <bool kMinima>
inline void q4_joint(const uint8_t* block, separate_vectors vectors, int32_t count) {
  for_vectors<kJointVectors>(vectors, count, [&]<int32_t kVectors>(const separate_vectors& some) {
    q4_floats<kMinima, kVectors>(block, some);
  });
}

#endif

}  // namespace host
AIE_HOST_END
