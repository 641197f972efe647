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

namespace npu::gelu {
namespace {

using fp32::Floats;
using fp32::kLanes;
using fp32::Sums;

constexpr float kRoot = 0.797884561f;  // sqrt(2 / pi)
constexpr float kCube = 0.044715f;
constexpr float kTwoLog2e = 2.88539008f;

// factor (g + kCube g^3)
inline Floats cubic(const fp32::Bf16s& gate, float factor) {
  const Floats square = fp32::floats(aie::mac(Sums(aie::zeros<float, kLanes>()), gate, gate));
  const Sums one(fp32::broadcast(factor));
  const Sums slope = aie::mac(one, square, fp32::broadcast(factor * kCube));
  return fp32::product(fp32::floats(slope), fp32::floats(Sums(gate)));
}

#if __AIE_ARCH__ >= 21

inline Floats h(const fp32::Bf16s& gate) {
  const Floats u = cubic(gate, kRoot), below = aie::min(u, aie::zeros<float, kLanes>());
  // Half of min(1, 2^v)
  const Sums exponent = aie::mac(Sums(fp32::broadcast(-1.0f)), below, fp32::broadcast(kTwoLog2e));
  const auto power = aie::exp2<bfloat16>(fp32::floats(exponent));
  const auto size =
      aie::bit_and(u.template cast_to<int32_t>(), aie::broadcast<int32_t, kLanes>(0x7FFFFFFF));
  const auto tangent = aie::tanh<bfloat16>(size.template cast_to<float>());
  return fp32::floats(aie::mac(Sums(power), power, tangent));
}

#else

// Coefficients of x, x^2, ... of polynomials that begin with 1; each has the least largest relative
// error of its degree.
constexpr float kExp2[] = {0.693282927f, 0.242210962f, 0.0550089314f};  // [-1/2, 1/2]: 1.02e-4
constexpr float kInverse[] = {-0.997308188f, 0.959154799f, -0.783540454f, 0.430776906f,
                              -0.109112594f};  // 1 / (1 + x), [0, 1]: 5.9e-5

template <int32_t kDegree>
inline Floats polynomial(const float (&coefficients)[kDegree], const Floats& x) {
  Floats value = fp32::broadcast(coefficients[kDegree - 1]);
  for (int32_t k = kDegree - 2; k >= 0; --k) {
    value = fp32::floats(aie::mac(Sums(fp32::broadcast(coefficients[k])), value, x));
  }
  return fp32::floats(aie::mac(Sums(fp32::broadcast(1.0f)), value, x));
}

inline Floats h(const fp32::Bf16s& gate) {
  const Floats v = cubic(gate, kRoot * kTwoLog2e);
  const auto bits = v.template cast_to<int32_t>();
  // -|v|, limited: 2^-127 becomes 0 below
  const auto minus = aie::bit_or(bits, aie::broadcast<int32_t, kLanes>(INT32_MIN));
  const Floats limited = aie::max(minus.template cast_to<float>(), fp32::broadcast(-127.0f));
  // 1.5 * 2^23 + 127: a sum with it is a whole number, whose low bits are the exponent of 2^n.
  const Sums exponent(limited), magic(fp32::broadcast(12583039.0f));
  const Sums shifted = aie::add(exponent, magic);
  const Floats fraction = fp32::floats(aie::sub(exponent, aie::sub(shifted, magic)));
  const auto scale = aie::upshift(fp32::floats(shifted).template cast_to<int32_t>(), 23);
  const Floats power = fp32::product(polynomial(kExp2, fraction), scale.template cast_to<float>());
  // 1 where v >= 0, the power elsewhere
  const auto one = fp32::broadcast(1.0f).template cast_to<int32_t>();
  const auto change = aie::bit_xor(one, power.template cast_to<int32_t>());
  const auto side = aie::bit_xor(one, aie::bit_and(change, aie::downshift(bits, 31)));
  return fp32::product(side.template cast_to<float>(), polynomial(kInverse, power));
}

#endif

// out = gelu(gate) * up; n: a multiple of 32. out may be gate or up. Sets rounding to nearest even.
inline void geglu(const bfloat16* gate, const bfloat16* up, bfloat16* out, int32_t n) {
  fp32::round_to_nearest();
#ifdef AIE_HOST_GEGLU  // x86 `fast` builds
  AIE_HOST_GEGLU(gate, up, out, n);
#else
  for (int32_t i = 0; i < n; i += kLanes) {
    const auto g = aie::load_v<kLanes>(gate + i);
    // In this order nothing overflows that the result does not.
    const Floats gelu = fp32::product(h(g), fp32::floats(Sums(g)));
    fp32::store(out + i, Sums(fp32::product(gelu, fp32::floats(fp32::load(up + i)))));
  }
#endif
}

#if NPU_DECLARATIONS
// Cycles of geglu(), by the multiply slot (fp32.h): products, bf16 multiply-adds and additions. The
// unit for exp2 and tanh takes 16 lanes per cycle beside it.
constexpr double geglu_cycles(int64_t n) {
  constexpr double kProducts = __AIE_ARCH__ == 20 ? 14 : 5, kOthers = __AIE_ARCH__ == 20 ? 4 : 2;
  return fp32::steps(n) * (kProducts * fp32::kProductSlots + kOthers * fp32::kBf16Slots);
}
#endif

}  // namespace
}  // namespace npu::gelu
