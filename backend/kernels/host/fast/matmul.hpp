// Matrix multiplication of `fast` builds, in place of the loops of aie_kernels/matmul.cc: operands
// are packed once per call (pack.hpp), then blocks of kRows x kColumns of C stay in registers
// while k runs. Arithmetic: format.hpp.
#pragma once

#include "block_products.hpp"
#include "byte_products.hpp"
#include "pack.hpp"

#define AIE_HOST_MATMUL aie::host::matmul

// Memory for a packed operand (0: A, 1: B), 64-byte aligned, in which `found` tells whether the
// operand lies there already: 0 no, 1 yes, -1 no, and `form` cannot pack it. Whoever fills it says
// when that is done, and whether it worked (backend/kernels/host/core_state.cpp).
extern "C" void* npu_host_pack_begin(uint32_t operand, const void* form, int64_t shape,
                                     uint64_t bytes, int* found);
extern "C" void npu_host_pack_end(uint32_t operand, int good);

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
    unroll<kQ>([&](auto q) {
      lanes b[kVectors];
      unroll<kVectors>([&](auto v) { b[v.value] = b_lanes(q, v); });
      unroll<kRows>([&](auto i) {
        const int32_t x = a_lane(i, q);
        unroll<kVectors>([&](auto v) {
          vector& sum = s.rows[i.value][v.value];
          sum = Format::dot(sum, x, b[v.value]);
        });
      });
    });
    unroll<kTileRows>([&](auto i) { rows[i.value] += Tile::r * Tile::s; });
    panel += kQ * kColumns;
  }
  sums = s;
}

// The C tiles that a block covers: accumulators, or the bits of bf16.
template <typename Tile, typename T>
struct block_tiles {
  static constexpr unsigned kDown = kRows < Tile::r ? 1 : kRows / Tile::r;
  static constexpr unsigned kAcross = kColumns / Tile::t;

  T* tiles[kDown][kAcross];

  // Columns First ... First + N - 1 of one row.
  template <unsigned N, unsigned First>
  AIE_HOST_INLINE simd<T, N> get(unsigned row) const {
    if constexpr (N <= Tile::t) {
      return load<simd<T, N>>(at<First>(row));
    } else {
      return join<T, N / 2>(get<N / 2, First>(row), get<N / 2, First + N / 2>(row));
    }
  }
  template <unsigned N, unsigned First>
  AIE_HOST_INLINE void set(simd<T, N> v, unsigned row) const {
    if constexpr (N <= Tile::t) {
      store(v, at<First>(row));
    } else {
      set<N / 2, First>(part<N / 2, 0>(v), row);
      set<N / 2, First + N / 2>(part<N / 2, N / 2>(v), row);
    }
  }

 private:
  template <unsigned Column>
  AIE_HOST_INLINE T* at(unsigned row) const {
    return tiles[row / Tile::r][Column / Tile::t] + row % Tile::r * Tile::t + Column % Tile::t;
  }
};

template <typename Tile, typename T>
AIE_HOST_INLINE void load_block(const block_tiles<Tile, T>& c, const lanes* excess,
                                block<format_for<Tile>>& sums) {
  for (unsigned i = 0; i < kRows; ++i) {
    unroll<kVectors>([&](auto v) {
      constexpr unsigned kFirst = decltype(v)::value * kLanes;
      const auto x = c.template get<kLanes, kFirst>(i);
      if constexpr (sizeof(T) == 2) {
        sums.rows[i][v.value] = widen_bf16<kLanes>(x);
      } else if constexpr (kOffset<typename Tile::element> != 0) {
        sums.rows[i][v.value] = x - excess[v.value];
      } else {
        sums.rows[i][v.value] = x;
      }
    });
  }
}

