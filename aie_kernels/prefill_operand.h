// A block of 8 rows x 32 columns as the products of the prefill configuration take it
// (prefill_job.h): npu1 in the order of its tiles, npu2 as BFP16, four tiles of 8 x 8, whose rows
// of 8 values share an exponent.
#pragma once

#include <stdint.h>

#include <aie_api/aie.hpp>

#include "kernel.h"
#include "mmul_block.h"
#include "prefill_job.h"

namespace npu::prefill_operand {
namespace {

// In place. Mantissas are rounded to nearest even.
inline void from_tiles([[maybe_unused]] bfloat16* block) {
#if __AIE_ARCH__ >= 21
#ifdef AIE_HOST_PREFILL_OPERAND
  AIE_HOST_PREFILL_OPERAND(block);
#else
  constexpr int32_t kTiles = prefill::kSlice / 8, kTile = 64;
  aie::set_rounding(aie::rounding_mode::conv_even);
  aie::vector<bfloat16, kTile> tiles[kTiles];
  for (int32_t i = 0; i < kTiles; ++i) tiles[i] = aie::load_v<kTile>(block + i * kTile);
  aie::block_vector_output_buffer_stream<bfp16ebs8, kTile> out(reinterpret_cast<bfp16ebs8*>(block));
  for (int32_t i = 0; i < kTiles; ++i) out.push(BlockFloatTile::convert(tiles[i]));
#endif
#endif
}

#if NPU_DECLARATIONS
// Counted from the source, not measured: per tile two loads, two conversions, two stores.
inline constexpr int kFromTilesCycles = __AIE_ARCH__ >= 21 ? 4 * 2 : 0;
#endif

}  // namespace
}  // namespace npu::prefill_operand
