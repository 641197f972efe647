// QK-norm and rotation of the prefill configuration (prefill_job.h, kRotation), a unit of 8 rows of
// a head at a time, computed for the first of its results.
#include <stdint.h>

#include <aie_api/aie.hpp>

#include "fp32.h"
#include "kernel.h"
#include "norm.h"
#include "prefill_job.h"
#include "prefill_rows.h"
#include "rope.h"

namespace {
namespace prefill_rotation {

using namespace prefill_rows;
using npu::fp32::Step;

constexpr int32_t kMaxDim = 256, kMaxHeads = 4096;

// Words of the store: weights of q, then of k; the round's tables, row by row; squares; factors,
// each for all lanes of its row; a unit of head_dim columns. `work` has the results of a unit.
constexpr int32_t kTables = kAPayload / 4, kSquares = kTables + kRows * kMaxDim;
constexpr int32_t kFactors = kSquares + kRowLanes, kUnit = kFactors + kRowLanes;
static_assert(kUnit + kRows * kMaxDim / 2 <= kStore && kRows * kMaxDim / 2 <= kWork);

// Objects of A that hold the tables of 8 rows, and the words of one that count.
constexpr int32_t table_objects(int32_t head_dim) {
  return (kRows * head_dim * 4 + kAPayload - 1) / kAPayload;
}
constexpr int32_t table_words(int32_t head_dim) {
  return kRows * head_dim < kAPayload / 4 ? kRows * head_dim : kAPayload / 4;
}

// 1 / sqrt(mean + epsilon) from the rows' squares, as npu::norm::factor(); share: 1 / head_dim, a
// power of two, so that the product is the quotient.
inline void find_factors(float* squares, float share, float epsilon) {
  NPU_ROLLED for (int32_t row = 0; row < kRows; ++row, squares += kLanes) {
    const float mean = aie::reduce_add(aie::load_v<kLanes>(squares)) * share;
    npu::fp32::fill(squares + kRowLanes, aie::invsqrt(mean + epsilon));
  }
}

// Elements from a row of results to the next, and from 32 columns to the next.
struct Steps {
  int32_t row, block;
};

// kStep columns of the lower half of a unit, and those that belong to them: `high` elements further
// in the unit, `high_out` in the results, d / 2 in weights and tables.
inline void rotate_columns(const bfloat16* __restrict unit, int32_t high,
                           const float* __restrict weights, const float* __restrict factors,
                           const float* __restrict cosines, int32_t d, bfloat16* __restrict out,
                           int32_t high_out, int32_t out_step) {
  const int32_t half = d >> 1;
  NPU_ROLLED for (int32_t i = 0; i < kRowLanes; i += kLanes) {
    const Step factor = aie::load_v<kStep>(factors + i);
    const Step low = npu::norm::scaled(unit + i, factor, weights);
    const Step upper = npu::norm::scaled(unit + high + i, factor, weights + half);
    npu::rope::rotate(low, upper, cosines, cosines + half, out, out + high_out);
    cosines += d, out += out_step;
  }
}

// A unit of q or k, normalised and rotated.
inline void rotate(const bfloat16* unit, const float* weights, float* store, bfloat16* out,
                   const Steps& steps, const Job& job) {
  const int32_t d = job.head_dim, half = d >> 1, blocks = d >> 5;
  float* squares = store + kSquares;
  clear(reinterpret_cast<int32_t*>(squares), kRowLanes);
  square_rows(unit, blocks, squares);
  const int32_t share = (127 << 24) - __builtin_bit_cast(int32_t, static_cast<float>(d));
  find_factors(squares, bits_float(share), bits_float(job.epsilon));
  NPU_ROLLED for (int32_t i = 0; i < half; i += kStep) {
    const int32_t block = i >> 5, column = i & (kSlice - 1);
    rotate_columns(unit + block * kBlock + column, half * kRows, weights + i, store + kFactors,
                   store + kTables + i, d, out + block * steps.block + column,
                   (blocks >> 1) * steps.block, steps.row);
  }
}

// A unit of heads of `dim` elements as one of head_dim, with zeros behind the heads or their
// halves.
NPU_OUTLINED inline void widen_heads(const bfloat16* from, bfloat16* unit, const Job& job,
                                     bool is_value) {
  const int32_t d = job.head_dim, half = job.dim >> 1;
  clear(reinterpret_cast<int32_t*>(unit), kRows / 2 * d);
  NPU_ROLLED for (int32_t i = 0; i < job.dim; i += 16) {
    const int32_t to = is_value || i < half ? i : (d >> 1) + i - half;
    const bfloat16* columns = from + (i >> 5) * kBlock + (i & (kSlice - 1));
    bfloat16* out = unit + (to >> 5) * kBlock + (to & (kSlice - 1));
    NPU_SERIAL_FOR(int32_t row = 0, row < kBlock, row += kSlice) {
      aie::store_v(out + row, aie::load_v<16>(columns + row));
    }
  }
}

// A unit of v, row by row.
inline void take_values(const bfloat16* __restrict unit, bfloat16* __restrict out, int32_t d) {
  NPU_ROLLED for (int32_t i = 0; i < d; i += kSlice) {
    int32_t to = i;
    NPU_ROLLED for (int32_t row = 0; row < kRows; ++row, to += d, unit += kSlice) {
      aie::store_v(out + to, aie::load_v<kSlice>(unit));
    }
  }
}

// A unit of q (in the order it came), k or v (row by row) into `work`.
inline void next_unit(const bfloat16* unit, float* store, int32_t* work, const Job& job,
                      int32_t number) {
  const int32_t d = job.head_dim, key = number - job.heads;
  const bool is_query = key < 0, is_value = key >= job.kv_heads;
  if (job.dim != d) {
    auto* wide = reinterpret_cast<bfloat16*>(store + kUnit);
    widen_heads(unit, wide, job, is_value);
    unit = wide;
  }
  if (is_value) return take_values(unit, halves(work), d);
  rotate(unit, is_query ? store : store + d, store, halves(work),
         is_query ? Steps{kSlice, kBlock} : Steps{d, kSlice}, job);
}

#if NPU_DECLARATIONS
constexpr bool is_dim(int64_t d) { return d == 64 || d == 128 || d == 256; }

bool fits(const Job& job) {
  return Kind(job.kind) == Kind::kRotation && is_dim(job.head_dim) && job.dim >= kSlice &&
         job.dim <= job.head_dim && job.dim % kSlice == 0 && job.heads >= 1 &&
         job.heads <= kMaxHeads && job.kv_heads >= 1 && job.kv_heads <= kMaxHeads &&
         job.first_groups == table_objects(job.head_dim) && job.groups == 1 && job.a_turns == 0 &&
         job.b_turns == job.heads + 2 * job.kv_heads && job.b_pieces == unit_pieces(job.head_dim);
}

void check_table(const char* kernel, const KernelArgument* operands) {
  const auto* words = reinterpret_cast<const int32_t*>(operands[2].data);
  const Job& job = job_of(words);
  const int32_t first = words[kFirsts];
  if (!fits(job) || first < 0 || first >= job.first_groups) refuse(kernel, words);
}

void check_piece(const char* kernel, const KernelArgument* operands) {
  const auto* words = reinterpret_cast<const int32_t*>(operands[4].data);
  const Job& job = job_of(words);
  const int32_t unit = words[kAt], part = words[kPart];
  const bool is_next = words[kFirsts] == job.first_groups && unit >= 0 && unit < job.b_turns &&
                       part >= 0 && part < job.b_pieces;
  if (!fits(job) || operands[5].value != job.head_dim || !is_next) refuse(kernel, words);
}

constexpr double kTableCycles = kCall + copy_cycles(kAPayload / 4);
// Per row a reduction, product, sum and root of scalars, all waited for.
constexpr double kFactorCycles =
    kRows * (npu::fp32::kReduction + 3 * npu::fp32::kScalar + 10) + copy_cycles(kRowLanes);
// Of kStep columns of each half: four products behind each other, the two of the rotation into one
// sum; eight in all.
constexpr double rotate_cycles(double d) {
  constexpr double kRound = 8 * npu::fp32::kProductSlots * kStep / kLanes;
  return d / 2 / kStep * (kFill + kConvertFill + 10 + 4 * kProductFill + kRows * kRound);
}
// As if each unit were a query; its share of a unit.
double piece_cycles(const Timing&, const int64_t* integers) {
  const auto d = double(integers[0]);
  if (!is_dim(integers[0])) return kCall;
  const double unit = kFactorCycles + square_cycles(d / kSlice) + rotate_cycles(d);
  return kCall + copy_cycles(kPieceWords) + unit / (d / kSlice);
}
#endif

}  // namespace prefill_rotation
}  // namespace

