// A chunk's keys and values: where its rows go in the cache, and the jobs of attention that read
// them (prefill_plan.h).
#include <algorithm>
#include <bit>
#include <cassert>
#include <numbers>

#include "ops/prefill/prefill_tasks.h"
#include "rounding.h"

namespace npu::ops {

// Of row-blocks `first` and `first` + 1. A chunk begins where a pair of row-blocks lies together.
void PrefillPlan::chunk_keys(std::vector<PrefillTask>& to, size_t layer, int64_t column,
                             int64_t first) const {
  const int64_t row_bytes = model_.shape.head_dim * 2, unit = kRows * row_bytes / 4;
  const int64_t offset = kv().row(chunk_->pages[layer], 0, chunk_->position + first * kRows);
  if ((first == 0 && chunk_->lead > 0) || (first + kPairs) * kRows > chunk_->tokens) {
    keys_by_rows(to, column, [&](int64_t kv_head, int64_t row) {
      const int64_t slot = first * kRows + row;
      if (slot < chunk_->lead || slot >= chunk_->tokens) return int64_t{-1};
      return offset + kv_head * kv().head_bytes() + row * row_bytes;
    });
    return;
  }
  PrefillTask keys;
  keys.group = group_;
  keys.argument = kPrefillPool;
  keys.bd = bd_of(kPairs * unit, {{1, kBlockWords}, {unit, kPairs}, {kBlockWords}});
  keys.offset = offset;
  for (int values = 0; values < 2; ++values, keys.offset += kv().chunk_bytes()) {
    repeated(to, keys, model_.shape.kv_heads, kv().head_bytes() / 4);
  }
}

// Rows of a pair of row-blocks, whose pieces alternate.
void PrefillPlan::keys_by_rows(std::vector<PrefillTask>& to, int64_t column,
                               const KeyPlace& place) const {
  const int64_t row = model_.shape.head_dim / 2;  // words
  const int64_t per_piece = kBlockWords / row, rows = kPairs * kRows;
  PrefillTask task;
  task.group = group_;
  const auto add = [&](uint32_t argument, int64_t at) {
    const bool follows =
        task.bd.length > 0 && task.argument == argument &&
        (argument == kPrefillWorkspace || task.offset + int64_t{task.bd.length} * 4 == at);
    if (!follows && task.bd.length > 0) to.push_back(task);
    if (!follows) task.argument = argument, task.offset = at, task.bd.length = 0;
    task.bd.length += static_cast<uint32_t>(row);
  };
  for (int64_t i = 0; i < 2 * model_.shape.kv_heads * rows; ++i) {  // K of all heads, then V
    const int64_t head = i / rows, in_pair = i % rows;
    const int64_t piece = in_pair / per_piece / kPairs, upper = in_pair / per_piece % kPairs;
    const int64_t values = head / model_.shape.kv_heads;
    const int64_t at = place(head % model_.shape.kv_heads,
                             upper * kRows + piece * per_piece + in_pair % per_piece);
    if (at < 0) {
      add(kPrefillWorkspace, layout_.dump(column));
    } else {
      add(kPrefillPool, at + values * kv().chunk_bytes());
    }
  }
  to.push_back(task);
}

void PrefillPlan::attention(PrefillStep& step, size_t layer) {
  const int64_t units = int64_t{array_.units} * array_.cores();
  const int64_t jobs = divide_up(used_ * layout_.group(), units);
  for (int64_t g = 0; g < model_.shape.kv_heads; ++g) {
    for (int64_t job = 0; job < jobs; ++job, ++group_) attention_job(step, layer, g, job);
  }
}

// All but what depends on the queries.
Job PrefillPlan::attention_header(size_t layer) const {
  const DecoderShape& s = model_.shape;
  Job job{};
  job.kind = word(int64_t(prefill::Kind::kAttention));
  job.units = word(array_.units);
  job.group = word(layout_.group());
  job.head_dim = word(s.head_dim), job.dim = word(s.dim);
  job.window = word(model_.layers[layer].window);
  job.causal = 1;
  job.a_turns = prefill::kChunkHalves;
  job.scale = std::bit_cast<int32_t>(s.attention_scale * std::numbers::log2e_v<float>);
  return job;
}

// The chunks of keys that queries at positions [first, last) see; the header says which they are.
void PrefillPlan::add_keys(std::vector<PrefillTask>& to, Job job, std::span<const int64_t> pages,
                           int64_t kv_head, int64_t first, int64_t last) {
  const KvLayout layout = kv();
  const int64_t size = layout.chunk_positions(), per_page = layout.page_chunks();
  const int64_t from = first_seen(first, job.window);
  int64_t chunk = from / size;
  const int64_t chunks = last > first ? divide_up(last, size) - chunk : 0;
  job.chunks = word(chunks);
  job.key_position = word(chunk * size);
  job.keys_from = word(from);
  to.push_back(header(job));
  for (const int64_t stop = chunk + chunks; chunk < stop;) {
    const int64_t run = std::min(stop, (chunk / per_page + 1) * per_page) - chunk;
    PrefillTask task;
    task.group = group_;
    task.argument = kPrefillPool;
    task.offset = layout.row(pages, kv_head, chunk * size);
    task.bd = payloads(objects_of(run * 2 * layout.chunk_bytes()));
    task.part = static_cast<double>(chunk + run - stop + chunks) / static_cast<double>(chunks + 1);
    to.push_back(task);
    chunk += run;
  }
}

// Row r of the array has the units of `high` row-blocks, each core `units` of them.
void PrefillPlan::attention_job(PrefillStep& step, size_t layer, int64_t kv_head, int64_t number) {
  const DecoderShape& s = model_.shape;
  const int64_t per_row = int64_t{array_.units} * array_.columns, group = layout_.group();
  // A group's results, a task per unit and channel, are under way at once: the command processor
  // may wait for tasks of the next group before it has pushed any more of them.
  assert(array_.units <= arch::kTaskQueueDepth);
  const int64_t high = per_row / group, first = number * kArrayRows * per_row;
  const int64_t unit = s.head_dim / kSlice * kBlockWords;
  const int64_t end = chunk_->position + chunk_->tokens;
  Job job = attention_header(layer);
  job.first_unit = word(first);
  job.query_position = word(chunk_->position);
  job.queries_from = word(chunk_->position + chunk_->lead);
  job.keys_end = word(end);
  for (int64_t r = 0; r < kArrayRows; ++r) {
    const int64_t query = chunk_->position + (number * kArrayRows + r) * high * kRows;
    add_keys(step.a[static_cast<size_t>(r)], job, chunk_->pages[layer], kv_head,
             std::max(query, chunk_->position + chunk_->lead), std::min(query + high * kRows, end));
  }
  for (int64_t c = 0; c < array_.columns; ++c) {
    PrefillTask task =
        in_workspace(layout_.queries(kv_head) + (first + c * array_.units) * unit * 4,
                     bd_of(array_.units * kBWords, {{1, kBWords / 2}, {kBWords / 2, 2}, {unit}}));
    auto& queries = step.b[static_cast<size_t>(c)];
    const size_t tasks = queries.size();
    repeated(queries, task, kArrayRows, per_row * unit);
    task.bd = bd_of(prefill::kHeld * kBWords, {{1, kBWords / 2}, {kBWords / 2, 2}, {unit}});
    queries.push_back(task);  // to be kept, whatever they are
    before_keys(queries, tasks);
    for (int64_t upper = 0; upper < 2; ++upper) {
      auto& channel = step.c[static_cast<size_t>(upper)][static_cast<size_t>(c)];
      const int64_t width = s.dim / kSlice, result = width * kBlockWords;
      for (int64_t j = 0; j < array_.units; ++j) {
        const int64_t u = first + kPairs * upper * per_row + c * array_.units + j;
        if (u % group >= s.group()) {
          dump(channel, c, kPairs * result);
          continue;
        }
        const int64_t rows = layout_.attention_rows();
        const int64_t head = kv_head * s.group() + u % group;
        task.offset = layout_.attention() + (head * width * rows + u / group) * kBlock;
        task.bd = bd_of(kPairs * result,
                        {{1, kBlockWords}, {high * kBlockWords, kPairs}, {rows * kBlockWords}});
        channel.push_back(task);
      }
    }
  }
}

}  // namespace npu::ops