template <typename Tile, typename T>
AIE_HOST_INLINE void store_block(const block_tiles<Tile, T>& c,
                                 const block<format_for<Tile>>& sums) {
  for (unsigned i = 0; i < kRows; ++i) {
    unroll<kVectors>([&](auto v) {
      constexpr unsigned kFirst = decltype(v)::value * kLanes;
      if constexpr (sizeof(T) == 2) {
        c.template set<kLanes, kFirst>(narrow_bf16<kLanes>(sums.rows[i][v.value]), i);
      } else {
        c.template set<kLanes, kFirst>(sums.rows[i][v.value], i);
      }
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

// One block of C: rows `row` on, C tiles from column `first` on; tiles outside the matrix are
// scratch. int8 and int16 C is widened for the block and narrowed after it.
template <typename Tile, typename TOut>
AIE_HOST_INLINE void multiply_block(const typename format_for<Tile>::packed* a,
                                    const int32_t* panel, const lanes* excess, TOut* c, int32_t m,
                                    int32_t k, int32_t columns, int32_t row, int32_t first,
                                    [[maybe_unused]] int32_t shift) {
  using Format = format_for<Tile>;
  using element = typename block_element<TOut>::type;
  using tiles = block_tiles<Tile, element>;
  constexpr bool kWiden = sizeof(element) != sizeof(TOut);
  constexpr int32_t kR = Tile::r, kS = Tile::s, kT = Tile::t, kC = Tile::r * Tile::t;
  constexpr int32_t kAcross = tiles::kAcross, kDown = tiles::kDown;
  // What the block has of a tile: whole rows, which are contiguous.
  constexpr int32_t kPart = (kRows < Tile::r ? kRows : Tile::r) * Tile::t;
  alignas(64) element local[kDown][kAcross][kPart];
  TOut* in_memory[kDown][kAcross];
  tiles block_c;
  const typename Format::packed* rows[kDown];
  for (int32_t i = 0; i < kDown; ++i) {
    const int32_t tile_row = row / kR + i, inside = row % kR;
    const bool exists = tile_row * kR < m;
    rows[i] = exists ? a + tile_row * kR * k + inside * kS : a;
    for (int32_t j = 0; j < kAcross; ++j) {
      TOut* const tile = exists && first + j < columns
                             ? c + (tile_row * columns + first + j) * kC + inside * kT
                             : nullptr;
      in_memory[i][j] = tile;
      block_c.tiles[i][j] = local[i][j];
      if (tile == nullptr) {
        __builtin_memset(local[i][j], 0, sizeof local[i][j]);
      } else if constexpr (kWiden) {
        widen_c<kPart>(tile, shift, local[i][j]);
      } else {
        block_c.tiles[i][j] = reinterpret_cast<element*>(tile);
      }
    }
  }
  // The C tiles below, which the next block needs, are in the second cache by now.
  for (int32_t i = 0; i < kDown; ++i) {
    for (int32_t j = 0; j < kAcross; ++j) {
      const auto* next = reinterpret_cast<const char*>(in_memory[i][j] + kDown * columns * kC);
      if (in_memory[i][j] == nullptr || row + kDown * kR >= m) continue;
      for (unsigned line = 0; line < kPart * sizeof(TOut); line += 64) {
        __builtin_prefetch(next + line, 1);
      }
    }
  }
  block<Format> sums;
  load_block(block_c, excess, sums);
  accumulate<Tile>(rows, panel, k / kS, sums);
  store_block(block_c, sums);
  if constexpr (kWiden) {
    for (int32_t i = 0; i < kDown; ++i) {
      for (int32_t j = 0; j < kAcross; ++j) {
        if (in_memory[i][j] != nullptr) narrow_c<kPart>(local[i][j], shift, in_memory[i][j]);
      }
    }
  }
}

// C += A @ B with A and the panels of B packed.
template <typename Tile, typename TOut>
[[gnu::noinline]] inline void multiply(const typename format_for<Tile>::packed* a,
                                       const int32_t* panel, TOut* c, int32_t m, int32_t k,
                                       int32_t columns, int32_t shift) {
  constexpr int32_t kAcross = kColumns / Tile::t, kStep = kRows;
  for (int32_t first = 0; first < columns; first += kAcross) {
    lanes excess[kVectors] = {};
    if constexpr (kOffset<typename Tile::element> != 0) {
      offset_sums<Tile>(panel, k / static_cast<int32_t>(Tile::s), excess);
    }
    for (int32_t row = 0; row < m; row += kStep) {
      multiply_block<Tile>(a, panel, excess, c, m, k, columns, row, first, shift);
    }
    panel += k / static_cast<int32_t>(format_for<Tile>::kPerLane) * static_cast<int32_t>(kColumns);
  }
}

// The packed form of an operand, from `pack(out)` if nobody has made it; null if it has none, which
// `pack` says by returning false.
template <typename TPacked, typename Pack>
AIE_HOST_INLINE const TPacked* packed_operand(uint32_t operand, const void* form, int64_t shape,
                                              int64_t bytes, Pack&& pack) {
  int found = 0;
  void* const out = npu_host_pack_begin(operand, form, shape, static_cast<uint64_t>(bytes), &found);
  auto* const to = static_cast<TPacked*>(out);
  if (found == 0) {
    found = pack(to) ? 1 : -1;
    npu_host_pack_end(operand, found > 0);
  }
  return found > 0 ? to : nullptr;
}

#if __AIE_ARCH__ >= 21
// The packed forms of a product of bfp16 (block_products.hpp); null: as packed_operand().
template <auto kTile, typename T>
inline const block_packed* block_a(const T* a, int64_t count) {
  constexpr auto kPack = &pack_block_a<kTile, T>;
  return packed_operand<block_packed>(0, reinterpret_cast<const void*>(kPack), count,
                                      block_a_elements(count) * int64_t{sizeof(block_packed)},
                                      [&](block_packed* out) { return kPack(a, count, out); });
}
template <auto kTile, bool kColumnMajor, typename T>
inline const int32_t* block_b(const T* b, int32_t depth, int32_t columns) {
  constexpr auto kPack = &pack_block_b<kTile, kColumnMajor, T>;
  return packed_operand<int32_t>(1, reinterpret_cast<const void*>(kPack),
                                 int64_t{depth} << 32 | columns, block_b_lanes(depth, columns) * 4,
                                 [&](int32_t* out) { return kPack(b, depth, columns, out); });
}

// matmul() of bf16 that is rounded to bfp16.
template <bool kColumnMajor, typename TOut>
inline bool matmul_blocks(const bfloat16* a, const bfloat16* b, TOut* c, int32_t m, int32_t k,
                          int32_t n) {
  constexpr auto kTileOfB = kColumnMajor ? &tile_by_rows : &tile_by_columns;
  const block_packed* const a_in = block_a<&tile_by_rows>(a, int64_t{m} * k);
  const int32_t* const b_in = block_b<kTileOfB, kColumnMajor>(b, k / 8, n / 8);
  if (a_in == nullptr || b_in == nullptr) return false;
  multiply_packed_blocks(a_in, b_in, c, m, k, n / 8);
  return true;
}
#endif

// matmul() of elements that are multiplied as they are.
template <typename Tile, bool kColumnMajor, typename TOut>
inline void matmul_tiles(const typename Tile::element* a, const typename Tile::element* b, TOut* c,
                         int32_t m, int32_t k, int32_t n, int32_t shift) {
  using Format = format_for<Tile>;
  using packed = typename Format::packed;
  constexpr int64_t kPanelColumns = kColumns;
  const int64_t a_count = int64_t{m} * k;
  const int64_t panels = (n + kPanelColumns - 1) / kPanelColumns;
  const int64_t b_lanes = panels * kPanelColumns * k / Format::kPerLane;
  const int32_t depth = k / static_cast<int32_t>(Tile::s);
  const int32_t columns = n / static_cast<int32_t>(Tile::t);
  const auto form_of = [](auto pack) { return reinterpret_cast<const void*>(pack); };
  using T = typename Tile::element;
  const packed* a_in;
  if constexpr (kPackedAsIs<T, packed>) {
    a_in = reinterpret_cast<const packed*>(a);
  } else {
    a_in = packed_operand<packed>(0, form_of(&pack_a<T, packed>), a_count,
                                  a_count * int64_t{sizeof(packed)}, [&](packed* out) {
                                    pack_a(a, a_count, out);
                                    return true;
                                  });
  }
  const auto packed_b = [&](auto pack, int64_t lanes_of_b) {
    return packed_operand<int32_t>(1, form_of(pack), int64_t{depth} << 32 | columns, lanes_of_b * 4,
                                   [&](int32_t* out) {
                                     pack(b, depth, columns, out);
                                     return true;
                                   });
  };
#ifdef AIE_HOST_BYTE_PRODUCTS
  if constexpr (std::is_same_v<T, int8_t> && std::is_same_v<TOut, int32_t>) {
    const int32_t* const panels_of_b = packed_b(&pack_byte_b<Tile, kColumnMajor>, byte_lanes(k, n));
    return multiply_bytes<Tile>(a_in, panels_of_b, c, m, k, columns);
  }
#endif
  const int32_t* const b_in = packed_b(&pack_b<Tile, kColumnMajor, kColumns, packed>, b_lanes);
  multiply<Tile>(a_in, b_in, c, m, k, columns, shift);
}

// C += A @ B for the tiled layouts of mmul_block.h. False, with C untouched, for bfp16 operands
// that are too large or small for sums of blocks to be exact.
template <typename Tile, bool kColumnMajor, typename TOut>
inline bool matmul(const typename Tile::element* a, const typename Tile::element* b, TOut* c,
                   int32_t m, int32_t k, int32_t n, int32_t shift) {
#if __AIE_ARCH__ >= 21
  if constexpr (Tile::kBlockFloat) {
    return matmul_blocks<kColumnMajor>(a, b, c, m, k, n);
  } else
#endif
  {
    matmul_tiles<Tile, kColumnMajor>(a, b, c, m, k, n, shift);
    return true;
  }
}

}  // namespace host
AIE_HOST_END
