// Appends the commands of a token (decoder_stream.h).
//
// The command processor does one thing at a time, so what a step does not depend on is pushed while
// the step before it runs: its jobs and norms, where its results go, and above all weights, four
// tasks ahead on every channel. Weight channels need no tokens: the results of a pass prove that
// all its weights have been read.
#include "ops/decoder/decoder_stream.h"

#include <algorithm>
#include <cassert>
#include <deque>
#include <map>
#include <utility>

#include "ops/shim_queue.h"
#include "rounding.h"

namespace npu::ops {

namespace {

constexpr size_t kDepth = arch::kTaskQueueDepth;

// Bytes of weights behind q, k and v that a channel may read before attention's keys and values are
// under way, which would wait behind more: what arrives in time, found by simulation.
constexpr int64_t kAhead = 325 << 10;

// BDs of shim tiles.
constexpr BdRing kWeightBds{0, 4}, kResultBds{4, 4}, kKvBds{8, 6}, kPartialBds{14, 2};
constexpr BdRing kVectorBds{8, 5}, kMemoryBds{13, 3};  // of the column of the vector core

// Where the token's first key goes.
int64_t row_offset(const DecoderPosition& position, int layer) {
  return position.layout.row(position.pages[static_cast<size_t>(layer)], 0,
                             position.attention[0].position);
}

class DecoderCommands : private QueueCommands {
 public:
  DecoderCommands(stream::Builder& builder, const Configuration& configuration,
                  const DecoderArray& array, const DecoderModel& model,
                  const DecoderWorkspace& workspace, const DecoderPart& part,
                  const DecoderPosition& position)
      : QueueCommands(builder, configuration),
        array_(array),
        model_(model),
        workspace_(workspace),
        part_(part),
        steps_(std::span(workspace.steps()).subspan(part.first, part.last - part.first)),
        position_(position),
        vector_(port("X"), kVectorBds),
        memory_(port("H"), kMemoryBds) {
    for (int c = 0; c < array.columns; ++c) {
      weights_.emplace_back(port("W", c), kWeightBds);
      results_.emplace_back(port("Y", c), kResultBds);
    }
    for (int c = 0; c < array.pairs; ++c) {
      kv_.emplace_back(port("KV", c), kKvBds);
      partials_.emplace_back(port("O", c), kPartialBds);
    }
  }

  std::vector<DecoderVariable> append() {
    collect_weights();
    push_weights();
    for (size_t i = 0; i < steps_.size(); ++i) {
      if (placed_ == i) place(steps_[i]);
      if (begun_ == i) begin(steps_[i]);
      wait_for(steps_[i].needs);
      finish(steps_[i]);
      // Keys and values first: what waits for them is on the way to the next product.
      const bool reads_keys = steps_[i].kind == DecoderStep::Kind::kAttention;
      if (!reads_keys) push_weights();
      if (i + 1 == steps_.size()) break;
      const DecoderStep& next = steps_[i + 1];
      if (has_places(next)) {
        place(next);
        if (vector_.room() >= static_cast<int64_t>(next.early.size())) begin(next);
      }
      if (reads_keys) push_weights();
    }
    wait_results();
    wait_memory();
    return std::move(variables_);
  }

 private:
  struct WeightTask {
    DecoderPass::Task task;
    int region;
    size_t pass;   // number of its pass
    size_t after;  // attentions that have begun before it is pushed
  };
  struct KvTask {
    uint32_t argument;
    int64_t offset, repeats;
    arch::Bd bd;
    int id = 0;
    DecoderVariable variable = {};
    const DecoderRange* partial = nullptr;  // of which the result needs a place first
  };
  // A pass whose results are under way.
  struct Open {
    const DecoderPass* pass;
    int64_t reads;  // of the vector core until it had sent x
  };

