// Stand-in for XRT's count of devices.
#pragma once

#include "xrt/detail/api.h"

namespace xrt::system {

XRT_API_EXPORT unsigned int enumerate_devices();

}  // namespace xrt::system
