// The device contract: the only seam between the runtime and what executes streams. Nothing above
// it knows whether an emulator or hardware is below. Implementations: emulator/emulated_device.cpp,
// xrt/.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "arch/device_model.h"
#include "configuration.h"

namespace npu {

// Memory the device can reach. `data` is host-visible; emulated memory needs no sync, a hardware
// buffer must be synchronised around a run (sync_to_device before, sync_from_device after).
class Buffer {
 public:
  virtual ~Buffer() = default;
  virtual std::byte* data() = 0;
  virtual size_t bytes() const = 0;
  virtual void sync_to_device() {}
  virtual void sync_from_device() {}
};

// A stream argument: device memory, or host memory where the device says it can reach it.
struct BufferView {
  std::byte* data = nullptr;
  size_t bytes = 0;
  bool writable = true;
};

// What one submission did. Byte counts are those that crossed a tile's DMA channels.
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

// A stream in the form in which a device runs it (Device::prepare).
class PreparedStream {
 public:
  explicit PreparedStream(std::vector<uint32_t> words) : words_(std::move(words)) {}
  virtual ~PreparedStream() = default;
  std::span<const uint32_t> words() const { return words_; }
  virtual size_t bytes() const { return words_.size() * 4; }  // of host memory it takes

 private:
  std::vector<uint32_t> words_;
};

struct DeviceInfo {
  std::string name;  // "emu:npu2"
  arch::Generation generation;
  int columns = 0;
  double clock_hz = 0;
  bool emulated = true;
  std::string arithmetic;  // "fast", "silicon"; "hardware" on a real NPU
};

// Counted by every device; tests assert that a new problem size loads nothing.
struct DeviceCounters {
  uint64_t configuration_loads = 0;
  uint64_t submissions = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceInfo info() const = 0;
  virtual DeviceCounters counters() const = 0;
  virtual std::unique_ptr<Buffer> allocate(size_t bytes) = 0;
  // Whether submit() may be given host memory that allocate() did not return.
  virtual bool accepts_host_memory() const { return false; }
  // Makes `configuration` the one the array runs; a no-op if the one with its id already is.
  virtual void load(const Configuration& configuration) = 0;
  // Runs a stream over the loaded configuration; argument i of the stream's address patches is
  // buffers[i]. Returns when the stream has completed. Throws npu::Error.
  virtual RunReport submit(std::span<const uint32_t> stream,
                           std::span<const BufferView> buffers) = 0;
  // The same in two steps, for streams that are submitted again and again: whatever depends on the
  // stream alone is done, and may throw, in the first.
  virtual std::shared_ptr<const PreparedStream> prepare(std::vector<uint32_t> stream) {
    return std::make_shared<const PreparedStream>(std::move(stream));
  }
  virtual RunReport submit_prepared(const PreparedStream& stream,
                                    std::span<const BufferView> buffers) {
    return submit(stream.words(), buffers);
  }
};

// "emu:npu1", "emu:npu2"; "xrt" where XRT was found at build time. Throws
// Error(kDevice/kUnavailable).
std::unique_ptr<Device> open_device(const std::string& name, const std::string& arithmetic);

}  // namespace npu
