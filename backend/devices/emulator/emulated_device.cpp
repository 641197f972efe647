// Device contract on top of the emulated array: configurations bring their worker programs, kernels
// are the host builds of aie_kernels/.
#include "devices/emulator/emulated_device.h"

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <optional>
#include <string_view>
#include <utility>

#include "aligned.h"
#include "devices/emulator/array.h"
#include "devices/emulator/loaded_arrays.h"
#include "devices/emulator/replay/recordings.h"
#include "devices/emulator/replay/rehearsal.h"
#include "devices/emulator/residency.h"
#include "devices/emulator/timed_trace.h"
#include "error.h"

namespace npu::emulator {

namespace {

// A timed run without data makes 2^24 steps of K in seconds.
constexpr uint64_t kTimedWatchdogBudget = uint64_t{1} << 36;

class HostBuffer final : public Buffer {
 public:
  explicit HostBuffer(size_t bytes) : memory_(bytes) {}
  std::byte* host() override { return memory_.data(); }
  size_t bytes() const override { return memory_.size(); }

 private:
  AlignedBytes memory_;
};

// The caller's memory, or none for a placeholder.
class HostView final : public Buffer {
 public:
  HostView(std::byte* memory, size_t bytes, Access access)
      : memory_(memory), bytes_(bytes), access_(access) {}
  std::byte* host() override { return memory_; }
  size_t bytes() const override { return bytes_; }
  Access access() const override { return access_; }

 private:
  std::byte* memory_;
  size_t bytes_;
  Access access_;
};

class ParsedStream final : public PreparedStream {
 public:
  ParsedStream(std::vector<uint32_t> words, stream::Stream stream,
               const std::shared_ptr<ReplayMemory>& memory)
      : PreparedStream(std::move(words)), parsed(std::move(stream)), recordings(memory, parsed) {}
  size_t bytes() const override {
    return 2 * PreparedStream::bytes() + parsed.operations().size() * sizeof(stream::Operation);
  }
  void expect_repeats(std::span<const ArgumentRange> moving) const override {
    recordings.expect_repeats(moving);
  }
  stream::Stream parsed;
  mutable Recordings recordings;
};

class EmulatedRun;

class EmulatedDevice final : public Device, public DeviceTiming {
 public:
  EmulatedDevice(arch::Generation generation, Arithmetic arithmetic, const std::string& residency)
      : geometry_(arch::device_geometry(generation)),
        arithmetic_(arithmetic),
        residency_name_(residency),
        arrays_(geometry_),
        residency_(residency.empty() ? Residency{} : Residency::parse(residency)),
        reloads_(residency_) {
    const char* replay = std::getenv("NPU_REPLAY");
    if (replay != nullptr && std::string_view(replay) == "0") replay_memory_->limit(0);
  }

  DeviceInfo info() const override;
  std::unique_ptr<Buffer> allocate(size_t bytes) override {
    return std::make_unique<HostBuffer>(bytes);
  }
  std::unique_ptr<Buffer> wrap(std::byte* memory, size_t bytes, Access access) override {
    return std::make_unique<HostView>(memory, bytes, access);
  }

  bool takes_more() const override {
    return !running_.empty() && !residency_.on() && arrays_.current().joinable();
  }
  void begin_series() override {
    if (residency_.on() || array().timed()) return;
    series_ = &array();
    series_->begin_series();
  }
  void end_series() override {
    if (series_ != nullptr) std::exchange(series_, nullptr)->end_series();
  }
  bool repeats() const override { return replay_memory_->most() > 0 && !arrays_.current().timed(); }
  DeviceTiming* timing() override { return this; }
  void start(const TimingOptions& options) override;
  void stop() override;
  std::unique_ptr<Buffer> placeholder(size_t bytes) override {
    return std::make_unique<HostView>(nullptr, bytes, Access::kReadWrite);
  }
  const RunTiming& last() const override {
    return (timed_ ? *timed_ : arrays_.current()).timing_report();
  }
  std::shared_ptr<RunTrace> trace() const override { return recorder_; }

