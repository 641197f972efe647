// Stand-in for the XRT device in builds without XRT: a clear sentence instead of a link error.
#include "devices/xrt/xrt_device.h"
#include "error.h"

namespace npu::xrt {

std::unique_ptr<Device> open_xrt_device() {
  fail(ErrorKind::kUnavailable,
       "[device] \"xrt\" was requested, but this build has no XRT support; use \"emu:npu2\" or "
       "\"emu:npu1\", the emulated NPUs");
}

}  // namespace npu::xrt