  void collect_weights() {
    tasks_.resize(weights_.size());
    int64_t ahead = 0;  // bytes that a channel may read before attention, on average
    size_t number = 0, attentions = 0;
    for (const DecoderStep& step : steps_) {
      if (step.kind == DecoderStep::Kind::kAttention) {
        ++attentions;
        ahead = kAhead;
      }
      if (step.pass == nullptr) continue;
      int64_t all = 0;
      for (int c = 0; c < array_.columns; ++c) {
        all += collect_pass(*step.pass, c, number, attentions, ahead);
      }
      ahead = std::max<int64_t>(0, ahead - all / array_.columns);
      ++number;
    }
  }

  // What a channel reads for a pass, `ahead` bytes of it before attention. Returns its bytes. A
  // task is split only where a place of the queue is left: none is free before the pass has ended.
  int64_t collect_pass(const DecoderPass& pass, int column, size_t number, size_t attentions,
                       int64_t ahead) {
    std::vector<WeightTask>& to = tasks_[static_cast<size_t>(column)];
    const std::vector<DecoderPass::Task> reads = pass.reads(array_, column);
    [[maybe_unused]] const size_t before = to.size();
    int64_t all = 0;
    for (const DecoderPass::Task& task : reads) {
      const int64_t bytes = int64_t{task.bd.length} * 4;
      const int64_t left = std::max<int64_t>(0, ahead - all);
      int64_t early = attentions > 0 ? std::min(task.repeats, left / bytes) : task.repeats;
      if (early < task.repeats && reads.size() == kDepth) early = 0;
      const auto add = [&](int64_t first, int64_t count, size_t after) {
        DecoderPass::Task part = task;
        part.offset += first * int64_t{task.bd.iteration_step} * 4;
        part.repeats = part.bd.iteration_wrap = static_cast<uint32_t>(count);
        to.push_back({part, pass.segment.region, number, after});
      };
      if (early > 0) add(0, early, 0);
      if (early < task.repeats) add(early, task.repeats - early, attentions);
      all += task.repeats * bytes;
    }
    assert(to.size() - before <= kDepth);
    return all;
  }

  // As many tasks of every weight channel as its queue takes.
  void push_weights() {
    bool more = true;
    while (more) {
      more = false;
      for (size_t c = 0; c < weights_.size(); ++c) {
        ShimQueue& queue = weights_[c];
        const auto next = static_cast<size_t>(queue.pushed());
        if (next == tasks_[c].size() || queue.room() == 0) continue;
        const WeightTask& task = tasks_[c][next];
        if (task.after > attentions_) continue;
        const int64_t origin = part_.weights[static_cast<size_t>(task.region)].first;
        push(queue, task.task.bd, kDecoderRegions + static_cast<uint32_t>(task.region),
             task.task.offset - origin, task.task.repeats, false);
        more = true;
      }
    }
  }

  size_t of_part(int layer) const { return static_cast<size_t>(layer) - part_.layer; }

  // The BD that is written next may be another one at another position.
  void note(const KvTask& task) {
    if (task.argument != kDecoderPool) return;
    variables_.push_back(task.variable);
    variables_.back().word = next_bd_word();
  }

  void read(const DecoderRead& what) {
    while (vector_.room() == 0) wait_pass_or_memory();
    const bool constant = what.offset >= workspace_.constants();
    push(vector_, what.bd, constant ? kDecoderConstants : kDecoderWorkspace,
         constant ? what.offset - part_.constants.first : what.offset, what.repeats, false);
  }

  static int64_t writes(const DecoderStep& step) {
    return step.kind == DecoderStep::Kind::kRotation ? 2 : step.writes_row ? 1 : 0;
  }
  bool has_places(const DecoderStep& step) const {
    return memory_.room() >= writes(step) && (step.pass == nullptr || results_[0].room() > 0);
  }

