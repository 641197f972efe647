// A module of another interface, which the library refuses.
#include "module_abi.h"

namespace {

const npu_xrt_module kModule = [] {
  npu_xrt_module module = {};
  module.abi = 999;
  module.size = sizeof module;
  return module;
}();

}  // namespace

extern "C" __attribute__((visibility("default"))) const npu_xrt_module* npu_xrt_module_get(void) {
  return &kModule;
}
