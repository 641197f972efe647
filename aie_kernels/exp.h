// 2^x of fp32 as bfloat16, for x <= 0 (attention.cc); 0 below 2^-126, NaN for NaN.
//
// AIE2P has an instruction. AIE2: x = i + f with a whole number i and f in [-1/2, 1/2]; a cubic
// with a relative error below 7.5e-5 for 2^f, and i is added to its exponent. So the result is
// within 2^-8 + 7.6e-5 of the power, relatively (docs/fidelity.md).
#pragma once

#include <stdint.h>

#include <aie_api/aie.hpp>

#include "kernel.h"

namespace {
namespace powers {

constexpr uint32_t kLanes = 32;
using Floats = aie::vector<float, kLanes>;
using Sums = aie::accum<accfloat, kLanes>;

// Adding it, and taking it away again, leaves a whole number: of magnitude up to 2^22.
constexpr float kWhole = 12582912.0f;  // 1.5 * 2^23

inline Floats add(const Floats& a, const Floats& b) {
  return aie::add(Sums(a), Sums(b)).template to_vector<float>();
}
inline Floats product(const Floats& a, const Floats& b) {
  return aie::mac(Sums(aie::zeros<float, kLanes>()), a, b).template to_vector<float>();
}
inline Floats minus(const Floats& a, const Floats& b) {
  return aie::sub(Sums(a), Sums(b)).template to_vector<float>();
}
inline Floats all(float x) { return aie::broadcast<float, kLanes>(x); }

// x 2^i, given kWhole + i, for normal results: whatever else is in those bits is shifted out.
inline Floats scaled(const Floats& x, const Floats& whole) {
  const auto exponent = aie::upshift(whole.template cast_to<int32_t>(), 23);
  return aie::add(x.template cast_to<int32_t>(), exponent).template cast_to<float>();
}

#if __AIE_ARCH__ >= 21
inline aie::vector<bfloat16, kLanes> exp2(const Floats& x) { return aie::exp2<bfloat16>(x); }
#else
constexpr float kConstant = 0x1.fff692p-1f, kLinear = 0x1.62f31ap-1f, kSquare = 0x1.f0de1ap-3f;
constexpr float kCube = 0x1.c3f76p-5f;

inline aie::vector<bfloat16, kLanes> exp2(const Floats& x) {
  const auto least = all(-127.0f);
  const Floats y = aie::select(x, least, aie::lt(x, least));  // -infinity has no fraction
  const Floats whole = add(y, all(kWhole));
  const Floats fraction = minus(y, minus(whole, all(kWhole)));
  Sums power = aie::mac(Sums(all(kSquare)), fraction, all(kCube));
  power = aie::mac(Sums(all(kLinear)), power.template to_vector<float>(), fraction);
  power = aie::mac(Sums(all(kConstant)), power.template to_vector<float>(), fraction);
  Floats result = scaled(power.template to_vector<float>(), whole);
  // A NaN's bits may have changed: it comes back by a sum with 0 or NaN.
  result = add(result, minus(fraction, fraction));
  const auto tiny = aie::lt(y, all(-126.0f));
  return Sums(aie::select(result, aie::zeros<float, kLanes>(), tiny))
      .template to_vector<bfloat16>();
}
#endif

}  // namespace powers
}  // namespace