  // Where a step's results go. Of attention, all but the start of its reads.
  void place(const DecoderStep& step) {
    ++placed_;
    if (step.writes_row) push_row();
    if (step.kind == DecoderStep::Kind::kRotation) push_rotated(step.layer);
    if (step.kind == DecoderStep::Kind::kAttention) prepare_attention(step.layer);
    if (step.pass != nullptr) push_results(*step.pass);
  }

  // What the vector core can begin with.
  void begin(const DecoderStep& step) {
    ++begun_;
    while (vector_.room() < static_cast<int64_t>(step.early.size())) wait_pass_or_memory();
    for (const DecoderRead& one : step.early) read(one);
    // The row before what the step waits for, if there is room: it has been there for a while.
    row_read_ = step.reads_row && vector_.room() > 0;
    if (!row_read_) return;
    wait_rows();
    read(step.late.front());
  }

  void finish(const DecoderStep& step) {
    if (step.kind == DecoderStep::Kind::kAttention) {
      start_attention();
      ++attentions_;
    }
    if (step.kind == DecoderStep::Kind::kCombination) read_partials(step.layer);
    if (step.reads_row) wait_rows();
    if (step.writes_row) rows_end_ = finished() + 1;
    for (size_t i = row_read_ ? 1 : 0; i < step.late.size(); ++i) read(step.late[i]);
    row_read_ = false;
    // What it writes to memory comes after all that it reads.
    for (int64_t i = 0; i < writes(step); ++i) reads_at_memory_.push_back(vector_.pushed());
    if (step.pass != nullptr) open_.push_back({step.pass, vector_.pushed()});
  }

  void push_memory(const arch::Bd& bd, uint32_t argument, int64_t offset) {
    push(memory_, bd, argument, offset, 1, true);
  }

  void push_row() {
    push_memory(linear_bd(static_cast<uint32_t>(workspace_.width_words())), kDecoderWorkspace,
                workspace_.row());
  }

  // The headers of the key heads, then the rows of keys and values in the cache.
  void push_rotated(int layer) {
    const DecoderShape& shape = model_.shape;
    const auto words = [](int64_t bytes) { return static_cast<uint32_t>(bytes / 4); };
    const auto heads = static_cast<uint32_t>(shape.kv_heads);
    arch::Bd headers;
    headers.wrap[0] = headers.step[1] = words(workspace_.queries_bytes() / 2);
    headers.wrap[1] = 2;
    headers.step[2] = words(workspace_.header_bytes());
    headers.length = heads * words(workspace_.queries_bytes());
    push_memory(headers, kDecoderWorkspace, workspace_.header(0));
    const KvLayout& layout = position_.layout;
    arch::Bd rows;
    rows.wrap[0] = words(2 * shape.head_dim);
    rows.wrap[1] = 2;
    rows.step[1] = words(layout.chunk_bytes());
    rows.step[2] = words(layout.head_bytes());
    rows.length = heads * words(4 * shape.head_dim);
    const size_t bd = next_bd_word();
    push_memory(rows, kDecoderPool, row_offset(position_, layer));
    variables_.push_back({DecoderVariable::Kind::kRow, of_part(layer), 0, 0, bd + kBdOffsetWord});
  }

  void push_results(const DecoderPass& pass) {
    while (results_[0].room() == 0) {
      wait_pass();
      push_weights();
    }
    for (int c = 0; c < pass.active(); ++c) {
      const uint32_t words = pass.result_words(c), piece = gemv::kPieceBytes / 4;
      arch::Bd bd;
      bd.length = words;
      bd.wrap[0] = bd.step[2] = piece;
      bd.wrap[1] = DecoderArray::kRows;
      bd.step[1] = words / DecoderArray::kRows;
      push(results_[static_cast<size_t>(c)], bd, kDecoderWorkspace, pass.y_offset(c), 1, true);
    }
    for (size_t c = static_cast<size_t>(pass.active()); c < results_.size(); ++c) {
      results_[c].next();  // keeps the columns in step
    }
  }

