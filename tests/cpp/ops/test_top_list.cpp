// Lists of largest elements, merged: order, NaNs, rows listed twice, rows that are none.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "ops/top_list.h"

namespace {

// As a core writes it.
std::vector<std::byte> list_of(const std::vector<float>& values, const std::vector<int32_t>& rows) {
  std::vector<std::byte> out(values.size() * 8);
  std::memcpy(out.data(), values.data(), values.size() * 4);
  std::memcpy(out.data() + values.size() * 4, rows.data(), rows.size() * 4);
  return out;
}

}  // namespace

TEST_CASE(
    "lists of two cores become one: largest first, equal ones by row, NaNs last, no row twice") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  npu::ops::TopLists lists;
  const auto a = list_of({7, 5, nan, -1}, {9, 3, 2, 64});  // row 64 fills the list up
  const auto b = list_of({7, 7, 5, -8}, {9, 4, 0, -1});    // row 9 again
  lists.add(a.data(), 4, 64);
  lists.add(b.data(), 4, 64);
  const auto c = list_of({5}, {1});
  lists.add(c.data(), 1, 32, 64);
  std::vector<npu::ops::TopEntry> out(6);
  lists.take(6, out.data());
  const std::vector<int64_t> rows{4, 9, 0, 3, 65, 2};
  for (size_t i = 0; i < rows.size(); ++i) CHECK(out[i].row == rows[i]);
  CHECK(out[1].value == 7);
  CHECK(out[4].value == 5);
  CHECK(std::isnan(out[5].value));
  // The next vector starts with no lists.
  const auto d = list_of({-3}, {0});
  lists.add(d.data(), 1, 64);
  lists.take(1, out.data());
  CHECK(out[0].value == -3);
}
