// The device contract: the only seam between the runtime and what executes streams. Nothing above
// it knows whether an emulator or hardware is below. Implementations:
// devices/emulator/emulated_device.cpp, devices/null/ (a minimal one), devices/xrt/ (the real NPU),
// python/src/python_device.cpp (devices written in Python).
//
// Calls of one device are not concurrent; SharedDevice (shared_device.h) holds the lock. A Run, a
// BufferRef and a wrapped Buffer do not own what they refer to.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "arch/geometry.h"
#include "runtime/configuration.h"
#include "runtime/run_report.h"
#include "stream/txn.h"

namespace npu {

// What a stream does with an argument, or what may be done with memory.
enum class Access : uint8_t { kRead, kWrite, kReadWrite };
inline bool reads(Access access) { return access != Access::kWrite; }
inline bool writes(Access access) { return access != Access::kRead; }

// Memory that the device owns (Device::allocate) or the caller's memory that it can reach
// (Device::wrap). The host sees what the device wrote, and the device what the host wrote, only
// after the range was synchronised; a device that shares memory with the host leaves both empty.
class Buffer {
 public:
  virtual ~Buffer() = default;
  virtual std::byte* host() = 0;
  virtual size_t bytes() const = 0;
  virtual Access access() const { return Access::kReadWrite; }  // kRead: a read-only mapping
  virtual void sync_to_device(size_t /*offset*/, size_t /*bytes*/) {}
  virtual void sync_from_device(size_t /*offset*/, size_t /*bytes*/) {}
};

// A range of a buffer as an argument of a stream. No buffer: an argument that the stream leaves
// alone.
struct BufferRef {
  Buffer* buffer = nullptr;
  size_t offset = 0, bytes = 0;
  Access access = Access::kRead;

  std::byte* host() const { return buffer->host() + offset; }
  // What follows the first `skipped` bytes.
  BufferRef after(size_t skipped) const {
    if (buffer == nullptr) return {};
    return {buffer, offset + skipped, bytes - skipped, access};
  }
  void sync_to_device() const {
    if (buffer != nullptr) buffer->sync_to_device(offset, bytes);
  }
  void sync_from_device() const {
    if (buffer != nullptr) buffer->sync_from_device(offset, bytes);
  }
};

// One execution of a stream. Destroying a run that has not ended cancels it.
class Run {
 public:
  enum class State : uint8_t { kRunning, kDone, kFailed, kCancelled };
  static constexpr std::chrono::nanoseconds kForever = std::chrono::nanoseconds::max();

  virtual ~Run() = default;
  virtual State state() const = 0;
  // Whether the run has ended within `timeout`; a device may make progress only in here. Throws the
  // npu::Error that the run ended with.
  virtual bool wait(std::chrono::nanoseconds timeout) = 0;
  // Ends the run where it is; the next load() configures the array afresh.
  virtual void cancel() = 0;
  // Of a run that is done.
  virtual const RunReport& report() const = 0;
};

// Bytes of an argument.
struct ArgumentRange {
  uint32_t argument = 0;
  uint64_t begin = 0, end = UINT64_MAX;
};

// A stream in the form in which a device runs it (Device::prepare), for one configuration.
class PreparedStream {
 public:
  explicit PreparedStream(std::vector<uint32_t> words) : words_(std::move(words)) {}
  virtual ~PreparedStream() = default;
  std::span<const uint32_t> words() const { return words_; }
  virtual size_t bytes() const { return words_.size() * 4; }  // of host memory it takes
  uint64_t configuration_id() const { return configuration_id_; }
  uint64_t patches() const { return patches_; }  // how often it was changed
  // Its runs will be alike (Device::repeats), but for what they read and write in these ranges: the
  // first one may as well be recorded.
  virtual void expect_repeats(std::span<const ArgumentRange> /*moving*/) const {}

 private:
  friend class Device;
  std::vector<uint32_t> words_;
  uint64_t device_ = 0, configuration_id_ = 0, patches_ = 0;
  std::vector<stream::Stream::Range> patchable_;  // found by the first patch
};

// Another value for a word of a prepared stream: of a BLOCKWRITE's data or an ADDRESS_PATCH's
// offset.
struct StreamPatch {
  size_t word;
  uint32_t value;
};

struct DeviceInfo {
  std::string name;  // "emu:npu2"
  arch::Generation generation = arch::Generation::kNpu2;
  int columns = 0;
  double clock_hz = 0;
  bool emulated = true;
  bool computes = true;       // false: runs end without a result (the null device)
  std::string arithmetic;     // "fast", "silicon"; "hardware" on a real NPU
  size_t max_arguments = 16;  // of a submission
};

// Counted by every device; tests assert that a new problem size loads nothing.
struct DeviceCounters {
  uint64_t configuration_loads = 0;
  uint64_t submissions = 0;
  // Of emulated devices: submissions that repeated a recorded run, and the bytes that recordings
  // and runs beside each other take.
  uint64_t replays = 0, replay_bytes = 0;
};

class DeviceTiming;  // runtime/timing.h

// Checks and counts what every device must, then calls what an implementation provides.
class Device {
 public:
  Device();
  virtual ~Device() = default;
  virtual DeviceInfo info() const = 0;
  virtual std::unique_ptr<Buffer> allocate(size_t bytes) = 0;
  // The caller's memory, if the device can reach it where it lies; null if it must be copied. A
  // read-only mapping is wrapped with Access::kRead. The memory must outlive the buffer.
  virtual std::unique_ptr<Buffer> wrap(std::byte* /*memory*/, size_t /*bytes*/, Access /*access*/) {
    return nullptr;
  }
  // Whether runs that differ only in what their arguments hold, or where, cost less than the first
  // of them: work that repeats itself is then better submitted piece by piece.
  virtual bool repeats() const { return false; }
  // How long runs take, simulated or measured; null if the device cannot say.
  virtual DeviceTiming* timing() { return nullptr; }

