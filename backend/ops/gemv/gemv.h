// y = W x on a device, W in blocks of any format: binds weights once, packs x, looks up or builds
// the stream, submits, gathers y.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "formats/pack.h"
#include "ops/block_weights.h"
#include "ops/gemv/gemv_schedule.h"
#include "ops/top_list.h"
#include "runtime/operation.h"
#include "runtime/operation_type.h"

namespace npu::ops {

extern const OperationType kGemvType;

class Gemv {
 public:
  Gemv(std::shared_ptr<SharedDevice> device, Configuration configuration);

  // `data`: ceil(n / 32) x ceil(k / columns of a block) blocks of the format, row-blocks first.
  // Read in place if the device reaches them there. Thread-safe, as is everything below.
  std::shared_ptr<const BlockWeights> bind(std::span<const std::byte> data, int64_t n, int64_t k,
                                           npu::blocks::Format format);
  // x: (batch, k) of kF32 (rounded to bfloat16) or kBf16, any strides; y: (batch, n) row-major of
  // `y_type`, kF32 or kBf16. Any batch >= 1: passes of up to eight vectors.
  RunReport run(const BlockWeights& w, const MatrixView& x, std::byte* y, ElementType y_type);
  // The `k` largest elements of every row of y, at most kMaxTop, in the order of TopLists::take().
  // top: (batch, k).
  RunReport top(const BlockWeights& w, const MatrixView& x, int64_t k, TopEntry* top);
  OperationCounters counters() const { return operation_.counters(); }

 private:
  using Entry = Operation<GemvProblem, GemvSchedule>::Entry;
  void check(const BlockWeights& w, const MatrixView& x) const;
  // One pass over the weights: its report, and the results where `schedule` puts them.
  struct Pass {
    RunReport report;
    std::shared_ptr<const Entry> entry;
    const std::byte* results;
  };
  Pass pass(const BlockWeights& w, const MatrixView& x, const GemvProblem& problem);
  BufferRef pack_x(const MatrixView& x, const GemvProblem& problem, const GemvSchedule& schedule);

  Operation<GemvProblem, GemvSchedule> operation_;
  GemvArray array_;
  Scratch x_, y_;
};

}  // namespace npu::ops
