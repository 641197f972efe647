// Running streams in a hardware context (context.h).
#include "context.h"

#include <cerrno>
#include <chrono>
#include <utility>

#include "failure.h"

namespace {

// More parts of one buffer than streams usually address.
constexpr size_t kMostParts = 64;

}  // namespace

const xrt::bo& npu_xrt_buffer::at(uint64_t offset) {
  const uint64_t from = offset + skew;
  if (from == 0) return bo;
  for (const Part& part : parts) {
    if (part.offset == from) return part.bo;
  }
  if (parts.size() >= kMostParts) parts.clear();
  parts.push_back({from, xrt::bo(bo, bo.size() - from, from)});
  return parts.back().bo;
}

namespace npu::xrt_module {

namespace {

// Arguments of a kernel that runs instruction streams: opcode, instructions, their count in words,
// then the buffers. Opcode 3 is a TXN stream.
constexpr int kOpcode = 0, kInstructions = 1, kCount = 2, kFirstBuffer = 3;
constexpr uint64_t kTransaction = 3;

// Index of the transaction's operation in the health data that the driver puts into a command that
// its watchdog ended (XRT, detail/ert.h: versions 0 and 1; 1 has the generation before it).
constexpr uint32_t kNotCaptured = 0xFFFFFFFF;

}  // namespace

Context::Context(const xrt::device& device, const xrt::xclbin& xclbin, const std::string& kernel,
                 size_t arguments, std::string path, HeapUse& use, const xrt::bo& unused)
    : path_(std::move(path)),
      arguments_(arguments),
      unused_(unused),
      context_(
          calling(NPU_XRT_CONTEXT, 0, [&] { return xrt::hw_context(device, xclbin.get_uuid()); })),
      kernel_(calling(NPU_XRT_XCLBIN, 0, [&] { return xrt::kernel(context_, kernel); })),
      pool_(device, static_cast<xrt::memory_group>(kernel_.group_id(kInstructions)), use),
      run_(calling(NPU_XRT_CONTEXT, 0, [&] { return xrt::run(kernel_); })),
      bound_(arguments) {
  run_.set_arg(kOpcode, kTransaction);
  for (size_t i = 0; i < arguments_; ++i) run_.set_arg(kFirstBuffer + static_cast<int>(i), unused_);
}

void Context::bind(size_t index, const npu_xrt_argument& argument) {
  const Bound wanted =
      argument.buffer == nullptr ? Bound{} : Bound{argument.buffer->serial, argument.offset};
  if (bound_[index] == wanted) return;
  const int number = kFirstBuffer + static_cast<int>(index);
  run_.set_arg(number, argument.buffer == nullptr ? unused_ : argument.buffer->at(argument.offset));
  bound_[index] = wanted;
}

void Context::submit(uint64_t stream, std::span<const npu_xrt_words> parts,
                     std::span<const npu_xrt_argument> arguments) {
  for (size_t i = arguments_; i < arguments.size(); ++i) {
    // XRT writes past its command for those.
    if (arguments[i].buffer != nullptr) {
      throw Failure{NPU_XRT_ARGUMENTS, 0, "the kernel declares fewer arguments", i + 1, arguments_};
    }
  }
  const xrt::bo& instructions = pool_.pin(stream, parts);
  try {
    calling(NPU_XRT_SUBMIT, arguments.size(), [&] {
      run_.set_arg(kInstructions, instructions);
      run_.set_arg(kCount, static_cast<uint32_t>(count_words(parts)));
      for (size_t i = 0; i < arguments_; ++i) {
        bind(i, i < arguments.size() ? arguments[i] : npu_xrt_argument{});
      }
      run_.start();
    });
  } catch (...) {
    pool_.unpin();
    throw;
  }
}

npu_xrt_outcome Context::wait(uint32_t milliseconds) {
  // wait() says TIMEOUT for the caller's limit, too, after which the command lives on; its state
  // tells the two apart.
  ert_cmd_state state = ERT_CMD_STATE_TIMEOUT;
  try {
    if (milliseconds != 0) state = run_.wait(std::chrono::milliseconds(milliseconds));
  } catch (const std::exception& error) {
    if (errno_of(error) != EINTR) throw;  // a signal: the caller waits again
  }
  if (state == ERT_CMD_STATE_TIMEOUT) state = run_.state();
  const npu_xrt_outcome out = outcome(state);
  if (state == ERT_CMD_STATE_COMPLETED) ++completed_;
  return out;
}

npu_xrt_outcome Context::outcome(ert_cmd_state state) const {
  npu_xrt_outcome out{static_cast<int32_t>(state), NPU_XRT_UNKNOWN_OPERATION, 0, 0, completed_};
  switch (state) {
    case ERT_CMD_STATE_NEW:
    case ERT_CMD_STATE_QUEUED:
    case ERT_CMD_STATE_SUBMITTED:
    case ERT_CMD_STATE_RUNNING:
      out.state = NPU_XRT_RUNNING;
      return out;
    case ERT_CMD_STATE_TIMEOUT:
      break;
    default:
      return out;
  }
  const ert_packet* packet = run_.get_ert_packet();
  const uint32_t* data = packet->data;
  const uint32_t* health = nullptr;  // operation, program counter, fatal error
  if (packet->count >= 4 && data[0] == 0) {
    health = data + 1;
  } else if (packet->count >= 5 && data[0] == 1 && data[1] == 0) {  // of AIE2 and AIE2P
    health = data + 2;
  }
  if (health != nullptr) {
    if (health[0] != kNotCaptured) out.operation = static_cast<int32_t>(health[0]);
    out.pc = health[1];
    out.fatal_error = health[2];
  }
  return out;
}

}  // namespace npu::xrt_module
