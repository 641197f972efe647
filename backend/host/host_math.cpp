// Host operations of a decoder layer (host_math.h). Loops are plain so that they vectorise.
#include "host/host_math.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "host/clones.h"

namespace npu::ops {

namespace {

constexpr int64_t kLanes = 16;

// e^x within 2 units in the last place; 0 below -87.3, infinite above 88.7. NaN stays NaN.
NPU_INLINE float exponential(float x) {
  // x = n ln 2 + r, |r| <= ln 2 / 2; ln 2 in two parts so that n ln 2 is exact enough.
  const float bounded = x < -87.3f ? -87.3f : (x > 89.0f ? 89.0f : x);
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
  const float n = (bounded * 1.44269504f + kMagic) - kMagic;
  const float r = (bounded - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.98756915e-4f;  // minimax of (e^r - 1 - r) / r^2, as in Cephes
  p = p * r + 1.39819995e-3f;
  p = p * r + 8.33345192e-3f;
  p = p * r + 4.16657940e-2f;
  p = p * r + 1.66666655e-1f;
  p = p * r + 5.00000012e-1f;
  const float value = p * r * r + r + 1.0f;
  // 2^n in two factors: n reaches 128.
  const auto whole = static_cast<int32_t>(n);
  const int32_t half = whole >> 1;
  const float scaled = value * std::bit_cast<float>((half + 127) << 23) *
                       std::bit_cast<float>((whole - half + 127) << 23);
  return x < -87.3f ? 0.0f : scaled;
}

}  // namespace

NPU_CLONES
void rms_norm(const float* x, const float* weight, float eps, int64_t rows, int64_t width,
              float* out) {
  for (int64_t row = 0; row < rows; ++row, x += width, out += width) {
    float sums[kLanes] = {};
    int64_t i = 0;
    for (; i + kLanes <= width; i += kLanes) {
      for (int64_t j = 0; j < kLanes; ++j) sums[j] += x[i + j] * x[i + j];
    }
    for (; i < width; ++i) sums[0] += x[i] * x[i];
    float total = 0;
    for (const float sum : sums) total += sum;
    const float scale = 1.0f / std::sqrt(total / static_cast<float>(width) + eps);
    for (i = 0; i < width; ++i) out[i] = x[i] * scale * weight[i];
  }
}

NPU_CLONES
void rope(const float* x, const float* cosines, const float* sines, int64_t rows, int64_t heads,
          int64_t width, float* out) {
  const int64_t half = width / 2;
  for (int64_t row = 0; row < rows; ++row, cosines += half, sines += half) {
    for (int64_t head = 0; head < heads; ++head, x += width, out += width) {
      for (int64_t i = 0; i < half; ++i) {
        const float low = x[i], high = x[half + i];
        out[i] = low * cosines[i] - high * sines[i];
        out[half + i] = high * cosines[i] + low * sines[i];
      }
    }
  }
}

NPU_CLONES
void geglu(const float* gate, const float* up, int64_t stride, int64_t rows, int64_t width,
           float* out) {
  for (int64_t row = 0; row < rows; ++row, gate += stride, up += stride, out += width) {
    for (int64_t i = 0; i < width; ++i) {
      const float g = gate[i];
      // (1 + tanh y) / 2 = 1 / (1 + e^(-2 y)), y = sqrt(2 / pi) (g + 0.044715 g^3)
      const float y = 0.797884561f * (g + 0.044715f * g * g * g);
      out[i] = g / (1.0f + exponential(-2.0f * y)) * up[i];
    }
  }
}

NPU_CLONES
void causal_softmax(float* scores, int64_t rows, int64_t keys, int64_t queries, int64_t shift,
                    int64_t window) {
  for (int64_t row = 0; row < rows; ++row, scores += keys) {
    const int64_t last = std::min(keys, shift + row % queries + 1);
    const int64_t first = window > 0 ? std::max<int64_t>(0, last - window) : 0;
    float largest[kLanes];
    std::fill(largest, largest + kLanes, -std::numeric_limits<float>::infinity());
    int64_t i = first;
    for (; i + kLanes <= last; i += kLanes) {
      for (int64_t j = 0; j < kLanes; ++j) {
        largest[j] = scores[i + j] > largest[j] ? scores[i + j] : largest[j];
      }
    }
    for (; i < last; ++i) largest[0] = std::max(largest[0], scores[i]);
    const float top = *std::max_element(largest, largest + kLanes);
    float sums[kLanes] = {};
    for (i = first; i + kLanes <= last; i += kLanes) {
      for (int64_t j = 0; j < kLanes; ++j) {
        const float value = exponential(scores[i + j] - top);
        scores[i + j] = value;
        sums[j] += value;
      }
    }
    for (; i < last; ++i) sums[0] += scores[i] = exponential(scores[i] - top);
    float total = 0;
    for (const float sum : sums) total += sum;
    const float scale = 1.0f / total;
    std::fill(scores, scores + first, 0.0f);
    for (i = first; i < last; ++i) scores[i] *= scale;
    std::fill(scores + last, scores + keys, 0.0f);
  }
}

}  // namespace npu::ops
