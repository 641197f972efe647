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
#if !defined(__AVX512VBMI__)
#error "this build has AVX512_BF16 without AVX512_VBMI (cpu_level.h)"
#endif

// Rows 0-15 of one half's columns c and c + 1 as bf16 pairs 128 + code.
AIE_HOST_INLINE __m512i code_pairs(const uint8_t* columns, __m512i bytes, __m512i shift) {
  const __m512i both = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)columns));
  const __m512i nibbles = _mm512_srlv_epi32(_mm512_shuffle_epi8(both, bytes), shift);
  // (nibbles & 0x000F000F) | 0x43004300
  return _mm512_ternarylogic_epi32(nibbles, _mm512_set1_epi32(0x000F000F),
                                   _mm512_set1_epi32(0x43004300), 0xEA);
}

// Rows of a half from q4_few's sums: pairs of lanes have a row's columns 0 and 1, and 2 and 3, of
// four; even rows are one vector, odd ones another.
AIE_HOST_INLINE __m512 rows_in_order(__m512 even, __m512 odd) {
  const __m512 first = _mm512_mask_shuffle_ps(even, 0xAAAA, odd, odd, 0xA0);
  const __m512 second = _mm512_mask_shuffle_ps(odd, 0x5555, even, even, 0xF5);
  return first + second;
}

inline constexpr int32_t kQ4Many = 8;

// Sums of eight groups of x: of every other pair of columns, then both together (of two NaNs either
// may be the sum).
AIE_HOST_INLINE void q4_totals(const uint16_t* const (&groups)[kQ4Many], float (&totals)[kQ4Many]) {
  const __m512bh ones = (__m512bh)_mm512_set1_epi16(0x3F80);
  const __m512i every_other = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 0, 0, 0, 0, 0, 0, 0, 0);
  __m512 sums = _mm512_setzero_ps();  // of every other pair, group after group
  unroll<kQ4Group / 8>([&](auto step) {
    const auto eight_columns = [&](int32_t first) {  // of every other group
      const auto of = [&](int32_t v) {
        return _mm_loadu_si128((const __m128i*)groups[first + v] + step.value);
      };
      return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_set_m128i(of(2), of(0))),
                                _mm256_set_m128i(of(6), of(4)), 1);
    };
    const __m512i even = eight_columns(0), odd = eight_columns(1);
    sums = _mm512_dpbf16_ps(sums, (__m512bh)_mm512_unpacklo_epi64(even, odd), ones);
    sums = _mm512_dpbf16_ps(sums, (__m512bh)_mm512_unpackhi_epi64(even, odd), ones);
  });
  sums += _mm512_permute_ps(sums, 0xB1);
  const __m512 all = _mm512_permutexvar_ps(every_other, sums);
  _mm256_storeu_ps(totals, _mm512_castps512_ps256(all));
}

