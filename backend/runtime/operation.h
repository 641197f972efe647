// What all array operations share: one configuration on one device, streams built and prepared once
// per problem and replayed, submission, Ctrl-C and counters. What distinguishes an operation is its
// problem, its schedule (problem -> what goes where) and the commands it appends to a stream; where
// those come from is a function that the operation passes to prepare().
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/alike_streams.h"
#include "runtime/configuration.h"
#include "runtime/interrupt.h"
#include "runtime/overlay.h"
#include "runtime/shared_device.h"
#include "runtime/stream_cache.h"
#include "stream/txn.h"

namespace npu {

struct OperationCounters {
  uint64_t streams_built = 0, stream_hits = 0;
  uint64_t host_copy_bytes = 0;  // of operands packed and results copied, padding included
  // Host time in submissions besides the array's own and the building of new streams.
  uint64_t submit_overhead_ns = 0;
  uint64_t stream_build_ns = 0;  // building, parsing and checking new streams
  // Host time of copies of GEMM operands, those read across their order in memory apart, and
  // results.
  uint64_t pack_ns = 0, transpose_ns = 0, result_copy_ns = 0;
};

// As OperationCounters has their times.
enum class CopyKind { kPack, kTranspose, kResult };

// Host memory as an argument, where it lies. Empty where the device cannot reach it: then it must
// be copied to scratch memory.
struct Wrapped {
  std::unique_ptr<Buffer> buffer;
  BufferRef ref;
  explicit operator bool() const { return buffer != nullptr; }
};

inline Wrapped wrap_memory(Device& device, std::byte* memory, size_t bytes, Access access) {
  Wrapped out;
  if (reinterpret_cast<uintptr_t>(memory) % 4 != 0) return out;  // DMAs address 32-bit words
  out.buffer = device.wrap(memory, bytes, access);
  if (!out) return out;
  out.ref = {out.buffer.get(), 0, bytes, access};
  out.ref.sync_to_device();  // lines of a result that the host still holds, too
  return out;
}

inline Wrapped wrap_input(Device& device, const std::byte* memory, size_t bytes) {
  return wrap_memory(device, const_cast<std::byte*>(memory), bytes, Access::kRead);
}

template <typename Problem, typename Schedule = std::monostate>
class Operation {
 public:
  // A problem's stream on the device, and the schedule that it carries out.
  struct Entry {
    std::shared_ptr<const PreparedStream> stream;
    Schedule schedule;
    size_t bytes() const { return stream->bytes(); }
  };

  static constexpr size_t kStreamBudget = size_t{64} << 20;  // bytes of cached streams

  // Throws what Device::overlay_image() throws.
  Operation(std::shared_ptr<SharedDevice> device, Configuration configuration,
            size_t budget = kStreamBudget)
      : device_(std::move(device)),
        configuration_(std::make_shared<const Configuration>(loaded(std::move(configuration)))),
        streams_(budget),
        alike_(budget) {}

  // Held around everything below, and around the use of the operation's scratch memory.
  std::unique_lock<std::mutex> lock() const { return std::unique_lock(device_->mutex); }

  // The entry of `problem`. A new one comes from build(stream::Builder&), which appends the
  // commands and returns the schedule.
  template <typename Build>
  std::shared_ptr<const Entry> prepare(const Problem& problem, const Build& build) {
    return prepare_words(problem, [&] {
      stream::Builder builder(configuration_->generation, device_->device->info().columns);
      Schedule schedule = build(builder);
      return std::pair(builder.finish(), std::move(schedule));
    });
  }

  // The same from make(), which returns the words of the stream and the schedule.
  template <typename Make>
  std::shared_ptr<const Entry> prepare_words(const Problem& problem, const Make& make) {
    const auto start = Clock::now();
    Device& device = *device_->device;
    device.load(configuration_);
    uint64_t building = 0;
    auto entry = streams_.get(problem, [&] {
      const auto begin = Clock::now();
      auto [words, schedule] = make();
      auto made = std::make_shared<const Entry>(
          Entry{device.prepare(std::move(words)), std::move(schedule)});
      building = since(begin);
      return made;
    });
    stream_build_ns_ += building;
    submit_overhead_ns_ += since(start) - building;
    return entry;
  }

  // The same for a stream that is not used again.
  template <typename Build>
  std::shared_ptr<const Entry> prepare_once(const Build& build) {
    return prepare_built(build, [](Device& device, std::vector<uint32_t> words) {
      return device.prepare(std::move(words));
    });
  }

  // The same from the words of the stream.
  std::shared_ptr<const Entry> prepare_once(std::vector<uint32_t> words, Schedule schedule = {}) {
    const auto start = Clock::now();
    Device& device = *device_->device;
    device.load(configuration_);
    auto made =
        std::make_shared<const Entry>(Entry{device.prepare(std::move(words)), std::move(schedule)});
    stream_build_ns_ += since(start);
    return made;
  }

