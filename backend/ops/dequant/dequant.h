// Weights in blocks as a bfloat16 matrix, expanded on a device: looks up or builds the stream,
// submits, removes padding if there is any.
#pragma once

#include <cstdint>
#include <memory>

#include "ops/block_weights.h"
#include "ops/dequant/dequant_schedule.h"
#include "runtime/operation.h"
#include "runtime/operation_type.h"

namespace npu::ops {

extern const OperationType kDequantType;

// Row-blocks [first, first + count) of bound weights.
struct RowBlocks {
  int64_t first = 0, count = 0;
};

class Dequant {
 public:
  Dequant(std::shared_ptr<SharedDevice> device, Configuration configuration);

  // The logical rows of `part` as (rows, k) row-major. The device writes to `out` itself if whole
  // blocks fill it (at least 64 rows) and the device reaches it;
  // otherwise a padded copy is cut on the host. Thread-safe, as is run_padded().
  RunReport run(const BlockWeights& w, const RowBlocks& part, std::byte* out);
  // (32 count, columns of a block * column blocks), padding included.
  RunReport run_padded(const BlockWeights& w, const RowBlocks& part, std::byte* out);
  OperationCounters counters() const { return operation_.counters(); }

 private:
  void check(const BlockWeights& w, const RowBlocks& part) const;
  RunReport expand(const BlockWeights& w, const RowBlocks& part, std::byte* out, int64_t rows,
                   int64_t columns);

  Operation<DequantProblem> operation_;
  DequantArray array_;
  Scratch in_, out_;
};

}  // namespace npu::ops
