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
#include "weight_values.h"

namespace {
namespace expand_q8 {

using npu::blocks::q8, npu::blocks::q8_0;

constexpr int32_t kRows = npu::blocks::kRows, kColumns = q8::kColumns;

template <typename Layout>  // q8, q8_0
inline void expand(const uint8_t* __restrict block, bfloat16* __restrict out) {
  // A core resets to floor, which would bias every value; the mode stays set afterwards.
  aie::set_rounding(aie::rounding_mode::conv_even);
  const float* scales = reinterpret_cast<const float*>(block);
  const int8_t* codes = reinterpret_cast<const int8_t*>(block + Layout::kCodesAt);
  for (int32_t c = 0; c < kColumns; c += transposed::kColumns) {
    const auto scale = aie::load_v<32>(scales + c / Layout::kGroup * kRows);
    aie::vector<bfloat16, 32> columns[transposed::kColumns];
    for (int32_t i = 0; i < transposed::kColumns; ++i) {
      columns[i] = weights::q8_column(codes + (c + i) * kRows, scale);
    }
    transposed::store(columns, out + c, kColumns);
  }
}

#if NPU_DECLARATIONS
// Not measured on hardware. Per column of 32 codes the slots of weight_values.h and a load; per
// eight columns the transposition (npu1: of halves) and 32 stores.
double cycles(const Timing&, const int64_t*) {
  constexpr double kCall = 24;
  constexpr double kMoves =
      transposed::kColumns * weights::kQ8Moves + transposed::kMoves * weights::kHalves;
  constexpr double kMacs = transposed::kColumns * weights::kQ8Macs;
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
  AIE_HOST_DEQUANT_Q8<npu::blocks::q8>(block, out);
#else
  expand_q8::expand<npu::blocks::q8>(block, out);
#endif
}
// The same of q8_0.
NPU_KERNEL void dequant_q8_0(const uint8_t* block, bfloat16* out) {
#ifdef AIE_HOST_DEQUANT_Q8
  AIE_HOST_DEQUANT_Q8<npu::blocks::q8_0>(block, out);
#else
  expand_q8::expand<npu::blocks::q8_0>(block, out);
#endif
}

NPU_DECLARE(dequant_q8, {.operands = {buffer("block", npu::blocks::kBytes, alignof(float)),
                                      buffer("out", expand_q8::kRows* expand_q8::kColumns)},
                         .cycles = expand_q8::cycles,
                         .parts = one_call});
NPU_DECLARE(dequant_q8_0, {.operands = {buffer("block", npu::blocks::q8_0::kSize, alignof(float)),
                                        buffer("out", expand_q8::kRows* expand_q8::kColumns)},
                           .cycles = expand_q8::cycles});
