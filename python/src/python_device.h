// A device written in Python, behind the device contract.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "runtime/device.h"

namespace npu::python {

// `backend`: an npu.device_contract.DeviceBackend. Throws Error(kDevice) for one that lacks
// something.
std::unique_ptr<Device> open_python_device(nanobind::object backend);

}  // namespace npu::python
