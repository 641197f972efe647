// Slices of 32 columns of blocks of weights, of any format, as the multiplications of
// prefill_product.cc read them, one behind the other: no step through row-major tiles. A program
// has the formats of one size of blocks, kSmall those of the smaller one.
//
//   npu2  BFP16, blocks of 8 along k, W transposed: pairs of 8x8 blocks [n / 16][k / 8][2], in the
//         order in which a stream of blocks is read; 576 bytes per 16 columns of the result
//   npu1  bfloat16, pairs of row-major 8 x 4 tiles [n / 8][k / 8][2][8][4]
#pragma once

#include <stdint.h>

#include <aie_api/aie.hpp>
#include <type_traits>

#include "kernel.h"
#include "mmul_block.h"
#include "prefill_job.h"
#include "transposed_columns.h"
#include "weight_values.h"

namespace {
namespace prefill_weights {

namespace q4nx = npu::q4nx;
using npu::blocks::Format, npu::blocks::q8;
using weights::all;

constexpr int32_t kRowBlock = npu::blocks::kRows, kSteps = npu::prefill::kSlice / 8;
constexpr int32_t kPairTile = 8 * 8;  // elements of a step of 8 columns: npu1's pair of tiles

using Rows = aie::vector<bfloat16, 64>;  // 8 rows of W, 8 columns each

// A weight has the bits that weight_values.h gives it. npu2 computes them in fewer moves, which are
// what an expansion waits for; the multiply slot, otherwise idle, widens what becomes BFP16.
#if __AIE_ARCH__ >= 21
// Of 16 rows twice, whose scales lie at `scales`: d (128 + code) - 128 d is d code exactly, for
// |d| < 2^119. Without minima it is d (code - 8).
template <bool kMinima>
class Int4Rows {
 public:
  explicit Int4Rows(const bfloat16* scales)
      : d_(weights::twice(scales)),
        m_(kMinima ? weights::twice(scales + q4nx::kPlaneBytes / 2) : d_),
        offset_(aie::mac(weights::Sums(aie::zeros<float, 32>()), d_,
                         all<32>(weights::kCodeOffset<kMinima>))) {}

  // 64 bytes of codes, as weights::int4_rows().
  auto rows(const uint8_t* codes) const {
    const auto pair = aie::unpack(aie::load_v<128>(reinterpret_cast<const uint4*>(codes)));
    const auto left = aie::concat(values(pair.extract<32>(0)), values(pair.extract<32>(1)));
    const auto right = aie::concat(values(pair.extract<32>(2)), values(pair.extract<32>(3)));
    return aie::interleave_zip(aie::transpose(left, 4, weights::kHalfRows),
                               aie::transpose(right, 4, weights::kHalfRows), 4);
  }

 private:
  aie::vector<bfloat16, 32> values(const aie::vector<uint8_t, 32>& codes) const {
    const auto magic = aie::broadcast<uint8_t, 32>(0x43);  // high byte of bf16 128
    const auto zipped = aie::interleave_zip(codes, magic, 1);
    const auto wide = aie::concat(zipped.first, zipped.second).template cast_to<bfloat16>();
    const auto product = aie::mac(offset_, wide, d_);
    if (!kMinima) return product.template to_vector<bfloat16>();
    return aie::mac(product, m_, all<32>(1.0f)).template to_vector<bfloat16>();
  }
  aie::vector<bfloat16, 32> d_, m_;
  weights::Sums offset_;
};

// Scales as three bfloat16: products with a code and the sum of the smaller two are exact, so that
// d code is rounded once. Scales below 2^-110 would lose their last bits.
class Q8Scales {
 public:
  explicit Q8Scales(const float* scales) {
    weights::Sums rest(aie::load_v<32>(scales));
    for (auto& part : parts_) {
      part = rest.to_vector<bfloat16>();
      rest = aie::mac(rest, part, all<32>(-1.0f));
    }
  }
  aie::vector<bfloat16, 32> column(const int8_t* codes) const {
    const auto code = aie::to_float<bfloat16>(aie::load_v<32>(codes));
    weights::Sums sum(aie::zeros<float, 32>());
    for (int32_t i = 3; i-- > 0;) sum = aie::mac(sum, code, parts_[i]);
    return sum.to_vector<bfloat16>();
  }

 private:
  aie::vector<bfloat16, 32> parts_[3];
};
#else
template <bool kMinima>
class Int4Rows {
 public:
  explicit Int4Rows(const bfloat16* scales)
      : d_(weights::twice(scales)), m_(weights::minima<kMinima>(scales)) {}
  auto rows(const uint8_t* codes) const { return weights::int4_rows<kMinima>(codes, d_, m_); }

