// Loops over fp32 rows of aie_kernels/fp32.h and norm.h in vectors of the host, for cores that
// round to nearest even: the same sums and products, in the same order.
#pragma once

#include "../aie_api/vector.hpp"
#include "pack.hpp"

#define AIE_HOST_MULTIPLY_ADD ::aie::host::multiply_add
#define AIE_HOST_WIDEN_SQUARE ::aie::host::widen_square

AIE_HOST_BEGIN
namespace host {

inline constexpr int32_t kLaneSums = 32;  // of a row: element i belongs to sum i % 32

// next(sum, at): a vector of lane sums with the elements from `at` on.
template <typename Next>
AIE_HOST_INLINE void sum_lanes(float* to, int32_t n, const Next& next) {
  constexpr unsigned kRowVectors = kLaneSums / kLanes;
  float_lanes sums[kRowVectors];
  unroll<kRowVectors>([&](auto v) { sums[v.value] = load<float_lanes>(to + v.value * kLanes); });
  for (int32_t i = 0; i < n; i += kLaneSums) {
    unroll<kRowVectors>(
        [&](auto v) { sums[v.value] = next(sums[v.value], i + int32_t(v.value * kLanes)); });
  }
  unroll<kRowVectors>([&](auto v) { store(sums[v.value], to + v.value * kLanes); });
}

// fp32::multiply_add() with steps of kStep lanes: `moves` says whether b advances, `lane_sums`
// whether c is kNothing. False, and nothing done, with another rounding.
template <int32_t kStep>
inline bool multiply_add(const float* a, const float* b, bool moves, const float* c, bool lane_sums,
                         float* wide, bfloat16* rounded, int32_t n) {
  if (get_rounding() != rounding_mode::conv_even) return false;
  const auto product_and = [&](float_lanes before, int32_t at) {
    return before + load<float_lanes>(a + at) * load<float_lanes>(b + (moves ? at : at % kStep));
  };
  // Rounded on its own: what it is added to is not part of a fused multiply-add.
  const auto product = [&](int32_t at) { return product_and(float_lanes{}, at); };
  const auto put = [&](float_lanes sum, int32_t at) {
    store(narrow_bf16<kLanes>(sum), rounded + at);
    return sum;
  };
  if (lane_sums) {
    sum_lanes(wide, n, [&](float_lanes sum, int32_t at) { return put(sum + product(at), at); });
    return true;
  }
  for (int32_t at = 0; at < n; at += int32_t(kLanes)) {
    float_lanes sum;
    if (c == nullptr) {
      sum = load<float_lanes>(wide + at) + product(at);
    } else {
      sum = product_and(load<float_lanes>(c == wide ? c + at : c + at % kStep), at);
    }
    store(put(sum, at), wide + at);
  }
  return true;
}

// norm::widen_square(): `keeps` says whether `wide` advances. Else it holds the last lanes.
inline void widen_square(const bfloat16* x, float* wide, bool keeps, float* squares, int32_t n) {
  sum_lanes(squares, n, [&](float_lanes sum, int32_t at) {
    const float_lanes value = widen_bf16<kLanes>(load<simd<uint16_t, kLanes>>(x + at));
    store(value, wide + (keeps ? at : at % kLaneSums));
    return sum + value * value;
  });
}

}  // namespace host
AIE_HOST_END
