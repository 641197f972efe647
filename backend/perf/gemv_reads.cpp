// The reads of a GEMV as flows (gemv_reads.h).
#include "perf/gemv_reads.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "formats/weight_blocks.h"
#include "kernels/call.h"
#include "kernels/registry.h"

namespace npu::perf {

namespace {

constexpr double kDone = 1e-3;  // bytes: rounding of rates would leave a remainder for ever

}  // namespace

GemvReads::GemvReads(GemvReadShape shape, const arch::Timing& timing)
    : shape_(std::move(shape)),
      bandwidth_(timing.dram_read),
      x_cycles_(static_cast<double>(shape_.x_bytes) / timing.dram_read) {
  const auto row_block = static_cast<double>(shape_.row_block_bytes);
  const int cores = shape_.cores_per_port;
  round_ = row_block * cores;
  // A channel pauses between row-blocks and is no faster than its cores.
  const kernels::Declaration& gemv = *kernels::find_declaration(
      blocks::is_small(shape_.format) ? "gemv_small_block" : "gemv_block", shape_.generation);
  const double compute =
      static_cast<double>(blocks::bytes_of(shape_.format)) * cores /
      kernels::call_cycles(gemv, timing,
                           kernels::Integers{shape_.batch, static_cast<int64_t>(shape_.format)});
  const double pause = timing.shim_task_start + timing.bd_overhead;
  limit_ = std::min(compute, row_block / (row_block / timing.stream + pause));
  double now = 0;
  for (const int ports : shape_.ports) {
    now += ports * (timing.address_patch() + timing.cp_write);
    if (!shape_.preconfigured) now += timing.block_write(8 * ports);
    starts_.push_back(now);
  }
}

double GemvReads::cycles(const Rounds& rounds) const {
  Rounds given = rounds;
  return run(&given, 0, shape_.columns());
}

Rounds GemvReads::partition(int64_t row_blocks, int columns) const {
  // The last rounds of a column; those before are shared out evenly.
  constexpr int64_t kOneByOne = 64;
  int64_t cores = 0;
  for (int c = 0; c < columns; ++c) cores += shape_.cores(c);
  Rounds rounds(static_cast<size_t>(shape_.columns()), 0);
  const int64_t even = std::max<int64_t>(0, row_blocks / cores - kOneByOne);
  std::fill_n(rounds.begin(), columns, even);
  run(&rounds, row_blocks - even * cores, columns);
  return rounds;
}

double GemvReads::run(Rounds* rounds, int64_t left_over, int columns) const {
  const auto count = static_cast<size_t>(columns);
  std::vector<double> left(count);
  double now = 0, squares = 0;
  for (size_t c = 0; c < count; ++c) left[c] = static_cast<double>((*rounds)[c]) * round_;
  for (;;) {
    double until = std::numeric_limits<double>::infinity(), shortest = until;
    int active = 0;
    for (size_t c = 0; c < count; ++c) {
      if (starts_[c] > now) {
        if (left[c] > kDone || left_over > 0) until = std::min(until, starts_[c]);
        continue;
      }
      if (left[c] <= kDone && left_over > 0) {
        left[c] = round_;
        ++(*rounds)[c];
        left_over -= shape_.cores(static_cast<int>(c));
      }
      if (left[c] <= kDone) continue;
      active += shape_.ports[c];
      shortest = std::min(shortest, left[c]);
    }
    const double rate = active > 0 ? std::min(limit_, bandwidth_ / active) : 0;
    if (active > 0) until = std::min(until, now + shortest / rate);
    if (until == std::numeric_limits<double>::infinity()) break;
    for (size_t c = 0; c < count; ++c) {
      if (left[c] <= kDone || starts_[c] > now) continue;
      left[c] -= rate * (until - now);
      if (left[c] <= kDone) squares += until * until;
    }
    now = until;
  }
  const int64_t max_rounds = *std::max_element(rounds->begin(), rounds->end());
  return now + static_cast<double>(max_rounds) * x_cycles_ +
         1e-2 * std::sqrt(squares / static_cast<double>(count));
}

}  // namespace npu::perf
