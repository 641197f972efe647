// Stand-in for xrt::kernel and xrt::run: a run executes its stream on the emulator while somebody
// waits for it.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <type_traits>

#include "xrt/detail/api.h"
#include "xrt/detail/ert.h"
#include "xrt/xrt_bo.h"
#include "xrt/xrt_hw_context.h"

namespace xrt {

class kernel_impl;
class run_impl;

class XRT_API_EXPORT kernel {
 public:
  kernel() = default;
  kernel(const hw_context& context, const std::string& name);
  int group_id(int argument) const;
  const std::shared_ptr<kernel_impl>& get_handle() const { return handle_; }

 private:
  std::shared_ptr<kernel_impl> handle_;
};

class XRT_API_EXPORT run {
 public:
  run() = default;
  explicit run(const kernel& kernel);

  template <typename Value>
  std::enable_if_t<!std::is_base_of_v<bo, std::decay_t<Value>>> set_arg(int index, Value&& value) {
    set_arg_at_index(index, &value, sizeof(value));
  }
  void set_arg(int index, const bo& buffer) { set_arg_at_index(index, buffer); }

  void start();
  // TIMEOUT after `timeout` (0: never), too, when the command still runs.
  ert_cmd_state wait(const std::chrono::milliseconds& timeout = std::chrono::milliseconds{0}) const;
  ert_cmd_state state() const;
  ert_packet* get_ert_packet() const;

 private:
  void set_arg_at_index(int index, const void* value, size_t bytes);
  void set_arg_at_index(int index, const bo& buffer);
  std::shared_ptr<run_impl> handle_;
};

}  // namespace xrt
