// One block of bfloat16 weights, 32 rows x 80 columns by column (weight_block.h), as a row-major
// tile: the values as they are. Eight columns are transposed in registers.
#include <stdint.h>

#include <aie_api/aie.hpp>

#include "kernel.h"
#include "transposed_columns.h"
#include "weight_block.h"

namespace {
namespace expand_bf16 {

constexpr int32_t kRows = npu::blocks::kRows, kColumns = npu::blocks::bf16::kColumns;

inline void expand(const uint8_t* __restrict block, bfloat16* __restrict out) {
  const bfloat16* values = reinterpret_cast<const bfloat16*>(block);
  for (int32_t c = 0; c < kColumns; c += transposed::kColumns) {
    aie::vector<bfloat16, 32> columns[transposed::kColumns];
    for (int32_t i = 0; i < transposed::kColumns; ++i) {
      columns[i] = aie::load_v<32>(values + (c + i) * kRows);
    }
    transposed::store(columns, out + c, kColumns);
  }
}

#if NPU_DECLARATIONS
// Not measured on hardware. Per eight columns: their loads, the transposition and 32 stores.
double cycles(const Timing&, const int64_t*) {
  constexpr double kHalves = __AIE_ARCH__ == 20 ? 2 : 1, kCall = 24;
  constexpr double kLoads = transposed::kColumns * kHalves;
  return double(kColumns / transposed::kColumns) *
             longest(longest(transposed::kStores, transposed::kMoves * kHalves), kLoads) +
         kCall;
}
#endif

}  // namespace expand_bf16
}  // namespace

// block: 5120 bytes; out: (32, 80), row-major.
NPU_KERNEL void dequant_bf16(const uint8_t* block, bfloat16* out) {
#ifdef AIE_HOST_DEQUANT_BF16  // x86 `fast` builds
  AIE_HOST_DEQUANT_BF16(block, out);
#else
  expand_bf16::expand(block, out);
#endif
}

NPU_DECLARE(dequant_bf16, {.operands = {buffer("block", npu::blocks::kBytes, alignof(bfloat16)),
                                        buffer("out", expand_bf16::kRows* expand_bf16::kColumns)},
                           .cycles = expand_bf16::cycles});
