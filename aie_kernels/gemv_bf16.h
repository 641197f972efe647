// y += W x for a block of bfloat16 weights: 32 rows x 80 columns (weight_block.h); included by
// gemv.cc. Every product is exact in fp32; a block's sums are added to y at its end.
#pragma once

#include <stdint.h>

#include <aie_api/aie.hpp>

#include "gemv_columns.h"
#include "kernel.h"
#include "weight_block.h"

namespace {
namespace gemv_bf16 {

constexpr int32_t kRows = npu::blocks::kRows, kColumns = npu::blocks::bf16::kColumns;

// One vector has sums of every fourth column, two of which `multiply` takes at once.
template <bool kBatches>
inline void multiply(const uint8_t* block, const bfloat16* x, float* y, float* sums,
                     int32_t batch) {
  using gemv_columns::load, gemv_columns::kApart;
  const bfloat16* columns = reinterpret_cast<const bfloat16*>(block);
  const int32_t passes = kBatches && batch > 1 ? 1 : 2;
  gemv_columns::clear(sums, batch * kApart);
  NPU_ROLLED for (int32_t i = 0; i < passes; ++i) {
    gemv_columns::multiply<kBatches>(columns + i * kRows, x + i, passes, kColumns, sums + i * kRows,
                                     batch, kColumns);
  }
  NPU_SERIAL_FOR(int32_t v = 0, v < batch, ++v) {
    gemv_columns::store(y, aie::add(load(y), aie::add(load(sums), load(sums + kRows))));
    sums += kApart;
    y += kRows;
  }
}

#if NPU_DECLARATIONS
// Not measured on hardware. Two passes over half of the columns each, or one for a batch; at the
// end three loads, two additions and a store per vector.
double cycles(int64_t batch) {
  using namespace gemv_columns;
  constexpr double kEnd = 40;
  const int64_t passes = batch > 1 ? 1 : 2;
  return clear_cycles(double(batch * kApart)) +
         double(passes) * multiply_cycles(double(kColumns / passes), batch) + double(batch) * kEnd;
}
#endif

}  // namespace gemv_bf16
}  // namespace
