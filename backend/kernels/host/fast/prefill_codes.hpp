// 4-bit weights without minima as panels of the prefill configuration, by tables, on CPUs with
// AVX512_VBMI.
//
// A weight is bf16(d k) with k = code - 8, and the largest of eight weights has an exponent of X to
// X + 3, X that of d. In units of 2^(X - 6 + class), the class 0 to 3, a weight depends on the sign
// and the mantissa of d only: a line of a table has it for all classes.
#pragma once

#include "block_pack.hpp"
#include "q4nx_layout.hpp"

#if __AIE_ARCH__ >= 21 && defined(AIE_HOST_BYTE_BLOCKS) && defined(__AVX512VBMI__) && \
    defined(__AVX512BF16__)
#define AIE_HOST_CODE_TABLES

AIE_HOST_BEGIN
namespace host {

// Of a bf16 scale: sign and mantissa; the last line is that of zero.
struct alignas(64) CodeTables {
  static constexpr int32_t kLines = 257, kClasses = 4, kCodes = 16;
  int8_t line[kLines][kClasses][kCodes];
};

// x / 2^shift to nearest even.
constexpr int32_t in_steps(int32_t x, int32_t shift) {
  if (shift <= 0) return x;
  return (x + (1 << (shift - 1)) - 1 + (x >> shift & 1)) >> shift;
}

constexpr CodeTables code_tables() {
  CodeTables tables{};
  for (int32_t number = 0; number < 256; ++number) {
    for (int32_t code = 0; code < CodeTables::kCodes; ++code) {
      const int32_t k = code - kQ4Zero<false>;
      const int32_t product = (128 + number % 128) * (k < 0 ? -k : k);  // in units of 2^(X - 7)
      int32_t drop = 0;  // of its bits, which bf16 does not have
      while (product >> drop > 255) ++drop;
      const int32_t weight = in_steps(product, drop) << drop;
      for (int32_t power = 0; power < CodeTables::kClasses; ++power) {
        const int32_t steps = in_steps(weight, power + 1);
        const bool negative = (k < 0) != (number >= 128);
        const int32_t clipped =
            negative ? (steps < 128 ? -steps : -128) : (steps < 127 ? steps : 127);
        tables.line[number][power][code] = static_cast<int8_t>(clipped);
      }
    }
  }
  return tables;
}
inline constexpr CodeTables kCodeTables = code_tables();

// Constants of bytes: f(i) for every byte i of a vector.
template <typename F, int... I>
AIE_HOST_INLINE __m512i bytes_by(const F& f, std::integer_sequence<int, I...>) {
  return (__m512i)simd<uint8_t, 64>{static_cast<uint8_t>(f(I))...};
}
template <typename F>
AIE_HOST_INLINE __m512i bytes_by(const F& f) {
  return bytes_by(f, std::make_integer_sequence<int, 64>());
}

// 128-bit lane i of vector j to lane j of vector i.
AIE_HOST_INLINE void transpose_lanes(const __m512i (&in)[4], __m512i (&out)[4]) {
  const __m512i low01 = _mm512_shuffle_i32x4(in[0], in[1], 0x44);
  const __m512i high01 = _mm512_shuffle_i32x4(in[0], in[1], 0xEE);
  const __m512i low23 = _mm512_shuffle_i32x4(in[2], in[3], 0x44);
  const __m512i high23 = _mm512_shuffle_i32x4(in[2], in[3], 0xEE);
  out[0] = _mm512_shuffle_i32x4(low01, low23, 0x88);
  out[1] = _mm512_shuffle_i32x4(low01, low23, 0xDD);
  out[2] = _mm512_shuffle_i32x4(high01, high23, 0x88);
  out[3] = _mm512_shuffle_i32x4(high01, high23, 0xDD);
}

// Codes of 16 rows and 8 columns, as a block has them. Lane q: of row pairs 2q and 2q + 1 columns
// 0 to 3, then of both columns 4 to 7; a byte has the codes of a pair.
AIE_HOST_INLINE __m512i by_pairs(const uint8_t* codes) {
  const __m512i from = bytes_by([](int i) {
    const int column = i / 8 % 2 * 4 + i % 4, pair = i / 16 * 2 + i / 4 % 2;
    return column * kQ4ColumnBytes + pair;
  });
  return _mm512_permutexvar_epi8(from, _mm512_loadu_si512(codes));
}

// Of every row, a lane of 32 bits, the largest |k| of each of four times 8 columns, a byte.
AIE_HOST_INLINE __m512i largest_k(const __m512i (&pairs)[4]) {
  const __m512i low = _mm512_set1_epi8(15);
  const __m512i magnitude = bytes_by([](int i) { return i % 16 < 8 ? 8 - i % 16 : i % 16 - 8; });
  __m512i four[4];  // of four columns of a row, rows 4q, 4q + 2, 4q + 1, 4q + 3 of a lane
  unroll<4>([&](auto i) {
    const __m512i in = pairs[i.value];
    const __m512i even = _mm512_shuffle_epi8(magnitude, _mm512_and_si512(in, low));
    const __m512i odd =
        _mm512_shuffle_epi8(magnitude, _mm512_and_si512(_mm512_srli_epi16(in, 4), low));
    four[i.value] =
        _mm512_max_epu8(_mm512_unpacklo_epi64(even, odd), _mm512_unpackhi_epi64(even, odd));
  });
  const auto merged = [](__m512i a, __m512i b) {
    constexpr __mmask32 kSecond = 0xAAAAAAAA;
    return _mm512_max_epu8(_mm512_mask_blend_epi16(kSecond, a, _mm512_slli_epi32(b, 16)),
                           _mm512_mask_blend_epi16(kSecond, _mm512_srli_epi32(a, 16), b));
  };
  const __m512i even = merged(four[0], four[2]), odd = merged(four[1], four[3]);
  constexpr __mmask64 kSecond = 0xAAAAAAAAAAAAAAAA;
  const __m512i all =
      _mm512_max_epu8(_mm512_mask_blend_epi8(kSecond, even, _mm512_slli_epi16(odd, 8)),
                      _mm512_mask_blend_epi8(kSecond, _mm512_srli_epi16(even, 8), odd));
  return _mm512_shuffle_epi32(all, _MM_PERM_ENUM(0xD8));
}

// Where the lines of 16 scales lie in the table.
struct LinesOf {
  alignas(64) uint32_t at[16];

