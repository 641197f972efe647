// Weights in blocks where a device reads them: the caller's memory, which must outlive this, or a
// copy.
#pragma once

#include <cstdint>
#include <memory>

#include "formats/weight_blocks.h"
#include "runtime/shared_device.h"

namespace npu::ops {

struct BlockWeights {
  std::shared_ptr<SharedDevice> device;
  std::unique_ptr<Buffer> buffer;  // wraps the caller's memory if `in_place`
  bool in_place = false;
  BufferRef blocks;
  npu::blocks::Format format = npu::blocks::Format::kQ4nx;
  int64_t n = 0, k = 0;                       // logical
  int64_t row_blocks = 0, column_blocks = 0;  // in `blocks`
};

}  // namespace npu::ops
