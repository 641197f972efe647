// A minimal device, as an example of how to write one. It has memory, loads configurations and
// "runs" streams without executing them: results keep their contents. It serves tests of everything
// above the device contract and measurements of host overhead.
#include "devices/null/null_device.h"

#include <vector>

namespace npu {

namespace {

// A real device allocates memory that its DMA reaches; where host and device do not share caches it
// overrides sync_to_device() and sync_from_device().
class NullBuffer final : public Buffer {
 public:
  NullBuffer(std::byte* memory, size_t bytes, Access access)
      : own_(memory == nullptr ? bytes : 0),
        memory_(memory == nullptr ? own_.data() : memory),
        bytes_(bytes),
        access_(access) {}
  std::byte* host() override { return memory_; }
  size_t bytes() const override { return bytes_; }
  Access access() const override { return access_; }

 private:
  std::vector<std::byte> own_;
  std::byte* memory_;
  size_t bytes_;
  Access access_;
};

// A real run is under way when it is made; wait() returns false when the timeout passes first, and
// throws the Error that the run ended with.
class NullRun final : public Run {
 public:
  explicit NullRun(uint64_t operations) { report_.operations = operations; }
  State state() const override { return state_; }
  bool wait(std::chrono::nanoseconds /*timeout*/) override {
    if (state_ == State::kRunning) state_ = State::kDone;
    return true;
  }
  void cancel() override {
    if (state_ == State::kRunning) state_ = State::kCancelled;
  }
  const RunReport& report() const override { return report_; }

 private:
  State state_ = State::kRunning;
  RunReport report_;
};

// A stream that was parsed once, with what this device needs to know of it.
class NullStream final : public PreparedStream {
 public:
  NullStream(std::vector<uint32_t> words, uint64_t count)
      : PreparedStream(std::move(words)), operations(count) {}
  const uint64_t operations;
};

class NullDevice final : public Device {
 public:
  explicit NullDevice(arch::Generation generation) : geometry_(arch::device_geometry(generation)) {}

  DeviceInfo info() const override {
    DeviceInfo info;
    info.name = std::string("null:") + geometry_.name;
    info.generation = geometry_.generation;
    info.columns = geometry_.columns;
    info.clock_hz = geometry_.clock_hz;
    info.computes = false;
    info.arithmetic = "none";
    return info;
  }
  std::unique_ptr<Buffer> allocate(size_t bytes) override {
    return std::make_unique<NullBuffer>(nullptr, bytes, Access::kReadWrite);
  }
  std::unique_ptr<Buffer> wrap(std::byte* memory, size_t bytes, Access access) override {
    return std::make_unique<NullBuffer>(memory, bytes, access);
  }

 protected:
  // Device::load() has checked the generation, and that it is not loaded already.
  void do_load(const Configuration& /*configuration*/) override {}
  std::shared_ptr<PreparedStream> do_prepare(std::vector<uint32_t> words,
                                             stream::Stream parsed) override {
    return std::make_shared<NullStream>(std::move(words), parsed.operations().size());
  }
  // Device::submit() has checked the arguments and that the stream is of the loaded configuration.
  std::unique_ptr<Run> do_submit(std::shared_ptr<const PreparedStream> stream,
                                 std::span<const BufferRef> /*refs*/) override {
    return std::make_unique<NullRun>(static_cast<const NullStream&>(*stream).operations);
  }

 private:
  const arch::Geometry& geometry_;
};

}  // namespace

std::unique_ptr<Device> open_null_device(arch::Generation generation) {
  return std::make_unique<NullDevice>(generation);
}

}  // namespace npu
