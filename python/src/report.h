// RunReport as a Python dict; npu/emulator.py gives it attributes.
#pragma once

#include <nanobind/nanobind.h>

#include "device.h"

namespace npu::python {

nanobind::dict report_dict(const RunReport& report);

}  // namespace npu::python