  // The same for a stream of which others may follow that differ only in their addresses: then one
  // is patched (AlikeStreams). expected: they will, with other addresses in `moving`.
  template <typename Build>
  std::shared_ptr<const Entry> prepare_alike(const Build& build, bool expected,
                                             std::span<const ArgumentRange> moving) {
    return prepare_built(build, [&](Device& device, std::vector<uint32_t> words) {
      std::shared_ptr<const PreparedStream> stream = alike_.find(device, words);
      if (stream != nullptr) return stream;
      stream = device.prepare(std::move(words));
      if (expected) stream->expect_repeats(moving);
      alike_.add(stream);
      return stream;
    });
  }

  // Before a prepared stream runs that neither was prepared just now nor is patched.
  void load() {
    const auto start = Clock::now();
    device_->device->load(configuration_);
    submit_overhead_ns_ += since(start);
  }

  // Changes words of a prepared stream of this configuration. False: prepare another one.
  bool patch(const Entry& entry, std::span<const StreamPatch> patches) {
    const auto start = Clock::now();
    Device& device = *device_->device;
    device.load(configuration_);
    const bool done = device.patch(entry.stream, patches);
    submit_overhead_ns_ += since(start);
    return done;
  }

  // Runs a prepared stream to its end. Whoever wrote an input has synchronised it; results are
  // synchronised here.
  RunReport submit(const Entry& entry, std::span<const BufferRef> arguments) {
    const auto begin = Clock::now();
    const std::unique_ptr<Run> run = device_->device->submit(entry.stream, arguments);
    return ended(*run, arguments, begin);
  }

  // The same in two steps: another one may be started beside those that were (submit_beside), and
  // null is returned where it cannot be.
  std::unique_ptr<Run> start(const Entry& entry, std::span<const BufferRef> arguments,
                             bool beside) {
    const auto begin = Clock::now();
    Device& device = *device_->device;
    std::unique_ptr<Run> run = beside ? device.submit_beside(entry.stream, arguments)
                                      : device.submit(entry.stream, arguments);
    submit_overhead_ns_ += since(begin);
    return run;
  }
  RunReport end(Run& run, std::span<const BufferRef> arguments) {
    return ended(run, arguments, Clock::now());
  }

  void count_copy(uint64_t bytes) { host_copy_bytes_ += bytes; }
  // The same for copy(), which copies so many bytes.
  template <typename Copy>
  void timed_copy(uint64_t bytes, CopyKind kind, const Copy& copy) {
    const auto start = Clock::now();
    copy();
    copy_ns_[static_cast<size_t>(kind)] += since(start);
    count_copy(bytes);
  }
  // Without the lock: Python asks for them when an operation's owner ends, which may be while this
  // thread is in a device that is written in Python.
  OperationCounters counters() const {
    return {streams_.built(), streams_.hits(), host_copy_bytes_, submit_overhead_ns_,
            stream_build_ns_, copy_ns_[0],     copy_ns_[1],      copy_ns_[2]};
  }

  Device& device() const { return *device_->device; }
  const std::shared_ptr<SharedDevice>& shared_device() const { return device_; }
  const Configuration& configuration() const { return *configuration_; }

 private:
  // With the programs that streams load, as this device has them.
  Configuration loaded(Configuration configuration) {
    if (configuration.overlays.empty()) return configuration;
    const auto guard = lock();
    return with_images(*device_->device, std::move(configuration));
  }

  // prepare(device, words): the stream with these words.
  template <typename Build, typename Prepare>
  std::shared_ptr<const Entry> prepare_built(const Build& build, const Prepare& prepare) {
    const auto start = Clock::now();
    Device& device = *device_->device;
    device.load(configuration_);
    const auto begin = Clock::now();
    stream::Builder builder(configuration_->generation, device.info().columns);
    Schedule schedule = build(builder);
    auto made = std::make_shared<const Entry>(
        Entry{prepare(device, builder.finish()), std::move(schedule)});
    const uint64_t building = since(begin);
    stream_build_ns_ += building;
    submit_overhead_ns_ += since(start) - building;
    return made;
  }

  using Clock = std::chrono::steady_clock;
  RunReport ended(Run& run, std::span<const BufferRef> arguments, Clock::time_point begin) {
    const RunReport report = finish(run);
    for (const BufferRef& argument : arguments) {
      if (writes(argument.access)) argument.sync_from_device();
    }
    const uint64_t elapsed = since(begin);  // a device may measure its time by another clock
    submit_overhead_ns_ += elapsed - std::min(elapsed, report.array_ns);
    return report;
  }

  static uint64_t since(Clock::time_point start) {
    return static_cast<uint64_t>(std::chrono::nanoseconds(Clock::now() - start).count());
  }

  std::shared_ptr<SharedDevice> device_;
  std::shared_ptr<const Configuration> configuration_;
  StreamCache<Problem, Entry> streams_;
  AlikeStreams alike_;
  std::atomic<uint64_t> host_copy_bytes_ = 0, submit_overhead_ns_ = 0, stream_build_ns_ = 0;
  std::array<std::atomic<uint64_t>, 3> copy_ns_ = {};  // by CopyKind
};

}  // namespace npu
