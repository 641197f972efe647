// Attention of prompts (prefill_attention.cc) up to the scores, and how maxima move: operands are
// tiles of 8 x 8 that lie in memory between the loops, so that one loop packs queries, keys, values
// and weights alike. What becomes of scores: prefill_attention_bfp16.h, prefill_attention_bf16.h.
#pragma once

#include <stdint.h>

#include <aie_api/aie.hpp>

#include "attention_tiles.h"
#include "kernel.h"
#include "mmul_block.h"
#include "prefill_attention_tiles.h"
#include "prefill_job.h"
#include "softmax.h"

#ifndef AIE_HOST_PREFILL_ATTENTION

namespace {
namespace prefill_attention {

using attention_tiles::Part, attention_tiles::Tile;
using Half = aie::vector<float, 16>;
using HalfInts = aie::vector<int32_t, 16>;
using HalfSums = aie::accum<accfloat, 16>;

// Tiles in memory: npu2 blocks in BFP16, npu1 bfloat16 as its products of 4 x 8 x 4 take it. C is
// 8 x 8 on npu2, on npu1 four tiles, of upper and lower rows times left and right columns.
#if __AIE_ARCH__ >= 21
using InBlocks = aie::block_vector_input_buffer_stream<bfp16ebs8, 64>;
using OutBlocks = aie::block_vector_output_buffer_stream<bfp16ebs8, 64>;
using Product = BlockFloatTile::Mmul;
constexpr int32_t kTileBytes = 72;

inline OutBlocks blocks_to(uint8_t* at) { return OutBlocks(reinterpret_cast<bfp16ebs8*>(at)); }
inline InBlocks blocks_from(const uint8_t* at) {
  return InBlocks(reinterpret_cast<const bfp16ebs8*>(at));
}
inline auto converted(const Tile& tile) { return BlockFloatTile::convert(tile); }
#else
constexpr int32_t kTileBytes = 128;

struct OutBlocks {
  uint8_t* at;
  void push(const Tile& tile) {
    aie::store_v(reinterpret_cast<bfloat16*>(at), tile);
    at += kTileBytes;
  }
};
struct InBlocks {
  const uint8_t* at;
  Tile pop() {
    const Tile tile = aie::load_v<64>(reinterpret_cast<const bfloat16*>(at));
    at += kTileBytes;
    return tile;
  }
};
struct Product {
  attention_tiles::Mmul sums[2][2];  // [rows][columns]

  void mac(const Part& upper, const Part& lower, const Tile& b) {
    const Part left = b.template extract<32>(0), right = b.template extract<32>(1);
    sums[0][0].mac(upper, left), sums[0][1].mac(upper, right);
    sums[1][0].mac(lower, left), sums[1][1].mac(lower, right);
  }
  void mac(const Tile& a, const Tile& b) {
    mac(a.template extract<32>(0), a.template extract<32>(1), b);
  }
};

inline OutBlocks blocks_to(uint8_t* at) { return OutBlocks{at}; }
inline InBlocks blocks_from(const uint8_t* at) { return InBlocks{at}; }
inline const Tile& converted(const Tile& tile) { return tile; }
#endif

template <typename Vector>
inline Vector zip_low(const Vector& a, const Vector& b, uint32_t chunk) {
  return aie::interleave_zip(a, b, chunk).first;
}
template <typename Vector>
inline Vector zip_high(const Vector& a, const Vector& b, uint32_t chunk) {
  return aie::interleave_zip(a, b, chunk).second;
}

// What tiles hold of 8 rows x 8 columns. The first exchanges' chunk, and 32 if there is no last
// one.
enum class Tiles : int32_t {
  kRows = 32 + 8,
  kColumns = 1,
  kRowHalves = 4,          // npu1, second operands: of four columns the rows, then of the others
  kColumnHalves = 32 + 1,  // of four rows the columns
};
constexpr Tiles kOfQueries = kNpu1 ? Tiles::kColumnHalves : Tiles::kRows;
constexpr Tiles kOfValues = kNpu1 ? Tiles::kRowHalves : Tiles::kColumns;

// `rows` times eight rows of `dim` columns to tiles of 8 x 8, one after the other. A register has
// 16 columns of two rows, and three exchanges between registers, whose chunks are operands of the
// core's shuffles, put bits of a row's and a column's number where a tile has them.
NPU_OUTLINED inline void pack_tiles(const bfloat16* __restrict from, intptr_t dim, int32_t rows,
                                    Tiles tiles, uint8_t* __restrict to) {
  // Between the rows of a register, and between registers; 32: no exchange.
  intptr_t step_x = dim, step_b = 2 * dim;
  const auto chunk = uint32_t(tiles) & 31;
  uint32_t last = chunk;
  if ((int32_t(tiles) & 32) != 0) step_x = 4 * dim, step_b = dim, last = 32;
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
      out.push(converted(aie::concat(zip_low(r0, r2, last), zip_high(r0, r2, last))));
      out.push(converted(aie::concat(zip_low(r1, r3, last), zip_high(r1, r3, last))));
      from += 16;
    }
    while (from != end);
    from += 7 * dim;
  }
  while (--rows != 0);
}