  void push_partial(const DecoderRange& range) {
    const int64_t words = workspace_.partial_objects() * attention::kOutBytes / 4;
    push(partials_[static_cast<size_t>(range.pair)], linear_bd(static_cast<uint32_t>(words)),
         kDecoderWorkspace, workspace_.partial(kv_kind_, range.kv_head, range.part), 1, true);
  }

  // Places for the first partial results, and the BDs of all pairs: headers, then keys and values.
  void prepare_attention(int layer) {
    const DecoderLayer& one = model_.layers[static_cast<size_t>(layer)];
    kv_kind_ = DecoderWorkspace::kind_of(one);
    const DecoderAttention& work = position_.attention[static_cast<size_t>(kv_kind_)];
    kv_tasks_.assign(kv_.size(), {});
    for (size_t r = 0; r < work.ranges.size(); ++r) {
      const DecoderRange& range = work.ranges[r];
      const auto pair = static_cast<size_t>(range.pair);
      const bool later = partials_[pair].room() == 0;
      if (!later) push_partial(range);
      const size_t first = kv_tasks_[pair].size();
      constexpr int64_t kPart = attention::kPartBytes;
      for (int64_t i = 0; i < workspace_.header_bytes() / kPart; ++i) {  // once for each core
        kv_tasks_[pair].push_back({kDecoderWorkspace, workspace_.header(range.kv_head) + i * kPart,
                                   2, linear_bd(kPart / 4)});
      }
      const std::span<const int64_t> pages = position_.pages[static_cast<size_t>(layer)];
      const std::vector<KvRead> reads = kv_reads(position_.layout, pages, range);
      for (size_t i = 0; i < reads.size(); ++i) {
        kv_tasks_[pair].push_back({kDecoderPool, reads[i].offset, 1, reads[i].bd});
        kv_tasks_[pair].back().variable = {DecoderVariable::Kind::kRead, of_part(layer), r, i, 0};
      }
      // Two ranges are four tasks at least, so that this one is behind those prepared here.
      if (later) kv_tasks_[pair][first].partial = &range;
      assert(!later || first >= kDepth);
    }
    for (size_t pair = 0; pair < kv_.size(); ++pair) {
      assert(kv_[pair].room() == kDepth);
      for (size_t i = 0; i < std::min<size_t>(kDepth, kv_tasks_[pair].size()); ++i) {
        KvTask& task = kv_tasks_[pair][i];
        note(task);
        task.id = write_ahead(kv_[pair], task.bd, task.argument, task.offset);
      }
    }
  }

  // Tokens only where tasks wait for room: the partial results prove that all was read.
  void start_attention() {
    bool more = true;
    for (size_t i = 0; more; ++i) {
      more = false;
      for (size_t pair = 0; pair < kv_.size(); ++pair) {
        if (i >= kv_tasks_[pair].size()) continue;
        more = true;
        const KvTask& task = kv_tasks_[pair][i];
        const bool token = kv_tasks_[pair].size() > kDepth;
        if (i < kDepth) {
          queue(kv_[pair].port(), task.id, task.repeats, token);
          continue;
        }
        if (task.partial != nullptr) {
          wait_oldest(partials_[pair]);
          push_partial(*task.partial);
        }
        wait_oldest(kv_[pair]);
        note(task);
        push(kv_[pair], task.bd, task.argument, task.offset, task.repeats, token);
      }
    }
  }

