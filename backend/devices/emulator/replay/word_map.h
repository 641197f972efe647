// Values of words by their places (Place). Words that steer lie side by side, so they are kept in
// stretches; most places that are asked about are far from all of them.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <memory_resource>
#include <unordered_map>
#include <vector>

#include "devices/emulator/replay/operand_lists.h"

namespace npu::emulator {

// A word that has to have this value before a run for the run to do what the recorded one did.
struct SteeringWord {
  Place place;
  uint32_t value;
};

class WordMap {
 public:
  // False if the place has another value, or is none that words begin at.
  bool add(const Place& place, uint32_t value);
  bool erase(const Place& place);  // whether there was one; of a place that words begin at
  // Calls visit(const SteeringWord&) for every word of which one of these bytes is a part.
  template <typename Visit>
  void each(const Place& place, uint64_t bytes, const Visit& visit) const {
    const int64_t first = place.offset >> kBits;
    const int64_t last = (place.offset + static_cast<int64_t>(bytes) - 1) >> kBits;
    if (static_cast<uint64_t>(last - first) >= stretches_.size()) {
      for (const auto& [key, stretch] : stretches_) {
        if (key.base != place.base || key.number < first || key.number > last) continue;
        each_of(key, stretch, place.offset, bytes, visit);
      }
      return;
    }
    for (int64_t number = first; number <= last; ++number) {
      if (counts_[slot({place.base, number})] == 0) continue;
      const auto found = stretches_.find({place.base, number});
      if (found != stretches_.end()) {
        each_of(found->first, found->second, place.offset, bytes, visit);
      }
    }
  }
  bool any(uint32_t base) const { return base < in_base_.size() && in_base_[base] != 0; }
  std::vector<SteeringWord> all() const;  // by place

 private:
  static constexpr int kBits = 8;  // bytes of a stretch: 256
  static constexpr size_t kWords = size_t{1} << (kBits - 2);
  struct Key {
    uint32_t base;
    int64_t number;
    bool operator==(const Key&) const = default;
  };
  static size_t mixed(const Key& key) {
    return static_cast<size_t>(key.number) + key.base * size_t{977};
  }
  struct Hash {
    size_t operator()(const Key& key) const { return mixed(key) * 0x9e3779b97f4a7c15ull; }
  };
  struct Stretch {
    uint64_t held = 0;  // bit i: word i
    std::array<uint32_t, kWords> values;
  };
  // How many words lie in stretches of this slot: none in most.
  static constexpr size_t kSlots = 8192;  // 2 MiB of one base without collisions
  static size_t slot(const Key& key) { return mixed(key) % kSlots; }
  static Key key_of(const Place& place) { return {place.base, place.offset >> kBits}; }
  static size_t number_of(const Place& place) {
    return static_cast<size_t>(place.offset / kWordBytes) % kWords;
  }

  template <typename Visit>
  static void each_of(const Key& key, const Stretch& stretch, int64_t offset, uint64_t bytes,
                      const Visit& visit) {
    const int64_t begin = key.number << kBits;
    const auto last = offset + static_cast<int64_t>(bytes) - 1;  // byte
    for (uint64_t left = stretch.held; left != 0; left &= left - 1) {
      const auto i = static_cast<size_t>(std::countr_zero(left));
      const int64_t at = begin + static_cast<int64_t>(i) * kWordBytes;
      if (at + kWordBytes <= offset || at > last) continue;
      visit(SteeringWord{{at, key.base}, stretch.values[i]});
    }
  }

  std::pmr::unsynchronized_pool_resource memory_;
  std::pmr::unordered_map<Key, Stretch, Hash> stretches_{&memory_};
  std::array<uint32_t, kSlots> counts_{};
  std::vector<size_t> in_base_;
};

}  // namespace npu::emulator
