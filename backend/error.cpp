// Names of error kinds and the printf-style constructors of npu::Error.
#include "error.h"

#include <cstdarg>
#include <cstdio>
#include <vector>

namespace npu {

namespace {

std::string vstrf(const char* format, va_list args) {
  va_list copy;
  va_copy(copy, args);
  const int size = std::vsnprintf(nullptr, 0, format, copy);
  va_end(copy);
  std::vector<char> text(static_cast<size_t>(size) + 1);
  std::vsnprintf(text.data(), text.size(), format, args);
  return std::string(text.data(), static_cast<size_t>(size));
}

}  // namespace

const char* kind_name(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kArgument:
      return "argument";
    case ErrorKind::kShape:
      return "shape";
    case ErrorKind::kDtype:
      return "dtype";
    case ErrorKind::kFormat:
      return "format";
    case ErrorKind::kDevice:
      return "device";
    case ErrorKind::kUnavailable:
      return "unavailable";
    case ErrorKind::kUnsupported:
      return "unsupported";
    case ErrorKind::kForbidden:
      return "forbidden";
    case ErrorKind::kUnknownOperation:
      return "unknown_operation";
    case ErrorKind::kUnknownRegister:
      return "unknown_register";
    case ErrorKind::kInvalidBd:
      return "invalid_bd";
    case ErrorKind::kBdInUse:
      return "bd_in_use";
    case ErrorKind::kQueueOverrun:
      return "queue_overrun";
    case ErrorKind::kMisaligned:
      return "misaligned";
    case ErrorKind::kOutOfRange:
      return "out_of_range";
    case ErrorKind::kNoConsumer:
      return "no_consumer";
    case ErrorKind::kLock:
      return "lock";
    case ErrorKind::kDeadlock:
      return "deadlock";
    case ErrorKind::kUnfinished:
      return "unfinished";
    case ErrorKind::kKernel:
      return "kernel";
    case ErrorKind::kTimeout:
      return "timeout";
    case ErrorKind::kAborted:
      return "abort";
    case ErrorKind::kFirmware:
      return "firmware";
    case ErrorKind::kContext:
      return "context";
    case ErrorKind::kHeap:
      return "heap";
    case ErrorKind::kMemoryLock:
      return "memory_lock";
    case ErrorKind::kGeneration:
      return "generation";
    case ErrorKind::kVersions:
      return "versions";
    case ErrorKind::kMissingBuild:
      return "build";
    case ErrorKind::kMissingXrt:
      return "xrt";
  }
  return "unknown";
}

std::string strf(const char* format, ...) {
  va_list args;
  va_start(args, format);
  std::string text = vstrf(format, args);
  va_end(args);
  return text;
}

void fail(ErrorKind kind, const char* format, ...) {
  va_list args;
  va_start(args, format);
  std::string text = vstrf(format, args);
  va_end(args);
  throw Error(kind, text);
}

}  // namespace npu
