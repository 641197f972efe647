// Words by their places (word_map.h).
#include "devices/emulator/replay/word_map.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace npu::emulator {

bool WordMap::add(const Place& place, uint32_t value) {
  if (place.offset % kWordBytes != 0) return false;
  Stretch& stretch = stretches_[key_of(place)];
  const size_t i = number_of(place);
  if ((stretch.held >> i & 1) != 0) return stretch.values[i] == value;
  stretch.held |= uint64_t{1} << i;
  stretch.values[i] = value;
  ++counts_[slot(key_of(place))];
  if (in_base_.size() <= place.base) in_base_.resize(place.base + size_t{1});
  ++in_base_[place.base];
  return true;
}

bool WordMap::erase(const Place& place) {
  assert(place.offset % kWordBytes == 0);
  const auto found = stretches_.find(key_of(place));
  if (found == stretches_.end()) return false;
  const uint64_t bit = uint64_t{1} << number_of(place);
  if ((found->second.held & bit) == 0) return false;
  found->second.held &= ~bit;
  if (found->second.held == 0) stretches_.erase(found);
  --counts_[slot(key_of(place))];
  --in_base_[place.base];
  return true;
}

std::vector<SteeringWord> WordMap::all() const {
  std::vector<SteeringWord> entries;
  for (const auto& [key, stretch] : stretches_) {
    each_of(key, stretch, key.number << kBits, kWords * kWordBytes,
            [&](const SteeringWord& entry) { entries.push_back(entry); });
  }
  std::ranges::sort(entries, {}, [](const SteeringWord& entry) {
    return std::pair(entry.place.base, entry.place.offset);
  });
  return entries;
}

}  // namespace npu::emulator
