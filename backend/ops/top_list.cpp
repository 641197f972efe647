// Lists of largest elements, merged (top_list.h).
#include "ops/top_list.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace npu::ops {

namespace {

bool before(const TopEntry& a, const TopEntry& b) {
  if (std::isnan(a.value) != std::isnan(b.value)) return std::isnan(b.value);
  if (a.value != b.value && !std::isnan(a.value)) return a.value > b.value;
  return a.row < b.row;
}

}  // namespace

void TopLists::add(const std::byte* list, int64_t entries, int64_t rows, int64_t first_row) {
  for (int64_t i = 0; i < entries; ++i) {
    float value;
    int32_t row;
    std::memcpy(&value, list + i * 4, 4);
    std::memcpy(&row, list + (entries + i) * 4, 4);
    if (row >= 0 && row < rows) found_.push_back({value, first_row + row});
  }
}

void TopLists::take(int64_t k, TopEntry* out) {
  std::ranges::sort(found_, before);
  // Rows that two cores computed come next to each other, with the same value.
  const auto end = std::ranges::unique(found_, {}, &TopEntry::row).begin();
  found_.erase(end, found_.end());
  std::copy_n(found_.begin(), std::min(found_.size(), static_cast<size_t>(k)), out);
  found_.clear();
}

}  // namespace npu::ops
