// The norm of prefill_norm.cc in loops over 32 columns that vectorise whole: the same sums and
// products, in the same order.
#pragma once

#include "../aie_api/vector.hpp"

#define AIE_HOST_ROWS ::aie::host::rows

AIE_HOST_BEGIN
namespace host {
namespace rows {

inline constexpr int32_t kColumns = 32, kRows = 8;

// Adds the squares of tiles [block][8][32] to 32 lanes per row.
inline void square(const bfloat16* y, int32_t blocks, float* squares) {
  for (int32_t row = 0; row < kRows; ++row) {
    float sums[kColumns];
    __builtin_memcpy(sums, squares + row * kColumns, sizeof sums);
    for (int32_t block = 0; block < blocks; ++block) {
      const bfloat16* from = y + (block * kRows + row) * kColumns;
      for (int32_t i = 0; i < kColumns; ++i) {
        const float value = from[i];
        sums[i] += value * value;
      }
    }
    __builtin_memcpy(squares + row * kColumns, sums, sizeof sums);
  }
}

// A block: out = x + y factor w1 (out = x without y), a = out w2, squares of out. factors: 32 lanes
// per row.
inline void norm(const float* __restrict x, const float* __restrict w1, const float* __restrict w2,
                 const float* __restrict factors, const bfloat16* __restrict y,
                 bfloat16* __restrict a, float* __restrict squares, float* __restrict out) {
  for (int32_t row = 0; row < kRows; ++row) {
    const int32_t at = row * kColumns;
    for (int32_t i = 0; i < kColumns; ++i) {
      float sum = x[at + i];
      if (y != nullptr) sum += static_cast<float>(y[at + i]) * factors[at + i] * w1[i];
      out[at + i] = sum;
      squares[at + i] += sum * sum;
      a[at + i].bits = detail::narrow_bf16_even(__builtin_bit_cast(uint32_t, sum * w2[i]));
    }
  }
}

}  // namespace rows
}  // namespace host
AIE_HOST_END
