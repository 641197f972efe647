// What the tests of a prompt's plan know of the array (aie_kernels/prefill_job.h): cores that take
// names of values instead of values. Every word of memory has a name; a job checks that the names
// on its streams are those that it needs, in order, and names its results.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "aie_kernels/prefill_job.h"
#include "error.h"
#include "gemm_fixture.h"
#include "ops/prefill/prefill_plan.h"

namespace npu::prefill_test {

// kZero: is 0 whatever was computed; kAny: of rows that are no tokens, or read by nobody.
enum class Value : uint64_t {
  kZero,
  kX,
  kA,
  kFactor,
  kQkv,
  kQ,
  kK,
  kV,
  kAttention,
  kOutput,
  kGateUp,
  kAct,
  kDown,
  kLogit,
  kTable,
  kConstant
};
inline constexpr uint64_t kAny = ~uint64_t{0};

// index: layer, or version of the residual; row: row-block, position; column: block, head.
constexpr uint64_t name(Value value, int64_t index, int64_t row, int64_t column, int64_t word) {
  return uint64_t(value) << 56 | uint64_t(index) << 48 | uint64_t(row) << 32 |
         uint64_t(column) << 12 | uint64_t(word);
}

// A word of an argument of the stream.
struct Place {
  uint32_t argument;
  uint64_t offset;  // bytes
  bool early;       // may be read before the step begins
};

// Words of a channel's tasks in a step, and how far the cores have taken them.
class Channel {
 public:
  Channel(const ops::PrefillArray& array, const std::vector<ops::PrefillTask>& tasks) {
    int group = 0;
    for (const ops::PrefillTask& task : tasks) {
      REQUIRE(task.group >= group);
      group = task.group;
      REQUIRE(task.repeats >= 1);
      REQUIRE(task.repeats <= std::max<int64_t>(task.bd.iteration_wrap, 1));
      REQUIRE(task.offset % 4 == 0);
      arch::Bd bd = task.bd;
      bd.burst = arch::device_geometry(array.generation).shim_burst;
      (void)arch::encode_bd(arch::TileKind::kShim, bd);  // its fields fit the registers
      for (int64_t repeat = 0; repeat < task.repeats; ++repeat) {
        const int64_t base = task.offset + 4 * repeat * int64_t{bd.iteration_step};
        for (const uint64_t at : test::visited(bd, uint64_t(base))) {
          words_.push_back({task.argument, at, task.early});
        }
      }
    }
  }

  bool ended() const { return next_ == words_.size(); }
  const std::vector<Place>& words() const { return words_; }
  std::span<const Place> take(int64_t count) {
    REQUIRE(next_ + size_t(count) <= words_.size());
    next_ += size_t(count);
    return std::span(words_).subspan(next_ - size_t(count), size_t(count));
  }

 private:
  std::vector<Place> words_;
  size_t next_ = 0;
};

// The names of an argument's words.
struct Memory {
  std::vector<uint64_t> names;
  std::vector<int> written;  // by which step last, counted from 1
  explicit Memory(int64_t bytes, uint64_t at_first)
      : names(size_t(bytes / 4), at_first), written(names.size(), 0) {}
};

}  // namespace npu::prefill_test
