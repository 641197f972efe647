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

template <unsigned N>
inline aie::vector<float, N> add(const aie::vector<float, N>& a, const aie::vector<float, N>& b) {
  using Sum = aie::accum<accfloat, N>;
  return aie::add(Sum(a), Sum(b)).template to_vector<float>();
}
template <unsigned N>
inline aie::vector<float, N> product(const aie::vector<float, N>& a,
                                     const aie::vector<float, N>& b) {
  const aie::accum<accfloat, N> zero(aie::zeros<float, N>());
  return aie::mac(zero, a, b).template to_vector<float>();
}
template <unsigned N>
inline aie::vector<float, N> minus(const aie::vector<float, N>& a, const aie::vector<float, N>& b) {
  using Sum = aie::accum<accfloat, N>;
  return aie::sub(Sum(a), Sum(b)).template to_vector<float>();
}
template <unsigned N = kLanes>
inline aie::vector<float, N> all(float x) {
  return aie::broadcast<float, N>(x);
}

// x 2^i, given kWhole + i, for normal results: whatever else is in those bits is shifted out.
template <unsigned N>
inline aie::vector<float, N> scaled(const aie::vector<float, N>& x,
                                    const aie::vector<float, N>& whole) {
  const auto exponent = aie::upshift(whole.template cast_to<int32_t>(), 23);
  return aie::add(x.template cast_to<int32_t>(), exponent).template cast_to<float>();
}

#if __AIE_ARCH__ >= 21
template <unsigned N>
inline aie::vector<bfloat16, N> exp2(const aie::vector<float, N>& x) {
  return aie::exp2<bfloat16>(x);
}
#else
constexpr float kConstant = 0x1.fff692p-1f, kLinear = 0x1.62f31ap-1f, kSquare = 0x1.f0de1ap-3f;
constexpr float kCube = 0x1.c3f76p-5f;

template <unsigned N>
inline aie::vector<bfloat16, N> exp2(const aie::vector<float, N>& x) {
  using Sum = aie::accum<accfloat, N>;
  const Sum offset(all<N>(kWhole));
  const Sum y(aie::max(x, all<N>(-127.0f)));  // -infinity has no fraction
  const Sum whole = aie::add(y, offset);
  const Sum part = aie::sub(y, aie::sub(whole, offset));
  const auto fraction = part.template to_vector<float>();
  Sum power = aie::mac(Sum(all<N>(kSquare)), fraction, all<N>(kCube));
  power = aie::mac(Sum(all<N>(kLinear)), power.template to_vector<float>(), fraction);
  power = aie::mac(Sum(all<N>(kConstant)), power.template to_vector<float>(), fraction);
  const Sum result(scaled(power.template to_vector<float>(), whole.template to_vector<float>()));
  // A NaN's bits may have changed: it comes back by a sum with 0 or NaN.
  const Sum kept = aie::add(result, aie::sub(part, part));
  const auto tiny = aie::lt(x, all<N>(-126.0f));
  return Sum(aie::select(kept.template to_vector<float>(), aie::zeros<float, N>(), tiny))
      .template to_vector<bfloat16>();
}
#endif

}  // namespace powers
}  // namespace
