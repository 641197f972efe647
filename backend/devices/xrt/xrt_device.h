// The real NPU through XRT: not in this version, and opening it says so.
#pragma once

#include <memory>

#include "runtime/device.h"

namespace npu::xrt {

// Throws Error(kUnavailable).
std::unique_ptr<Device> open_xrt_device();

}  // namespace npu::xrt
