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
bool is_lock_limit(int code) { return code == EAGAIN || code == ENOMEM || code == EPERM; }

std::string memory_advice(int code) {
  if (is_lock_limit(code)) {
    return "the NPU's memory is locked, and this process may lock " + locked_memory_limit() +
           ": raise the limit (`ulimit -l unlimited`; services: LimitMEMLOCK=infinity)";
  }
  return kDoctor;
}

bool mentions(const npu_xrt_error& error, const char* words) {
  return std::strstr(error.text, words) != nullptr;
}

// What to do about a context that the driver refuses; "" if that is not known.
std::string context_advice(const npu_xrt_error& error) {
  constexpr const char* kNone = "close other programs on the NPU";
  const bool unsupported = error.code == EOPNOTSUPP || error.code == ENOTTY;
  if (error.code == ENOSPC || mentions(error, "can't expand further") ||
      (unsupported && mentions(error, "CREATE_BO"))) {
    return "the NPU's heap has no room for it: end other users of it in this process";
  }
  if (mentions(error, NPU_XRT_NO_CONTEXT_LEFT)) {
    return std::string("no hardware context is left: ") + kNone;
  }
  if (mentions(error, "GET_INFO")) return "";
  switch (error.code) {
    case ENOENT:
      return "its heap for command streams is missing: open the device again";
    case EAGAIN:
    case ENOMEM:
    case EPERM:
      return memory_advice(error.code);
    case ENODEV:
      return std::string("no columns of the array are free: ") + kNone;
    case EINVAL:
      return std::string(
                 "the driver has 6 contexts on npu1 and 16 on npu2 for all processes "
                 "together, or the xclbin wants columns that the NPU does not have: ") +
             kNone + ", or update firmware and driver if there are none (npu doctor)";
    default:
      return "";
  }
}

// A request that the driver does not know, which is older than XRT then. EOPNOTSUPP means other
// things with other requests.
bool is_version_mismatch(const npu_xrt_error& error) {
  const bool asking = mentions(error, "GET_INFO") || mentions(error, "GET_ARRAY");
  if (asking) return error.code == EOPNOTSUPP || error.code == EINVAL;
  return error.what == NPU_XRT_SUBMIT && error.code == EOPNOTSUPP;
}

// Of a node /dev/accel/accelN that does not open (xdna-driver, amdxdna_drm_open).
std::string node_advice(int code) {
  constexpr const char* kSva =
      "the driver cannot give the NPU the memory of this process (SVA): switch the IOMMU on in the "
      "BIOS, boot with \"amd_iommu=on iommu=pt\"";
  switch (code) {
    case EACCES:
      return "this user may not: `sudo usermod -aG render $USER` and log in again";
    case EPERM:
      return "the system denies access; in a container pass --device /dev/accel/accel0";
    case ENOENT:
      return "the node is missing: `sudo modprobe amdxdna`";
    case ENODEV:
    case EINVAL:
      return kSva;
    case EOPNOTSUPP:
      return std::string(kSva) + "; a container or virtual machine may have no SVA at all";
    default:
      return "";
  }
}

// Opening an NPU maps its heap, locked.
bool is_heap_lock(const npu_xrt_error& error) {
  return is_lock_limit(error.code) && (mentions(error, "mmap") || mentions(error, "CREATE_BO"));
}

// Of a buffer; XRT itself reports some without a number.
bool is_memory_lock(const npu_xrt_error& error) {
  return is_lock_limit(error.code) || (error.code == 0 && mentions(error, "failed to allocate BO"));
}

std::string opening_advice(const npu_xrt_error& error) {
  const std::string advice = mentions(error, "Open ") ? node_advice(error.code) : "";
  return advice.empty() ? kDoctor : advice + "; " + kDoctor;
}

}  // namespace

