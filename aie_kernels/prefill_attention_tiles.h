// Memory of the attention of prompts (prefill_attention.cc), and how npu1 multiplies; npu2 is in
// prefill_attention_blocks.h. Orders of memory:
//
//   queries  npu2: BFP16 [unit][head_dim / 8][8 rows][8], kPartUnits units in each of two objects
//            of B that a job keeps; npu1: as q in attention_tiles.h
//   keys     npu2: BFP16 [position / 8][head_dim / 8][8 positions][8], of a half, in the third one
//   values   npu2: BFP16 [position / 8][head_dim / 8][8 columns][8 positions], of a chunk, there
//   scores   npu2: [position][rows], of a chunk; npu1: [unit][position][8 rows], of a half
//   weights  npu2: where the scores were, bfloat16 [position][rows], and behind it BFP16
//            [position / 8][unit][8 rows][8 positions]; npu1: bfloat16, of a half,
//            [unit][position / 8][8 rows][8 positions]
//   y        npu2: [unit][head_dim / 8][8 columns][8 rows]; npu1: as in attention_tiles.h
#pragma once

#include <stdint.h>

#include <aie_api/aie.hpp>

#include "attention_tiles.h"
#include "kernel.h"
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

// Words from kAttentionState on: queries packed, halves of K taken, halves of V taken, pieces sent;
// npu1: whether any key of each half of the chunk is seen; 1 when the queries are in their place;
// chunks weighed, chunks added; of the next piece, unit and column.
constexpr int32_t kPacked = kAttentionState, kScored = kPacked + 1, kAdded = kPacked + 2;
constexpr int32_t kSent = kPacked + 3, kSeen = kPacked + 4, kPlaced = kPacked + 6;
constexpr int32_t kWeighed = kPacked + 7, kSummed = kPacked + 8;
constexpr int32_t kUnitAt = kPacked + 9, kColumnAt = kPacked + 10;

// Words of `work`: per row maximum, denominator and correction, what is added to a position to have
// it behind the first one that the row sees, and how many it sees. The last two have their highest
// bit inverted, so that positions before the first one are large. Then npu2: a chunk's scores; else
// weights of the first half of a chunk, and scores of a half, where the weights of the second half
// begin, too. At the end the sums of the unit that the store has no room for. npu1 has its queries
// behind the sums, in `store`.
constexpr int32_t kPadded = 32;  // rows, so that a vector holds them
constexpr int32_t kMaximum = 0, kSum = kPadded, kCorrection = 2 * kPadded;
constexpr int32_t kBefore = 3 * kPadded, kLength = 4 * kPadded, kWeights = 5 * kPadded;
constexpr int32_t bits_of(int32_t dim) { return 6 + (dim >> 7); }  // log2 of 64, 128 or 256
constexpr int32_t half_positions(int32_t dim) { return kAPayload / 2 >> bits_of(dim); }
constexpr int32_t weight_words(int32_t dim) { return half_positions(dim) * kCoreRows / 2; }
constexpr int32_t scores_at(int32_t dim) { return kWeights + weight_words(dim); }
constexpr int32_t tail_words(int32_t dim) {
  return kCoreRows * dim > kStore ? kCoreRows * dim - kStore : 0;
}
constexpr int32_t kTailAt = kWork - tail_words(kMaxDim);
constexpr bool fits(int32_t dim) {
  const bool aligned = tail_words(dim) == 0 || (kStore % (kRows * dim) == 0 && dim == kMaxDim);
  const int32_t words = (kNpu1 ? 3 : 4) * weight_words(dim);
  return aligned && kWeights + words + tail_words(dim) <= kWork;
}
static_assert(fits(64) && fits(128) && fits(256) && kTailAt % 16 == 0);
static_assert(!kNpu1 || kCoreRows * kMaxDim * 3 / 2 <= kStore);
static_assert(kCoreRows <= kPadded && kColumnAt < kJobWords);

