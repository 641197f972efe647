// C += A @ B on tiled matrices in a core's data memory, for every pair of element types and both
// layouts of B; see mmul_block.h for the layouts and the 2x2 blocking.
//
// m, k, n are multiples of 2r, s, 2t. C keeps its type between calls: a narrow C (int8, int16,
// bf16) is widened, accumulated and narrowed again by each call, i.e. rounded once per k step of
// the caller, to nearest even, integers with saturation.
#include "kernel.h"
#include "mmul_block.h"

namespace {

// Tile shapes per generation. AIE2P multiplies bf16 natively as 4x8x8: its 8x8x8 tile is two.
#if __AIE_ARCH__ == 20
using Bf16Tile = NativeTile<bfloat16, 4, 8, 4, 4>;
using I8Tile = NativeTile<int8_t, 4, 8, 8, 4>;
using I16Tile = NativeTile<int16_t, 4, 4, 4, 4>;
#else
using Bf16Tile = NativeTile<bfloat16, 8, 8, 8, 4>;
using I8Tile = NativeTile<int8_t, 8, 8, 8, 8>;
using I16Tile = NativeTile<int16_t, 4, 4, 8, 4>;
#endif

constexpr BLayout kRow = BLayout::kRowMajor, kColumn = BLayout::kColumnMajor;

template <typename Tile, BLayout kLayout, typename TOut>
inline void matmul(const typename Tile::element* __restrict a,
                   const typename Tile::element* __restrict b, TOut* __restrict c, int32_t m,
                   int32_t k, int32_t n, int32_t shift = 0) {
#ifdef AIE_HOST_MATMUL  // x86 `fast` builds; refuse bfp16 operands that only the code below treats
                        // right
  const bool done = AIE_HOST_MATMUL<Tile, kLayout == kColumn>(a, b, c, m, k, n, shift);
  if (done || !Tile::kBlockFloat) return;
#endif
  constexpr int32_t kA = Tile::r * Tile::s, kB = Tile::s * Tile::t, kC = Tile::r * Tile::t;
  const int32_t rows = m / int32_t(Tile::r), depth = k / int32_t(Tile::s);
  const int32_t columns = n / int32_t(Tile::t);
  // Elements from a B tile to the one on its right and to the one below it.
  const int32_t right = kLayout == kColumn ? depth * kB : kB;
  const int32_t below = kLayout == kColumn ? kB : columns * kB;
  for (int32_t row = 0; row < rows; row += 2) {
    for (int32_t column = 0; column < columns; column += 2) {
      const auto* a0 = a + row * depth * kA;
      const auto* a1 = a0 + depth * kA;
      const auto* b0 = b + column * right;
      TOut* c0 = c + (row * columns + column) * kC;
      TOut* c1 = c0 + columns * kC;

      MmulBlock<Tile, kLayout, TOut> block;
      block.load(c0, c1, shift);
      AIE_PREPARE_FOR_PIPELINING
      for (int32_t i = 0; i < depth; ++i) {
        block.mac(a0, a1, b0, b0 + right);
        a0 += kA;
        a1 += kA;
        b0 += below;
      }
      block.store(c0, c1, shift);
    }
  }
}

#if NPU_DECLARATIONS
template <typename Tile, typename TOut>
consteval Declaration product() {
  return {
      .operands = {buffer("a", "m * k"), buffer("b", "k * n"), buffer("c", "m * n"),
                   multiple("m", 2 * Tile::r), multiple("k", Tile::s), multiple("n", 2 * Tile::t)},
      .cycles =
          [](const Timing& timing, const int64_t* sizes) {
            return npu::perf::matmul_cycles(timing, kInput<Tile>, sizeof(TOut),
                                            std::is_integral_v<TOut>, double(sizes[0]),
                                            double(sizes[1]), double(sizes[2]));
          },
      .product = product_of<Tile>,
      .published = true,
      .parts = one_product};
}
#endif

}  // namespace

NPU_KERNEL void matmul_bf16_f32(const bfloat16* a, const bfloat16* b, float* c, int32_t m,
                                int32_t k, int32_t n) {
  matmul<Bf16Tile, kRow>(a, b, c, m, k, n);
}
NPU_KERNEL void matmul_bf16_f32_bcol(const bfloat16* a, const bfloat16* b, float* c, int32_t m,
                                     int32_t k, int32_t n) {
  matmul<Bf16Tile, kColumn>(a, b, c, m, k, n);
}

NPU_KERNEL void matmul_bf16_bf16(const bfloat16* a, const bfloat16* b, bfloat16* c, int32_t m,
                                 int32_t k, int32_t n) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  matmul<Bf16Tile, kRow>(a, b, c, m, k, n);
}
NPU_KERNEL void matmul_bf16_bf16_bcol(const bfloat16* a, const bfloat16* b, bfloat16* c, int32_t m,
                                      int32_t k, int32_t n) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  matmul<Bf16Tile, kColumn>(a, b, c, m, k, n);
}

