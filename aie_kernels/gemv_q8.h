// y += W x for an 8-bit block: 32 rows x 128 columns of int8 codes with an fp32 scale d per row and
// group of 16 or 32 columns (weight_block.h); included by gemv.cc.
//
// Per row and group: s = sum code x, y += d s, in fp32. Codes become bf16, exactly, so every
// product is exact in fp32. The 32 codes of a column are one load.
#pragma once

#include <stdint.h>

#include <aie_api/aie.hpp>

#include "gemv_columns.h"
#include "kernel.h"
#include "weight_block.h"

namespace {
namespace gemv_q8 {

constexpr int32_t kRows = npu::blocks::kRows;

// A group's codes as bf16.
template <int32_t kGroup>
inline void expand(const int8_t* __restrict codes, bfloat16* __restrict columns) {
  NPU_ROLLED for (int32_t c = 0; c < kGroup; ++c) {
    aie::store_v(columns, aie::to_float<bfloat16>(aie::load_v<kRows>(codes)));
    codes += kRows;
    columns += kRows;
  }
}

// work: a group's columns, then the sums of vectors and groups. Layout: q8, q8_0.
template <typename Layout, bool kBatches>
inline void multiply(const uint8_t* block, const bfloat16* x, float* y, float* work,
                     int32_t batch) {
  constexpr int32_t kGroup = Layout::kGroup, kGroups = Layout::kGroups;
  static_assert(kGroup * kRows * 2 <= gemv_columns::kApart * 4);
  const int8_t* codes = reinterpret_cast<const int8_t*>(block + Layout::kCodesAt);
  bfloat16* columns = reinterpret_cast<bfloat16*>(work);
  float *sums = work + gemv_columns::kApart, *to = sums;
  gemv_columns::clear(sums, batch * gemv_columns::kApart);
  NPU_ROLLED for (int32_t group = 0; group < kGroups; ++group) {
    expand<kGroup>(codes, columns);
    gemv_columns::multiply<kBatches>(columns, x, 1, kGroup, to, batch, int32_t(Layout::kColumns));
    codes += kGroup * kRows;
    x += kGroup;
    to += kRows;
  }
  gemv_columns::add_products<kBatches>(reinterpret_cast<const float*>(block), sums, kGroups, batch,
                                       y);
}

#if NPU_DECLARATIONS
// Not measured on hardware. Per column of 32 codes: a load; to bf16 by a magic number, two unpacks
// (to 16 and 32 bits), two additions of 16 lanes, and in the accumulator a subtraction and a
// conversion (npu1: two each); a store. Then its products (gemv_columns.h), and at the end one of
// fp32 per group and vector.
template <typename Layout, bool kBatches>
double cycles(int64_t batch) {
  using namespace gemv_columns;
  constexpr int32_t kGroup = Layout::kGroup, kGroups = Layout::kGroups;
  constexpr double kExpand = 2 + 2 + kHalves;
  return clear_cycles(double(batch * kApart)) +
         kGroups * (kLoop + kGroup * kExpand + multiply_cycles(kGroup, batch)) +
         products_cycles<kBatches>(kGroups, batch);
}
// Generated for one vector, for which codes are expanded anew, and scales of 16 columns.
template <bool kBatches>
Parts parts(int64_t batch) {
  if (batch >= gemv_columns::kFour) return {};
  return {{{"gemv_q8", {1, 1, 1}, cycles<npu::blocks::q8, kBatches>(batch), double(batch)}}};
}
#endif

}  // namespace gemv_q8
}  // namespace
