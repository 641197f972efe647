// aie::tanh, which AIE2P computes for 16 lanes of fp32 at a time, as bfloat16.
//
// Modelled, not silicon-verified: the bfloat16 nearest to the tangent (ties even), denormals kept,
// NaN for NaN. AIE2 has no such instruction.
#pragma once

#include "vector.hpp"

AIE_HOST_BEGIN

#if __AIE_ARCH__ >= 21

namespace detail {

// The double is rounded once: an fp32 number halfway between two bfloat16 ones moves to its side.
AIE_HOST_INLINE bfloat16 tanh_bf16(float x) {
  const double tangent = __builtin_tanh(static_cast<double>(x));
  const auto narrow = static_cast<float>(tangent);
  auto bits = __builtin_bit_cast(uint32_t, narrow);
  const double below = __builtin_fabs(tangent) - __builtin_fabs(static_cast<double>(narrow));
  if ((bits & 0xFFFF) == 0x8000 && below != 0) bits = below > 0 ? bits + 1 : bits - 1;
  return bfloat16{narrow_bf16_even(bits)};
}

}  // namespace detail

template <typename T, unsigned N>
AIE_HOST_INLINE vector<T, N> tanh(const vector<float, N>& v) {
  static_assert(std::is_same_v<T, bfloat16>, "tanh gives bfloat16");
  vector<T, N> out;
  for (unsigned i = 0; i < N; ++i) out.set(detail::tanh_bf16(v.get(i)), i);
  return out;
}

#endif

AIE_HOST_END
