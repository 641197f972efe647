// y += W x for a Q4NX block: 32 rows x 256 columns of 4-bit codes with a bf16 scale d and minimum m
// per row and group of 32 columns (q4nx_block.h); included by gemv.cc.
//
// Block: 256 d, 256 m (index group * 32 + row), then codes: byte half * 2048 + column * 8 + j holds
// rows half * 16 + 2 j (low nibble) and 2 j + 1. Arithmetic, per row and group:
//   X = sum x      s = -128 X + sum (128 + code) x      y += d s + m X
// in fp32: 128 + code is bf16 with the code as low byte, so that widening a code is one interleave,
// and every product is exact in fp32. A sub-block of 16 x 8 codes is one 64-byte load.
#pragma once

#include <stdint.h>

#include <aie_api/aie.hpp>

#include "kernel.h"
#include "weight_block.h"

namespace {
namespace gemv_q4nx {

namespace q4nx = npu::q4nx;

constexpr int32_t kBlockRows = q4nx::kRows, kBlockColumns = q4nx::kColumns, kHalfRows = 16;
constexpr int32_t kGroup = q4nx::kGroup, kGroups = q4nx::kGroups, kPlane = q4nx::kPlaneBytes;
constexpr int32_t kHalf = kBlockColumns * kHalfRows / 2;  // bytes of codes per half
constexpr int32_t kSubColumns = 8, kSubBytes = kSubColumns * kHalfRows / 2;

// One column of 32 codes, as 128 + code.
inline aie::vector<bfloat16, 32> widen(const aie::vector<uint8_t, 16>& upper,
                                       const aie::vector<uint8_t, 16>& lower) {
  const auto magic = aie::broadcast<uint8_t, 32>(0x43);  // high byte of bf16 128
  const auto zipped = aie::interleave_zip(aie::concat(upper, lower), magic, 1);
  return aie::concat(zipped.first, zipped.second).cast_to<bfloat16>();
}

template <int32_t kVectors>
inline void multiply(const uint8_t* __restrict block, const bfloat16* __restrict x,
                     float* __restrict y) {
  const bfloat16* d = reinterpret_cast<const bfloat16*>(block);
  const bfloat16* m = reinterpret_cast<const bfloat16*>(block + kPlane);
  const uint8_t* upper = block + 2 * kPlane;
  const uint8_t* lower = upper + kHalf;
  // Few vectors have two sums each, of even and odd columns: a sum takes a product every 4 cycles.
  constexpr int32_t kParts = kVectors <= 2 ? 2 : 1;
  for (int32_t group = 0; group < kGroups; ++group) {
    aie::accum<accfloat, 32> sums[kVectors][kParts];
    float totals[kVectors];
    for (int32_t v = 0; v < kVectors; ++v) {
      const aie::accum<accfloat, 32> part(aie::load_v<32>(x + v * kBlockColumns));
      totals[v] = aie::reduce_add(part.template to_vector<float>());
      sums[v][0].from_vector(aie::broadcast<float, 32>(-128 * totals[v]));
      if constexpr (kParts == 2) sums[v][1].from_vector(aie::zeros<float, 32>());
    }
    for (int32_t sub = 0; sub < kGroup; sub += kSubColumns) {
      const auto above = aie::unpack(aie::load_v<128>(reinterpret_cast<const uint4*>(upper)));
      const auto below = aie::unpack(aie::load_v<128>(reinterpret_cast<const uint4*>(lower)));
      for (int32_t c = 0; c < kSubColumns; ++c) {
        const auto codes = widen(above.extract<kHalfRows>(static_cast<unsigned>(c)),
                                 below.extract<kHalfRows>(static_cast<unsigned>(c)));
        for (int32_t v = 0; v < kVectors; ++v) {
          const auto factor = aie::broadcast<bfloat16, 32>(x[v * kBlockColumns + sub + c]);
          auto& sum = sums[v][c % kParts];
          sum = aie::mac(sum, codes, factor);
        }
      }
      upper += kSubBytes;
      lower += kSubBytes;
    }
    const auto scale = aie::accum<accfloat, 32>(aie::load_v<32>(d)).to_vector<float>();
    const auto minimum = aie::accum<accfloat, 32>(aie::load_v<32>(m)).to_vector<float>();
    for (int32_t v = 0; v < kVectors; ++v) {
      if constexpr (kParts == 2) sums[v][0] = aie::add(sums[v][0], sums[v][1]);
      aie::accum<accfloat, 32> row(aie::load_v<32>(y + v * kBlockRows));
      row = aie::mac(row, scale, sums[v][0].template to_vector<float>());
      row = aie::mac(row, minimum, aie::broadcast<float, 32>(totals[v]));
      aie::store_v(y + v * kBlockRows, row.template to_vector<float>());
    }
    d += kBlockRows;
    m += kBlockRows;
    x += kGroup;
  }
}

#if NPU_DECLARATIONS
// Not measured on hardware. Per 8 columns of 32 rows: two loads (npu1: four of 32 bytes) beside
// everything else; in the move slot 4 unpacks of 4-bit codes, 8 interleaves that make bf16 of them,
// and a broadcast per column and vector; in the multiply slot one 32-lane bf16 multiply-add per
// column and vector (npu1: two of 16 lanes). A multiply-add follows 4 cycles after the one it
// depends on: one or two vectors keep two sums each, of every other column. Per group of 32 columns
// and vector: the sum of x (load, widen, 5 halvings), its start value, and two fp32 multiply-adds
// of 32 lanes, each built from bf16 parts.
double cycles(int64_t batch) {
  constexpr double kUnpacks = 4, kInterleaves = 8, kChain = 4;
  constexpr double kGroupSum = 14, kGroupScale = 28;  // cycles per vector
  constexpr double kSteps = kBlockColumns / kSubColumns, kColumns = kSubColumns;
  constexpr double kLanes = __AIE_ARCH__ == 20 ? 16 : 32;
  const auto vectors = double(batch);
  const double moves = kUnpacks + kInterleaves + kColumns * vectors;
  const double macs = kColumns * vectors * kBlockRows / kLanes;
  const double chain = kColumns * kChain / (batch <= 2 ? 2 : 1);
  const double step = longest(longest(moves, macs), chain);
  return kSteps * step + kGroups * vectors * (kGroupSum + kGroupScale);
}
#endif

}  // namespace gemv_q4nx
}  // namespace