Error call_error(const char* function, const std::string& subject, const npu_xrt_error& error,
                 const std::string& build) {
  const std::string why = cause(error);
  if (is_version_mismatch(error)) {
    const bool unsure = error.code == EINVAL;
    return {ErrorKind::kVersions,
            strf("[%s] %s: the amdxdna driver does not know a request of this XRT%s (%s); the "
                 "driver is older than XRT: install both from the same release%s",
                 function, subject.c_str(), unsure ? ", or could not wake the NPU" : "",
                 why.c_str(), unsure ? (std::string(", or ") + kDoctor).c_str() : "")};
  }
  const auto message = [&](const std::string& found, const std::string& advice) {
    return strf("[%s] %s: %s (%s); %s", function, subject.c_str(), found.c_str(), why.c_str(),
                advice.c_str());
  };
  switch (error.what) {
    case NPU_XRT_NO_DEVICE:
      if (is_heap_lock(error)) {
        return {ErrorKind::kMemoryLock,
                message("opening an NPU locks 64 MiB of memory", memory_advice(error.code))};
      }
      return {ErrorKind::kDevice, message("XRT opens no NPU", opening_advice(error))};
    case NPU_XRT_MEMORY:
      if (error.limit != 0) {
        return {ErrorKind::kArgument, message("too many bytes", "ask for less")};
      }
      if (error.asked == 0) {
        return {ErrorKind::kDevice, message("no memory", "use less, or end other programs")};
      }
      return {
          is_memory_lock(error) ? ErrorKind::kMemoryLock : ErrorKind::kDevice,
          message(strf("no memory for %llu bytes", static_cast<unsigned long long>(error.asked)),
                  memory_advice(is_memory_lock(error) ? ENOMEM : error.code))};
    case NPU_XRT_XCLBIN:
      return {ErrorKind::kDevice,
              message("XRT does not take the xclbin", "build it again: " + build + " --force")};
    case NPU_XRT_CONTEXT: {
      const std::string advice = context_advice(error);
      return {advice.empty() ? ErrorKind::kDevice : ErrorKind::kContext,
              message("the driver refuses a hardware context", advice.empty() ? kDoctor : advice)};
    }
    case NPU_XRT_HEAP:
      return {ErrorKind::kHeap,
              message(strf("no room for %llu bytes in the instruction heap of 64 MiB",
                           static_cast<unsigned long long>(error.asked)),
                      "submit smaller streams, or close other devices of this process")};
    case NPU_XRT_ARGUMENTS:
      return {ErrorKind::kArgument,
              strf("[%s] %s: argument %llu, the xclbin's kernel takes %llu; build it again: %s "
                   "--force",
                   function, subject.c_str(), static_cast<unsigned long long>(error.asked),
                   static_cast<unsigned long long>(error.limit), build.c_str())};
    case NPU_XRT_SUBMIT:
      return {is_lock_limit(error.code) ? ErrorKind::kMemoryLock : ErrorKind::kDevice,
              message("the driver does not take the command", memory_advice(error.code))};
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
    return {ErrorKind::kTimeout,
            strf("[wait] %s was ended by %s after %.1f s: %s; the array waits for data or a lock "
                 "that never comes: build the configuration again (%s --force), then run `npu "
                 "selftest`; the next call starts on a new context",
                 what.c_str(), run.own_limit ? "NPU_XRT_TIMEOUT" : "the driver's watchdog",
                 run.seconds, at.c_str(), run.build.c_str())};
  }
  if (outcome.state == kAbort && outcome.completed == 0) {
    return {ErrorKind::kVersions,
            strf("[wait] %s, the first of its context, was aborted (ERT state 6): firmware and "
                 "driver do not fit each other, or another program tore the context down; update "
                 "linux-firmware and the amdxdna driver together; %s",
                 what.c_str(), kDoctor)};
  }
  if (outcome.state == kAbort) {
    return {ErrorKind::kAborted,
            strf("[wait] %s was aborted (ERT state 6): its context was torn down while it was "
                 "under way (another program's time-out, a reset, or suspend); call again, and if "
                 "it stays, run `npu doctor` and look at `dmesg`",
                 what.c_str())};
  }
  const char* const does = outcome.state == kError        ? "refused"
                           : outcome.state == kNoResponse ? "does not answer for"
                                                          : "failed at";
  return {ErrorKind::kFirmware,
          strf("[wait] the firmware %s %s (ERT state %d); `dmesg | grep amdxdna` has its error "
               "code: 0x100000x is the array's, 0x300000x an instruction or the PDI; build the "
               "configuration again (%s --force)",
               does, what.c_str(), outcome.state, run.build.c_str())};
}

}  // namespace npu::xrt
