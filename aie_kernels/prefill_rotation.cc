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

// x / 2^shift for x >= 0, but 0 where it is below 2^-126; infinity and NaN stay.
inline float divided(float x, int32_t shift) {
  constexpr uint32_t kOne = 1u << 23, kInfinity = 0x7F800000;  // of an exponent
  const auto bits = __builtin_bit_cast(uint32_t, x);
  const uint32_t by = static_cast<uint32_t>(shift) * kOne;
  const uint32_t less = bits < by + kOne ? 0 : bits - by;
  return __builtin_bit_cast(float, bits >= kInfinity ? bits : less);
}

// 1 / sqrt(mean + epsilon) from the rows' squares, as npu::norm::factor(), for 2^shift columns.
inline void find_factors(float* squares, int32_t shift, float epsilon) {
  float* factors = squares + kRowLanes;
  NPU_ROLLED for (int32_t i = 0; i < kRowLanes; i += kLanes) {
    factors[i] = aie::reduce_add(aie::load_v<kLanes>(squares + i));
  }
  NPU_ROLLED for (int32_t i = 0; i < kRowLanes; i += kLanes) {
    npu::fp32::fill(factors + i, aie::invsqrt(divided(factors[i], shift) + epsilon));
  }
}

// Elements from a row of results to the next, and from 32 columns to the next.
struct Steps {
  int32_t row, block;
};

// The columns of the lower half of a unit, kStep of a row at a time, and those that belong to them.
// factors: 32 lanes per row.
inline void rotate_rows(const bfloat16* __restrict unit, const float* __restrict weights,
                        const float* __restrict factors, const float* __restrict cosines,
                        bfloat16* __restrict out, const Steps& steps, int32_t d) {
  const int32_t half = d >> 1, high = half * kRows, high_out = (d >> 6) * steps.block;
  NPU_ROLLED for (int32_t i = 0; i < half / kStep * kRows; ++i) {
    const int32_t row = i & (kRows - 1), at = i / kRows * kStep;
    const int32_t block = at >> 5, column = at & (kSlice - 1);
    const bfloat16* x = unit + block * kBlock + row * kSlice + column;
    const Step factor = aie::load_v<kStep>(factors + row * kLanes);
    const Step low = npu::norm::scaled(x, factor, weights + at);
    const Step upper = npu::norm::scaled(x + high, factor, weights + half + at);
    const float* cosine = cosines + row * d + at;
    bfloat16* to = out + block * steps.block + row * steps.row + column;
    npu::rope::rotate(low, upper, cosine, cosine + half, to, to + high_out);
  }
}

// A unit of q or k, normalised and rotated.
inline void rotate(const bfloat16* unit, const float* weights, float* store, bfloat16* out,
                   const Steps& steps, const Job& job) {
  const int32_t d = job.head_dim;
  float* squares = store + kSquares;
  clear(reinterpret_cast<int32_t*>(squares), kRowLanes);
  square_rows(unit, d >> 5, squares);
  find_factors(squares, __builtin_ctz(static_cast<uint32_t>(d)), bits_float(job.epsilon));
  rotate_rows(unit, weights, store + kFactors, store + kTables, out, steps, d);
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
  const bool repeated = operands[5].value == job.head_dim && operands[6].value == job.dim;
  if (!fits(job) || !repeated || !is_next) refuse(kernel, words);
}

constexpr double kTableCycles = kCall + copy_cycles(kAPayload / 4);
// Reductions of rows one after the other, three slots per halving; per row a sum and a root of
// scalars, waited for, and ten operations of integers.
constexpr double kFactorCycles = copy_cycles(kRowLanes) + npu::fp32::kReduction + 12 +
                                 kRows * 3 * 5 + kRows * (2 * npu::fp32::kScalar + 24);
// Per kStep columns of each half and row eight products; four of them behind each other in a round,
// the last two into one sum.
constexpr double rotate_cycles(double d) {
  constexpr double kRound = 8 * npu::fp32::kProductSlots * kStep / kLanes;
  return 20 + kFill + kConvertFill + 4 * kProductFill + d / 2 / kStep * kRows * kRound;
}
// Per 16 columns an index; per row a load that the store waits for, and a jump.
constexpr double widen_cycles(double d, double dim) {
  return kOutlined + copy_cycles(kRows / 2 * d) + dim / 16 * (10 + kRows * 15);
}
// As if each unit were a query; its share of a unit.
double piece_cycles(const Timing&, const int64_t* integers) {
  const auto d = double(integers[0]), dim = double(integers[1]);
  if (!is_dim(integers[0])) return kCall;
  const double unit = kFactorCycles + square_cycles(d / kSlice) + rotate_cycles(d);
  const double widened = dim == d ? 0 : widen_cycles(d, dim);
  return kCall + copy_cycles(kPieceWords) + (widened + unit) / (d / kSlice);
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

// The next result of a unit. head_dim, dim: those of the job.
NPU_KERNEL void prefill_rotation_piece(const uint8_t* object, int32_t* piece, float* store,
                                       int32_t* work, int32_t* job, int32_t head_dim, int32_t dim) {
  using namespace prefill_rotation;
  (void)dim;
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

NPU_DECLARE(prefill_rotation_table,
            {.operands = {buffer("object", npu::prefill::kAElements),
                          buffer("store", npu::prefill::kStore), npu::prefill::job_operand()},
             .cycles = fixed<int(prefill_rotation::kTableCycles)>,
             .check = prefill_rotation::check_table});
NPU_DECLARE(prefill_rotation_piece,
            {.operands = {buffer("object", npu::prefill::kBBytes),
                          buffer("piece", npu::prefill::kPieceWords).overwritten(),
                          buffer("store", npu::prefill::kStore),
                          buffer("work", npu::prefill::kWork), npu::prefill::job_operand(),
                          integer("head_dim", 0, prefill_rotation::kMaxDim, 64),
                          integer("dim", 0, prefill_rotation::kMaxDim, npu::prefill::kSlice)},
             .cycles = prefill_rotation::piece_cycles,
             .check = prefill_rotation::check_piece});
