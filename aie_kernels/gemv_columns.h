// What products of blocks of all formats have in common (gemv.cc): sums over columns of 32 bfloat16
// weights in memory, for up to eight vectors x, and fp32 products that are added to y. Each loop is
// there once: program memory has no room for one per format and batch.
#pragma once

#include <stdint.h>

#include <aie_api/aie.hpp>

#include "gemv_setup.h"
#include "kernel.h"
#include "weight_block.h"

namespace {
namespace gemv_columns {

constexpr int32_t kRows = npu::blocks::kRows;
constexpr int32_t kFour = 4, kApart = npu::gemv::kWorkPart;
using Sums = aie::accum<accfloat, kRows>;

inline Sums load(const float* from) { return Sums(aie::load_v<kRows>(from)); }
inline Sums zeros() { return Sums(aie::zeros<float, kRows>()); }
inline void store(float* to, const Sums& sums) { aie::store_v(to, sums.to_vector<float>()); }
inline Sums add_column(const Sums& sums, const aie::vector<bfloat16, kRows>& column, bfloat16 x) {
  return aie::mac(sums, column, aie::broadcast<bfloat16, kRows>(x));
}

NPU_OUTLINED inline void clear(float* sums, int32_t count) {
  NPU_ROLLED for (int32_t i = 0; i < count; i += 16) {
    aie::store_v(sums + i, aie::zeros<float, 16>());
  }
}

// sums += every step-th of `count` columns times x, in two sums, of which each takes every other of
// these: a sum takes a product every 4 cycles.
inline void multiply_one(const bfloat16* __restrict columns, const bfloat16* __restrict x,
                         int32_t step, int32_t count, float* __restrict sums) {
  Sums even = load(sums), odd = zeros();
  NPU_ROLLED for (int32_t c = 0; c < count; c += 2 * step) {
    even = add_column(even, aie::load_v<kRows>(columns), x[0]);
    odd = add_column(odd, aie::load_v<kRows>(columns + step * kRows), x[step]);
    columns += 2 * step * kRows;
    x += 2 * step;
  }
  store(sums, aie::add(even, odd));
}

// The same for four vectors, of all columns, in one sum each.
inline void multiply_four(const bfloat16* __restrict columns, const bfloat16* __restrict x,
                          int32_t line, int32_t count, float* __restrict sums) {
  Sums a = load(sums), b = load(sums + kApart);
  Sums c = load(sums + 2 * kApart), d = load(sums + 3 * kApart);
  NPU_ROLLED for (int32_t i = 0; i < count; ++i) {
    const auto column = aie::load_v<kRows>(columns);
    a = add_column(a, column, x[0]);
    b = add_column(b, column, x[line]);
    c = add_column(c, column, x[2 * line]);
    d = add_column(d, column, x[3 * line]);
    columns += kRows;
    ++x;
  }
  store(sums, a);
  store(sums + kApart, b);
  store(sums + 2 * kApart, c);
  store(sums + 3 * kApart, d);
}

// sums += columns x for a batch (4 or 8 without `step`): `line` elements of x and kApart sums from
// one vector to the next.
template <bool kBatches>
NPU_OUTLINED inline void multiply(const bfloat16* columns, const bfloat16* x, int32_t step,
                                  int32_t count, float* sums, int32_t batch, int32_t line) {
  if (!kBatches) return multiply_one(columns, x, step, count, sums);
  if (batch < kFour) {
    NPU_ROLLED for (int32_t v = 0; v < batch; ++v) {
      multiply_one(columns, x, step, count, sums);
      x += line;
      sums += kApart;
    }
    return;
  }
  NPU_ROLLED for (int32_t v = 0; v < batch; v += kFour) {
    multiply_four(columns, x, line, count, sums);
    x += kFour * line;
    sums += kFour * kApart;
  }
}

// y += a b, of `count` pairs of 32 fp32 one after the other: a is the same for all vectors. AIE2P
// takes two vectors at once, as its products wait for each other; one vector is taken twice.
template <bool kBatches>
NPU_OUTLINED inline void add_products(const float* __restrict a, const float* __restrict b,
                                      int32_t count, int32_t batch, float* __restrict y) {
  constexpr int32_t kAtOnce = kBatches && __AIE_ARCH__ > 20 ? 2 : 1;
  const int32_t second = batch > 1 ? 1 : 0;
  NPU_ROLLED for (int32_t v = 0; v < (kBatches ? batch : 1); v += kAtOnce) {
    Sums row = load(y), other = row;
    if (kAtOnce == 2) other = load(y + second * kRows);
    NPU_ROLLED for (int32_t i = 0; i < count; ++i) {
      const auto factor = aie::load_v<kRows>(a + i * kRows);
      row = aie::mac(row, factor, aie::load_v<kRows>(b + i * kRows));
      if (kAtOnce == 2) {
        const float* at = b + second * kApart + i * kRows;
        other = aie::mac(other, factor, aie::load_v<kRows>(at));
      }
    }
    store(y, row);
    if (kAtOnce == 2) store(y + second * kRows, other);
    b += kAtOnce * kApart;
    y += kAtOnce * kRows;
  }
}

#if NPU_DECLARATIONS
// Cycles, not measured on hardware. AIE2 multiplies 16 bf16 lanes per cycle and stores 32 bytes,
// AIE2P twice as much. Products into the same sum follow each other by kChain cycles; one of fp32
// is six of bf16 into the same sum. Of two with a factor in common both fit into that time on
// AIE2P: 18 multiply slots; on AIE2 one does, of 20.
constexpr double kHalves = __AIE_ARCH__ == 20 ? 2 : 1;
constexpr double kChain = 4, kProduct = 6 * kChain;
// A loop's set-up and until its first result is there (of fp32 products, whose factors are split
// first, with their call); a call.
constexpr double kLoop = 24, kLoopOfProducts = 64, kCall = 12;

// Of multiply: a broadcast and a product per column and vector.
constexpr double multiply_cycles(double count, int64_t batch) {
  if (batch < kFour) return kCall + double(batch) * (kLoop + count * longest(kChain / 2, kHalves));
  return kCall + double(batch / kFour) * (kLoop + count * kFour * kHalves);
}
constexpr double clear_cycles(double count) { return kCall + kLoop + count / 16 * kHalves; }
template <bool kBatches>
constexpr double products_cycles(double count, int64_t batch) {
  const bool two = kBatches && __AIE_ARCH__ > 20;
  const double one = kLoopOfProducts + count * kProduct;
  return double(two ? (batch + 1) / 2 : batch) * one;
}
#endif

}  // namespace gemv_columns
}  // namespace