 protected:
  void do_load(const Configuration& configuration) override;
  std::shared_ptr<PreparedStream> do_prepare(std::vector<uint32_t> words,
                                             stream::Stream parsed) override {
    return std::make_shared<ParsedStream>(std::move(words), std::move(parsed), replay_memory_);
  }
  bool do_patch(PreparedStream& stream, std::span<const StreamPatch> patches) override {
    if (runs(stream)) return false;
    auto& patched = static_cast<ParsedStream&>(stream);
    patched.recordings.patch(patched.parsed, patches);
    return true;
  }
  std::unique_ptr<Run> do_submit(std::shared_ptr<const PreparedStream> stream,
                                 std::span<const BufferRef> refs) override;
  std::unique_ptr<Run> do_submit_beside(std::shared_ptr<const PreparedStream> stream,
                                        std::span<const BufferRef> refs) override;

 private:
  friend class EmulatedRun;
  Array& array() { return arrays_.current(); }
  void configure(const Configuration& configuration);
  std::vector<KernelFunction> kernels_of(const Configuration& configuration,
                                         const Program& program) const;
  Overlays overlays_of(const Configuration& configuration) const;
  bool runs(const PreparedStream& stream) const;
  void end_runs(Run::State state, const std::exception_ptr& error = nullptr);
  void disturb(const PreparedStream& next);
  void run_intruder(const Intruders::Stream& stream);
  void run_failed() { forget_configuration(); }
  void count_run(bool replay) {
    count_replay(replay, replay_memory_->bytes() + array().copy_bytes());
  }
  // Only streams that end well are run again as intruders.
  void run_succeeded(const std::shared_ptr<const PreparedStream>& stream,
                     std::span<const BufferRef> refs) {
    intruders_.remember(configuration(), stream, refs);
  }

  const arch::Geometry& geometry_;
  Arithmetic arithmetic_;
  std::string residency_name_;
  LoadedArrays arrays_;
  Array* series_ = nullptr;            // that is in one
  std::vector<EmulatedRun*> running_;  // they end together
  std::shared_ptr<ReplayMemory> replay_memory_ = std::make_shared<ReplayMemory>();
  // Timed runs; the array of the last ones.
  const Array* timed_ = nullptr;
  std::optional<arch::Timing> constants_;
  std::shared_ptr<Recorder> recorder_;
  // Residency test modes.
  Residency residency_;
  ReloadSchedule reloads_;
  Intruders intruders_;
  std::vector<int> initial_locks_;
};

std::vector<Argument> arguments_of(std::span<const BufferRef> refs) {
  std::vector<Argument> arguments;
  for (const BufferRef& ref : refs) {
    if (ref.buffer == nullptr) {
      arguments.push_back({nullptr, 0, false});
    } else {
      std::byte* memory = ref.buffer->host();
      arguments.push_back({memory ? memory + ref.offset : nullptr, ref.bytes, writes(ref.access)});
    }
  }
  return arguments;
}

// Executes in wait(), on the thread that waits.
class EmulatedRun final : public Run {
 public:
  EmulatedRun(EmulatedDevice& device, std::shared_ptr<const PreparedStream> stream,
              std::span<const BufferRef> refs)
      : device_(device), stream_(std::move(stream)), refs_(refs.begin(), refs.end()) {
    const std::vector<Argument> arguments = arguments_of(refs);
    const auto& prepared = static_cast<const ParsedStream&>(*stream_);
    Recordings& recordings = prepared.recordings;
    if (device_.residency_.replay && !device_.array().timed()) {
      rehearsal_.emplace(device_.array(), prepared.parsed, arguments, recordings);
      arguments_ = arguments;
    }
    device_.array().begin(prepared.parsed, arguments, &recordings);
    replays_ = device_.array().replaying();
    device_.running_ = {this};
  }
  // Beside those that run.
  EmulatedRun(EmulatedDevice& device, std::shared_ptr<const PreparedStream> stream,
              const RunReport& report)
      : device_(device), stream_(std::move(stream)), replays_(true), report_(report) {
    device_.running_.push_back(this);
  }
  ~EmulatedRun() override { cancel(); }

