// A batch's head: its step, and its results for the host (prefill_head.h).
#include "ops/prefill/prefill_head.h"

#include <algorithm>
#include <cstring>

#include "ops/prefill/prefill_tasks.h"
#include "rounding.h"

namespace npu::ops {

HeadResults::HeadResults(const PrefillArray& array, const DecoderModel& model)
    : pieces_(static_cast<size_t>(array.columns), 0) {
  int64_t before = 0;  // rows of the vocabulary
  for (const DecoderSegment& segment : model.head) {
    const DealtBlocks dealt(array, segment.format, 0, segment.row_blocks());
    const int64_t m = core_rows(array, PrefillBatch::kMaxSequences);
    for (int64_t at = 0; at < dealt.own; at += dealt.most) {
      for (int64_t c = 0; c < array.columns; ++c) {
        const int64_t blocks = dealt.count(c, at, dealt.most);
        if (blocks == 0) continue;
        const int64_t first = dealt.begin(c, at) * kSlice;
        const int64_t rows = std::min(blocks * kSlice, segment.n - first);
        const int64_t pieces = prefill::product_pieces(word(m), word(blocks), 1);
        int64_t& piece = pieces_[static_cast<size_t>(c)];
        shares_.push_back({c, before + first, rows, blocks, m, piece});
        piece += pieces;
      }
    }
    before += segment.n;
  }
}

int64_t HeadResults::channel_bytes(int64_t column) const {
  return pieces_[static_cast<size_t>(column)] * kPairs * kBlock;
}

int64_t HeadResults::channel(int64_t column, int64_t upper) const {
  int64_t before = 0;
  for (int64_t c = 0; c < column; ++c) before += 2 * channel_bytes(c);
  return before + upper * channel_bytes(column);
}

int64_t HeadResults::bytes() const {
  const int64_t last = std::ssize(pieces_) - 1;
  return channel(last, 0) + 2 * channel_bytes(last);
}

void HeadResults::read(const PrefillLayout& layout, std::span<const std::byte> memory,
                       int64_t row_block, std::span<float> out) const {
  constexpr int64_t kLine = kSlice * sizeof(float);
  float factor;  // of the last row
  const int64_t factors = layout.factors() + row_block * kBlock;
  std::memcpy(&factor, memory.data() + factors + (kRows - 1) * sizeof factor, sizeof factor);
  std::vector<int64_t> channels[2];
  for (int64_t upper = 0; upper < 2; ++upper) {
    for (int64_t c = 0; c < std::ssize(pieces_); ++c) {
      channels[upper].push_back(layout.logits() + channel(c, upper));
    }
  }
  for (const HeadShare& share : shares_) {
    const int64_t high = share.m / kRows, core = row_block / high;  // the row of the array
    const int64_t from = channels[core / kPairs][static_cast<size_t>(share.column)];
    for (int64_t block = 0; block < share.blocks; ++block) {
      const int64_t line = block * high + row_block % high, lines = prefill::kWideLines;
      const int64_t piece = (share.piece + line / lines) * kPairs + core % kPairs;
      const int64_t first = share.first + block * kSlice;
      const int64_t count = std::min<int64_t>(kSlice, share.rows - block * kSlice);
      float* to = out.data() + first;
      std::memcpy(to, memory.data() + from + piece * kBlock + line % lines * kLine,
                  static_cast<size_t>(count) * sizeof(float));
      for (int64_t i = 0; i < count; ++i) to[i] *= factor;
    }
  }
}

void PrefillPlan::head(PrefillStep& step, const Source& source) {
  const HeadResults results(array_, model_);
  for (const DecoderSegment& segment : model_.head) {
    product_rows(step, segment, 0, segment.row_blocks(), source, 0);
  }
  const int last = group_ - 1;
  for (int64_t c = 0; c < array_.columns; ++c) {
    const int64_t bytes = results.channel_bytes(c);
    for (int64_t upper = 0; upper < 2 && bytes > 0; ++upper) {
      PrefillTask task =
          in_workspace(layout_.logits() + results.channel(c, upper), contiguous(bytes / 4));
      task.group = last;
      step.c[static_cast<size_t>(upper)][static_cast<size_t>(c)].push_back(task);
    }
  }
}

}  // namespace npu::ops
