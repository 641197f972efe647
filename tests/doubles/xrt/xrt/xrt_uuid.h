// Stand-in for xrt::uuid: names an xclbin.
#pragma once

#include <cstdint>

namespace xrt {

class uuid {
 public:
  uuid() = default;
  explicit uuid(uint64_t value) : value_(value) {}
  bool operator==(const uuid&) const = default;
  bool operator<(const uuid& other) const { return value_ < other.value_; }

 private:
  uint64_t value_ = 0;
};

}  // namespace xrt
