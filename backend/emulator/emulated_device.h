// The emulated NPU behind the device contract.
#pragma once

#include <memory>

#include "device.h"
#include "kernels/kernel.h"

namespace npu::emulator {

std::unique_ptr<Device> open_emulated_device(arch::Generation generation, Arithmetic arithmetic);

}  // namespace npu::emulator
