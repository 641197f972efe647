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
  if constexpr (kColumns == 8) {
    NPU_ROLLED for (int32_t c = 0; c < dim; c += kWide, out += kBlock * kWide) {
      Tile tiles[4];
      load_tiles<1>(rows + c, dim, tiles);
      for (int32_t t = 0; t < 4; ++t) aie::store_v(out + t * 64, tiles[t]);
    }
  } else {
    const bfloat16* const end = rows + kBlock * dim;
    NPU_ROLLED for (; rows != end; rows += 4 * dim, out += 32) {
      NPU_ROLLED for (int32_t c = 0; c < dim; c += kWide) {
        Part four[4];
        for (int32_t i = 0; i < 4; ++i) four[i] = aie::load_v<32>(rows + i * dim + c);
        const auto both =
            aie::interleave_zip(zipped(four[0], four[1], 1), zipped(four[2], four[3], 1), 2);
        for (int32_t t = 0; t < 4; ++t) {
          const auto& tiles = t < 2 ? both.first : both.second;
          aie::store_v(out + c * kBlock + t * 64,
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

// Eight rows of keys to their tiles [dim / 8][8 positions][8 dims].
NPU_OUTLINED inline void pack_keys(const bfloat16* __restrict k, int32_t dim,
                                   bfloat16* __restrict tiles) {
  NPU_ROLLED for (int32_t c = 0; c < dim; c += kWide) {
    Tile of_keys[4];
    load_tiles<8>(k + c, dim, of_keys);
    for (const Tile& tile : of_keys) {
      aie::store_v(tiles, tile);
      tiles += 64;
    }
  }
}

// The scores of eight positions and a block of q, not scaled; of a pair of blocks also `other`, of
// the one behind. Of a single block two sums are made, of every other tile, so that products need
// not wait for each other; then `other` is overwritten, too.
NPU_OUTLINED inline void multiply_tiles(const bfloat16* __restrict keys,
                                        const bfloat16* __restrict q, int32_t dim, bool pair,
                                        float* __restrict scores, float* __restrict other) {
  const int32_t step = pair ? 64 : 128;
  const bfloat16* keys2 = pair ? keys : keys + 64;
  const bfloat16* q2 = pair ? q + kBlock * dim : q + 64;
  Scores upper, lower, upper2, lower2;
  NPU_ROLLED for (int32_t i = pair ? dim >> 3 : dim >> 4; i > 0; --i) {
    upper.mac(aie::load_v<32>(keys), q);
    lower.mac(aie::load_v<32>(keys + 32), q);
    upper2.mac(aie::load_v<32>(keys2), q2);
    lower2.mac(aie::load_v<32>(keys2 + 32), q2);
    keys += step, keys2 += step, q += step, q2 += step;
  }
  aie::vector<float, 32> first = upper.sum(), second = lower.sum();
  const auto first2 = upper2.sum(), second2 = lower2.sum();
  aie::store_v(other, first2);
  aie::store_v(other + 32, second2);
  if (!pair) {
    using Sum = aie::accum<accfloat, 32>;
    first = aie::add(Sum(first), Sum(first2)).template to_vector<float>();
    second = aie::add(Sum(second), Sum(second2)).template to_vector<float>();
  }
  aie::store_v(scores, first);
  aie::store_v(scores + 32, second);
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
