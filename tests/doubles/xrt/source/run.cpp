// Runs of the stand-in: a stream is taken from the device copy of its instruction BO when it starts
// and executed on device copies of the arguments while somebody waits (../control.h).
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "error.h"
#include "machine.h"

namespace xrt {

using xrt_double::Fault;
using xrt_double::machine;
using xrt_double::refuse;
using xrt_double::Storage;

namespace {

constexpr size_t kOpcode = 0, kInstructions = 1, kCount = 2, kFirstBuffer = 3;
constexpr uint64_t kTransaction = 3;

}  // namespace

class run_impl : public Dependent {
 public:
  explicit run_impl(std::shared_ptr<hw_context_impl> of)
      : Dependent(std::move(of)), buffers_(context->xclbin->buffers + 3), set_(buffers_.size()) {
    ++machine().counters.runs;
    packet_words_[0] = 0;
    packet()->state = ERT_CMD_STATE_NEW;
  }
  ~run_impl() {
    run_ = nullptr;  // cancels what is under way
    if (reading_) --reading_->readers;
    --machine().counters.runs;
  }

  void set(int index, const void* value, size_t bytes) {
    check(index, index == static_cast<int>(kOpcode) || index == static_cast<int>(kCount));
    uint64_t& to = index == static_cast<int>(kOpcode) ? opcode_ : count_;
    to = 0;
    std::memcpy(&to, value, std::min(bytes, sizeof to));
    set_[static_cast<size_t>(index)] = true;
  }
  void set(int index, const bo& buffer) {
    check(index,
          index == static_cast<int>(kInstructions) || index >= static_cast<int>(kFirstBuffer));
    const bo_impl& from = *buffer.get_handle();
    buffers_[static_cast<size_t>(index)] = {from.storage, from.offset, from.bytes};
    set_[static_cast<size_t>(index)] = true;
  }

  void start();
  ert_cmd_state wait(std::chrono::milliseconds limit);
  ert_cmd_state state() {
    advance(std::chrono::milliseconds(1));
    return now();
  }
  ert_packet* packet() { return reinterpret_cast<ert_packet*>(packet_words_.data()); }

 private:
  // A BO as an argument; the run does not keep it alive.
  struct Bound {
    std::weak_ptr<Storage> storage;
    size_t offset = 0, bytes = 0;
  };

  ert_cmd_state now() { return static_cast<ert_cmd_state>(packet()->state); }
  bool under_way() { return now() == ERT_CMD_STATE_RUNNING; }
  void check(int index, bool right_type);
  std::vector<uint32_t> instructions();
  std::vector<npu::BufferRef> arguments();
  void end(ert_cmd_state state);
  void fail_with(ert_cmd_state state, uint32_t operation = 0xFFFFFFFF, uint32_t version = 1);
  void advance(std::chrono::milliseconds limit);

