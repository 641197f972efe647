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

// Eight values for each of four positions.
inline Floats four_times(const float* eight) {
  const auto one = aie::load_v<8>(eight);
  const auto two = aie::concat(one, one);
  return aie::concat(two, two);
}

// Scales the scores of a block in place and finds each row's largest; `ranges`: what its rows see,
// or null if they see all. `key`: of the first position.
inline void scale_block(float* scores, int32_t positions, float scale, int32_t key,
                        const Range* ranges, float* best) {
  const Floats factor = powers::all(scale);
  alignas(64) int32_t from[32], end[32], at[32];
  if (ranges != nullptr) {
    for (int32_t i = 0; i < 32; ++i) {
      const Range range = ranges[i % kBlockRows];
      from[i] = range.from, end[i] = range.end, at[i] = key + i / kBlockRows;
    }
  }
  Floats largest = powers::all(kNothing);
  for (int32_t i = 0; i < positions * kBlockRows; i += 32) {
    Floats score = powers::product(aie::load_v<32>(scores + i), factor);
    if (ranges != nullptr) {
      auto position = aie::load_v<32>(at);
      position = aie::add(position, aie::broadcast<int32_t, 32>(i / kBlockRows));
      const auto seen =
          aie::ge(position, aie::load_v<32>(from)) & aie::lt(position, aie::load_v<32>(end));
      score = aie::select(powers::all(-__builtin_inff()), score, seen);
    }
    aie::store_v(scores + i, score);
    largest = aie::max(largest, score);
  }
  const auto half = aie::max(largest.template extract<16>(0), largest.template extract<16>(1));
  aie::store_v(best, aie::max(half.template extract<8>(0), half.template extract<8>(1)));
}

// The weights of a block as tiles, and their sums, of four positions each. Weights may begin where
// the scores do: they are half as long.
inline Sums weigh_block(const float* scores, const float* maximum, int32_t positions,
                        bfloat16* weights) {
  const Floats top = four_times(maximum);
  Sums total(aie::zeros<float, 32>());
  for (int32_t i = 0; i < positions * kBlockRows; i += 64) {
    const auto near = powers::exp2(powers::minus(aie::load_v<32>(scores + i), top));
    const auto far = powers::exp2(powers::minus(aie::load_v<32>(scores + i + 32), top));
    total = aie::add(aie::add(total, Sums(near)), Sums(far));
    aie::store_v(weights + i, aie::transpose(aie::concat(near, far), 8, 8));
  }
  return total;
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
inline Floats rounded_up(const Floats& x) {
  const Floats zero = aie::zeros<float, 32>();
  const Floats magic = aie::select(powers::all(0x1p23f), powers::all(-0x1p23f), aie::lt(x, zero));
  const Floats nearest = powers::minus(powers::add(x, magic), magic);
  const Floats up = powers::add(nearest, powers::all(1.0f));
  const Floats whole = aie::select(nearest, up, aie::lt(nearest, x));
  // From 2^23 on all are whole, and the sum above is not exact.
  const auto small = aie::lt(x, powers::all(0x1p23f)) & aie::lt(powers::all(-0x1p23f), x);
  return aie::select(x, whole, small);
}

// 2^(before - maximum), by which sums are corrected; 0 below 2^-126.
inline Floats correction(const Floats& before, const Floats& maximum) {
  const Floats moved = powers::minus(before, maximum);
  const Floats power =
      powers::scaled(powers::all(1.0f), powers::add(moved, powers::all(powers::kWhole)));
  const auto normal = aie::ge(moved, powers::all(-126.0f));
  return aie::select(aie::zeros<float, 32>(), power, normal);
}

}  // namespace softmax
}  // namespace
