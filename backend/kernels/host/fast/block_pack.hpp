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

#if defined(__AVX512BW__)
// The exponents of blocks whose elements have these magnitudes at most, as fields of bf16; those of
// zeros are such that nothing overflows.
AIE_HOST_INLINE __m512i block_exponents(__m512i top) {
  return _mm512_max_epu16(_mm512_and_si512(top, _mm512_set1_epi16(0x7F80)),
                          _mm512_set1_epi16(kLowest << 7));
}

AIE_HOST_INLINE bool tops_in_range(__m512i top) {
  const __m512i distance = _mm512_sub_epi16(top, _mm512_set1_epi16(kLowest << 7));
  const __m512i limit = _mm512_set1_epi16((kHighest + 1 - kLowest) << 7);
  const __mmask32 there = _mm512_test_epi16_mask(top, top);
  return _mm512_mask_cmpge_epu16_mask(there, distance, limit) == 0;
}

// Sixteen bf16 to mantissas, as round_to_block() (pack.hpp): the last bits of its sums.
AIE_HOST_INLINE auto block_mantissas(__m256i x, __m256i exponents) {
  const __m512i unit = _mm512_slli_epi32(_mm512_cvtepu16_epi32(exponents), 16);
  const __m512i magic = _mm512_or_si512(_mm512_add_epi32(unit, _mm512_set1_epi32(17 << 23)),
                                        _mm512_set1_epi32(0x400000));
  const __m512 wide = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
  const __m512 sum = _mm512_add_ps(wide, _mm512_castsi512_ps(magic));
  const __m512i steps = _mm512_sub_epi32(_mm512_castps_si512(sum), magic);
  const __m512i kept = _mm512_min_epi32(steps, _mm512_set1_epi32(127));
  if constexpr (kBlockBytes) {
    return _mm512_cvtepi32_epi8(kept);
  } else {
    return _mm512_cvtepi32_epi16(kept);
  }
}

// A tile of 8 blocks of 8 consecutive elements: mantissas and E << 23. False if one is out of
// range.
AIE_HOST_INLINE bool tile_by_rows(const bfloat16* in, block_mantissa* mantissas,
                                  int32_t* exponents) {
  bool good = true;
  unroll<2>([&](auto half) {
    constexpr unsigned kFirst = half.value * 32;
    const __m512i x = _mm512_loadu_si512(in + kFirst);
    __m512i top = _mm512_and_si512(x, _mm512_set1_epi16(0x7FFF));
    top = _mm512_max_epu16(top, _mm512_shuffle_epi32(top, _MM_PERM_BADC));
    top = _mm512_max_epu16(top, _mm512_shuffle_epi32(top, _MM_PERM_CDAB));
    top = _mm512_max_epu16(top, _mm512_rol_epi32(top, 16));
    good &= tops_in_range(top);
    const __m512i fields = block_exponents(top);
    unroll<2>([&](auto part) {
      const auto rounded = block_mantissas(_mm512_extracti64x4_epi64(x, part.value),
                                           _mm512_extracti64x4_epi64(fields, part.value));
      store(rounded, mantissas + kFirst + 16 * part.value);
    });
    const __m512i first = _mm512_maskz_compress_epi32(0x1111, _mm512_slli_epi32(fields, 16));
    store(_mm512_castsi512_si128(first), exponents + half.value * 4);
  });
  return good;
}

// The same of a tile whose blocks are its columns.
AIE_HOST_INLINE bool tile_by_columns(const bfloat16* in, block_mantissa* mantissas,
                                     int32_t* exponents) {
  const __m512i low = _mm512_loadu_si512(in), high = _mm512_loadu_si512(in + 32);
  const __m512i magnitude = _mm512_set1_epi16(0x7FFF);
  __m512i top =
      _mm512_max_epu16(_mm512_and_si512(low, magnitude), _mm512_and_si512(high, magnitude));
  top = _mm512_max_epu16(top, _mm512_shuffle_i64x2(top, top, _MM_PERM_BADC));
  top = _mm512_max_epu16(top, _mm512_shuffle_i64x2(top, top, _MM_PERM_CDAB));
  const __m256i fields = _mm512_castsi512_si256(block_exponents(top));
  unroll<4>([&](auto rows) {  // two each
    const __m512i x = rows.value < 2 ? low : high;
    const auto rounded = block_mantissas(_mm512_extracti64x4_epi64(x, rows.value % 2), fields);
    store(rounded, mantissas + 16 * rows.value);
  });
  const __m256i words = _mm256_cvtepu16_epi32(_mm256_castsi256_si128(fields));
  store(_mm256_slli_epi32(words, 16), exponents);
  return tops_in_range(top);
}
#else
// Eight bf16 to mantissas, as round_to_block() (pack.hpp): the last bits of its sums.
AIE_HOST_INLINE simd<int16_t, 8> block_mantissas(half8 x, word8 exponents) {
  const auto wide = (float8)(__builtin_convertvector(x, word8) << 16);
  const word8 magic = (exponents + (17u << 23)) | 0x400000;
  const auto steps = (simd<int32_t, 8>)((word8)(wide + (float8)magic) - magic);
  const auto kept = steps < 127 ? steps : splat<int32_t, 8>(127);
  return (simd<int16_t, 8>)_mm_packs_epi32((__m128i)part<4, 0>(kept), (__m128i)part<4, 4>(kept));
}

