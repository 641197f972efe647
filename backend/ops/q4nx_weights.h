// Q4NX weights where a device reads them: the caller's memory, which must outlive this, or a copy.
#pragma once

#include <cstdint>
#include <memory>

#include "formats/q4nx.h"
#include "runtime/shared_device.h"

namespace npu::ops {

struct Q4nxWeights {
  std::shared_ptr<SharedDevice> device;
  std::unique_ptr<Buffer> buffer;  // wraps the caller's memory if `in_place`
  bool in_place = false;
  BufferRef blocks;
  int64_t n = 0, k = 0;                       // logical
  int64_t row_blocks = 0, column_blocks = 0;  // in `blocks`
};

}  // namespace npu::ops
