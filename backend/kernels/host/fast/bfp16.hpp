// Matrix multiplication of `fast` builds on operands that lie in memory as bfp16 (bfp16.hpp of
// aie_api), in place of the loops of aie_kernels/matmul_pipelined.cc.
#pragma once

#include "matmul.hpp"

#if __AIE_ARCH__ >= 21

#define AIE_HOST_MATMUL_BFP16 aie::host::matmul_bfp16

AIE_HOST_BEGIN
namespace host {

// Sums in BFP16 are widened and rounded again 16 rows at a time, of so many columns at most.
inline constexpr int32_t kBlockColumns = 512;

// C += A @ B with C in BFP16 of m rows: multiply(row, rows, sums) does so for rows of C in fp32.
template <typename Multiply>
inline void multiply_into_blocks(uint8_t* c, int32_t m, int32_t columns, Multiply&& multiply) {
  constexpr int32_t kStrip = 16;
  alignas(64) float sums[kStrip * kBlockColumns];
  const int32_t tiles = kStrip / 8 * columns;
  for (int32_t row = 0; row < m; row += kStrip, c += tiles * 72) {
    block_vector<bfp16ebs8, 64> tile;
    for (int32_t i = 0; i < tiles; ++i) {
      tile.load(c + i * 72);
      for (unsigned j = 0; j < 64; ++j) sums[i * 64 + static_cast<int32_t>(j)] = tile.value(j);
    }
    multiply(row, kStrip, sums);
    for (int32_t i = 0; i < tiles; ++i) {
      for (unsigned j = 0; j < 8; ++j) {
        tile.convert(j, sums + i * 64 + static_cast<int32_t>(8 * j), rounding_mode::conv_even);
      }
      tile.store(c + i * 72);
    }
  }
}

// C += A @ B from its row `row` on; A [m/8][k/8], B [n/8][k/8] blocks of 8x8. False, with C
// untouched, as matmul().
template <typename TOut>
inline bool matmul_bfp16(const bfp16ebs8* a, const bfp16ebs8* b, TOut* c, int32_t m, int32_t k,
                         int32_t n, int32_t row) {
  constexpr bool kBlocks = std::is_same_v<TOut, bfp16ebs8>;
  if (kBlocks && n > kBlockColumns) return false;
  const block_packed* const a_in = block_a<&tile_of_blocks>(a, int64_t{m} * k);
  const int32_t* const b_in = block_b<&tile_of_blocks, true>(b, k / 8, n / 8);
  const auto multiply_rows = [&](int32_t first, int32_t rows, auto* sums) {
    multiply_packed_blocks(a_in + block_a_elements(int64_t{first} * k), b_in, sums, rows, k, n / 8);
  };
  if (a_in == nullptr || b_in == nullptr) return false;
  if constexpr (kBlocks) {
    auto* const bytes = reinterpret_cast<uint8_t*>(c) + row / 8 * (n / 8) * 72;
    multiply_into_blocks(bytes, m, n / 8, multiply_rows);
  } else {
    multiply_rows(0, m, c + row * n);
  }
  return true;
}

}  // namespace host
AIE_HOST_END

#endif
