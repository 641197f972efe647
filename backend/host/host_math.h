// The operations of a decoder layer that run on the host, in float32: what NumPy would do in
// several passes, in one. Rows are contiguous; one thread.
#pragma once

#include <cstdint>

namespace npu::ops {

// out = x / sqrt(mean(x^2) + eps) * weight, per row of `width`.
void rms_norm(const float* x, const float* weight, float eps, int64_t rows, int64_t width,
              float* out);

// Rotates pairs (i, i + width / 2) of rows x heads x width; a row has width / 2 cosines and sines.
// out may not overlap x.
void rope(const float* x, const float* cosines, const float* sines, int64_t rows, int64_t heads,
          int64_t width, float* out);

// out = gelu(gate) * up with the tanh form of GELU; row r of gate and up begins at r * stride.
void geglu(const float* gate, const float* up, int64_t stride, int64_t rows, int64_t width,
           float* out);

// Softmax of rows of `keys` scores in place. Row r belongs to query r % queries, which sees keys
// up to shift + query, the last `window` of them if window > 0; the others become 0.
void causal_softmax(float* scores, int64_t rows, int64_t keys, int64_t queries, int64_t shift,
                    int64_t window);

}  // namespace npu::ops
