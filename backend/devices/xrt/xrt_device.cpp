// The device contract over the XRT module (xrt_device.h). Buffers and streams keep the connection
// alive; the device's contexts go when it does.
#include "devices/xrt/xrt_device.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <iterator>
#include <map>
#include <utility>

#include "devices/xrt/connection.h"
#include "devices/xrt/failures.h"
#include "devices/xrt/files.h"
#include "devices/xrt/setup.h"
#include "error.h"
#include "text.h"

namespace npu::xrt {

namespace {

using Clock = std::chrono::steady_clock;

// The driver's watchdog ends runs after 2 s (xdna-driver, tdr_timeout_ms). Switched off, or on
// versions of Linux before 6.17, there may be none.
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

using Shared = std::shared_ptr<Connection>;

class XrtBuffer final : public Buffer {
 public:
  XrtBuffer(Shared connection, npu_xrt_buffer* buffer, size_t bytes, Access access)
      : connection_(std::move(connection)),
        buffer_(buffer),
        host_(static_cast<std::byte*>(connection_->module().buffer_host(buffer))),
        bytes_(bytes),
        access_(access) {}
  ~XrtBuffer() override {
    if (!connection_->is_forked()) connection_->module().buffer_free(buffer_);
  }

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
    connection_->check_process("sync");
    npu_xrt_error error;
    if (connection_->module().buffer_sync(buffer_, to_device, offset, bytes, &error) !=
        NPU_XRT_OK) {
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

// A stream that the module runs in parts: a header, what every stream of the configuration does
// first (setup.h), its own operations.
class XrtStream final : public PreparedStream {
 public:
  XrtStream(Shared connection, std::shared_ptr<const Setup> setup, std::vector<uint32_t> words)
      : PreparedStream(std::move(words)),
        number(next_stream()),
        connection_(std::move(connection)),
        setup_(std::move(setup)),
        header_(header_after(*setup_, this->words())) {}
  ~XrtStream() override {
    if (!connection_->is_forked()) {
      connection_->module().stream_forget(connection_->device(), number);
    }
  }
  uint32_t operations() const { return header_[2]; }
  std::array<npu_xrt_words, 3> parts() const {
    const std::span<const uint32_t> own = words().subspan(kHeaderWords);
    return {{{header_.data(), header_.size()},
             {setup_->words.data(), setup_->words.size()},
             {own.data(), own.size()}}};
  }
  // All parts in one.
  stream::Stream whole() const;
  // A word of the stream as the module counts it.
  uint64_t patched(size_t word) const { return word + setup_->words.size(); }

  const uint64_t number;  // in the module

 private:
  Shared connection_;
  std::shared_ptr<const Setup> setup_;
  HeaderWords header_;
};

stream::Stream XrtStream::whole() const {
  std::vector<uint32_t> all;
  for (const npu_xrt_words& part : parts()) {
    all.insert(all.end(), part.words, part.words + part.count);
  }
  return stream::Stream::parse(std::as_bytes(std::span(all)));
}

class XrtRun;

class XrtDevice final : public Device {
 public:
  explicit XrtDevice(Shared connection)
      : connection_(std::move(connection)),
        geometry_(arch::device_geometry(connection_->identity().generation)),
        limit_(run_limit()) {}
  // Buffers and streams may keep the connection, but nothing runs any more.
  ~XrtDevice() override {
    if (!connection_->is_forked()) connection_->module().drop_all(connection_->device());
  }

  DeviceInfo info() const override;
  std::unique_ptr<Buffer> allocate(size_t bytes) override;
  std::unique_ptr<Buffer> wrap(std::byte* memory, size_t bytes, Access access) override;

 protected:
  std::vector<uint32_t> do_overlay_image(const Configuration& configuration,
                                         size_t overlay) override {
    return read_overlay(configuration, overlay);
  }
  void do_load(const Configuration& configuration) override;
  std::shared_ptr<PreparedStream> do_prepare(std::vector<uint32_t> words,
                                             stream::Stream /*parsed*/) override {
    return std::make_shared<XrtStream>(connection_, setup_, std::move(words));
  }
  bool do_patch(PreparedStream& stream, std::span<const StreamPatch> patches) override;
  std::unique_ptr<Run> do_submit(std::shared_ptr<const PreparedStream> stream,
                                 std::span<const BufferRef> refs) override;

 private:
  friend class XrtRun;
  void drop() {
    if (!connection_->is_forked()) connection_->module().drop(connection_->device());
  }
  // The context of a run that did not end well is not used again.
  void run_failed() {
    drop();
    forget_configuration();
  }

  Shared connection_;
  const arch::Geometry& geometry_;
  const std::chrono::milliseconds limit_;
  XrtRun* running_ = nullptr;
  std::map<std::string, std::shared_ptr<const Setup>> setups_;  // by artefact
  std::shared_ptr<const Setup> setup_;                          // of the loaded configuration
  std::vector<npu_xrt_argument> arguments_;                     // of a submission
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

  const XrtStream& stream() const { return static_cast<const XrtStream&>(*stream_); }

 private:
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
  connection.check_process("wait");
  if (connection.module().wait(connection.device(), static_cast<uint32_t>(timeout.count()),
                               &outcome, &error) != NPU_XRT_OK) {
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
  report_.operations = stream().operations();
  report_.array_ns = static_cast<uint64_t>(std::chrono::nanoseconds(Clock::now() - begin_).count());
  return true;
}

void XrtRun::end_badly(const npu_xrt_outcome& outcome, bool own_limit) {
  FailedRun failed;
  failed.configuration = device_.configuration()->name;
  failed.build = build_command(*device_.configuration());
  const stream::Stream whole = stream().whole();
  failed.stream = &whole;
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
  connection_->check_process("allocate");
  npu_xrt_buffer* buffer = nullptr;
  npu_xrt_error error;
  if (connection_->module().allocate(connection_->device(), bytes, &buffer, &error) != NPU_XRT_OK) {
    throw call_error("allocate", strf("%zu bytes of the NPU's memory", bytes), error);
  }
  return std::make_unique<XrtBuffer>(connection_, buffer, bytes, Access::kReadWrite);
}

std::unique_ptr<Buffer> XrtDevice::wrap(std::byte* memory, size_t bytes, Access access) {
  connection_->check_process("wrap");
  npu_xrt_buffer* buffer = nullptr;
  npu_xrt_error error;
  if (connection_->module().wrap(connection_->device(), memory, bytes, !writes(access), &buffer,
                                 &error) != NPU_XRT_OK) {
    throw call_error("wrap", strf("%zu bytes of the program's memory", bytes), error);
  }
  if (buffer == nullptr) return nullptr;
  return std::make_unique<XrtBuffer>(connection_, buffer, bytes, access);
}

void XrtDevice::do_load(const Configuration& configuration) {
  connection_->check_process("load");
  if (running_ != nullptr) running_->cancel();
  const std::string path = find_xclbin(configuration).string();
  check_overlays(configuration);
  uint32_t arguments = 0;
  npu_xrt_error error;
  if (connection_->module().load(connection_->device(), path.c_str(), &arguments, &error) !=
      NPU_XRT_OK) {
    throw call_error("load", path, error, build_command(configuration));
  }
  std::shared_ptr<const Setup>& setup = setups_[configuration.artefact()];
  if (!setup) setup = std::make_shared<const Setup>(setup_of(configuration));
  setup_ = setup;
}

bool XrtDevice::do_patch(PreparedStream& stream, std::span<const StreamPatch> patches) {
  connection_->check_process("patch");
  const auto& changed = static_cast<const XrtStream&>(stream);
  if (running_ != nullptr && &running_->stream() == &changed) return false;
  patches_.clear();
  for (const StreamPatch& patch : patches) {
    patches_.push_back({changed.patched(patch.word), patch.value});
  }
  npu_xrt_error error;
  if (connection_->module().stream_patch(connection_->device(), changed.number, patches_.data(),
                                         patches_.size(), &error) != NPU_XRT_OK) {
    throw call_error("patch", strf("%zu words of a stream", patches.size()), error);
  }
  return true;
}

std::unique_ptr<Run> XrtDevice::do_submit(std::shared_ptr<const PreparedStream> stream,
                                          std::span<const BufferRef> refs) {
  connection_->check_process("submit");
  if (running_ != nullptr) {
    fail(ErrorKind::kArgument, "[submit] a run has not ended yet; wait for it first");
  }
  arguments_.clear();
  for (const BufferRef& ref : refs) {
    auto* buffer = static_cast<XrtBuffer*>(ref.buffer);
    arguments_.push_back({buffer == nullptr ? nullptr : buffer->handle(), ref.offset});
  }
  const auto& prepared = static_cast<const XrtStream&>(*stream);
  const auto parts = prepared.parts();
  const uint64_t number = prepared.number;
  auto run = std::make_unique<XrtRun>(*this, std::move(stream));
  npu_xrt_error error;
  if (connection_->module().submit(connection_->device(), number, parts.data(), parts.size(),
                                   arguments_.data(), arguments_.size(), &error) != NPU_XRT_OK) {
    const std::string subject = strf("a stream of %u operations for \"%s\"",
                                     run->stream().operations(), configuration()->name.c_str());
    const std::string build = build_command(*configuration());
    run->abandon();
    // What the driver did not take is not on the array, but its context may be gone.
    if (error.what == NPU_XRT_SUBMIT) run_failed();
    throw call_error("submit", subject, error, build);
  }
  return run;
}

}  // namespace

std::unique_ptr<Device> open_xrt_device(std::optional<arch::Generation> wanted) {
  Shared connection = open_first_npu();
  const arch::Generation found = connection->identity().generation;
  if (wanted && *wanted != found) {
    fail(ErrorKind::kGeneration,
         "[device] \"xrt:%s\" was requested, the NPU of this machine is %s; use \"xrt:%s\"",
         arch::device_geometry(*wanted).name, arch::device_geometry(found).name,
         arch::device_geometry(found).name);
  }
  return std::make_unique<XrtDevice>(std::move(connection));
}

}  // namespace npu::xrt