  std::vector<Bound> buffers_;
  std::vector<bool> set_;
  uint64_t opcode_ = 0, count_ = 0;
  std::optional<xrt_double::Injected> fault_;
  std::array<uint32_t, 9> packet_words_{};
  // Of the run under way.
  std::vector<std::shared_ptr<Storage>> held_;
  std::shared_ptr<Storage> reading_;  // instructions
  std::vector<std::unique_ptr<npu::Buffer>> wrapped_;
  std::vector<uint32_t> words_;
  std::unique_ptr<npu::Run> run_;
};

void run_impl::check(int index, bool right_type) {
  if (index < 0 || static_cast<size_t>(index) >= buffers_.size()) {
    machine().violation("argument " + std::to_string(index) + " of a kernel that declares " +
                        std::to_string(buffers_.size()) + ": a crash");
    refuse(EINVAL, "no such argument");
  }
  if (!right_type) refuse(EINVAL, "argument of another type");
  if (under_way()) machine().violation("an argument of a run that is under way was set");
}

std::vector<uint32_t> run_impl::instructions() {
  const Bound& bound = buffers_[kInstructions];
  const std::shared_ptr<Storage> storage = bound.storage.lock();
  if (!storage) {
    machine().violation("the instruction BO of a run was freed");
    return {};
  }
  if (!reading_) {
    reading_ = storage;
    ++storage->readers;
  }
  if (!storage->instructions || count_ * 4 > bound.bytes) {
    machine().violation("instructions outside a BO of the device heap");
    return {};
  }
  std::vector<uint32_t> words(count_);
  std::memcpy(words.data(), storage->device.data() + bound.offset, count_ * 4);
  return words;
}

std::vector<npu::BufferRef> run_impl::arguments() {
  std::vector<npu::BufferRef> refs;
  for (size_t i = kFirstBuffer; i < buffers_.size(); ++i) {
    const Bound& bound = buffers_[i];
    const std::shared_ptr<Storage> storage = bound.storage.lock();
    if (!storage || storage->instructions) {
      machine().violation("argument " + std::to_string(i) + " is no BO of data, or was freed");
      refs.emplace_back();
      continue;
    }
    held_.push_back(storage);
    const npu::Access access = storage->read_only ? npu::Access::kRead : npu::Access::kReadWrite;
    wrapped_.push_back(
        machine().emulator().wrap(storage->device.data() + bound.offset, bound.bytes, access));
    refs.push_back({wrapped_.back().get(), 0, bound.bytes, access});
  }
  return refs;
}

void run_impl::start() {
  xrt_double::Machine& m = machine();
  if (under_way()) {
    m.violation("a run was started twice");
    refuse(EBUSY, "the run is under way");
  }
  for (size_t i = 0; i < set_.size(); ++i) {
    if (!set_[i]) m.violation("argument " + std::to_string(i) + " was never set");
  }
  ++m.counters.starts;
  fault_.reset();
  if (!m.injected.empty()) {
    fault_ = m.injected.front();
    m.injected.pop_front();
    if (fault_->fault == Fault::kRefusedStart) {
      refuse(static_cast<int>(std::exchange(fault_, std::nullopt)->number),
             "DRM_IOCTL_AMDXDNA_EXEC_CMD IOCTL failed");
    }
  }
  end(ERT_CMD_STATE_RUNNING);
  if (context->dead && !fault_) fault_ = {Fault::kAbort, 0, 0};
  if (fault_) return;
  if (m.settings.ends_at_once) return end(ERT_CMD_STATE_COMPLETED);
  try {
    words_ = instructions();
    std::vector<npu::BufferRef> refs = arguments();
    if (opcode_ != kTransaction) npu::fail(npu::ErrorKind::kFormat, "[start] opcode is not 3");
    npu::Device& emulator = m.emulator();
    emulator.load(context->xclbin->configuration);
    while (refs.size() > emulator.info().max_arguments) refs.pop_back();
    run_ = emulator.submit(emulator.prepare(words_), refs);
  } catch (const npu::Error& error) {
    m.last_failure = error.what();
    fault_ = {Fault::kFirmware, 0, 0};
  }
}

void run_impl::end(ert_cmd_state state) {
  run_ = nullptr;
  if (!words_.empty() && state == ERT_CMD_STATE_COMPLETED && instructions() != words_) {
    machine().violation("the instructions of a run that was under way were changed");
  }
  if (const auto read = std::exchange(reading_, nullptr)) --read->readers;
  words_.clear();
  wrapped_.clear();
  held_.clear();
  packet()->state = static_cast<uint32_t>(state) & 0xF;
}

void run_impl::fail_with(ert_cmd_state state, uint32_t operation, uint32_t version) {
  end(state);
  context->dead = true;
  if (state != ERT_CMD_STATE_TIMEOUT) return;
  // Health data of the AIE2 generation: version, (generation,) operation, program counter, error.
  uint32_t* data = packet()->data;
  size_t at = 0;
  data[at++] = version;
  if (version == 1) data[at++] = 0;
  for (const uint32_t word : {operation, 0x1234u, 0u, 0u, 0u}) data[at++] = word;
  packet()->count = static_cast<uint32_t>(at) & 0x7FF;
}

void run_impl::advance(std::chrono::milliseconds limit) {
  if (!under_way()) return;
  if (fault_) {
    switch (fault_->fault) {
      case Fault::kWatchdog:
        return fail_with(ERT_CMD_STATE_TIMEOUT, fault_->number, fault_->version);
      case Fault::kAbort:
        return fail_with(ERT_CMD_STATE_ABORT);
      case Fault::kFirmware:
        return fail_with(ERT_CMD_STATE_ERROR);
      case Fault::kState:
        return fail_with(static_cast<ert_cmd_state>(fault_->number));
      default:
        std::this_thread::sleep_for(limit);
        return;
    }
  }
  try {
    if (run_->wait(limit)) end(ERT_CMD_STATE_COMPLETED);
  } catch (const npu::Error& error) {
    machine().last_failure = error.what();
    const bool hangs =
        error.kind() == npu::ErrorKind::kDeadlock || error.kind() == npu::ErrorKind::kUnfinished;
    fail_with(hangs ? ERT_CMD_STATE_TIMEOUT : ERT_CMD_STATE_ERROR);
  }
}

ert_cmd_state run_impl::wait(std::chrono::milliseconds limit) {
  if (limit.count() == 0) {
    if (fault_ && fault_->fault == Fault::kHang)
      machine().violation("wait(0) for a run that hangs");
    while (under_way() && !(fault_ && fault_->fault == Fault::kHang)) {
      advance(std::chrono::milliseconds(100));
    }
    return now();
  }
  if (under_way()) {
    xrt_double::refuse_if(machine().waits, "DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT IOCTL failed");
  }
  advance(limit);
  return under_way() ? ERT_CMD_STATE_TIMEOUT : now();
}

run::run(const kernel& kernel)
    : handle_(std::make_shared<run_impl>(kernel.get_handle()->context)) {}

void run::start() { handle_->start(); }

ert_cmd_state run::wait(const std::chrono::milliseconds& timeout) const {
  return handle_->wait(timeout);
}

ert_cmd_state run::state() const { return handle_->state(); }

ert_packet* run::get_ert_packet() const { return handle_->packet(); }

void run::set_arg_at_index(int index, const void* value, size_t bytes) {
  handle_->set(index, value, bytes);
}

void run::set_arg_at_index(int index, const bo& buffer) { handle_->set(index, buffer); }

}  // namespace xrt
