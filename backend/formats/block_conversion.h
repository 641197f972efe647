// Rows of stored tensors to weight blocks (aie_kernels/weight_block.h): a matrix (N, K) is
// ceil(N / 32) row-blocks of ceil(K / columns) blocks each, padded with zeros.
#pragma once

#include <cstdint>

#include "aie_kernels/weight_block.h"
#include "formats/gguf_rows.h"

namespace npu::weights {

using blocks::Format;

// Whether convert_rows makes this format of a type: all become q8, q8_0 and bf16, those with codes4
// q4nx, Q4_0 q4_0.
bool converts(Stored type, Format format);

// Rows of k elements, `stride` bytes apart, to row-blocks; the last one is filled up with zeros.
// Codes are kept where the formats allow: codes4 to q4nx and q4_0 with d and m rounded to bfloat16,
// codes8 to q8 exactly, of Q8_0 and Q5_0 to q8_0. Others become q8 and q8_0 by least squared error,
// or bfloat16, to nearest even.
// Returns the first row with a NaN or an infinity in it or in what would be written, or -1.
int64_t convert_rows(Stored type, Format format, const uint8_t* raw, int64_t stride, int64_t rows,
                     int64_t k, uint8_t* out);

}  // namespace npu::weights
