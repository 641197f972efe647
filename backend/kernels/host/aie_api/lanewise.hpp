// More lane by lane operations: negative products, minima, bits.
#pragma once

#include "elementwise.hpp"

AIE_HOST_BEGIN

// acc - a b, as mac.
template <typename T, unsigned N>
AIE_HOST_INLINE accum<accfloat, N> msc(const accum<accfloat, N>& acc, const vector<T, N>& a,
                                       const vector<T, N>& b) {
  const detail::multiplier<T> multiply_add;
  accum<accfloat, N> out;
  for (unsigned i = 0; i < N; ++i) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, static_cast<float>(b.get(i))) ^ 0x80000000u;
    if constexpr (std::is_same_v<T, float>) {
      out.set(multiply_add(a.get(i), __builtin_bit_cast(float, bits), acc.get(i)), i);
    } else {
      const bfloat16 negative{static_cast<uint16_t>(bits >> 16)};
      out.set(multiply_add(a.get(i), negative, acc.get(i)), i);
    }
  }
  return out;
}

// The smaller; a NaN in `a` gives b (modelled).
template <unsigned N>
AIE_HOST_INLINE vector<float, N> min(const vector<float, N>& a, const vector<float, N>& b) {
  vector<float, N> out;
  for (unsigned i = 0; i < N; ++i) out.set(a.get(i) < b.get(i) ? a.get(i) : b.get(i), i);
  return out;
}

template <unsigned N>
AIE_HOST_INLINE vector<int32_t, N> bit_and(const vector<int32_t, N>& a,
                                           const vector<int32_t, N>& b) {
  vector<int32_t, N> out;
  for (unsigned i = 0; i < N; ++i) out.set(a.get(i) & b.get(i), i);
  return out;
}
template <unsigned N>
AIE_HOST_INLINE vector<int32_t, N> bit_or(const vector<int32_t, N>& a,
                                          const vector<int32_t, N>& b) {
  vector<int32_t, N> out;
  for (unsigned i = 0; i < N; ++i) out.set(a.get(i) | b.get(i), i);
  return out;
}
template <unsigned N>
AIE_HOST_INLINE vector<int32_t, N> bit_xor(const vector<int32_t, N>& a,
                                           const vector<int32_t, N>& b) {
  vector<int32_t, N> out;
  for (unsigned i = 0; i < N; ++i) out.set(a.get(i) ^ b.get(i), i);
  return out;
}

// The sign comes in from the top.
template <unsigned N>
AIE_HOST_INLINE vector<int32_t, N> downshift(const vector<int32_t, N>& v, unsigned shift) {
  vector<int32_t, N> out;
  for (unsigned i = 0; i < N; ++i) out.set(v.get(i) >> shift, i);
  return out;
}

AIE_HOST_END
