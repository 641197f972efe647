// Division and multiples rounded up, of numbers that are not negative.
#pragma once

#include <cstdint>

namespace npu {

constexpr int64_t divide_up(int64_t value, int64_t by) { return (value + by - 1) / by; }
constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return divide_up(value, multiple) * multiple;
}

}  // namespace npu
