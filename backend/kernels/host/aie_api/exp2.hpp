// aie::exp2: powers of two, which AIE2P computes for 16 lanes of fp32 at a time, as bfloat16.
//
// Modelled, not silicon-verified: the bfloat16 nearest to the power (ties even), 0 for what is less
// than 2^-126, infinity from 2^128 on; NaN for NaN. AIE2 has no such instruction, nor has aie_api
// for it (aie_kernels/exp.h has one made of other instructions).
#pragma once

#include "vector.hpp"

AIE_HOST_BEGIN

#if __AIE_ARCH__ >= 21

namespace detail {

AIE_HOST_INLINE bfloat16 exp2_bf16(float x) {
  // A double has 45 bits more than the result: rounded to odd below, so that this narrowing and the
  // power's own error leave the second rounding right.
  const double power = __builtin_exp2(static_cast<double>(x));
  if (power < 0x1p-126) return bfloat16{0};
  auto narrow = static_cast<float>(power);
  uint32_t bits = __builtin_bit_cast(uint32_t, narrow);
  if (power == power && static_cast<double>(narrow) != power) {
    if (static_cast<double>(narrow) > power) --bits;
    bits |= 1;
  }
  return bfloat16{narrow_bf16_even(bits)};
}

}  // namespace detail

template <typename T, unsigned N>
AIE_HOST_INLINE vector<T, N> exp2(const vector<float, N>& v) {
  static_assert(std::is_same_v<T, bfloat16>, "exp2 gives bfloat16");
  vector<T, N> out;
  for (unsigned i = 0; i < N; ++i) out.set(detail::exp2_bf16(v.get(i)), i);
  return out;
}

#endif

AIE_HOST_END