// npu2's queries, by object.
constexpr int32_t kQueryParts = 2, kPartUnits = kUnits / kQueryParts;
constexpr int32_t part_bytes(int32_t dim) { return kPartUnits * kRows * dim / 8 * 9; }
static_assert(kNpu1 || (kUnits == kQueryParts * kPartUnits && part_bytes(kMaxDim) <= kBBytes &&
                        part_bytes(64) % 64 == 0));

inline const Job& job_of(const int32_t* words) { return *reinterpret_cast<const Job*>(words); }
inline float* floats(int32_t* words) { return reinterpret_cast<float*>(words); }
inline const float* floats(const int32_t* words) { return reinterpret_cast<const float*>(words); }
inline int32_t weights_at(int32_t half, int32_t dim) {
  return half == 0 ? kWeights : scores_at(dim);
}

// Sums of a unit, of which the store has the first ones.
inline float* sums_of(float* store, int32_t* work, int32_t unit, int32_t dim) {
  const int32_t at = unit * kRows * dim;
  return at < kStore ? store + at : reinterpret_cast<float*>(work + kTailAt);
}
inline const float* sums_of(const float* store, const int32_t* work, int32_t unit, int32_t dim) {
  const int32_t at = unit * kRows * dim;
  return at < kStore ? store + at : reinterpret_cast<const float*>(work + kTailAt);
}

// The keys that a row sees: [from, end).
inline Range visible_of(const int32_t* work, int32_t row) {
  const uint32_t from = 0x80000000 - uint32_t(work[kBefore + row]);
  return {int32_t(from), int32_t(from + (uint32_t(work[kLength + row]) ^ 0x80000000))};
}
// Whether any row may see one of `positions` keys from `key` on.
inline bool seen_by_core(const int32_t* work, int32_t key, int32_t positions) {
  return key < visible_of(work, kCoreRows - 1).end && key + positions > visible_of(work, 0).from;
}

// Of a half of V, the positions that some query may see, from its first.
inline Range existing(const Job& job, int32_t half, int32_t positions) {
  const int32_t key = job.key_position + half * positions;
  const int32_t from = job.keys_from - key, end = job.keys_end - key;
  return {from < 0 ? 0 : (from < positions ? from : positions), end < positions ? end : positions};
}

#if !defined(AIE_HOST_PREFILL_ATTENTION) && __AIE_ARCH__ == 20

inline void pack(const bfloat16* q, float* store, int32_t unit, int32_t dim) {
  auto* const to = reinterpret_cast<bfloat16*>(store + kCoreRows * kMaxDim) + unit * kRows * dim;
  NPU_ROLLED for (int32_t c = 0; c < dim; c += kSlice) {
    attention_tiles::pack_block(q + c * kRows, kSlice, to + c * kRows);
  }
}

// Moves the maxima to scores as large as `best`, and with them the denominators, the chunk's
// correction and, in the second half, the weights of the first.
inline void move_maximum(int32_t* work, const float* best, int32_t half, int32_t dim) {
  float* const maximum = floats(work) + kMaximum;
  const auto before = aie::load_v<32>(maximum);
  const auto now = aie::max(before, softmax::rounded_up(aie::load_v<32>(best)));
  const Floats factor = softmax::correction(before, now);
  aie::store_v(maximum, now);
  const auto sum = aie::load_v<32>(floats(work) + kSum);
  aie::store_v(floats(work) + kSum, powers::product(sum, factor));
  if (half == 0) {
    aie::store_v(floats(work) + kCorrection, factor);
    return;
  }
  const auto chunk = aie::load_v<32>(floats(work) + kCorrection);
  aie::store_v(floats(work) + kCorrection, powers::product(chunk, factor));
  alignas(64) float factors[kPadded];
  aie::store_v(factors, factor);
  bfloat16* weights = reinterpret_cast<bfloat16*>(work + kWeights);
  for (int32_t unit = 0; unit < kUnits; ++unit) {
    NPU_ROLLED for (int32_t p = 0; p < half_positions(dim); p += 4) {  // half a tile: four rows
      Floats of_rows;
      for (unsigned i = 0; i < 4; ++i) {
        const int32_t row = unit * kRows + p % 8 + int32_t(i);
        of_rows.template insert<8>(i, aie::broadcast<float, 8>(factors[row]));
      }
      const Floats weight = Sums(aie::load_v<32>(weights)).template to_vector<float>();
      aie::store_v(weights, Sums(powers::product(weight, of_rows)).template to_vector<bfloat16>());
      weights += 32;
    }
  }
}

