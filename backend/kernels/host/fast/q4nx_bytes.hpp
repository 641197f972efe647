// Blocks of 4-bit weights times vectors on CPUs with AVX2 alone: sums of products of bytes. The 32
// columns of x of a group become integers in units of 2^-15 of the power of two above the largest,
// two signed bytes each, which hold bf16 down to 2^-8 of it. What they do not hold is multiplied in
// fp32, column by column: it is little, or the whole group.
#pragma once

#include <memory>

#include "q4nx_layout.hpp"

#if defined(__AVX2__) && !defined(__AVX512F__)

#define AIE_HOST_Q4_BYTES

AIE_HOST_BEGIN
namespace host {

// A line of x: the columns of a block.
struct q4_line {
  uint16_t x[kQ4Columns];                                   // what it was made of
  alignas(32) int8_t upper[kQ4Columns], lower[kQ4Columns];  // x = 256 upper + lower, in units
  alignas(32) float rest[kQ4Columns];                       // what bytes do not hold
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

// 32 small integers as bytes.
AIE_HOST_INLINE __m256i bytes_of(const __m256i (&n)[4]) {
  const __m256i words[2] = {_mm256_packs_epi32(n[0], n[1]), _mm256_packs_epi32(n[2], n[3])};
  // Of each four one 128-bit lane has the first half.
  return _mm256_permutevar8x32_epi32(_mm256_packs_epi16(words[0], words[1]),
                                     _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
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
    __m256i upper[4], lower[4];
    int32_t count = 0;
    unroll<4>([&](auto i) {
      const __m256i n = _mm256_cvtps_epi32((__m256)(x[i.value] * to_units));
      rests[i.value] = x[i.value] - (float_lanes)_mm256_cvtepi32_ps(n) * unit;
      count += __builtin_popcount(not_zero(rests[i.value]));
      // What the lower byte borrows as it is signed.
      upper[i.value] = _mm256_srai_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(128)), 8);
      lower[i.value] = _mm256_srai_epi32(_mm256_slli_epi32(n, 24), 24);
    });
    if (count <= kMostRests) {
      line.units[g] = unit;
      store(bytes_of(upper), line.upper + first);
      store(bytes_of(lower), line.lower + first);
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

// Lines that a thread has split, in sets by what they hold.
class q4_lines {
 public:
  const q4_line& find(const uint16_t* x) {
    const auto word = [&](int32_t i) { return load<uint64_t>(x + i); };
    const uint64_t mixed = (word(0) + 3 * word(4)) * 0x9E3779B97F4A7C15;
    const size_t set = mixed >> (64 - kSetBits);
    for (size_t way = 0; way < kWays; ++way) {
      const q4_line& line = lines_[set * kWays + way];
      if (mixed == marks_[set * kWays + way] && same(x, line.x)) return line;
    }
    const size_t number = set * kWays + next_[set]++ % kWays;
    q4_line& line = lines_[number];
    marks_[number] = mixed;
    __builtin_memcpy(line.x, x, sizeof line.x);
    for (int32_t g = 0; g < kQ4Groups; ++g) split_group(line, g);
    return line;
  }

 private:
  static bool same(const uint16_t* a, const uint16_t* b) {
    __m256i differ = _mm256_setzero_si256();
    for (int32_t i = 0; i < kQ4Columns; i += 16) {
      differ =
          _mm256_or_si256(differ, _mm256_xor_si256(load<__m256i>(a + i), load<__m256i>(b + i)));
    }
    return _mm256_testz_si256(differ, differ) != 0;
  }

  static constexpr size_t kSetBits = 8, kWays = 4;
  q4_line lines_[kWays << kSetBits] = {};  // new ones are lines of zeros
  uint64_t marks_[kWays << kSetBits] = {};
  uint8_t next_[size_t{1} << kSetBits] = {};  // to be replaced
};

// Cores multiply all their row-blocks by the same lines, of which each has a copy.
inline const q4_line& split_line(const uint16_t* x) {
  static thread_local const std::unique_ptr<q4_lines> lines(new q4_lines);
  return lines->find(x);
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
AIE_HOST_INLINE void group_sums(const uint8_t* codes, const int8_t* upper, const int8_t* lower,
                                float_lanes (&sums)[4]) {
  // Bytes of columns 0 and 1 in one 128-bit lane, of 2 and 3 in the other.
  const __m256i pairs = _mm256_set_m128i(_mm_set1_epi16(0x0302), _mm_set1_epi16(0x0100));
  q4_products halves[2];
  for (int32_t c = 0; c < kQ4Group; c += 4, codes += 4 * kQ4ColumnBytes) {
    const __m256i x[2] = {_mm256_shuffle_epi8(_mm256_set1_epi32(load<int32_t>(upper + c)), pairs),
                          _mm256_shuffle_epi8(_mm256_set1_epi32(load<int32_t>(lower + c)), pairs)};
    halves[0].add(codes, x[0], x[1]);
    // One half after the other: GCC 12 would need more registers than there are.
    asm volatile("" : "+x"(halves[0].even[0]), "+x"(halves[0].odd[0]));
    halves[1].add(codes + kQ4HalfBytes, x[0], x[1]);
  }
  halves[0].rows(sums[0], sums[1]);
  halves[1].rows(sums[2], sums[3]);
}

// What bytes of x do not hold, column by column.
AIE_HOST_INLINE void add_rests(const q4_line& line, int32_t g, const uint8_t* codes,
                               float_lanes (&sums)[4]) {
  for (uint32_t left = line.columns[g]; left != 0; left &= left - 1) {
    const int32_t c = __builtin_ctz(left);
    const uint8_t* const column = codes + c * kQ4ColumnBytes;
    unroll<4>([&](auto i) {
      sums[i.value] += codes_of<8 * (i.value % 2)>(column + i.value / 2 * kQ4HalfBytes) *
                       line.rest[g * kQ4Group + c];
    });
  }
}

// sums = a group's codes times x, without minima less 8 X. of_bytes(sums): codes times bytes of x.
template <bool kMinima, typename Bytes>
AIE_HOST_INLINE void multiply_group(const q4_line& line, int32_t g, const uint8_t* codes,
                                    float_lanes (&sums)[4], const Bytes& of_bytes) {
  unroll<4>([&](auto i) { sums[i.value] = float_lanes{}; });
  if (line.units[g] != 0) {
    of_bytes(sums);
    unroll<4>([&](auto i) { sums[i.value] *= line.units[g]; });
  }
  if constexpr (!kMinima) {
    unroll<4>([&](auto i) { sums[i.value] -= kQ4Zero<kMinima> * line.totals[g]; });
  }
  add_rests(line, g, codes, sums);
}

// y += block x.
template <bool kMinima>
[[gnu::noinline]] inline void multiply_packed(const uint8_t* block, const uint16_t* x, float* y) {
  const q4_line& line = split_line(x);
  const auto* d = reinterpret_cast<const uint16_t*>(block);
  const auto* m = reinterpret_cast<const uint16_t*>(block + kQ4Plane);
  float_lanes rows[4];
  unroll<4>([&](auto i) { rows[i.value] = load<float_lanes>(y + 8 * i.value); });
  const int32_t groups = q4_groups<kMinima>(block, {x});
  for (int32_t g = 0; g < groups; ++g) {
    const int32_t first = g * kQ4Group;
    const uint8_t* const codes = block + kQ4Codes<kMinima> + first * kQ4ColumnBytes;
    float_lanes sums[4];
    multiply_group<kMinima>(line, g, codes, sums, [&](float_lanes(&products)[4]) {
      group_sums(codes, line.upper + first, line.lower + first, products);
    });
    prefetch_ahead<kQ4Bytes<kMinima>, kQ4Groups>(block, g);
    unroll<4>([&](auto i) {
      const int32_t at = g * kQ4Rows + int32_t(8 * i.value);
      rows[i.value] += widen_bf16(d + at) * sums[i.value];
      if constexpr (kMinima) rows[i.value] += widen_bf16(m + at) * line.totals[g];
    });
  }
  prefetch_rest<kQ4Bytes<kMinima>, kQ4Groups>(block, groups);
  unroll<4>([&](auto i) { store(rows[i.value], y + 8 * i.value); });
}

// A block's codes as bytes: of 32 rows four columns each; and its planes.
template <bool kMinima>
struct q4_unpacked {
  static constexpr int32_t kPlane = kQ4Groups * kQ4Rows, kPlanes = kMinima ? 2 : 1;
  alignas(32) uint8_t codes[kQ4Columns * kQ4Rows];
  alignas(32) float planes[kPlanes * kPlane];  // scales, then minima

  explicit q4_unpacked(const uint8_t* block) {
    for (int32_t i = 0; i < kPlanes * kPlane; i += int32_t(kLanes)) {
      store(widen_bf16(reinterpret_cast<const uint16_t*>(block) + i), planes + i);
    }
    const uint8_t* from = block + kQ4Codes<kMinima>;
    uint8_t* to = codes;
    for (int32_t g = 0; g < kQ4Groups; ++g) {
      prefetch_ahead<kQ4Bytes<kMinima>, kQ4Groups>(block, g);
      for (int32_t c = 0; c < kQ4Group; c += 4, from += 4 * kQ4ColumnBytes, to += 4 * kQ4Rows) {
        unpack(from, to);
        unpack(from + kQ4HalfBytes, to + 2 * kQ4Rows);
      }
    }
  }

 private:
  // Four columns of a half.
  AIE_HOST_INLINE static void unpack(const uint8_t* from, uint8_t* to) {
    const __m256i code = _mm256_set1_epi8(15);
    // Bytes 0-3 of all columns in one 128-bit lane, 4-7 in the other; then those of a byte's
    // number.
    const __m256i halves =
        _mm256_permutevar8x32_epi32(load<__m256i>(from), _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7));
    const __m256i both =
        _mm256_shuffle_epi8(halves, _mm256_broadcastsi128_si256(_mm_setr_epi8(
                                        0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15)));
    const __m256i even = _mm256_and_si256(both, code);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi16(both, 4), code);
    const __m256i low = _mm256_unpacklo_epi32(even, odd);   // rows 0-3, 8-11
    const __m256i high = _mm256_unpackhi_epi32(even, odd);  // rows 4-7, 12-15
    store(_mm256_permute2x128_si256(low, high, 0x20), to);
    store(_mm256_permute2x128_si256(low, high, 0x31), to + 32);
  }
};

// Sums of eight rows times upper and lower bytes.
struct q4_row_products {
  __m256i upper = _mm256_setzero_si256(), lower = _mm256_setzero_si256();

