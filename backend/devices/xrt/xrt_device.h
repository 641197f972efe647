// The real NPU through XRT. Without XRT (this build) opening it says what is missing.
#pragma once

#include <memory>

#include "runtime/device.h"

namespace npu::xrt {

// Throws Error(kUnavailable) where XRT was not found at build time.
std::unique_ptr<Device> open_xrt_device();

}  // namespace npu::xrt
