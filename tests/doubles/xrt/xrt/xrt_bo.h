// Stand-in for xrt::bo. Every BO has a copy for the host and one for the device, which only sync()
// makes alike; both are poisoned when they are new.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "xrt/detail/api.h"
#include "xrt/xrt_device.h"

enum xclBOSyncDirection { XCL_BO_SYNC_BO_TO_DEVICE = 0, XCL_BO_SYNC_BO_FROM_DEVICE = 1 };

namespace xrt {

using memory_group = uint32_t;
class bo_impl;

class XRT_API_EXPORT bo {
 public:
  enum class flags : uint32_t {
    normal = 0,
    cacheable = 1u << 24,
    svm = 1u << 27,
    device_only = 1u << 28,
    host_only = 1u << 29,
    p2p = 1u << 30,
  };

  bo() = default;
  bo(const device& device, size_t bytes, flags flags, memory_group group);
  bo(const device& device, void* user, size_t bytes, flags flags, memory_group group);
  bo(const bo& parent, size_t bytes, size_t offset);

  size_t size() const;
  void* map();
  template <typename Pointer>
  Pointer map() {
    return static_cast<Pointer>(map());
  }
  void sync(xclBOSyncDirection direction, size_t bytes, size_t offset);
  const std::shared_ptr<bo_impl>& get_handle() const { return handle_; }

 private:
  std::shared_ptr<bo_impl> handle_;
};

}  // namespace xrt
