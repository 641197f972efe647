// y += W x for a block of 4-bit codes: 32 rows x 256 columns with a bf16 scale d, and in Q4NX a
// minimum m, per row and group of 32 columns (q4nx_block.h, weight_block.h); included by gemv.cc.
//
// Block: 256 d, 256 m (index group * 32 + row), then codes: byte half * 2048 + column * 8 + j holds
// rows half * 16 + 2 j (low nibble) and 2 j + 1. Arithmetic, per row and group:
//   X = sum x      s = -128 X + sum (128 + code) x      y += d s + m X
// in fp32: 128 + code is bf16 with the code as low byte, so that widening a code is one interleave,
// and every product is exact in fp32. 16 x 4 codes are a load of 32 bytes. Without minima m is
// -8 d: s = -136 X + sum (128 + code) x, y += d s.
#pragma once

#include <stdint.h>

#include <aie_api/aie.hpp>

#include "gemv_columns.h"
#include "kernel.h"
#include "weight_block.h"

namespace {
namespace gemv_q4nx {

namespace q4nx = npu::q4nx;

constexpr int32_t kBlockRows = q4nx::kRows, kBlockColumns = q4nx::kColumns, kHalfRows = 16;
constexpr int32_t kGroup = q4nx::kGroup, kGroups = q4nx::kGroups;
constexpr int32_t kHalf = kBlockColumns * kHalfRows / 2;  // bytes of codes per half
constexpr int32_t kStep = 4, kStepBytes = kStep * kHalfRows / 2;

// With minima, or without.
template <bool kMinima>
struct Form {
  static constexpr int32_t kTerms = kMinima ? 2 : 1;   // products of a group: d s, m X
  static constexpr int32_t kPairs = kTerms * kGroups;  // and of a row
  static constexpr float kBias = -128 - npu::blocks::Int4Layout<kMinima>::kZero;
  static_assert(kPairs * kBlockRows <= gemv_columns::kApart);
};

// Whether one vector or two take codes from registers instead of memory: AIE2, whose code is
// longer, has no room for that beside the loop for four.
template <bool kBatches>
constexpr bool kDirect = !kBatches || __AIE_ARCH__ > 20;

// 4 columns of 16 rows.
inline aie::vector<uint8_t, kStep * kHalfRows> load_codes(const uint8_t* from) {
  return aie::unpack(aie::load_v<kStep * kHalfRows>(reinterpret_cast<const uint4*>(from)));
}

// One column of 32 codes, as 128 + code.
inline aie::vector<bfloat16, 32> widen(const aie::vector<uint8_t, 16>& upper,
                                       const aie::vector<uint8_t, 16>& lower) {
  const auto magic = aie::broadcast<uint8_t, 32>(0x43);  // high byte of bf16 128
  const auto zipped = aie::interleave_zip(aie::concat(upper, lower), magic, 1);
  return aie::concat(zipped.first, zipped.second).cast_to<bfloat16>();
}

// A group's columns.
inline void expand(const uint8_t* __restrict codes, bfloat16* __restrict columns) {
  NPU_ROLLED for (int32_t c = 0; c < kGroup; c += kStep) {
    const auto above = load_codes(codes), below = load_codes(codes + kHalf);
    for (unsigned i = 0; i < kStep; ++i) {
      aie::store_v(columns, widen(above.extract<kHalfRows>(i), below.extract<kHalfRows>(i)));
      columns += kBlockRows;
    }
    codes += kStepBytes;
  }
}

// sums += a group's columns times x, in sums of even and odd columns.
inline void multiply_codes(const uint8_t* __restrict codes, const bfloat16* __restrict x,
                           float* __restrict sums) {
  using namespace gemv_columns;
  Sums even = load(sums), odd = zeros();
  NPU_ROLLED for (int32_t c = 0; c < kGroup; c += kStep) {
    const auto above = load_codes(codes), below = load_codes(codes + kHalf);
    for (unsigned i = 0; i < kStep; ++i) {
      const auto column = widen(above.extract<kHalfRows>(i), below.extract<kHalfRows>(i));
      Sums& sum = i % 2 == 0 ? even : odd;
      sum = add_column(sum, column, x[i]);
    }
    codes += kStepBytes;
    x += kStep;
  }
  store(sums, aie::add(even, odd));
}

// The groups' d and m, in turn, as fp32.
template <bool kMinima>
inline void widen_planes(const bfloat16* __restrict planes, float* __restrict to) {
  using F = Form<kMinima>;
  NPU_ROLLED for (int32_t i = 0; i < F::kPairs; ++i) {
    const aie::accum<accfloat, 32> wide(aie::load_v<32>(planes));
    const int32_t place = F::kTerms * (i % kGroups) + i / kGroups;
    aie::store_v(to + place * kBlockRows, wide.to_vector<float>());
    planes += kBlockRows;
  }
}

// -128 X and X of consecutive groups of x, of vectors kApart from each other; without minima -136 X
// alone.
template <bool kMinima>
inline void start(const bfloat16* __restrict x, int32_t groups, float* __restrict sums) {
  using F = Form<kMinima>;
  static_assert(gemv_columns::kApart == 2 * kGroups * kBlockRows);
  float* to = sums;
  NPU_ROLLED for (int32_t group = 0; group < groups; ++group) {
    if (!kMinima) to = sums + (group / kGroups * kGroups + group) * kBlockRows;
    const aie::accum<accfloat, 32> wide(aie::load_v<32>(x));
    const float total = aie::reduce_add(wide.to_vector<float>());
    const auto first = aie::broadcast<float, 16>(F::kBias * total);
    aie::store_v(to, first);
    aie::store_v(to + 16, first);
    if (kMinima) {
      const auto all = aie::broadcast<float, 16>(total);
      aie::store_v(to + 32, all);
      aie::store_v(to + 48, all);
    }
    x += kGroup;
    if (kMinima) to += F::kTerms * kBlockRows;
  }
}

// work: d and m, then s and X of vectors and groups, then the columns of a group.
template <bool kMinima, bool kBatches>
inline void multiply(const uint8_t* block, const bfloat16* x, float* y, float* work,
                     int32_t batch) {
  using gemv_columns::kApart;
  using F = Form<kMinima>;
  const uint8_t* codes = block + npu::blocks::Int4Layout<kMinima>::kCodesAt;
  float *sums = work + kApart, *to = sums;
  bfloat16* columns = reinterpret_cast<bfloat16*>(sums + npu::gemv::kMaxBatch * kApart);
  widen_planes<kMinima>(reinterpret_cast<const bfloat16*>(block), work);
  start<kMinima>(x, batch * kGroups, sums);
  NPU_ROLLED for (int32_t group = 0; group < kGroups; ++group) {
    if (kDirect<kBatches> && (!kBatches || batch < gemv_columns::kFour)) {
      NPU_ROLLED for (int32_t v = 0; v < (kBatches ? batch : 1); ++v) {
        multiply_codes(codes, x + v * kBlockColumns, to + v * kApart);
      }
    } else {
      expand(codes, columns);
      gemv_columns::multiply<kBatches>(columns, x, 1, kGroup, to, batch, kBlockColumns);
    }
    codes += kGroup * kHalfRows / 2;
    x += kGroup;
    to += F::kTerms * kBlockRows;
  }
  gemv_columns::add_products<kBatches>(work, sums, F::kPairs, batch, y);
}

#if NPU_DECLARATIONS
// Not measured on hardware. Per 4 columns of 32 rows: two loads beside everything else; in the move
// slot two unpacks of 4-bit codes and 4 interleaves that make bf16 of them; then 4 stores, and
// their products (gemv_columns.h), or 4 broadcasts and products at once. At the start a load, a
// conversion and two stores for each of 16 scales and minima, and per group of 32 columns and
// vector the sum of x (load, widen, 5 halvings, stores); four more until the first is there. At the
// end two fp32 products per group and vector; without minima one.
template <bool kMinima, bool kBatches>
double cycles(int64_t batch) {
  using namespace gemv_columns;
  constexpr int32_t kPairs = Form<kMinima>::kPairs;
  constexpr double kMoves = 2 + 4, kGroupSum = 14;
  constexpr double kSteps = kGroup / kStep;
  const double direct = longest(kMoves + kStep, longest(kStep * kHalves, kStep * kChain / 2));
  const double expand = longest(kMoves, kStep * kHalves);
  const double group = kDirect<kBatches> && batch < kFour
                           ? double(batch) * (kLoop + kSteps * direct)
                           : kLoop + kSteps * expand + multiply_cycles(kGroup, batch);
  return kLoop + kPairs * 2 * kHalves + (double(batch) * kGroups + 4) * kGroupSum +
         kGroups * group + products_cycles<kBatches>(kPairs, batch);
}
// Generated for one vector and blocks with minima.
template <bool kBatches>
Parts parts(int64_t batch) {
  if (batch >= gemv_columns::kFour) return {};
  return {{{"gemv_q4nx", {1, 1, 1}, cycles<true, kBatches>(batch), double(batch)}}};
}
#endif

}  // namespace gemv_q4nx
}  // namespace
