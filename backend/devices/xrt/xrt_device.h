// The real NPU through XRT: the device contract over the module that calls XRT (module.h).
#pragma once

#include <memory>
#include <optional>

#include "runtime/device.h"

namespace npu::xrt {

// `wanted`: the generation that the name asks for, if it does. Throws Error(kMissingXrt): no module
// or no NPU; Error(kGeneration): one of another generation.
std::unique_ptr<Device> open_xrt_device(std::optional<arch::Generation> wanted = std::nullopt);

}  // namespace npu::xrt
