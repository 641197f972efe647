// Softmax over chunks of scores with a running maximum (attention.cc, prefill_attention.cc): which
// keys a row sees, the maximum, what it corrects by, and the weights.
//
// Blocks of eight rows: scores [position][8 rows] fp32, weights [positions / 8][8 rows][8
// positions] bfloat16. Maxima are whole numbers, so that corrections are powers of two.
#pragma once

#include <stdint.h>

#include <aie_api/aie.hpp>

#include "attention.h"
#include "exp.h"
#include "kernel.h"

namespace {
namespace softmax {

using powers::Floats, powers::Sums;

constexpr int32_t kBlockRows = 8;
using npu::attention::kNothing;

// Keys that a row sees: [from, end).
struct Range {
  int32_t from, end;
};
inline Range visible(const Range& keys, int32_t window, int32_t causal, int32_t query) {
  Range range = keys;
  if (window != 0 && query - window + 1 > range.from) range.from = query - window + 1;
  if (causal != 0 && query + 1 < range.end) range.end = query + 1;
  return range;
}

// Vectors as wide as a core's accumulators; where they hold two positions instead of four, two
// results take turns.
constexpr uint32_t kLanes = __AIE_ARCH__ == 20 ? 16 : 32;
constexpr int32_t kPositions = int32_t(kLanes) / kBlockRows, kTurns = 4 / kPositions;
using Lanes = aie::vector<float, kLanes>;
using LaneSums = aie::accum<accfloat, kLanes>;

template <typename T>
inline void turn(T (&results)[kTurns]) {
  const T now = results[0];
  results[0] = results[kTurns - 1], results[kTurns - 1] = now;
}
template <unsigned N>  // one of the branches is for the other generation
inline Floats joined(const aie::vector<float, N> (&results)[kTurns]) {
  if constexpr (N == 32) {
    return results[0];
  } else {
    return aie::concat(results[0], results[kTurns - 1]);
  }
}

// A block's values for each of the positions of a vector.
template <typename T>
inline auto repeated(const T* eight) {
  const auto one = aie::load_v<kBlockRows>(eight);
  const auto two = aie::concat(one, one);
  if constexpr (kPositions == 2) {
    return two;
  } else {
    return aie::concat(two, two);
  }
}

// Scales the scores of a block in place and finds each row's largest; its rows see positions
// [from, end), eight of each. `key`: of the first position.
NPU_OUTLINED inline void scale_block(float* scores, int32_t positions, float scale, int32_t key,
                                     const int32_t* from, const int32_t* end, float* best) {
  const Lanes factor = powers::all<kLanes>(scale);
  const auto first = repeated(from), behind = repeated(end);
  aie::vector<int32_t, kLanes> position;
  for (int32_t i = 0; i < kPositions; ++i) {
    position.template insert<kBlockRows>(unsigned(i), aie::broadcast<int32_t, kBlockRows>(key + i));
  }
  Lanes largest[kTurns];
  for (Lanes& of_turn : largest) of_turn = powers::all<kLanes>(kNothing);
  NPU_ROLLED for (int32_t i = 0; i < positions; i += kPositions) {
    const Lanes score = powers::product(aie::load_v<kLanes>(scores), factor);
    const auto seen = aie::ge(position, first) & aie::lt(position, behind);
    const Lanes kept = aie::select(powers::all<kLanes>(-__builtin_inff()), score, seen);
    aie::store_v(scores, kept);
    largest[0] = aie::max(largest[0], kept);
    turn(largest);
    position = aie::add(position, aie::broadcast<int32_t, kLanes>(kPositions));
    scores += kLanes;
  }
  const Floats four = joined(largest);
  const auto half = aie::max(four.template extract<16>(0), four.template extract<16>(1));
  aie::store_v(best, aie::max(half.template extract<8>(0), half.template extract<8>(1)));
}

// The weights of a block as tiles, and their sums, of four positions each. Weights may begin where
// the scores do: they are half as long.
inline Sums weigh_block(const float* scores, const float* maximum, int32_t positions,
                        bfloat16* weights) {
  const Lanes top = repeated(maximum);
  const auto power = [&](int32_t at) {
    return powers::exp2(powers::minus(aie::load_v<kLanes>(scores + at), top));
  };
  const int32_t size = positions * kBlockRows;
  LaneSums totals[kTurns];
  for (LaneSums& total : totals) total = LaneSums(aie::zeros<float, kLanes>());
  if constexpr (kTurns == 1) {
    NPU_ROLLED for (int32_t i = 0; i < size; i += 64) {
      const auto near = power(i), far = power(i + 32);
      totals[0] = aie::add(aie::add(totals[0], LaneSums(near)), LaneSums(far));
      aie::store_v(weights + i, aie::transpose(aie::concat(near, far), 8, 8));
    }
  } else {
    NPU_ROLLED for (int32_t i = 0; i < size; i += int32_t(kLanes)) {
      const auto now = power(i);
      aie::store_v(weights + i, now);
      totals[0] = aie::add(totals[0], LaneSums(now));
      turn(totals);
    }
    NPU_SERIAL_FOR(int32_t i = 0, i < size, i += 64) {
      aie::store_v(weights + i, aie::transpose(aie::load_v<64>(weights + i), 8, 8));
    }
  }
  Lanes lanes[kTurns];
  for (int32_t i = 0; i < kTurns; ++i) lanes[i] = totals[i].template to_vector<float>();
  return Sums(joined(lanes));
}

// Sums of eight rows from those of four positions each.
inline void fold(const Sums& total, float* sum) {
  const auto lanes = total.template to_vector<float>();
  using Half = aie::accum<accfloat, 16>;
  const auto half =
      aie::add(Half(lanes.template extract<16>(0)), Half(lanes.template extract<16>(1)))
          .template to_vector<float>();
  using Quarter = aie::accum<accfloat, 8>;
  aie::store_v(sum,
               aie::add(Quarter(half.template extract<8>(0)), Quarter(half.template extract<8>(1)))
                   .template to_vector<float>());
}

// x rounded up to a whole number.
template <unsigned N>
inline aie::vector<float, N> rounded_up(const aie::vector<float, N>& x) {
  const auto zero = aie::zeros<float, N>();
  const auto magic =
      aie::select(powers::all<N>(0x1p23f), powers::all<N>(-0x1p23f), aie::lt(x, zero));
  const auto nearest = powers::minus(powers::add(x, magic), magic);
  const auto up = powers::add(nearest, powers::all<N>(1.0f));
  const auto whole = aie::select(nearest, up, aie::lt(nearest, x));
  // From 2^23 on all are whole, and the sum above is not exact.
  const auto small = aie::lt(x, powers::all<N>(0x1p23f)) & aie::lt(powers::all<N>(-0x1p23f), x);
  return aie::select(x, whole, small);
}

// 2^(before - maximum), by which sums are corrected; 0 below 2^-126.
template <unsigned N>
inline aie::vector<float, N> correction(const aie::vector<float, N>& before,
                                        const aie::vector<float, N>& maximum) {
  const auto moved = powers::minus(before, maximum);
  const auto power =
      powers::scaled(powers::all<N>(1.0f), powers::add(moved, powers::all<N>(powers::kWhole)));
  const auto normal = aie::ge(moved, powers::all<N>(-126.0f));
  return aie::select(aie::zeros<float, N>(), power, normal);
}

}  // namespace softmax
}  // namespace
