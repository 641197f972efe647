// Device names -> devices.
#include "device.h"

#include "emulator/emulated_device.h"
#include "error.h"
#include "kernels/kernel.h"
#include "xrt/xrt_device.h"

namespace npu {

std::unique_ptr<Device> open_device(const std::string& name, const std::string& arithmetic) {
  Arithmetic mode = Arithmetic::kFast;
  if (arithmetic == arithmetic_name(Arithmetic::kSilicon)) {
    mode = Arithmetic::kSilicon;
  } else if (arithmetic != arithmetic_name(Arithmetic::kFast)) {
    fail(ErrorKind::kDevice,
         "[device] arithmetic mode \"%s\" is unknown; use \"fast\" or \"silicon\"",
         arithmetic.c_str());
  }
  if (name == "emu:npu1") return emulator::open_emulated_device(arch::Generation::kNpu1, mode);
  if (name == "emu:npu2") return emulator::open_emulated_device(arch::Generation::kNpu2, mode);
  if (name == "xrt") return xrt::open_xrt_device();
  fail(ErrorKind::kDevice, "[device] \"%s\" is unknown; use \"emu:npu1\", \"emu:npu2\" or \"xrt\"",
       name.c_str());
}

}  // namespace npu
