// How long runs take, for devices that can say so (Device::timing): simulated by the emulator,
// measured by hardware.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arch/timing.h"
#include "runtime/device.h"

namespace npu {

// Times of one run. Cycles are of the array clock. A measured run may know `seconds` only.
struct RunTiming {
  bool simulated = true;
  double seconds = 0;   // as the host sees it: dispatch + array
  double dispatch = 0;  // seconds
  double cycles = 0;    // of the array
  // Share of the array's time in which a resource works: the busiest core's kernels, the busiest
  // stream, the memory at the rate its access pattern allows, the command processor.
  double compute_share = 0, stream_share = 0, dram_share = 0, command_share = 0;
  double core_busy = 0, core_blocked = 0;  // cycles, mean over the cores with a program
  double matmul_cycles = 0;                // of all cores
  uint64_t matmul_calls = 0;
  uint64_t events = 0;
  // Cycles in which each core, channel and the command processor worked; idle ones are left out.
  std::vector<std::pair<std::string, double>> agents;
  // Kernels that were called, with what their cycles are: "scheduled", "published" or "counted".
  std::vector<std::pair<std::string, std::string>> kernels;
};

// What to record of timed runs.
struct TraceOptions {
  double from = 0, to = std::numeric_limits<double>::infinity();  // cycles since a run began
  uint64_t limit = 1'000'000;                                     // events
  bool locks = true;                                              // values of locks, too
};

// A recorded timeline; its form is the device's (devices/emulator/timed_trace.h).
class RunTrace {
 public:
  virtual ~RunTrace() = default;
};

struct TimingOptions {
  arch::TimingTable constants;  // of a simulation
  // false: nothing is moved or computed and arguments may be placeholders, except for those that
  // hold control packets (runtime/overlay.h); for simulations only
  bool data = true;
  // With data: the kernels that run, while the others only take their time; none: all of them. For
  // simulations in which few kernels compute what loops are bounded by.
  std::vector<std::string> kernels;
  std::optional<TraceOptions> trace;
};

class DeviceTiming {
 public:
  virtual ~DeviceTiming() = default;
  // From now on runs are timed. Throws Error(kUnsupported) for what the device cannot do.
  virtual void start(const TimingOptions& options) = 0;
  virtual void stop() = 0;
  // A buffer of that size without memory, for runs without data.
  virtual std::unique_ptr<Buffer> placeholder(size_t bytes) = 0;
  // Of the last timed run that is done.
  virtual const RunTiming& last() const = 0;
  // Of the runs since start(); null if none was asked for.
  virtual std::shared_ptr<RunTrace> trace() const = 0;
};

}  // namespace npu
