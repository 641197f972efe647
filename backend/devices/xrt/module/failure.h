// Exceptions inside the module: a Failure says what failed, XRT's exceptions are turned into one.
#pragma once

#include <cerrno>
#include <cstdint>
#include <exception>
#include <new>
#include <string>
#include <system_error>

#include "module_abi.h"

namespace npu::xrt_module {

struct Failure {
  int what = NPU_XRT_INTERNAL;
  int code = 0;  // errno
  std::string text;
  uint64_t asked = 0, limit = 0;
};

// XRT's exceptions derive from std::system_error; some carry a negative errno.
inline int errno_of(const std::exception& error) {
  const auto* system = dynamic_cast<const std::system_error*>(&error);
  if (system == nullptr) return 0;
  const int code = system->code().value();
  return code < 0 ? -code : code;
}

// Calls XRT, again after a signal: its shim makes every system call once. What XRT throws becomes a
// Failure of this kind; the host's memory is none of its matters.
template <typename Call>
decltype(auto) calling(int what, uint64_t asked, const Call& call) {
  for (;;) {
    try {
      return call();
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& error) {
      const int code = errno_of(error);
      if (code != EINTR) throw Failure{what, code, error.what(), asked};
    }
  }
}

inline bool mentions(const Failure& failure, const char* words) {
  return failure.text.find(words) != std::string::npos;
}

// Whether the device heap has no room, nor can it have a second part.
inline bool heap_is_full(const Failure& failure) {
  const bool unsupported = failure.code == EOPNOTSUPP || failure.code == ENOTTY;
  return failure.code == ENOSPC || mentions(failure, "can't expand further") ||
         (unsupported && mentions(failure, "CREATE_BO"));
}

// Whether more memory would have to be locked than this process may.
inline bool is_lock_limit(const Failure& failure) {
  return failure.code == EAGAIN || failure.code == ENOMEM || failure.code == EPERM;
}

}  // namespace npu::xrt_module
