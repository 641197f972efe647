// GEMV and dequantisation kernel cost (gemv_cost.h). Not measured on hardware.
//
// Per 8 columns of 32 rows: two loads (npu1: four of 32 bytes) beside everything else; in the move
// slot 4 unpacks of 4-bit codes, 8 interleaves that make bf16 of them, and a broadcast per column
// and vector; in the multiply slot one 32-lane bf16 multiply-add per column and vector (npu1: two
// of 16 lanes). A multiply-add follows 4 cycles after the one it depends on: one or two vectors
// keep two sums each, of every other column. Per group of 32 columns and vector: the sum of x
// (load, widen, 5 halvings), its start value, and two fp32 multiply-adds of 32 lanes, each built
// from bf16 parts.
#include "model/gemv_cost.h"

#include <algorithm>

namespace npu::model {

namespace {

constexpr double kSteps = 32, kColumns = 8, kGroups = 8;
constexpr double kUnpacks = 4, kInterleaves = 8, kChain = 4;
constexpr double kGroupSum = 14, kGroupScale = 28;  // cycles per vector
constexpr double kCall = 24;                        // call, counters, batch dispatch, loop set-up
constexpr double kSetup = 64;

}  // namespace

double gemv_cycles(arch::Generation generation, int64_t batch) {
  const auto vectors = static_cast<double>(batch);
  const double lanes = generation == arch::Generation::kNpu1 ? 16 : 32;
  const double moves = kUnpacks + kInterleaves + kColumns * vectors;
  const double macs = kColumns * vectors * 32 / lanes;
  const double chain = kColumns * kChain / (batch <= 2 ? 2 : 1);
  const double step = std::max({moves, macs, chain});
  return kSteps * step + kGroups * vectors * (kGroupSum + kGroupScale) + kCall;
}

double gemv_setup_cycles() { return kSetup; }

// Per 16 rows x 8 columns: 16 stores of a row's 16 bytes; in the move slot an unpack (npu1: two), 4
// times an interleave, two conversions to bf16 and two transposing shuffles (npu1: of halves); in
// the multiply slot 4 times an addition, a multiplication and an addition of 32 lanes (npu1:
// twice).
double dequant_cycles(arch::Generation generation) {
  constexpr double kSubBlocks = 64, kStores = 16;
  const double halves = generation == arch::Generation::kNpu1 ? 2 : 1;
  const double moves = halves * (1 + 4 * (1 + 2 + 2));
  const double macs = halves * 4 * 3;
  return kSubBlocks * std::max({kStores, moves, macs}) + kCall;
}

}  // namespace npu::model
