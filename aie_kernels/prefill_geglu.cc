// GeGLU of the prefill configuration (prefill_job.h, kGeglu): gelu(gate) up, 8 blocks of 8 rows x
// 32 columns at a time, all computed for the first of their results.
#include <stdint.h>

#include <aie_api/aie.hpp>

#include "gelu.h"
#include "kernel.h"
#include "prefill_job.h"
#include "prefill_rows.h"

namespace {
namespace prefill_geglu {

using namespace prefill_rows;

constexpr int32_t kElements = kBPayload / 2;          // of an object
constexpr int32_t kPieces = kBPayload / kPieceBytes;  // its results
// Words of `work`: gates, then results.
constexpr int32_t kResults = kObjectWords;
static_assert(kResults + kObjectWords <= kWork);

#if NPU_DECLARATIONS
// kCounted: what of a round must have come.
template <bool kTaken, int kJobOperand>
void check(const char* kernel, const KernelArgument* operands) {
  const auto* words = reinterpret_cast<const int32_t*>(operands[kJobOperand].data);
  const Job& job = job_of(words);
  const bool fits = Kind(job.kind) == Kind::kGeglu && job.first_groups == 0 && job.groups == 1 &&
                    job.a_turns == 1 && job.b_turns == 1 && job.b_pieces == kPieces;
  const bool is_next = words[kTakes] == (kTaken ? 1 : 0) && words[kPart] >= 0 &&
                       words[kPart] < (kTaken ? kPieces : 1);
  if (!fits || !is_next) refuse(kernel, words);
}

// The loop's longest chain: fp32 products, bf16 ones before and after the power, sums and
// comparisons that split the exponent; stored as bf16.
constexpr double kProducts = __AIE_ARCH__ == 20 ? 14 : 5;
constexpr double kChainCycles =
    kFill + kConvertFill + kProducts * kProductFill + (__AIE_ARCH__ == 20 ? 40 : 30);
constexpr double kTakeCycles = kCall + copy_cycles(kObjectWords);
// An eighth of what an object takes.
constexpr double kPieceCycles =
    kCall + kToOperandCycles + (kChainCycles + npu::gelu::geglu_cycles(kElements)) / kPieces;
// The generated loop with its ends.
Parts piece_parts(const Timing&, const int64_t*) {
  Generated loop = npu::gelu::geglu_part(kElements, 1.0 / kPieces);
  loop.counted += kChainCycles / kPieces;
  return {{loop}};
}
#endif

}  // namespace prefill_geglu
}  // namespace

NPU_KERNEL void prefill_geglu_take(const bfloat16* gates, int32_t* work, int32_t* job) {
  using namespace prefill_geglu;
  copy(words_of(gates), work, kObjectWords);
  ++job[kTakes];
}

// The next result of an object of B.
NPU_KERNEL void prefill_geglu_piece(const uint8_t* up, int32_t* piece, int32_t* work,
                                    int32_t* job) {
  using namespace prefill_geglu;
  const int32_t part = job[kPart];
  bfloat16* results = halves(work + kResults);
  if (part == 0) {
    npu::gelu::geglu(halves(work), reinterpret_cast<const bfloat16*>(up), results, kElements);
  }
  to_operand(results + part * kBlock, halves(piece));
  job[kPart] = part + 1;
  if (part + 1 == kPieces) begin_round(job);
}

NPU_DECLARE(prefill_geglu_take,
            {.operands = {buffer("gates", npu::prefill::kAElements),
                          buffer("work", npu::prefill::kWork), npu::prefill::job_operand()},
             .cycles = fixed<int(prefill_geglu::kTakeCycles)>,
             .check = prefill_geglu::check<false, 2>});
NPU_DECLARE(prefill_geglu_piece,
            {.operands = {buffer("up", npu::prefill::kBBytes),
                          buffer("piece", npu::prefill::kPieceWords).overwritten(),
                          buffer("work", npu::prefill::kWork), npu::prefill::job_operand()},
             .cycles = fixed<int(prefill_geglu::kPieceCycles)>,
             .check = prefill_geglu::check<true, 3>,
             .parts = prefill_geglu::piece_parts});
