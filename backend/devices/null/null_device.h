// A device that accepts everything and computes nothing; see null_device.cpp.
#pragma once

#include <memory>

#include "runtime/device.h"

namespace npu {

std::unique_ptr<Device> open_null_device(arch::Generation generation);

}  // namespace npu
