// Operands of products of bfp16 as block_products.hpp multiplies them: mantissas, as bytes on CPUs
// with AVX512_VNNI and as int16 on others, and the exponents of blocks, whose unit is 2^(E - 133).
//
// A keeps the order of its tiles, each followed by its rows' exponents. B becomes panels of 32
// columns: of eight k at a time the mantissas, consecutive k of a column in a lane, then exponents.
// vpdpbusd multiplies unsigned by signed bytes: there A enters as a + 128, and lanes of
// -128 * sum_k(b), with which sums begin, lie between B's mantissas and exponents.
#pragma once

#include "pack.hpp"

#if __AIE_ARCH__ >= 21

#if defined(__AVX512VNNI__)
#define AIE_HOST_BYTE_BLOCKS
#endif

AIE_HOST_BEGIN
namespace host {

#if defined(AIE_HOST_BYTE_BLOCKS)
using block_mantissa = int8_t;
using block_packed = uint8_t;  // of A
#else
using block_mantissa = int16_t;
using block_packed = int16_t;
#endif
inline constexpr bool kBlockBytes = sizeof(block_packed) == 1;
inline constexpr int32_t kBlockPerLane = 4 / sizeof(block_packed);

// A tile of A: mantissas [8 rows][8 k], then E << 23 of every row.
inline constexpr int32_t kBlockTile = 64 + 8 * kBlockPerLane;
// Eight k of a panel, in lanes: mantissas [k / per lane][columns], of bytes where sums begin
// [columns], and (E - 139) << 23 [columns]: with A's, the exponent field of both units.
inline constexpr int32_t kBlockPanel = 32, kBlockMantissas = 8 / kBlockPerLane;
inline constexpr int32_t kBlockUnits = kBlockMantissas + (kBlockBytes ? 1 : 0);
inline constexpr int32_t kBlockLanes = (kBlockUnits + 1) * kBlockPanel;
inline constexpr int32_t kUnitBias = 139 << 23;

#if defined(AIE_HOST_BYTE_BLOCKS)
// Eight k of 16 columns of a panel, but for their exponents: mantissas of four k each.
AIE_HOST_INLINE void store_bytes(__m512i low, __m512i high, int32_t* panel) {
  const __m512i offset = _mm512_set1_epi8(-128);
  __m512i excess = _mm512_dpbusd_epi32(__m512i{}, offset, low);
  excess = _mm512_dpbusd_epi32(excess, offset, high);
  store(low, panel);
  store(high, panel + kBlockPanel);
  store(-(lanes)excess, panel + kBlockMantissas * kBlockPanel);
}
#endif

// Rows of eight bf16, each in 128 bits of a vector; and fp32 of four of each row's, as bits.
using rows_of_eight = simd<uint16_t, kSimdBytes / 2>;
using fours = simd<uint32_t, kLanes>;
inline constexpr unsigned kRowsPerVector = kSimdBytes / 16;

// Elements I of every 128 bits of two vectors; the second one's count on from the first one's.
template <int... I, typename V, int... J>
AIE_HOST_INLINE V in_rows(V x, V y, std::integer_sequence<int, J...>) {
  constexpr int kFrom[] = {I...}, kRow = sizeof...(I), kOther = sizeof...(J) - kRow;
  return __builtin_shufflevector(
      x, y, (J / kRow * kRow + kFrom[J % kRow] + (kFrom[J % kRow] < kRow ? 0 : kOther))...);
}
template <int... I>
AIE_HOST_INLINE rows_of_eight in_rows(rows_of_eight x, rows_of_eight y) {
  static_assert(sizeof...(I) == 8);
  return in_rows<I...>(x, y, std::make_integer_sequence<int, kSimdBytes / 2>());
}
// The first and the last four elements of every row as fp32.
AIE_HOST_INLINE fours widen_first(rows_of_eight x) {
  return (fours)in_rows<0, 8, 1, 9, 2, 10, 3, 11>(rows_of_eight{}, x);
}
AIE_HOST_INLINE fours widen_last(rows_of_eight x) {
  return (fours)in_rows<4, 12, 5, 13, 6, 14, 7, 15>(rows_of_eight{}, x);
}
// The rows rotated by kRows.
template <int kRows, int... J>
AIE_HOST_INLINE rows_of_eight rotated_rows(rows_of_eight x, std::integer_sequence<int, J...>) {
  return __builtin_shufflevector(x, x, ((J + 8 * kRows) % int(sizeof...(J)))...);
}

// Whether the largest magnitudes of all blocks, as bits of bf16, are in range.
struct block_range {
  rows_of_eight most{}, least = ~rows_of_eight{};  // least: minus one, so that zeros never count
  bool refused = false;

