// A 2x2 block of C tiles held in accumulators: the register blocking of the matmul kernels. Each A
// and B tile that is loaded feeds two multiplications, which hides the loads.
//
// Matrices are tiled in memory: A[m/r][k/s][r][s], C[m/r][n/t][r][t] and B either row-major,
// B[k/s][n/t][s][t], or column-major, B[n/t][k/s][t][s].
#pragma once

#include <stdint.h>

#include <aie_api/aie.hpp>

#include "kernel.h"

#ifndef AIE_PREPARE_FOR_PIPELINING  // a hint of some compilers; Peano pipelines without it
#define AIE_PREPARE_FOR_PIPELINING
#endif

// Unnamed: host builds for several instruction sets are linked together and must not be merged.
namespace {

enum class BLayout { kRowMajor, kColumnMajor };

// Tiles of R x S, S x T and R x T elements, multiplied as they are. M is the row count of the
// multiplication the core has for them; where M < R a tile is R / M of those, one below the other.
template <typename T_, unsigned R, unsigned S, unsigned T, unsigned M>
struct NativeTile {
  using element = T_;
  using Mmul = aie::mmul<M, S, T, element, element>;
  static constexpr unsigned r = R, s = S, t = T, m = M;
  static constexpr bool kBlockFloat = false;

  static auto load_a(const element* a) { return aie::load_v<M * S>(a); }
  template <BLayout kLayout>
  static auto load_b(const element* b) {
    const auto tile = aie::load_v<S * T>(b);
    if constexpr (kLayout == BLayout::kColumnMajor) {
      return aie::transpose(tile, T, S);
    } else {
      return tile;
    }
  }
};

#if __AIE_ARCH__ >= 21
// bf16 tiles of 8x8 that enter the multiplication as bfp16: the 8 values along k of a row of A or
// of a column of B share one exponent. The multiplication wants B transposed.
struct BlockFloatTile {
  using element = bfloat16;
  using Mmul = aie::mmul<8, 8, 8, bfp16ebs8, bfp16ebs8>;
  static constexpr unsigned r = 8, s = 8, t = 8, m = 8;
  static constexpr bool kBlockFloat = true;

  static auto convert(const aie::vector<element, 64>& v) {
    return aie::accum<accfloat, 64>(v).template to_vector<bfp16ebs8>();
  }
  static auto load_a(const element* a) { return convert(aie::load_v<64>(a)); }
  template <BLayout kLayout>
  static auto blocks_of_b(const element* b) {
    if constexpr (kLayout == BLayout::kColumnMajor) {
      return convert(aie::load_v<64>(b));
    } else {
      return convert(aie::transpose(aie::load_v<64>(b), 8, 8));
    }
  }
  template <BLayout kLayout>
  static auto load_b(const element* b) {
    return NPU_TRANSPOSED(blocks_of_b<kLayout>(b));
  }
};

// `count` elements of bf16 tiles into blocks in the core's memory, mantissas to nearest even.
inline void convert_in_order(const bfloat16* __restrict src, bfp16ebs8* __restrict dst,
                             int32_t count) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  aie::block_vector_output_buffer_stream<bfp16ebs8, 64> out(dst);
  AIE_PREPARE_FOR_PIPELINING
  for (int32_t i = 0; i < count; i += 64) out.push(BlockFloatTile::load_a(src + i));
}
#endif

// C tiles are elements of TOut in memory; they enter the accumulators shifted left by `shift` and
// leave them shifted right, rounded and saturated as the core's modes say.
template <typename Tile, BLayout kLayout, typename TOut>
class MmulBlock {
  using Mmul = typename Tile::Mmul;
  using TIn = typename Tile::element;
  static constexpr unsigned kParts = Tile::r / Tile::m;
  static constexpr unsigned kAPart = Tile::m * Tile::s, kCPart = Tile::m * Tile::t;
  static constexpr unsigned kC = Tile::r * Tile::t;