  // What program memory holds of an overlay of `configuration`, Overlay::bytes: what streams are to
  // write there (runtime/overlay.h). Throws Error(kDevice), also where the device gave another
  // size, Error(kArgument), and on an NPU Error(kMissingBuild).
  std::vector<uint32_t> overlay_image(const Configuration& configuration, size_t overlay);
  // Makes `configuration` the one the array runs; a no-op if it already is. Throws Error(kDevice,
  // kKernel), and on an NPU Error(kMissingBuild, kGeneration, kContext).
  void load(std::shared_ptr<const Configuration> configuration);
  // Does, once, what depends on a stream alone: parses it and checks that it touches only what
  // streams of the loaded configuration may. Throws Error(kFormat, kForbidden, kArgument).
  std::shared_ptr<const PreparedStream> prepare(std::vector<uint32_t> words);
  // Changes a prepared stream that no run uses, or runs that take others beside them (takes_more).
  // False: the device cannot, prepare another one.
  // Throws Error(kForbidden) for other words, Error(kArgument) for a stream of another device. A
  // patch that throws changes nothing.
  bool patch(const std::shared_ptr<const PreparedStream>& stream,
             std::span<const StreamPatch> patches);
  // Starts a stream of the loaded configuration; address patch i gets refs[i]. `stream`, the
  // buffers and the device must outlive the run. Throws Error(kArgument, kOutOfRange).
  std::unique_ptr<Run> submit(std::shared_ptr<const PreparedStream> stream,
                              std::span<const BufferRef> refs);
  // The same beside runs that have not ended. The caller sees to it that none of them reads or
  // writes what another one writes, and that their streams rely on nothing that runs have left in
  // tiles. They end together: cancelling or destroying one cancels all, and an error is thrown by
  // wait() of each. Null, and nothing happens, where the device cannot; wait for those runs then.
  std::unique_ptr<Run> submit_beside(std::shared_ptr<const PreparedStream> stream,
                                     std::span<const BufferRef> refs);
  // Whether that may be possible now. The streams of the runs may then be patched.
  virtual bool takes_more() const { return false; }
  // Submissions that follow each other: from here to end_series() nothing but they changes what
  // their arguments hold, and the buffers last. An emulated device may put off until then what a
  // run leaves in the array. See Series.
  virtual void begin_series() {}
  virtual void end_series() {}
  DeviceCounters counters() const { return counters_; }

 protected:
  // A run has ended: whether it repeated a recorded one, and the bytes of DeviceCounters.
  void count_replay(bool replayed, size_t bytes) {
    counters_.replays += replayed;
    counters_.replay_bytes = bytes;
  }
  // By default the stand-in, which hardware cannot run.
  virtual std::vector<uint32_t> do_overlay_image(const Configuration& configuration,
                                                 size_t overlay);
  virtual void do_load(const Configuration& configuration) = 0;
  virtual std::shared_ptr<PreparedStream> do_prepare(std::vector<uint32_t> words,
                                                     stream::Stream /*parsed*/) {
    return std::make_shared<PreparedStream>(std::move(words));
  }
  // All of the words may change. If it throws, the stream runs as before.
  virtual bool do_patch(PreparedStream& /*stream*/, std::span<const StreamPatch> /*patches*/) {
    return false;
  }
  virtual std::unique_ptr<Run> do_submit(std::shared_ptr<const PreparedStream> stream,
                                         std::span<const BufferRef> refs) = 0;
  virtual std::unique_ptr<Run> do_submit_beside(std::shared_ptr<const PreparedStream> /*stream*/,
                                                std::span<const BufferRef> /*refs*/) {
    return nullptr;
  }
  // What is loaded; null before the first load and after a failed run.
  const std::shared_ptr<const Configuration>& configuration() const { return configuration_; }
  // After a run that did not end well: the array's state is unknown.
  void forget_configuration() { configuration_ = nullptr; }

 private:
  void check_patches(PreparedStream& stream, std::span<const StreamPatch> patches) const;
  void check_submission(const PreparedStream& stream, std::span<const BufferRef> refs) const;

  const uint64_t number_;  // of all devices of the process
  std::shared_ptr<const Configuration> configuration_;
  stream::Permissions permissions_;  // what runtime streams of it may touch
  size_t max_arguments_ = 0;         // of DeviceInfo
  DeviceCounters counters_;
};

class Series {
 public:
  explicit Series(Device& device) : device_(device) { device_.begin_series(); }
  ~Series() { device_.end_series(); }
  Series(const Series&) = delete;
  Series& operator=(const Series&) = delete;

 private:
  Device& device_;
};

// "emu:npu1", "emu:npu2", "null:npu1", "null:npu2"; "xrt", the NPU of this machine, and "xrt:npu1",
// "xrt:npu2" if it is of that generation; "+module" may follow, the only way to it from here.
// Emulated devices take residency modes after a plus sign (devices/emulator/residency.h):
// "emu:npu2+reload". Throws Error(kDevice), of "xrt" Error(kMissingXrt, kGeneration, kVersions).
std::unique_ptr<Device> open_device(const std::string& name, const std::string& arithmetic);

}  // namespace npu
