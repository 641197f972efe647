// y = x / sqrt(mean(x^2) + epsilon) * weight for a row of bfloat16, in two passes over chunks of
// it: rms_square keeps the row and sums its squares, rms_scale, called with the weights of chunk
// after chunk, writes the result. Sums, the root and the products are fp32; y is rounded once to
// bfloat16.
#include <stdint.h>

#include <aie_api/aie.hpp>

#include "kernel.h"

namespace {
namespace rms {

constexpr int32_t kChunk = 128, kMaxWidth = 16384, kLanes = 32;
// Words of the state: elements of the row that each pass has seen, the row's factor, and from kSums
// on the fp32 sums of squares.
constexpr int32_t kSeen = 0, kDone = 1, kFactor = 2, kSums = 32, kStateWords = 64;

using Sums = aie::accum<accfloat, kLanes>;
using Floats = aie::vector<float, kLanes>;

inline Floats product(const Floats& a, const Floats& b) {
  return aie::mac(Sums(aie::zeros<float, kLanes>()), a, b).template to_vector<float>();
}

#if NPU_DECLARATIONS
// Not measured on hardware. Per 32 elements, in the multiply slot: a multiply-add of the squares,
// or two fp32 products, each built from three bf16 ones (npu1: of 16 lanes).
constexpr int kCall = 24, kSteps = kChunk / kLanes * (__AIE_ARCH__ == 20 ? 2 : 1);

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
  rms::Sums sum(at == 0 ? aie::zeros<float, rms::kLanes>() : aie::load_v<rms::kLanes>(sums));
  for (int32_t i = 0; i < rms::kChunk; i += rms::kLanes) {
    const auto part = aie::load_v<rms::kLanes>(x + i);
    aie::store_v(row + at + i, part);
    sum = aie::mac(sum, part, part);
  }
  aie::store_v(sums, sum.template to_vector<float>());
  state[rms::kSeen] = at + rms::kChunk;
}

// width: of the row without padding; epsilon: the bits of a float.
NPU_KERNEL void rms_scale(const bfloat16* row, const float* weight, bfloat16* y, int32_t* state,
                          int32_t width, int32_t epsilon) {
  // A core resets to floor, which would bias every result; the mode stays set afterwards.
  aie::set_rounding(aie::rounding_mode::conv_even);
  const int32_t at = state[rms::kDone];
  if (at == 0) {
    const float* sums = reinterpret_cast<const float*>(state + rms::kSums);
    const float total = aie::reduce_add(aie::load_v<rms::kLanes>(sums));
    const float offset = __builtin_bit_cast(float, epsilon);
    const float factor = aie::invsqrt(total / static_cast<float>(width) + offset);
    state[rms::kFactor] = __builtin_bit_cast(int32_t, factor);
  }
  const float factor = __builtin_bit_cast(float, state[rms::kFactor]);
  const auto factors = aie::broadcast<float, rms::kLanes>(factor);
  for (int32_t i = 0; i < rms::kChunk; i += rms::kLanes) {
    const rms::Sums part(aie::load_v<rms::kLanes>(row + at + i));
    const auto scaled = rms::product(part.template to_vector<float>(), factors);
    const rms::Sums result(rms::product(scaled, aie::load_v<rms::kLanes>(weight + i)));
    aie::store_v(y + i, result.template to_vector<bfloat16>());
  }
  state[rms::kDone] = at + rms::kChunk;
}

NPU_DECLARE(rms_begin,
            {.operands = {buffer("state", rms::kStateWords)}, .cycles = fixed<rms::kCall>});
NPU_DECLARE(rms_square, {.operands = {buffer("x", rms::kChunk), buffer("row", rms::kMaxWidth),
                                      rms::state(rms::kSeen)},
                         .cycles = fixed<rms::kSteps * 2 + rms::kCall>});
NPU_DECLARE(rms_scale,
            {.operands = {buffer("row", rms::kMaxWidth), buffer("weight", rms::kChunk),
                          buffer("y", rms::kChunk), rms::state(rms::kDone),
                          integer("width", 1, rms::kMaxWidth), integer("epsilon", 0, INT32_MAX)},
             .cycles = fixed<rms::kSteps * 6 + rms::kCall + 16>});
