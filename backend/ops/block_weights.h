// Weights in blocks where a device reads them: the caller's memory, which must outlive this, or a
// copy. And the size of blocks that a configuration multiplies.
#pragma once

#include <cstdint>
#include <memory>

#include "error.h"
#include "formats/weight_blocks.h"
#include "runtime/configuration.h"
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

// Throws Error(kFormat) if it has neither.
inline int64_t block_bytes_of(const Configuration& configuration) {
  const int64_t bytes = configuration.param("block_bytes", blocks::kSmallBytes, blocks::kBytes);
  if (bytes != blocks::kSmallBytes && bytes != blocks::kBytes) {
    fail(ErrorKind::kFormat,
         "configuration \"%s\" has weights in blocks of %lld bytes, not %lld or "
         "%lld; lower the design again",
         configuration.name.c_str(), static_cast<long long>(bytes),
         static_cast<long long>(blocks::kSmallBytes), static_cast<long long>(blocks::kBytes));
  }
  return bytes;
}

// Throws Error(kArgument) for blocks of the other size.
inline void check_block_bytes(const char* operation, blocks::Format format, int64_t bytes) {
  if (blocks::bytes_of(format) == bytes) return;
  fail(ErrorKind::kArgument,
       "[%s] blocks of %s have %lld bytes, those of this configuration %lld; all weights need "
       "blocks "
       "of one size, and the configuration for it",
       operation, blocks::kFormatNames[static_cast<int>(format)],
       static_cast<long long>(blocks::bytes_of(format)), static_cast<long long>(bytes));
}

}  // namespace npu::ops
