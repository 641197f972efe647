// Stand-in for the XRT device, which this version does not have: a clear sentence.
#include "devices/xrt/xrt_device.h"
#include "error.h"

namespace npu::xrt {

std::unique_ptr<Device> open_xrt_device() {
  fail(ErrorKind::kUnavailable,
       "[device] \"xrt\" was requested, but this version has no XRT device; use \"emu:npu2\" or "
       "\"emu:npu1\", the emulated NPUs");
}

}  // namespace npu::xrt
