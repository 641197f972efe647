// Loops over fp32 rows of aie_kernels/fp32.h and norm.h in vectors of the host, for cores that
// round to nearest even: the same sums and products, in the same order.
#pragma once

#include "../aie_api/vector.hpp"
#include "pack.hpp"
#include "simd.hpp"

#define AIE_HOST_MULTIPLY_ADD ::aie::host::multiply_add
#define AIE_HOST_WIDEN_SQUARE ::aie::host::widen_square

AIE_HOST_BEGIN
namespace host {

inline constexpr int32_t kRowLanes = 32;  // sums of a row
inline constexpr unsigned kRowVectors = kRowLanes / kLanes;

// Lane sums of `n` products or squares: next(sum, at) is the sum with element `at`.
template <typename Next>
AIE_HOST_INLINE void sum_lanes(float* sums, int32_t n, const Next& next) {
  simd<float, kLanes> lanes[kRowVectors];
  unroll<kRowVectors>(
      [&](auto v) { lanes[v.value] = load<simd<float, kLanes>>(sums + v.value * kLanes); });
  for (int32_t i = 0; i < n; i += kRowLanes) {
    unroll<kRowVectors>(
        [&](auto v) { lanes[v.value] = next(lanes[v.value], i + int32_t(v.value * kLanes)); });
  }
  unroll<kRowVectors>([&](auto v) { store(lanes[v.value], sums + v.value * kLanes); });
}

// fp32::multiply_add() with steps of kStep lanes: `moves` says whether b advances, `lane_sums`
// whether c is kNothing. False, and nothing done, with another rounding.
template <int32_t kStep>
inline bool multiply_add(const float* a, const float* b, bool moves, const float* c, bool lane_sums,
                         float* wide, bfloat16* rounded, int32_t n) {
  using vector = simd<float, kLanes>;
  if (get_rounding() != rounding_mode::conv_even) return false;
  const auto factor = [&](int32_t at) { return load<vector>(b + (moves ? at : at % kStep)); };
  const auto product = [&](int32_t at) {  // rounded on its own: not fused with what it is added to
    vector one = load<vector>(a + at) * factor(at);
    asm("" : "+x"(one));
    return one;
  };
  if (lane_sums) {
    sum_lanes(wide, n, [&](vector sum, int32_t at) {
      sum += product(at);
      store(narrow_bf16<kLanes>(sum), rounded + at);
      return sum;
    });
    return true;
  }
  for (int32_t at = 0; at < n; at += int32_t(kLanes)) {
    vector sum;
    if (c == nullptr) {
      sum = load<vector>(wide + at) + product(at);
    } else {
      sum = load<vector>(c == wide ? c + at : c + at % kStep) + load<vector>(a + at) * factor(at);
    }
    store(sum, wide + at);
    store(narrow_bf16<kLanes>(sum), rounded + at);
  }
  return true;
}

// norm::widen_square(): `keeps` says whether `wide` advances. Else it holds the last lanes.
inline void widen_square(const bfloat16* x, float* wide, bool keeps, float* squares, int32_t n) {
  using vector = simd<float, kLanes>;
  sum_lanes(squares, n, [&](vector sum, int32_t at) {
    const vector value = widen_bf16<kLanes>(load<simd<uint16_t, kLanes>>(x + at));
    store(value, wide + (keeps ? at : at % kRowLanes));
    return sum + value * value;
  });
}

}  // namespace host
AIE_HOST_END
