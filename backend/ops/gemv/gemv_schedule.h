// Per-size runtime streams of the GEMV design (designs/gemv.py): which core multiplies which
// row-blocks, the setup object that tells the cores, and the shim BDs, pushes and waits.
//
// Weight channels come first, since the reads of weights bound the time; then x, whose first object
// is the setup; then the results. A core that has its channel to itself reads its row-blocks one
// after the other, 64 per task; several cores on a channel take turns block by block, a task per
// row-block of each. Transfers are no longer than a row-block: memory then serves x, one row-block
// ahead, beside them.
#pragma once

#include <cstdint>
#include <vector>

#include "aie_kernels/gemv_setup.h"
#include "aie_kernels/weight_block.h"
#include "runtime/configuration.h"
#include "stream/txn.h"

namespace npu::ops {

// BDs of shim tiles that the configuration writes and streams only address: the first blocks of a
// weight channel (+ channel), the setup with one object of x, an object of y of a column's cores.
// designs/gemv.py reads these numbers.
inline constexpr int kGemvWeightBd = 12, kGemvXBd = 14, kGemvYBd = 15;
inline constexpr int kGemvBatch = gemv::kMaxBatch;
inline constexpr int64_t kGemvTopBytes = gemv::kTopBytes;

// What a GEMV configuration fixes (its `param` lines).
struct GemvArray {
  int columns, rows;    // cores; with two channels the last column has half its rows
  int channels;         // weight channels per column; the last column has one less if 2
  int64_t block_bytes;  // of W's blocks
  int64_t x_bytes, y_bytes;
  int64_t preconfigured_blocks;  // of a weight channel's preconfigured BD; 0: none
  arch::Generation generation;

  // Throws Error(kFormat) for parameters that are missing or describe no array.
  static GemvArray of(const Configuration& configuration);
  // Weight channels of a column, and the cores each of them feeds.
  int ports(int col) const { return channels == 2 && col + 1 < columns ? 2 : 1; }
  int cores_per_port() const { return rows / channels; }
  int cores(int col) const { return ports(col) * cores_per_port(); }
  // The fewest row-blocks of W: what the cores of one channel read side by side.
  int64_t min_row_blocks() const { return cores_per_port(); }
};

// Arguments of a stream.
enum GemvArgument : uint32_t { kGemvW, kGemvX, kGemvY };

using GemvOutput = gemv::Output;

struct GemvProblem {
  int64_t row_blocks = 0, column_blocks = 0;  // of W: N / 32, K / columns of a block
  int64_t rows = 0;                           // N without padding; limits kTop
  int batch = 1;                              // 1, 2, 4 or 8 (kF32: up to 4)
  GemvOutput output = GemvOutput::kBf16;
  int top = 0;  // entries per vector of kTop
  blocks::Format format = blocks::Format::kQ4nx;
  auto operator<=>(const GemvProblem&) const = default;
};

// The row-blocks of one column of cores: round t of core r computes first[r] + t * step.
struct GemvShare {
  int64_t rounds = 0;
  int64_t step = 1;
  std::vector<int64_t> first;  // per core
  int64_t y_objects = 0;       // per core
  int64_t y_row_blocks = 0;    // row-blocks per object of y
  int64_t y_offset = 0;        // bytes: its objects in the results, (y_objects, cores, y_bytes)
};

// How a problem is laid out over the array, and what its stream assumes of its buffers.
struct GemvSchedule {
  int64_t x_objects = 0, x_blocks = 0;  // objects per row-block; column blocks in all but the last
  int64_t rounds = 0;                   // of the column with most
  // x fits one object, which cores keep for all their row-blocks; else x is sent once per round.
  bool resident = false;
  int64_t x_sends = 0;
  std::vector<GemvShare> shares;     // per column
  int64_t x_bytes = 0, y_bytes = 0;  // of the buffers: setup object and x; results
  std::vector<int32_t> setup;        // the setup object: a gemv::Setup per core
};

// Throws Error(kShape, kOutOfRange, kArgument).
GemvSchedule schedule_gemv(const GemvArray& array, const GemvProblem& problem);
// Appends the commands that carry `schedule` out.
void append_gemv(stream::Builder& builder, const Configuration& configuration,
                 const GemvProblem& problem, const GemvSchedule& schedule);

}  // namespace npu::ops