// The next part of the tables of 8 rows.
NPU_KERNEL void prefill_rotation_table(const bfloat16* object, float* store, int32_t* job) {
  using namespace prefill_rotation;
  const int32_t words = table_words(job_of(job).head_dim), number = job[kFirsts]++;
  copy(words_of(object), reinterpret_cast<int32_t*>(store) + kTables + number * kAPayload / 4,
       words);
}

// The next result of a unit. head_dim: that of the job.
NPU_KERNEL void prefill_rotation_piece(const uint8_t* object, int32_t* piece, float* store,
                                       int32_t* work, int32_t* job, int32_t head_dim) {
  using namespace prefill_rotation;
  npu::fp32::round_to_nearest();
  const Job& header = job_of(job);
  const int32_t unit = job[kAt], part = job[kPart];
  if (part == 0) next_unit(reinterpret_cast<const bfloat16*>(object), store, work, header, unit);
  copy(work + part * kPieceWords, piece, kPieceWords);
  job[kPart] = part + 1;
  if (part + 1 < head_dim >> 5) return;
  job[kPart] = 0;
  job[kAt] = unit + 1;
  if (unit + 1 == header.heads + 2 * header.kv_heads) begin_round(job);
}

NPU_DECLARE(prefill_rotation_table, {.operands = {buffer("object", npu::prefill::kAElements),
                                                  buffer("store", npu::prefill::kStore),
                                                  buffer("job", npu::prefill::kJobWords)},
                                     .cycles = fixed<int(prefill_rotation::kTableCycles)>,
                                     .check = prefill_rotation::check_table});
NPU_DECLARE(
    prefill_rotation_piece,
    {.operands = {buffer("object", npu::prefill::kBBytes),
                  buffer("piece", npu::prefill::kPieceWords), buffer("store", npu::prefill::kStore),
                  buffer("work", npu::prefill::kWork), buffer("job", npu::prefill::kJobWords),
                  integer("head_dim", 0, prefill_rotation::kMaxDim, 64)},
     .cycles = prefill_rotation::piece_cycles,
     .check = prefill_rotation::check_piece});
