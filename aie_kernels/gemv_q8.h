// y += W x for an 8-bit block: 32 rows x 128 columns of int8 codes with an fp32 scale d per row and
// group of 16 columns (weight_block.h); included by gemv.cc.
//
// Per row and group: s = sum code x, y += d s, in fp32. Codes become bf16, exactly, so every
// product is exact in fp32. The 32 codes of a column are one load.
#pragma once

#include <stdint.h>

#include <aie_api/aie.hpp>

#include "kernel.h"
#include "weight_block.h"

namespace {
namespace gemv_q8 {

namespace q8 = npu::blocks::q8;

constexpr int32_t kRows = npu::blocks::kRows, kColumns = q8::kColumns;
constexpr int32_t kGroup = q8::kGroup, kGroups = q8::kGroups;

template <int32_t kVectors>
inline void multiply(const uint8_t* __restrict block, const bfloat16* __restrict x,
                     float* __restrict y) {
  const float* d = reinterpret_cast<const float*>(block);
  const int8_t* codes = reinterpret_cast<const int8_t*>(block + q8::kCodesAt);
  // Few vectors have two sums each, of even and odd columns: a sum takes a product every 4 cycles.
  constexpr int32_t kParts = kVectors <= 2 ? 2 : 1;
  for (int32_t group = 0; group < kGroups; ++group) {
    aie::accum<accfloat, 32> sums[kVectors][kParts];
    for (int32_t v = 0; v < kVectors; ++v) {
      for (int32_t part = 0; part < kParts; ++part) {
        sums[v][part].from_vector(aie::zeros<float, 32>());
      }
    }
    for (int32_t c = 0; c < kGroup; ++c) {
      const auto column = aie::to_float<bfloat16>(aie::load_v<32>(codes));
      for (int32_t v = 0; v < kVectors; ++v) {
        const auto factor = aie::broadcast<bfloat16, 32>(x[v * kColumns + c]);
        auto& sum = sums[v][c % kParts];
        sum = aie::mac(sum, column, factor);
      }
      codes += kRows;
    }
    const auto scale = aie::load_v<32>(d);
    for (int32_t v = 0; v < kVectors; ++v) {
      if constexpr (kParts == 2) sums[v][0] = aie::add(sums[v][0], sums[v][1]);
      aie::accum<accfloat, 32> row(aie::load_v<32>(y + v * kRows));
      row = aie::mac(row, scale, sums[v][0].template to_vector<float>());
      aie::store_v(y + v * kRows, row.template to_vector<float>());
    }
    d += kRows;
    x += kGroup;
  }
}

#if NPU_DECLARATIONS
// Not measured on hardware. Per column of 32 codes: a load; to bf16 by a magic number, two unpacks
// (to 16 and 32 bits), two additions of 16 lanes, and in the accumulator a subtraction and a
// conversion (npu1: two each); a broadcast per vector; in the multiply slot one 32-lane bf16
// multiply-add per vector (npu1: two of 16 lanes) besides that subtraction. A multiply-add follows
// 4 cycles after the one it depends on. Per group of 16 columns and vector: clearing the sum and
// one fp32 multiply-add of 32 lanes, built from bf16 parts.
double cycles(int64_t batch) {
  constexpr double kHalves = __AIE_ARCH__ == 20 ? 2 : 1;
  constexpr double kGroupScale = 16;  // cycles per vector
  const auto vectors = double(batch);
  const double moves = 2 + 2 + kHalves + vectors, macs = kHalves + kHalves * vectors;
  const double chain = 4.0 / (batch <= 2 ? 2 : 1);
  return kColumns * longest(longest(moves, macs), chain) + kGroups * vectors * kGroupScale;
}
#endif

}  // namespace gemv_q8
}  // namespace