 public:
  // c0, c1: the left C tile of the upper and lower row; the right tile follows each directly.
  void load(const TOut* c0, const TOut* c1, int shift) {
    for (unsigned p = 0; p < kParts; ++p) {
      c00_[p] = Mmul(aie::load_v<kCPart>(c0 + p * kCPart), shift);
      c01_[p] = Mmul(aie::load_v<kCPart>(c0 + p * kCPart + kC), shift);
      c10_[p] = Mmul(aie::load_v<kCPart>(c1 + p * kCPart), shift);
      c11_[p] = Mmul(aie::load_v<kCPart>(c1 + p * kCPart + kC), shift);
    }
  }

  // a0, a1: the A tiles of the two rows; b0, b1: the B tiles of the two columns.
  void mac(const TIn* a0, const TIn* a1, const TIn* b0, const TIn* b1) {
    const auto left = Tile::template load_b<kLayout>(b0);
    const auto right = Tile::template load_b<kLayout>(b1);
    for (unsigned p = 0; p < kParts; ++p) {
      const auto upper = Tile::load_a(a0 + p * kAPart);
      const auto lower = Tile::load_a(a1 + p * kAPart);
      c00_[p].mac(upper, left);
      c01_[p].mac(upper, right);
      c10_[p].mac(lower, left);
      c11_[p].mac(lower, right);
    }
  }

  // The same with the operands of one k step in registers; tiles of one part.
  template <typename A, typename B>
  void multiply(const A& upper, const A& lower, const B& left, const B& right) {
    c00_[0].mac(upper, left);
    c01_[0].mac(upper, right);
    c10_[0].mac(lower, left);
    c11_[0].mac(lower, right);
  }

  // The same from tiles in BFP16 of the upper and the lower row.
  template <typename Stream>
  void load_blocks(Stream& upper, Stream& lower) {
    using Sums = aie::accum<accfloat, kC>;
    c00_[0] = Mmul(Sums(upper.pop()));
    c01_[0] = Mmul(Sums(upper.pop()));
    c10_[0] = Mmul(Sums(lower.pop()));
    c11_[0] = Mmul(Sums(lower.pop()));
  }

  void store(TOut* c0, TOut* c1, int shift) const {
    for (unsigned p = 0; p < kParts; ++p) {
      aie::store_v(c0 + p * kCPart, c00_[p].template to_vector<TOut>(shift));
      aie::store_v(c0 + p * kCPart + kC, c01_[p].template to_vector<TOut>(shift));
      aie::store_v(c1 + p * kCPart, c10_[p].template to_vector<TOut>(shift));
      aie::store_v(c1 + p * kCPart + kC, c11_[p].template to_vector<TOut>(shift));
    }
  }

  // As BFP16, rounded as the core's mode says.
  template <typename Stream>
  void store_blocks(Stream& upper, Stream& lower) const {
    upper.push(c00_[0].to_accum().template to_vector<bfp16ebs8>());
    upper.push(c01_[0].to_accum().template to_vector<bfp16ebs8>());
    lower.push(c10_[0].to_accum().template to_vector<bfp16ebs8>());
    lower.push(c11_[0].to_accum().template to_vector<bfp16ebs8>());
  }

 private:
  Mmul c00_[kParts], c01_[kParts], c10_[kParts], c11_[kParts];
};

#if NPU_DECLARATIONS
// What the operands of Tile are multiplied as.
template <typename Tile>
constexpr auto kInput =
    Tile::kBlockFloat                                 ? npu::perf::InputKind::kBf16
    : std::is_same_v<typename Tile::element, int8_t>  ? npu::perf::InputKind::kInt8
    : std::is_same_v<typename Tile::element, int16_t> ? npu::perf::InputKind::kInt16
                                                      : npu::perf::InputKind::kBf16Native;

template <typename Tile>
constexpr Product product_of =
    Tile::kBlockFloat || std::is_integral_v<typename Tile::element> ? Product::kIntegers
                                                                    : Product::kFloats;

// Bits that an integer accumulator is shifted by on its way from and to a narrow C.
constexpr Operand kShift = integer("shift", 0, 31);
#endif

// A core resets to floor and no saturation, which would bias and wrap; modes stay set afterwards.
inline void narrow_to_nearest() {
  aie::set_rounding(aie::rounding_mode::conv_even);
  aie::set_saturation(aie::saturation_mode::saturate);
}

}  // namespace
