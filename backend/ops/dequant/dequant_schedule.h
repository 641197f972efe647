// Per-size runtime streams of the dequantisation design (designs/dequant.py): which lane expands
// which pairs of row-blocks, their shim BDs, pushes and waits.
//
// A task of a lane is a pair of row-blocks along K, or, if W is narrow, a column block of many
// pairs: a BD in and a BD out, executed once per block pair. Four tasks per lane are in flight; the
// end of a task's output frees both BDs.
#pragma once

#include <cstdint>

#include "aie_kernels/weight_block.h"
#include "runtime/configuration.h"
#include "stream/txn.h"

namespace npu::ops {

// What a dequantisation configuration fixes (its `param` lines).
struct DequantArray {
  int columns;
  int lanes;  // per column
  int cores;  // per lane: neighbouring row-blocks that it expands together
  blocks::Format format;

  // Throws Error(kFormat) for parameters that are missing or describe no array.
  static DequantArray of(const Configuration& configuration);
};

// Arguments of a stream.
enum DequantArgument : uint32_t { kDequantBlocks, kDequantOut };

// Blocks of W; the output is (32 row_blocks, columns of a block * column_blocks) bfloat16.
struct DequantProblem {
  int64_t row_blocks = 0, column_blocks = 0;
  auto operator<=>(const DequantProblem&) const = default;
};

// Appends the commands of `problem`. Throws Error(kShape).
void append_dequant(stream::Builder& builder, const Configuration& configuration,
                    const DequantProblem& problem);

}  // namespace npu::ops
