// Weights in blocks: how many blocks of aie_kernels/weight_block.h a matrix has.
#pragma once

#include <cstdint>

#include "aie_kernels/weight_block.h"

namespace npu::blocks {

inline constexpr int64_t row_blocks(int64_t n) { return (n + kRows - 1) / kRows; }
inline constexpr int64_t column_blocks(int64_t k, Format format) {
  return (k + columns_of(format) - 1) / columns_of(format);
}

}  // namespace npu::blocks
