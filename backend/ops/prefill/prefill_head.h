// Results of a batch's head: of each sequence the last token's logits, fp32, before the factor of
// its norm. A core's results lie one behind the other as they leave it (prefill_job.h, `wide`),
// next to its neighbour's, [column][lower, upper][piece][2][kWideLines][32].
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/prefill/prefill_layout.h"

namespace npu::ops {

// Row-blocks of the head that a column of the array has in a job.
struct HeadShare {
  int64_t column, first, rows;  // of the vocabulary; rows behind the last are padding
  int64_t blocks, m;            // row-blocks; rows of a core
  int64_t piece;                // the first of its results, of a core
};

class HeadResults {
 public:
  HeadResults(const PrefillArray& array, const DecoderModel& model);

  int64_t bytes() const;
  // Of a channel of results: those of the lower or upper two cores of a column.
  int64_t channel(int64_t column, int64_t upper) const;
  int64_t channel_bytes(int64_t column) const;
  // out (vocabulary) = the logits of the sequence with a row-block. memory: the workspace.
  void read(const PrefillLayout& layout, std::span<const std::byte> memory, int64_t row_block,
            std::span<float> out) const;

 private:
  std::vector<HeadShare> shares_;  // in the order of the jobs
  std::vector<int64_t> pieces_;    // per column
};

}  // namespace npu::ops
