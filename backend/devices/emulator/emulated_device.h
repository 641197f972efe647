// The emulated NPU behind the device contract.
#pragma once

#include <memory>
#include <string>

#include "kernels/kernel.h"
#include "runtime/device.h"
#include "runtime/timing.h"

namespace npu::emulator {

// `residency`: a test mode (residency.h), or empty.
std::unique_ptr<Device> open_emulated_device(arch::Generation generation, Arithmetic arithmetic,
                                             const std::string& residency = "");

}  // namespace npu::emulator