  AIE_HOST_INLINE void add(rows_of_eight top) {
    const rows_of_eight below = top - 1;
    most = larger(most, top);
    least = least < below ? least : below;
  }
  AIE_HOST_INLINE bool good() const {
    bool all = !refused;
    for (unsigned i = 0; i < kSimdBytes / 2; ++i) {
      all &= most[i] < (kHighest + 1) << 7 && least[i] >= (kLowest << 7) - 1;
    }
    return all;
  }
};

// The exponents of blocks whose elements have these magnitudes at most, as fields of bf16; those of
// zeros are such that nothing overflows.
AIE_HOST_INLINE rows_of_eight block_exponents(rows_of_eight top) {
  return larger(top & 0x7F80, rows_of_eight{} + uint16_t{kLowest << 7});
}

// fp32 to mantissas, as round_to_block() (pack.hpp), the last bits of its sums; still up to 128.
// The exponents of their blocks as fields of fp32.
template <typename V>
AIE_HOST_INLINE V block_steps(V values, V exponents) {
  const V magic = (exponents + (17 << 23)) | 0x400000;
  return (V)((float_lanes)values + (float_lanes)magic) - magic;
}
// The same of rows, whose elements' exponents are widened as these are.
AIE_HOST_INLINE rows_of_eight block_steps(rows_of_eight x, fours of_first, fours of_last) {
  const fours low = block_steps(widen_first(x), of_first);
  const fours high = block_steps(widen_last(x), of_last);
#if defined(__AVX512BW__)
  return (rows_of_eight)_mm512_packs_epi32((__m512i)low, (__m512i)high);
#elif defined(__AVX2__)
  return (rows_of_eight)_mm256_packs_epi32((__m256i)low, (__m256i)high);
#else
  return (rows_of_eight)_mm_packs_epi32((__m128i)low, (__m128i)high);
#endif
}

// The mantissas of a tile; steps(i): of kRowsPerVector rows.
template <typename Steps>
AIE_HOST_INLINE void store_mantissas(const Steps& steps, block_mantissa* mantissas) {
#if defined(AIE_HOST_BYTE_BLOCKS)
  const auto upper = (__m512i)steps(index<0>{}), lower = (__m512i)steps(index<1>{});
  const auto rows =
      (simd<long long, 8>)_mm512_packs_epi16(upper, lower);  // 0 4 1 5 ..., at most 127
  store(__builtin_shufflevector(rows, rows, 0, 2, 4, 6, 1, 3, 5, 7), mantissas);
#else
  unroll<8 / kRowsPerVector>([&](auto i) {
    using mantissas_of = simd<int16_t, kSimdBytes / 2>;
    const auto kept = (mantissas_of)steps(i), most = mantissas_of{} + int16_t{127};
    store(kept < most ? kept : most, mantissas + i.value * (kSimdBytes / 2));
  });
#endif
}

// A tile of 8 blocks of 8 consecutive elements: mantissas and E << 23.
AIE_HOST_INLINE void tile_by_rows(const bfloat16* in, block_mantissa* mantissas, int32_t* exponents,
                                  block_range& range) {
  const auto steps = [&](auto i) {
    const auto x = load<rows_of_eight>(in + i.value * (kSimdBytes / 2));
    rows_of_eight top = x & 0x7FFF;
    top = larger(top, swapped<4>(top));
    top = larger(top, swapped<2>(top));
    top = larger(top, swapped<1>(top));
    range.add(top);
    const auto fields = (fours)block_exponents(top) << 16;
    unroll<kRowsPerVector>([&](auto row) {
      exponents[i.value * kRowsPerVector + row.value] = static_cast<int32_t>(fields[4 * row.value]);
    });
    return block_steps(x, fields, fields);
  };
  store_mantissas(steps, mantissas);
}

// The same of a tile whose blocks are its columns.
AIE_HOST_INLINE void tile_by_columns(const bfloat16* in, block_mantissa* mantissas,
                                     int32_t* exponents, block_range& range) {
  constexpr auto kAll = std::make_integer_sequence<int, kSimdBytes / 2>();
  const auto rows = [&](auto i) { return load<rows_of_eight>(in + i.value * (kSimdBytes / 2)); };
  rows_of_eight top{};
  unroll<8 / kRowsPerVector>([&](auto i) { top = larger(top, rows(i) & 0x7FFF); });
  if constexpr (kRowsPerVector == 4) top = larger(top, rotated_rows<2>(top, kAll));
  if constexpr (kRowsPerVector >= 2) top = larger(top, rotated_rows<1>(top, kAll));
  range.add(top);
  const rows_of_eight fields = block_exponents(top);
  const fours first = widen_first(fields), last = widen_last(fields);
  store(part<4, 0>(first), exponents);
  store(part<4, 0>(last), exponents + 4);
  store_mantissas([&](auto i) { return block_steps(rows(i), first, last); }, mantissas);
}

#if defined(AIE_HOST_BYTE_BLOCKS)
// The same of a tile in bfp16. Whole vectors are stored, which the next one to load waits less for.
AIE_HOST_INLINE void tile_of_blocks(const bfp16ebs8* in, block_mantissa* mantissas,
                                    int32_t* exponents, block_range& range) {
  const auto* block = reinterpret_cast<const uint8_t*>(in);
  const auto bytes = [&](int i) { return load<long long>(block + 9 * i + 1); };
  const __m512i all = _mm512_set_epi64(bytes(7), bytes(6), bytes(5), bytes(4), bytes(3), bytes(2),
                                       bytes(1), bytes(0));
  const __m256i found = _mm256_set_epi32(block[63], block[54], block[45], block[36], block[27],
                                         block[18], block[9], block[0]);
  const __mmask8 small = _mm256_cmplt_epi32_mask(found, _mm256_set1_epi32(kLowest));
  const __mmask8 large = _mm256_cmpgt_epi32_mask(found, _mm256_set1_epi32(kHighest));
  store(all, mantissas);
  store(_mm256_slli_epi32(_mm256_max_epi32(found, _mm256_set1_epi32(kLowest)), 23), exponents);
  range.refused |= ((small & _mm512_test_epi64_mask(all, all)) | large) != 0;
}
#else
// The same of a tile in bfp16.
AIE_HOST_INLINE void tile_of_blocks(const bfp16ebs8* in, block_mantissa* mantissas,
                                    int32_t* exponents, block_range& range) {
  const auto* block = reinterpret_cast<const uint8_t*>(in);
  const auto bytes = [&](unsigned row) { return load<int64_t>(block + 9 * row + 1); };
  unroll<8>([&](auto row) {
    store(_mm_cvtepi8_epi16(_mm_cvtsi64_si128(bytes(row.value))), mantissas + 8 * row.value);
  });
  const word8 found{block[0],  block[9],  block[18], block[27],
                    block[36], block[45], block[54], block[63]};
  const auto least = splat<uint32_t, 8>(kLowest);
  store((found > least ? found : least) << 23, exponents);
  constexpr uint32_t kRange = kHighest - kLowest;
  const auto outside = (simd<int32_t, 8>)(found - kLowest > kRange);
  const auto any = part<4, 0>(outside) | part<4, 4>(outside);
  if (_mm_testz_si128((__m128i)any, (__m128i)any) != 0) return;
  for (unsigned row = 0; row < 8; ++row) {
    const bool low = block[9 * row] < kLowest && bytes(row) != 0;
    range.refused |= low || block[9 * row] > kHighest;
  }
}
#endif

// A, `count` elements. False if one is out of range.
template <auto kTile, typename T>
[[gnu::noinline]] inline bool pack_block_a(const T* a, int64_t count, block_packed* out) {
  constexpr int64_t kStep = std::is_same_v<T, bfp16ebs8> ? 8 * 9 : 64 * sizeof(T);
  const auto* in = reinterpret_cast<const uint8_t*>(a);
  block_range range;
  for (int64_t i = 0; i < count; i += 64, in += kStep, out += kBlockTile) {
    const auto* const tile = reinterpret_cast<const T*>(in);
    auto* const exponents = reinterpret_cast<int32_t*>(out + 64);
#if defined(AIE_HOST_BYTE_BLOCKS)
    alignas(64) int8_t mantissas[64];
    kTile(tile, mantissas, exponents, range);
    store(_mm512_xor_si512(load<__m512i>(mantissas), _mm512_set1_epi8(-128)), out);
#else
    kTile(tile, out, exponents, range);
#endif
  }
  return range.good();
}

// B of depth x columns tiles; columns that the last panel has beyond them are never read.
template <auto kTile, bool kColumnMajor, typename T>
[[gnu::noinline]] inline bool pack_block_b(const T* b, int32_t depth, int32_t columns,
                                           int32_t* out) {
  constexpr int32_t kStep = std::is_same_v<T, bfp16ebs8> ? 8 * 9 : 64 * sizeof(T);
  const auto* in = reinterpret_cast<const uint8_t*>(b);
  block_range range;
  for (int32_t column = 0; column < columns; ++column) {
    int32_t* to = out + column * 8 / kBlockPanel * depth * kBlockLanes + column * 8 % kBlockPanel;
    for (int32_t i = 0; i < depth; ++i, to += kBlockLanes) {
      alignas(64) block_mantissa mantissas[64];
      alignas(32) int32_t exponents[8];
      const int32_t at = kColumnMajor ? column * depth + i : i * columns + column;
      kTile(reinterpret_cast<const T*>(in + int64_t{at} * kStep), mantissas, exponents, range);
      if constexpr (kColumnMajor) {
        const auto* const tile = reinterpret_cast<const int32_t*>(mantissas);
        turn_columns<kBlockMantissas, 8>(tile, to, kBlockPanel);
      } else {
        zip_rows<8, 8>(mantissas, to, kBlockPanel);
      }
#if defined(AIE_HOST_BYTE_BLOCKS)
      const __m256i offset = _mm256_set1_epi8(-128);
      __m256i excess{};
      excess = _mm256_dpbusd_epi32(excess, offset, load<__m256i>(to));
      excess = _mm256_dpbusd_epi32(excess, offset, load<__m256i>(to + kBlockPanel));
      store(_mm256_sub_epi32(__m256i{}, excess), to + kBlockMantissas * kBlockPanel);
#endif
      store(load<simd<int32_t, 8>>(exponents) - kUnitBias, to + kBlockUnits * kBlockPanel);
    }
  }
  return range.good();
}

// Packed operands of `count` elements of A, and of B of depth x columns tiles.
constexpr int64_t block_a_elements(int64_t count) { return count / 64 * kBlockTile; }
constexpr int64_t block_b_lanes(int64_t depth, int64_t columns) {
  constexpr int64_t kAcross = kBlockPanel / 8;
  return (columns + kAcross - 1) / kAcross * depth * kBlockLanes;
}

}  // namespace host
AIE_HOST_END

#endif
