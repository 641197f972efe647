// The real NPU through XRT: the device contract over the module that calls XRT (module.h).
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "runtime/device.h"

namespace npu::xrt {

// `wanted`: the generation that the name asks for, if it does. Throws Error(kUnavailable): no
// module, no NPU, or one of another generation.
std::unique_ptr<Device> open_xrt_device(std::optional<arch::Generation> wanted = std::nullopt);

// The generation that XRT's name of a device means ("NPU Strix", "RyzenAI-npu4", ...), if it is one
// that this library knows.
std::optional<arch::Generation> generation_of(const std::string& name);

}  // namespace npu::xrt
