// Lane by lane multiply-accumulate into fp32 accumulators, conversions and reductions.
//
// bf16 products. AIE2: the multiplier of fused_dot8.hpp with one product and the accumulator as
// terms. AIE2P: one fp32 fused multiply-add (modelled). fp32 products: float_product.hpp. `fast`
// builds may round product and sum separately.
#pragma once

#include "accum.hpp"
#include "float_product.hpp"

AIE_HOST_BEGIN

namespace detail {

AIE_HOST_INLINE float multiply_add(bfloat16 a, bfloat16 b, float c) {
#if AIE_HOST_SILICON && __AIE_ARCH__ == 20
  const bfloat16 row[8] = {a}, column[8] = {b};
  fused_dot8_tile<1, 1>(row, column, &c);
  return c;
#elif AIE_HOST_SILICON
  return __builtin_fmaf(a, b, c);
#else
  return static_cast<float>(a) * static_cast<float>(b) + c;
#endif
}

// a b + c of lanes of either type. Splitting reads the core's mode, once for all lanes.
template <typename T>
struct multiplier {
#if AIE_HOST_SILICON
  const rounding_mode mode = get_rounding();
#endif

  AIE_HOST_INLINE float operator()(T a, T b, float c) const {
    if constexpr (std::is_same_v<T, bfloat16>) {
      return multiply_add(a, b, c);
    } else {
#if AIE_HOST_SILICON
      return multiply_add(a, b, c, mode);
#else
      return a * b + c;
#endif
    }
  }
};

}  // namespace detail

// T: bfloat16 or float.
template <typename T, unsigned N>
AIE_HOST_INLINE accum<accfloat, N> mac(const accum<accfloat, N>& acc, const vector<T, N>& a,
                                       const vector<T, N>& b) {
  const detail::multiplier<T> multiply_add;
  accum<accfloat, N> out;
  for (unsigned i = 0; i < N; ++i) out.set(multiply_add(a.get(i), b.get(i), acc.get(i)), i);
  return out;
}

// fp32 sums and differences of accumulators.
template <unsigned N>
AIE_HOST_INLINE accum<accfloat, N> add(const accum<accfloat, N>& a, const accum<accfloat, N>& b) {
  accum<accfloat, N> out;
  for (unsigned i = 0; i < N; ++i) out.set(a.get(i) + b.get(i), i);
  return out;
}

template <unsigned N>
AIE_HOST_INLINE accum<accfloat, N> sub(const accum<accfloat, N>& a, const accum<accfloat, N>& b) {
  accum<accfloat, N> out;
  for (unsigned i = 0; i < N; ++i) out.set(a.get(i) - b.get(i), i);
  return out;
}

// Whole numbers as bf16, which holds those of eight bits exactly; wider ones have no form here.
template <typename T, unsigned N>
AIE_HOST_INLINE vector<T, N> to_float(const vector<int8_t, N>& v, int shift = 0) {
  static_assert(std::is_same_v<T, bfloat16>, "to_float is modelled for int8 to bfloat16");
  vector<T, N> out;
  const float unit = __builtin_ldexpf(1.0f, -shift);
  for (unsigned i = 0; i < N; ++i) {
    const auto bits = __builtin_bit_cast(uint32_t, static_cast<float>(v.get(i)) * unit);
    out.set(bfloat16{static_cast<uint16_t>(bits >> 16)}, i);
  }
  return out;
}

// 1 / sqrt(v). AIE2P: correctly rounded (modelled; the rounding of its instruction is not known).
// AIE2 has none: aie_api divides by the library's root, each taken to be rounded to nearest.
AIE_HOST_INLINE float invsqrt(float v) {
#if AIE_HOST_SILICON && __AIE_ARCH__ == 20
  return 1.0f / __builtin_sqrtf(v);
#else
  return static_cast<float>(1.0 / __builtin_sqrt(static_cast<double>(v)));
#endif
}

// Halves added to each other until one element is left.
template <unsigned N>
AIE_HOST_INLINE float reduce_add(const vector<float, N>& v) {
  float parts[N];
  v.store(parts);
  for (unsigned width = N / 2; width > 0; width /= 2) {
    for (unsigned i = 0; i < width; ++i) parts[i] += parts[i + width];
  }
  return parts[0];
}

AIE_HOST_END
