// Q4NX weights: how many blocks of aie_kernels/q4nx_block.h a matrix has.
#pragma once

#include <cstdint>

#include "aie_kernels/q4nx_block.h"

namespace npu::q4nx {

inline constexpr int64_t row_blocks(int64_t n) { return (n + kRows - 1) / kRows; }
inline constexpr int64_t column_blocks(int64_t k) { return (k + kColumns - 1) / kColumns; }

}  // namespace npu::q4nx
