// An open NPU of the module that calls XRT, shared by a device, its buffers and its streams.
#pragma once

#include <sys/types.h>

#include <memory>

#include "devices/xrt/identity.h"
#include "devices/xrt/module/module_abi.h"

namespace npu::xrt {

class Connection {
 public:
  Connection(const npu_xrt_module& module, npu_xrt_device* device, Identity identity);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  const npu_xrt_module& module() const { return module_; }
  npu_xrt_device* device() const { return device_; }
  const Identity& identity() const { return identity_; }
  // Whether this is a process that was forked after the NPU was opened. XRT's objects are the
  // parent's: given back here, the driver would take them from it.
  bool is_forked() const;
  // Throws Error(kDevice) in such a process.
  void check_process(const char* function) const;

 private:
  const npu_xrt_module& module_;
  npu_xrt_device* device_;
  const Identity identity_;
  const pid_t process_;
};

// The first of XRT's devices that is an NPU, open. Throws Error(kMissingXrt): no module or no
// device; Error(kGeneration): none that this library knows; what opening fails with.
std::shared_ptr<Connection> open_first_npu();

}  // namespace npu::xrt
