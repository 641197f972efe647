// Matrix multiplication of `fast` builds, in place of the loops of aie_kernels/matmul.cc: operands
// are packed once per call (pack.hpp), then blocks of kRows x kColumns of C stay in registers
// while k runs. Arithmetic: format.hpp.
#pragma once

#include "pack.hpp"

#define AIE_HOST_MATMUL aie::host::matmul

// Memory of this thread for packed operands, 64-byte aligned (backend/aie_host/core_state.cpp).
extern "C" void* npu_host_scratch(uint64_t bytes);

AIE_HOST_BEGIN
namespace host {

// 16 accumulators of 32 AVX-512 registers, 8 of 16 otherwise; the rest hold operands.
inline constexpr unsigned kRows = kSimdBytes == 64 ? 16 : 4;
inline constexpr unsigned kVectors = kSimdBytes == 64 ? 1 : 2;  // per row
inline constexpr unsigned kColumns = kVectors * kLanes;

template <typename Tile>
using format_for = typename format_of<typename Tile::element>::type;

// Accumulators of a block of C.
template <typename Format>
struct block {
  typename Format::vector rows[kRows][kVectors];
};

// sums += A @ B. a[i]: rows of A tiles, the i-th `Tile::r` rows of the block (or part of one);
// panel: lanes [depth * Q][kColumns].
template <typename Tile>
[[gnu::noinline]] inline void accumulate(const typename format_for<Tile>::packed* const* a,
                                         const int32_t* panel, int32_t depth,
                                         block<format_for<Tile>>& sums) {
  using Format = format_for<Tile>;
  using vector = typename Format::vector;
  constexpr unsigned kPerLane = Format::kPerLane, kQ = Tile::s / kPerLane;
  constexpr unsigned kTileRows = kRows < Tile::r ? 1 : kRows / Tile::r;
  const typename Format::packed* rows[kTileRows];
  unroll<kTileRows>([&](auto i) { rows[i.value] = a[i.value]; });
  block<Format> s = sums;
  for (int32_t step = 0; step < depth; ++step) {
    const auto a_lane = [&](auto row, auto q) {
      const auto* p = rows[row.value / Tile::r] + row.value % Tile::r * Tile::s;
      return load<int32_t>(p + q.value * kPerLane);
    };
    const auto b_lanes = [&](auto q, auto v) {
      return load<lanes>(panel + q.value * kColumns + v.value * kLanes);
    };
    if constexpr (Tile::kBlockFloat) {  // the sum over a block is exact, then added
      unroll<kRows>([&](auto i) {
        vector block_sum[kVectors] = {};
        unroll<kQ>([&](auto q) {
          const int32_t x = a_lane(i, q);
          unroll<kVectors>([&](auto v) {
            block_sum[v.value] = Format::dot(block_sum[v.value], x, b_lanes(q, v));
          });
        });
        unroll<kVectors>([&](auto v) { s.rows[i.value][v.value] += block_sum[v.value]; });
      });
    } else {
      unroll<kQ>([&](auto q) {
        lanes b[kVectors];
        unroll<kVectors>([&](auto v) { b[v.value] = b_lanes(q, v); });
        unroll<kRows>([&](auto i) {
          const int32_t x = a_lane(i, q);
          unroll<kVectors>([&](auto v) {
            s.rows[i.value][v.value] = Format::dot(s.rows[i.value][v.value], x, b[v.value]);
          });
        });
      });
    }
    unroll<kTileRows>([&](auto i) { rows[i.value] += Tile::r * Tile::s; });
    panel += kQ * kColumns;
  }
  sums = s;
}

// The C tiles that a block covers; tiles outside the matrix are a scratch tile that nobody reads.
template <typename Tile, typename T>
struct block_tiles {
  static constexpr unsigned kDown = kRows < Tile::r ? 1 : kRows / Tile::r;
  static constexpr unsigned kAcross = kColumns / Tile::t;
  using element = storage<T>;

  element* tiles[kDown][kAcross];

  // Columns First ... First + N - 1 of one row.
  template <unsigned N, unsigned First>
  AIE_HOST_INLINE simd<element, N> get(unsigned row) const {
    if constexpr (N <= Tile::t) {
      return load<simd<element, N>>(at<First>(row));
    } else {
      return join<element, N / 2>(get<N / 2, First>(row), get<N / 2, First + N / 2>(row));
    }
  }
  template <unsigned N, unsigned First>
  AIE_HOST_INLINE void set(simd<element, N> v, unsigned row) const {
    if constexpr (N <= Tile::t) {
      store(v, at<First>(row));
    } else {
      set<N / 2, First>(part<N / 2, 0>(v), row);
      set<N / 2, First + N / 2>(part<N / 2, N / 2>(v), row);
    }
  }

