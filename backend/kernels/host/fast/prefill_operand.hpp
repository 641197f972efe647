// Operands of the prefill configuration in the `fast` builds: the same BFP16 as
// aie_kernels/prefill_operand.h makes of a block.
#pragma once

#include "aie_kernels/prefill_job.h"
#include "pack.hpp"

#if __AIE_ARCH__ >= 21

#define AIE_HOST_PREFILL_OPERAND aie::host::prefill_operand

AIE_HOST_BEGIN
namespace host {

// Eight of bf16 as BFP16, which may begin where they do: the exponent, then mantissas.
AIE_HOST_INLINE void operand_block(const bfloat16* eight, uint8_t* out) {
  const half8 x = load<half8>(eight);
  const unsigned top = largest_magnitude(x);
  if (top == 0) {
    __builtin_memset(out, 0, 9);
    return;
  }
  const uint32_t exponent = top >> 7;
  if (exponent < uint32_t{kLeastBySums} || exponent > uint32_t{kMostBySums}) {
    float values[8];
    for (int32_t j = 0; j < 8; ++j) values[j] = eight[j];
    int8_t mantissas[8];
    out[0] = static_cast<uint8_t>(round_any(values, mantissas));
    __builtin_memcpy(out + 1, mantissas, sizeof mantissas);
    return;
  }
  const float8 rounded = round_to_block(x, splat<uint32_t, 8>(exponent << 23));
  const auto to_units = __builtin_bit_cast(float, (260 - exponent) << 23);  // 2^(133 - exponent)
  out[0] = static_cast<uint8_t>(exponent);
  store(__builtin_convertvector(__builtin_convertvector(rounded * to_units, simd<int32_t, 8>),
                                simd<int8_t, 8>),
        out + 1);
}

// 8 rows x 32 columns of bf16, in place. What is written lies before what is read next.
inline void prefill_operand(bfloat16* block) {
  constexpr int32_t kSome = npu::prefill::kSlice, kBytes = kSome / 8 * 9;
  auto* out = reinterpret_cast<uint8_t*>(block);
  for (int32_t row = 0; row < npu::prefill::kRows; ++row, block += kSome, out += kBytes) {
    if (all_zero(block, kSome * 2)) {  // as most rows of a short prompt are
      __builtin_memset(out, 0, kBytes);
      continue;
    }
    for (int32_t i = 0; i < kSome / 8; ++i) operand_block(block + 8 * i, out + 9 * i);
  }
}

}  // namespace host
AIE_HOST_END

#endif