  // Statistics of all parts, then the parts piece by piece.
  void read_partials(int layer) {
    const DecoderLayer& one = model_.layers[static_cast<size_t>(layer)];
    const int kind = DecoderWorkspace::kind_of(one);
    const DecoderAttention& work = position_.attention[static_cast<size_t>(kind)];
    const int64_t begin = workspace_.partial(kind, 0, 0);
    const auto words = [](int64_t bytes) { return static_cast<uint32_t>(bytes / 4); };
    constexpr int64_t kObject = attention::kOutBytes;
    const int64_t part = workspace_.partial_objects() * kObject;
    const int64_t objects = workspace_.partial_objects() - 1, heads = model_.shape.kv_heads;
    DecoderRead statistics{begin + objects * kObject, {}, heads};
    constexpr int64_t kRecord = 8 * attention::kRows;
    statistics.bd.length = words(round_up(work.parts * kRecord, vector::kInBytes));
    statistics.bd.wrap[0] = words(kRecord);
    statistics.bd.step[1] = words(part);
    statistics.bd.iteration_step = words(workspace_.partial(kind, 1, 0) - begin);
    statistics.bd.iteration_wrap = static_cast<uint32_t>(heads);
    DecoderRead values = statistics;
    values.bd.wrap[0] = words(kObject);
    values.offset = begin;
    values.bd.length = words(work.parts * objects * kObject);
    values.bd.wrap[1] = static_cast<uint32_t>(work.parts);
    values.bd.step[2] = words(kObject);
    read(statistics);
    read(values);
  }

  void wait_for(DecoderStep::Needs needs) {
    switch (needs) {
      case DecoderStep::Needs::kNothing:
        return;
      case DecoderStep::Needs::kResults:
        return wait_results();
      case DecoderStep::Needs::kMemory:
        return wait_memory();
      case DecoderStep::Needs::kAttention:
        return wait_attention();
    }
  }

  // The partial results of all pairs, those of neighbours at once.
  void wait_attention() {
    for (bool more = true; more;) {
      size_t first = 0;
      const auto open = [&](size_t pair) { return partials_[pair].under_way() > 0; };
      while (first < partials_.size() && !open(first)) ++first;
      size_t end = first;
      while (end < partials_.size() && open(end)) ++end;
      more = first < end;
      if (more) wait(partials_[first].port(), static_cast<int>(end - first));
      for (size_t pair = first; pair < end; ++pair) partials_[pair].oldest_ended();
    }
    for (size_t pair = 0; pair < kv_.size(); ++pair) {
      const bool tokens = kv_tasks_[pair].size() > kDepth;
      while (tokens && kv_[pair].pushed() > kv_[pair].done()) {
        wait_oldest(kv_[pair]);
      }
      kv_[pair].ended(kv_[pair].pushed());
    }
  }

  void wait_results() {
    while (!open_.empty()) {
      wait_pass();
      if (!open_.empty()) push_weights();
    }
  }

  // The oldest pass: its results are there, so its weights and what made its x have been read.
  void wait_pass() {
    assert(!open_.empty());
    const Open open = open_.front();
    open_.pop_front();
    wait(results_[0].port(), open.pass->active());
    ++passes_done_;
    for (ShimQueue& queue : results_) queue.oldest_ended();
    vector_.ended(open.reads);
    for (size_t c = 0; c < weights_.size(); ++c) {
      int64_t ended = weights_[c].done();
      while (ended < weights_[c].pushed() &&
             tasks_[c][static_cast<size_t>(ended)].pass < passes_done_) {
        ++ended;
      }
      weights_[c].ended(ended);
    }
  }

  void wait_memory() {
    while (memory_.under_way() > 0) wait_memory_task();
  }
  void wait_memory_task() {
    assert(memory_.done() < finished());
    wait_oldest(memory_);
    vector_.ended(reads_at_memory_[static_cast<size_t>(memory_.done() - 1)]);
  }

  // Tasks for memory whose steps have all they read.
  int64_t finished() const { return static_cast<int64_t>(reads_at_memory_.size()); }

  // The row that a norm reads was written by the norm before.
  void wait_rows() {
    while (memory_.done() < rows_end_) wait_memory_task();
  }

  void wait_pass_or_memory() {
    if (memory_.done() < finished()) {
      wait_memory_task();
    } else {
      wait_pass();
      push_weights();
    }
  }

