// Q4NX blocks times vectors on CPUs with AVX2 alone: sums of products of bytes. The 32 columns of x
// of a group become integers in units of 2^-15 of the power of two above the largest, two signed
// bytes each, which hold bf16 down to 2^-8 of it. What they do not hold is multiplied in fp32,
// column by column: it is little, or the whole group.
#pragma once

#include <memory>

#include "q4nx_layout.hpp"

#if defined(__AVX2__) && !defined(__AVX512F__)

#define AIE_HOST_Q4_BYTES

AIE_HOST_BEGIN
namespace host {

// A line of x: the columns of a block.
struct q4_line {
  uint16_t x[kQ4Columns];                  // what it was made of
  alignas(32) uint16_t bytes[kQ4Columns];  // each x, the lower byte signed, too
  alignas(32) float rest[kQ4Columns];      // what bytes do not hold
  // Per group: the unit of the integers, or 0 if there are none; the sum of x; columns with a rest.
  float units[kQ4Groups], totals[kQ4Groups];
  uint32_t columns[kQ4Groups];
};

AIE_HOST_INLINE float two_to(int32_t exponent) {
  return __builtin_bit_cast(float, (127 + exponent) << 23);
}

// Lanes that are not 0, as bits.
AIE_HOST_INLINE uint32_t not_zero(float_lanes v) {
  return uint32_t(_mm256_movemask_ps(_mm256_cmp_ps((__m256)v, _mm256_setzero_ps(), _CMP_NEQ_UQ)));
}

inline void split_group(q4_line& line, int32_t g) {
  constexpr int32_t kBits = 15, kMostRests = 8;
  constexpr int32_t kMost = 100;  // of exponents, either sign: units are normal numbers
  const int32_t first = g * kQ4Group;
  float_lanes x[4], sum{};
  lanes top{};  // bits of magnitudes: those of infinities and NaNs are above all others
  unroll<4>([&](auto i) {
    x[i.value] = widen_bf16(line.x + first + int32_t(8 * i.value));
    const lanes magnitude = (lanes)x[i.value] & 0x7FFFFFFF;
    top = magnitude > top ? magnitude : top;
    sum += x[i.value];
  });
  int32_t most = 0;
  for (unsigned i = 0; i < kLanes; ++i) most = top[i] > most ? top[i] : most;
  // Of the power of two below the largest; of the next one if its mantissa is 255, of which the
  // upper byte would be 128.
  const int32_t exponent = ((most + 0x10000) >> 23) - 127;
  line.units[g] = 0;
  if (exponent >= -kMost && exponent <= kMost) {
    const float unit = two_to(exponent + 1 - kBits), to_units = two_to(kBits - 1 - exponent);
    float_lanes rests[4];
    lanes words[4];
    int32_t count = 0;
    unroll<4>([&](auto i) {
      const auto n = (lanes)_mm256_cvtps_epi32((__m256)(x[i.value] * to_units));
      rests[i.value] = x[i.value] - __builtin_convertvector(n, float_lanes) * unit;
      count += __builtin_popcount(not_zero(rests[i.value]));
      // What the lower byte borrows as it is signed.
      words[i.value] = ((n + 128) & 0xFF00) | (n & 0xFF);
    });
    if (count <= kMostRests) {
      line.units[g] = unit;
      unroll<2>([&](auto i) {
        const __m256i both =
            _mm256_packus_epi32((__m256i)words[2 * i.value], (__m256i)words[2 * i.value + 1]);
        store(_mm256_permute4x64_epi64(both, 0xD8), line.bytes + first + 16 * i.value);
      });
      unroll<4>([&](auto i) { x[i.value] = rests[i.value]; });
    }
  }
  line.columns[g] = 0;
  unroll<4>([&](auto i) {
    store(x[i.value], line.rest + first + 8 * i.value);
    line.columns[g] |= not_zero(x[i.value]) << 8 * i.value;
  });
  line.totals[g] = sum_of(sum);
}

// Cores multiply all their row-blocks by the same lines, of which each has a copy: a thread splits
// them once, and finds them by what they hold. A new line is one of zeros.
inline const q4_line& split_line(const bfloat16* x) {
  constexpr size_t kLines = 512, kBytes = sizeof(uint16_t) * kQ4Columns;
  static thread_local const std::unique_ptr<q4_line[]> all(new q4_line[kLines]{});
  const auto* const from = reinterpret_cast<const uint16_t*>(x);
  const auto word = [&](int32_t i) { return load<uint64_t>(from + i); };
  const uint64_t mixed = (word(0) + 3 * word(4)) * 0x9E3779B97F4A7C15;
  q4_line& line = all[mixed >> 55];
  __m256i differ = _mm256_setzero_si256();
  for (int32_t i = 0; i < kQ4Columns; i += 16) {
    differ = _mm256_or_si256(differ,
                             _mm256_xor_si256(load<__m256i>(from + i), load<__m256i>(line.x + i)));
  }
  if (_mm256_testz_si256(differ, differ) == 0) {
    __builtin_memcpy(line.x, x, kBytes);
    for (int32_t g = 0; g < kQ4Groups; ++g) split_group(line, g);
  }
  return line;
}

// Codes times bytes of x, in 16 bits: 8 * 2 * 15 * 128 at most.
struct q4_products {
  __m256i even[2] = {}, odd[2] = {};  // rows of a half: times upper and lower bytes

