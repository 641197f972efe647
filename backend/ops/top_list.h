// The largest elements of a vector of which many cores have computed parts: each writes the list of
// its own part (aie_kernels/gemv_setup.h, Output::kTop), here they become one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace npu::ops {

struct TopEntry {
  float value;
  int64_t row;
};

inline constexpr int64_t kMaxTop = 64;  // entries per vector

class TopLists {
 public:
  // A core's list: `entries` fp32 values, then as many int32 rows. Those that are none of `rows`
  // rows fill the list up; row 0 is row `first_row` of the vector.
  void add(const std::byte* list, int64_t entries, int64_t rows, int64_t first_row = 0);
  // The k largest, at most: largest first, equal ones by row, NaNs last. Forgets all lists.
  void take(int64_t k, TopEntry* out);

 private:
  std::vector<TopEntry> found_;
};

}  // namespace npu::ops
