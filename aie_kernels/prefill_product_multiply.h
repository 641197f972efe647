// The multiplication of prefill_product.cc: sums += slices of A times the same slices of W, which
// prefill_weights.h has expanded.
//
// Blocks of 2x2 tiles as in mmul_block.h, k unrolled, all blocks of a call in one loop on npu2: it
// is filled and drained once. Sums are fp32 tiles [m / r][n / t][r][t], rows of tiles in the places
// that sums_at() gives them: the two of a block are in different banks on npu2.
#pragma once

#include <stdint.h>

#include <aie_api/aie.hpp>

#include "kernel.h"
#include "mmul_block.h"
#include "prefill_job.h"
#include "prefill_weights.h"

namespace {
namespace prefill_product {

using namespace npu::prefill;
using npu::blocks::Format;
using prefill_weights::kPairTile, prefill_weights::kRowBlock, prefill_weights::kSteps;

inline float* tail_of(int32_t* work) { return reinterpret_cast<float*>(work); }
inline const float* tail_of(const int32_t* work) { return reinterpret_cast<const float*>(work); }

constexpr int32_t kTailBytes = 4 * kTailSums;  // npu1 has none

// Sums from `next` on, which is in the tail if the store ends there: a choice without a jump, for
// loops that are pipelined.
inline float* behind(float* next, const float* end, float* tail) {
  const auto there = reinterpret_cast<uintptr_t>(next);
  const auto store_end = reinterpret_cast<uintptr_t>(end);
  const uintptr_t chosen = uintptr_t{0} - uintptr_t{there == store_end};
  return reinterpret_cast<float*>(there +
                                  ((reinterpret_cast<uintptr_t>(tail) - store_end) & chosen));
}

#if __AIE_ARCH__ >= 21
using Tile = BlockFloatTile;

// kAtOnce slices of W in `work`, one behind the other: behind the sums that it has for the most
// rows.
constexpr int32_t kSliceBytes = kRowBlock * kSlice / 8 * 9;  // of a row-block
static_assert(kTailBytes % 64 == 0 && kSliceBytes % 64 == 0);
static_assert(kTailBytes + kAtOnce * kMaxBlocks * kSliceBytes <= 4 * kWork);

// How a multiplication steps: A [slices][m/8][4], W pairs [slices][n/16][4][2], blocks of 8x8.
struct Steps {
  int32_t w;      // bytes of a slice of W
  int32_t half;   // sums of all upper rows of tiles; of 64 of them none: one slice
  int32_t count;  // 2x2 blocks of all slices
};

// Rows of tiles, then slices. Masks, no branches: one loop body. The same sums come again after two
// rounds at least (16 rows, 32 columns), when they have been stored.
inline void multiply(const uint8_t* __restrict a, const uint8_t* __restrict w,
                     float* __restrict store, float* __restrict tail, const Steps& steps) {
  constexpr int32_t kC = 64, kRowBytes = kSteps * kC / 8 * 9;
  using Blocks = aie::block_vector_input_buffer_stream<bfp16ebs8, kC>;
  const auto at = [](const uint8_t* from) {
    return Blocks(reinterpret_cast<const bfp16ebs8*>(from));
  };
  int32_t left = steps.w;  // bytes of the slice of W, for two rows of tiles
  float *upper = store, *lower = store + kHalf;
  const float *const half_end = store + steps.half, *const store_end = store + kStore;
  AIE_PREPARE_FOR_PIPELINING
  NPU_ROLLED for (int32_t i = steps.count; i > 0; --i) {
    MmulBlock<Tile, BLayout::kColumnMajor, float> block;
    block.load(upper, lower, 0);
    Blocks a0 = at(a), a1 = at(a + kRowBytes), both = at(w);
    for (int32_t step = 0; step < kSteps; ++step) {
      const auto w0 = both.pop(), w1 = both.pop();
      block.multiply(a0.pop(), a1.pop(), NPU_TRANSPOSED(w0), NPU_TRANSPOSED(w1));
    }
    block.store(upper, lower, 0);
    w += 2 * kRowBytes;
    left -= 2 * kRowBytes;
    const int32_t row_ends = where(left == 0);
    w -= steps.w & row_ends;
    left += steps.w & row_ends;
    a += 2 * kRowBytes & row_ends;
    upper += 2 * kC, lower += 2 * kC;
    const int32_t slice_ends = where(upper == half_end);
    w += steps.w & slice_ends;
    upper -= steps.half & slice_ends, lower -= steps.half & slice_ends;
    lower = behind(lower, store_end, tail);
  }
}
#else
using Tile = NativeTile<bfloat16, 4, 8, 4, 4>;

constexpr int32_t kSliceBytes = kRowBlock * kSlice * 2;  // of a row-block
static_assert(kAtOnce * kMaxBlocks * kSliceBytes <= 4 * kWork && kTailSums == 0);

// The same of a slice, A [m/4][4][4][8] and W pairs [n/8][4][2][8][4].
inline void multiply(const bfloat16* __restrict a, const bfloat16* __restrict weights,
                     float* __restrict sums, int32_t m, int32_t blocks) {
  constexpr int32_t kA = 4 * 8, kC = 4 * 4;
  const int32_t across = blocks * kRowBlock / 8;
  NPU_ROLLED for (int32_t row = 0; row < m; row += 8, a += 2 * kSteps * kA) {
    const auto* b = weights;
    float* lower = sums + 2 * across * kC;
    NPU_ROLLED for (int32_t column = 0; column < across; ++column) {
      MmulBlock<Tile, BLayout::kRowMajor, float> block;
      block.load(sums, lower, 0);
      for (int32_t step = 0; step < kSteps; ++step, b += kPairTile) {
        block.mac(a + step * kA, a + (kSteps + step) * kA, b, b + kPairTile / 2);
      }
      block.store(sums, lower, 0);
      sums += 2 * kC;
      lower += 2 * kC;
    }
    sums = lower;
  }
}
#endif

constexpr int32_t range_slices(int32_t format) {
  constexpr auto kOf = [](Format f) { return range_columns(f) / kSlice << 4 * int32_t(f); };
  constexpr int32_t kAll = kOf(Format::kQ4nx) | kOf(Format::kQ8) | kOf(Format::kBf16) |
                           kOf(Format::kQ4_0) | kOf(Format::kQ8_0);
  return kAll >> 4 * format & 15;
}
constexpr int32_t kRowBytes = kOperandBytes / kRows;  // of A

inline uint8_t* slice_of_w(int32_t* work, int32_t slice, int32_t blocks) {
  const int32_t number = slice & (kAtOnce - 1);
  return reinterpret_cast<uint8_t*>(work) + kTailBytes + number * blocks * kSliceBytes;
}

// If `slice` is the first of those that are expanded at once: these, of the held blocks.
template <bool kSmall>
NPU_OUTLINED inline void expand_slices(const uint8_t* b0, const uint8_t* b1, int32_t* work,
                                       int32_t slice, int32_t blocks, int32_t format) {
  if ((slice & (kAtOnce - 1)) != 0) return;
  const int32_t left = range_slices(format) - slice, count = left < kAtOnce ? left : kAtOnce;
  aie::set_rounding(aie::rounding_mode::conv_even);
  prefill_weights::expand<kSmall>(b0, b1, blocks, format, slice, count,
                                  slice_of_w(work, 0, blocks));
}

// Slices [first, end) of a range.
struct Slices {
  int32_t first, end;
};

// Slices that were expanded, times those of an object of A.
inline void multiply_rows(const bfloat16* a, float* store, float* tail, int32_t* work,
                          Slices slices, int32_t m, int32_t blocks) {
  // Slices of an object follow each other in it; their number is a power of two, as all m are.
  const int32_t row = slices.first * m & (kRowSlots - 1), n = blocks * kRowBlock;
  const int32_t count = slices.end - slices.first;
  const auto* const from = reinterpret_cast<const uint8_t*>(a) + row * kRowBytes;
  const uint8_t* const w = slice_of_w(work, slices.first, blocks);
#if __AIE_ARCH__ >= 21
  multiply(from, w, store, tail,
           {.w = blocks * kSliceBytes,
            .half = (m * n >> 1) & where(m < kRowSlots),
            .count = (m >> 4) * (blocks * 2) * count});
#else
  (void)tail, (void)n;
  const auto* rows = reinterpret_cast<const bfloat16*>(from);
  const auto* weights = reinterpret_cast<const bfloat16*>(w);
  NPU_ROLLED for (int32_t i = 0; i < count; ++i) {
    multiply(rows, weights, store, m, blocks);
    rows += m * kSlice, weights += blocks * (kRowBlock * kSlice);
  }
#endif
}
NPU_OUTLINED inline void multiply_slices(const bfloat16* a, float* store, int32_t* work,
                                         Slices slices, int32_t m, int32_t blocks) {
  multiply_rows(a, store, tail_of(work), work, slices, m, blocks);
}

constexpr int32_t kSliceAt = kState;  // of a job's words: counts a range's slices

// Slices per object: kRowSlots / m for m = 16, 32, 64, 128, without a division.
constexpr int32_t object_slices(int32_t m) { return kRowSlots / 16 >> ((m >> 5) - (m >> 7)); }
static_assert(object_slices(16) == kRowSlots / 16 && object_slices(32) == kRowSlots / 32);
static_assert(object_slices(64) == kRowSlots / 64 && object_slices(kRowSlots) == 1);

// Those of the next object of a range.
inline Slices next_slices(int32_t* job, int32_t m, int32_t format) {
  const int32_t first = job[kSliceAt], all = range_slices(format), next = first + object_slices(m);
  const int32_t more = where(next < all);
  job[kSliceAt] = next & more;
  return {first, (next & more) + (all & ~more)};
}

}  // namespace prefill_product
}  // namespace