  State state() const override { return state_; }
  const PreparedStream& stream() const { return *stream_; }
  bool wait(std::chrono::nanoseconds timeout) override;
  void cancel() override {
    if (state_ != State::kRunning) return;
    device_.array().abort();
    device_.end_runs(State::kCancelled);
    device_.run_failed();
  }
  const RunReport& report() const override { return report_; }
  bool replays() const { return replays_; }
  void end(State state, std::exception_ptr error) {
    state_ = state;
    error_ = std::move(error);
  }

 private:
  bool ended() const;

  EmulatedDevice& device_;
  std::shared_ptr<const PreparedStream> stream_;
  std::vector<BufferRef> refs_;
  std::optional<Rehearsal> rehearsal_;
  std::vector<Argument> arguments_;  // if there was one
  bool replays_ = false;
  State state_ = State::kRunning;
  std::exception_ptr error_;  // that ended a run beside another one, which has thrown it
  RunReport report_;
};

bool EmulatedRun::ended() const {
  if (error_) std::rethrow_exception(error_);
  return state_ != State::kRunning;
}

bool EmulatedRun::wait(std::chrono::nanoseconds timeout) {
  if (ended()) return true;
  const bool forever = timeout == kForever;
  const auto deadline =
      forever ? Array::Deadline::max() : std::chrono::steady_clock::now() + timeout;
  try {
    if (!device_.array().resume(deadline)) return false;
    device_.running_.front()->report_ = device_.array().report();
    if (device_.residency_.on() && !device_.array().timed()) {
      check_locks(device_.array(), device_.initial_locks_);
    }
    if (rehearsal_ && replays_) rehearsal_->compare(arguments_);
    for (const EmulatedRun* run : device_.running_) device_.count_run(run->replays_);
  } catch (...) {
    device_.end_runs(State::kFailed, std::current_exception());
    error_ = nullptr;
    device_.run_failed();
    throw;
  }
  device_.end_runs(State::kDone);
  if (device_.residency_.intruder && !device_.array().timed())
    device_.run_succeeded(stream_, refs_);
  return true;
}

void EmulatedDevice::end_runs(Run::State state, const std::exception_ptr& error) {
  for (EmulatedRun* run : std::exchange(running_, {})) run->end(state, error);
}

// Replays have taken from it what they need: it may be patched.
bool EmulatedDevice::runs(const PreparedStream& stream) const {
  return std::ranges::any_of(running_, [&](const EmulatedRun* run) {
    return &run->stream() == &stream && !run->replays();
  });
}

DeviceInfo EmulatedDevice::info() const {
  DeviceInfo info;
  info.name = std::string("emu:") + geometry_.name;
  if (!residency_name_.empty()) info.name += "+" + residency_name_;
  info.generation = geometry_.generation;
  info.columns = geometry_.columns;
  info.clock_hz = geometry_.clock_hz;
  info.arithmetic = arithmetic_name(arithmetic_);
  return info;
}

void EmulatedDevice::do_load(const Configuration& configuration) {
  if (!running_.empty()) running_.front()->cancel();
  array().leave_put_off();
  const bool replays = replay_memory_->most() > 0;
  if (array().timed() || residency_.on() || !replays) return configure(configuration);
  if (arrays_.reload(configuration.id)) return;
  configure(configuration);
  arrays_.loaded(configuration.id);
}

std::vector<KernelFunction> EmulatedDevice::kernels_of(const Configuration& configuration,
                                                       const Program& program) const {
  std::vector<KernelFunction> functions;
  for (const std::string& name : program.functions) {
    const HostKernel kernel = find_host_kernel(name, geometry_.generation, arithmetic_);
    if (!kernel) {
      fail(ErrorKind::kKernel,
           "[load] configuration \"%s\" calls kernel \"%s\", which has no host build for %s",
           configuration.name.c_str(), name.c_str(), geometry_.name);
    }
    functions.push_back({kernel, false, kernel.declaration});
  }
  return functions;
}

Overlays EmulatedDevice::overlays_of(const Configuration& configuration) const {
  std::vector<OverlayProgram> overlays;
  for (const Configuration::Overlay& overlay : configuration.overlays) {
    overlays.push_back({{overlay.program, kernels_of(configuration, overlay.program)},
                        overlay.name,
                        npu::overlay_image(configuration, overlays.size()),
                        overlay.counters});
  }
  return std::make_shared<const std::vector<OverlayProgram>>(std::move(overlays));
}

void EmulatedDevice::configure(const Configuration& configuration) {
  // What a configuration does not write may be anything.
  array().configure(configuration.txn, residency_.on() ? kLeftOver : std::byte{0});
  const Overlays overlays = overlays_of(configuration);
  for (const Configuration::Core& core : configuration.cores) {
    if (core.program.code.empty() && !overlays->empty()) {
      array().attach(core.col, core.row, overlays);
    } else {
      array().attach(core.col, core.row, core.program, kernels_of(configuration, core.program));
    }
  }
  if (!residency_.on() || array().timed()) return;
  // Locks at rest: channels and cores have taken what they take before any stream runs.
  if (!array().return_to_rest()) {
    const std::vector<uint32_t> nothing =
        stream::Builder(geometry_.generation, geometry_.columns).finish();
    array().submit(std::as_bytes(std::span(nothing)), {});
  }
  initial_locks_ = lock_values(array());
}

std::unique_ptr<Run> EmulatedDevice::do_submit(std::shared_ptr<const PreparedStream> stream,
                                               std::span<const BufferRef> refs) {
  if (!running_.empty()) {
    fail(ErrorKind::kArgument, "[submit] a run has not ended yet; wait for it first");
  }
  try {
    if (residency_.on() && !array().timed()) disturb(*stream);
    return std::make_unique<EmulatedRun>(*this, std::move(stream), refs);
  } catch (...) {
    forget_configuration();  // the array may have begun: the next load configures it afresh
    throw;
  }
}

std::unique_ptr<Run> EmulatedDevice::do_submit_beside(std::shared_ptr<const PreparedStream> stream,
                                                      std::span<const BufferRef> refs) {
  if (!takes_more()) return nullptr;
  Recordings& recordings = static_cast<const ParsedStream&>(*stream).recordings;
  const std::optional<RunReport> report = array().join(arguments_of(refs), recordings);
  if (!report) return nullptr;
  return std::make_unique<EmulatedRun>(*this, std::move(stream), *report);
}

// What may happen between two submissions on a real NPU.
void EmulatedDevice::disturb(const PreparedStream& next) {
  if (residency_.intruder) {
    if (const Intruders::Stream* stream = intruders_.other_than(&next)) run_intruder(*stream);
  } else if (reloads_.next()) {
    configure(*configuration());
  }
}

void EmulatedDevice::run_intruder(const Intruders::Stream& stream) {
  const bool foreign = stream.configuration->id != configuration()->id;
  if (foreign) configure(*stream.configuration);
  std::vector<std::vector<std::byte>> copies = stream.arguments;
  std::vector<Argument> arguments;
  for (size_t i = 0; i < copies.size(); ++i) {
    arguments.push_back({copies[i].data(), copies[i].size(), stream.writable[i]});
  }
  array().begin(static_cast<const ParsedStream&>(*stream.prepared).parsed, arguments);
  array().resume(Array::Deadline::max());
  if (foreign) configure(*configuration());
}

void EmulatedDevice::start(const TimingOptions& options) {
  timed_ = &array();
  constants_.emplace(geometry_.generation, options.constants);
  recorder_ = options.trace ? std::make_shared<Recorder>(*options.trace) : nullptr;
  array().set_timing(&*constants_, options.data, recorder_.get(), options.kernels);
  array().set_watchdog_budget(kTimedWatchdogBudget);
}

void EmulatedDevice::stop() {
  array().set_timing(nullptr, true);
  array().set_watchdog_budget(Array::kWatchdogBudget);
  constants_.reset();
  recorder_ = nullptr;
}

}  // namespace

std::unique_ptr<Device> open_emulated_device(arch::Generation generation, Arithmetic arithmetic,
                                             const std::string& residency) {
  return std::make_unique<EmulatedDevice>(generation, arithmetic, residency);
}

}  // namespace npu::emulator
