// Device names -> devices.
#include "devices/emulator/emulated_device.h"
#include "devices/null/null_device.h"
#include "devices/xrt/xrt_device.h"
#include "error.h"
#include "kernels/kernel.h"
#include "runtime/device.h"

namespace npu {

namespace {

Arithmetic arithmetic_mode(const std::string& name) {
  if (name == arithmetic_name(Arithmetic::kFast)) return Arithmetic::kFast;
  if (name == arithmetic_name(Arithmetic::kSilicon)) return Arithmetic::kSilicon;
  fail(ErrorKind::kDevice,
       "[device] arithmetic mode \"%s\" is unknown; use \"fast\" or \"silicon\"", name.c_str());
}

}  // namespace

std::unique_ptr<Device> open_device(const std::string& name, const std::string& arithmetic) {
  const Arithmetic mode = arithmetic_mode(arithmetic);
  if (name == "xrt" || name == "xrt+module") return xrt::open_xrt_device();
  for (const auto generation : {arch::Generation::kNpu1, arch::Generation::kNpu2}) {
    const std::string npu = arch::device_geometry(generation).name;
    if (name == "null:" + npu) return open_null_device(generation);
    const std::string real = "xrt:" + npu;
    if (name == real || name == real + "+module") return xrt::open_xrt_device(generation);
    const std::string emulated = "emu:" + npu;
    if (name == emulated) return emulator::open_emulated_device(generation, mode);
    if (name.starts_with(emulated + "+") && name.size() > emulated.size() + 1) {
      return emulator::open_emulated_device(generation, mode, name.substr(emulated.size() + 1));
    }
  }
  if (name.starts_with("xrt") && name.ends_with("+pyxrt")) {
    fail(ErrorKind::kDevice, "[device] \"%s\" is Python's way to the NPU; use \"xrt\" here",
         name.c_str());
  }
  fail(ErrorKind::kDevice,
       "[device] \"%s\" is unknown; use \"emu:npu1\", \"emu:npu2\", \"null:npu1\", \"null:npu2\" "
       "or \"xrt\"",
       name.c_str());
}

}  // namespace npu
