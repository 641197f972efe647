// Memory of the attention of prompts and its products (prefill_attention.cc). Orders of memory:
//   weights  [unit][positions / 8][8 rows][8 positions] bfloat16
//   scores   [unit][position][8 rows]
//   queries  npu2: BFP16 [unit][head_dim / 8][8 rows][8], kPartUnits units in each of the objects
//            of B that a job keeps; npu1: as q in attention_tiles.h
//   y        [unit][head_dim / 8][8 rows][8]; npu1: as in attention_tiles.h
#pragma once

#include <stdint.h>

#include <aie_api/aie.hpp>

#include "attention_tiles.h"
#include "kernel.h"
#include "mmul_block.h"
#include "prefill_job.h"
#include "softmax.h"

namespace {
namespace prefill_attention {

using namespace npu::prefill;
using powers::Floats, powers::Sums;
using softmax::kNothing, softmax::Range;

constexpr bool kNpu1 = __AIE_ARCH__ == 20;
constexpr int32_t kArrayColumns = kNpu1 ? 4 : 8;
constexpr int32_t kCoreRows = kUnits * kRows, kMaxDim = 256;

// Counters from kAttentionState on: queries packed, halves of K scored, halves of V added, pieces
// sent; whether any key of each half of the chunk is seen; 1 when the queries are in their place.
constexpr int32_t kPacked = kAttentionState, kScored = kPacked + 1, kAdded = kPacked + 2;
constexpr int32_t kSent = kPacked + 3, kSeen = kPacked + 4, kPlaced = kPacked + 6;

// Words of `work`: per row maximum, denominator and correction; weights of the first half of a
// chunk; scores of a half, where the weights of the second half begin, too; at its end the sums of
// the unit that the store has no room for. npu1 has its queries behind the sums, in `store`.
constexpr int32_t kPadded = 32;  // rows, so that a vector holds them
constexpr int32_t kMaximum = 0, kSum = kPadded, kCorrection = 2 * kPadded;
constexpr int32_t kWeights = 3 * kPadded;
constexpr int32_t half_positions(int32_t dim) { return kAPayload / 2 / dim; }
constexpr int32_t weight_words(int32_t dim) { return half_positions(dim) * kCoreRows / 2; }
constexpr int32_t scores_at(int32_t dim) { return kWeights + weight_words(dim); }
constexpr int32_t tail_words(int32_t dim) {
  return kCoreRows * dim > kStore ? kCoreRows * dim - kStore : 0;
}
constexpr int32_t kTailAt = kWork - tail_words(kMaxDim);
constexpr bool fits(int32_t dim) {
  const bool aligned = tail_words(dim) == 0 || (kStore % (kRows * dim) == 0 && dim == kMaxDim);
  return aligned && scores_at(dim) + 2 * weight_words(dim) + tail_words(dim) <= kWork;
}
static_assert(fits(64) && fits(128) && fits(256) && kTailAt % 16 == 0);
static_assert(!kNpu1 || kCoreRows * kMaxDim * 3 / 2 <= kStore);
static_assert(kCoreRows <= kPadded && kPlaced < kJobWords);

// npu2's queries, by object.
constexpr int32_t kPartUnits = kUnits / kHeld;
constexpr int32_t part_bytes(int32_t dim) { return kPartUnits * kRows * dim / 8 * 9; }
static_assert(kNpu1 || (kUnits == kHeld * kPartUnits && part_bytes(kMaxDim) <= kBBytes &&
                        part_bytes(64) % 64 == 0));

// Sums of a unit, of which the store has the first ones.
inline float* sums_of(float* store, int32_t* work, int32_t unit, int32_t dim) {
  const int32_t at = unit * kRows * dim;
  return at < kStore ? store + at : reinterpret_cast<float*>(work + kTailAt);
}
inline const float* sums_of(const float* store, const int32_t* work, int32_t unit, int32_t dim) {
  const int32_t at = unit * kRows * dim;
  return at < kStore ? store + at : reinterpret_cast<const float*>(work + kTailAt);
}

#ifndef AIE_HOST_PREFILL_ATTENTION

using attention_tiles::load_tiles, attention_tiles::Tile;

#if __AIE_ARCH__ == 20

inline void pack(const bfloat16* q, float* store, int32_t unit, int32_t dim) {
  auto* const to = reinterpret_cast<bfloat16*>(store + kCoreRows * kMaxDim) + unit * kRows * dim;
  for (int32_t c = 0; c < dim; c += kSlice) {
    attention_tiles::pack_block(q + c * kRows, kSlice, to + c * kRows);
  }
}
inline void multiply_keys(const bfloat16* k, const uint8_t*, const uint8_t*, const float* store,
                          int32_t dim, float* scores) {
  const auto* q = reinterpret_cast<const bfloat16*>(store + kCoreRows * kMaxDim);
  attention_tiles::multiply_keys<kUnits>(k, q, dim, half_positions(dim), scores);
}
inline void sum_weights(const bfloat16*, int32_t, const Sums& total, float* sum) {
  softmax::fold(total, sum);
}
inline void multiply_values(const bfloat16* v, const bfloat16* weights, const float* correction,
                            int32_t dim, const Range&, float* store, int32_t*) {
  const int32_t positions = half_positions(dim);
  alignas(64) float factors[kPadded];
  aie::store_v(factors, correction != nullptr ? aie::load_v<32>(correction) : powers::all(1.0f));
  for (int32_t unit = 0; unit < kUnits; ++unit) {
    attention_tiles::multiply_values(v, weights + unit * positions * kRows, factors + unit * kRows,
                                     dim, positions, store + unit * kRows * dim);
  }
}

// The correction alone, of a half without keys.
inline void correct(const float* correction, int32_t dim, float* y, int32_t*) {
  using Part = aie::vector<float, 16>;
  for (int32_t i = 0; i < kCoreRows * dim; i += 16) {
    const int32_t row = i / (kRows * dim) * kRows + i / 16 % 2 * 4;
    Part factors;
    for (unsigned r = 0; r < 4; ++r) {
      factors.template insert<4>(r, aie::broadcast<float, 4>(correction[row + int32_t(r)]));
    }
    const aie::accum<accfloat, 16> zero(aie::zeros<float, 16>());
    aie::store_v(y + i,
                 aie::mac(zero, aie::load_v<16>(y + i), factors).template to_vector<float>());
  }
}

#else

using Blocks = aie::block_vector_input_buffer_stream<bfp16ebs8, 64>;
using Product = BlockFloatTile::Mmul;
constexpr int32_t kTiles = kSlice / 8;

inline void pack(const bfloat16* q, float* store, int32_t unit, int32_t dim) {
  auto* const to =
      reinterpret_cast<bfp16ebs8*>(reinterpret_cast<uint8_t*>(store) + unit * kRows * dim / 8 * 9);
  aie::block_vector_output_buffer_stream<bfp16ebs8, 64> out(to);
  for (int32_t c = 0; c < dim; c += kSlice) {
    Tile tiles[kTiles];
    load_tiles<8>(q + c * kRows, kSlice, tiles);
    for (int32_t t = 0; t < kTiles; ++t) out.push(BlockFloatTile::convert(tiles[t]));
  }
}

// Scores of all units, not scaled.
inline void multiply_keys(const bfloat16* __restrict k, const uint8_t* first, const uint8_t* second,
                          const float*, int32_t dim, float* __restrict scores) {
  const int32_t positions = half_positions(dim);
  const auto* lower = reinterpret_cast<const bfp16ebs8*>(first);
  const auto* upper = reinterpret_cast<const bfp16ebs8*>(second);
  for (int32_t p = 0; p < positions; p += 8) {
    Blocks q0(lower), q1(lower), q2(upper), q3(upper);
    q1.seek(dim / 8);
    q3.seek(dim / 8);
    const auto zero = aie::zeros<float, 64>();
    Product s0(zero), s1(zero), s2(zero), s3(zero);
    for (int32_t c = 0; c < dim; c += kSlice) {
      Tile tiles[kTiles];
      load_tiles<8>(k + p * dim + c, dim, tiles);
      for (int32_t t = 0; t < kTiles; ++t) {
        const auto keys = BlockFloatTile::convert(tiles[t]);
        s0.mac(keys, q0.pop());
        s1.mac(keys, q1.pop());
        s2.mac(keys, q2.pop());
        s3.mac(keys, q3.pop());
      }
    }
    float* const at = scores + p * kRows;
    aie::store_v(at, s0.template to_vector<float>());
    aie::store_v(at + positions * kRows, s1.template to_vector<float>());
    aie::store_v(at + 2 * positions * kRows, s2.template to_vector<float>());
    aie::store_v(at + 3 * positions * kRows, s3.template to_vector<float>());
  }
}
static_assert(kUnits == 4);

// Sums of the weights as they are multiplied: tiles times ones.
inline void sum_weights(const bfloat16* weights, int32_t positions, const Sums&, float* sum) {
  const auto one = Sums(powers::all(1.0f)).template to_vector<bfloat16>();
  const auto ones = BlockFloatTile::convert(aie::concat(one, one));
  Product total(aie::zeros<float, 64>());
  for (int32_t p = 0; p < positions; p += 8) {
    total.mac(ones, BlockFloatTile::load_a(weights + p * kRows));
  }
  aie::store_v(sum, total.template to_vector<float>().template extract<8>(0));
}

// Tiles [8 columns][8 positions] of 32 columns of V; positions outside [from, end) are zero.
inline void load_values(const bfloat16* v, int32_t dim, int32_t from, int32_t end,
                        Tile (&tiles)[kTiles]) {
  attention_tiles::Part rows[8];
  for (int32_t i = 0; i < 8; ++i) {
    rows[i] = i >= from && i < end ? aie::load_v<32>(v + i * dim) : aie::zeros<bfloat16, 32>();
  }
  attention_tiles::regroup<1>(rows, tiles);
}

// y times powers of two, exactly: three parts of y are bfloat16, as the powers are, which takes
// half of what a product of fp32 does.
using Block = aie::vector<float, 64>;
using BlockSums = aie::accum<accfloat, 64>;
inline BlockSums by_powers(const Block& y, const aie::vector<bfloat16, 64>& powers) {
  const auto high = BlockSums(y).template to_vector<bfloat16>();
  const BlockSums rest = aie::sub(BlockSums(y), BlockSums(high));
  const auto middle = rest.template to_vector<bfloat16>();
  const auto low = aie::sub(rest, BlockSums(middle)).template to_vector<bfloat16>();
  BlockSums product = aie::mac(BlockSums(aie::zeros<float, 64>()), low, powers);
  product = aie::mac(product, middle, powers);
  return aie::mac(product, high, powers);
}

// A unit's corrections, each for the eight columns of its row.
inline void load_powers(const float* correction, aie::vector<bfloat16, 64> (&powers)[kUnits]) {
  alignas(64) bfloat16 of_rows[kPadded];
  aie::store_v(of_rows, Sums(aie::load_v<32>(correction)).template to_vector<bfloat16>());
  for (unsigned row = 0; row < unsigned(kCoreRows); ++row) {
    powers[row / 8].template insert<8>(row % 8, aie::broadcast<bfloat16, 8>(of_rows[row]));
  }
}

// y = correction y + weights v, or y + weights v; y [unit][dim / 8][8 rows][8].
inline void multiply_values(const bfloat16* __restrict v, const bfloat16* __restrict weights,
                            const float* __restrict correction, int32_t dim, const Range& range,
                            float* __restrict store, int32_t* __restrict work) {
  const int32_t positions = half_positions(dim);
  aie::vector<bfloat16, 64> powers[kUnits];
  if (correction != nullptr) load_powers(correction, powers);
  for (int32_t p = 0; p < positions; p += 8) {
    const bool corrected = correction != nullptr && p == 0;
    for (int32_t c = 0; c < dim; c += kSlice) {
      Tile tiles[kTiles];
      load_values(v + p * dim + c, dim, range.from - p, range.end - p, tiles);
      for (int32_t unit = 0; unit < kUnits; ++unit) {
        const auto weight = BlockFloatTile::load_a(weights + (unit * positions + p) * kRows);
        float* const at = sums_of(store, work, unit, dim) + c * kRows;
        for (int32_t t = 0; t < kTiles; ++t) {
          const auto y_before = aie::load_v<64>(at + t * 64);
          const BlockSums before =
              corrected ? by_powers(y_before, powers[unit]) : BlockSums(y_before);
          Product sum(before);
          sum.mac(weight, BlockFloatTile::convert(tiles[t]));
          aie::store_v(at + t * 64, sum.template to_vector<float>());
        }
      }
    }
  }
}

// The correction alone, of a half without keys.
inline void correct(const float* correction, int32_t dim, float* store, int32_t* work) {
  aie::vector<bfloat16, 64> powers[kUnits];
  load_powers(correction, powers);
  for (int32_t unit = 0; unit < kUnits; ++unit) {
    float* const y = sums_of(store, work, unit, dim);
    for (int32_t i = 0; i < kRows * dim; i += 64) {
      const BlockSums sums = by_powers(aie::load_v<64>(y + i), powers[unit]);
      aie::store_v(y + i, sums.template to_vector<float>());
    }
  }
}

#endif

#endif

}  // namespace prefill_attention
}  // namespace
