// Norms of the prefill configuration (prefill_job.h, kNorm): x += norm(y) w1, a = x w2, and the
// factors of x's rows. A core's 8 rows pass in blocks of 32 columns.
#include <stdint.h>

#include <aie_api/aie.hpp>

#include "fp32.h"
#include "kernel.h"
#include "norm.h"
#include "prefill_job.h"
#include "prefill_rows.h"

namespace {
namespace prefill_norm {

using namespace prefill_rows;
using npu::fp32::Step, npu::fp32::StepSums;

constexpr int32_t kBlocks = kGroup / kSlice;          // of a group
constexpr int32_t kXBlocks = kBPayload / 4 / kBlock;  // of x in an object of B
constexpr int32_t kBlockPieces = 3;                   // x in two halves, then a
static_assert((kBlocks & (kBlocks - 1)) == 0 && (kXBlocks & (kXBlocks - 1)) == 0);

// Words of `work`: a group of y; squares of y, then of x; factors, each for all lanes of its row; a
// block of x; one of a. The store has w1 and w2.
constexpr int32_t kSquares = kObjectWords, kFactors = kSquares + kRowLanes;
constexpr int32_t kX = kFactors + kRowLanes, kA = kX + kBlock;
static_assert(kA + kPieceWords <= kWork);

// 1 / sqrt(mean + epsilon) from the rows' squares, as npu::norm::factor().
NPU_OUTLINED inline void find_factors(int32_t* work, const Job& job) {
  const auto width = static_cast<float>(job.width);
  float* squares = floats(work) + kSquares;
  NPU_ROLLED for (int32_t row = 0; row < kRows; ++row, squares += kLanes) {
    const float total = aie::reduce_add(aie::load_v<kLanes>(squares));
    const float mean = npu::fp32::quotient(total, width);
    npu::fp32::fill(squares + kRowLanes, aie::invsqrt(mean + bits_float(job.epsilon)));
  }
}

#ifdef AIE_HOST_ROWS  // x86 `fast` builds
inline void square_y(const bfloat16* y, int32_t* work) {
  AIE_HOST_ROWS::square(y, kBlocks, floats(work) + kSquares);
}
inline void norm_block(const float* x, const bfloat16* y, const float* w1, const float* w2,
                       int32_t* work) {
  AIE_HOST_ROWS::norm(x, w1, w2, floats(work) + kFactors, y, halves(work + kA),
                      floats(work) + kSquares, floats(work) + kX);
}
#else

inline void square_y(const bfloat16* y, int32_t* work) {
  square_rows(y, kBlocks, floats(work) + kSquares);
}

constexpr int32_t kColumn = kSlice - 1;

// sums = x + norm(y) w1.
inline void add_norm(const float* __restrict x, const bfloat16* __restrict y,
                     const float* __restrict w1, const float* __restrict factors,
                     float* __restrict sums) {
  NPU_ROLLED for (int32_t i = 0; i < kBlock; i += kStep) {
    const Step factor = aie::load_v<kStep>(factors + i);
    const StepSums part(npu::norm::scaled(y + i, factor, w1 + (i & kColumn)));
    npu::fp32::store(sums + i, aie::add(npu::fp32::load<kStep>(x + i), part));
  }
}

// a = sums w2; squares += sums^2.
inline void weigh(const float* __restrict sums, const float* __restrict w2, bfloat16* __restrict a,
                  float* __restrict squares) {
  NPU_ROLLED for (int32_t i = 0; i < kBlock; i += kStep) {
    const Step sum = aie::load_v<kStep>(sums + i);
    const Step weight = aie::load_v<kStep>(w2 + (i & kColumn));
    npu::fp32::store(a + i, StepSums(npu::fp32::product(sum, weight)));
    const StepSums square(npu::fp32::product(sum, sum));
    npu::fp32::store(squares + i, aie::add(npu::fp32::load<kStep>(squares + i), square));
  }
}

// y is null where there is none.
inline void norm_block(const float* x, const bfloat16* y, const float* w1, const float* w2,
                       int32_t* work) {
  float* sums = floats(work) + kX;
  if (y == nullptr) {
    copy(words_of(x), work + kX, kBlock);
  } else {
    add_norm(x, y, w1, floats(work) + kFactors, sums);
  }
  weigh(sums, w2, halves(work + kA), floats(work) + kSquares);
}

#endif

inline void next_block(const uint8_t* object, const float* store, int32_t* work,
                       const int32_t* words) {
  const Job& job = job_of(words);
  const int32_t block = words[kAt];
  if (block == 0) clear(work + kSquares, kRowLanes);
  const float* w1 = store + block * kSlice;
  const bfloat16* y = halves(work) + (block & (kBlocks - 1)) * kBlock;
  const float* x = reinterpret_cast<const float*>(object) + (block & (kXBlocks - 1)) * kBlock;
  norm_block(x, job.a_turns != 0 ? y : nullptr, w1, w1 + job.columns, work);
}

#if NPU_DECLARATIONS
constexpr int32_t kMaxGroups = kStore / 2 / kGroup;

bool fits(const Job& job) {
  return Kind(job.kind) == Kind::kNorm && job.columns > 0 && job.columns % kGroup == 0 &&
         job.columns <= kStore / 2 && job.width > 0 && job.width <= job.columns && job.groups > 0 &&
         job.groups <= job.columns / kGroup && job.width <= job.groups * kGroup &&
         (job.a_turns == 0 || job.a_turns == 1) && job.first_groups == job.a_turns * job.groups &&
         job.b_turns == kBlocks / kXBlocks && job.b_pieces == kXBlocks * kBlockPieces;
}

enum Call : int32_t { kCallSquare, kCallTake, kCallPiece, kCallTail };

// Whether the round's counters allow a call.
bool is_next(Call call, const Job& job, const int32_t* words) {
  const int64_t first = words[kFirsts], taken = words[kTakes], block = words[kAt];
  const int64_t part = words[kPart];
  if (first < 0 || taken < 0 || block < 0 || part < 0 || part >= kBlockPieces) return false;
  switch (call) {
    case kCallSquare:
      return first < job.first_groups && taken == 0;
    case kCallTake:
      return job.a_turns == 1 && first == job.first_groups && taken < job.groups &&
             block == taken * kBlocks && part == 0;
    case kCallPiece:
      return block < job.groups * kBlocks && (job.a_turns == 0 || taken == block / kBlocks + 1);
    case kCallTail:
      return block == job.groups * kBlocks && part == 0;
  }
  return false;
}

// kGroups: an operand that repeats the word; -1: none.
template <Call kCallOf, int kJobOperand, int kGroups = -1>
void check(const char* kernel, const KernelArgument* operands) {
  const auto* words = reinterpret_cast<const int32_t*>(operands[kJobOperand].data);
  const Job& job = job_of(words);
  const bool repeated = kGroups < 0 || operands[kGroups].value == job.groups;
  if (!repeated || !fits(job) || !is_next(kCallOf, job, words)) refuse(kernel, words);
}

// Per row a reduction, the quotient, sum and root of scalars, all waited for.
constexpr double kFactorCycles =
    kOutlined + kRows * (npu::fp32::kReduction + kOutlined + npu::fp32::kQuotient +
                         2 * npu::fp32::kScalar + 10);
constexpr double kClearCycles = copy_cycles(kRowLanes);
constexpr double kSquareCycles = kCall + kClearCycles + square_cycles(kBlocks);
// Those of a round are found once.
double take_cycles(const Timing&, const int64_t* integers) {
  return kCall + copy_cycles(kObjectWords) + kFactorCycles / double(longest(1, integers[0]));
}
// Both loops have two products per 32 elements, the first of them one behind the other. With y.
constexpr double kLoopCycles =
    npu::fp32::steps(kBlock) * (2 * npu::fp32::kProductSlots + npu::fp32::kAddSlots);
constexpr double kBlockCycles =
    20 + (kFill + kConvertFill + 2 * kProductFill) + (kFill + kProductFill) + 2 * kLoopCycles;
// A third of what a block takes.
constexpr double kPieceCycles =
    kCall + (kBlockCycles + 2 * copy_cycles(kPieceWords) + kToOperandCycles) / kBlockPieces;
// With squares set to zero for the next round; each factor is loaded and stored before the next.
constexpr double kTailCycles =
    kCall + copy_cycles(kPieceWords) + kFactorCycles + kRows * 14 + kClearCycles;
#endif

}  // namespace prefill_norm
}  // namespace