// A tile of 8 blocks of 8 consecutive elements: mantissas and E << 23. False if one is out of
// range.
AIE_HOST_INLINE bool tile_by_rows(const bfloat16* in, block_mantissa* mantissas,
                                  int32_t* exponents) {
  bool good = true;
  unroll<8>([&](auto row) {
    const half8 x = load<half8>(in + 8 * row.value);
    const unsigned top = largest_magnitude(x), field = top & 0x7F80;
    good &= block_in_range(top);
    const uint32_t exponent = (field > kLowest << 7 ? field : kLowest << 7) << 16;
    store(block_mantissas(x, splat<uint32_t, 8>(exponent)), mantissas + 8 * row.value);
    store(exponent, exponents + row.value);
  });
  return good;
}

// The same of a tile whose blocks are its columns.
AIE_HOST_INLINE bool tile_by_columns(const bfloat16* in, block_mantissa* mantissas,
                                     int32_t* exponents) {
  half8 top{};
  unroll<8>([&](auto k) {
    const half8 magnitude = load<half8>(in + 8 * k.value) & 0x7FFF;
    top = magnitude > top ? magnitude : top;
  });
  half8 fields = top & 0x7F80;
  fields = fields > uint16_t{kLowest << 7} ? fields : splat<uint16_t, 8>(kLowest << 7);
  const word8 found = __builtin_convertvector(fields, word8) << 16;
  unroll<8>([&](auto k) {
    store(block_mantissas(load<half8>(in + 8 * k.value), found), mantissas + 8 * k.value);
  });
  store(found, exponents);
  const half8 distance = top - uint16_t{kLowest << 7};
  const auto bad = (top != 0) & (distance >= uint16_t{(kHighest + 1 - kLowest) << 7});
  return _mm_movemask_epi8((__m128i)bad) == 0;
}
#endif

#if defined(AIE_HOST_BYTE_BLOCKS)
// The same of a tile in bfp16. Whole vectors are stored, which the next one to load waits less for.
AIE_HOST_INLINE bool tile_of_blocks(const bfp16ebs8* in, block_mantissa* mantissas,
                                    int32_t* exponents) {
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
  return ((small & _mm512_test_epi64_mask(all, all)) | large) == 0;
}
#else
// The same of a tile in bfp16.
AIE_HOST_INLINE bool tile_of_blocks(const bfp16ebs8* in, block_mantissa* mantissas,
                                    int32_t* exponents) {
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
  if (_mm_testz_si128((__m128i)any, (__m128i)any) != 0) return true;
  bool good = true;
  for (unsigned row = 0; row < 8; ++row) {
    good &= block[9 * row] <= kHighest && (block[9 * row] >= kLowest || bytes(row) == 0);
  }
  return good;
}
#endif

// A, `count` elements. False if one is out of range.
template <auto kTile, typename T>
[[gnu::noinline]] inline bool pack_block_a(const T* a, int64_t count, block_packed* out) {
  constexpr int64_t kStep = std::is_same_v<T, bfp16ebs8> ? 8 * 9 : 64 * sizeof(T);
  const auto* in = reinterpret_cast<const uint8_t*>(a);
  bool good = true;
  for (int64_t i = 0; i < count; i += 64, in += kStep, out += kBlockTile) {
    const auto* const tile = reinterpret_cast<const T*>(in);
    auto* const exponents = reinterpret_cast<int32_t*>(out + 64);
#if defined(AIE_HOST_BYTE_BLOCKS)
    alignas(64) int8_t mantissas[64];
    good &= kTile(tile, mantissas, exponents);
    store(_mm512_xor_si512(load<__m512i>(mantissas), _mm512_set1_epi8(-128)), out);
#else
    good &= kTile(tile, out, exponents);
#endif
  }
  return good;
}

// B of depth x columns tiles; columns that the last panel has beyond them are never read.
template <auto kTile, bool kColumnMajor, typename T>
[[gnu::noinline]] inline bool pack_block_b(const T* b, int32_t depth, int32_t columns,
                                           int32_t* out) {
  constexpr int32_t kStep = std::is_same_v<T, bfp16ebs8> ? 8 * 9 : 64 * sizeof(T);
  const auto* in = reinterpret_cast<const uint8_t*>(b);
  bool good = true;
  for (int32_t column = 0; column < columns; ++column) {
    int32_t* to = out + column * 8 / kBlockPanel * depth * kBlockLanes + column * 8 % kBlockPanel;
    for (int32_t i = 0; i < depth; ++i, to += kBlockLanes) {
      alignas(64) block_mantissa mantissas[64];
      alignas(32) int32_t exponents[8];
      const int32_t at = kColumnMajor ? column * depth + i : i * columns + column;
      good &= kTile(reinterpret_cast<const T*>(in + int64_t{at} * kStep), mantissas, exponents);
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
  return good;
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
