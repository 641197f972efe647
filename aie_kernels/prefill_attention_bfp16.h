// Weights and sums of the attention of prompts on npu2 (prefill_attention.cc), in BFP16: maxima,
// weights and sums move once per chunk. Orders of memory: prefill_attention_tiles.h.
#pragma once

#include <stdint.h>

#include <aie_api/aie.hpp>

#include "kernel.h"
#include "mmul_block.h"
#include "prefill_attention_blocks.h"
#include "prefill_attention_tiles.h"
#include "prefill_job.h"
#include "softmax.h"

#if !defined(AIE_HOST_PREFILL_ATTENTION) && __AIE_ARCH__ >= 21

namespace {
namespace prefill_attention {

using Block = aie::vector<float, 64>;
using BlockSums = aie::accum<accfloat, 64>;
// Words of `work` while values are added: sums of weights, and what nobody reads.
constexpr int32_t kBest = kWeights, kUnused = kWeights + kPadded;
constexpr int32_t kHalfTiles = kAPayload / 2 / 64;
static_assert(kUnits == 4 && 2 * kHalfTiles * kTileBytes <= kBBytes);

inline uint8_t* weights_of(int32_t* work, int32_t dim) {  // behind those in bfloat16
  return reinterpret_cast<uint8_t*>(work + kWeights + 2 * weight_words(dim));
}

// The chunk's scores become weights.
inline void weigh_chunk(int32_t* work, const int32_t* words, int32_t weighed, int32_t dim) {
  const int32_t positions = 2 * half_positions(dim);
  const Job& job = job_of(words);
  const int32_t key = job.key_position + weighed * positions;

  float* const scores = floats(work) + kWeights;
  const float* const end = scores + positions * kCoreRows;
  const float scale = __builtin_bit_cast(float, job.scale);
  Seen lower(work, key), upper(work + 16, key);
  float* at = scores;
  NPU_ROLLED do {
    const auto& score = powers::product(aie::load_v<32>(at), powers::all(scale));
    lower.take(score.template extract<16>(0), at);
    upper.take(score.template extract<16>(1), at + 16);
    at += kCoreRows;
  }
  while (at != end);
  const Half top0 = move_maximum(lower.best, floats(work));
  const Half top1 = move_maximum(upper.best, floats(work) + 16);
  auto* const weights = reinterpret_cast<bfloat16*>(scores);
  bfloat16* to = weights;
  // Two positions at a time wait for each result, which takes little longer than a loop that fills.
  const auto power = [&](const float* of) {
    return powers::exp2(powers::minus(aie::load_v<32>(of), aie::concat(top0, top1)));
  };
  NPU_SERIAL_FOR(at = scores, at != end, at += 2 * kCoreRows) {
    const Part first = power(at), second = power(at + kCoreRows);
    aie::store_v(to, first);
    aie::store_v(to + kCoreRows, second);
    to += 2 * kCoreRows;
  }
  pack_tiles(weights, kCoreRows, positions >> 3, Tiles::kColumns, weights_of(work, dim));
}

// plus + a b of 32 numbers, and the same rounded.
NPU_OUTLINED inline void multiply_add(const float* a, const float* b, const float* plus,
                                      float* wide, bfloat16* rounded) {
  const Sums sum = aie::mac(Sums(aie::load_v<32>(plus)), aie::load_v<32>(a), aie::load_v<32>(b));
  aie::store_v(wide, sum.template to_vector<float>());
  aie::store_v(rounded, sum.template to_vector<bfloat16>());
}

// A half of V as tiles. Positions that no row may see become zero, so that they do not matter to
// exponents.
inline void add_half(bfloat16* v, uint8_t* tiles, float*, int32_t*, int32_t* words, int32_t added,
                     int32_t dim) {
  const int32_t positions = half_positions(dim);
  const Job& job = job_of(words);
  const int32_t key = job.key_position + added * positions;
  const auto place = [&](int32_t position) {
    const int32_t at = position - key, some = at < 0 ? 0 : at;
    return v + (some < positions ? some : positions) * intptr_t(dim);
  };
  const bfloat16 *const from = place(job.keys_from), *const behind = v + kAPayload / 2;
  NPU_SERIAL_FOR(bfloat16* at = v, at != from, at += 32) {
    aie::store_v(at, aie::zeros<bfloat16, 32>());
  }
  NPU_SERIAL_FOR(bfloat16* at = place(job.keys_end), at != behind, at += 32) {
    aie::store_v(at, aie::zeros<bfloat16, 32>());
  }
  pack_tiles(v, dim, positions >> 3, kOfValues, tiles + (added & 1) * kHalfTiles * kTileBytes);
}

// y times powers of two, exactly: three parts of y are bfloat16, as the powers are, which takes
// half of what a product of fp32 does.
inline BlockSums by_powers(const Block& y, const Tile& powers) {
  const auto high = BlockSums(y).template to_vector<bfloat16>();
  const BlockSums rest = aie::sub(BlockSums(y), BlockSums(high));
  const auto middle = rest.template to_vector<bfloat16>();
  const auto low = aie::sub(rest, BlockSums(middle)).template to_vector<bfloat16>();
  BlockSums product = aie::mac(BlockSums(aie::zeros<float, 64>()), low, powers);
  product = aie::mac(product, middle, powers);
  return aie::mac(product, high, powers);
}

// Of 16 positions: sums of the weights as they are multiplied, tiles times
// ones, and the corrections in bfloat16, four times those of each unit.
NPU_OUTLINED inline void sum_weights(const uint8_t* weights, float* rows, bfloat16* corrections) {
  const auto one = Sums(powers::all(1.0f)).template to_vector<bfloat16>();
  const auto ones = BlockFloatTile::convert(aie::concat(one, one));
  InBlocks near = blocks_from(weights), far = blocks_from(weights + kUnits * kTileBytes);
  NPU_SERIAL_FOR(int32_t unit = kUnits, unit != 0, --unit) {
    Product total;
    total.mac(ones, NPU_TRANSPOSED(near.pop()));
    total.mac(ones, NPU_TRANSPOSED(far.pop()));
    aie::store_v(rows + kBest, total.template to_vector<float>().template extract<kRows>(0));
    aie::store_v(corrections,
                 Sums(softmax::repeated(rows + kCorrection)).template to_vector<bfloat16>());
    rows += kRows, corrections += kPadded;
  }
}

// Denominators: corrected, and with the sums of weights. The correction is 1
// from now on.
NPU_OUTLINED inline void add_sums(float* rows) {
  multiply_add(rows + kSum, rows + kCorrection, rows + kBest, rows + kSum,
               reinterpret_cast<bfloat16*>(rows + kUnused));
  aie::store_v(rows + kCorrection, powers::all(1.0f));
}

// y = correction y + weights v and the denominators, by 16 positions, whose
// tiles of weights and of values of the last eight lie behind the others. The
// correction is 1 behind the first ones.
inline void add_chunk(const uint8_t* tiles, float* store, int32_t* work, intptr_t dim) {
  float* const rows = floats(work);
  auto* const corrections = reinterpret_cast<bfloat16*>(rows + kUnused + kPadded);
  const uint8_t* weights = weights_of(work, int32_t(dim));
  const intptr_t across = 9 * dim;
  int32_t positions = half_positions(int32_t(dim));
  NPU_ROLLED do {
    sum_weights(weights, rows, corrections);
    const bfloat16* correction = corrections;
    const uint8_t *of_unit = weights, *values = tiles;
    const uint8_t *const end = tiles + across, *const behind = weights + kUnits * kTileBytes;
    float* y = store;
    NPU_ROLLED do {
      const Part factor = aie::load_v<32>(correction);
      Product sum(by_powers(aie::load_v<64>(y), aie::concat(factor, factor)));
      sum.mac(blocks_from(values).pop(), NPU_TRANSPOSED(blocks_from(of_unit).pop()));
      sum.mac(blocks_from(values + across).pop(),
              NPU_TRANSPOSED(blocks_from(of_unit + kUnits * kTileBytes).pop()));
      aie::store_v(y, sum.template to_vector<float>());
      y += 64, values += kTileBytes;
      y = y == store + kStore ? rows + kTailAt : y;
      const intptr_t last = -intptr_t(values == end);  // of a unit
      values -= across & last, of_unit += kTileBytes & last, correction += kPadded & last;
    }
    while (of_unit != behind);
    weights = behind;
    weights += kUnits * kTileBytes, tiles += 2 * across, positions -= 8;
    add_sums(rows);
  }
  while (positions != 0);
}

// A block of 32 columns of the rows of a unit, times their factors.
inline void put_block(const float* y, int32_t unit, int32_t* work, int32_t, bfloat16* out) {
  constexpr int32_t kElements = kRows * kSlice;
  float *const factors = floats(work) + kBest, *const unused = floats(work) + kUnused;
  float* const zeros = unused + kPadded;
  aie::store_v(factors, softmax::repeated(floats(work) + kSum + unit * kRows));
  aie::store_v(zeros, aie::zeros<float, 32>());
  bfloat16* to = out;
  NPU_ROLLED do {
    multiply_add(y, factors, zeros, unused, to);
    y += 32, to += 32;
  }
  while (to != out + kElements);
  OutBlocks blocks = blocks_to(reinterpret_cast<uint8_t*>(out));  // always behind what is loaded
  NPU_SERIAL_FOR(, out != to, out += 64) {
    blocks.push(BlockFloatTile::convert(aie::transpose(aie::load_v<64>(out), 8, 8)));
  }
}

}  // namespace prefill_attention
}  // namespace

#endif
