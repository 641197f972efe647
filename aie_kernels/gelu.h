// gelu(gate) * up with the tanh form of GELU, fp32 inside, rounded once.
//
//   gelu(g) = g h(g),  h = (1 + tanh u) / 2 = 1 / (1 + 2^-v)
//   u = sqrt(2 / pi) (g + 0.044715 g^3),  v = 2 log2(e) u
//
// 1 + tanh u would lose all digits where u is large and negative, so that side has a factor of its
// own: h(g) = min(1, 2^v) / (1 + 2^-|v|), whose relative error is bounded everywhere (h
// below 2^-125 may be 0). With a unit for tanh and exp2 (AIE2P; bf16 results), 1 / (1 + 2^-|v|) is
// (1 + tanh |u|) / 2. Without one (AIE2), 2^-|v| and the reciprocal are polynomials.
//
// Relative error of h: on AIE2P, with a unit that rounds correctly, 2^-8 (of 2^v, below 0 only) and
// 2^-9 2/3 (of 1 + tanh); on AIE2 1.7e-4. docs/fidelity.md has the bound of the result.
#pragma once

#include <stdint.h>

#include <aie_api/aie.hpp>

#include "fp32.h"
#include "kernel.h"
#include "norm.h"

namespace npu::gelu {
namespace {

using fp32::Floats;
using fp32::kLanes;
using fp32::kStep;
using fp32::Step;
using fp32::StepSums;

constexpr float kRoot = 0.797884561f;  // sqrt(2 / pi)
constexpr float kCube = 0.044715f;
constexpr float kTwoLog2e = 2.88539008f;

// factor (g + kCube g^3)
template <unsigned N>
inline aie::vector<float, N> cubic(const aie::vector<bfloat16, N>& gate, float factor) {
  using Sums = aie::accum<accfloat, N>;
  const auto square = fp32::floats(aie::mac(Sums(aie::zeros<float, N>()), gate, gate));
  const Sums one(fp32::broadcast<N>(factor));
  const Sums slope = aie::mac(one, square, fp32::broadcast<N>(factor * kCube));
  return fp32::product(fp32::floats(slope), fp32::floats(Sums(gate)));
}

#if __AIE_ARCH__ >= 21

template <unsigned N>
inline aie::vector<float, N> h(const aie::vector<bfloat16, N>& gate) {
  using Sums = aie::accum<accfloat, N>;
  const auto u = cubic(gate, kRoot), below = aie::min(u, aie::zeros<float, N>());
  // Half of min(1, 2^v)
  const Sums exponent =
      aie::mac(Sums(fp32::broadcast<N>(-1.0f)), below, fp32::broadcast<N>(kTwoLog2e));
  const auto power = aie::exp2<bfloat16>(fp32::floats(exponent));
  const auto size =
      aie::bit_and(u.template cast_to<int32_t>(), aie::broadcast<int32_t, N>(0x7FFFFFFF));
  const auto tangent = aie::tanh<bfloat16>(size.template cast_to<float>());
  return fp32::floats(aie::mac(Sums(power), power, tangent));
}

#else

// Coefficients of 1, x, x^2, ...; each polynomial has the least largest relative error of its
// degree.
constexpr float kExp2[] = {1.0f, 0.693282927f, 0.242210962f, 0.0550089314f};  // +-1/2: 1.02e-4
constexpr float kCubic[] = {kRoot * kTwoLog2e, kRoot* kTwoLog2e* kCube};
constexpr float kInverse[] = {1.0f,         -0.997308188f, 0.959154799f, -0.783540454f,
                              0.430776906f, -0.109112594f};  // 1 / (1 + x), [0, 1]: 5.9e-5

// Term by term at compile time: a core whose program a stream loads has no tables in data memory.
template <const auto& kCoefficients, int32_t kTerm = 0, unsigned N>
inline aie::vector<float, N> polynomial(const aie::vector<float, N>& x) {
  constexpr float kCoefficient = kCoefficients[kTerm];
  if constexpr (kTerm + 1 == sizeof(kCoefficients) / sizeof(float)) {
    return fp32::broadcast<N>(kCoefficient);
  } else {
    const auto higher = polynomial<kCoefficients, kTerm + 1>(x);
    const aie::accum<accfloat, N> term(fp32::broadcast<N>(kCoefficient));
    return fp32::floats(aie::mac(term, higher, x));
  }
}

// 2^-|v| = scale 2^fraction, |fraction| <= 1/2.
template <unsigned N>
inline void split_exponent(const aie::vector<float, N>& v, aie::vector<float, N>& fraction,
                           aie::vector<float, N>& scale) {
  using Sums = aie::accum<accfloat, N>;
  // -|v|, limited: 2^-127 becomes 0 below
  const auto minus =
      aie::bit_or(v.template cast_to<int32_t>(), aie::broadcast<int32_t, N>(INT32_MIN));
  const auto limited = aie::max(minus.template cast_to<float>(), fp32::broadcast<N>(-127.0f));
  // 1.5 * 2^23 + 127: a sum with it is a whole number, whose low bits are the exponent of 2^n.
  const Sums exponent(limited), magic(fp32::broadcast<N>(12583039.0f));
  const Sums shifted = aie::add(exponent, magic);
  fraction = fp32::floats(aie::sub(exponent, aie::sub(shifted, magic)));
  const auto bits = aie::upshift(fp32::floats(shifted).template cast_to<int32_t>(), 23);
  scale = bits.template cast_to<float>();
}

// min(1, 2^v) of 2^-|v|; `sign`: v, or what has its sign (where v is 0, both are 1).
template <unsigned N>
inline aie::vector<float, N> side(const aie::vector<float, N>& sign,
                                  const aie::vector<float, N>& power) {
  const auto one = fp32::broadcast<N>(1.0f).template cast_to<int32_t>();
  const auto change = aie::bit_xor(one, power.template cast_to<int32_t>());
  const auto negative = aie::downshift(sign.template cast_to<int32_t>(), 31);
  return aie::bit_xor(one, aie::bit_and(change, negative)).template cast_to<float>();
}

template <unsigned N>
inline aie::vector<float, N> h(const aie::vector<bfloat16, N>& gate) {
  const auto v = cubic(gate, kRoot * kTwoLog2e);
  aie::vector<float, N> fraction, scale;
  split_exponent(v, fraction, scale);
  const auto power = fp32::product(polynomial<kExp2>(fraction), scale);
  return fp32::product(side(v, power), polynomial<kInverse>(power));
}

#endif

// gelu(gate) * up of kStep elements. In this order nothing overflows that the result does not.
inline StepSums gated(const Step& h, const Step& gate, const bfloat16* up) {
  const Step gelu = fp32::product(h, gate);
  return StepSums(fp32::product(gelu, fp32::floats(fp32::load<kStep>(up))));
}

// out = gelu(gate) * up; n: a multiple of 32. out may be gate or up. Sets rounding to nearest even.
inline void geglu(const bfloat16* gate, const bfloat16* up, bfloat16* out, int32_t n) {
  fp32::round_to_nearest();
#ifdef AIE_HOST_GEGLU  // x86 `fast` builds
  AIE_HOST_GEGLU(gate, up, out, n);
#else
  NPU_ROLLED for (int32_t i = 0; i < n; i += kStep) {
    const auto g = aie::load_v<kStep>(gate + i);
    fp32::store(out + i, gated(h(g), fp32::floats(StepSums(g)), up + i));
  }
#endif
}

// Floats that geglu_in_passes() works with, for n elements.
constexpr int32_t passes_work(int32_t n) {
  return __AIE_ARCH__ == 20 ? 2 * n + 2 * kLanes + n / 2 : 0;
}

#if __AIE_ARCH__ == 20 && !defined(AIE_HOST_GEGLU)

// Where multiply_add() leaves rounded sums that nobody reads.
inline bfloat16* junk(float* lanes) { return reinterpret_cast<bfloat16*>(lanes + 2 * kLanes); }

// value = the polynomial of x. `lanes`: 2 kLanes, and junk.
NPU_OUTLINED inline void evaluate(const float* coefficients, int32_t terms, const float* x,
                                  float* value, float* lanes, int32_t n) {
  const float* before = fp32::fill(lanes, coefficients[terms - 1]);
  int32_t step = 0;
  NPU_ROLLED for (int32_t k = terms - 2; k >= 0; --k, before = value, step = kStep) {
    const float* term = fp32::fill(lanes + kLanes, coefficients[k]);
    fp32::multiply_add(x, before, step, term, value, junk(lanes), n);
  }
}

NPU_OUTLINED inline void times(const float* a, const float* b, float* to, bfloat16* rounded,
                               int32_t n) {
  fp32::multiply_add(a, b, kStep, fp32::kZeros.values, to, rounded, n);
}

// geglu() in 60 % of the program: a polynomial is evaluated term by term for all elements. out
// must not be an operand; it has the powers of two in between, which bfloat16 holds exactly.
inline void geglu_in_passes(const bfloat16* gate, const bfloat16* up, bfloat16* out, int32_t n,
                            float* work) {
  float *x = work, *value = work + n, *lanes = work + 2 * n;
  norm::widen_square(gate, x, kLanes, lanes, n);
  times(x, x, value, junk(lanes), n);
  evaluate(kCubic, 2, value, value, lanes, n);
  times(value, x, x, junk(lanes), n);
  NPU_ROLLED for (int32_t i = 0; i < n; i += kStep) {
    Step fraction, scale;
    split_exponent(aie::load_v<kStep>(x + i), fraction, scale);
    aie::store_v(x + i, fraction);
    fp32::store(out + i, StepSums(scale));
  }
  evaluate(kExp2, 4, x, value, lanes, n);
  norm::widen_square(out, x, kLanes, lanes, n);
  times(x, value, x, junk(lanes), n);
  evaluate(kInverse, 6, x, value, lanes, n);
  NPU_ROLLED for (int32_t i = 0; i < n; i += kStep) {
    const Step g = fp32::floats(fp32::load<kStep>(gate + i));
    aie::store_v(x + i, side(g, aie::load_v<kStep>(x + i)));
  }
  // h, times the gate, times up.
  times(x, value, value, junk(lanes), n);
  norm::widen_square(gate, x, kLanes, lanes, n);
  times(x, value, value, junk(lanes), n);
  norm::widen_square(up, x, kLanes, lanes, n);
  times(x, value, value, out, n);
}

#else

inline void geglu_in_passes(const bfloat16* gate, const bfloat16* up, bfloat16* out, int32_t n,
                            float*) {
  geglu(gate, up, out, n);
}

#endif

#if NPU_DECLARATIONS
// Cycles of geglu(), by the multiply slot (fp32.h): products, bf16 multiply-adds and additions. The
// unit for exp2 and tanh takes 16 lanes per cycle beside it.
constexpr double geglu_cycles(int64_t n) {
  constexpr double kProducts = __AIE_ARCH__ == 20 ? 14 : 5, kOthers = __AIE_ARCH__ == 20 ? 4 : 2;
  return fp32::steps(n) * (kProducts * fp32::kProductSlots + kOthers * fp32::kBf16Slots);
}

constexpr Generated geglu_part(int64_t n, double times) {
  return {"geglu", {1, 1, n}, times * geglu_cycles(n), times};
}

// geglu_in_passes(): on AIE2 fifteen passes, four conversions and two loops without products.
constexpr double passes_cycles(int64_t n) {
  if (__AIE_ARCH__ != 20) return geglu_cycles(n);
  const double loops = fp32::steps(n) * 24 * fp32::kBf16Slots + 200;
  return 15 * fp32::multiply_add_cycles(n) + 4 * norm::widen_square_cycles(n) + loops;
}
#endif

}  // namespace
}  // namespace npu::gelu
