// Rotary embedding of a vector of d elements: element i and element i + d / 2 are rotated by the
// angle whose cosine and sine are element i of two fp32 tables. With or without RMSNorm before it.
// fp32 inside, rounded once. d: a multiple of 64.
#pragma once

#include <stdint.h>

#include <aie_api/aie.hpp>

#include "fp32.h"
#include "kernel.h"
#include "norm.h"

namespace npu::rope {
namespace {

using fp32::kStep;
using fp32::Step;
using fp32::StepSums;

// kStep pairs.
template <typename Out>
inline void rotate(const Step& low, const Step& high, const float* cosine, const float* sine,
                   Out* out_low, Out* out_high) {
  const Step c = aie::load_v<kStep>(cosine), s = aie::load_v<kStep>(sine);
  fp32::store(out_low, aie::msc(StepSums(fp32::product(low, c)), high, s));
  fp32::store(out_high, aie::mac(StepSums(fp32::product(high, c)), low, s));
}

// out = x rotated; cosine and sine: d / 2 elements. out may be x. Sets rounding to nearest even.
template <typename In, typename Out>
inline void rope(const In* x, const float* cosine, const float* sine, Out* out, int32_t d) {
  fp32::round_to_nearest();
  const int32_t half = d / 2;
  for (int32_t i = 0; i < half; i += kStep) {
    const Step low = fp32::floats(fp32::load<kStep>(x + i));
    const Step high = fp32::floats(fp32::load<kStep>(x + half + i));
    rotate(low, high, cosine + i, sine + i, out + i, out + half + i);
  }
}

// out = x / sqrt(mean(x^2) + epsilon) * weight, rotated. out may be x. Sets rounding to nearest
// even.
template <typename In, typename Out>
inline void qk_norm_rope(const In* x, const float* weight, float epsilon, const float* cosine,
                         const float* sine, Out* out, int32_t d) {
  fp32::round_to_nearest();
  const int32_t half = d / 2;
  const fp32::Sums squares = norm::add_squares(norm::no_squares(), x, d);
  const Step factors = fp32::broadcast<kStep>(norm::factor(squares, d, epsilon));
  for (int32_t i = 0; i < half; i += kStep) {
    const Step low = norm::scaled(x + i, factors, weight + i);
    const Step high = norm::scaled(x + half + i, factors, weight + half + i);
    rotate(low, high, cosine + i, sine + i, out + i, out + half + i);
  }
}

#if NPU_DECLARATIONS
// Cycles by the multiply slot (fp32.h): four products for 32 pairs, and four more that scale them.
constexpr double rope_cycles(int64_t d) { return fp32::steps(d / 2) * 4 * fp32::kProductSlots; }
constexpr double qk_norm_rope_cycles(int64_t d, bool is_float) {
  return norm::squares_cycles(d, is_float) + norm::factor_cycles() +
         fp32::steps(d / 2) * 8 * fp32::kProductSlots;
}
#endif

}  // namespace
}  // namespace npu::rope
