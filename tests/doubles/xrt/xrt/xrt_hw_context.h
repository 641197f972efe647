// Stand-in for xrt::hw_context: counted, limited, and checked to outlive its kernels and runs.
#pragma once

#include <memory>

#include "xrt/detail/api.h"
#include "xrt/xrt_device.h"
#include "xrt/xrt_uuid.h"

namespace xrt {

class hw_context_impl;

class XRT_API_EXPORT hw_context {
 public:
  hw_context() = default;
  hw_context(const device& device, const uuid& xclbin);  // throws if the driver refuses
  hw_context(const hw_context& other);
  hw_context(hw_context&&) = default;
  hw_context& operator=(const hw_context&) = delete;
  hw_context& operator=(hw_context&&) = delete;
  ~hw_context();
  const std::shared_ptr<hw_context_impl>& get_handle() const { return handle_; }

 private:
  std::shared_ptr<hw_context_impl> handle_;
};

}  // namespace xrt
