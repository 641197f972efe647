// The formats of weight blocks by the names that Python uses (gemv.cpp, weights.cpp).
#pragma once

#include <string>

#include "error.h"
#include "formats/weight_blocks.h"

namespace npu::python {

// Throws Error(kArgument), which names `function`.
inline blocks::Format format_named(const std::string& name, const char* function) {
  for (int32_t i = 0; i < blocks::kFormats; ++i) {
    if (name == blocks::kFormatNames[i]) return static_cast<blocks::Format>(i);
  }
  fail(ErrorKind::kArgument, "[%s] the format \"%s\" of the blocks is unknown", function,
       name.c_str());
}

}  // namespace npu::python
