// What was built for a problem (its prepared stream, its schedule) is kept, least recently used
// dropped first when the streams exceed a byte budget.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <memory>

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
      return found->second->value;
    }
    Pointer value = build();
    ++built_;
    const size_t bytes = value->bytes();
    order_.push_front({key, value, bytes});
    index_[key] = order_.begin();
    bytes_ += bytes;
    while (bytes_ > budget_ && order_.size() > 1) {
      bytes_ -= order_.back().bytes;
      index_.erase(order_.back().key);
      order_.pop_back();
    }
    return value;
  }

  uint64_t built() const { return built_; }
  uint64_t hits() const { return hits_; }

 private:
  struct Entry {
    Key key;
    Pointer value;
    size_t bytes;  // when it was new: a value may grow
  };
  size_t budget_, bytes_ = 0;
  std::atomic<uint64_t> built_ = 0, hits_ = 0;  // read without the lock that others hold
  std::list<Entry> order_;                      // most recently used first
  std::map<Key, typename std::list<Entry>::iterator> index_;
};

}  // namespace npu
