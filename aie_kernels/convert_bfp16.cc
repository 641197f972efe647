// bf16 tiles of 8x8 into BFP16 blocks in the core's memory (9 bytes per 8 values), as
// matmul_bfp16_*_pipelined multiplies them: the 8 values along k of a row of A or of a column of B
// share an exponent; mantissas to nearest even. AIE2P only. count is a multiple of 64.
#include "kernel.h"
#include "mmul_block.h"

#if __AIE_ARCH__ >= 21

namespace {

#if NPU_DECLARATIONS
consteval Declaration to_bfp16(Operand count) {
  return {.operands = {buffer("src", "count"), buffer("dst", "count"), count},
          .cycles = [](const Timing& timing, const int64_t* counts) {
            return npu::perf::bfp16_cycles(timing, double(counts[0]));
          }};
}
#endif

}  // namespace

// One name each for A and B: a name has one argument type in a design.
NPU_KERNEL void convert_bf16_bfp16_a(const bfloat16* src, bfp16ebs8* dst, int32_t count) {
  convert_in_order(src, dst, count);
}
NPU_KERNEL void convert_bf16_bfp16_b_bcol(const bfloat16* src, bfp16ebs8* dst, int32_t count) {
  convert_in_order(src, dst, count);
}

// Row-major B of `k` rows: tiles [k/8][n/8] are transposed and written as [n/8][k/8].
NPU_KERNEL void convert_bf16_bfp16_b(const bfloat16* __restrict src, bfp16ebs8* __restrict dst,
                                     int32_t count, int32_t k) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  aie::block_vector_output_buffer_stream<bfp16ebs8, 64> out(dst);
  const int32_t depth = k / 8, tiles = count / 64, columns = tiles / depth;
  const bfloat16* tile = src;
  int32_t step = 0;
  AIE_PREPARE_FOR_PIPELINING
  for (int32_t i = 0; i < tiles; ++i) {
    out.push(BlockFloatTile::blocks_of_b<BLayout::kRowMajor>(tile));
    const bool last = ++step == depth;
    step = last ? 0 : step;
    tile += (last ? 1 - (depth - 1) * columns : columns) * 64;
  }
}

NPU_DECLARE(convert_bf16_bfp16_a, to_bfp16(multiple("count", 64)));
NPU_DECLARE(convert_bf16_bfp16_b_bcol, to_bfp16(multiple("count", 64)));
NPU_DECLARE(convert_bf16_bfp16_b, to_bfp16(multiple("count", 64, "8 * k")).with(multiple("k", 8)));

#endif  // AIE2P
