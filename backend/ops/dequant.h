// Q4NX weights as a bfloat16 matrix, expanded on a device: looks up or builds the stream, submits,
// removes padding if there is any.
#pragma once

#include <cstdint>
#include <memory>

#include "ops/dequant_stream.h"
#include "ops/gemv.h"

namespace npu::ops {

// Row-blocks [first, first + count) of bound weights.
struct RowBlocks {
  int64_t first = 0, count = 0;
};

class Dequant {
 public:
  Dequant(std::shared_ptr<SharedDevice> device, Configuration configuration);

  // The logical rows of `part` as (rows, k) row-major. The device writes to `out` itself if whole
  // blocks fill it (k a multiple of 256, rows of 32, at least 64 rows) and it is aligned to 4
  // bytes; otherwise a padded copy is cut on the host. Thread-safe, as is run_padded().
  RunReport run(const GemvWeights& w, const RowBlocks& part, std::byte* out);
  // (32 count, 256 column blocks), padding included.
  RunReport run_padded(const GemvWeights& w, const RowBlocks& part, std::byte* out);
  OpCounters counters() const;

 private:
  void check(const GemvWeights& w, const RowBlocks& part) const;
  RunReport expand(const GemvWeights& w, const RowBlocks& part, std::byte* out, int64_t rows,
                   int64_t columns);

  std::shared_ptr<SharedDevice> shared_;
  Configuration configuration_;
  DequantArray array_;
  stream::StreamCache<DequantProblem> streams_;
  uint64_t host_copy_bytes_ = 0;
  std::unique_ptr<Buffer> in_, out_;
};

}  // namespace npu::ops
