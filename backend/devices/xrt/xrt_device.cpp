// The device contract over the XRT module (xrt_device.h). Buffers and streams keep the connection
// alive; the device's contexts go when it does.
#include "devices/xrt/xrt_device.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <utility>

#include "devices/xrt/failures.h"
#include "devices/xrt/files.h"
#include "devices/xrt/module.h"
#include "error.h"
#include "text.h"

namespace npu::xrt {

namespace {

using Clock = std::chrono::steady_clock;

// The driver's watchdog ends runs after 2 s; some kernels have none (xdna-driver, tdr_timeout_ms).
constexpr std::chrono::seconds kTimeout{30};
// Ctrl-C, cancellation and the limit are looked at in between.
constexpr std::chrono::milliseconds kSlice{100};

std::chrono::milliseconds run_limit() {
  const char* chosen = std::getenv("NPU_XRT_TIMEOUT");
  if (chosen == nullptr || *chosen == '\0') return kTimeout;
  const std::optional<int64_t> seconds = parse_integer(chosen);
  if (!seconds || *seconds < 1 || *seconds > 86400) {
    fail(ErrorKind::kArgument, "[device] NPU_XRT_TIMEOUT is %s; use seconds from 1 to 86400",
         quoted(chosen).c_str());
  }
  return std::chrono::seconds(*seconds);
}

// An open NPU of the module.
struct Connection {
  explicit Connection(const npu_xrt_module& m) : module(m) {
    npu_xrt_error error;
    if (module.open(0, &device, &error) != NPU_XRT_OK) {
      throw call_error("device", "\"xrt\" was requested", error);
    }
  }
  ~Connection() { module.close(device); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  const npu_xrt_module& module;
  npu_xrt_device* device = nullptr;
};
using Shared = std::shared_ptr<Connection>;

class XrtBuffer final : public Buffer {
 public:
  XrtBuffer(Shared connection, npu_xrt_buffer* buffer, size_t bytes, Access access)
      : connection_(std::move(connection)),
        buffer_(buffer),
        host_(static_cast<std::byte*>(connection_->module.buffer_host(buffer))),
        bytes_(bytes),
        access_(access) {}
  ~XrtBuffer() override { connection_->module.buffer_free(buffer_); }

  std::byte* host() override { return host_; }
  size_t bytes() const override { return bytes_; }
  Access access() const override { return access_; }
  void sync_to_device(size_t offset, size_t bytes) override { sync(true, offset, bytes); }
  void sync_from_device(size_t offset, size_t bytes) override { sync(false, offset, bytes); }
  npu_xrt_buffer* handle() const { return buffer_; }

 private:
  void sync(bool to_device, size_t offset, size_t bytes) {
    if (offset > bytes_ || bytes > bytes_ - offset) {
      fail(ErrorKind::kOutOfRange,
           "[sync] bytes %zu to %zu of a buffer of %zu bytes; pass a range inside the buffer",
           offset, offset + bytes, bytes_);
    }
    npu_xrt_error error;
    if (connection_->module.buffer_sync(buffer_, to_device, offset, bytes, &error) != NPU_XRT_OK) {
      throw call_error("sync", strf("%zu bytes", bytes), error);
    }
  }

  Shared connection_;
  npu_xrt_buffer* buffer_;
  std::byte* host_;
  size_t bytes_;
  Access access_;
};

uint64_t next_stream() {
  static std::atomic<uint64_t> number{1};
  return number++;
}

class XrtStream final : public PreparedStream {
 public:
  XrtStream(Shared connection, std::vector<uint32_t> words, stream::Stream stream)
      : PreparedStream(std::move(words)),
        parsed(std::move(stream)),
        number(next_stream()),
        connection_(std::move(connection)) {}
  ~XrtStream() override { connection_->module.stream_forget(connection_->device, number); }
  size_t bytes() const override {
    return 2 * PreparedStream::bytes() + parsed.operations().size() * sizeof(stream::Operation);
  }

  stream::Stream parsed;
  const uint64_t number;  // in the module

 private:
  Shared connection_;
};

class XrtRun;

class XrtDevice final : public Device {
 public:
  XrtDevice(Shared connection, arch::Generation generation)
      : connection_(std::move(connection)),
        geometry_(arch::device_geometry(generation)),
        limit_(run_limit()) {}
  ~XrtDevice() override { connection_->module.drop(connection_->device); }

  DeviceInfo info() const override;
  std::unique_ptr<Buffer> allocate(size_t bytes) override;
  std::unique_ptr<Buffer> wrap(std::byte* memory, size_t bytes, Access access) override;

