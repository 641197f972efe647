// Products of bfp16: mantissas are multiplied as integers, which is exact and takes fewer
// instructions than floating point; the sum of a block, times its two units, is then added to C.
// Both of a block's units multiply by adding exponents. Operands: block_pack.hpp.
#pragma once

#include "block_pack.hpp"

#if __AIE_ARCH__ >= 21

AIE_HOST_BEGIN
namespace host {

// Eight rows of so many vectors each of C stay in registers, of which AVX-512 has 32, others 16.
inline constexpr unsigned kBlockVectors = kSimdBytes == 64 ? 2 : 1;

// Eight k of kLanes * kV columns of a panel, in registers.
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

// c += A @ B for a row of tiles of A and kLanes * kV columns of a panel. The tiles of C lie one
// after the other; those of the next row, if they are to be fetched, at `next`.
template <unsigned kV, typename T>
[[gnu::noinline]] inline void multiply_block_row(const block_packed* a, const int32_t* panel,
                                                 int32_t depth, T* c, const T* next) {
  constexpr int32_t kVector = kLanes * 8;  // elements of C
  float_lanes sums[8][kV];
  unroll<8>([&](auto i) {
    unroll<kV>([&](auto v) {
      sums[i.value][v.value] = load_sums(c + int32_t(i.value) * 8 + int32_t(v.value) * kVector);
    });
  });
  if (next != nullptr) {
    constexpr uint32_t kWhole = kVector * kV < 64 ? 64 : kVector * kV;
    for (uint32_t i = 0; i < kWhole; i += 64 / sizeof(T)) __builtin_prefetch(next + i, 1);
  }
  for (int32_t step = 0; step < depth; ++step, a += kBlockTile, panel += kBlockLanes) {
    const block_columns<kV> columns(panel);
    unroll<8>([&](auto i) { columns.multiply(a, int32_t(i.value), sums[i.value]); });
  }
  unroll<8>([&](auto i) {
    unroll<kV>([&](auto v) {
      store_sums(sums[i.value][v.value], c + int32_t(i.value) * 8 + int32_t(v.value) * kVector);
    });
  });
}

// C += A @ B with A and the panels of B packed; m x k elements of A, `columns` tiles of C, an even
// number.
template <typename T>
inline void multiply_packed_blocks(const block_packed* a, const int32_t* panel, T* c, int32_t m,
                                   int32_t k, int32_t columns) {
  constexpr int32_t kWidth = kLanes * kBlockVectors;  // columns of a call
  const int32_t depth = k / 8, rows = m / 8;
  for (int32_t first = 0; first < columns * 8; first += kBlockPanel, panel += depth * kBlockLanes) {
    const int32_t end = first + kBlockPanel < columns * 8 ? first + kBlockPanel : columns * 8;
    for (int32_t row = 0; row < rows; ++row) {
      T* const of_row = c + row * columns * 64;
      const block_packed* const from = a + row * depth * kBlockTile;
      for (int32_t column = first; column < end; column += kWidth) {
        T* const tiles = of_row + column / 8 * 64 + column % 8;
        const bool last = row + 1 == rows || column % 8 != 0;  // or not a tile's begin
        const T* const next = last ? nullptr : tiles + columns * 64;
        const int32_t* const lines = panel + column % kBlockPanel;
        if (end - column >= kWidth) {
          multiply_block_row<kBlockVectors>(from, lines, depth, tiles, next);
        } else {
          multiply_block_row<1>(from, lines, depth, tiles, next);
        }
      }
    }
  }
}

}  // namespace host
AIE_HOST_END

#endif