// y += block x for up to four lines of 256: four columns at a time and four sums of each half, so
// that a byte's two codes take one permutation and no product waits for the one before it.
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
  // Of eight columns the first four, or the others. Byte j of two columns' eight fills two 16-bit
  // words, whose upper halves are masked out: that of columns 0 and 1, then of 2 and 3.
  const __m512i byte = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  const __m512i first_four =
      _mm512_add_epi8(_mm512_mullo_epi32(byte, _mm512_set1_epi32(0x01010101)),
                      _mm512_set1_epi64(0x1818101008080000));
  const __m512i bytes[2] = {first_four, _mm512_add_epi8(first_four, _mm512_set1_epi8(32))};
  const __m512i code = _mm512_set1_epi32(0x000F000F), plus_128 = _mm512_set1_epi32(0x43004300);
  const __m512 zero = _mm512_set1_ps(128 + kQ4Zero<kMinima>);
  alignas(32) float totals[kVectors][kQ4Groups];
  unroll<kVectors>([&](auto v) {
    const uint16_t* parts[kQ4Groups];
    unroll<kQ4Groups>([&](auto g) { parts[g.value] = lines[v.value] + g.value * kQ4Group; });
    q4_totals(parts, totals[v.value]);
  });
  __m512 rows[2][kVectors];
  unroll<2>([&](auto half) {
    unroll<kVectors>([&](auto v) {
      rows[half.value][v.value] = _mm512_loadu_ps(sums[v.value] + half.value * kQ4HalfRows);
    });
  });
  const int32_t groups = q4_groups<kMinima>(block, lines);
  for (int32_t g = 0; g < groups; ++g) {
    __m512 even[2][kVectors] = {}, odd[2][kVectors] = {};
    unroll<kQ4Group / 4>([&](auto quad) {
      const int32_t c = g * kQ4Group + static_cast<int32_t>(4 * quad.value);
      __m512bh factors[kVectors];
      unroll<kVectors>([&](auto v) {
        long long four;
        __builtin_memcpy(&four, lines[v.value] + c, 8);
        factors[v.value] = (__m512bh)_mm512_set1_epi64(four);
      });
      unroll<2>([&](auto half) {
        constexpr int32_t kSteps = kQ4Group / 2;
        const int32_t step = int32_t(2 * quad.value + half.value);
        prefetch_ahead<kQ4Bytes<kMinima>, kQ4Groups * kSteps>(block, g * kSteps + step);
        const uint8_t* eight = block + kQ4Codes<kMinima> + half.value * kQ4HalfBytes +
                               (c - 4 * (quad.value % 2)) * kQ4ColumnBytes;
        const __m512i both =
            _mm512_permutexvar_epi8(bytes[quad.value % 2], _mm512_loadu_si512(eight));
        const auto codes = [&](__m512i words) {  // (words & code) | plus_128
          return (__m512bh)_mm512_ternarylogic_epi32(words, code, plus_128, 0xEA);
        };
        const __m512bh below = codes(both), above = codes(_mm512_srli_epi16(both, 4));
        unroll<kVectors>([&](auto v) {
          __m512 &e = even[half.value][v.value], &o = odd[half.value][v.value];
          e = _mm512_dpbf16_ps(e, below, factors[v.value]);
          o = _mm512_dpbf16_ps(o, above, factors[v.value]);
        });
      });
    });
    unroll<2>([&](auto half) {
      const int32_t at = g * kQ4Rows + static_cast<int32_t>(half.value) * kQ4HalfRows;
      const auto scale = (__m512)widen_bf16(d + at);
      unroll<kVectors>([&](auto v) {
        __m512& row = rows[half.value][v.value];
        const __m512 sum = rows_in_order(even[half.value][v.value], odd[half.value][v.value]);
        const __m512 total = _mm512_set1_ps(totals[v.value][g]);
        row = _mm512_fmadd_ps(scale, _mm512_fnmadd_ps(zero, total, sum), row);
      });
      if constexpr (kMinima) {
        const auto minimum = (__m512)widen_bf16(m + at);
        unroll<kVectors>([&](auto v) {
          __m512& row = rows[half.value][v.value];
          row = _mm512_fmadd_ps(minimum, _mm512_set1_ps(totals[v.value][g]), row);
        });
      }
    });
  }
  prefetch_rest<kQ4Bytes<kMinima>, kQ4Groups>(block, groups);
  unroll<2>([&](auto half) {
    unroll<kVectors>([&](auto v) {
      _mm512_storeu_ps(sums[v.value] + half.value * kQ4HalfRows, rows[half.value][v.value]);
    });
  });
}

