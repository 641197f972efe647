// W = m + d * code for one Q4NX block: 32 rows x 256 columns of 4-bit codes (layout: q4nx_block.h,
// gemv_q4nx.h) become a row-major bfloat16 tile. Without minima (weight_block.h) m = -8 d.
//
// d * code is exact in fp32, the sum with m is rounded once to fp32, then once to bfloat16
// (weight_values.h). A sub-block of 16 rows x 8 columns is one 64-byte load; it is transposed in
// registers and leaves as 16 rows of 16 bytes.
#include <stdint.h>

#include <aie_api/aie.hpp>

#include "kernel.h"
#include "q4nx_block.h"
#include "weight_block.h"
#include "weight_values.h"

namespace {
namespace dequant {

namespace q4nx = npu::q4nx;

constexpr int32_t kRows = q4nx::kRows, kColumns = q4nx::kColumns;
constexpr int32_t kGroup = q4nx::kGroup, kGroups = q4nx::kGroups;
using weights::kHalfRows, weights::kSubBytes, weights::kSubColumns;

template <bool kMinima>
inline void expand(const uint8_t* __restrict block, bfloat16* __restrict out) {
  // A core resets to floor, which would bias every value; the mode stays set afterwards.
  aie::set_rounding(aie::rounding_mode::conv_even);
  const bfloat16* planes = reinterpret_cast<const bfloat16*>(block);
  const uint8_t* codes = block + npu::blocks::Int4Layout<kMinima>::kCodesAt;
  for (int32_t half = 0; half < 2; ++half) {
    for (int32_t group = 0; group < kGroups; ++group) {
      const bfloat16* at = planes + group * kRows + half * kHalfRows;
      const auto d = weights::twice(at);
      const weights::Sums m = weights::minima<kMinima>(at);
      for (int32_t sub = 0; sub < kGroup; sub += kSubColumns) {
        const auto rows = weights::int4_rows<kMinima>(codes, d, m);
        codes += kSubBytes;
        bfloat16* tile = out + half * kHalfRows * kColumns + group * kGroup + sub;
        for (int32_t r = 0; r < kHalfRows; ++r) {
          const auto& eight = r < 8 ? rows.first : rows.second;
          aie::store_v(tile + r * kColumns, eight.template extract<kSubColumns>(r % 8));
        }
      }
    }
  }
}

#if NPU_DECLARATIONS
// Not measured on hardware. Per 16 rows x 8 columns the slots of weight_values.h, and 16 stores of
// a row's 16 bytes.
double cycles(const Timing&, const int64_t*) {
  constexpr double kSubBlocks = kRows * kColumns / (kHalfRows * kSubColumns), kStores = 16;
  constexpr double kCall = 24;  // call, counters, loop set-up
  return kSubBlocks * longest(longest(kStores, weights::kQ4nxMoves), weights::kQ4nxMacs) + kCall;
}
#endif

}  // namespace dequant
}  // namespace

// block: 5120 bytes; out: (32, 256), row-major.
NPU_KERNEL void dequant_q4nx(const uint8_t* block, bfloat16* out) {
#ifdef AIE_HOST_DEQUANT  // x86 `fast` builds
  AIE_HOST_DEQUANT<true>(block, out);
#else
  dequant::expand<true>(block, out);
#endif
}
// The same of q4_0: w = d (code - 8).
NPU_KERNEL void dequant_q4_0(const uint8_t* block, bfloat16* out) {
#ifdef AIE_HOST_DEQUANT
  AIE_HOST_DEQUANT<false>(block, out);
#else
  dequant::expand<false>(block, out);
#endif
}

NPU_DECLARE(dequant_q4nx, {.operands = {buffer("block", npu::q4nx::kBlockBytes, alignof(bfloat16)),
                                        buffer("out", dequant::kRows* dequant::kColumns)},
                           .cycles = dequant::cycles,
                           .parts = one_call});
NPU_DECLARE(dequant_q4_0,
            {.operands = {buffer("block", npu::blocks::q4_0::kSize, alignof(bfloat16)),
                          buffer("out", dequant::kRows* dequant::kColumns)},
             .cycles = dequant::cycles});