  AIE_HOST_INLINE explicit LinesOf(const uint16_t* scales) {
    const __m512i bits = _mm512_cvtepu16_epi32(load<__m256i>(scales));
    const __mmask16 some = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x7FFF));
    const __m512i mantissa = _mm512_and_si512(bits, _mm512_set1_epi32(0x7F));
    const __m512i sign = _mm512_and_si512(_mm512_srli_epi32(bits, 8), _mm512_set1_epi32(0x80));
    const __m512i line = _mm512_mask_or_epi32(_mm512_set1_epi32(256), some, mantissa, sign);
    store(_mm512_slli_epi32(line, 6), at);
    asm("" : "+m"(at));  // GCC would take them out of the vector one by one
  }
  AIE_HOST_INLINE __m512i operator[](int32_t row) const {
    return load<__m512i>(kCodeTables.line[0][0] + at[row]);
  }
};

// 16 rows of a slice. Returns which have weights too large or small for sums of blocks to be exact.
AIE_HOST_INLINE __mmask16 pack_half(const uint8_t* codes, const uint16_t* scales, int32_t* panel) {
  const LinesOf lines(scales);
  __m512i pairs[4], rows[4];
  unroll<4>([&](auto i) { pairs[i.value] = by_pairs(codes + i.value * 8 * kQ4ColumnBytes); });
  transpose_lanes(pairs, rows);

  // Exponents of blocks. Their classes, a byte of each four in a lane, choose 16 bytes of a line
  // (of nothing but zeros: any, all have 0 for code 8); rows 2 and 3 of four have the second of
  // two.
  const __m512i largest = largest_k(pairs);
  const __m512i d = (__m512i)widen_bf16(scales), field = _mm512_set1_epi32(0x7F800000);
  const __m512i own = _mm512_and_si512(d, field), least = _mm512_set1_epi32(kLowest << 23);
  __m512i classes = bytes_by([](int i) { return i / 4 % 4 < 2 ? 0 : 0x40; });
  // Other builds refuse scales of which 8 d overflows, whatever the codes.
  __mmask16 bad = _mm512_cmpgt_epi32_mask(own, _mm512_set1_epi32(251 << 23));
  unroll<4>([&](auto i) {
    constexpr int kShift = 8 * i.value;
    const __m512i k = _mm512_and_si512(_mm512_srli_epi32(largest, kShift), _mm512_set1_epi32(15));
    const auto top = (__m512i)_mm512_mul_ps(_mm512_cvtepi32_ps(k), (__m512)d);
    // As bf16: it becomes the next power where it rounds to that.
    const __m512i exponent =
        _mm512_and_si512(_mm512_add_epi32(top, _mm512_set1_epi32(0x8000)), field);
    bad |= _mm512_cmpgt_epi32_mask(exponent, _mm512_set1_epi32(kHighest << 23)) |
           (_mm512_cmplt_epi32_mask(exponent, least) &
            _mm512_test_epi32_mask(top, _mm512_set1_epi32(0x7FFFFFFF)));
    const __m512i kept = _mm512_max_epi32(exponent, least);
    const __m512i above = _mm512_sub_epi32(kept, own);
    constexpr int kTo = 19 - kShift;
    const __m512i moved = kTo < 0 ? _mm512_slli_epi32(above, -kTo) : _mm512_srli_epi32(above, kTo);
    const __m512i choice = _mm512_set1_epi32(0x30 << kShift);
    classes = _mm512_or_si512(classes, _mm512_and_si512(moved, choice));
    store(_mm512_sub_epi32(kept, _mm512_set1_epi32(kUnitBias)),
          panel + int32_t(i.value) * kBlockLanes + kBlockUnits * kBlockPanel);
  });

  const __m512i low = _mm512_set1_epi8(15);
  __m512i first[4], last[4];  // four columns of four rows, a lane per block
  unroll<4>([&](auto q) {
    const auto looked_up = [&](__m512i code, auto odd) {
      constexpr int kRow = 4 * q.value + odd.value;
      const __m512i block = bytes_by([](int i) { return (kRow + i / 4 % 2 * 2) * 4 + i / 16; });
      const __m512i chosen = _mm512_permutexvar_epi8(block, classes);
      const __m512i at = _mm512_or_si512(_mm512_and_si512(code, low), chosen);
      return _mm512_permutex2var_epi8(lines[kRow], at, lines[kRow + 2]);
    };
    const __m512i even = looked_up(rows[q.value], index<0>{});
    const __m512i odd = looked_up(_mm512_srli_epi16(rows[q.value], 4), index<1>{});
    first[q.value] = _mm512_unpacklo_epi32(even, odd);
    last[q.value] = _mm512_unpackhi_epi32(even, odd);
  });
  __m512i upper[4], lower[4];
  transpose_lanes(first, upper);
  transpose_lanes(last, lower);
  unroll<4>([&](auto i) {
    store_bytes(upper[i.value], lower[i.value], panel + int32_t(i.value) * kBlockLanes);
  });
  return bad;
}

// Slice `slice` of a block of q4_0. False for weights that are too large or small.
inline bool pack_q4_0(const uint8_t* block, int32_t slice, int32_t* panel) {
  static_assert(kQ4Group == 32 && kQ4Rows == kBlockPanel);
  const auto* scales = reinterpret_cast<const uint16_t*>(block) + slice * kQ4Rows;
  const uint8_t* codes = block + kQ4Codes<false> + slice * kQ4Group * kQ4ColumnBytes;
  const __mmask16 bad = pack_half(codes, scales, panel) |
                        pack_half(codes + kQ4HalfBytes, scales + kQ4HalfRows, panel + kQ4HalfRows);
  return bad == 0;
}

}  // namespace host
AIE_HOST_END

#endif
