// Memory of the attention of prompts (prefill_attention.cc). Tiles are 8 x 8, on npu2 in BFP16, on
// npu1 bfloat16 in two halves: as first operands four rows each, as second ones four columns.
//
//   queries  tiles [unit][head_dim / 8][8 rows][8]; npu2: kPartUnits units in each of two objects
//            of B that a job keeps; npu1: behind the sums, in `store`, as second operands
//   keys     tiles [position / 8][head_dim / 8][8 positions][8], of a half, in the third object
//   values   tiles [position / 8][head_dim / 8] there: npu2 [8 columns][8 positions], of a chunk;
//            npu1 [8 positions][8 columns], second operands, of a half
//   scores   [position][rows], of a chunk
//   weights  where the scores were, bfloat16 [position][rows], and behind it tiles
//            [position / 8][unit][8 rows][8 positions]; npu1: the same of each half
//   y        [unit][head_dim / 8]; npu2: [8 columns][8 rows]; npu1: [2][8 rows][4 columns]
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
// `fast` builds: whether any key of each half of the chunk is seen; 1 when the queries are in their
// place; chunks weighed, chunks added; of the next piece, unit and column.
constexpr int32_t kPacked = kAttentionState, kScored = kPacked + 1, kAdded = kPacked + 2;
constexpr int32_t kSent = kPacked + 3, kSeen = kPacked + 4, kPlaced = kPacked + 6;
constexpr int32_t kWeighed = kPacked + 7, kSummed = kPacked + 8;
constexpr int32_t kUnitAt = kPacked + 9, kColumnAt = kPacked + 10;

// Words of `work`: per row maximum, denominator and correction, what is added to a position to have
// it behind the first one that the row sees, and how many it sees. The last two have their highest
// bit inverted, so that positions before the first one are large. Then a chunk's scores; npu1: and
// twice the words of a half (prefill_attention_bf16.h); `fast` builds: weights of the first half,
// then of the second one. At the end the sums of the unit that the store has no room for.
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
  const int32_t words = (kNpu1 ? 8 : 4) * weight_words(dim);
  return aligned && kWeights + words + tail_words(dim) <= kWork;
}
static_assert(fits(64) && fits(128) && fits(256) && kTailAt % 16 == 0);
constexpr int32_t kMostScores = 4 * weight_words(64);
static_assert(kCoreRows <= kPadded && kColumnAt < kJobWords);

// npu2's queries, by object.
constexpr int32_t kQueryParts = 2, kPartUnits = kUnits / kQueryParts;
constexpr int32_t part_bytes(int32_t dim) { return kPartUnits * kRows * dim / 8 * 9; }
static_assert(kNpu1 || (kUnits == kQueryParts * kPartUnits && part_bytes(kMaxDim) <= kBBytes &&
                        part_bytes(64) % 64 == 0));
// Where queries are packed: npu2's are copied when they are complete, npu1's stay behind the sums.
static_assert(!kNpu1 || kCoreRows * kMaxDim * 3 / 2 <= kStore);
constexpr int32_t kQueriesAt = kNpu1 ? kCoreRows * kMaxDim : 0;
inline uint8_t* queries_of(float* store) { return reinterpret_cast<uint8_t*>(store + kQueriesAt); }
inline const uint8_t* queries_of(const float* store) {
  return reinterpret_cast<const uint8_t*>(store + kQueriesAt);
}

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

}  // namespace prefill_attention
}  // namespace
