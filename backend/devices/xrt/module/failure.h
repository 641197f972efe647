// Exceptions inside the module: a Failure says what failed, XRT's exceptions are turned into one.
#pragma once

#include <cstdint>
#include <exception>
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

// Calls XRT; what it throws becomes a Failure of this kind.
template <typename Call>
decltype(auto) calling(int what, uint64_t asked, const Call& call) {
  try {
    return call();
  } catch (const std::exception& error) {
    throw Failure{what, errno_of(error), error.what(), asked};
  }
}

}  // namespace npu::xrt_module