 protected:
  void do_load(const Configuration& configuration) override;
  std::shared_ptr<PreparedStream> do_prepare(std::vector<uint32_t> words,
                                             stream::Stream parsed) override {
    return std::make_shared<XrtStream>(connection_, std::move(words), std::move(parsed));
  }
  bool do_patch(PreparedStream& stream, std::span<const StreamPatch> patches) override;
  std::unique_ptr<Run> do_submit(std::shared_ptr<const PreparedStream> stream,
                                 std::span<const BufferRef> refs) override;

 private:
  friend class XrtRun;
  // The context of a run that did not end well is not used again.
  void run_failed() {
    connection_->module.drop(connection_->device);
    forget_configuration();
  }

  Shared connection_;
  const arch::Geometry& geometry_;
  const std::chrono::milliseconds limit_;
  XrtRun* running_ = nullptr;
  std::vector<npu_xrt_argument> arguments_;  // of a submission
  std::vector<npu_xrt_patch> patches_;
};

class XrtRun final : public Run {
 public:
  XrtRun(XrtDevice& device, std::shared_ptr<const PreparedStream> stream)
      : device_(device), stream_(std::move(stream)), begin_(Clock::now()) {
    device_.running_ = this;
  }
  ~XrtRun() override { cancel(); }

  State state() const override { return state_; }
  bool wait(std::chrono::nanoseconds timeout) override;
  void cancel() override {
    if (state_ != State::kRunning) return;
    end(State::kCancelled);
    device_.run_failed();
  }
  const RunReport& report() const override { return report_; }
  // It never started.
  void abandon() { end(State::kFailed); }

 private:
  const stream::Stream& stream() const { return static_cast<const XrtStream&>(*stream_).parsed; }
  void end(State state) {
    state_ = state;
    device_.running_ = nullptr;
  }
  npu_xrt_outcome ask(std::chrono::milliseconds timeout);
  [[noreturn]] void end_badly(const npu_xrt_outcome& outcome, bool own_limit);

