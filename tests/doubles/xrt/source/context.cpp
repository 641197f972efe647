// Hardware contexts and kernels of the stand-in: limits, lifetimes (../control.h).
#include <algorithm>
#include <cerrno>

#include "machine.h"

namespace xrt {

using xrt_double::machine;
using xrt_double::refuse;

hw_context_impl::hw_context_impl(std::shared_ptr<xclbin_impl> x) : xclbin(std::move(x)) {
  xrt_double::Counters& counters = machine().counters;
  ++counters.contexts_made;
  counters.most_contexts = std::max(counters.most_contexts, ++counters.contexts);
}

hw_context_impl::~hw_context_impl() { --machine().counters.contexts; }

hw_context::hw_context(const device& /*device*/, const uuid& xclbin) {
  xrt_double::Machine& m = machine();
  const auto found = m.xclbins.find(xclbin);
  if (found == m.xclbins.end()) refuse(EINVAL, "the xclbin is not registered");
  xrt_double::refuse_if(m.contexts, m.contexts_call + " failed");
  if (m.counters.contexts >= m.settings.contexts) {
    refuse(EINVAL, "DRM_IOCTL_AMDXDNA_CREATE_HWCTX IOCTL failed");
  }
  if (found->second->configuration->generation != m.emulator().info().generation) {
    m.violation("an xclbin of the other generation was loaded");
  }
  handle_ = std::make_shared<hw_context_impl>(found->second);
  handle_->handles = 1;
}

hw_context::hw_context(const hw_context& other) : handle_(other.handle_) {
  if (handle_) ++handle_->handles;
}

hw_context::~hw_context() {
  if (!handle_ || --handle_->handles > 0) return;
  if (handle_->dependents > 0) {
    machine().violation("a hardware context was destroyed before its kernel and runs");
  }
}

kernel::kernel(const hw_context& context, const std::string& name) {
  if (context.get_handle()->xclbin->kernel != name) refuse(ENOENT, "No such kernel: " + name);
  handle_ = std::make_shared<kernel_impl>(context.get_handle());
}

int kernel::group_id(int argument) const {
  const size_t arguments = handle_->context->xclbin->buffers + 3;
  if (argument < 0 || static_cast<size_t>(argument) >= arguments) {
    refuse(EINVAL, "no such argument");
  }
  return 0x20000 + argument;  // of a BO for this argument
}

}  // namespace xrt
