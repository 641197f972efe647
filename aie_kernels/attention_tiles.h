// The products of attention on a core: tiles of aie::mmul made in registers from rows in memory;
// included by attention.cc and prefill_attention.cc.
//
// Scores are computed transposed, keys times queries, so that a vector has a row of queries in each
// lane and maxima and sums need no reduction. Rows are padded to blocks of eight. Memory:
//   q        [block][head_dim / 8][8 dims][8 rows]; npu1: two halves of [8 dims][4 rows]
//   scores   [block][position][8 rows]
//   weights  [block][positions / 8][8 rows][8 positions]
//   y        [block][head_dim / kColumns][8 rows][kColumns]
#pragma once

#include <stdint.h>

#include <aie_api/aie.hpp>

#include "kernel.h"

namespace {
namespace attention_tiles {

constexpr int32_t kBlock = 8;  // rows of queries
constexpr int32_t kWide = 32;  // elements of a row that are loaded at once
constexpr uint32_t kColumns = __AIE_ARCH__ == 20 ? 4 : 8;  // of a tile of aie::mmul
using Mmul = aie::mmul<4, 8, kColumns, bfloat16, bfloat16>;
constexpr uint32_t kTile = 4 * kColumns, kOperand = 8 * kColumns;  // elements of C and of B
constexpr uint32_t kAcross = 8 / kColumns;                         // tiles of eight columns

using Part = aie::vector<bfloat16, 32>;
using Tile = aie::vector<bfloat16, 64>;

template <typename T, unsigned N>
inline aie::vector<T, 2 * N> zipped(const aie::vector<T, N>& a, const aie::vector<T, N>& b,
                                    unsigned chunk) {
  const auto both = aie::interleave_zip(a, b, chunk);
  return aie::concat(both.first, both.second);
}

// Eight rows of 32 as tiles of eight rows and kChunk columns, one after the other; kChunk 1:
// transposed.
template <unsigned kChunk>
inline void regroup(const Part (&rows)[8], Tile (&out)[4]) {
  const auto left = aie::interleave_zip(zipped(rows[0], rows[1], kChunk),
                                        zipped(rows[2], rows[3], kChunk), 2 * kChunk);
  const auto right = aie::interleave_zip(zipped(rows[4], rows[5], kChunk),
                                         zipped(rows[6], rows[7], kChunk), 2 * kChunk);
  const auto upper = aie::interleave_zip(left.first, right.first, 4 * kChunk);
  const auto lower = aie::interleave_zip(left.second, right.second, 4 * kChunk);
  out[0] = upper.first, out[1] = upper.second, out[2] = lower.first, out[3] = lower.second;
}

template <unsigned kChunk>
inline void load_tiles(const bfloat16* from, int32_t stride, Tile (&out)[4]) {
  Part rows[8];
  for (int32_t i = 0; i < 8; ++i) rows[i] = aie::load_v<32>(from + i * stride);
  regroup<kChunk>(rows, out);
}

// Eight rows of q, `dim` long, to its tiles.
inline void pack_block(const bfloat16* rows, int32_t dim, bfloat16* out) {
  for (int32_t c = 0; c < dim; c += kWide, out += kBlock * kWide) {
    if constexpr (kColumns == 8) {
      Tile tiles[4];
      load_tiles<1>(rows + c, dim, tiles);
      for (int32_t t = 0; t < 4; ++t) aie::store_v(out + t * 64, tiles[t]);
    } else {
      for (int32_t half = 0; half < 2; ++half) {
        Part four[4];
        for (int32_t i = 0; i < 4; ++i) {
          four[i] = aie::load_v<32>(rows + (half * 4 + i) * dim + c);
        }
        const auto both =
            aie::interleave_zip(zipped(four[0], four[1], 1), zipped(four[2], four[3], 1), 2);
        for (int32_t t = 0; t < 4; ++t) {
          const auto& tiles = t < 2 ? both.first : both.second;
          aie::store_v(out + t * 64 + half * 32,
                       tiles.template extract<32>(static_cast<unsigned>(t % 2)));
        }
      }
    }
  }
}

// Four positions times eight rows.
class Scores {
 public:
  void mac(const aie::vector<bfloat16, 32>& keys, const bfloat16* q) {
    for (uint32_t i = 0; i < kAcross; ++i) {
      tiles_[i].mac(keys, aie::load_v<kOperand>(q + i * kOperand));
    }
  }
  aie::vector<float, 32> sum() const { return joined(*this); }

