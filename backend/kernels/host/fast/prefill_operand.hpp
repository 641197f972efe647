// Operands of the prefill configuration in the `fast` builds: the same BFP16 as
// aie_kernels/prefill_operand.h makes of a block.
#pragma once

#include "aie_kernels/prefill_job.h"
#include "pack.hpp"

#if __AIE_ARCH__ >= 21

#define AIE_HOST_PREFILL_OPERAND aie::host::prefill_operand

AIE_HOST_BEGIN
namespace host {

// Eight values of any size, as the core converts them.
[[gnu::noinline]] inline void encode_any(const bfloat16* in, uint8_t* out) {
  float values[8];
  for (unsigned i = 0; i < 8; ++i) values[i] = in[i];
  block_vector<bfp16ebs8, 64> block;
  block.convert(0, values, rounding_mode::conv_even);
  out[0] = static_cast<uint8_t>(block.exponent(0));
  for (unsigned i = 0; i < 8; ++i) out[1 + i] = static_cast<uint8_t>(block.mantissa(i));
}

// 8 rows x 32 columns of bf16, in place. What is written lies before what is read next.
inline void prefill_operand(bfloat16* block) {
  constexpr int32_t kCount = npu::prefill::kRows * npu::prefill::kSlice;
  auto* out = reinterpret_cast<uint8_t*>(block);
  for (int32_t i = 0; i < kCount; i += 8, out += 9) {
    const half8 x = load<half8>(block + i);
    const __m128i inverted = _mm_xor_si128((__m128i)(x & 0x7FFF), _mm_set1_epi16(-1));
    const unsigned top =
        0xFFFF - static_cast<unsigned>(_mm_extract_epi16(_mm_minpos_epu16(inverted), 0));
    if (top == 0 || !block_in_range(top)) {
      bfloat16 values[8];
      __builtin_memcpy(values, block + i, sizeof values);
      encode_any(values, out);
      continue;
    }
    const uint32_t exponent = top >> 7;
    const float8 rounded = round_to_block(x, splat<uint32_t, 8>(exponent << 23));
    const auto to_units = __builtin_bit_cast(float, (260 - exponent) << 23);  // 2^(133 - exponent)
    out[0] = static_cast<uint8_t>(exponent);
    store(__builtin_convertvector(__builtin_convertvector(rounded * to_units, simd<int32_t, 8>),
                                  simd<int8_t, 8>),
          out + 1);
  }
}

}  // namespace host
AIE_HOST_END

#endif
