// Matrix multiplication of `fast` builds on operands that lie in memory as bfp16 (bfp16.hpp of
// aie_api), in place of the loops of aie_kernels/matmul_pipelined.cc. bf16 holds every mantissa
// times its block's unit exactly, so they become bf16 and then what matmul.hpp multiplies.
#pragma once

#include "matmul.hpp"

#if __AIE_ARCH__ >= 21

#define AIE_HOST_MATMUL_BFP16 aie::host::matmul_bfp16

AIE_HOST_BEGIN
namespace host {

// `count` values, a multiple of 16, as bf16 or fp32. False if a block is beyond what floating point
// multiplies exactly.
template <typename TPacked>
[[gnu::noinline]] inline bool decode_bfp16(const bfp16ebs8* blocks, int64_t count, TPacked* out) {
  const auto* in = reinterpret_cast<const uint8_t*>(blocks);
  bool good = true;
  const auto unit_of = [&](const uint8_t* block) {
    const unsigned exponent = block[0];
    if (exponent < kLowest || exponent > kHighest) {  // 255: all NaN
      good &= exponent < kLowest && load<uint64_t>(block + 1) == 0;
    }
    // 2^(exponent - 133)
    const uint32_t bits = exponent > 6 ? (exponent - 6) << 23 : 0;
    return splat<float, 8>(__builtin_bit_cast(float, bits));
  };
  for (int64_t i = 0; i < count; i += 16, in += 18) {
    const auto mantissas =
        join<int32_t, 8>(widen_bytes<8>(reinterpret_cast<const int8_t*>(in + 1)),
                         widen_bytes<8>(reinterpret_cast<const int8_t*>(in + 10)));
    const auto units = join<float, 8>(unit_of(in), unit_of(in + 9));
    store_packed(__builtin_convertvector(mantissas, simd<float, 16>) * units, out + i);
  }
  return good;
}

// A column-major B of bf16 that needs no rounding.
template <typename Tile>
struct exact_tile {
  using element = bfloat16;
  static constexpr unsigned r = Tile::r, s = Tile::s, t = Tile::t;
  static constexpr bool kBlockFloat = false;
};

// B as panels of `room` lanes; behind them there is room for it as bf16.
template <typename Tile, typename TPacked>
inline bool pack_bfp16_b(const bfp16ebs8* b, int32_t depth, int32_t columns, int64_t room,
                         int32_t* out) {
  auto* const exact = reinterpret_cast<bfloat16*>(out + room);
  return decode_bfp16(b, int64_t{depth} * columns * 64, reinterpret_cast<uint16_t*>(exact)) &&
         pack_b<exact_tile<Tile>, true, kColumns, TPacked>(exact, depth, columns, out);
}

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
template <typename Tile, typename TOut>
inline bool matmul_bfp16(const bfp16ebs8* a, const bfp16ebs8* b, TOut* c, int32_t m, int32_t k,
                         int32_t n, int32_t row) {
  constexpr bool kBlocks = std::is_same_v<TOut, bfp16ebs8>;
  if (kBlocks && n > kBlockColumns) return false;
#ifdef AIE_HOST_BYTE_BLOCKS
  const uint8_t* const a_in = block_a<&tile_of_blocks>(a, int64_t{m} * k);
  const int32_t* const b_in = block_b<&tile_of_blocks, true>(b, k / 8, n / 8);
  const auto multiply_rows = [&](int32_t first, int32_t rows, auto* sums) {
    multiply_packed_blocks(a_in + block_a_bytes(int64_t{first} * k), b_in, sums, rows, k, n / 8);
  };
#else
  using packed = typename format_for<Tile>::packed;
  constexpr int64_t kPanelColumns = kColumns;
  const int64_t a_count = int64_t{m} * k;
  const int64_t panels = (n + kPanelColumns - 1) / kPanelColumns;
  const int64_t b_lanes = panels * kPanelColumns * k / format_for<Tile>::kPerLane;
  const int32_t depth = k / static_cast<int32_t>(Tile::s);
  const int32_t columns = n / static_cast<int32_t>(Tile::t);
  constexpr auto kPackA = &decode_bfp16<packed>;
  constexpr auto kPackB = &pack_bfp16_b<Tile, packed>;
  const packed* const a_in = packed_operand<packed>(
      0, reinterpret_cast<const void*>(kPackA), a_count, a_count * int64_t{sizeof(packed)},
      [&](packed* out) { return kPackA(a, a_count, out); });
  const int32_t* const b_in = packed_operand<int32_t>(
      1, reinterpret_cast<const void*>(kPackB), int64_t{depth} << 32 | columns,
      b_lanes * 4 + int64_t{k} * n * 2,
      [&](int32_t* out) { return kPackB(b, depth, columns, b_lanes, out); });
  const auto multiply_rows = [&](int32_t first, int32_t rows, auto* sums) {
    multiply<Tile>(a_in + first * k, b_in, sums, rows, k, columns, 0);
  };
#endif
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
