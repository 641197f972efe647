// W = d * code for one 8-bit block: 32 rows x 128 columns of int8 codes (layout: weight_block.h)
// become a row-major bfloat16 tile.
//
// d * code is rounded once to fp32, then once to bfloat16. Eight columns of 32 rows are transposed
// in registers and leave as 32 rows of 16 bytes.
#include <stdint.h>

#include <aie_api/aie.hpp>

#include "kernel.h"
#include "transposed_columns.h"
#include "weight_block.h"

namespace {
namespace expand_q8 {

namespace q8 = npu::blocks::q8;

constexpr int32_t kRows = npu::blocks::kRows, kColumns = q8::kColumns;

inline void expand(const uint8_t* __restrict block, bfloat16* __restrict out) {
  // A core resets to floor, which would bias every value; the mode stays set afterwards.
  aie::set_rounding(aie::rounding_mode::conv_even);
  const float* scales = reinterpret_cast<const float*>(block);
  const int8_t* codes = reinterpret_cast<const int8_t*>(block + q8::kCodesAt);
  for (int32_t c = 0; c < kColumns; c += transposed::kColumns) {
    const auto scale = aie::load_v<32>(scales + c / q8::kGroup * kRows);
    aie::vector<bfloat16, 32> columns[transposed::kColumns];
    for (int32_t i = 0; i < transposed::kColumns; ++i) {
      const auto code = aie::to_float<bfloat16>(aie::load_v<32>(codes + (c + i) * kRows));
      const aie::accum<accfloat, 32> wide(code);
      const aie::accum<accfloat, 32> none(aie::zeros<float, 32>());
      columns[i] = aie::mac(none, wide.to_vector<float>(), scale).to_vector<bfloat16>();
    }
    transposed::store(columns, out + c, kColumns);
  }
}

#if NPU_DECLARATIONS
// Not measured on hardware. Per column of 32 codes: a load, to_float (gemv_q8.h), one fp32
// multiplication of 32 lanes, built from bf16 parts, and a conversion to bf16 (npu1: of halves);
// per eight columns the transposition and 32 stores.
double cycles(const Timing&, const int64_t*) {
  constexpr double kHalves = __AIE_ARCH__ == 20 ? 2 : 1, kScale = 14, kCall = 24;
  constexpr double kMoves = transposed::kColumns * (4 + 2 * kHalves) + transposed::kMoves * kHalves;
  constexpr double kMacs = transposed::kColumns * (kHalves + kScale);
  return double(kColumns / transposed::kColumns) *
             longest(longest(transposed::kStores, kMoves), kMacs) +
         kCall;
}
#endif

}  // namespace expand_q8
}  // namespace

// block: 5120 bytes; out: (32, 128), row-major.
NPU_KERNEL void dequant_q8(const uint8_t* block, bfloat16* out) {
#ifdef AIE_HOST_DEQUANT_Q8  // x86 `fast` builds
  AIE_HOST_DEQUANT_Q8(block, out);
#else
  expand_q8::expand(block, out);
#endif
}

NPU_DECLARE(dequant_q8, {.operands = {buffer("block", npu::blocks::kBytes, alignof(float)),
                                      buffer("out", expand_q8::kRows* expand_q8::kColumns)},
                         .cycles = expand_q8::cycles});
