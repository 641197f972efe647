// Stand-in for xrt::device: one NPU, and whatever else a test lists before it.
#pragma once

#include <string>
#include <type_traits>

#include "xrt/detail/api.h"
#include "xrt/experimental/xrt_xclbin.h"
#include "xrt/xrt_uuid.h"

namespace xrt {

namespace info {
enum class device : unsigned int { bdf, interface_uuid, name };
}

class XRT_API_EXPORT device {
 public:
  device() = default;
  explicit device(unsigned int index);  // throws if there is none
  uuid register_xclbin(const xclbin& xclbin);

  template <info::device param>
  std::string get_info() const {
    static_assert(param == info::device::name || param == info::device::bdf);
    return info(param);
  }

 private:
  std::string info(info::device param) const;
  unsigned int index_ = 0;
};

}  // namespace xrt
