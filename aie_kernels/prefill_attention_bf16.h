// Weights and sums of the attention of prompts on npu1 (prefill_attention.cc), in bfloat16. Of a
// chunk, maxima move with each half, weights and sums once: what the second half moves the maximum
// by is added to the exponents of the first one's weights. A loop that multiplies in fp32 is there
// once, between loops that prepare its operands in `work`.
#pragma once

#include <stdint.h>

#include <aie_api/aie.hpp>

#include "attention_tiles.h"
#include "kernel.h"
#include "prefill_attention_blocks.h"
#include "prefill_attention_tiles.h"
#include "prefill_job.h"
#include "softmax.h"

#if !defined(AIE_HOST_PREFILL_ATTENTION) && __AIE_ARCH__ == 20

namespace {
namespace prefill_attention {

// Words of `work` behind a chunk's scores: of a half, the exponents of its weights and the powers
// of fractions; at the end maxima of both halves and a factor of all rows. While values are added
// or results sent, factors of rows and products.
constexpr int32_t kTops = kWork - 4 * kCoreRows, kFactor = kWork - 2 * kCoreRows;
constexpr int32_t kFactors = kWeights + kMostScores, kProducts = kFactors + 4 * kCoreRows;
static_assert(kCoreRows == 16 && kUnits == 2 && kWeights + 2 * kMostScores <= kTops);
static_assert(kProducts + kRows * kSlice <= kTops && kAPayload <= kBBytes);

// Of a half: where its scores and fractions were, rounded weights, then as tiles.
inline bfloat16* weights_of(int32_t* work, int32_t half, int32_t size) {
  return reinterpret_cast<bfloat16*>(work + kWeights) + (2 * half + 1) * size;
}

// to = a b + c of n lanes; of b those with the bits `mask` of their numbers.
NPU_OUTLINED inline void multiply_add(const float* a, const float* b, int32_t mask, float c,
                                      float* to, int32_t n) {
  const HalfSums plus(powers::all<16>(c));
  int32_t i = 0;
  NPU_ROLLED do {
    const HalfSums sum = aie::mac(plus, aie::load_v<16>(a + i), aie::load_v<16>(b + (i & mask)));
    aie::store_v(to + i, sum.template to_vector<float>());
    i += 16;
  }
  while (i != n);
}

// Scores of a half, in place, to fractions of what is below the maximum; `whole` gets that, times
// 2^23, plus `moved`. Below -126 the fraction is 0 and the whole number -127.
inline void split(float* scores, const Half& top, const HalfInts& moved, int32_t* whole,
                  int32_t size) {
  const HalfSums maximum(top), offset(powers::all<16>(powers::kWhole));
  const Half least = powers::all<16>(-126.0f), less = powers::all<16>(-127.0f);
  const float* const end = scores + size;
  NPU_SERIAL_FOR(, scores != end, scores += 16) {
    const Half x = aie::sub(HalfSums(aie::load_v<16>(scores)), maximum).template to_vector<float>();
    const HalfSums y(aie::select(x, less, aie::lt(x, least)));
    const HalfSums nearest = aie::add(y, offset);
    const HalfSums fraction = aie::sub(y, aie::sub(nearest, offset));
    aie::store_v(scores, fraction.template to_vector<float>());
    const auto number = nearest.template to_vector<float>().template cast_to<int32_t>();
    aie::store_v(whole, aie::add(aie::upshift(number, 23), moved));
    whole += 16;
  }
}

// Weights of a half: powers of fractions times those of whole numbers, and their sums by row, which
// four positions take turns in. A NaN, whose bits may have changed, comes back by a sum.
inline Half weigh(const float* powers, const int32_t* whole, bfloat16* weights, int32_t size) {
  const HalfInts zero = aie::zeros<int32_t, 16>();
  const HalfSums none(aie::zeros<float, 16>());
  const auto one = [&](const HalfSums& sum, int32_t at) {
    const Half power = aie::load_v<16>(powers + at);
    const HalfInts bits = aie::add(power.template cast_to<int32_t>(), aie::load_v<16>(whole + at));
    const HalfSums result(aie::max(bits, zero).template cast_to<float>()), again(power);
    const auto weight = aie::add(result, aie::sub(again, again)).template to_vector<bfloat16>();
    aie::store_v(weights + at, weight);
    return aie::add(sum, HalfSums(weight));
  };
  // Two positions at a time wait for each result.
  HalfSums sum0 = none, sum1 = none, sum2 = none, sum3 = none;
  const bfloat16* const end = weights + size;
  NPU_SERIAL_FOR(, weights != end, weights += 32) {
    const HalfSums near = one(sum0, 0), far = one(sum1, 16);
    sum0 = sum2, sum1 = sum3, sum2 = near, sum3 = far;
    powers += 32, whole += 32;
  }
  return aie::add(aie::add(sum0, sum2), aie::add(sum1, sum3)).template to_vector<float>();
}

// The chunk's scores become weights.
inline void weigh_chunk(int32_t* work, const int32_t* words, int32_t weighed, int32_t dim) {
  const int32_t positions = half_positions(dim), size = positions * kCoreRows;
  if (size == 0) __builtin_unreachable();  // loops need not ask
  const Job& job = job_of(words);
  int32_t key = job.key_position + 2 * weighed * positions;
  float *const rows = floats(work), *const factor = rows + kFactor, *top = rows + kTops;
  float *scores = rows + kWeights, *const behind = scores + 2 * size;
  aie::store_v(factor, powers::all<16>(__builtin_bit_cast(float, job.scale)));
  multiply_add(scores, factor, 0, 0, scores, 2 * size);

  // What each half moves the maximum by, as exponents.
  const HalfInts one = all_ints(0x3F800000), minus_one = all_ints(-0x3F800000);
  HalfInts correction = one, moved;
  NPU_ROLLED do {
    Seen seen(work, key);
    const float* const end = scores + size;
    NPU_SERIAL_FOR(, scores != end, scores += 16) { seen.take(aie::load_v<16>(scores), scores); }
    aie::store_v(top, move_maximum(seen.best, rows));
    moved = aie::add(aie::load_v<16>(rows + kCorrection).template cast_to<int32_t>(), minus_one);
    correction = aie::add(correction, moved);
    top += 16, key += positions;
  }
  while (scores != behind);
  const HalfInts power = aie::max(correction, aie::zeros<int32_t, 16>());
  aie::store_v(rows + kCorrection, power.template cast_to<float>());
  multiply_add(rows + kSum, rows + kCorrection, 0, 0, rows + kSum, 16);

  int32_t* const whole = work + kWeights + 2 * size;
  float* const powers_at = rows + kWeights + 3 * size;
  top = rows + kTops, scores = rows + kWeights;
  aie::store_v(factor, powers::all<16>(powers::kCube));
  NPU_ROLLED do {  // the second half is not moved
    split(scores, aie::load_v<16>(top), moved, whole, size);
    multiply_add(scores, factor, 0, powers::kSquare, powers_at, size);
    multiply_add(powers_at, scores, -1, powers::kLinear, powers_at, size);
    multiply_add(powers_at, scores, -1, powers::kConstant, powers_at, size);
    auto* const weights = reinterpret_cast<bfloat16*>(scores);
    const HalfSums sum(weigh(powers_at, whole, weights, size));
    const HalfSums before(aie::load_v<16>(rows + kSum));
    aie::store_v(rows + kSum, aie::add(before, sum).template to_vector<float>());
    pack_tiles(weights, kCoreRows, positions >> 3, Tiles::kColumns,
               reinterpret_cast<uint8_t*>(weights + size));
    moved = aie::zeros<int32_t, 16>(), top += 16, scores += size;
  }
  while (scores != behind);
}

// Of 16 rows' factors each four times, as rows of y have four columns.
NPU_OUTLINED inline void spread(const float* factors, float* to) {
  const Half one = aie::load_v<16>(factors);
  const auto spread_half = [&](const Half& twice, float* at) {
    aie::store_v(at, zip_low(twice, twice, 2));
    aie::store_v(at + 16, zip_high(twice, twice, 2));
  };
  spread_half(zip_low(one, one, 1), to);
  spread_half(zip_high(one, one, 1), to + 32);
}

// A half of V, which the first one's correction goes before: y = correction y + weights v.
inline void add_half(bfloat16* v, uint8_t* tiles, float* store, int32_t* work, int32_t* words,
                     int32_t added, int32_t dim) {
  const int32_t positions = half_positions(dim), half = added & 1;
  const int32_t unit = kRows * dim;
  float* y = store;
  if (half == 0) {
    float* const factors = floats(work) + kFactors;
    spread(floats(work) + kCorrection, factors);
    multiply_add(y, factors, 16, 0, y, unit);
    multiply_add(y + unit, factors + 32, 16, 0, y + unit, unit);
  }
  if (!seen_by_core(work, job_of(words).key_position + added * positions, positions)) return;
  pack_tiles(v, dim, positions >> 3, kOfValues, tiles);
  const bfloat16* weights = weights_of(work, half, positions * kCoreRows);
  const uint8_t *values = tiles, *const behind = tiles + kAPayload;
  const float* const last = store + 2 * unit;
  NPU_ROLLED do {
    y = store;
    const uint8_t* const end = values + intptr_t(kTileBytes / 8) * dim;
    NPU_ROLLED do {
      const Part upper = aie::load_v<32>(weights), lower = aie::load_v<32>(weights + 32);
      InBlocks value = blocks_from(values);
      NPU_ROLLED do {
        Product sum;
        for (unsigned t = 0; t < 4; ++t) {
          sum.sums[t % 2][t / 2] = attention_tiles::Mmul(aie::load_v<16>(y + t * 16));
        }
        sum.mac(upper, lower, value.pop());
        for (unsigned t = 0; t < 4; ++t) {
          aie::store_v(y + t * 16, sum.sums[t % 2][t / 2].template to_vector<float>());
        }
        y += 64;
      }
      while (value.at != end);
      weights += 64;
    }
    while (y != last);
    values = end;
  }
  while (values != behind);
}
inline void add_chunk(const uint8_t*, float*, int32_t*, int32_t) {}

// A block of 32 columns of the rows of a unit, times their factors.
inline void put_block(const float* y, int32_t unit, int32_t* work, int32_t, bfloat16* out) {
  float *const factors = floats(work) + kFactors, *products = floats(work) + kProducts;
  spread(floats(work) + kSum, factors);
  multiply_add(y, factors + 32 * unit, 16, 0, products, kRows * kSlice);
  const auto rounded = [](const float* of) {
    return Sums(aie::load_v<32>(of)).template to_vector<bfloat16>();
  };
  bfloat16* const end = out + 4 * kSlice;
  NPU_SERIAL_FOR(, out != end, out += 32) {
    const Part left = rounded(products), right = rounded(products + 32);
    for (unsigned i = 0; i < 2; ++i) {  // four rows, of which each side has four columns
      const auto near = left.template extract<16>(i), far = right.template extract<16>(i);
      aie::store_v(out + i * 4 * kSlice,
                   aie::concat(zip_low(near, far, 4), zip_high(near, far, 4)));
    }
    products += 64;
  }
}

}  // namespace prefill_attention
}  // namespace

#endif