// y of a group, for its squares.
NPU_KERNEL void prefill_norm_square(const bfloat16* y, int32_t* work, int32_t* job) {
  using namespace prefill_norm;
  if (job[kFirsts]++ == 0) clear(work + kSquares, kRowLanes);
  square_y(y, work);
}

// y of a group, to be kept. groups: those of the job.
NPU_KERNEL void prefill_norm_take(const bfloat16* y, int32_t* work, int32_t* job, int32_t groups) {
  using namespace prefill_norm;
  (void)groups;
  copy(words_of(y), work, kObjectWords);
  if (job[kTakes]++ == 0) find_factors(work, job_of(job));
}

// The next result of an object of x.
NPU_KERNEL void prefill_norm_piece(const uint8_t* object, int32_t* piece, const float* store,
                                   int32_t* work, int32_t* job) {
  using namespace prefill_norm;
  npu::fp32::round_to_nearest();
  const int32_t part = job[kPart];
  if (part == kBlockPieces - 1) {
    to_operand(halves(work + kA), halves(piece));
    job[kPart] = 0;
    ++job[kAt];
    return;
  }
  if (part == 0) next_block(object, store, work, job);
  copy(work + kX + part * kPieceWords, piece, kPieceWords);
  job[kPart] = part + 1;
}

