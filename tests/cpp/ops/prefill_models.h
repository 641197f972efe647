// Random models for the tests of plans: sizes, windows, matrices in several formats and regions.
#pragma once

#include "prefill_memory.h"

namespace npu::prefill_test {

using blocks::Format;
using ops::DecoderMatrix;

inline bool small_blocks(Format format) {
  return format == Format::kQ4_0 || format == Format::kQ8_0;
}
// Bytes of a block.
inline int64_t block_size(Format format) { return small_blocks(format) ? 4608 : 5120; }

// Formats of one size of blocks, those of the larger one with bfloat16 or without.
using Formats = std::vector<Format>;
inline Formats random_formats(Random& random) {
  if (random.below(2) == 0) return {Format::kQ4_0, Format::kQ8_0};
  if (random.below(2) == 0) return {Format::kQ4nx, Format::kQ8};
  return {Format::kQ4nx, Format::kQ8, Format::kBf16};
}

// Makes matrices one behind the other in a region of the model's, the last one so far.
class Matrices {
 public:
  Matrices(Random& random, DecoderModel& model) : random_(random), model_(model) { begin_region(); }

  void begin_region() {
    end_ = 4 * random_.below(9);
    model_.region_bytes.push_back(end_);
  }

  // Rows of a matrix in up to three parts, each in one of the formats, with others around it. The
  // region ends with an object of a large block's size at the last block.
  DecoderMatrix operator()(int64_t n, int64_t k, const Formats& formats) {
    DecoderMatrix out;
    for (int64_t left = n; left > 0;) {
      const bool last = out.size() == 2 || left < 32 || random_.below(2) == 0;
      ops::DecoderSegment segment;
      segment.region = int(model_.region_bytes.size()) - 1;
      segment.n = last ? left : 32 * random_.upto(1, left / 32);
      segment.k = k;
      segment.format = formats[size_t(random_.below(std::ssize(formats)))];
      segment.offset = end_ + 4 * random_.below(100);
      const int64_t count = segment.row_blocks() * segment.column_blocks();
      end_ = segment.offset + count * block_size(segment.format);
      int64_t& region = model_.region_bytes.back();
      region = std::max(region, end_ + 5120 - block_size(segment.format));
      out.push_back(segment);
      left -= segment.n;
    }
    return out;
  }
  DecoderMatrix operator()(int64_t n, int64_t k) { return (*this)(n, k, random_formats(random_)); }

 private:
  Random& random_;
  DecoderModel& model_;
  int64_t end_ = 0;  // of the last matrix
};

// Of a step's program among the array's, which are those of the kinds of jobs
// (aie_kernels/prefill_job.h), then products of small blocks.
inline size_t program_place(PrefillPlan::Kind kind, const DecoderMatrix* matrix) {
  using Kind = PrefillPlan::Kind;
  if (matrix != nullptr) return small_blocks(matrix->front().format) ? 5 : 0;
  if (kind == Kind::kGeglu) return 2;
  if (kind == Kind::kRotation) return 3;
  return kind == Kind::kAttention ? 4 : 1;  // else norms
}

inline DecoderModel random_model(Random& random, bool small) {
  DecoderModel model;
  ops::DecoderShape& s = model.shape;
  s.head_dim = 64 << random.below(3);
  s.dim = random.below(2) ? s.head_dim : 32 * random.upto(1, s.head_dim / 32);
  s.kv_heads = random.upto(1, small ? 2 : 4);
  s.heads = s.kv_heads * random.upto(1, 8);
  s.width = 32 * random.upto(2, small ? 9 : 24);
  s.ffn = 32 * random.upto(2, small ? 10 : 40);
  s.vocabulary = 64;
  s.attention_scale = 0.01f * float(random.upto(1, 40));
  for (int64_t i = random.upto(1, 2); i > 0; --i) {
    ops::DecoderLayer layer;
    layer.window = random.below(2) * random.upto(1, 600);
    Matrices matrix(random, model);
    layer.qkv = matrix(s.qkv_rows(), s.width);
    layer.output = matrix(s.width, s.heads * s.dim);
    if (random.below(2)) matrix.begin_region();
    layer.gate_up = matrix(2 * s.ffn, s.width);
    layer.down = matrix(s.width, s.ffn);
    model.layers.push_back(layer);
  }
  model.head = Matrices(random, model)(s.vocabulary, s.width);
  return model;
}

}  // namespace npu::prefill_test