  const DecoderArray& array_;
  const DecoderModel& model_;
  const DecoderWorkspace& workspace_;
  const DecoderPart& part_;
  const std::span<const DecoderStep> steps_;
  const DecoderPosition& position_;
  ShimQueue vector_, memory_;
  std::vector<ShimQueue> weights_, results_, kv_, partials_;
  std::vector<std::vector<WeightTask>> tasks_;  // per column
  std::deque<Open> open_;
  std::vector<DecoderVariable> variables_;
  // Per task for memory whose step has all it reads: reads of the vector core until then.
  std::vector<int64_t> reads_at_memory_;
  std::vector<std::vector<KvTask>> kv_tasks_;  // of the step of attention, per pair
  int kv_kind_ = 0;                            // and the kind of its layer
  bool row_read_ = false;                      // by the step that has begun
  size_t placed_ = 0, begun_ = 0, passes_done_ = 0, attentions_ = 0;
  int64_t rows_end_ = 0;  // tasks for memory up to the last row
};

}  // namespace

std::vector<DecoderVariable> append_decoder(stream::Builder& builder,
                                            const Configuration& configuration,
                                            const DecoderArray& array, const DecoderModel& model,
                                            const DecoderWorkspace& workspace,
                                            const DecoderPart& part,
                                            const DecoderPosition& position) {
  return DecoderCommands(builder, configuration, array, model, workspace, part, position).append();
}

namespace {

void put_offset(size_t word, int64_t bytes, std::vector<StreamPatch>& out) {
  const auto value = static_cast<uint64_t>(bytes);
  out.push_back({word, static_cast<uint32_t>(value)});
  out.push_back({word + 1, static_cast<uint32_t>(value >> 32)});
}

}  // namespace

std::vector<StreamPatch> row_patches(size_t layer, const DecoderPosition& position,
                                     std::span<const DecoderVariable> variables) {
  std::vector<StreamPatch> out;
  for (const DecoderVariable& one : variables) {
    if (one.kind != DecoderVariable::Kind::kRow) continue;
    put_offset(one.word, row_offset(position, static_cast<int>(layer + one.layer)), out);
  }
  return out;
}

std::optional<std::vector<StreamPatch>> read_patches(arch::Generation generation,
                                                     const DecoderModel& model, size_t layer,
                                                     const DecoderPosition& position,
                                                     std::span<const DecoderVariable> variables) {
  const arch::Geometry& geometry = arch::device_geometry(generation);
  std::vector<StreamPatch> out;
  struct Range {
    std::vector<KvRead> reads;
    size_t found = 0;
  };
  std::map<std::pair<size_t, size_t>, Range> ranges;  // by layer
  for (const DecoderVariable& one : variables) {
    if (one.kind != DecoderVariable::Kind::kRead) continue;
    const size_t number = layer + one.layer;
    const auto [found, fresh] = ranges.try_emplace({number, one.range});
    Range& range = found->second;
    if (fresh) {
      const int kind = DecoderWorkspace::kind_of(model.layers[number]);
      const DecoderAttention& work = position.attention[static_cast<size_t>(kind)];
      if (one.range >= work.ranges.size()) return std::nullopt;
      range.reads = kv_reads(position.layout, position.pages[number], work.ranges[one.range]);
    }
    if (one.read >= range.reads.size()) return std::nullopt;
    ++range.found;
    const KvRead& kv = range.reads[one.read];
    const std::vector<uint32_t> bd =
        arch::encode_bd(arch::TileKind::kShim, shim_bd(kv.bd, geometry));
    for (size_t i = 0; i < bd.size(); ++i) out.push_back({one.word + i, bd[i]});
    put_offset(one.offset_word(), kv.offset, out);
  }
  for (const auto& [key, range] : ranges) {
    if (range.found != range.reads.size()) return std::nullopt;
  }
  return out;
}

}  // namespace npu::ops