inline void pack(const bfloat16* q, float* store, int32_t unit, int32_t dim) {
  auto* const to = queries_of(store) + unit * (kTileBytes / 8 * dim);
  pack_tiles(q, kSlice, dim >> 5, kOfQueries, to);
}

// Scores of eight positions and two units, by position.
inline void store_scores(const Product& s0, const Product& s1, float* scores) {
#if __AIE_ARCH__ >= 21
  const auto left = s0.template to_vector<float>(), right = s1.template to_vector<float>();
  const auto& both = aie::interleave_zip(left, right, kRows);
  for (unsigned i = 0; i < 4; ++i) {
    aie::store_v(scores + i * kCoreRows, both.first.template extract<16>(i));
    aie::store_v(scores + (i + 4) * kCoreRows, both.second.template extract<16>(i));
  }
#else
  for (unsigned i = 0; i < 2; ++i) {  // four positions, of which each sum has four rows
    const Half a = s0.sums[i][0].template to_vector<float>();
    const Half b = s0.sums[i][1].template to_vector<float>();
    const Half c = s1.sums[i][0].template to_vector<float>();
    const Half d = s1.sums[i][1].template to_vector<float>();
    const Half near0 = zip_low(a, c, 4), near1 = zip_low(b, d, 4);
    const Half far0 = zip_high(a, c, 4), far1 = zip_high(b, d, 4);
    aie::store_v(scores, zip_low(near0, near1, 4));
    aie::store_v(scores + kCoreRows, zip_high(near0, near1, 4));
    aie::store_v(scores + 2 * kCoreRows, zip_low(far0, far1, 4));
    aie::store_v(scores + 3 * kCoreRows, zip_high(far0, far1, 4));
    scores += 4 * kCoreRows;
  }
#endif
}

// Scores of two units, not scaled, of eight positions at a time: two of the units of each
// position. `size`: of a unit's queries and of eight keys, bytes.
NPU_OUTLINED inline void multiply_keys(const uint8_t* keys, const uint8_t* queries, int32_t size,
                                       int32_t positions, float* scores) {
  InBlocks k = blocks_from(keys);
  NPU_ROLLED do {
    InBlocks q0 = blocks_from(queries), q1 = blocks_from(queries + size);
    Product s0, s1;
    int32_t left = size;
    NPU_ROLLED do {
      const auto of_keys = k.pop();
      s0.mac(of_keys, NPU_TRANSPOSED(q0.pop()));
      s1.mac(of_keys, NPU_TRANSPOSED(q1.pop()));
      left -= kTileBytes;
    }
    while (left != 0);
    store_scores(s0, s1, scores);
    positions -= 8, scores += 8 * kCoreRows;
  }
  while (positions != 0);
}

// A half of K: its scores.
inline void score_half(const bfloat16* k, const uint8_t* first, const uint8_t* second,
                       uint8_t* tiles, const float* store, int32_t* work, int32_t*, int32_t scored,
                       int32_t dim) {
  const int32_t positions = half_positions(dim), size = kTileBytes / 8 * dim;
  pack_tiles(k, dim, positions >> 3, Tiles::kRows, tiles);
  float* const scores = floats(work) + kWeights + (scored & 1) * positions * kCoreRows;
  if constexpr (kNpu1) {
    multiply_keys(tiles, queries_of(store), size, positions, scores);
  } else {
    multiply_keys(tiles, first, size, positions, scores);
    multiply_keys(tiles, second, size, positions, scores + 2 * kRows);
  }
}

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

}  // namespace prefill_attention
}  // namespace

#endif