 private:
  template <unsigned Column>
  AIE_HOST_INLINE element* at(unsigned row) const {
    return tiles[row / Tile::r][Column / Tile::t] + row % Tile::r * Tile::t + Column % Tile::t;
  }
};

template <typename Tile, typename TOut>
[[gnu::noinline]] inline void load_block(const block_tiles<Tile, TOut>& c, int shift,
                                         const lanes* excess, block<format_for<Tile>>& sums) {
  for (unsigned i = 0; i < kRows; ++i) {
    unroll<kVectors>([&](auto v) {
      constexpr unsigned kFirst = decltype(v)::value * kLanes;
      auto x = widen<TOut, kLanes>(c.template get<kLanes, kFirst>(i), shift);
      if constexpr (kOffset<typename Tile::element> != 0) x -= excess[v.value];
      sums.rows[i][v.value] = x;
    });
  }
}

template <typename Tile, typename TOut>
[[gnu::noinline]] inline void store_block(const block_tiles<Tile, TOut>& c, int shift,
                                          const block<format_for<Tile>>& sums) {
  for (unsigned i = 0; i < kRows; ++i) {
    unroll<kVectors>([&](auto v) {
      constexpr unsigned kFirst = decltype(v)::value * kLanes;
      c.template set<kLanes, kFirst>(narrow<TOut, kLanes>(sums.rows[i][v.value], shift), i);
    });
  }
}

// What A's offset adds to every element of a panel's columns.
template <typename Tile>
AIE_HOST_INLINE void offset_sums(const int32_t* panel, int32_t depth, lanes* excess) {
  using Format = format_for<Tile>;
  constexpr unsigned kQ = Tile::s / Format::kPerLane;
  for (int32_t q = 0; q < depth * static_cast<int32_t>(kQ); ++q) {
    unroll<kVectors>([&](auto v) {
      const lanes b = load<lanes>(panel + q * static_cast<int32_t>(kColumns) + v.value * kLanes);
      excess[v.value] = Format::dot(excess[v.value], static_cast<int32_t>(0x80808080), b);
    });
  }
}

// C += A @ B for the tiled layouts of mmul_block.h. False, with C untouched, for bfp16 operands
// that are too large or small for floating point to be exact.
template <typename Tile, bool kColumnMajor, typename TOut>
inline bool matmul(const typename Tile::element* a, const typename Tile::element* b, TOut* c,
                   int32_t m, int32_t k, int32_t n, int32_t shift) {
  using T = typename Tile::element;
  using Format = format_for<Tile>;
  using packed = typename Format::packed;
  using tiles = block_tiles<Tile, TOut>;
  constexpr int32_t kR = Tile::r, kT = Tile::t, kC = Tile::r * Tile::t;
  constexpr int32_t kAcross = tiles::kAcross, kStep = static_cast<int32_t>(kRows);
  const int32_t depth = k / static_cast<int32_t>(Tile::s), columns = n / kT;
  const int32_t panels = (columns + kAcross - 1) / kAcross;
  const int64_t panel_lanes = int64_t{k} / Format::kPerLane * kColumns;

  auto* panel = static_cast<int32_t*>(npu_host_scratch(
      static_cast<uint64_t>(panels * panel_lanes * 4 + int64_t{m} * k * int64_t{sizeof(packed)})));
  auto* const a_out = reinterpret_cast<packed*>(panel + panels * panel_lanes);
  const packed* const a_packed = pack_a<T, Tile::kBlockFloat>(a, int64_t{m} * k, a_out);
  if (!pack_b<Tile, kColumnMajor, kColumns, packed>(b, depth, columns, panel)) return false;
  if (a_packed == nullptr) return false;

  alignas(64) storage<TOut> nowhere[kC] = {};
  for (int32_t first = 0; first < columns; first += kAcross, panel += panel_lanes) {
    lanes excess[kVectors] = {};
    if constexpr (kOffset<T> != 0) offset_sums<Tile>(panel, depth, excess);
    for (int32_t row = 0; row < m; row += kStep) {
      tiles block_c;
      const packed* rows[tiles::kDown];
      for (int32_t i = 0; i < static_cast<int32_t>(tiles::kDown); ++i) {
        const int32_t tile_row = row / kR + i, inside = row % kR;
        const bool exists = tile_row * kR < m;
        rows[i] =
            a_packed + (exists ? tile_row * kR * k + inside * static_cast<int32_t>(Tile::s) : 0);
        for (int32_t j = 0; j < kAcross; ++j) {
          const bool both = exists && first + j < columns;
          block_c.tiles[i][j] = both ? reinterpret_cast<storage<TOut>*>(c) +
                                           (tile_row * columns + first + j) * kC + inside * kT
                                     : nowhere;
        }
      }
      block<Format> sums;
      load_block<Tile, TOut>(block_c, shift, excess, sums);
      accumulate<Tile>(rows, panel, depth, sums);
      store_block<Tile, TOut>(block_c, shift, sums);
    }
  }
  return true;
}

}  // namespace host
AIE_HOST_END