inline void score_half(const bfloat16* k, const uint8_t*, const uint8_t*, uint8_t*,
                       const float* store, int32_t* work, int32_t* words, int32_t scored,
                       int32_t dim) {
  const int32_t positions = half_positions(dim), size = positions * kRows, half = scored % 2;
  const int32_t key = job_of(words).key_position + scored * positions;
  const bool seen = seen_by_core(work, key, positions);
  words[kSeen + half] = seen;
  float* const scores = floats(work) + scores_at(dim);
  alignas(64) float best[kPadded];
  aie::store_v(best, powers::all(kNothing));
  if (seen) {
    const auto* q = reinterpret_cast<const bfloat16*>(store + kCoreRows * kMaxDim);
    attention_tiles::multiply_keys<kUnits>(k, q, dim, positions, scores);
    for (int32_t row = 0; row < kCoreRows; row += kRows) {
      alignas(32) int32_t from[kRows], end[kRows];
      NPU_SERIAL_FOR(int32_t i = 0, i < kRows, ++i) {
        const Range keys = visible_of(work, row + i);
        from[i] = keys.from, end[i] = keys.end;
      }
      softmax::scale_block(scores + row * positions, positions,
                           __builtin_bit_cast(float, job_of(words).scale), key, from, end,
                           best + row);
    }
  }
  move_maximum(work, best, half, dim);
  if (!seen) return;
  bfloat16* const weights = reinterpret_cast<bfloat16*>(work + weights_at(half, dim));
  aie::store_v(best, aie::zeros<float, 32>());  // now the sums of the half
  for (int32_t unit = 0; unit < kUnits; ++unit) {
    softmax::fold(softmax::weigh_block(scores + unit * size, floats(work) + kMaximum + unit * kRows,
                                       positions, weights + unit * size),
                  best + unit * kRows);
  }
  const auto sum =
      aie::add(Sums(aie::load_v<32>(floats(work) + kSum)), Sums(aie::load_v<32>(best)));
  aie::store_v(floats(work) + kSum, sum.template to_vector<float>());
}
inline void weigh_chunk(int32_t*, const int32_t*, int32_t, int32_t) {}

// The correction alone, of a half without keys.
inline void correct(const float* correction, int32_t dim, float* y) {
  using Part = aie::vector<float, 16>;
  NPU_ROLLED for (int32_t i = 0; i < kCoreRows * dim; i += 16) {
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

inline void add_half(bfloat16* v, uint8_t*, float* store, int32_t* work, int32_t* words,
                     int32_t added, int32_t dim) {
  const int32_t half = added % 2, positions = half_positions(dim);
  float* const correction = floats(work) + kCorrection;
  if (words[kSeen + half] == 0) {
    if (half == 0) correct(correction, dim, store);
    return;
  }
  const auto* weights = reinterpret_cast<const bfloat16*>(work + weights_at(half, dim));
  alignas(64) float factors[kPadded];
  aie::store_v(factors, half == 0 ? aie::load_v<32>(correction) : powers::all(1.0f));
  for (int32_t unit = 0; unit < kUnits; ++unit) {
    attention_tiles::multiply_values(v, weights + unit * positions * kRows, factors + unit * kRows,
                                     dim, positions, store + unit * kRows * dim);
  }
}
inline void add_chunk(const uint8_t*, float*, int32_t*, int32_t) {}

#endif

}  // namespace prefill_attention
}  // namespace
