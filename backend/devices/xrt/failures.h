// What XRT reports, in words: the error that a failed call becomes, and the one that a run ended
// with. Sources of what the codes mean: XRT's ert.h, xdna-driver (aie2_ctx.c, aie2_error.c).
#pragma once

#include <cstdint>
#include <string>

#include "devices/xrt/module/module_abi.h"
#include "error.h"
#include "stream/txn.h"

namespace npu::xrt {

// The error of a failed call: "[function] subject ...". `subject` says what was asked, `build` is
// the command that builds what the call is about (files.h).
Error call_error(const char* function, const std::string& subject, const npu_xrt_error& error,
                 const std::string& build = "npu build");

// What is known of a run that did not end well.
struct FailedRun {
  std::string configuration;               // its name
  std::string build;                       // the command that builds it
  const stream::Stream* stream = nullptr;  // with what every stream does first (setup.h)
  npu_xrt_outcome outcome{};
  double seconds = 0;      // since it was submitted
  bool own_limit = false;  // no watchdog ended it, the library did
};
Error run_error(const FailedRun& run);

// "operation 3 of 17: ..." as `npu inspect` prints it; "" if the index is outside the stream.
std::string operation_text(const stream::Stream& stream, int64_t index);

}  // namespace npu::xrt
