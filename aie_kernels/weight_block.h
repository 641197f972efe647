// Blocks of weights as the array takes them: 32 rows of a matrix, and as many columns as fit 5120
// bytes of a format. One size for all formats, so that one configuration multiplies any of them.
// Stated here and in q4nx_block.h only, for kernels, core and designs (npu._npu.facts).
//
//   q4nx  4-bit codes, a bf16 scale and minimum per row and 32 columns (q4nx_block.h)
//   q8    int8 codes, an fp32 scale per row and 16 columns, w = d code: GGUF's Q8_0, Q5_0 and Q6_K
//         exactly. Scales at (group * 32 + row), then the codes at (column * 32 + row)
//   bf16  bfloat16 at (column * 32 + row)
#pragma once

#include <stdint.h>

#include "q4nx_block.h"

namespace npu::blocks {

inline constexpr int64_t kRows = 32, kBytes = 5120;

enum class Format : int32_t { kQ4nx, kQ8, kBf16 };
inline constexpr const char* kFormatNames[] = {"q4nx", "q8", "bf16"};
inline constexpr int32_t kFormats = 3;

namespace q8 {
inline constexpr int64_t kColumns = 128, kGroup = 16, kGroups = kColumns / kGroup;
inline constexpr int64_t kCodesAt = kGroups * kRows * 4;
static_assert(kCodesAt + kColumns * kRows == kBytes);
}  // namespace q8

namespace bf16 {
inline constexpr int64_t kColumns = 80;
static_assert(kColumns * kRows * 2 == kBytes);
}  // namespace bf16

static_assert(q4nx::kRows == kRows && q4nx::kBlockBytes == kBytes);

constexpr int64_t columns_of(Format format) {
  return format == Format::kQ4nx ? q4nx::kColumns
         : format == Format::kQ8 ? q8::kColumns
                                 : bf16::kColumns;
}

}  // namespace npu::blocks
