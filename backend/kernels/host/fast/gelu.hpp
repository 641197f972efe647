// geglu of aie_kernels/gelu.h in plain fp32, without the polynomials or bf16 units of the cores and
// so within their bound: a loop that vectorises.
#pragma once

#include "../aie_api/elementary.hpp"

#define AIE_HOST_GEGLU ::aie::host::geglu

AIE_HOST_BEGIN
namespace host {

inline void geglu(const bfloat16* gate, const bfloat16* up, bfloat16* out, int32_t n) {
  // v = 2 log2(e) sqrt(2 / pi) (g + 0.044715 g^3); gelu = g / (1 + 2^-v)
  constexpr float kLinear = -2.30220819f, kCubic = kLinear * 0.044715f;
  for (int32_t i = 0; i < n; ++i) {
    const float g = gate[i];
    const float power = detail::exp2_fp32(g * (kLinear + kCubic * (g * g)));
    const float value = g / (1.0f + power) * static_cast<float>(up[i]);
    out[i].bits = detail::narrow_bf16_even(__builtin_bit_cast(uint32_t, value));
  }
}

}  // namespace host
AIE_HOST_END
