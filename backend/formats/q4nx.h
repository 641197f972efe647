// The geometry of a Q4NX block (docs/q4nx.md; arXiv 2602.06063, section 3.1.1): 32 rows x 256
// columns of 4-bit codes; per row and group of 32 columns a bfloat16 scale and a bfloat16 minimum.
// Stated here only: Python reads it from npu._npu.facts.
#pragma once

#include <cstdint>

namespace npu::q4nx {

inline constexpr int64_t kRows = 32, kColumns = 256;  // of a block
inline constexpr int64_t kGroup = 32;                 // columns that share a scale and a minimum
inline constexpr int64_t kGroups = kColumns / kGroup;
inline constexpr int64_t kPlaneBytes = kRows * kGroups * 2;  // scales, then as many minima
inline constexpr int64_t kCodesAt = 2 * kPlaneBytes;
inline constexpr int64_t kBlockBytes = kCodesAt + kRows * kColumns / 2;
static_assert(kBlockBytes == 5120);

inline constexpr int64_t row_blocks(int64_t n) { return (n + kRows - 1) / kRows; }
inline constexpr int64_t column_blocks(int64_t k) { return (k + kColumns - 1) / kColumns; }

}  // namespace npu::q4nx
