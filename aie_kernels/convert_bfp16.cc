// Tiles of 8x8 into BFP16 blocks in the core's memory (9 bytes per 8 values), mantissas to nearest
// even: of bf16 operands as matmul_bfp16_*_pipelined multiplies them, where the 8 values along k of
// a row of A or of a column of B share an exponent, and of sums as a C in BFP16, along n. AIE2P
// only. count is a multiple of 64.
#include "kernel.h"
#include "mmul_block.h"

#if __AIE_ARCH__ >= 21

namespace {

template <typename T>
inline void convert_sums(const T* src, bfp16ebs8* dst, int32_t count) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  aie::block_vector_output_buffer_stream<bfp16ebs8, 64> out(dst);
  for (int32_t i = 0; i < count; i += 64) {
    const aie::accum<accfloat, 64> sums(aie::load_v<64>(src + i));
    out.push(sums.template to_vector<bfp16ebs8>());
  }
}

#if NPU_DECLARATIONS
constexpr double kBlockBytes = 9.0 / 8;  // of a value

// In the table of schedules: a row of values, or of columns of k.
constexpr Parts values_in_order(const Timing&, const int64_t* count) {
  return {{{Generated::kOwn, {1, 1, count[0]}}}};
}
constexpr Parts values_by_column(const Timing&, const int64_t* counts) {
  return {{{Generated::kOwn, {1, counts[1], counts[0]}}}};
}

template <typename T>
consteval Declaration sums_to_bfp16() {
  return {.operands = {buffer("src", "count"), buffer("dst", "count"), multiple("count", 64)},
          .cycles =
              [](const Timing& timing, const int64_t* count) {
                return npu::perf::elementwise_cycles(timing, double(count[0]), sizeof(T),
                                                     kBlockBytes);
              },
          .parts = values_in_order,
          .in_place = true};
}

consteval Declaration to_bfp16(Operand count, auto parts) {
  return {.operands = {buffer("src", "count"), buffer("dst", "count"), count},
          .cycles =
              [](const Timing& timing, const int64_t* counts) {
                return npu::perf::bfp16_cycles(timing, double(counts[0]));
              },
          .parts = parts};
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

// Sums where they lie, or from there: dst may be src, whose tiles are loaded before blocks are
// stored over them (so the pointers are not __restrict).
NPU_KERNEL void convert_bf16_bfp16_c(const bfloat16* src, bfp16ebs8* dst, int32_t count) {
  convert_sums(src, dst, count);
}
NPU_KERNEL void convert_f32_bfp16_c(const float* src, bfp16ebs8* dst, int32_t count) {
  convert_sums(src, dst, count);
}

// A C tile of zeros: blocks whose exponent is 0, too.
NPU_KERNEL void zero_bfp16(bfp16ebs8* c, int32_t count) {
  const aie::accum<accfloat, 64> nothing(aie::zeros<bfloat16, 64>());
  aie::block_vector_output_buffer_stream<bfp16ebs8, 64> out(c);
  for (int32_t i = 0; i < count; i += 64) out.push(nothing.to_vector<bfp16ebs8>());
}

NPU_DECLARE(convert_bf16_bfp16_c, sums_to_bfp16<bfloat16>());
NPU_DECLARE(convert_f32_bfp16_c, sums_to_bfp16<float>());
NPU_DECLARE(zero_bfp16, {.operands = {buffer("c", "count"), multiple("count", 64)},
                         .cycles = [](const Timing& timing, const int64_t* count) {
                           return npu::perf::zero_cycles(timing, double(count[0]), kBlockBytes);
                         }});
NPU_DECLARE(convert_bf16_bfp16_a, to_bfp16(multiple("count", 64), values_in_order));
NPU_DECLARE(convert_bf16_bfp16_b_bcol, to_bfp16(multiple("count", 64), values_in_order));
NPU_DECLARE(convert_bf16_bfp16_b,
            to_bfp16(multiple("count", 64, "8 * k"), values_by_column).with(multiple("k", 8)));

#endif  // AIE2P
