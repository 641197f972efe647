// The multiplication of prefill_product.cc: sums += a slice of A times the same slice of W, which
// prefill_weights.h has expanded; on npu2 two slices at once where a core has 64 rows or less.
//
// Blocks of 2x2 tiles as in mmul_block.h, k unrolled, all blocks of a slice in one loop on npu2.
// Sums are fp32 tiles [m / r][n / t][r][t], from row kStoreRows on in `work`.
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

#if __AIE_ARCH__ >= 21
using Tile = BlockFloatTile;

// Slices of W in `work`, bytes: the first lies behind the sums that it has for the most rows; the
// second, of fewer rows, in their place.
constexpr int32_t kTailBytes = (kRowSlots - kStoreRows) * kMaxBlocks * kRowBlock * 4;
constexpr int32_t kSliceBytes = kMaxBlocks * kRowBlock * kSlice / 8 * 9;
static_assert(kTailBytes % 64 == 0 && kSliceBytes % 64 == 0 && kSliceBytes <= kTailBytes);
static_assert(kTailBytes + kSliceBytes <= 4 * kWork);

inline uint8_t* slice_of_w(int32_t* work, int32_t number) {
  return reinterpret_cast<uint8_t*>(work) + kTailBytes - number * kSliceBytes;
}

// How a multiplication steps: A [m/8][4], W pairs [n/16][4][2], blocks of 8x8.
struct Steps {
  int32_t a, w;           // bytes of a slice of A, of W
  int32_t row, in_store;  // sums of a row of tiles, and of those before the tail
  int32_t count;          // 2x2 blocks
};

// sums += A W of kSlices slices, one loop over 2x2 blocks.
template <int32_t kSlices>
inline void multiply(const uint8_t* __restrict a, const uint8_t* __restrict w,
                     float* __restrict sums, float* __restrict tail, const Steps& steps) {
  constexpr int32_t kC = 64, kRowBytes = kSteps * kC / 8 * 9;
  using Blocks = aie::block_vector_input_buffer_stream<bfp16ebs8, kC>;
  const auto at = [](const uint8_t* from) {
    return Blocks(reinterpret_cast<const bfp16ebs8*>(from));
  };
  const uint8_t *b = w, *const end = w + steps.w;
  const float* const store_end = sums + steps.in_store;
  AIE_PREPARE_FOR_PIPELINING
  NPU_ROLLED for (int32_t i = steps.count; i > 0; --i) {
    float* const lower = sums + steps.row;
    MmulBlock<Tile, BLayout::kColumnMajor, float> block;
    block.load(sums, lower, 0);
    for (int32_t s = 0; s < kSlices; ++s) {
      const uint8_t* const from = a + s * steps.a;
      Blocks a0 = at(from), a1 = at(from + kRowBytes), both = at(b - s * kSliceBytes);
      for (int32_t step = 0; step < kSteps; ++step) {
        const auto left = both.pop(), right = both.pop();
        block.multiply(a0.pop(), a1.pop(), left, right);
      }
    }
    block.store(sums, lower, 0);
    b += 2 * kRowBytes;
    const bool ends = b == end;  // of two rows of tiles; selects, no branches: one loop body
    b = ends ? w : b;
    a += ends ? 2 * kRowBytes : 0;
    sums = (ends ? lower : sums) + 2 * kC;
    sums = sums == store_end ? tail : sums;
  }
}
#else
using Tile = NativeTile<bfloat16, 4, 8, 4, 4>;

inline uint8_t* slice_of_w(int32_t* work, int32_t) { return reinterpret_cast<uint8_t*>(work); }
static_assert(kMaxBlocks * kRowBlock * kSlice * 2 <= 4 * kWork && kRowSlots <= kStoreRows);

// The same for A [m/4][4][4][8] and W pairs [n/8][4][2][8][4].
inline void multiply(const bfloat16* __restrict a, int32_t* __restrict work, float* __restrict sums,
                     int32_t m, int32_t blocks) {
  constexpr int32_t kA = 4 * 8, kC = 4 * 4;
  const auto* const weights = reinterpret_cast<const bfloat16*>(work);
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

// 1 if pairs of slices are multiplied at once.
constexpr int32_t in_pairs(int32_t m) { return Tile::kBlockFloat && m < kRowSlots; }

constexpr int32_t range_slices(int32_t format) {
  constexpr auto kOf = [](Format f) { return range_columns(f) / kSlice << 4 * int32_t(f); };
  constexpr int32_t kAll = kOf(Format::kQ4nx) | kOf(Format::kQ8) | kOf(Format::kBf16);
  return kAll >> 4 * format & 15;
}
// Rows of an object of A before those of a slice: a power of two, as all m, is divided by.
constexpr int32_t row_of(int32_t slice, int32_t m) { return slice * m & (kRowSlots - 1); }
constexpr int32_t kRowBytes = kOperandBytes / kRows;  // of A

// A slice that was expanded, whose A begins at `from`; if `pair` is 1, the one before it, too.
inline void multiply_expanded(const uint8_t* from, float* store, float* tail, int32_t* work,
                              int32_t m, int32_t blocks, int32_t pair) {
#if __AIE_ARCH__ >= 21
  const int32_t row = blocks * kRowBlock * kRows;
  const Steps steps = {.a = m * kRowBytes,
                       .w = blocks * (kSliceBytes / kMaxBlocks),
                       .row = row,
                       .in_store = kStoreRows / kRows * row,
                       .count = (m >> 4) * (blocks * 2)};
  const uint8_t *const a = from - (steps.a & -pair), *const w = slice_of_w(work, 0);
  if (pair != 0) return multiply<2>(a, w, store, tail, steps);
  multiply<1>(a, w, store, tail, steps);
#else
  (void)tail, (void)pair;
  multiply(reinterpret_cast<const bfloat16*>(from), work, store, m, blocks);
#endif
}

constexpr int32_t kSliceAt = kState;  // of a job's words: counts slices of a range of columns

// Of the range's slices, the one that a call is for; counts it.
inline int32_t count_slice(int32_t* job, int32_t m, int32_t format) {
  const int32_t slice = job[kSliceAt], next = slice + 1;
  const bool more = next < range_slices(format) || row_of(next, m) != 0;  // objects of A end
  job[kSliceAt] = more ? next : 0;
  return slice;
}

// Of a pair, the first waits for the second, which follows in the same object; the last of an odd
// number is alone.
NPU_OUTLINED inline void multiply_next(const bfloat16* a, float* store, int32_t* work, int32_t* job,
                                       int32_t m, int32_t blocks, int32_t format) {
  const int32_t slice = count_slice(job, m, format), end = range_slices(format);
  const int32_t pair = slice & in_pairs(m), waits = in_pairs(m) & ~pair & (slice + 1 < end);
  if ((slice >= end) | waits) return;
  const auto* from = reinterpret_cast<const uint8_t*>(a) + row_of(slice, m) * kRowBytes;
  multiply_expanded(from, store, tail_of(work), work, m, blocks, pair);
}

NPU_OUTLINED inline void expand_next(const uint8_t* b0, const uint8_t* b1, int32_t* work,
                                     const int32_t* job, int32_t m, int32_t blocks,
                                     int32_t format) {
  const int32_t slice = job[kSliceAt];
  if (slice >= range_slices(format)) return;
  aie::set_rounding(aie::rounding_mode::conv_even);
  uint8_t* const to = slice_of_w(work, slice & in_pairs(m));
  prefill_weights::expand(b0, b1, blocks, format, slice, to);
}

}  // namespace prefill_product
}  // namespace
