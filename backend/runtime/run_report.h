// What one submission did. Byte counts are those that crossed a tile's DMA channels.
#pragma once

#include <algorithm>
#include <cstdint>

namespace npu {

struct RunReport {
  uint64_t operations = 0;                             // stream operations executed
  uint64_t undecoded_writes = 0;                       // register writes without a modelled effect
  uint64_t shim_read_bytes = 0, shim_write_bytes = 0;  // DRAM -> array, array -> DRAM
  uint64_t memtile_read_bytes = 0, memtile_write_bytes = 0;
  uint64_t core_read_bytes = 0, core_write_bytes = 0;
  uint64_t kernel_calls = 0;
  uint64_t array_ns = 0;  // host time in which the stream was executed; 0: not measured
};

// A part of one operation's report: one of several submissions, or of the array's columns.
inline void add(RunReport& total, const RunReport& part) {
  total.operations += part.operations;
  // Counted from the configuration on, so every report has the sum so far.
  total.undecoded_writes = std::max(total.undecoded_writes, part.undecoded_writes);
  total.shim_read_bytes += part.shim_read_bytes;
  total.shim_write_bytes += part.shim_write_bytes;
  total.memtile_read_bytes += part.memtile_read_bytes;
  total.memtile_write_bytes += part.memtile_write_bytes;
  total.core_read_bytes += part.core_read_bytes;
  total.core_write_bytes += part.core_write_bytes;
  total.kernel_calls += part.kernel_calls;
  total.array_ns += part.array_ns;
}

}  // namespace npu
