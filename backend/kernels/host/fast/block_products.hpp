// Products of bfp16: mantissas are multiplied as integers, which is exact and takes fewer
// instructions than floating point; the sum of a block, times its two units, is then added to C.
// Both of a block's units multiply by adding exponents. Operands: block_pack.hpp.
#pragma once

#include "block_pack.hpp"

#if __AIE_ARCH__ >= 21

AIE_HOST_BEGIN
namespace host {

// Rows and vectors of C whose sums stay in registers: with AVX-512's 32, beside columns of a panel;
// with 16, beside a row of A, and the panel is read from memory.
inline constexpr unsigned kSumRows = kSimdBytes == 64 ? 8 : 1;
inline constexpr unsigned kSumVectors = kBlockPanel / kLanes;

// Eight k of kLanes * kV columns of a panel.
template <unsigned kV>
struct block_columns {
  lanes mantissas[kV][kBlockMantissas], unit[kV];
#if defined(AIE_HOST_BYTE_BLOCKS)
  lanes begin[kV];
#endif

  AIE_HOST_INLINE explicit block_columns(const int32_t* panel) {
    const auto line = [&](int32_t number, auto v) {
      return load<lanes>(panel + number * kBlockPanel + int32_t(v.value * kLanes));
    };
    unroll<kV>([&](auto v) {
      unroll<kBlockMantissas>([&](auto q) { mantissas[v.value][q.value] = line(q.value, v); });
#if defined(AIE_HOST_BYTE_BLOCKS)
      begin[v.value] = line(kBlockMantissas, v);
#endif
      unit[v.value] = line(kBlockUnits, v);
    });
  }
  // sums += row `row` of a tile of A times these.
  AIE_HOST_INLINE void multiply(const block_packed* a, int32_t row, float_lanes (&sums)[kV]) const {
    lanes x[kBlockMantissas];
    unroll<kBlockMantissas>([&](auto q) {
      x[q.value] =
          splat<int32_t, kLanes>(load<int32_t>(a + 8 * row + int32_t(q.value) * kBlockPerLane));
    });
    const lanes exponent = splat<int32_t, kLanes>(load<int32_t>(a + 64 + kBlockPerLane * row));
    unroll<kV>([&](auto v) {
      const auto units = (float_lanes)(exponent + unit[v.value]);
      sums[v.value] += __builtin_convertvector(sum_of(v, x), float_lanes) * units;
    });
  }

 private:
  template <typename V>
  AIE_HOST_INLINE lanes sum_of(V v, const lanes (&x)[kBlockMantissas]) const {
    const lanes(&m)[kBlockMantissas] = mantissas[v.value];
#if defined(AIE_HOST_BYTE_BLOCKS)
    const auto sum = _mm512_dpbusd_epi32((__m512i)begin[v.value], (__m512i)x[0], (__m512i)m[0]);
    return (lanes)_mm512_dpbusd_epi32(sum, (__m512i)x[1], (__m512i)m[1]);
#else
    const auto product = [&](int i) { return i16_format::products(x[i], m[i]); };
    return (product(0) + product(1)) + (product(2) + product(3));
#endif
  }
};

// A row of C from `c` on, kLanes columns in tiles that follow each other, as sums and back.
template <typename T>
AIE_HOST_INLINE float_lanes load_sums(const T* c) {
  using element = typename block_element<T>::type;
  simd<element, kLanes> row;
  if constexpr (kLanes == 16) {
    row = join<element, 8>(load<simd<element, 8>>(c), load<simd<element, 8>>(c + 64));
  } else {
    row = load<simd<element, kLanes>>(c);
  }
  if constexpr (std::is_same_v<T, float>) {
    return row;
  } else {
    return widen_bf16<kLanes>(row);
  }
}
template <typename T>
AIE_HOST_INLINE void store_sums(float_lanes sums, T* c) {
  simd<typename block_element<T>::type, kLanes> row;
  if constexpr (std::is_same_v<T, float>) {
    row = sums;
  } else {
    row = narrow_bf16<kLanes>(sums);
  }
  if constexpr (kLanes == 16) {
    store(part<8, 0>(row), c);
    store(part<8, 8>(row), c + 64);
  } else {
    store(row, c);
  }
}

// c += A @ B for kSumRows rows from `row` on of a row of tiles of A, and kLanes * kV columns of a
// panel. The tiles of C lie one after the other; those of the next row, if they are to be fetched,
// at `next`.
template <unsigned kV, typename T>
[[gnu::noinline]] inline void multiply_block_row(const block_packed* a, int32_t row,
                                                 const int32_t* panel, int32_t depth, T* c,
                                                 const T* next) {
  if constexpr (kSumRows == 8) row = 0;  // as it is: now the compiler knows
  const auto of_c = [&](auto i, auto v) {
    constexpr int32_t kColumn = v.value * kLanes;
    return c + (row + int32_t(i.value)) * 8 + kColumn / 8 * 64 + kColumn % 8;
  };
  float_lanes sums[kSumRows][kV];
  unroll<kSumRows>(
      [&](auto i) { unroll<kV>([&](auto v) { sums[i.value][v.value] = load_sums(of_c(i, v)); }); });
  if (next != nullptr) {
    constexpr uint32_t kWhole = 8 * kLanes * kV;
    for (uint32_t i = 0; i < kWhole; i += 64 / sizeof(T)) __builtin_prefetch(next + i, 1);
  }
  for (int32_t step = 0; step < depth; ++step, a += kBlockTile, panel += kBlockLanes) {
    const block_columns<kV> columns(panel);
    unroll<kSumRows>([&](auto i) { columns.multiply(a, row + int32_t(i.value), sums[i.value]); });
  }
  unroll<kSumRows>(
      [&](auto i) { unroll<kV>([&](auto v) { store_sums(sums[i.value][v.value], of_c(i, v)); }); });
}

// C += A @ B with A and the panels of B packed; m x k elements of A, `columns` tiles of C, an even
// number.
template <typename T>
inline void multiply_packed_blocks(const block_packed* a, const int32_t* panel, T* c, int32_t m,
                                   int32_t k, int32_t columns) {
  const int32_t depth = k / 8;
  for (int32_t first = 0; first < columns; first += kBlockPanel / 8, panel += depth * kBlockLanes) {
    for (int32_t row = 0; row < m; row += kSumRows) {
      const block_packed* const from = a + row / 8 * depth * kBlockTile;
      T* const tiles = c + (row / 8 * columns + first) * 64;
      const T* const next = row % 8 == 0 && row + 8 < m ? tiles + columns * 64 : nullptr;
      if (columns - first >= kBlockPanel / 8) {
        multiply_block_row<kSumVectors>(from, row % 8, panel, depth, tiles, next);
      } else {  // half a panel
        multiply_block_row<kSumVectors / 2>(from, row % 8, panel, depth, tiles, next);
      }
    }
  }
}

}  // namespace host
AIE_HOST_END

#endif