 private:
  template <typename Self>  // one of the branches is for the other generation
  static aie::vector<float, 32> joined(const Self& self) {
    const auto first = self.tiles_[0].template to_vector<float>();
    if constexpr (first.size() == 32) {
      return first;
    } else {
      return zipped(first, self.tiles_[1].template to_vector<float>(), 4);
    }
  }

  Mmul tiles_[kAcross];
};

// The scores of kBlocks blocks of q, not scaled. One block has two sums of each score: a product
// waits for the one before it.
template <int32_t kBlocks>
inline void multiply_keys(const bfloat16* __restrict k, const bfloat16* __restrict q, int32_t dim,
                          int32_t positions, float* __restrict scores) {
  constexpr int32_t kParts = kBlocks == 1 ? 2 : 1;
  for (int32_t p = 0; p < positions; p += 8) {
    Scores sums[kBlocks][2][kParts];
    for (int32_t c = 0; c < dim; c += kWide) {
      Tile tiles[4];
      load_tiles<8>(k + p * dim + c, dim, tiles);
      for (int32_t t = 0; t < 4; ++t) {
        const auto upper = tiles[t].template extract<32>(0),
                   lower = tiles[t].template extract<32>(1);
        for (int32_t b = 0; b < kBlocks; ++b) {
          const bfloat16* tile = q + b * kBlock * dim + (c / 8 + t) * 64;
          sums[b][0][t % kParts].mac(upper, tile);
          sums[b][1][t % kParts].mac(lower, tile);
        }
      }
    }
    for (int32_t b = 0; b < kBlocks; ++b) {
      for (int32_t half = 0; half < 2; ++half) {
        aie::accum<accfloat, 32> sum(sums[b][half][0].sum());
        if constexpr (kParts == 2) {
          sum = aie::add(sum, aie::accum<accfloat, 32>(sums[b][half][1].sum()));
        }
        aie::store_v(scores + (b * positions + p + half * 4) * kBlock,
                     sum.template to_vector<float>());
      }
    }
  }
}

// y = correction y + weights v for one block of rows.
inline void multiply_values(const bfloat16* __restrict v, const bfloat16* __restrict weights,
                            const float* __restrict correction, int32_t dim, int32_t positions,
                            float* __restrict y) {
  constexpr int32_t kTiles = kWide / kColumns;  // of a row of four rows
  using Lanes = aie::vector<float, kTile>;
  Lanes factors[2];
  for (unsigned half = 0; half < 2; ++half) {
    for (unsigned r = 0; r < 4; ++r) {
      factors[half].template insert<kColumns>(
          r, aie::broadcast<float, kColumns>(correction[half * 4 + r]));
    }
  }
  for (int32_t c = 0; c < dim; c += kWide) {
    float* const at = y + c * kBlock;
    Mmul sums[2][kTiles];
    for (int32_t half = 0; half < 2; ++half) {
      for (int32_t t = 0; t < kTiles; ++t) {
        const auto before = aie::load_v<kTile>(at + (t * 2 + half) * int32_t(kTile));
        const aie::accum<accfloat, kTile> zero(aie::zeros<float, kTile>());
        sums[half][t] = Mmul(aie::mac(zero, before, factors[half]));
      }
    }
    for (int32_t p = 0; p < positions; p += 8) {
      Tile tiles[4];
      load_tiles<kColumns>(v + p * dim + c, dim, tiles);
      const auto both = aie::load_v<64>(weights + p * 8);
      for (int32_t t = 0; t < kTiles; ++t) {
        const auto values = tiles[t / int32_t(kAcross)].template extract<kOperand>(
            static_cast<unsigned>(t) % kAcross);
        sums[0][t].mac(both.template extract<32>(0), values);
        sums[1][t].mac(both.template extract<32>(1), values);
      }
    }
    for (int32_t half = 0; half < 2; ++half) {
      for (int32_t t = 0; t < kTiles; ++t) {
        aie::store_v(at + (t * 2 + half) * int32_t(kTile),
                     sums[half][t].template to_vector<float>());
      }
    }
  }
}

// Where kColumns elements of a row of y lie.
inline int32_t place_of(int32_t row, int32_t column, int32_t dim) {
  return row / kBlock * kBlock * dim + column * kBlock + row % kBlock * int32_t(kColumns);
}

}  // namespace attention_tiles
}  // namespace
