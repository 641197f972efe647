// Rotary embedding of objects of 256 elements of bfloat16: as many vectors of `width` elements as
// they hold, each with its own cosines and sines (rope.h), RMSNorm before it or not.
//
// A table has cosines and then sines, width / 2 elements each, for each vector. Tables, and before
// them the norm's weights, arrive as objects that a core keeps or leaves to others.
#include "rope.h"

#include <stdint.h>

#include <aie_api/aie.hpp>

#include "kernel.h"

namespace {
namespace rope_object {

constexpr int32_t kElements = 256, kMinWidth = 64, kMostDoublings = 2;
constexpr int32_t kCall = 24;  // cycles

#if NPU_DECLARATIONS
double cycles(const Timing&, const int64_t* integers) {
  const int64_t width = int64_t{kMinWidth} << integers[0];
  const double vectors = double(kElements) / double(width);
  const double each = integers[1] != 0 ? npu::rope::qk_norm_rope_cycles(width, false)
                                       : npu::rope::rope_cycles(width);
  return vectors * each + kCall;
}
// All of it, or of the norm before it squares and factors.
Parts parts(const Timing&, const int64_t* integers) {
  const int64_t width = int64_t{kMinWidth} << integers[0];
  const double vectors = double(kElements) / double(width);
  if (integers[1] == 0) return {{{"rope", {1, 1, kElements}}}};
  return {{npu::norm::squares_part(width, vectors), npu::norm::factor_part(vectors)}};
}
#endif

}  // namespace rope_object
}  // namespace

NPU_KERNEL void rope_keep(const float* table, float* kept) {
  for (int32_t i = 0; i < rope_object::kElements; i += npu::fp32::kLanes) {
    aie::store_v(kept + i, aie::load_v<npu::fp32::kLanes>(table + i));
  }
}

// Vectors have 64 << doublings elements; normed: whether RMSNorm comes first; epsilon: the bits of
// a float.
NPU_KERNEL void rope_rotate(const bfloat16* x, const float* table, const float* weight, bfloat16* y,
                            int32_t doublings, int32_t normed, int32_t epsilon) {
  const int32_t width = rope_object::kMinWidth << doublings;
  for (int32_t i = 0; i < rope_object::kElements; i += width) {
    const float *cosine = table + i, *sine = cosine + width / 2;
    if (normed != 0) {
      const float offset = __builtin_bit_cast(float, epsilon);
      npu::rope::qk_norm_rope(x + i, weight, offset, cosine, sine, y + i, width);
    } else {
      npu::rope::rope(x + i, cosine, sine, y + i, width);
    }
  }
}

NPU_DECLARE(rope_keep, {.operands = {buffer("table", rope_object::kElements),
                                     buffer("kept", rope_object::kElements)},
                        .cycles = fixed<rope_object::kElements / 8>});
NPU_DECLARE(rope_rotate, {.operands = {buffer("x", rope_object::kElements),
                                       buffer("table", rope_object::kElements),
                                       buffer("weight", rope_object::kElements),
                                       buffer("y", rope_object::kElements),
                                       integer("doublings", 0, rope_object::kMostDoublings),
                                       integer("normed", 0, 1), integer("epsilon", 0, INT32_MAX)},
                          .cycles = rope_object::cycles,
                          .parts = rope_object::parts});
