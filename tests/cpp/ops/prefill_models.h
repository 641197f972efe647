// Random models for the tests of plans: sizes, windows, matrices in several formats and regions.
#pragma once

#include "prefill_memory.h"

namespace npu::prefill_test {

using blocks::Format;
using ops::DecoderMatrix;

// Rows of a matrix in up to three parts, each in its format, in a region with others around it.
inline DecoderMatrix matrix(Random& random, DecoderModel& model, int64_t n, int64_t k,
                            int formats = blocks::kFormats) {
  DecoderMatrix out;
  const int64_t region = int64_t(model.region_bytes.size()) - 1;
  for (int64_t left = n; left > 0;) {
    const bool last = out.size() == 2 || left < 32 || random.below(2) == 0;
    ops::DecoderSegment segment;
    segment.region = int(region);
    segment.n = last ? left : 32 * random.upto(1, left / 32);
    segment.k = k;
    segment.format = Format(random.below(formats));
    segment.offset = model.region_bytes.back() + 4 * random.below(100);
    const int64_t bytes = segment.row_blocks() * segment.column_blocks() * blocks::kBytes;
    model.region_bytes.back() = segment.offset + bytes;
    out.push_back(segment);
    left -= segment.n;
  }
  return out;
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
  const int formats = 2 + int(random.below(2));  // with blocks of bfloat16 or without
  for (int64_t i = random.upto(1, 2); i > 0; --i) {
    ops::DecoderLayer layer;
    layer.window = random.below(2) * random.upto(1, 600);
    model.region_bytes.push_back(0);
    layer.qkv = matrix(random, model, s.qkv_rows(), s.width, formats);
    layer.output = matrix(random, model, s.width, s.heads * s.dim, formats);
    if (random.below(2)) model.region_bytes.push_back(4 * random.below(9));
    layer.gate_up = matrix(random, model, 2 * s.ffn, s.width, formats);
    layer.down = matrix(random, model, s.width, s.ffn, formats);
    model.layers.push_back(layer);
  }
  model.head = matrix(random, model, s.vocabulary, s.width, formats);
  return model;
}

}  // namespace npu::prefill_test
