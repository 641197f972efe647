// The reads of a GEMV as flows: when each column of the array has read its weights. The schedule
// partitions row-blocks by it.
#pragma once

#include <cstdint>
#include <vector>

#include "aie_kernels/weight_block.h"
#include "arch/timing.h"

namespace npu::perf {

using Rounds = std::vector<int64_t>;  // per column

// What of an array and a problem matters for its reads.
struct GemvReadShape {
  arch::Generation generation = arch::Generation::kNpu2;
  std::vector<int> ports;  // weight channels per column
  int cores_per_port = 1;
  bool preconfigured = false;  // the first task of a channel has its BD
  int64_t row_block_bytes = 0;
  int batch = 1;
  blocks::Format format = blocks::Format::kQ4nx;
  int64_t x_bytes = 0;  // of x, once per round

  int columns() const { return static_cast<int>(ports.size()); }
  int cores(int col) const { return ports[static_cast<size_t>(col)] * cores_per_port; }
};

// Every column starts when the command processor reaches it, and the channels that run share the
// memory evenly.
class GemvReads {
 public:
  GemvReads(GemvReadShape shape, const arch::Timing& timing);

  // Cycles until the last column has read its rounds; the others' times count a little.
  double cycles(const Rounds& rounds) const;
  // Rounds of the first `columns` columns, one to whichever has read its last.
  Rounds partition(int64_t row_blocks, int columns) const;

 private:
  double run(Rounds* rounds, int64_t left_over, int columns) const;

  GemvReadShape shape_;
  double bandwidth_, x_cycles_, limit_ = 0;  // bytes per cycle; of x per round
  double round_ = 0;                         // bytes of a round of a channel
  std::vector<double> starts_;               // per column
};

}  // namespace npu::perf
