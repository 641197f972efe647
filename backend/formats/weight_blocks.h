// Weights in blocks: how many blocks of aie_kernels/weight_block.h a matrix has, and whether a
// configuration multiplies them.
#pragma once

#include <cstdint>

#include "aie_kernels/weight_block.h"
#include "error.h"
#include "rounding.h"

namespace npu::blocks {

inline constexpr int64_t row_blocks(int64_t n) { return divide_up(n, kRows); }
inline constexpr int64_t column_blocks(int64_t k, Format format) {
  return divide_up(k, columns_of(format));
}

// Throws Error(kArgument) for a configuration of the other size of blocks.
inline void check_block_bytes(const char* operation, Format format, int64_t bytes) {
  if (bytes_of(format) == bytes) return;
  fail(ErrorKind::kArgument,
       "[%s] blocks of %s have %lld bytes, those of this configuration %lld; open the operation "
       "for this format",
       operation, kFormatNames[static_cast<int>(format)], static_cast<long long>(bytes_of(format)),
       static_cast<long long>(bytes));
}

}  // namespace npu::blocks
