// Matrices in BFP16 blocks as GEMM reads and writes them (ElementType::kBfp16).
#pragma once

#include <cstddef>

#include "formats/pack.h"

namespace npu::ops {

// Writes a kF32 or kBf16 matrix as tiles of 8x8 in row-major order, blocks along its rows; what
// exceeds the matrix is zero. Values are rounded to bfloat16 and then as the array rounds them: by
// its kernel.
void pack_bfp16(const MatrixView& matrix, std::byte* out);

// Bytes that pack_bfp16 writes.
size_t bfp16_bytes(int64_t rows, int64_t cols);

}  // namespace npu::ops
