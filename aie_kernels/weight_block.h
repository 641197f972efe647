// Blocks of weights as the array takes them: 32 rows of a matrix, and as many columns as fit the
// bytes of a block. Blocks have 5120 bytes, or 4608 for the two formats of GGUF that need no more:
// a configuration multiplies all formats of one size. Stated here and in q4nx_block.h only, for
// kernels, core and designs (npu._npu.facts).
//
//   5120 bytes
//   q4nx  4-bit codes, a bf16 scale and minimum per row and 32 columns (q4nx_block.h)
//   q8    int8 codes, an fp32 scale per row and 16 columns, w = d code: GGUF's Q8_0, Q5_0 and Q6_K
//         exactly. Scales at (group * 32 + row), then the codes at (column * 32 + row)
//   bf16  bfloat16 at (column * 32 + row)
//
//   4608 bytes
//   q4_0  q4nx without minima, w = d (code - 8): its scales, then its codes
//   q8_0  q8 with a scale per row and 32 columns: GGUF's Q8_0 and Q5_0 exactly
#pragma once

#include <stdint.h>

#include "q4nx_block.h"

namespace npu::blocks {

inline constexpr int64_t kRows = 32, kBytes = 5120, kSmallBytes = 4608;

enum class Format : int32_t { kQ4nx, kQ8, kBf16, kQ4_0, kQ8_0 };
inline constexpr const char* kFormatNames[] = {"q4nx", "q8", "bf16", "q4_0", "q8_0"};
inline constexpr int32_t kFormats = 5;

// Where the codes of int8 blocks begin, whose scales are for kGroup columns each.
template <int64_t kGroupColumns>
struct Int8Layout {
  static constexpr int64_t kColumns = 128, kGroup = kGroupColumns, kGroups = kColumns / kGroup;
  static constexpr int64_t kCodesAt = kGroups * kRows * 4, kSize = kCodesAt + kColumns * kRows;
};
using q8 = Int8Layout<16>;
using q8_0 = Int8Layout<32>;
static_assert(q8::kSize == kBytes && q8_0::kSize == kSmallBytes);

// The same of 4-bit blocks with minima (q4nx) and without; kZero is subtracted from codes.
template <bool kMinima>
struct Int4Layout {
  static constexpr int64_t kCodesAt = (kMinima ? 2 : 1) * q4nx::kPlaneBytes;
  static constexpr int64_t kSize = kCodesAt + q4nx::kRows * q4nx::kColumns / 2;
  static constexpr int32_t kZero = kMinima ? 0 : 8;
};
using q4_0 = Int4Layout<false>;
static_assert(Int4Layout<true>::kCodesAt == q4nx::kCodesAt && Int4Layout<true>::kSize == kBytes);
static_assert(q4_0::kSize == kSmallBytes && q4nx::kRows == kRows && q4nx::kBlockBytes == kBytes);

namespace bf16 {
inline constexpr int64_t kColumns = 80;
static_assert(kColumns * kRows * 2 == kBytes);
}  // namespace bf16

constexpr bool is_small(Format format) {
  return format == Format::kQ4_0 || format == Format::kQ8_0;
}
constexpr int64_t bytes_of(Format format) { return is_small(format) ? kSmallBytes : kBytes; }
constexpr bool is_int4(Format format) { return format == Format::kQ4nx || format == Format::kQ4_0; }
constexpr bool is_int8(Format format) { return format == Format::kQ8 || format == Format::kQ8_0; }
constexpr int64_t columns_of(Format format) {
  return is_int4(format) ? q4nx::kColumns : is_int8(format) ? q8::kColumns : bf16::kColumns;
}

}  // namespace npu::blocks
