// y += W x for a block of bfloat16 weights: 32 rows x 80 columns (weight_block.h); included by
// gemv.cc. Every product is exact in fp32; a block's sums are added to y at its end.
#pragma once

#include <stdint.h>

#include <aie_api/aie.hpp>

#include "kernel.h"
#include "weight_block.h"

namespace {
namespace gemv_bf16 {

constexpr int32_t kRows = npu::blocks::kRows, kColumns = npu::blocks::bf16::kColumns;

template <int32_t kVectors>
inline void multiply(const uint8_t* __restrict block, const bfloat16* __restrict x,
                     float* __restrict y) {
  const bfloat16* w = reinterpret_cast<const bfloat16*>(block);
  // Sums of every kParts-th column: a sum takes a product every 4 cycles.
  constexpr int32_t kParts = kVectors == 1 ? 4 : kVectors == 2 ? 2 : 1;
  aie::accum<accfloat, 32> sums[kVectors][kParts];
  for (int32_t v = 0; v < kVectors; ++v) {
    for (int32_t part = 0; part < kParts; ++part) {
      sums[v][part].from_vector(aie::zeros<float, 32>());
    }
  }
  for (int32_t c = 0; c < kColumns; c += kParts) {
    for (int32_t part = 0; part < kParts; ++part) {
      const auto column = aie::load_v<32>(w);
      for (int32_t v = 0; v < kVectors; ++v) {
        const auto factor = aie::broadcast<bfloat16, 32>(x[v * kColumns + c + part]);
        sums[v][part] = aie::mac(sums[v][part], column, factor);
      }
      w += kRows;
    }
  }
  for (int32_t v = 0; v < kVectors; ++v) {
    for (int32_t step = kParts / 2; step > 0; step /= 2) {
      for (int32_t part = 0; part < step; ++part) {
        sums[v][part] = aie::add(sums[v][part], sums[v][part + step]);
      }
    }
    const aie::accum<accfloat, 32> row(aie::load_v<32>(y + v * kRows));
    aie::store_v(y + v * kRows, aie::add(row, sums[v][0]).template to_vector<float>());
  }
}

#if NPU_DECLARATIONS
// Not measured on hardware. Per column: a 64-byte load (npu1: two); a broadcast per vector; in the
// multiply slot one 32-lane bf16 multiply-add per vector (npu1: two of 16 lanes), each 4 cycles
// after the one it depends on. At the end, per vector, the sums are added and y loaded and stored.
double cycles(int64_t batch) {
  constexpr double kHalves = __AIE_ARCH__ == 20 ? 2 : 1, kEnd = 24;
  const auto vectors = double(batch);
  const double chain = batch == 1 ? 1 : batch == 2 ? 2 : 4;
  const double step = longest(longest(kHalves, kHalves * vectors), chain);
  return kColumns * step + vectors * kEnd;
}
#endif

}  // namespace gemv_bf16
}  // namespace
