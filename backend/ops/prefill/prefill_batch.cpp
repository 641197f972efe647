// What a batch of sequences does otherwise than a chunk (prefill_plan.h): a row-block belongs to a
// sequence with positions and pages of its own. In attention a row of the array has one key head of
// one sequence, in its first cores; what the others compute goes nowhere.
#include <algorithm>
#include <cassert>

#include "ops/prefill/prefill_tasks.h"
#include "rounding.h"

namespace npu::ops {

void PrefillPlan::batch_keys(std::vector<PrefillTask>& to, size_t layer, int64_t column,
                             int64_t first) const {
  keys_by_rows(to, column, [&](int64_t kv_head, int64_t row) {
    const auto number = static_cast<size_t>(first + row / kRows);
    if (number >= batch_->sequences.size()) return int64_t{-1};
    const PrefillBatch::Sequence& sequence = batch_->sequences[number];
    const int64_t position = sequence.end() - kRows + row % kRows;
    if (position < sequence.position) return int64_t{-1};
    return kv().row(sequence.pages[layer], kv_head, position);
  });
}

// Sequences of a key head one after the other, so that results of neighbours lie one behind the
// other.
void PrefillPlan::batch_attention(PrefillStep& step, size_t layer) {
  std::vector<BatchHead> heads;
  for (int64_t g = 0; g < model_.shape.kv_heads; ++g) {
    for (int64_t i = 0; i < used_; ++i) heads.push_back({g, i});
  }
  for (size_t first = 0; first < heads.size(); first += kArrayRows, ++group_) {
    const size_t count = std::min<size_t>(kArrayRows, heads.size() - first);
    batch_job(step, layer, std::span(heads).subspan(first, count));
  }
}

// Row r of the array has heads[r], if there is one.
void PrefillPlan::batch_job(PrefillStep& step, size_t layer, std::span<const BatchHead> heads) {
  const int64_t per_row = int64_t{array_.units} * array_.columns;
  for (int64_t r = 0; r < kArrayRows; ++r) {
    auto& channel = step.a[static_cast<size_t>(r)];
    Job job = attention_header(layer);
    if (r >= std::ssize(heads)) {
      channel.push_back(header(job));
      continue;
    }
    const BatchHead& head = heads[static_cast<size_t>(r)];
    const auto& sequence = batch_->sequences[static_cast<size_t>(head.sequence)];
    // Units count on from row to row of the array, row-blocks of 8 positions with them.
    const int64_t before = r * per_row / layout_.group() * kRows;
    job.query_position = word(sequence.end() - kRows - before);
    job.queries_from = word(sequence.position);
    job.keys_end = word(sequence.end());
    add_keys(channel, job, sequence.pages[layer], head.kv_head, sequence.position, sequence.end());
  }
  for (int64_t c = 0; c < array_.columns; ++c) {
    batch_queries(step.b[static_cast<size_t>(c)], heads, c);
    batch_results(step, heads, c);
  }
}

// Those of each row of the array in turn. Cores without units of their own get any.
void PrefillPlan::batch_queries(std::vector<PrefillTask>& to, std::span<const BatchHead> heads,
                                int64_t column) const {
  const int64_t unit = model_.shape.head_dim / kSlice * kBlockWords, group = layout_.group();
  const size_t tasks = to.size();
  std::vector<int64_t> words;
  for (int64_t r = 0; r < kArrayRows; ++r) {
    const BatchHead& head = heads[std::min(static_cast<size_t>(r), heads.size() - 1)];
    const int64_t first = std::min<int64_t>(column, divide_up(group, int64_t{array_.units}) - 1);
    words.push_back(layout_.queries(head.kv_head) / 4 +
                    (head.sequence * group + first * array_.units) * unit);
  }
  for (size_t r = 0; r < words.size();) {  // rows of the array at equal distances
    size_t end = r + 1;
    const int64_t step = end < words.size() ? words[end] - words[r] : 0;
    while (step > 0 && end < words.size() && words[end] - words[end - 1] == step) ++end;
    const PrefillTask task = in_workspace(
        words[r] * 4, bd_of(array_.units * kBWords, {{1, kBWords / 2}, {kBWords / 2, 2}, {unit}}));
    repeated(to, task, static_cast<int64_t>(end - r), std::max<int64_t>(step, 1));
    r = end;
  }
  to.push_back(in_workspace(  // to be kept, whatever they are
      words[0] * 4, bd_of(prefill::kHeld * kBWords, {{1, kBWords / 2}, {kBWords / 2, 2}, {unit}})));
  before_keys(to, tasks);
}

// They come when all keys have passed, so that no task ends before.
void PrefillPlan::batch_results(PrefillStep& step, std::span<const BatchHead> heads,
                                int64_t column) const {
  const DecoderShape& s = model_.shape;
  const int64_t width = s.dim / kSlice, rows = layout_.attention_rows();
  const int64_t first = column * array_.units;  // of the group
  const int64_t units = std::clamp<int64_t>(s.group() - first, 0, array_.units);
  const auto place = [&](const BatchHead& head) {
    return ((head.kv_head * s.group() + first) * width * rows + head.sequence) * kBlockWords;
  };
  for (size_t upper = 0; upper < 2; ++upper) {
    auto& channel = step.c[upper][static_cast<size_t>(column)];
    const size_t at = upper * kPairs;
    int64_t left = array_.units;
    if (at < heads.size() && units > 0) {
      left -= units;
      const int64_t low = place(heads[at]);
      // Behind the last sequence there is a row-block of nobody.
      const int64_t high = at + 1 < heads.size() ? place(heads[at + 1]) : low + kBlockWords;
      assert(high > low && (at + 1 < heads.size() || used_ < rows));
      channel.push_back(
          in_workspace(layout_.attention() + low * 4,
                       bd_of(kPairs * units * width * kBlockWords,
                             {{1, kBlockWords}, {high - low, kPairs}, {rows * kBlockWords}})));
    }
    if (left > 0) dump(channel, column, kPairs * left * width * kBlockWords);
  }
}

}  // namespace npu::ops
