// Errors of XRT in words (failures.h).
#include "devices/xrt/failures.h"

#include <sys/resource.h>

#include <cerrno>
#include <cstring>

namespace npu::xrt {

namespace {

constexpr const char* kDoctor = "`npu doctor` names the first layer that is broken";

// ert_cmd_state of XRT's ert.h.
enum : int32_t { kError = 5, kAbort = 6, kTimeout = 8, kNoResponse = 9 };

// XRT's own words and the errno, as far as there are any.
std::string cause(const npu_xrt_error& error) {
  std::string text = error.text;
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  if (error.code == 0) return text;
  return text + (text.empty() ? "" : ", ") +
         strf("errno %d: %s", error.code, std::strerror(error.code));
}

std::string locked_memory_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "unknown";
  if (limit.rlim_cur == RLIM_INFINITY) return "unlimited";
  return strf("%llu KiB", static_cast<unsigned long long>(limit.rlim_cur >> 10));
}

// Buffers of the NPU are locked in memory (driver: MAP_LOCKED), and counted.
std::string memory_advice(int code) {
  if (code == EAGAIN || code == ENOMEM || code == EPERM) {
    return "the NPU's memory is locked, and this process may lock " + locked_memory_limit() +
           ": raise the limit (`ulimit -l unlimited`; services: LimitMEMLOCK=infinity)";
  }
  return kDoctor;
}

std::string context_advice(int code) {
  switch (code) {
    case ENOENT:
      return "the device heap is missing: close other programs on the NPU and try again";
    case EAGAIN:
    case ENOMEM:
    case EPERM:
      return memory_advice(ENOMEM);
    case ENODEV:
      return "no columns of the array are free: close other programs on the NPU";
    default:
      return "the driver has 6 contexts on npu1 and 16 on npu2 for all processes together: close "
             "other programs on the NPU, or update firmware and driver if there are none (npu "
             "doctor)";
  }
}

}  // namespace

Error call_error(const char* function, const std::string& subject, const npu_xrt_error& error) {
  const std::string why = cause(error);
  const auto message = [&](const std::string& found, const std::string& advice) {
    return strf("[%s] %s: %s (%s); %s", function, subject.c_str(), found.c_str(), why.c_str(),
                advice.c_str());
  };
  switch (error.what) {
    case NPU_XRT_NO_DEVICE:
      return {ErrorKind::kUnavailable, message("XRT opens no NPU", kDoctor)};
    case NPU_XRT_MEMORY:
      return {ErrorKind::kUnavailable, message(strf("no memory for %llu bytes",
                                                    static_cast<unsigned long long>(error.asked)),
                                               memory_advice(error.code))};
    case NPU_XRT_XCLBIN:
      return {ErrorKind::kFormat,
              message("XRT does not take the xclbin", "delete it and build it again (npu build)")};
    case NPU_XRT_CONTEXT:
      return {ErrorKind::kUnavailable,
              message("the driver refuses a hardware context", context_advice(error.code))};
    case NPU_XRT_HEAP:
      return {ErrorKind::kUnavailable,
              message(strf("no room for %llu bytes in the instruction heap of 64 MiB",
                           static_cast<unsigned long long>(error.asked)),
                      "submit smaller streams, or close other devices of this process")};
    case NPU_XRT_ARGUMENTS:
      return {ErrorKind::kArgument,
              strf("[%s] %s: argument %llu, the xclbin's kernel takes %llu; build the xclbin of "
                   "this version: npu build --all",
                   function, subject.c_str(), static_cast<unsigned long long>(error.asked),
                   static_cast<unsigned long long>(error.limit))};
    case NPU_XRT_SUBMIT:
      return {ErrorKind::kDevice,
              message("the driver does not take the command",
                      error.code == EAGAIN || error.code == ENOMEM ? memory_advice(error.code)
                                                                   : std::string(kDoctor))};
    default:
      return {ErrorKind::kDevice, message("XRT failed", kDoctor)};
  }
}

std::string operation_text(const stream::Stream& stream, int64_t index) {
  const size_t count = stream.operations().size();
  if (index < 0 || static_cast<uint64_t>(index) >= count) return "";
  // Line 0 of the disassembly is the header.
  const std::string text = stream::disassemble(stream);
  size_t from = 0;
  for (int64_t line = 0; line <= index && from != std::string::npos; ++line) {
    from = text.find('\n', from);
    if (from != std::string::npos) ++from;
  }
  if (from == std::string::npos) return "";
  std::string line = text.substr(from, text.find('\n', from) - from);
  line.erase(0, line.find_first_not_of(' '));
  return strf("operation %lld of %zu: %s", static_cast<long long>(index), count, line.c_str());
}

Error run_error(const FailedRun& run) {
  const std::string what = strf("a run of \"%s\"", run.configuration.c_str());
  const npu_xrt_outcome& outcome = run.outcome;
  if (outcome.state == kTimeout || run.own_limit) {
    std::string at = run.stream != nullptr ? operation_text(*run.stream, outcome.operation) : "";
    at = at.empty() ? "how far it came is not known" : "it had reached " + at;
    if (outcome.fatal_error != 0) {
      at += strf("; firmware error 0x%x at 0x%x", outcome.fatal_error, outcome.pc);
    }
    return {ErrorKind::kDeadlock,
            strf("[wait] %s was ended by %s after %.1f s: %s; the array waits for data or a lock "
                 "that never comes: build the xclbin again (npu build --device %s %s), then run "
                 "`npu selftest`; the next call starts on a new context",
                 what.c_str(), run.own_limit ? "NPU_XRT_TIMEOUT" : "the driver's watchdog",
                 run.seconds, at.c_str(), run.generation, run.configuration.c_str())};
  }
  if (outcome.state == kAbort) {
    return {ErrorKind::kDevice,
            strf("[wait] %s was aborted (ERT state 6): its context was torn down, as after another "
                 "error on the NPU, or firmware and driver do not fit together; call again, and if "
                 "it stays, run `npu doctor` and look at `dmesg`",
                 what.c_str())};
  }
  if (outcome.state == kError || outcome.state == kNoResponse) {
    return {ErrorKind::kDevice,
            strf("[wait] the firmware %s %s (ERT state %d); `dmesg | grep amdxdna` has its error "
                 "code: 0x100000x is the array's, 0x300000x an instruction or the PDI; build the "
                 "xclbin again (npu build --device %s %s)",
                 outcome.state == kError ? "refused" : "does not answer for", what.c_str(),
                 outcome.state, run.generation, run.configuration.c_str())};
  }
  return {ErrorKind::kDevice, strf("[wait] %s ended with ERT state %d, which is unknown; %s",
                                   what.c_str(), outcome.state, kDoctor)};
}

}  // namespace npu::xrt
