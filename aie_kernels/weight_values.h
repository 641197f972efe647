// The weights of 4-bit and 8-bit blocks (weight_block.h) as bfloat16 in registers, for the kernels
// that expand blocks: both roundings of a weight, to fp32 and to bfloat16, are stated here only.
#pragma once

#include <stdint.h>

#include <aie_api/aie.hpp>

#include "kernel.h"
#include "weight_block.h"

namespace {
namespace weights {

constexpr int32_t kHalfRows = 16, kSubColumns = 8;  // of a sub-block of 4-bit codes
constexpr int32_t kSubBytes = kSubColumns * kHalfRows / 2;

using Sums = aie::accum<accfloat, 32>;

template <unsigned kLanes>
inline auto all(float value) {
  const aie::accum<accfloat, kLanes> lanes(aie::broadcast<float, kLanes>(value));
  return lanes.template to_vector<bfloat16>();
}

// What 128 + code is added to: without minima code - 8 has the place of the code.
template <bool kMinima>
constexpr float kCodeOffset = -128 - npu::blocks::Int4Layout<kMinima>::kZero;

// 16 scales or minima twice.
inline aie::vector<bfloat16, 32> twice(const bfloat16* from) {
  const auto once = aie::load_v<kHalfRows>(from);
  return aie::concat(once, once);
}

// The minima of 16 rows twice, whose scales lie at `scales`.
template <bool kMinima>
inline Sums minima(const bfloat16* scales) {
  if (!kMinima) return Sums(aie::zeros<float, 32>());
  return Sums(twice(scales + npu::q4nx::kPlaneBytes / 2));
}

// Two columns of 16 codes as d * code + m; d and m have the 16 rows twice. d * code is exact in
// fp32. Codes become bf16 128 + code, their low byte, by one interleave.
template <bool kMinima>
inline aie::vector<bfloat16, 32> int4_values(const aie::vector<uint8_t, 32>& codes,
                                             const aie::vector<bfloat16, 32>& d, const Sums& m) {
  const auto magic = aie::broadcast<uint8_t, 32>(0x43);  // high byte of bf16 128
  const auto zipped = aie::interleave_zip(codes, magic, 1);
  const auto wide = aie::concat(zipped.first, zipped.second).template cast_to<bfloat16>();
  const Sums offset(aie::broadcast<float, 32>(kCodeOffset<kMinima>));
  const auto code = aie::add(Sums(wide), offset).template to_vector<bfloat16>();
  const auto product = aie::mac(Sums(aie::zeros<float, 32>()), code, d);
  return aie::add(product, m).template to_vector<bfloat16>();
}

// A sub-block of 16 rows x 8 columns, 64 bytes of codes: 8 rows of 8 columns in each vector.
template <bool kMinima>
inline auto int4_rows(const uint8_t* codes, const aie::vector<bfloat16, 32>& d, const Sums& m) {
  const auto pair = aie::unpack(aie::load_v<128>(reinterpret_cast<const uint4*>(codes)));
  const auto values = [&](unsigned i) {
    return int4_values<kMinima>(pair.template extract<32>(i), d, m);
  };
  const auto left = aie::concat(values(0), values(1)), right = aie::concat(values(2), values(3));
  // (4 columns, 16 rows) twice -> 16 rows of 8 columns.
  return aie::interleave_zip(aie::transpose(left, 4, kHalfRows),
                             aie::transpose(right, 4, kHalfRows), 4);
}

// 32 codes of a column times their scales.
inline aie::vector<bfloat16, 32> q8_column(const int8_t* codes,
                                           const aie::vector<float, 32>& scale) {
  const Sums wide(aie::to_float<bfloat16>(aie::load_v<32>(codes)));
  const Sums none(aie::zeros<float, 32>());
  return aie::mac(none, wide.to_vector<float>(), scale).to_vector<bfloat16>();
}

#if NPU_DECLARATIONS
// Slots, not measured on hardware. A sub-block of 4-bit codes, in the move slot: an unpack (npu1:
// two), 4 times an interleave, two conversions to bf16 and two transposing shuffles (npu1: of
// halves); in the multiply slot 4 times an addition, a multiplication and an addition of 32 lanes
// (npu1: twice).
constexpr double kHalves = __AIE_ARCH__ == 20 ? 2 : 1;
constexpr double kQ4nxMoves = kHalves * (1 + 4 * (1 + 2 + 2)), kQ4nxMacs = kHalves * 4 * 3;
// A column of 32 8-bit codes: to_float (gemv_q8.h) and a conversion to bf16 (npu1: of halves); one
// fp32 multiplication of 32 lanes, built from bf16 parts.
constexpr double kQ8Moves = 4 + 2 * kHalves, kQ8Macs = kHalves + 14;
#endif

}  // namespace weights
}  // namespace