// sum + pairs of codes times two columns of x. GCC 12 would load x by an instruction of its own.
AIE_HOST_INLINE __m512 add_pair(__m512 sum, __m512bh codes, const uint16_t* x) {
  asm("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(codes), "m"(*(const uint16_t(*)[2])x));
  return sum;
}

// y += block x for eight lines of 256, with the sums of q4_few: those of every other pair of
// columns, then both together. Codes of a pair are one vector of 16 rows, for all lines.
template <bool kMinima, typename Vectors>
[[gnu::noinline]] inline void q4_many(const uint8_t* block, const Vectors& vectors) {
  const auto* d = reinterpret_cast<const uint16_t*>(block);
  const auto* m = reinterpret_cast<const uint16_t*>(block + kQ4Plane);
  const uint16_t* lines[kQ4Many];
  unroll<kQ4Many>([&](auto v) { lines[v.value] = vectors.line(v.value); });
  alignas(32) float totals[kQ4Groups][kQ4Many];
  for (int32_t g = 0; g < kQ4Groups; ++g) {
    const uint16_t* parts[kQ4Many];
    unroll<kQ4Many>([&](auto v) { parts[v.value] = lines[v.value] + g * kQ4Group; });
    q4_totals(parts, totals[g]);
  }
  // Dword r of four: byte r / 2 of each column, in 128-bit lane r / 4.
  const __m512i first = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  const __m512i bytes = _mm512_or_si512(
      _mm512_or_si512(first, _mm512_slli_epi32(_mm512_add_epi32(first, _mm512_set1_epi32(8)), 16)),
      _mm512_set1_epi32(static_cast<int>(0x80008000)));
  const __m512i shift = _mm512_setr_epi32(0, 4, 0, 4, 0, 4, 0, 4, 0, 4, 0, 4, 0, 4, 0, 4);
  const __m512 zero = _mm512_set1_ps(128 + kQ4Zero<kMinima>);
  const int32_t groups = q4_groups<kMinima>(block, lines);
  for (int32_t half = 0; half < 2; ++half) {
    const auto out = [&](auto v) { return vectors.sums(v.value) + half * kQ4HalfRows; };
    __m512 rows[kQ4Many];
    unroll<kQ4Many>([&](auto v) { rows[v.value] = _mm512_loadu_ps(out(v)); });
    for (int32_t g = 0; g < groups; ++g) {
      const uint8_t* const codes =
          block + kQ4Codes<kMinima> + half * kQ4HalfBytes + g * kQ4Group * kQ4ColumnBytes;
      __m512 sums[2][kQ4Many] = {};
      unroll<kQ4Group / 2>([&](auto pair) {
        constexpr int32_t kSteps = kQ4Group / 4;  // with every other pair
        if constexpr (pair.value % 2 == 0) {
          const int32_t step = (half * groups + g) * kSteps + int32_t(pair.value / 2);
          prefetch_ahead<kQ4Bytes<kMinima>, 2 * kQ4Groups * kSteps>(block, step);
        }
        const auto w = (__m512bh)code_pairs(codes + 2 * pair.value * kQ4ColumnBytes, bytes, shift);
        unroll<kQ4Many>([&](auto v) {
          __m512& sum = sums[pair.value % 2][v.value];
          sum = add_pair(sum, w, lines[v.value] + g * kQ4Group + 2 * pair.value);
        });
      });
      const int32_t at = g * kQ4Rows + half * kQ4HalfRows;
      const auto scale = (__m512)widen_bf16(d + at);
      unroll<kQ4Many>([&](auto v) {
        const __m512 total = _mm512_set1_ps(totals[g][v.value]);
        const __m512 sum = sums[0][v.value] + sums[1][v.value];
        __m512& row = rows[v.value];
        row = _mm512_fmadd_ps(scale, _mm512_fnmadd_ps(zero, total, sum), row);
        if constexpr (kMinima) row = _mm512_fmadd_ps((__m512)widen_bf16(m + at), total, row);
      });
    }
    unroll<kQ4Many>([&](auto v) { _mm512_storeu_ps(out(v), rows[v.value]); });
  }
  prefetch_rest<kQ4Bytes<kMinima>, 2 * kQ4Groups>(block, 2 * groups);
}

// y += block x for kVectors vectors.
template <bool kMinima, int32_t kVectors, typename Vectors>
AIE_HOST_INLINE void q4_vectors(const uint8_t* block, const Vectors& vectors) {
  if constexpr (kVectors == kQ4Many) {
    q4_many<kMinima>(block, vectors);
  } else {
    q4_few<kMinima, kVectors>(block, vectors);
  }
}

// y += block x for kVectors lines of 256.
template <bool kMinima, int32_t kVectors>
AIE_HOST_INLINE void q4_block(const uint8_t* block, const bfloat16* x, float* y) {
  const auto* const lines = reinterpret_cast<const uint16_t*>(x);
  q4_vectors<kMinima, kVectors>(block, adjacent_vectors<kQ4Columns>{lines, y});
}

// The same for `count` vectors, each with the sums of q4_block<kMinima, 1>.
template <bool kMinima>
inline void q4_joint(const uint8_t* block, separate_vectors vectors, int32_t count) {
  for_vectors<kQ4Many>(vectors, count, [&]<int32_t kVectors>(const separate_vectors& some) {
    q4_vectors<kMinima, kVectors>(block, some);
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
  constexpr int32_t kMost = kSimdBytes == 64 ? 4 : 2;  // as many sums as registers take
  for_vectors<kMost>(vectors, count, [&]<int32_t kVectors>(const separate_vectors& some) {
    q4_floats<kMinima, kVectors>(block, some);
  });
}

#endif

}  // namespace host
AIE_HOST_END
