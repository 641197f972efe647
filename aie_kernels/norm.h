// RMSNorm by parts, fp32 inside: sums of squares, the factor 1 / sqrt(mean + epsilon), scaling by
// factor and weights, with a residual added or not; and sums of vectors. n: multiples of 32.
#pragma once

#include <stdint.h>

#include <aie_api/aie.hpp>

#include "fp32.h"
#include "kernel.h"

namespace npu::norm {
namespace {

using fp32::Floats;
using fp32::kLanes;
using fp32::kStep;
using fp32::Step;
using fp32::StepSums;
using fp32::Sums;

inline Sums no_squares() { return Sums(aie::zeros<float, kLanes>()); }

// Adds the squares of n elements to a lane sum each.
inline Sums add_squares(const Sums& before, const bfloat16* x, int32_t n) {
  Sums sums = before;
  for (int32_t i = 0; i < n; i += kLanes) {
    const auto part = aie::load_v<kLanes>(x + i);
    sums = aie::mac(sums, part, part);
  }
  return sums;
}
inline Sums add_squares(const Sums& before, const float* x, int32_t n) {
  Sums sums = before;
  for (int32_t i = 0; i < n; i += kLanes) {
    const auto part = aie::load_v<kLanes>(x + i);
    sums = aie::add(sums, Sums(fp32::product(part, part)));
  }
  return sums;
}

// 1 / sqrt(mean + epsilon) of `width` elements.
inline float factor(const Sums& squares, int32_t width, float epsilon) {
  const float total = aie::reduce_add(fp32::floats(squares));
  return aie::invsqrt(total / static_cast<float>(width) + epsilon);
}

// kStep elements times factor and weights.
template <typename In>
inline Step scaled(const In* x, const Step& factors, const float* weight) {
  const Step by_factor = fp32::product(fp32::floats(fp32::load<kStep>(x)), factors);
  return fp32::product(by_factor, aie::load_v<kStep>(weight));
}

// y = x * factor * weight. y may be x.
template <typename In, typename Out>
inline void scale(const In* x, float factor, const float* weight, Out* y, int32_t n) {
  const Step factors = fp32::broadcast<kStep>(factor);
  for (int32_t i = 0; i < n; i += kStep) {
    fp32::store(y + i, StepSums(scaled(x + i, factors, weight + i)));
  }
}

// y = residual + x * factor * weight. y may be x or residual.
template <typename In, typename Residual, typename Out>
inline void scale_add(const In* x, float factor, const float* weight, const Residual* residual,
                      Out* y, int32_t n) {
  const Step factors = fp32::broadcast<kStep>(factor);
  for (int32_t i = 0; i < n; i += kStep) {
    const StepSums part(scaled(x + i, factors, weight + i));
    fp32::store(y + i, aie::add(fp32::load<kStep>(residual + i), part));
  }
}

// Squares of x to a lane sum each, and x as fp32 to `wide`, which advances by `step`: kLanes, or 0
// where nobody reads it.
NPU_OUTLINED inline void widen_square(const bfloat16* x, float* wide, int32_t step, float* squares,
                                      int32_t n) {
#ifdef AIE_HOST_WIDEN_SQUARE  // x86 `fast` builds
  AIE_HOST_WIDEN_SQUARE(x, wide, step != 0, squares, n);
#else
  Sums sums = fp32::load(squares);
  NPU_ROLLED for (int32_t i = 0; i < n; i += kLanes, wide += step) {
    const auto part = aie::load_v<kLanes>(x + i);
    fp32::store(wide, Sums(part));
    sums = aie::mac(sums, part, part);
  }
  fp32::store(squares, sums);
#endif
}

// y = a + b. y may be a or b.
template <typename A, typename B, typename Out>
inline void add(const A* a, const B* b, Out* y, int32_t n) {
  for (int32_t i = 0; i < n; i += kLanes) {
    fp32::store(y + i, aie::add(fp32::load(a + i), fp32::load(b + i)));
  }
}

// y = x * factor. y may be x.
template <typename In, typename Out>
inline void multiply(const In* x, float factor, Out* y, int32_t n) {
  const Step factors = fp32::broadcast<kStep>(factor);
  for (int32_t i = 0; i < n; i += kStep) {
    fp32::store(y + i, StepSums(fp32::product(fp32::floats(fp32::load<kStep>(x + i)), factors)));
  }
}

#if NPU_DECLARATIONS
// Cycles of the above (fp32.h), by the multiply slot, which also adds; loads and stores hide behind
// it. The sums of squares are one chain.
constexpr double squares_cycles(int64_t n, bool is_float) {
  const double step = is_float ? fp32::kProductSlots + fp32::kAddSlots : fp32::kBf16Slots;
  return fp32::steps(n) * longest(step, fp32::kChain);
}
constexpr double factor_cycles() { return fp32::kReduction + 3 * fp32::kScalar; }
// Generated, of bf16: the squares of n elements, the factor, the products of an x with factor and
// weights.
constexpr Generated squares_part(int64_t n, double times = 1) {
  return {"rms_norm_squares", {1, 1, n}, times * squares_cycles(n, false), times};
}
constexpr Generated factor_part(double times) {
  return {"rms_norm_root", {1, 1, 1}, times * factor_cycles(), times};
}
constexpr double scale_cycles(int64_t n) { return fp32::steps(n) * 2 * fp32::kProductSlots; }
constexpr Generated scale_part(int64_t n) {
  return {"rms_norm_scaling", {1, 1, n}, scale_cycles(n)};
}
constexpr double scale_add_cycles(int64_t n) {
  return scale_cycles(n) + fp32::steps(n) * fp32::kAddSlots;
}
// Two loads and a store of up to 128 bytes each bind before the addition: 64 bytes (npu1: 32) per
// slot and cycle, two load slots.
constexpr double add_cycles(int64_t n) { return fp32::steps(n) * (__AIE_ARCH__ == 20 ? 4 : 2); }
// A round of this loop takes 30 cycles, from load to sum or store.
constexpr double widen_square_cycles(int64_t n) {
  return fp32::kOutlined + 30 + fp32::steps(n) * longest(fp32::kBf16Slots, fp32::kChain);
}
constexpr double multiply_cycles(int64_t n) { return fp32::steps(n) * fp32::kProductSlots; }
#endif

}  // namespace
}  // namespace npu::norm
