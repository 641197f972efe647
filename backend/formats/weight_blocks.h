// Weights in blocks: how many blocks of aie_kernels/weight_block.h a matrix has.
#pragma once

#include <cstdint>

#include "aie_kernels/weight_block.h"
#include "rounding.h"

namespace npu::blocks {

inline constexpr int64_t row_blocks(int64_t n) { return divide_up(n, kRows); }
inline constexpr int64_t column_blocks(int64_t k, Format format) {
  return divide_up(k, columns_of(format));
}

}  // namespace npu::blocks
