// Eight columns of 32 bfloat16 to 32 rows of eight elements, 16 bytes, of a row-major tile: the end
// of the kernels that expand blocks stored by column.
#pragma once

#include <stdint.h>

#include <aie_api/aie.hpp>

namespace {
namespace transposed {

constexpr int32_t kColumns = 8, kRows = 32;
// Per eight columns: stores; shuffles of 64 lanes (four pairs of columns, twice, and interleaves).
constexpr double kStores = 32, kMoves = 4 + 4 + 4;

// Two columns as 32 rows of two elements, the lower and upper 16 rows.
inline aie::vector<bfloat16, 64> pair(const aie::vector<bfloat16, 32>& left,
                                      const aie::vector<bfloat16, 32>& right) {
  const auto zipped = aie::interleave_zip(left, right, 1);
  return aie::concat(zipped.first, zipped.second);
}

// Eight rows of eight elements in each vector.
inline void rows(const aie::vector<bfloat16, 32> (&columns)[kColumns],
                 aie::vector<bfloat16, 64> (&out)[kRows / 8]) {
  // 32 rows of four elements, 16 rows in each vector, then of eight, 8 rows in each.
  const auto left =
      aie::interleave_zip(pair(columns[0], columns[1]), pair(columns[2], columns[3]), 2);
  const auto right =
      aie::interleave_zip(pair(columns[4], columns[5]), pair(columns[6], columns[7]), 2);
  const auto upper = aie::interleave_zip(left.first, right.first, 4);
  const auto lower = aie::interleave_zip(left.second, right.second, 4);
  out[0] = upper.first;
  out[1] = upper.second;
  out[2] = lower.first;
  out[3] = lower.second;
}

inline void store(const aie::vector<bfloat16, 32> (&columns)[kColumns], bfloat16* __restrict out,
                  int32_t stride) {
  aie::vector<bfloat16, 64> eight[kRows / 8];
  rows(columns, eight);
  for (int32_t r = 0; r < kRows; ++r) {
    aie::store_v(out + r * stride,
                 eight[r / 8].template extract<kColumns>(static_cast<unsigned>(r % 8)));
  }
}

}  // namespace transposed
}  // namespace
