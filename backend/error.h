// Typed errors of the runtime. Every user-visible failure is an npu::Error whose message reads
// "[function] what was asked, what was found, what to do". Internal invariants use assert().
#pragma once

#include <stdexcept>
#include <string>

namespace npu {

enum class ErrorKind {
  kArgument,     // a value no operation accepts (negative size, null buffer, ...)
  kShape,        // array shapes that do not fit together
  kDtype,        // an element type or pair of types that is not supported
  kFormat,       // a file or byte string that does not parse (stream, configuration)
  kDevice,       // a device that is unknown or cannot do what was asked
  kUnavailable,  // a device or feature that is not present on this machine
  kUnsupported,  // hardware behaviour the emulator does not model
  kForbidden,    // a runtime stream touches what it may not (stream/txn.h)
  // Raised by the emulator while it executes a stream.
  kUnknownOperation,  // a TXN opcode that cannot be executed
  kUnknownRegister,   // a register write the emulator cannot decode (strict mode)
  kInvalidBd,         // valid bit clear, BD id out of range or not reachable by the channel
  kBdInUse,           // a BD rewritten while a queued task still needs it
  kQueueOverrun,      // a fifth task pushed on a channel whose queue holds four
  kMisaligned,        // an address or length that is not a multiple of 4 bytes
  kOutOfRange,        // an access outside a memory or a buffer
  kNoConsumer,        // a stream that ends nowhere (no route from the port that sends)
  kLock,              // a lock id out of range, or a lock value over- or underflow
  kDeadlock,          // no agent can make progress while one waits
  kUnfinished,        // the stream ended while a shim transfer was still incomplete
  kKernel,            // a kernel is missing, was called wrongly or failed
  // Of a real NPU; npu/errors.py has a class for each.
  kTimeout,       // a run that did not end in time
  kAborted,       // a run whose hardware context was torn down
  kFirmware,      // a command that the firmware refused or that failed in the array
  kContext,       // a hardware context that the driver does not give
  kHeap,          // no room for a command stream
  kMemoryLock,    // more locked memory than the system lets the process have
  kGeneration,    // an NPU, a configuration or a build of another generation
  kVersions,      // driver, firmware and XRT that do not fit each other
  kMissingBuild,  // a configuration that has not been built for the NPU
  kMissingXrt,    // XRT, what calls it, or the NPU that it should show, is not there
};

// The kind's name as users see it: "deadlock", "queue_overrun", ...
const char* kind_name(ErrorKind kind);

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

// printf into a std::string.
std::string strf(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Throws Error(kind, printf(format, ...)).
[[noreturn]] void fail(ErrorKind kind, const char* format, ...)
    __attribute__((format(printf, 2, 3)));

}  // namespace npu
