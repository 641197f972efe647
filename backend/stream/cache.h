// Streams built and prepared once per problem and kept, least recently used dropped first when they
// exceed a byte budget.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <utility>

#include "device.h"

namespace npu::stream {

template <typename Key>
class StreamCache {
 public:
  using Prepared = std::shared_ptr<const PreparedStream>;
  explicit StreamCache(size_t budget_bytes) : budget_(budget_bytes) {}

  // The stream for `key`, from build() if it is not there.
  template <typename Build>
  Prepared get(const Key& key, Build build) {
    const auto found = index_.find(key);
    if (found != index_.end()) {
      ++hits_;
      order_.splice(order_.begin(), order_, found->second);
      return found->second->second;
    }
    Prepared stream = build();
    ++built_;
    bytes_ += stream->bytes();
    order_.emplace_front(key, stream);
    index_[key] = order_.begin();
    while (bytes_ > budget_ && order_.size() > 1) {
      bytes_ -= order_.back().second->bytes();
      index_.erase(order_.back().first);
      order_.pop_back();
    }
    return stream;
  }

  uint64_t built() const { return built_; }
  uint64_t hits() const { return hits_; }

 private:
  using Entry = std::pair<Key, Prepared>;
  size_t budget_, bytes_ = 0;
  uint64_t built_ = 0, hits_ = 0;
  std::list<Entry> order_;  // most recently used first
  std::map<Key, typename std::list<Entry>::iterator> index_;
};

}  // namespace npu::stream
