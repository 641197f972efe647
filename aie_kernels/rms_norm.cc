// y = x / sqrt(mean(x^2) + epsilon) * weight for a row of bfloat16, in two passes over chunks of
// it: rms_square keeps the row and sums its squares, rms_scale, called with the weights of chunk
// after chunk, writes the result; rms_scale_add adds a residual to it. Sums, the root and the
// products are fp32 (norm.h); y is rounded once to bfloat16.
#include <stdint.h>

#include <aie_api/aie.hpp>

#include "fp32.h"
#include "kernel.h"
#include "norm.h"

namespace {
namespace rms {

constexpr int32_t kChunk = 128, kMaxWidth = 16384, kLanes = npu::fp32::kLanes;
// Words of the state: elements of the row that each pass has seen, the row's factor, and from kSums
// on the fp32 sums of squares.
constexpr int32_t kSeen = 0, kDone = 1, kFactor = 2, kSums = 32, kStateWords = 64;

// The row's factor: made from the sums by the first chunk, then kept.
inline float factor(int32_t* state, int32_t width, int32_t epsilon) {
  if (state[kDone] == 0) {
    const npu::fp32::Sums sums(aie::load_v<kLanes>(reinterpret_cast<float*>(state + kSums)));
    const float made = npu::norm::factor(sums, width, __builtin_bit_cast(float, epsilon));
    state[kFactor] = __builtin_bit_cast(int32_t, made);
  }
  return __builtin_bit_cast(float, state[kFactor]);
}

#if NPU_DECLARATIONS
// Not measured on hardware (norm.h). The chunk that makes the factor counts as the others, which
// share its cost as in a row of eight chunks.
constexpr int kCall = 24;
constexpr int kSquare = int(npu::norm::squares_cycles(kChunk, false)) + kCall;
constexpr double kShare = 1 / 8.0;
constexpr int kFactorShare = int(npu::norm::factor_cycles() * kShare) + kCall;

Parts square_parts(const Timing&, const int64_t*) { return {{npu::norm::squares_part(kChunk)}}; }
// What a residual adds is counted beside it.
Parts scale_parts(const Timing&, const int64_t*) {
  return {{npu::norm::scale_part(kChunk), npu::norm::factor_part(kShare)}};
}

// The state with a word that keeps its pass inside the row.
consteval Operand state(int32_t position) {
  return buffer("state", kStateWords).with_word(position, 0, kMaxWidth - kChunk, kChunk);
}
#endif

}  // namespace rms
}  // namespace

// Before a row: the core's memory holds anything until something is written there.
NPU_KERNEL void rms_begin(int32_t* state) { state[rms::kSeen] = state[rms::kDone] = 0; }

NPU_KERNEL void rms_square(const bfloat16* x, bfloat16* row, int32_t* state) {
  float* sums = reinterpret_cast<float*>(state + rms::kSums);
  const int32_t at = state[rms::kSeen];
  for (int32_t i = 0; i < rms::kChunk; i += rms::kLanes) {
    aie::store_v(row + at + i, aie::load_v<rms::kLanes>(x + i));
  }
  const auto before = at == 0 ? aie::zeros<float, rms::kLanes>() : aie::load_v<rms::kLanes>(sums);
  const auto after = npu::norm::add_squares(npu::fp32::Sums(before), x, rms::kChunk);
  npu::fp32::store(sums, after);
  state[rms::kSeen] = at + rms::kChunk;
}

// width: of the row without padding; epsilon: the bits of a float.
NPU_KERNEL void rms_scale(const bfloat16* row, const float* weight, bfloat16* y, int32_t* state,
                          int32_t width, int32_t epsilon) {
  npu::fp32::round_to_nearest();
  const float factor = rms::factor(state, width, epsilon);
  npu::norm::scale(row + state[rms::kDone], factor, weight, y, rms::kChunk);
  state[rms::kDone] += rms::kChunk;
}

// y = residual + what rms_scale writes, rounded once.
NPU_KERNEL void rms_scale_add(const bfloat16* row, const float* weight, const bfloat16* residual,
                              bfloat16* y, int32_t* state, int32_t width, int32_t epsilon) {
  npu::fp32::round_to_nearest();
  const float factor = rms::factor(state, width, epsilon);
  npu::norm::scale_add(row + state[rms::kDone], factor, weight, residual, y, rms::kChunk);
  state[rms::kDone] += rms::kChunk;
}

NPU_DECLARE(rms_begin,
            {.operands = {buffer("state", rms::kStateWords)}, .cycles = fixed<rms::kCall>});
NPU_DECLARE(rms_square, {.operands = {buffer("x", rms::kChunk), buffer("row", rms::kMaxWidth),
                                      rms::state(rms::kSeen)},
                         .cycles = fixed<rms::kSquare>,
                         .parts = rms::square_parts});
NPU_DECLARE(rms_scale,
            {.operands = {buffer("row", rms::kMaxWidth), buffer("weight", rms::kChunk),
                          buffer("y", rms::kChunk), rms::state(rms::kDone),
                          integer("width", 1, rms::kMaxWidth), integer("epsilon", 0, INT32_MAX)},
             .cycles = fixed<int(npu::norm::scale_cycles(rms::kChunk)) + rms::kFactorShare>,
             .parts = rms::scale_parts});
NPU_DECLARE(rms_scale_add,
            {.operands = {buffer("row", rms::kMaxWidth), buffer("weight", rms::kChunk),
                          buffer("residual", rms::kChunk), buffer("y", rms::kChunk),
                          rms::state(rms::kDone), integer("width", 1, rms::kMaxWidth),
                          integer("epsilon", 0, INT32_MAX)},
             .cycles = fixed<int(npu::norm::scale_add_cycles(rms::kChunk)) + rms::kFactorShare>,
             .parts = rms::scale_parts});
