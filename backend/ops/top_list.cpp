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

// Of a heap, since many lists are found and few entries are asked for.
void TopLists::take(int64_t k, TopEntry* out) {
  const auto after = [](const TopEntry& a, const TopEntry& b) { return before(b, a); };
  std::ranges::make_heap(found_, after);
  const TopEntry* last = nullptr;
  for (int64_t count = 0; count < k && !found_.empty(); found_.pop_back()) {
    std::ranges::pop_heap(found_, after);
    // Rows that two cores computed come one after the other, with the same value.
    if (last != nullptr && last->row == found_.back().row) continue;
    last = &(out[count++] = found_.back());
  }
  found_.clear();
}

}  // namespace npu::ops
