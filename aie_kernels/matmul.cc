// C += A @ B on tiled matrices in a core's data memory: bf16 -> fp32 and int8 -> int32.
//
// m, k, n are multiples of 2r, s, 2t (see mmul_block.h for the layouts and the 2x2 blocking).
#include "mmul_block.h"

namespace {

// Tile shapes per generation, and the rows of the multiplication that computes them: AIE2P
// multiplies bf16 natively as 4x8x8, so its 8x8x8 tile is two of those.
template <unsigned R, unsigned S, unsigned T, unsigned M>
struct Tile {
  static constexpr unsigned r = R, s = S, t = T;
  template <typename TIn, typename TOut>
#ifdef AIE_HOST_MMUL_BLOCK  // x86 `fast` builds keep the same block in x86 registers
  using Block = AIE_HOST_MMUL_BLOCK<R, S, T, TIn, TOut>;
#else
  using Block = MmulBlock<R, S, T, M, TIn, TOut>;
#endif
};

#if __AIE_ARCH__ == 20
using Bf16Tile = Tile<4, 8, 4, 4>;
using I8Tile = Tile<4, 8, 8, 4>;
#else
using Bf16Tile = Tile<8, 8, 8, 4>;
using I8Tile = Tile<8, 8, 8, 8>;
#endif

template <typename Tile, typename TIn, typename TOut>
inline void matmul(const TIn* __restrict a, const TIn* __restrict b, TOut* __restrict c, int32_t m,
                   int32_t k, int32_t n) {
  constexpr int32_t kA = Tile::r * Tile::s, kB = Tile::s * Tile::t, kC = Tile::r * Tile::t;
  const int32_t rows = m / int32_t(Tile::r), depth = k / int32_t(Tile::s);
  const int32_t columns = n / int32_t(Tile::t);
  for (int32_t row = 0; row < rows; row += 2) {
    for (int32_t column = 0; column < columns; column += 2) {
      const TIn* a0 = a + row * depth * kA;
      const TIn* a1 = a0 + depth * kA;
      const TIn* b0 = b + column * kB;
      TOut* c0 = c + (row * columns + column) * kC;
      TOut* c1 = c0 + columns * kC;

      typename Tile::template Block<TIn, TOut> block;
      block.load(c0, c1);
      AIE_PREPARE_FOR_PIPELINING
      for (int32_t i = 0; i < depth; ++i) {
        block.mac(a0, a1, b0);
        a0 += kA;
        a1 += kA;
        b0 += columns * kB;
      }
      block.store(c0, c1);
    }
  }
}

}  // namespace

extern "C" {

void matmul_bf16_f32(const bfloat16* a, const bfloat16* b, float* c, int32_t m, int32_t k,
                     int32_t n) {
  matmul<Bf16Tile>(a, b, c, m, k, n);
}

void matmul_i8_i32(const int8_t* a, const int8_t* b, int32_t* c, int32_t m, int32_t k, int32_t n) {
  matmul<I8Tile>(a, b, c, m, k, n);
}

}  // extern "C"
