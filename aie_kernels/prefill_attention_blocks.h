// Attention of prompts as npu2 multiplies it (prefill_attention.cc): in BFP16, tiles of 8 x 8 that
// lie in memory between the loops, so that one loop packs queries, keys, values and weights alike.
// Maxima, weights and sums move once per chunk. Orders of memory: prefill_attention_tiles.h.
#pragma once

#include <stdint.h>

#include <aie_api/aie.hpp>

#include "attention_tiles.h"
#include "kernel.h"
#include "mmul_block.h"
#include "prefill_attention_tiles.h"
#include "prefill_job.h"
#include "softmax.h"

#if !defined(AIE_HOST_PREFILL_ATTENTION) && __AIE_ARCH__ >= 21

namespace {
namespace prefill_attention {

using attention_tiles::Part, attention_tiles::Tile;
using InBlocks = aie::block_vector_input_buffer_stream<bfp16ebs8, 64>;
using OutBlocks = aie::block_vector_output_buffer_stream<bfp16ebs8, 64>;
using Product = BlockFloatTile::Mmul;
using Block = aie::vector<float, 64>;
using BlockSums = aie::accum<accfloat, 64>;
// Words of `work` while values are added: sums of weights, and what nobody reads.
constexpr int32_t kBest = kWeights, kUnused = kWeights + kPadded;
constexpr int32_t kTileBytes = 72, kHalfTiles = kAPayload / 2 / 64;
static_assert(kUnits == 4 && 2 * kHalfTiles * kTileBytes <= kBBytes);

inline OutBlocks blocks_to(uint8_t* at) { return OutBlocks(reinterpret_cast<bfp16ebs8*>(at)); }
inline InBlocks blocks_from(const uint8_t* at) {
  return InBlocks(reinterpret_cast<const bfp16ebs8*>(at));
}
inline uint8_t* weights_of(int32_t* work, int32_t dim) {  // behind those in bfloat16
  return reinterpret_cast<uint8_t*>(work + kWeights + 2 * weight_words(dim));
}

template <typename Vector>
inline Vector zip_low(const Vector& a, const Vector& b, uint32_t chunk) {
  return aie::interleave_zip(a, b, chunk).first;
}
template <typename Vector>
inline Vector zip_high(const Vector& a, const Vector& b, uint32_t chunk) {
  return aie::interleave_zip(a, b, chunk).second;
}

enum class Tiles : int32_t { kAsTheyAre, kTransposed };

// `rows` times eight rows of `dim` columns to tiles of 8 x 8, one after the other. A register has
// 16 columns of two rows, and three exchanges between registers, whose chunks are operands of the
// core's shuffles, put bits of a row's and a column's number where a tile has them.
NPU_OUTLINED inline void pack_tiles(const bfloat16* __restrict from, intptr_t dim, int32_t rows,
                                    Tiles tiles, uint8_t* __restrict to) {
  // Between the rows of a register, and between registers; 32: no exchange.
  intptr_t step_x = dim, step_b = 2 * dim;
  uint32_t chunk = 1, last = 1;
  if (tiles == Tiles::kAsTheyAre) step_x = 4 * dim, step_b = dim, chunk = 8, last = 32;
  const intptr_t step_a = 2 * step_b;
  OutBlocks out = blocks_to(to);
  NPU_ROLLED do {
    const bfloat16* const end = from + dim;
    NPU_ROLLED do {
      const auto row_pair = [&](const bfloat16* at) {
        return aie::concat(aie::load_v<16>(at), aie::load_v<16>(at + step_x));
      };
      const bfloat16* const other = from + step_a;
      const Part p0 = row_pair(from), p1 = row_pair(from + step_b);
      const Part p2 = row_pair(other), p3 = row_pair(other + step_b);
      const Part q0 = zip_low(p0, p2, chunk), q2 = zip_high(p0, p2, chunk);
      const Part q1 = zip_low(p1, p3, chunk), q3 = zip_high(p1, p3, chunk);
      const Part r0 = zip_low(q0, q1, chunk), r1 = zip_high(q0, q1, chunk);
      const Part r2 = zip_low(q2, q3, chunk), r3 = zip_high(q2, q3, chunk);
      out.push(BlockFloatTile::convert(aie::concat(zip_low(r0, r2, last), zip_high(r0, r2, last))));
      out.push(BlockFloatTile::convert(aie::concat(zip_low(r1, r3, last), zip_high(r1, r3, last))));
      from += 16;
    }
    while (from != end);
    from += 7 * dim;
  }
  while (--rows != 0);
}

inline void pack(const bfloat16* q, float* store, int32_t unit, int32_t dim) {
  auto* const to = reinterpret_cast<uint8_t*>(store) + unit * (dim * kRows / 64 * kTileBytes);
  pack_tiles(q, kSlice, dim >> 5, Tiles::kAsTheyAre, to);
}

// Scores of two units, not scaled, of eight positions at a time: two of the four units of each
// position. `size`: of a unit's queries and of eight keys, bytes.
NPU_OUTLINED inline void multiply_keys(const uint8_t* keys, const uint8_t* queries, int32_t size,
                                       int32_t positions, float* scores) {
  InBlocks k = blocks_from(keys);
  NPU_ROLLED do {
    InBlocks q0 = blocks_from(queries), q1 = blocks_from(queries + size);
    Product s0, s1;
    NPU_ROLLED for (int32_t i = size; i != 0; i -= kTileBytes) {
      const auto of_keys = k.pop();
      s0.mac(of_keys, q0.pop());
      s1.mac(of_keys, q1.pop());
    }
    const Block left = s0.template to_vector<float>(), right = s1.template to_vector<float>();
    const auto& both = aie::interleave_zip(left, right, kRows);
    for (unsigned i = 0; i < 4; ++i) {
      aie::store_v(scores + i * kCoreRows, both.first.template extract<16>(i));
      aie::store_v(scores + (i + 4) * kCoreRows, both.second.template extract<16>(i));
    }
    positions -= 8, scores += 8 * kCoreRows;
  }
  while (positions != 0);
}

// A half of K: its scores.
inline void score_half(const bfloat16* k, const uint8_t* first, const uint8_t* second,
                       uint8_t* tiles, const float*, int32_t* work, int32_t*, int32_t scored,
                       int32_t dim) {
  const int32_t positions = half_positions(dim), size = 9 * dim;
  pack_tiles(k, dim, positions >> 3, Tiles::kAsTheyAre, tiles);
  float* const scores = floats(work) + kWeights + (scored & 1) * positions * kCoreRows;
  multiply_keys(tiles, first, size, positions, scores);
  multiply_keys(tiles, second, size, positions, scores + 2 * kRows);
}

using Half = aie::vector<float, 16>;
using HalfInts = aie::vector<int32_t, 16>;
using HalfSums = aie::accum<accfloat, 16>;
inline HalfInts all_ints(int32_t x) { return aie::broadcast<int32_t, 16>(x); }

// Maxima of 16 rows, moved to scores as large as `best`, and the corrections. As
// softmax::rounded_up() and correction(), with comparisons of integers, which are shorter; `best`
// is a maximum from before, or more.
NPU_OUTLINED inline Half move_maximum(Half best, float* rows) {
  constexpr int32_t kWholeFrom = 0x4B000000, kOne = 0x3F800000;  // bits of 2^23 and of 1
  const HalfInts bits = best.template cast_to<int32_t>(), zero = aie::zeros<int32_t, 16>();
  const HalfInts sign = aie::bit_and(bits, all_ints(INT32_MIN));
  const HalfSums magic(aie::bit_or(sign, all_ints(kWholeFrom)).template cast_to<float>());
  const HalfSums score(best), nearest = aie::sub(aie::add(score, magic), magic);
  const Half above = aie::sub(score, nearest).template to_vector<float>();
  const HalfInts one =
      aie::select(zero, all_ints(kOne), aie::lt(zero, above.template cast_to<int32_t>()));
  const Half whole =
      aie::add(nearest, HalfSums(one.template cast_to<float>())).template to_vector<float>();
  const auto small = aie::lt(aie::bit_and(bits, all_ints(INT32_MAX)), all_ints(kWholeFrom));
  const Half now = aie::select(best, whole, small);
  const Half before = aie::load_v<16>(rows + kMaximum);
  aie::store_v(rows + kMaximum, now);

  constexpr int32_t kLeast = __builtin_bit_cast(int32_t, powers::kWhole) - 126;
  const HalfSums moved = aie::sub(HalfSums(before), HalfSums(now));
  const HalfInts number = aie::add(moved, HalfSums(powers::all<16>(powers::kWhole)))
                              .template to_vector<float>()
                              .template cast_to<int32_t>();
  const HalfInts power = aie::add(aie::upshift(number, 23), all_ints(kOne));
  const HalfInts factor = aie::select(power, zero, aie::lt(number, all_ints(kLeast)));
  aie::store_v(rows + kCorrection, factor.template cast_to<float>());
  return now;
}

// Of 16 rows: the position of a key behind the first one that the row sees and how many it sees, as
// `work` has them, and the largest score.
struct Seen {
  HalfInts place, length;
  Half best;

  Seen(const int32_t* work, int32_t key)
      : place(aie::add(aie::load_v<16>(work + kBefore), all_ints(key))),
        length(aie::load_v<16>(work + kLength)),
        best(aie::load_v<16>(floats(work) + kMaximum)) {}
  // The scores of the next position.
  void take(const Half& score, float* to) {
    const auto seen = aie::lt(place, length);
    const Half kept = aie::select(powers::all<16>(-__builtin_inff()), score, seen);
    aie::store_v(to, kept);
    best = aie::max(best, kept);
    place = aie::add(place, all_ints(1));
  }
};

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
  pack_tiles(weights, kCoreRows, positions >> 3, Tiles::kTransposed, weights_of(work, dim));
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
  pack_tiles(v, dim, positions >> 3, Tiles::kTransposed,
             tiles + (added & 1) * kHalfTiles * kTileBytes);
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
    total.mac(ones, near.pop());
    total.mac(ones, far.pop());
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
      sum.mac(blocks_from(values).pop(), blocks_from(of_unit).pop());
      sum.mac(blocks_from(values + across).pop(), blocks_from(of_unit + kUnits * kTileBytes).pop());
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
