// Products of bfp16 in the builds with AVX512_VNNI (`v4bf16`): mantissas are multiplied as bytes,
// which is exact and takes half the instructions of bf16; the sum of a block, times its two units,
// is then added to C.
//
// vpdpbusd multiplies unsigned by signed bytes: A enters as a + 128, and sums begin with
// -128 * sum_k(b). A unit is 2^(E - 133) for a block's exponent E: both of a block's multiply by
// adding exponents. A keeps the order of its tiles, each followed by its rows' exponents; B becomes
// panels of 32 columns.
#pragma once

#include "pack.hpp"

#if defined(__AVX512VNNI__) && __AIE_ARCH__ >= 21

#define AIE_HOST_BYTE_BLOCKS

AIE_HOST_BEGIN
namespace host {

// A tile of A: mantissas [8 rows][8 k], then E << 23 of every row.
inline constexpr int32_t kBlockTile = 64 + 8 * 4;
// Eight k of a panel, in lanes: four k each [2][columns], where sums begin [columns], and
// (E - 139) << 23 [columns]: with A's, the exponent field of both units.
inline constexpr int32_t kBlockPanel = 32, kBlockLanes = 4 * kBlockPanel;
inline constexpr int32_t kUnitBias = 139 << 23;

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
AIE_HOST_INLINE __m128i block_mantissas(__m256i x, __m256i exponents) {
  const __m512i unit = _mm512_slli_epi32(_mm512_cvtepu16_epi32(exponents), 16);
  const __m512i magic = _mm512_or_si512(_mm512_add_epi32(unit, _mm512_set1_epi32(17 << 23)),
                                        _mm512_set1_epi32(0x400000));
  const __m512 wide = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
  const __m512 sum = _mm512_add_ps(wide, _mm512_castsi512_ps(magic));
  const __m512i steps = _mm512_sub_epi32(_mm512_castps_si512(sum), magic);
  return _mm512_cvtepi32_epi8(_mm512_min_epi32(steps, _mm512_set1_epi32(127)));
}

// A tile of 8 blocks of 8 consecutive elements: mantissas and E << 23. False if one is out of
// range.
AIE_HOST_INLINE bool tile_by_rows(const bfloat16* in, int8_t* mantissas, int32_t* exponents) {
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
      const __m128i rounded = block_mantissas(_mm512_extracti64x4_epi64(x, part.value),
                                              _mm512_extracti64x4_epi64(fields, part.value));
      store(rounded, mantissas + kFirst + 16 * part.value);
    });
    const __m512i first = _mm512_maskz_compress_epi32(0x1111, _mm512_slli_epi32(fields, 16));
    store(_mm512_castsi512_si128(first), exponents + half.value * 4);
  });
  return good;
}

// The same of a tile whose blocks are its columns.
AIE_HOST_INLINE bool tile_by_columns(const bfloat16* in, int8_t* mantissas, int32_t* exponents) {
  const __m512i low = _mm512_loadu_si512(in), high = _mm512_loadu_si512(in + 32);
  const __m512i magnitude = _mm512_set1_epi16(0x7FFF);
  __m512i top =
      _mm512_max_epu16(_mm512_and_si512(low, magnitude), _mm512_and_si512(high, magnitude));
  top = _mm512_max_epu16(top, _mm512_shuffle_i64x2(top, top, _MM_PERM_BADC));
  top = _mm512_max_epu16(top, _mm512_shuffle_i64x2(top, top, _MM_PERM_CDAB));
  const __m256i fields = _mm512_castsi512_si256(block_exponents(top));
  unroll<4>([&](auto rows) {  // two each
    const __m512i x = rows.value < 2 ? low : high;
    const __m128i rounded = block_mantissas(_mm512_extracti64x4_epi64(x, rows.value % 2), fields);
    store(rounded, mantissas + 16 * rows.value);
  });
  const __m256i words = _mm256_cvtepu16_epi32(_mm256_castsi256_si128(fields));
  store(_mm256_slli_epi32(words, 16), exponents);
  return tops_in_range(top);
}

// The same of a tile in bfp16. Whole vectors are stored, which the next one to load waits less for.
AIE_HOST_INLINE bool tile_of_blocks(const bfp16ebs8* in, int8_t* mantissas, int32_t* exponents) {
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

// A, `count` elements. False if one is out of range.
template <auto kTile, typename T>
[[gnu::noinline]] inline bool pack_block_a(const T* a, int64_t count, uint8_t* out) {
  constexpr int64_t kStep = std::is_same_v<T, bfp16ebs8> ? 8 * 9 : 64 * sizeof(T);
  const auto* in = reinterpret_cast<const uint8_t*>(a);
  bool good = true;
  for (int64_t i = 0; i < count; i += 64, in += kStep, out += kBlockTile) {
    alignas(64) int8_t mantissas[64];
    alignas(32) int32_t exponents[8];
    good &= kTile(reinterpret_cast<const T*>(in), mantissas, exponents);
    store(_mm512_xor_si512(load<__m512i>(mantissas), _mm512_set1_epi8(-128)), out);
    store(load<__m256i>(exponents), out + 64);
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
      alignas(64) int8_t mantissas[64];
      alignas(32) int32_t exponents[8];
      const int32_t at = kColumnMajor ? column * depth + i : i * columns + column;
      good &= kTile(reinterpret_cast<const T*>(in + int64_t{at} * kStep), mantissas, exponents);
      if constexpr (kColumnMajor) {
        turn_columns<2, 8>(reinterpret_cast<const int32_t*>(mantissas), to, kBlockPanel);
      } else {
        zip_rows<8, 8>(mantissas, to, kBlockPanel);
      }
      const __m256i offset = _mm256_set1_epi8(-128);
      __m256i excess{};
      excess = _mm256_dpbusd_epi32(excess, offset, load<__m256i>(to));
      excess = _mm256_dpbusd_epi32(excess, offset, load<__m256i>(to + kBlockPanel));
      store(_mm256_sub_epi32(__m256i{}, excess), to + 2 * kBlockPanel);
      store(_mm256_sub_epi32(load<__m256i>(exponents), _mm256_set1_epi32(kUnitBias)),
            to + 3 * kBlockPanel);
    }
  }
  return good;
}

