// Rows of GGUF tensors: stored bytes to float32, or to the codes and scales they consist of.
// Block layouts are ggml's (block_q4_0 and so on); the formulas are those of the `gguf` package.
#pragma once

#include <cstdint>
#include <optional>

namespace npu::weights {

// GGUF's numbers of the tensor types that are decoded here.
enum class Stored : int {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kBF16 = 30,
};

std::optional<Stored> stored_type(int number);
// Bytes of a row of k elements; 0 if k is no multiple of the type's block.
int64_t row_bytes(Stored type, int64_t k);

// The k elements of a row.
void dequantize_row(Stored type, const uint8_t* row, int64_t k, float* out);

// Types of the form m + d * code with a 4-bit code and d, m per 32 columns: Q4_0, Q4_1, Q4_K.
bool has_codes4(Stored type);
void codes4_row(Stored type, const uint8_t* row, int64_t k, uint8_t* codes, float* d, float* m);

// Types of the form d * code with an 8-bit signed code and d per 16 columns: Q8_0, Q5_0, Q6_K.
bool has_codes8(Stored type);
void codes8_row(Stored type, const uint8_t* row, int64_t k, int8_t* codes, float* d);

}  // namespace npu::weights
