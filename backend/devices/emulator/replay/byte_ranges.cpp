// Sets of bytes (byte_ranges.h).
#include "devices/emulator/replay/byte_ranges.h"

#include <algorithm>

namespace npu::emulator {

void ByteRanges::add(const Range& range) {
  if (range.begin >= range.end) return;
  Range& recent = recent_[static_cast<size_t>(range.begin >> 6) % kRecent];
  if (recent == range) return;
  recent = range;
  all_.push_back(range);
  if (all_.size() > 2 * closed_ + kFew) close();
}

void ByteRanges::add(const ByteRanges& others) {
  all_.insert(all_.end(), others.all_.begin(), others.all_.end());
}

void ByteRanges::close() {
  std::ranges::sort(all_, {}, &Range::begin);
  size_t count = 0;
  for (const Range& range : all_) {
    if (count > 0 && range.begin <= all_[count - 1].end) {
      all_[count - 1].end = std::max(all_[count - 1].end, range.end);
    } else {
      all_[count++] = range;
    }
  }
  all_.resize(count);
  all_.shrink_to_fit();
  closed_ = count;
}

const ByteRanges::Range* ByteRanges::first_ending_behind(int64_t begin) const {
  const auto found = std::ranges::upper_bound(all_, begin, {}, &Range::end);
  return found == all_.end() ? nullptr : &*found;
}

bool ByteRanges::meets(const Range& range) const {
  const Range* const first = first_ending_behind(range.begin);
  return first != nullptr && first->begin < range.end && range.begin < range.end;
}

bool ByteRanges::meets(const ByteRanges& others) const {
  return std::ranges::any_of(others.all_, [&](const Range& range) { return meets(range); });
}

bool ByteRanges::holds(const Range& range) const {
  const Range* const first = first_ending_behind(range.begin);
  return first != nullptr && first->begin <= range.begin && range.end <= first->end;
}

}  // namespace npu::emulator
