// A set of bytes by their addresses: what a recorded run has touched.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace npu::emulator {

class ByteRanges {
 public:
  struct Range {
    int64_t begin = 0, end = 0;
    bool operator==(const Range&) const = default;
  };

  void add(const Range& range);
  void add(const ByteRanges& others);
  // Has to come before the questions below, and after all that is added.
  void close();
  bool meets(const Range& range) const;  // some of it
  bool meets(const ByteRanges& others) const;
  bool holds(const Range& range) const;  // all of it
  size_t bytes() const { return all_.size() * sizeof(Range); }

 private:
  const Range* first_ending_behind(int64_t begin) const;  // null: none

  static constexpr size_t kRecent = 64, kFew = 4096;
  std::vector<Range> all_;  // when closed: in order, and none touches the next one
  size_t closed_ = 0;       // how many it had then
  // Runs use the same buffers again and again.
  std::array<Range, kRecent> recent_{};
};

}  // namespace npu::emulator
