// The sums of prefill_product.cc before and after a product: zeros, factors of rows, pieces of
// results.
#pragma once

#include <stdint.h>

#include <aie_api/aie.hpp>

#include "fp32.h"
#include "kernel.h"
#include "prefill_job.h"
#include "prefill_product_multiply.h"

namespace {
namespace prefill_product {

constexpr int32_t kPieceRows = kRows;
constexpr int32_t kTileRows = Tile::r, kTileElements = Tile::r * Tile::t;
constexpr int32_t kQuad = 4;  // rows of a vector of fp32

inline void clear_sums(float* sums, int32_t count) {
  NPU_ROLLED for (; count > 0; count -= 16, sums += 16) {
    aie::store_v(sums, aie::zeros<float, 16>());
  }
}
inline void clear(float* store, float* tail, int32_t m, int32_t n) {
  if constexpr (kTailSums == 0) return clear_sums(store, m * n);
  NPU_ROLLED for (int32_t row = 0; row < m; row += kRows) {
    clear_sums(sums_at(store, tail, row, n), kRows * n);
  }
}

// Rows times their factors, kQuad rows of a tile at a time: a row of tiles has 8 `blocks` such
// vectors, the quads of its rows in turn.
inline void scale(const bfloat16* __restrict a, float* __restrict store, float* __restrict tail,
                  int32_t m, int32_t blocks) {
  using npu::fp32::kStep, npu::fp32::Step;
  static_assert(kStep == kQuad * Tile::t && kRowBlock * kTileRows == 8 * kStep);
  constexpr int32_t kQuads = kTileRows / kQuad;  // of a tile
  const auto* const bytes = reinterpret_cast<const uint8_t*>(a);
  NPU_ROLLED for (int32_t row = 0; row < m; row += kTileRows) {
    const auto* const rows = reinterpret_cast<const float*>(bytes + (row >> 3) * kOperandBytes);
    float* sums = sums_at(store, tail, row, blocks * kRowBlock);
    NPU_ROLLED for (int32_t i = 0; i < 8 * blocks; ++i, sums += kStep) {
      const float* const factors = rows + ((row + i % kQuads * kQuad) & 4);
      Step f;
      for (unsigned y = 0; y < kQuad; ++y) {
        f.template insert<Tile::t>(y, aie::broadcast<float, Tile::t>(factors[y]));
      }
      aie::store_v(sums, npu::fp32::product(aie::load_v<kStep>(sums), f));
    }
  }
}

// Eight columns of a row of tiles, row by row, in bf16.
inline auto eight_columns(const float* sums) {
  constexpr unsigned kElements = kTileRows * 8;
  const auto tiles =
      aie::accum<accfloat, kElements>(aie::load_v<kElements>(sums)).template to_vector<bfloat16>();
  if constexpr (Tile::t == 8) {
    return tiles;
  } else {
    const auto zipped =
        aie::interleave_zip(tiles.template extract<16>(0), tiles.template extract<16>(1), 4);
    return aie::concat(zipped.first, zipped.second);
  }
}

// 8 rows of 32 columns, in rows of tiles of `across` elements, as [8][32].
inline void rounded_piece(const float* __restrict sums, bfloat16* __restrict out, int32_t across) {
  constexpr int32_t kEight = kTileRows * 8;
  aie::set_rounding(aie::rounding_mode::conv_even);
  NPU_ROLLED for (int32_t row = 0; row < kPieceRows; row += kTileRows, sums += across) {
    const auto left = aie::interleave_zip(eight_columns(sums), eight_columns(sums + kEight), 8);
    const auto right =
        aie::interleave_zip(eight_columns(sums + 2 * kEight), eight_columns(sums + 3 * kEight), 8);
    const auto upper = aie::interleave_zip(left.first, right.first, 16);
    const auto lower = aie::interleave_zip(left.second, right.second, 16);
    aie::store_v(out, upper.first);
    aie::store_v(out + kEight, upper.second);
    aie::store_v(out + 2 * kEight, lower.first);
    aie::store_v(out + 3 * kEight, lower.second);
    out += kTileRows * kRowBlock;
  }
}

// Of a row-block's 32 columns of a row of tiles, the last row.
inline void last_row(const float* tiles, float* out) {
  tiles += (kTileRows - 1) * Tile::t;
  for (int32_t x = 0; x < kSlice; x += Tile::t, tiles += kTileElements) {
    aie::store_v(out + x, aie::load_v<Tile::t>(tiles));
  }
}

// 8 rows of a row-block, number after number [row-block][m / 8], rounded; or if `lines` is 1, of
// the last of every 8 rows kWideLines lines in fp32, and zeros behind the last one.
inline void piece(const float* store, const float* tail, int32_t* out, int32_t m, int32_t blocks,
                  int32_t number, bool lines) {
  static_assert(kMaxBlocks == 2);  // so that nothing is divided
  const int32_t across = blocks * (kRowBlock * kTileRows);
  int32_t row = number * kPieceRows * (lines ? kWideLines : 1);
  NPU_ROLLED for (int32_t line = 0; line < kWideLines; ++line, row += kPieceRows) {
    const int32_t second = row < m ? 0 : 1, of_block = row - (m & -second);
    const int32_t first = of_block + (lines ? kPieceRows - kTileRows : 0);
    const float* sums =
        sums_at(store, tail, first, blocks * kRowBlock) + second * (kTileRows * kRowBlock);
    if (!lines) return rounded_piece(sums, reinterpret_cast<bfloat16*>(out), across);
    auto* const to = reinterpret_cast<float*>(out) + line * kSlice;
    if (row < m * blocks) {
      last_row(sums, to);
    } else {
      for (int32_t x = 0; x < kSlice; x += 16) aie::store_v(to + x, aie::zeros<float, 16>());
    }
  }
}

}  // namespace prefill_product
}  // namespace