 private:
  aie::vector<bfloat16, 32> d_;
  weights::Sums m_;
};

class Q8Scales {
 public:
  explicit Q8Scales(const float* scales) : scales_(aie::load_v<32>(scales)) {}
  auto column(const int8_t* codes) const { return weights::q8_column(codes, scales_); }

 private:
  aie::vector<float, 32> scales_;
};
#endif

// Where step after step of 16 rows of W goes, from group `rows` of 16 on.
#if __AIE_ARCH__ >= 21
class Writer {
 public:
  Writer(uint8_t* to, int32_t rows)
      : out_(reinterpret_cast<bfp16ebs8*>(to + rows * kSteps * 2 * (kPairTile / 8 * 9))) {}
  void put(const Rows& upper, const Rows& lower) {
    put(upper);
    put(lower);
  }
  void end_group(bool) {}

 private:
  void put(const Rows& rows) {
    const aie::accum<accfloat, 64> none(aie::zeros<float, 64>());
    out_.push(aie::mac(none, rows, all<64>(1.0f)).template to_vector<bfp16ebs8>());
  }
  aie::block_vector_output_buffer_stream<bfp16ebs8, 64> out_;
};
#else
class Writer {
 public:
  Writer(uint8_t* to, int32_t rows)
      : out_(reinterpret_cast<bfloat16*>(to) + rows * kSteps * 2 * kPairTile) {}
  void put(const Rows& upper, const Rows& lower) {
    pair(upper, out_);
    pair(lower, out_ + kSteps * kPairTile);
    out_ += kPairTile;
  }
  // The next group begins behind the lower rows, if `last` was its last step.
  void end_group(bool last) { out_ += last ? kSteps * kPairTile : 0; }

