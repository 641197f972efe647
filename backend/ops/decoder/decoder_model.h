// A decoder as the array runs it (designs/decoder.py): sizes, and where the blocks of its matrices
// lie. Gemma 3's layer: norm, q k v, QK-norm and rotation, attention, output, norm and residual,
// norm, gate and up, GeGLU, down, norm and residual (arXiv 2503.19786, section 2).
#pragma once

#include <cstdint>
#include <vector>

#include "aie_kernels/attention.h"
#include "aie_kernels/weight_block.h"
#include "formats/weight_blocks.h"
#include "runtime/configuration.h"

namespace npu::ops {

// What a decode configuration fixes (its `param` lines).
struct DecoderArray {
  int columns;  // two GEMV cores each
  int pairs;    // columns with attention cores; the vector core is in the column after them
  int64_t run_blocks;
  int64_t block_bytes;  // of weights
  arch::Generation generation;
  static constexpr int kRows = 2;  // GEMV cores of a column
  // Partial results of a key head: the pairs' records share a table.
  static constexpr int64_t kMaxParts = attention::kRecords;

  // Throws Error(kFormat) for parameters that are missing or describe no array.
  static DecoderArray of(const Configuration& configuration);
  int cores() const { return columns * kRows; }
};

// A range of bytes; empty where both are equal.
struct DecoderBytes {
  int64_t first = 0, end = 0;

  int64_t count() const { return end - first; }
  // Makes it one that holds the other, too.
  void add(const DecoderBytes& other);
};

// Rows of a matrix in one format.
struct DecoderSegment {
  int region = 0;      // which memory the blocks are in
  int64_t offset = 0;  // bytes
  int64_t n = 0, k = 0;
  blocks::Format format = blocks::Format::kQ4nx;

  int64_t row_blocks() const { return blocks::row_blocks(n); }
  int64_t column_blocks() const { return blocks::column_blocks(k, format); }
  int64_t block_bytes() const { return blocks::bytes_of(format); }
  int64_t bytes() const { return row_blocks() * column_blocks() * block_bytes(); }
  // What objects of a large block's size read beyond it (ops/prefill).
  int64_t slack() const { return blocks::kBytes - block_bytes(); }
};
using DecoderMatrix = std::vector<DecoderSegment>;

struct DecoderLayer {
  int64_t window = 0;  // positions that a query sees, itself included; 0: all
  DecoderMatrix qkv, output, gate_up, down;
};

struct DecoderShape {
  int64_t width = 0, heads = 0, kv_heads = 0, ffn = 0, vocabulary = 0;
  int64_t dim = 0;       // elements of a head; in attention it has head_dim, the rest zeros
  int64_t head_dim = 0;  // 64, 128 or 256
  float epsilon = 1e-6f, attention_scale = 1, embedding_scale = 1;

  int64_t group() const { return heads / kv_heads; }
  int64_t qkv_rows() const { return (heads + 2 * kv_heads) * dim; }
};

struct DecoderModel {
  DecoderShape shape;
  std::vector<DecoderLayer> layers;
  DecoderMatrix head;
  std::vector<int64_t> region_bytes;

  // Throws Error(kShape, kOutOfRange) for sizes that the array cannot run.
  void check() const;
};

}  // namespace npu::ops
