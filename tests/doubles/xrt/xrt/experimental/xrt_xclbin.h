// Stand-in for xrt::xclbin. Its files are configurations behind a head (control.h: write_xclbin).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "xrt/detail/api.h"
#include "xrt/xrt_uuid.h"

namespace xrt {

class xclbin_impl;

class XRT_API_EXPORT xclbin {
 public:
  class XRT_API_EXPORT kernel {
   public:
    kernel(std::string name, size_t arguments) : name_(std::move(name)), arguments_(arguments) {}
    std::string get_name() const { return name_; }
    size_t get_num_args() const { return arguments_; }

   private:
    std::string name_;
    size_t arguments_;
  };

  xclbin() = default;
  explicit xclbin(const std::string& filename);  // throws for what is no xclbin
  std::vector<kernel> get_kernels() const;
  uuid get_uuid() const;
  const std::shared_ptr<xclbin_impl>& get_handle() const { return handle_; }

 private:
  std::shared_ptr<xclbin_impl> handle_;
};

}  // namespace xrt
