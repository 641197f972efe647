// Device contract on top of the emulated array: configurations bring their worker programs, kernels
// are the host builds of aie_kernels/.
#include "emulator/emulated_device.h"

#include <cstring>
#include <mutex>

#include "emulator/array.h"
#include "error.h"

namespace npu::emulator {

namespace {

class HostBuffer final : public Buffer {
 public:
  explicit HostBuffer(size_t bytes) : memory_(bytes) {}
  std::byte* data() override { return memory_.data(); }
  size_t bytes() const override { return memory_.size(); }

 private:
  std::vector<std::byte> memory_;
};

// Parsed, and checked against what runtime streams of one configuration may touch.
class CheckedStream final : public PreparedStream {
 public:
  CheckedStream(std::vector<uint32_t> words, const stream::Permissions& permissions, uint64_t id)
      : PreparedStream(std::move(words)),
        parsed(stream::Stream::parse(std::as_bytes(this->words()))),
        configuration_id(id) {
    stream::check_runtime_stream(parsed, permissions);
  }
  size_t bytes() const override {
    return 2 * PreparedStream::bytes() + parsed.operations().size() * sizeof(stream::Operation);
  }

  const stream::Stream parsed;
  const uint64_t configuration_id;
};

class EmulatedDevice final : public Device {
 public:
  EmulatedDevice(arch::Generation generation, Arithmetic arithmetic)
      : model_(arch::device_model(generation)), arithmetic_(arithmetic), array_(model_) {}

  DeviceInfo info() const override {
    return {
        std::string("emu:") + model_.name, model_.generation, model_.columns, model_.clock_hz, true,
        arithmetic_name(arithmetic_)};
  }
  DeviceCounters counters() const override { return counters_; }
  std::unique_ptr<Buffer> allocate(size_t bytes) override {
    return std::make_unique<HostBuffer>(bytes);
  }
  bool accepts_host_memory() const override { return true; }
  void load(const Configuration& configuration) override;
  RunReport submit(std::span<const uint32_t> stream, std::span<const BufferView> buffers) override;
  std::shared_ptr<const PreparedStream> prepare(std::vector<uint32_t> stream) override;
  RunReport submit_prepared(const PreparedStream& stream,
                            std::span<const BufferView> buffers) override;

 private:
  RunReport run(const stream::Stream& stream, std::span<const BufferView> buffers);
  const arch::DeviceModel& model_;
  Arithmetic arithmetic_;
  Array array_;
  DeviceCounters counters_;
  uint64_t loaded_id_ = 0;
  stream::Permissions permissions_;  // what runtime streams of the loaded configuration may touch
};

stream::Permissions permissions_of(const Configuration& configuration) {
  stream::Permissions permissions;
  for (const Configuration::Rtp& rtp : configuration.rtps) {
    permissions.rtp_words.push_back({rtp.col, rtp.row, rtp.address, 4});
  }
  for (const Configuration::RtpLock& lock : configuration.rtp_locks) {
    permissions.rtp_locks.push_back({lock.col, lock.row, lock.lock});
  }
  return permissions;
}

void EmulatedDevice::load(const Configuration& configuration) {
  if (loaded_id_ == configuration.id && configuration.id != 0) return;
  if (configuration.generation != model_.generation) {
    fail(ErrorKind::kDevice, "[load] configuration \"%s\" is for %s, this device is %s",
         configuration.name.c_str(), arch::device_model(configuration.generation).name,
         model_.name);
  }
  loaded_id_ = 0;
  array_.configure(configuration.txn);
  for (const Configuration::Core& core : configuration.cores) {
    std::vector<KernelFunction> functions;
    for (const std::string& name : core.program.functions) {
      const HostKernel kernel = find_host_kernel(name, model_.generation, arithmetic_);
      if (!kernel) {
        fail(ErrorKind::kKernel,
             "[load] configuration \"%s\" calls kernel \"%s\", which has no host build for %s",
             configuration.name.c_str(), name.c_str(), model_.name);
      }
      functions.push_back({kernel, false, kernel.declaration});
    }
    array_.attach(core.col, core.row, core.program, std::move(functions));
  }
  permissions_ = permissions_of(configuration);
  loaded_id_ = configuration.id;
  ++counters_.configuration_loads;
}

RunReport EmulatedDevice::submit(std::span<const uint32_t> words,
                                 std::span<const BufferView> buffers) {
  if (loaded_id_ == 0) fail(ErrorKind::kArgument, "[submit] no configuration is loaded");
  const stream::Stream parsed = stream::Stream::parse(std::as_bytes(words));
  stream::check_runtime_stream(parsed, permissions_);
  return run(parsed, buffers);
}

std::shared_ptr<const PreparedStream> EmulatedDevice::prepare(std::vector<uint32_t> words) {
  if (loaded_id_ == 0) fail(ErrorKind::kArgument, "[prepare] no configuration is loaded");
  return std::make_shared<const CheckedStream>(std::move(words), permissions_, loaded_id_);
}

RunReport EmulatedDevice::submit_prepared(const PreparedStream& prepared,
                                          std::span<const BufferView> buffers) {
  if (loaded_id_ == 0) fail(ErrorKind::kArgument, "[submit] no configuration is loaded");
  const auto* checked = dynamic_cast<const CheckedStream*>(&prepared);
  // One of another device or configuration is treated like any stream.
  if (!checked || checked->configuration_id != loaded_id_) {
    return submit(prepared.words(), buffers);
  }
  return run(checked->parsed, buffers);
}

RunReport EmulatedDevice::run(const stream::Stream& parsed, std::span<const BufferView> buffers) {
  ++counters_.submissions;
  try {
    return array_.submit(parsed, buffers);
  } catch (...) {
    loaded_id_ = 0;  // the array stopped midway; the next load configures it afresh
    throw;
  }
}

}  // namespace

std::unique_ptr<Device> open_emulated_device(arch::Generation generation, Arithmetic arithmetic) {
  return std::make_unique<EmulatedDevice>(generation, arithmetic);
}

}  // namespace npu::emulator
