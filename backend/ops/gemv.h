// y = W x on a device, W in Q4NX blocks: binds weights once, packs x, looks up or builds the
// stream, submits, gathers y.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "ops/gemm.h"
#include "ops/gemv_stream.h"

namespace npu::ops {

// Weights where the device reads them: the caller's memory, which must outlive this, or a copy of
// it.
struct GemvWeights {
  std::shared_ptr<SharedDevice> device;
  std::unique_ptr<Buffer> buffer;  // null: `view` is the caller's memory
  BufferView view;
  int64_t n = 0, k = 0;                       // logical
  int64_t row_blocks = 0, column_blocks = 0;  // in `view`
};

// An element of a top-k list.
struct GemvTop {
  float value;
  int64_t row;
};

class Gemv {
 public:
  Gemv(std::shared_ptr<SharedDevice> device, Configuration configuration);

  // `blocks`: ceil(n / 32) x ceil(k / 256) blocks of 5120 bytes, row-blocks first. Read in place if
  // the device can and `blocks` is aligned to 4 bytes. Thread-safe, as is everything below.
  std::shared_ptr<const GemvWeights> bind(std::span<const std::byte> blocks, int64_t n, int64_t k);
  // x: (batch, k) of kF32 (rounded to bfloat16) or kBf16, any strides; y: (batch, n) row-major of
  // `y_type`, kF32 or kBf16. Any batch >= 1: passes of up to eight vectors.
  RunReport run(const GemvWeights& w, const MatrixView& x, std::byte* y, ElementType y_type);
  // The `k` largest elements of every row of y, largest first, equal ones by row; NaNs count as
  // smallest. top: (batch, k).
  RunReport top(const GemvWeights& w, const MatrixView& x, int64_t k, GemvTop* top);
  OpCounters counters() const;
  // Most entries per vector of top().
  int64_t most_top() const;
  const Configuration& configuration() const { return configuration_; }

 private:
  void check(const GemvWeights& w, const MatrixView& x) const;
  RunReport pass(const GemvWeights& w, const MatrixView& x, const GemvProblem& problem,
                 const GemvPlan** plan);
  void pack_x(const MatrixView& x, const GemvProblem& problem, const GemvPlan& plan);

  std::shared_ptr<SharedDevice> shared_;
  Configuration configuration_;
  GemvArray array_;
  stream::StreamCache<GemvProblem> streams_;
  std::map<GemvProblem, GemvPlan> plans_;
  uint64_t host_copy_bytes_ = 0;
  std::unique_ptr<Buffer> x_, y_;
};

}  // namespace npu::ops