// Exact modulo 2^32.
NPU_KERNEL void matmul_i8_i32(const int8_t* a, const int8_t* b, int32_t* c, int32_t m, int32_t k,
                              int32_t n) {
  aie::set_saturation(aie::saturation_mode::none);
  matmul<I8Tile, kRow>(a, b, c, m, k, n);
}
NPU_KERNEL void matmul_i8_i32_bcol(const int8_t* a, const int8_t* b, int32_t* c, int32_t m,
                                   int32_t k, int32_t n) {
  aie::set_saturation(aie::saturation_mode::none);
  matmul<I8Tile, kColumn>(a, b, c, m, k, n);
}

NPU_KERNEL void matmul_i8_i16(const int8_t* a, const int8_t* b, int16_t* c, int32_t m, int32_t k,
                              int32_t n, int32_t shift) {
  narrow_to_nearest();
  matmul<I8Tile, kRow>(a, b, c, m, k, n, shift);
}
NPU_KERNEL void matmul_i8_i16_bcol(const int8_t* a, const int8_t* b, int16_t* c, int32_t m,
                                   int32_t k, int32_t n, int32_t shift) {
  narrow_to_nearest();
  matmul<I8Tile, kColumn>(a, b, c, m, k, n, shift);
}

NPU_KERNEL void matmul_i8_i8(const int8_t* a, const int8_t* b, int8_t* c, int32_t m, int32_t k,
                             int32_t n, int32_t shift) {
  narrow_to_nearest();
  matmul<I8Tile, kRow>(a, b, c, m, k, n, shift);
}
NPU_KERNEL void matmul_i8_i8_bcol(const int8_t* a, const int8_t* b, int8_t* c, int32_t m, int32_t k,
                                  int32_t n, int32_t shift) {
  narrow_to_nearest();
  matmul<I8Tile, kColumn>(a, b, c, m, k, n, shift);
}

// 64-bit accumulators, of which C keeps the low half: exact modulo 2^32, however k is split.
NPU_KERNEL void matmul_i16_i32(const int16_t* a, const int16_t* b, int32_t* c, int32_t m, int32_t k,
                               int32_t n) {
  aie::set_saturation(aie::saturation_mode::none);
  matmul<I16Tile, kRow>(a, b, c, m, k, n);
}
NPU_KERNEL void matmul_i16_i32_bcol(const int16_t* a, const int16_t* b, int32_t* c, int32_t m,
                                    int32_t k, int32_t n) {
  aie::set_saturation(aie::saturation_mode::none);
  matmul<I16Tile, kColumn>(a, b, c, m, k, n);
}

NPU_DECLARE(matmul_bf16_f32, product<Bf16Tile, float>());
NPU_DECLARE(matmul_bf16_f32_bcol, product<Bf16Tile, float>());
NPU_DECLARE(matmul_bf16_bf16, product<Bf16Tile, bfloat16>());
NPU_DECLARE(matmul_bf16_bf16_bcol, product<Bf16Tile, bfloat16>());
NPU_DECLARE(matmul_i8_i32, product<I8Tile, int32_t>());
NPU_DECLARE(matmul_i8_i32_bcol, product<I8Tile, int32_t>());
NPU_DECLARE(matmul_i8_i16, product<I8Tile, int16_t>().with(kShift));
NPU_DECLARE(matmul_i8_i16_bcol, product<I8Tile, int16_t>().with(kShift));
NPU_DECLARE(matmul_i8_i8, product<I8Tile, int8_t>().with(kShift));
NPU_DECLARE(matmul_i8_i8_bcol, product<I8Tile, int8_t>().with(kShift));
NPU_DECLARE(matmul_i16_i32, product<I16Tile, int32_t>());
NPU_DECLARE(matmul_i16_i32_bcol, product<I16Tile, int32_t>());

#if __AIE_ARCH__ >= 21
// bf16 operands rounded to bfp16 on their way into the multiplication.
NPU_KERNEL void matmul_bf16bfp16_f32(const bfloat16* a, const bfloat16* b, float* c, int32_t m,
                                     int32_t k, int32_t n) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  matmul<BlockFloatTile, kRow>(a, b, c, m, k, n);
}
NPU_KERNEL void matmul_bf16bfp16_f32_bcol(const bfloat16* a, const bfloat16* b, float* c, int32_t m,
                                          int32_t k, int32_t n) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  matmul<BlockFloatTile, kColumn>(a, b, c, m, k, n);
}
NPU_KERNEL void matmul_bf16bfp16_bf16(const bfloat16* a, const bfloat16* b, bfloat16* c, int32_t m,
                                      int32_t k, int32_t n) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  matmul<BlockFloatTile, kRow>(a, b, c, m, k, n);
}
NPU_KERNEL void matmul_bf16bfp16_bf16_bcol(const bfloat16* a, const bfloat16* b, bfloat16* c,
                                           int32_t m, int32_t k, int32_t n) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  matmul<BlockFloatTile, kColumn>(a, b, c, m, k, n);
}

NPU_DECLARE(matmul_bf16bfp16_f32, product<BlockFloatTile, float>());
NPU_DECLARE(matmul_bf16bfp16_f32_bcol, product<BlockFloatTile, float>());
NPU_DECLARE(matmul_bf16bfp16_bf16, product<BlockFloatTile, bfloat16>());
NPU_DECLARE(matmul_bf16bfp16_bf16_bcol, product<BlockFloatTile, bfloat16>());
#endif
