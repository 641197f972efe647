// Opening the first NPU among XRT's devices (connection.h).
#include "devices/xrt/connection.h"

#include <unistd.h>

#include <optional>
#include <utility>

#include "devices/xrt/failures.h"
#include "devices/xrt/module.h"
#include "error.h"

namespace npu::xrt {

namespace {

constexpr const char* kSubject = "\"xrt\" was requested";

uint32_t count_devices(const npu_xrt_module& module) {
  uint32_t count = 0;
  npu_xrt_error error;
  if (module.count(&count, &error) != NPU_XRT_OK) throw call_error("device", kSubject, error);
  return count;
}

std::shared_ptr<Connection> open_one(const npu_xrt_module& module, uint32_t index) {
  npu_xrt_device* device = nullptr;
  npu_xrt_error error;
  if (module.open(index, &device, &error) != NPU_XRT_OK) {
    throw call_error("device", kSubject, error);
  }
  try {
    npu_xrt_info about;
    if (module.info(device, &about, &error) != NPU_XRT_OK) {
      throw call_error("device", kSubject, error);
    }
    return std::make_shared<Connection>(module, device, identify(about.name, about.bdf));
  } catch (...) {
    module.close(device);
    throw;
  }
}

}  // namespace

Connection::Connection(const npu_xrt_module& module, npu_xrt_device* device, Identity identity)
    : module_(module), device_(device), identity_(std::move(identity)), process_(getpid()) {}

Connection::~Connection() {
  if (!is_forked()) module_.close(device_);
}

bool Connection::is_forked() const { return getpid() != process_; }

void Connection::check_process(const char* function) const {
  if (!is_forked()) return;
  fail(ErrorKind::kDevice,
       "[%s] xrt was opened before this process was forked, and a fork cannot share it; open the "
       "device in the child only, or start processes anew (Python: multiprocessing's \"spawn\")",
       function);
}

std::shared_ptr<Connection> open_first_npu() {
  const npu_xrt_module& module = load_module();
  const uint32_t count = count_devices(module);
  std::optional<Error> refused, other;  // the first that does not open, that is no NPU
  for (uint32_t index = 0; index < count; ++index) {
    try {
      return open_one(module, index);
    } catch (const Error& error) {
      std::optional<Error>& first = error.kind() == ErrorKind::kGeneration ? other : refused;
      if (!first) first = error;
    }
  }
  if (refused) throw *refused;  // perhaps an NPU
  if (other) throw *other;
  fail(ErrorKind::kMissingXrt,
       "[device] xrt: XRT sees %u devices; check the amdxdna driver, XRT's NPU plugin and the "
       "access to /dev/accel/accel0 with \"npu doctor\"; the emulated NPUs are \"emu:npu2\" and "
       "\"emu:npu1\"",
       count);
}

}  // namespace npu::xrt