  // Four columns, whose pairs come to lie side by side.
  AIE_HOST_INLINE void add(const uint8_t* columns, __m256i upper, __m256i lower) {
    const __m256i order = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15));
    const __m256i code = _mm256_set1_epi8(15);
    const __m256i both = _mm256_shuffle_epi8(load<__m256i>(columns), order);
    const __m256i low = _mm256_and_si256(both, code);
    const __m256i high = _mm256_and_si256(_mm256_srli_epi16(both, 4), code);
    even[0] = _mm256_add_epi16(even[0], _mm256_maddubs_epi16(low, upper));
    even[1] = _mm256_add_epi16(even[1], _mm256_maddubs_epi16(low, lower));
    odd[0] = _mm256_add_epi16(odd[0], _mm256_maddubs_epi16(high, upper));
    odd[1] = _mm256_add_epi16(odd[1], _mm256_maddubs_epi16(high, lower));
  }
  // Sums of 16 rows, in order.
  AIE_HOST_INLINE void rows(float_lanes& first, float_lanes& second) const {
    const __m256i weights = _mm256_set1_epi32(0x00010100);  // upper 256, lower 1
    const auto four = [&](__m256i pairs) { return _mm256_madd_epi16(pairs, weights); };
    const __m256i even_low = four(_mm256_unpacklo_epi16(even[0], even[1]));
    const __m256i even_high = four(_mm256_unpackhi_epi16(even[0], even[1]));
    const __m256i odd_low = four(_mm256_unpacklo_epi16(odd[0], odd[1]));
    const __m256i odd_high = four(_mm256_unpackhi_epi16(odd[0], odd[1]));
    const auto eight = [](__m256i a, __m256i b) {  // lanes are rows 0-3, 4-7 of pairs of columns
      const __m256i low = _mm256_unpacklo_epi32(a, b), high = _mm256_unpackhi_epi32(a, b);
      const __m256i sum = _mm256_add_epi32(_mm256_permute2x128_si256(low, high, 0x20),
                                           _mm256_permute2x128_si256(low, high, 0x31));
      return (float_lanes)_mm256_cvtepi32_ps(sum);
    };
    first = eight(even_low, odd_low);
    second = eight(even_high, odd_high);
  }
};

// Sums of codes times bytes for the 32 rows of a group.
AIE_HOST_INLINE void group_sums(const uint8_t* codes, const uint16_t* bytes,
                                float_lanes (&sums)[4]) {
  // Bytes of columns 0 and 1 in one 128-bit lane, of 2 and 3 in the other.
  const __m256i lower = _mm256_set_m128i(_mm_set1_epi16(0x0604), _mm_set1_epi16(0x0200));
  const __m256i upper = _mm256_set_m128i(_mm_set1_epi16(0x0705), _mm_set1_epi16(0x0301));
  q4_products halves[2];
  for (int32_t c = 0; c < kQ4Group; c += 4, codes += 4 * kQ4ColumnBytes) {
    const __m256i four = _mm256_set1_epi64x(load<long long>(bytes + c));
    const __m256i x[2] = {_mm256_shuffle_epi8(four, upper), _mm256_shuffle_epi8(four, lower)};
    halves[0].add(codes, x[0], x[1]);
    // One half after the other: GCC 12 would need more registers than there are.
    asm volatile("" : "+x"(halves[0].even[0]), "+x"(halves[0].odd[0]));
    halves[1].add(codes + kQ4HalfBytes, x[0], x[1]);
  }
  halves[0].rows(sums[0], sums[1]);
  halves[1].rows(sums[2], sums[3]);
}

// y += block x. fetches: whether to prefetch the blocks that come next, once for all x of a block.
[[gnu::noinline]] inline void q4nx_bytes(const uint8_t* block, const bfloat16* x, float* y,
                                         bool fetches) {
  const q4_line& line = split_line(x);
  const auto* d = reinterpret_cast<const uint16_t*>(block);
  const auto* m = reinterpret_cast<const uint16_t*>(block + kQ4Plane);
  float_lanes rows[4];
  unroll<4>([&](auto i) { rows[i.value] = load<float_lanes>(y + 8 * i.value); });
  for (int32_t g = 0; g < kQ4Groups; ++g) {
    const int32_t first = g * kQ4Group;
    const uint8_t* const codes = block + kQ4Codes + first * kQ4ColumnBytes;
    float_lanes sums[4] = {};
    if (line.units[g] != 0) {
      group_sums(codes, line.bytes + first, sums);
      unroll<4>([&](auto i) { sums[i.value] *= line.units[g]; });
    }
    for (uint32_t left = line.columns[g]; left != 0; left &= left - 1) {
      const int32_t c = __builtin_ctz(left);
      const uint8_t* const column = codes + c * kQ4ColumnBytes;
      unroll<4>([&](auto i) {
        sums[i.value] +=
            codes_of<8 * (i.value % 2)>(column + i.value / 2 * kQ4HalfBytes) * line.rest[first + c];
      });
    }
    if (fetches) prefetch_ahead(block, g, kQ4Groups);
    unroll<4>([&](auto i) {
      const int32_t at = g * kQ4Rows + int32_t(8 * i.value);
      rows[i.value] += widen_bf16(d + at) * sums[i.value];
      rows[i.value] += widen_bf16(m + at) * line.totals[g];
    });
  }
  unroll<4>([&](auto i) { store(rows[i.value], y + 8 * i.value); });
}

}  // namespace host
AIE_HOST_END

#endif
