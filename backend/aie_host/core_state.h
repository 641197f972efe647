// Which core's rounding and saturation modes the kernels of this thread see.
#pragma once

#include "kernel.h"

namespace npu::aie_host {

// Makes `core` the current one of this thread until the scope ends.
class CoreScope {
 public:
  explicit CoreScope(CoreState& core);
  ~CoreScope();
  CoreScope(const CoreScope&) = delete;
  CoreScope& operator=(const CoreScope&) = delete;

 private:
  CoreState* previous_;
};

}  // namespace npu::aie_host