  XrtDevice& device_;
  std::shared_ptr<const PreparedStream> stream_;
  const Clock::time_point begin_;
  State state_ = State::kRunning;
  RunReport report_;
};

npu_xrt_outcome XrtRun::ask(std::chrono::milliseconds timeout) {
  const Connection& connection = *device_.connection_;
  npu_xrt_outcome outcome{};
  npu_xrt_error error;
  if (connection.module.wait(connection.device, static_cast<uint32_t>(timeout.count()), &outcome,
                             &error) != NPU_XRT_OK) {
    end(State::kFailed);
    device_.run_failed();
    throw call_error("wait", "a run", error);
  }
  return outcome;
}

bool XrtRun::wait(std::chrono::nanoseconds timeout) {
  using std::chrono::milliseconds;
  if (state_ != State::kRunning) return true;
  const bool forever = timeout == kForever;
  const Clock::time_point from = Clock::now(), last = begin_ + device_.limit_;
  for (;;) {
    const auto now = Clock::now();
    const auto left = forever ? std::chrono::nanoseconds(kSlice) : timeout - (now - from);
    // XRT waits for whole milliseconds, and 0 for ever.
    const auto slice = std::clamp(std::chrono::ceil<milliseconds>(left), milliseconds(0), kSlice);
    const npu_xrt_outcome outcome = ask(slice);
    if (outcome.state == NPU_XRT_COMPLETED) break;
    if (outcome.state != NPU_XRT_RUNNING) end_badly(outcome, false);
    if (Clock::now() >= last) end_badly(outcome, true);
    if (!forever && Clock::now() - from >= timeout) return false;
  }
  end(State::kDone);
  report_.operations = stream().operations().size();
  report_.array_ns = static_cast<uint64_t>(std::chrono::nanoseconds(Clock::now() - begin_).count());
  return true;
}

void XrtRun::end_badly(const npu_xrt_outcome& outcome, bool own_limit) {
  FailedRun failed;
  failed.configuration = device_.configuration()->name;
  failed.generation = device_.geometry_.name;
  failed.stream = &stream();
  failed.outcome = outcome;
  failed.own_limit = own_limit;
  failed.seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
  end(State::kFailed);
  device_.run_failed();
  throw run_error(failed);
}

DeviceInfo XrtDevice::info() const {
  DeviceInfo info;
  info.name = std::string("xrt:") + geometry_.name;
  info.generation = geometry_.generation;
  info.columns = geometry_.columns;
  info.clock_hz = geometry_.clock_hz;
  info.emulated = false;
  info.arithmetic = "hardware";
  return info;
}

std::unique_ptr<Buffer> XrtDevice::allocate(size_t bytes) {
  npu_xrt_buffer* buffer = nullptr;
  npu_xrt_error error;
  if (connection_->module.allocate(connection_->device, bytes, &buffer, &error) != NPU_XRT_OK) {
    throw call_error("allocate", strf("%zu bytes of the NPU's memory", bytes), error);
  }
  return std::make_unique<XrtBuffer>(connection_, buffer, bytes, Access::kReadWrite);
}

std::unique_ptr<Buffer> XrtDevice::wrap(std::byte* memory, size_t bytes, Access access) {
  npu_xrt_buffer* buffer = nullptr;
  npu_xrt_error error;
  if (connection_->module.wrap(connection_->device, memory, bytes, !writes(access), &buffer,
                               &error) != NPU_XRT_OK) {
    throw call_error("wrap", strf("%zu bytes of the program's memory", bytes), error);
  }
  if (buffer == nullptr) return nullptr;
  return std::make_unique<XrtBuffer>(connection_, buffer, bytes, access);
}

void XrtDevice::do_load(const Configuration& configuration) {
  if (running_ != nullptr) running_->cancel();
  const std::string path = find_xclbin(configuration).string();
  uint32_t arguments = 0;
  npu_xrt_error error;
  if (connection_->module.load(connection_->device, path.c_str(), &arguments, &error) !=
      NPU_XRT_OK) {
    throw call_error("load", path, error);
  }
}

bool XrtDevice::do_patch(PreparedStream& stream, std::span<const StreamPatch> patches) {
  auto& changed = static_cast<XrtStream&>(stream);
  patches_.clear();
  for (const StreamPatch& patch : patches) {
    changed.parsed.patch(patch.word, patch.value);
    patches_.push_back({patch.word, patch.value});
  }
  npu_xrt_error error;
  if (connection_->module.stream_patch(connection_->device, changed.number, patches_.data(),
                                       patches_.size(), &error) != NPU_XRT_OK) {
    throw call_error("patch", strf("%zu words of a stream", patches.size()), error);
  }
  return true;
}

std::unique_ptr<Run> XrtDevice::do_submit(std::shared_ptr<const PreparedStream> stream,
                                          std::span<const BufferRef> refs) {
  if (running_ != nullptr) {
    fail(ErrorKind::kArgument, "[submit] a run has not ended yet; wait for it first");
  }
  arguments_.clear();
  for (const BufferRef& ref : refs) {
    auto* buffer = static_cast<XrtBuffer*>(ref.buffer);
    arguments_.push_back({buffer == nullptr ? nullptr : buffer->handle(), ref.offset, ref.bytes});
  }
  const std::span<const uint32_t> words = stream->words();
  const uint64_t number = static_cast<const XrtStream&>(*stream).number;
  auto run = std::make_unique<XrtRun>(*this, std::move(stream));
  npu_xrt_error error;
  if (connection_->module.submit(connection_->device, number, words.data(), words.size(),
                                 arguments_.data(), arguments_.size(), &error) != NPU_XRT_OK) {
    const std::string subject =
        strf("a stream of %zu words for \"%s\"", words.size(), configuration()->name.c_str());
    run->abandon();
    // What the driver did not take is not on the array, but its context may be gone.
    if (error.what == NPU_XRT_SUBMIT) run_failed();
    throw call_error("submit", subject, error);
  }
  return run;
}

arch::Generation generation_of_device(const Connection& connection) {
  npu_xrt_info about;
  npu_xrt_error error;
  if (connection.module.info(connection.device, &about, &error) != NPU_XRT_OK) {
    throw call_error("device", "the name of the NPU", error);
  }
  const std::optional<arch::Generation> generation = generation_of(about.name);
  if (!generation) {
    fail(ErrorKind::kUnavailable,
         "[device] \"xrt\" was requested, and XRT calls the NPU %s, which this version does not "
         "know; update npu-xdna, or use \"emu:npu2\"",
         quoted(about.name).c_str());
  }
  return *generation;
}

}  // namespace

std::optional<arch::Generation> generation_of(const std::string& name) {
  // Names of the driver's firmware tables and of xrt-smi; npu4 to npu6 are all AIE2P.
  const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  if (has("npu1") || has("Phoenix") || has("Hawk Point")) return arch::Generation::kNpu1;
  for (const char* part : {"npu4", "npu5", "npu6", "Strix", "Krackan", "Gorgon"}) {
    if (has(part)) return arch::Generation::kNpu2;
  }
  return std::nullopt;
}

std::unique_ptr<Device> open_xrt_device(std::optional<arch::Generation> wanted) {
  auto connection = std::make_shared<Connection>(load_module());
  const arch::Generation found = generation_of_device(*connection);
  if (wanted && *wanted != found) {
    fail(ErrorKind::kUnavailable,
         "[device] \"xrt:%s\" was requested, the NPU of this machine is %s; use \"xrt:%s\"",
         arch::device_geometry(*wanted).name, arch::device_geometry(found).name,
         arch::device_geometry(found).name);
  }
  return std::make_unique<XrtDevice>(std::move(connection), found);
}

}  // namespace npu::xrt
