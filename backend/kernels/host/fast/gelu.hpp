// geglu of aie_kernels/gelu.h in plain fp32, without the polynomials or bf16 results of the cores
// and so within their bound: a loop that vectorises.
#pragma once

#include "../aie_api/vector.hpp"
#include "simd.hpp"

#define AIE_HOST_GEGLU ::aie::host::geglu

AIE_HOST_BEGIN
namespace host {

// 2^x within 2^-21, 0 below -150, infinite above 128; without branches.
AIE_HOST_INLINE float exp2_fp32(float x) {
  const float bounded = x < -160.0f ? -160.0f : (x > 130.0f ? 130.0f : x);
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
  const float shifted = bounded + kMagic, f = bounded - (shifted - kMagic);
  float p = 1.54034309e-4f;  // Taylor, ln(2)^k / k!; |f| <= 1/2
  p = p * f + 1.33335581e-3f;
  p = p * f + 9.61812911e-3f;
  p = p * f + 5.55041087e-2f;
  p = p * f + 2.40226507e-1f;
  p = p * f + 6.93147181e-1f;
  p = p * f + 1.0f;
  // 2^n in two factors: n leaves the range of normal numbers.
  const int32_t n = __builtin_bit_cast(int32_t, shifted) - 0x4B400000, half = n >> 1;
  return p * __builtin_bit_cast(float, (half + 127) << 23) *
         __builtin_bit_cast(float, (n - half + 127) << 23);
}

inline void geglu(const bfloat16* gate, const bfloat16* up, bfloat16* out, int32_t n) {
  // v = 2 log2(e) sqrt(2 / pi) (g + 0.044715 g^3); gelu = g / (1 + 2^-v)
  constexpr float kLinear = -2.30220819f, kCubic = kLinear * 0.044715f;
  constexpr int32_t kSome = 256;
  for (; n > 0; n -= kSome, gate += kSome, up += kSome, out += kSome) {
    if (n >= kSome && all_zero(gate, kSome * 2) && all_zero(up, kSome * 2)) {
      __builtin_memset(out, 0, kSome * 2);  // rows behind the last token of a prompt
      continue;
    }
    for (int32_t i = 0; i < (n < kSome ? n : kSome); ++i) {
      const float g = gate[i];
      const float power = exp2_fp32(g * (kLinear + kCubic * (g * g)));
      const float value = g / (1.0f + power) * static_cast<float>(up[i]);
      out[i].bits = detail::narrow_bf16_even(__builtin_bit_cast(uint32_t, value));
    }
  }
}

}  // namespace host
AIE_HOST_END