 private:
  static void pair(const Rows& rows, bfloat16* to) {
    aie::store_v(to, aie::transpose(rows.template extract<32>(0), 4, 8));
    aie::store_v(to + kPairTile / 2, aie::transpose(rows.template extract<32>(1), 4, 8));
  }
  bfloat16* out_;
};
#endif

// `slices` of `count` row-blocks, each a group of 32 columns. One loop over slices, halves of
// blocks and steps.
template <bool kMinima>
inline void expand_int4(const uint8_t* __restrict b0, const uint8_t* __restrict b1, int32_t count,
                        int32_t slice, int32_t slices, uint8_t* __restrict to) {
  static_assert(q4nx::kGroup == npu::prefill::kSlice && kSteps == 4);
  constexpr int32_t kHalfBytes = q4nx::kColumns * weights::kHalfRows / 2;
  Writer out(to, 0);
  const int32_t shift = 2 + count;  // of a slice's 8 or 16 turns
  NPU_ROLLED for (int32_t i = 0; i < slices << shift; ++i) {
    const uint8_t* const block = (i >> 3 & (count - 1)) == 0 ? b0 : b1;
    const int32_t at = slice + (i >> shift), half = i >> 2 & 1, step = at * kSteps + (i & 3);
    const auto* scales = reinterpret_cast<const bfloat16*>(block) + at * kRowBlock;
    scales += half * weights::kHalfRows;
    const Int4Rows<kMinima> int4_rows(scales);
    const auto rows = int4_rows.rows(block + npu::blocks::Int4Layout<kMinima>::kCodesAt +
                                     half * kHalfBytes + step * weights::kSubBytes);
    out.put(rows.first, rows.second);
    out.end_group((i & 3) == 3);
  }
}

// The same from columns of 32 rows, eight at a time. bfloat16 has one row-block and two blocks that
// follow each other: the third of five slices has columns of both, but no step of eight has. 8-bit
// codes (of a Layout) become such columns first, in a loop that program memory has room for.
template <typename Layout>
inline void expand_columns(const uint8_t* __restrict b0, const uint8_t* __restrict b1,
                           int32_t count, bool narrow, int32_t slice, int32_t slices,
                           uint8_t* __restrict to) {
  constexpr int32_t kColumns = npu::blocks::bf16::kColumns, kEight = transposed::kColumns;
  constexpr int32_t kSteps8 = Layout::kGroup / kEight;  // of the columns of a scale
  static_assert(kColumns % kEight == 0 && Layout::kGroup % kEight == 0);
  alignas(64) bfloat16 values[kEight * kRowBlock];
  NPU_ROLLED for (int32_t i = 0; i < slices * count; ++i) {
    const uint8_t* const block = (i & (count - 1)) == 0 ? b0 : b1;
    const int32_t first = (slice + (i >> (count - 1))) * kSteps;
    Writer upper(to, 2 * i), lower(to, 2 * i + 1);
    NPU_ROLLED for (int32_t step = first; step < first + kSteps; ++step) {
      const int32_t at = step * kEight;
      const int32_t second = npu::prefill::where(at >= kColumns);
      const auto* from = reinterpret_cast<const bfloat16*>(second == 0 ? b0 : b1) +
                         (at - (kColumns & second)) * kRowBlock;
      if (narrow) {
        const Q8Scales scale(reinterpret_cast<const float*>(block) + step / kSteps8 * kRowBlock);
        const auto* codes =
            reinterpret_cast<const int8_t*>(block + Layout::kCodesAt) + at * kRowBlock;
        NPU_ROLLED for (int32_t c = 0; c < kEight * kRowBlock; c += kRowBlock) {
          aie::store_v(values + c, scale.column(codes + c));
        }
        from = values;
      }
      aie::vector<bfloat16, 32> columns[kEight];
      for (int32_t c = 0; c < kEight; ++c) columns[c] = aie::load_v<32>(from + c * kRowBlock);
      Rows rows[4];
      transposed::rows(columns, rows);
      upper.put(rows[0], rows[1]);
      lower.put(rows[2], rows[3]);
    }
  }
}

// `slices` of the held blocks from `slice` on.
template <bool kSmall>
inline void expand(const uint8_t* b0, const uint8_t* b1, int32_t count, int32_t format,
                   int32_t slice, int32_t slices, uint8_t* to) {
  using Layout = std::conditional_t<kSmall, npu::blocks::q8_0, q8>;
  if (npu::blocks::is_int4(Format(format))) {
    return expand_int4<!kSmall>(b0, b1, count, slice, slices, to);
  }
  const bool narrow = kSmall || format == int32_t(Format::kQ8);
  expand_columns<Layout>(b0, b1, count, narrow, slice, slices, to);
}

#if NPU_DECLARATIONS
// Of `slices` of `blocks` row-blocks, not measured on hardware: slots counted as in
// weight_values.h, and what a loop takes to fill and to drain, its chain of results.
//
// To store 8x8 weights npu2 has one move, a conversion, two multiplications that widen 32 lanes
// each, and stores 72 bytes in at most two instructions; npu1 has two transposing shuffles and four
// stores of 32 bytes. npu2's moves of 16x8 4-bit codes are an unpack, and 4 times an interleave, a
// conversion and two shuffles; multiplications 4 times a product and the minima, and the offset.
// npu1 converts the minima, in halves. Scales and minima are loaded into both halves of a register.
// A column of 8-bit codes has as many moves as in weight_values.h, and npu2 four multiplications:
// one of to_float(), three by the parts of its scale, which takes three conversions and as many
// products to split.
double cycles(Format format, double blocks, double slices) {
  constexpr bool kNpu1 = __AIE_ARCH__ == 20;
  constexpr double kMoves = kNpu1 ? 2 : 1, kMacs = kNpu1 ? 0 : 2, kStores = kNpu1 ? 4 : 2;
  // Results: a load 7, an unpack 7, a multiplication 6, a conversion 4, a shuffle or a store 2.
  constexpr double kEnd = kNpu1 ? 2 * 2 + 2 : 6 + 4 + 2;
  const double steps = slices * blocks * kSteps;
  if (npu::blocks::is_int4(format)) {
    constexpr double kChain = 7 + 7 + 2 + (kNpu1 ? 6 + 4 : 0) + 6 + 6 + 4 + 2 * 2 + 2 + kEnd;
    constexpr double kSubMoves = kNpu1 ? weights::kQ4nxMoves + 2 : 1 + 4 * (1 + 1 + 2);
    constexpr double kSubMacs = kNpu1 ? weights::kQ4nxMacs : 4 * 2 + 1;
    return kChain +
           2 * steps * longest(longest(kSubMoves + 2 * kMoves, 2 * kStores), kSubMacs + 2 * kMacs);
  }
  // Columns to rows: a step after the other, the whole chain in each.
  constexpr double kShuffles = transposed::kMoves * weights::kHalves + 4 * kMoves;
  constexpr double kLoads = transposed::kColumns * weights::kHalves;
  constexpr double kRowsChain = 7 + 3 * 2 + kEnd;
  const double rows =
      kRowsChain + longest(longest(kShuffles, 4 * kStores), longest(kLoads, 4 * kMacs));
  if (format == Format::kBf16) return steps * rows;
  // Before it a loop over eight columns of codes: of to_float(), and a product; a store.
  constexpr double kSplit = kNpu1 ? 0 : 3, kColumnMacs = kNpu1 ? weights::kQ8Macs : 1 + 3;
  constexpr double kColumnChain = 8 + (kNpu1 ? 54 : 3 * 6) + 4 + 2;
  const double columns =
      kSplit + kColumnChain + transposed::kColumns * longest(weights::kQ8Moves, kColumnMacs);
  return steps * (columns + rows);
}
#endif

}  // namespace prefill_weights
}  // namespace