  AIE_HOST_INLINE void add(const uint8_t* rows, __m256i by_upper, __m256i by_lower) {
    __m256i codes = load<__m256i>(rows);
    asm volatile("" : "+x"(codes));  // once
    upper = _mm256_add_epi16(upper, _mm256_maddubs_epi16(codes, by_upper));
    lower = _mm256_add_epi16(lower, _mm256_maddubs_epi16(codes, by_lower));
    asm volatile("" : "+x"(upper), "+x"(lower));  // GCC 12 would keep products, to add them later
  }
  AIE_HOST_INLINE float_lanes sums() const {
    const __m256i high = _mm256_madd_epi16(upper, _mm256_set1_epi16(256));
    const __m256i low = _mm256_madd_epi16(lower, _mm256_set1_epi16(1));
    return (float_lanes)_mm256_cvtepi32_ps(_mm256_add_epi32(high, low));
  }
};

// Sums of codes times bytes for the 32 rows of a group: those of group_sums().
AIE_HOST_INLINE void unpacked_sums(const uint8_t* codes, const int8_t* upper, const int8_t* lower,
                                   float_lanes (&sums)[4]) {
  q4_row_products first, second, third, fourth;
  for (int32_t c = 0; c < kQ4Group; c += 4, codes += 4 * kQ4Rows) {
    const __m256i by_upper = _mm256_set1_epi32(load<int32_t>(upper + c));
    const __m256i by_lower = _mm256_set1_epi32(load<int32_t>(lower + c));
    first.add(codes, by_upper, by_lower);
    second.add(codes + 32, by_upper, by_lower);
    third.add(codes + 64, by_upper, by_lower);
    fourth.add(codes + 96, by_upper, by_lower);
  }
  sums[0] = first.sums();
  sums[1] = second.sums();
  sums[2] = third.sums();
  sums[3] = fourth.sums();
}

// y += block x, as multiply_packed(). y is in memory meanwhile: the sums of a group take all
// registers.
template <bool kMinima>
[[gnu::noinline]] inline void multiply_unpacked(const q4_unpacked<kMinima>& unpacked,
                                                const uint8_t* block, const uint16_t* x, float* y) {
  const q4_line& line = split_line(x);
  const int32_t groups = q4_groups<kMinima>(block, {x});
  for (int32_t g = 0; g < groups; ++g) {
    const int32_t first = g * kQ4Group;
    const uint8_t* const codes = block + kQ4Codes<kMinima> + first * kQ4ColumnBytes;
    float_lanes sums[4];
    multiply_group<kMinima>(line, g, codes, sums, [&](float_lanes(&products)[4]) {
      unpacked_sums(unpacked.codes + first * kQ4Rows, line.upper + first, line.lower + first,
                    products);
    });
    unroll<4>([&](auto i) {
      const int32_t row = int32_t(8 * i.value);
      const float* const scales = unpacked.planes + g * kQ4Rows + row;
      float_lanes sum = load<float_lanes>(y + row);
      sum += load<float_lanes>(scales) * sums[i.value];
      if constexpr (kMinima) sum += load<float_lanes>(scales + unpacked.kPlane) * line.totals[g];
      store(sum, y + row);
    });
  }
}

// y += block x for `count` vectors: of several the codes are unpacked once.
template <bool kMinima, typename Vectors>
AIE_HOST_INLINE void q4_bytes(const uint8_t* block, const Vectors& vectors, int32_t count) {
  if (count == 1) return multiply_packed<kMinima>(block, vectors.line(0), vectors.sums(0));
  const q4_unpacked<kMinima> unpacked(block);
  for (int32_t v = 0; v < count; ++v) {
    multiply_unpacked(unpacked, block, vectors.line(v), vectors.sums(v));
  }
}

}  // namespace host
AIE_HOST_END

#endif