// The factors of 8 rows of x; the round has ended.
NPU_KERNEL void prefill_norm_tail(int32_t* work, int32_t* piece, int32_t* job) {
  using namespace prefill_norm;
  clear(piece, kPieceWords);
  find_factors(work, job_of(job));
  NPU_SERIAL_FOR(int32_t row = 0, row < kRows, ++row) piece[row] = work[kFactors + row * kLanes];
  begin_round(job);
}

NPU_DECLARE(prefill_norm_square,
            {.operands = {buffer("y", npu::prefill::kAElements),
                          buffer("work", npu::prefill::kWork), npu::prefill::job_operand()},
             .cycles = fixed<int(prefill_norm::kSquareCycles)>,
             .check = prefill_norm::check<prefill_norm::kCallSquare, 2>});
NPU_DECLARE(prefill_norm_take,
            {.operands = {buffer("y", npu::prefill::kAElements),
                          buffer("work", npu::prefill::kWork), npu::prefill::job_operand(),
                          integer("groups", 1, prefill_norm::kMaxGroups)},
             .cycles = prefill_norm::take_cycles,
             .check = prefill_norm::check<prefill_norm::kCallTake, 2, 3>});
NPU_DECLARE(prefill_norm_piece,
            {.operands = {buffer("object", npu::prefill::kBBytes),
                          buffer("piece", npu::prefill::kPieceWords).overwritten(),
                          buffer("store", npu::prefill::kStore),
                          buffer("work", npu::prefill::kWork), npu::prefill::job_operand()},
             .cycles = fixed<int(prefill_norm::kPieceCycles)>,
             .check = prefill_norm::check<prefill_norm::kCallPiece, 4>});
NPU_DECLARE(prefill_norm_tail,
            {.operands = {buffer("work", npu::prefill::kWork),
                          buffer("piece", npu::prefill::kPieceWords).overwritten(),
                          npu::prefill::job_operand()},
             .cycles = fixed<int(prefill_norm::kTailCycles)>,
             .check = prefill_norm::check<prefill_norm::kCallTail, 2>});
