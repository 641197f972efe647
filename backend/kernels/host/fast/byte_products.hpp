// Products of int8 with sums in int32 on CPUs with AVX512_VNNI: 8 rows x 32 columns of C stay in
// registers while k runs, and go there and back without a copy. Arithmetic: format.hpp.
#pragma once

#include "pack.hpp"

#if defined(__AVX512VNNI__)

#define AIE_HOST_BYTE_PRODUCTS

AIE_HOST_BEGIN
namespace host {

inline constexpr int32_t kBytePanel = 32;  // columns

// Lanes of B's panels, behind which what A's offset adds to every column lies.
constexpr int64_t byte_panels(int64_t columns) { return (columns + kBytePanel - 1) / kBytePanel; }
constexpr int64_t byte_lanes(int64_t k, int64_t columns) {
  return byte_panels(columns) * kBytePanel * (k / 4 + 1);
}

// B of depth x columns tiles.
template <typename Tile, bool kColumnMajor>
[[gnu::noinline]] inline void pack_byte_b(const int8_t* b, int32_t depth, int32_t columns,
                                          int32_t* out) {
  pack_b<Tile, kColumnMajor, kBytePanel, int8_t>(b, depth, columns, out);
  const int64_t panels = byte_panels(columns * static_cast<int32_t>(Tile::t));
  const int32_t rows = depth * static_cast<int32_t>(Tile::s) / 4;  // of lanes
  int32_t* excess = out + panels * kBytePanel * rows;
  for (const int32_t* end = excess; out < end; excess += kBytePanel) {
    __m512i sums[2] = {};
    for (int32_t row = 0; row < rows; ++row, out += kBytePanel) {
      unroll<2>([&](auto v) {
        const auto x = load<__m512i>(out + v.value * 16);
        sums[v.value] = _mm512_dpbusd_epi32(sums[v.value], _mm512_set1_epi8(-128), x);
      });
    }
    unroll<2>([&](auto v) { store(sums[v.value], excess + v.value * 16); });
  }
}

// C += A @ B for 8 rows and 16 kV columns. Rows of A and tiles of C lie in groups of Tile::r, the
// distance of which is given in elements; those below of C, if any, at `next`.
template <typename Tile, unsigned kV>
[[gnu::noinline]] inline void multiply_byte_rows(const int8_t* a, int64_t below_a,
                                                 const int32_t* panel, const int32_t* excess,
                                                 int32_t depth, int32_t* c, int64_t below_c,
                                                 const int32_t* next) {
  static_assert(Tile::s == 8 && Tile::t == 8 && 8 % Tile::r == 0);
  constexpr int32_t kR = Tile::r, kTile = kR * 8;
  const auto of_c = [&](auto i, auto v) {
    return c + int32_t(i.value) / kR * below_c + int32_t(i.value) % kR * 8 +
           int32_t(v.value) * 2 * kTile;
  };
  using half = simd<int32_t, 8>;
  using sum = simd<int32_t, 16>;
  sum sums[8][kV];
  unroll<8>([&](auto i) {
    unroll<kV>([&](auto v) {
      const int32_t* const from = of_c(i, v);
      sums[i.value][v.value] = join<int32_t, 8>(load<half>(from), load<half>(from + kTile)) -
                               load<sum>(excess + v.value * 16);
    });
  });
  if (next != nullptr) {  // in the second cache by now
    unroll<8 / kR>([&](auto group) {
      const int32_t* const tiles = next + int32_t(group.value) * below_c;
      for (int32_t i = 0; i < 2 * int32_t(kV) * kTile; i += 16) __builtin_prefetch(tiles + i, 1);
    });
  }
  for (int32_t step = 0; step < depth; ++step, a += kTile) {
    unroll<2>([&](auto q) {
      __m512i b[kV];
      unroll<kV>([&](auto v) { b[v.value] = load<__m512i>(panel + v.value * 16); });
      unroll<8>([&](auto i) {
        const int8_t* const row = a + int32_t(i.value) / kR * below_a + int32_t(i.value) % kR * 8;
        const __m512i x = _mm512_set1_epi32(load<int32_t>(row + 4 * q.value));
        unroll<kV>([&](auto v) {
          sum& to = sums[i.value][v.value];
          to = (sum)_mm512_dpbusd_epi32((__m512i)to, x, b[v.value]);
        });
      });
      panel += kBytePanel;
    });
  }
  unroll<8>([&](auto i) {
    unroll<kV>([&](auto v) {
      store(part<8, 0>(sums[i.value][v.value]), of_c(i, v));
      store(part<8, 8>(sums[i.value][v.value]), of_c(i, v) + kTile);
    });
  });
}

// C += A @ B with A and the panels of B packed; m a multiple of 8, `columns` tiles of C, an even
// number.
template <typename Tile>
inline void multiply_bytes(const int8_t* a, const int32_t* panel, int32_t* c, int32_t m, int32_t k,
                           int32_t columns) {
  constexpr int32_t kAcross = kBytePanel / 8, kR = Tile::r;
  const int32_t depth = k / 8, rows = k / 4;  // of lanes
  const int32_t* excess = panel + byte_panels(columns * 8) * kBytePanel * rows;
  const int64_t below_a = int64_t{k} * kR, below_c = int64_t{columns} * 8 * kR;
  for (int32_t first = 0; first < columns; first += kAcross) {
    for (int32_t row = 0; row < m; row += 8) {
      int32_t* const tiles = c + row / kR * below_c + first * 8 * kR;
      const int32_t* const next = row + 8 < m ? tiles + 8 / kR * below_c : nullptr;
      const int8_t* const from = a + row / kR * below_a;
      if (columns - first >= kAcross) {
        multiply_byte_rows<Tile, 2>(from, below_a, panel, excess, depth, tiles, below_c, next);
      } else {
        multiply_byte_rows<Tile, 1>(from, below_a, panel, excess, depth, tiles, below_c, next);
      }
    }
    panel += rows * kBytePanel;
    excess += kBytePanel;
  }
}

}  // namespace host
AIE_HOST_END

#endif