// A row of two C tiles that follow each other, as sums and back.
template <typename T>
AIE_HOST_INLINE simd<float, 16> load_sums(const T* c) {
  if constexpr (std::is_same_v<T, float>) {
    return join<float, 8>(load<float8>(c), load<float8>(c + 64));
  } else {
    return widen_bf16<16>(join<uint16_t, 8>(load<half8>(c), load<half8>(c + 64)));
  }
}
template <typename T>
AIE_HOST_INLINE void store_sums(simd<float, 16> sums, T* c) {
  if constexpr (std::is_same_v<T, float>) {
    store(part<8, 0>(sums), c);
    store(part<8, 8>(sums), c + 64);
  } else {
    const auto narrow = narrow_bf16<16>(sums);
    store(part<8, 0>(narrow), c);
    store(part<8, 8>(narrow), c + 64);
  }
}

// Eight k of 16 * kV columns of a panel, in registers.
template <unsigned kV>
struct block_columns {
  __m512i low[kV], high[kV], begin[kV], unit[kV];

  AIE_HOST_INLINE explicit block_columns(const int32_t* panel) {
    const auto of_panel = [&](auto row, auto v) {
      return load<__m512i>(panel + row * kBlockPanel + int32_t(v.value) * 16);
    };
    unroll<kV>([&](auto v) {
      low[v.value] = of_panel(0, v);
      high[v.value] = of_panel(1, v);
      begin[v.value] = of_panel(2, v);
      unit[v.value] = of_panel(3, v);
    });
  }
  // sums += row `row` of a tile of A times these.
  AIE_HOST_INLINE void multiply(const uint8_t* a, int32_t row, simd<float, 16> (&sums)[kV]) const {
    const __m512i x = _mm512_set1_epi32(load<int32_t>(a + 8 * row));
    const __m512i y = _mm512_set1_epi32(load<int32_t>(a + 8 * row + 4));
    const __m512i exponent = _mm512_set1_epi32(load<int32_t>(a + 64 + 4 * row));
    unroll<kV>([&](auto v) {
      __m512i sum = _mm512_dpbusd_epi32(begin[v.value], x, low[v.value]);
      sum = _mm512_dpbusd_epi32(sum, y, high[v.value]);
      const auto units = (simd<float, 16>)_mm512_add_epi32(exponent, unit[v.value]);
      sums[v.value] += (simd<float, 16>)_mm512_cvtepi32_ps(sum) * units;
    });
  }
};

// c += A @ B for a row of tiles of A and 2 * kV columns of tiles. The tiles of C lie one after the
// other; those of the next row, if any, at `next`.
template <unsigned kV, typename T>
[[gnu::noinline]] inline void multiply_block_row(const uint8_t* a, const int32_t* panel,
                                                 int32_t depth, T* c, const T* next) {
  simd<float, 16> sums[8][kV];
  unroll<8>([&](auto i) {
    unroll<kV>([&](auto v) {
      sums[i.value][v.value] = load_sums(c + int32_t(i.value) * 8 + int32_t(v.value) * 128);
    });
  });
  if (next != nullptr) {
    for (uint32_t i = 0; i < 128 * kV; i += 64 / sizeof(T)) __builtin_prefetch(next + i, 1);
  }
  for (int32_t step = 0; step < depth; ++step, a += kBlockTile, panel += kBlockLanes) {
    const block_columns<kV> columns(panel);
    unroll<8>([&](auto i) { columns.multiply(a, int32_t(i.value), sums[i.value]); });
  }
  unroll<8>([&](auto i) {
    unroll<kV>([&](auto v) {
      store_sums(sums[i.value][v.value], c + int32_t(i.value) * 8 + int32_t(v.value) * 128);
    });
  });
}

// C += A @ B with A and the panels of B packed; m x k elements of A, `columns` tiles of C, an even
// number.
template <typename T>
inline void multiply_packed_blocks(const uint8_t* a, const int32_t* panel, T* c, int32_t m,
                                   int32_t k, int32_t columns) {
  constexpr int32_t kAcross = kBlockPanel / 8;
  const int32_t depth = k / 8, rows = m / 8;
  for (int32_t first = 0; first < columns; first += kAcross, panel += depth * kBlockLanes) {
    for (int32_t row = 0; row < rows; ++row) {
      T* const tiles = c + (row * columns + first) * 64;
      const T* const next = row + 1 < rows ? tiles + columns * 64 : nullptr;
      const uint8_t* const from = a + row * depth * kBlockTile;
      if (columns - first >= kAcross) {
        multiply_block_row<2>(from, panel, depth, tiles, next);
      } else {
        multiply_block_row<1>(from, panel, depth, tiles, next);
      }
    }
  }
}

// Packed operands of `count` elements of A, and of B of depth x columns tiles.
constexpr int64_t block_a_bytes(int64_t count) { return count / 64 * kBlockTile; }
constexpr int64_t block_b_lanes(int64_t depth, int64_t columns) {
  constexpr int64_t kAcross = kBlockPanel / 8;
  return (columns + kAcross - 1) / kAcross * depth * kBlockLanes;
}

}  // namespace host
AIE_HOST_END

#endif
