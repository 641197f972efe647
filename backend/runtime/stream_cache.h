// What was built for a problem (its prepared stream, its schedule) is kept, least recently used
// dropped first when the streams exceed a byte budget.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <utility>

namespace npu {

// Value: has bytes().
template <typename Key, typename Value>
class StreamCache {
 public:
  using Pointer = std::shared_ptr<const Value>;
  explicit StreamCache(size_t budget_bytes) : budget_(budget_bytes) {}

  // The value of `key`, from build() if it is not there.
  template <typename Build>
  Pointer get(const Key& key, const Build& build) {
    const auto found = index_.find(key);
    if (found != index_.end()) {
      ++hits_;
      order_.splice(order_.begin(), order_, found->second);
      return found->second->second;
    }
    Pointer value = build();
    ++built_;
    bytes_ += value->bytes();
    order_.emplace_front(key, value);
    index_[key] = order_.begin();
    while (bytes_ > budget_ && order_.size() > 1) {
      bytes_ -= order_.back().second->bytes();
      index_.erase(order_.back().first);
      order_.pop_back();
    }
    return value;
  }

  uint64_t built() const { return built_; }
  uint64_t hits() const { return hits_; }

 private:
  using Entry = std::pair<Key, Pointer>;
  size_t budget_, bytes_ = 0;
  uint64_t built_ = 0, hits_ = 0;
  std::list<Entry> order_;  // most recently used first
  std::map<Key, typename std::list<Entry>::iterator> index_;
};

}  // namespace npu
