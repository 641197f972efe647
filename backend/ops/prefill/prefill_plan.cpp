// Steps and jobs of a chunk (prefill_plan.h). Strides of BDs are 32-bit words.
#include "ops/prefill/prefill_plan.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>
#include <iterator>

#include "ops/prefill/prefill_tasks.h"
#include "rounding.h"

namespace npu::ops {

PrefillPlan::PrefillPlan(const PrefillArray& array, const DecoderModel& model,
                         const PrefillLayout& layout, const PrefillChunk& chunk)
    : array_(array),
      model_(model),
      layout_(layout),
      chunk_(&chunk),
      a_words_(array.sizes().a_bytes() / 4),
      used_(divide_up(chunk.tokens, kRows)) {
  assert(chunk.position % PrefillLayout::kAlign == 0 && used_ <= layout.row_blocks());
}

PrefillPlan::PrefillPlan(const PrefillArray& array, const DecoderModel& model,
                         const PrefillLayout& layout, const PrefillBatch& batch)
    : array_(array),
      model_(model),
      layout_(layout),
      batch_(&batch),
      a_words_(array.sizes().a_bytes() / 4),
      used_(static_cast<int64_t>(batch.sequences.size())) {
  assert(used_ >= 1 && used_ <= PrefillBatch::kMaxSequences && used_ <= layout.row_blocks());
}

PrefillPlan::Kind PrefillPlan::kind(size_t step) const {
  if (step >= last_norm()) return step == last_norm() ? Kind::kLastNorm : Kind::kHead;
  return static_cast<Kind>(step % kLayerSteps);
}

const PrefillArray::Program& PrefillPlan::program(size_t step) const {
  using prefill::Kind;
  static constexpr Kind kJobs[] = {Kind::kNorm,      Kind::kProduct, Kind::kRotation,
                                   Kind::kAttention, Kind::kProduct, Kind::kNorm,
                                   Kind::kProduct,   Kind::kGeglu,   Kind::kProduct,
                                   Kind::kNorm,      Kind::kProduct};  // by kind(step)
  const DecoderMatrix* const product = matrix(step);
  if (product != nullptr && blocks::is_small(product->front().format)) {
    return array_.programs[PrefillArray::kSmallProducts];
  }
  return array_.programs[static_cast<size_t>(kJobs[static_cast<size_t>(kind(step))])];
}

const DecoderMatrix* PrefillPlan::matrix(size_t step) const {
  const auto layer = [&]() -> const DecoderLayer& { return model_.layers[step / kLayerSteps]; };
  switch (kind(step)) {
    case Kind::kQkv:
      return &layer().qkv;
    case Kind::kOutput:
      return &layer().output;
    case Kind::kGateUp:
      return &layer().gate_up;
    case Kind::kDown:
      return &layer().down;
    case Kind::kHead:
      return &model_.head;
    default:
      return nullptr;
  }
}

// Programs of one kind of jobs are told how many there are for each row.
void PrefillPlan::announce(PrefillStep& step) {
  group_ = 0;
  for (auto& channel : step.a) {
    Job job{};
    job.kind = word(int64_t(prefill::Kind::kJobs));
    job.rounds = word(std::ranges::count_if(channel, &PrefillTask::header));
    channel.insert(channel.begin(), header(job));
  }
}

PrefillStep PrefillPlan::make(size_t index) {
  PrefillStep step = jobs(index);
  announce(step);
  return step;
}

PrefillStep PrefillPlan::jobs(size_t index) {
  PrefillStep step;
  const auto columns = static_cast<size_t>(array_.columns);
  step.b.resize(columns);
  for (auto& channel : step.c) channel.resize(columns);
  const size_t at = index / kLayerSteps;
  const PrefillLayout& l = layout_;
  const int64_t rows = l.row_blocks(), column = rows * kBlockWords;
  const Source a{l.records() + 4 * kRows * kSlice, kRecordWords, rows * kRecordWords, l.factors()};
  group_ = 0;
  const Kind what = kind(index);
  if (what == Kind::kLastNorm) {
    norm(step, l.last_constants(), true);
    return step;
  }
  if (what == Kind::kHead) {
    head(step, {a.offset, a.row_step, a.column_step, -1, true});
    return step;
  }
  const int64_t width = divide_up(model_.shape.width, kSlice);
  const int64_t ffn = model_.shape.ffn / kSlice;
  const Target y[] = {{0, width, l.y()}};
  switch (what) {
    case Kind::kFirstNorm:
      norm(step, l.constants(at, PrefillLayout::kFirst), at > 0);
      break;
    case Kind::kQkv: {
      const Target to[] = {{0, model_.shape.qkv_rows() / kSlice, l.qkv()}};
      product(step, *matrix(index), a, to);
      break;
    }
    case Kind::kRotation:
      rotation(step, at);
      break;
    case Kind::kAttention:
      if (batch_ != nullptr) {
        batch_attention(step, at);
      } else {
        attention(step, at);
      }
      break;
    case Kind::kOutput:
      product(step, *matrix(index), {l.attention(), kBlockWords, l.attention_rows() * kBlockWords},
              y);
      break;
    case Kind::kSecondNorm:
      norm(step, l.constants(at, PrefillLayout::kSecond), true);
      break;
    case Kind::kGateUp: {
      const Target to[] = {{0, ffn, l.gate()}, {ffn, ffn, l.up()}};
      product(step, *matrix(index), a, to);
      break;
    }
    case Kind::kGeglu:
      geglu(step);
      break;
    case Kind::kDown:
      product(step, *matrix(index), {l.act(), kBlockWords, column}, y);
      break;
    case Kind::kLastNorm:
    case Kind::kHead:
      break;
  }
  return step;
}

arch::Bd PrefillPlan::payloads(int64_t objects) const {
  if (a_words_ == kPayloadWords) return contiguous(objects * a_words_);
  return bd_of(objects * a_words_, {{1, a_words_ / 2}, {a_words_ / 2, 2}, {kPayloadWords}});
}

PrefillTask PrefillPlan::in_workspace(int64_t offset, const arch::Bd& bd) const {
  PrefillTask out;
  out.offset = offset;
  out.bd = bd;
  out.group = group_;
  return out;
}

int64_t PrefillPlan::header_offset(int64_t number) const {
  return (std::ssize(array_.packets) + number * a_words_) * 4;
}

PrefillTask PrefillPlan::header(const Job& job) {
  std::vector<int32_t> words(sizeof job / 4);
  std::memcpy(words.data(), &job, sizeof job);
  const auto next = static_cast<int64_t>(headers_.size());
  const int64_t number = headers_.try_emplace(std::move(words), next).first->second;
  PrefillTask task = in_workspace(header_offset(number), contiguous(a_words_));
  task.argument = kPrefillHeaders;
  task.part = 0;
  task.early = task.header = true;
  return task;
}

void PrefillPlan::add_header(PrefillStep& step, const Job& job) {
  const PrefillTask task = header(job);
  for (auto& channel : step.a) channel.push_back(task);
}

std::vector<std::byte> PrefillPlan::headers() const {
  const std::span packets = std::as_bytes(std::span(array_.packets));
  std::vector<std::byte> out(packets.begin(), packets.end());
  std::ranges::copy(job_headers(), std::back_inserter(out));
  return out;
}

std::vector<std::byte> PrefillPlan::job_headers() const {
  std::vector<std::byte> out(static_cast<size_t>(std::ssize(headers_) * a_words_ * 4));
  for (const auto& [words, number] : headers_) {
    std::memcpy(out.data() + number * a_words_ * 4, words.data(), words.size() * 4);
  }
  return out;
}

void PrefillPlan::add_constants(PrefillStep& step, int64_t offset, int64_t objects) {
  PrefillTask task = in_workspace(offset, payloads(objects));
  task.part = 0;
  task.early = true;
  for (auto& channel : step.a) channel.push_back(task);
}

void PrefillPlan::dump(std::vector<PrefillTask>& to, int64_t column, int64_t words) const {
  PrefillTask task = in_workspace(layout_.dump(column), contiguous(words));
  to.push_back(task);
}

void PrefillPlan::norm(PrefillStep& step, int64_t constants, bool adds) {
  const DecoderShape& s = model_.shape;
  const int64_t groups = layout_.width_blocks() / kGroupBlocks;
  Job job{};
  job.kind = word(int64_t(prefill::Kind::kNorm));
  job.constants = word(layout_.norm_objects());
  job.used = word(used_columns());
  job.rounds = word(divide_up(used_, array_.cores()));
  job.first_groups = adds ? word(groups) : 0;
  job.groups = word(groups);
  job.a_turns = adds ? 1 : 0;
  job.b_turns = 2;
  job.b_pieces = 12;
  job.width = word(s.width);
  job.columns = word(layout_.width_blocks() * kSlice);
  job.epsilon = std::bit_cast<int32_t>(s.epsilon);
  add_header(step, job);
  add_constants(step, constants, layout_.norm_objects());
  for (int64_t round = 0; round < job.rounds; ++round, ++group_) norm_round(step, round, adds);
}

// Core (row, column) has row-block 4 column + row of the round.
void PrefillPlan::norm_round(PrefillStep& step, int64_t round, bool adds) {
  const int64_t rows = layout_.row_blocks(), width = layout_.width_blocks();
  const int64_t first = round * array_.cores(), column = rows * kBlockWords;
  for (int64_t r = 0; adds && r < kArrayRows; ++r) {
    PrefillTask task = in_workspace(
        layout_.y() + (first + r) * kBlock,
        bd_of(used_columns() * a_words_,
              {{1, kBlockWords}, {column, a_words_ / kBlockWords}, {kArrayRows * kBlockWords}}));
    auto& channel = step.a[static_cast<size_t>(r)];
    for (int pass = 0; pass < 2; ++pass) {
      repeated(channel, task, width / kGroupBlocks, kGroupBlocks * column);
    }
  }
  constexpr int64_t kXWords = kRows * kSlice;
  for (int64_t c = 0; c < used_columns(); ++c) {
    const int64_t at = first + kArrayRows * c;
    PrefillTask task = in_workspace(
        layout_.records() + at * kRecord,
        bd_of(kArrayRows * kBWords,
              {{1, kXWords}, {rows * kRecordWords, kBWords / kXWords}, {kRecordWords}}));
    repeated(step.b[static_cast<size_t>(c)], task, width / 4, 4 * rows * kRecordWords);
    for (int64_t upper = 0; upper < 2; ++upper) {
      auto& channel = step.c[static_cast<size_t>(upper)][static_cast<size_t>(c)];
      const int64_t row = at + kPairs * upper;
      if (row >= rows) {
        dump(channel, c, width * kPairs * kRecordWords);
        dump(channel, c, kPairs * kBlockWords);
        continue;
      }
      task.offset = layout_.records() + row * kRecord;
      task.bd =
          bd_of(kPairs * kRecordWords, {{1, kBlockWords}, {kRecordWords, kPairs}, {kBlockWords}});
      repeated(channel, task, width, rows * kRecordWords);
      PrefillTask factors =
          in_workspace(layout_.factors() + row * kBlock, contiguous(kPairs * kBlockWords));
      channel.push_back(factors);
    }
  }
}

void PrefillPlan::product(PrefillStep& step, const DecoderMatrix& matrix, const Source& source,
                          std::span<const Target> targets) {
  const int64_t column = layout_.row_blocks() * kBlock;
  int64_t before = 0;  // row-blocks of the segments before
  for (const DecoderSegment& segment : matrix) {
    const int64_t end = before + segment.row_blocks();
    for (const Target& target : targets) {
      const int64_t first = std::max(before, target.first);
      const int64_t last = std::min(end, target.first + target.count);
      if (first >= last) continue;
      product_rows(step, segment, first - before, last - first, source,
                   target.offset + (first - target.first) * column);
    }
    before = end;
  }
}

DealtBlocks::DealtBlocks(const PrefillArray& array, blocks::Format format, int64_t begin,
                         int64_t count)
    : first(begin),
      own(divide_up(count, int64_t{array.columns})),
      most(most_of(format)),
      end(begin + count) {}

void PrefillPlan::product_rows(PrefillStep& step, const DecoderSegment& segment, int64_t first,
                               int64_t blocks, const Source& source, int64_t target) {
  const int64_t all = core_rows(array_, used_);
  if (used_ * kRows <= kArrayRows * all) {  // a job has all rows
    product_blocks(step, segment, {array_, segment.format, first, blocks}, source, target, true);
    return;
  }
  // Neighbours in memory at the same time, which the last jobs share evenly.
  const int64_t most = DealtBlocks::most_of(segment.format) * array_.columns;
  for (int64_t done = 0; done < blocks; done += most) {
    const DealtBlocks dealt(array_, segment.format, first + done, std::min(most, blocks - done));
    product_blocks(step, segment, dealt, source, target + done * layout_.row_blocks() * kBlock,
                   false);
  }
}

void PrefillPlan::product_blocks(PrefillStep& step, const DecoderSegment& segment,
                                 const DealtBlocks& dealt, const Source& source, int64_t target,
                                 bool one_job) {
  const int first_group = group_;
  for (int64_t at = 0; at < dealt.own; at += dealt.most) {
    for (int64_t row = 0; row < used_; ++group_) {
      const int64_t m = core_rows(array_, used_ - row);  // a core's, a job has 4 m
      product_job(step, segment, dealt, at, source, row, m);
      if (!one_job) product_results(step, dealt, at, dealt.most, target, row, m, group_);
      row += kArrayRows * m / kRows;
    }
  }
  // Results of all jobs as one task: the command processor is what binds such short chunks.
  if (one_job && !source.wide) {
    product_results(step, dealt, 0, dealt.own, target, 0, core_rows(array_, used_), first_group);
  }
}

void PrefillPlan::product_job(PrefillStep& step, const DecoderSegment& segment,
                              const DealtBlocks& dealt, int64_t at, const Source& source,
                              int64_t row, int64_t m) {
  const int64_t row_bytes = segment.column_blocks() * segment.block_bytes();
  const int64_t columns = prefill::range_columns(segment.format);
  const int64_t holds = divide_up(segment.k, columns), slots = array_.sizes().row_slots;
  const int64_t operand = array_.sizes().operand_bytes / 4, high = m / kRows;
  Job job{};
  job.kind = word(int64_t(prefill::Kind::kProduct));
  job.m = word(m);
  job.format = word(int64_t(segment.format));
  job.holds = word(holds);
  const auto parts = prefill::range_parts(segment.format, job.m, array_.sizes().row_slots);
  job.before = parts.before, job.behind = parts.behind;
  job.scaled = source.factors >= 0 ? 1 : 0;
  job.wide = source.wide ? 1 : 0;
  int32_t* shares = &job.blocks0;
  for (int64_t c = 0; c < array_.columns; ++c) {
    shares[c] = word(dealt.count(c, at, dealt.most));
  }
  add_header(step, job);
  for (int64_t r = 0; r < kArrayRows; ++r) {
    auto& channel = step.a[static_cast<size_t>(r)];
    const int64_t first = row + r * high, objects = parts.objects();
    const bool exact = objects * slots * kSlice == columns * m;
    PrefillTask task =
        in_workspace(source.offset + first * source.row_step * 4,
                     bd_of((exact ? holds : 1) * objects * a_words_,
                           {{1, operand}, {source.row_step, high}, {source.column_step}}));
    if (exact) {
      channel.push_back(task);
    } else {
      repeated(channel, task, holds, columns / kSlice * source.column_step);
    }
    if (job.scaled == 0) continue;
    task.offset = source.factors + first * kBlock;
    task.bd = bd_of(a_words_, {{1, operand}, {kBlockWords, slots / kRows}});
    channel.push_back(task);
  }
  for (int64_t c = 0; c < array_.columns; ++c) {
    if (shares[c] == 0) continue;
    PrefillTask task;
    task.group = group_;
    task.early = true;
    task.argument = kPrefillRegions + static_cast<uint32_t>(segment.region);
    task.offset = segment.offset + dealt.begin(c, at) * row_bytes;
    auto& weights = step.b[static_cast<size_t>(c)];
    if (segment.format == blocks::Format::kBf16) {
      task.bd = contiguous(row_bytes / 4);
      weights.push_back(task);
      task.offset += row_bytes - kBBytes;  // once more, times zeros, to hold two
      task.bd = contiguous(kBWords);
      if (2 * holds > segment.column_blocks()) weights.push_back(task);
    } else {
      // Of small blocks an object has the beginning of the next one too.
      task.bd = bd_of(shares[c] * kBWords, {{1, kBWords / 2}, {kBWords / 2, 2}, {row_bytes / 4}});
      repeated(weights, task, holds, segment.block_bytes() / 4);
    }
  }
}

// Of jobs from the one on that begins with a column's row-block `at`, which is of group `group`.
void PrefillPlan::product_results(PrefillStep& step, const DealtBlocks& dealt, int64_t at,
                                  int64_t limit, int64_t target, int64_t row, int64_t m,
                                  int group) const {
  const int64_t column = layout_.row_blocks() * kBlockWords, high = m / kRows;
  for (int64_t c = 0; c < array_.columns; ++c) {
    const int64_t offset = target + (dealt.begin(c, at) - dealt.first) * column * 4;
    for (int64_t upper = 0; upper < 2; ++upper) {
      const PrefillTask task =
          in_workspace(offset + (row + kPairs * upper * high) * kBlock,
                       bd_of(kPairs * high * kBlockWords,
                             {{1, kBlockWords}, {high * kBlockWords, kPairs}, {kBlockWords}}));
      auto& channel = step.c[static_cast<size_t>(upper)][static_cast<size_t>(c)];
      size_t i = channel.size();
      repeated(channel, task, dealt.count(c, at, limit), column);
      for (int64_t before = 0; i < channel.size(); before += channel[i++].repeats) {
        channel[i].group = group + word((before + channel[i].repeats - 1) / dealt.most);
      }
    }
  }
}

// Objects of kAPayload, dealt out to the cores by rows of the array.
void PrefillPlan::geglu(PrefillStep& step) {
  constexpr int64_t kBytes = prefill::kAPayload;
  const int64_t objects = layout_.ffn_blocks() * layout_.row_blocks() * kBlock / kBytes;
  const int64_t columns = array_.columns, cores = array_.cores();
  Job job{};
  job.kind = word(int64_t(prefill::Kind::kGeglu));
  job.used = word(columns);
  job.rounds = word(divide_up(objects, cores));
  job.groups = job.a_turns = job.b_turns = 1;
  job.b_pieces = word(kBytes / kBlock);
  add_header(step, job);
  for (int64_t r = 0; r < kArrayRows; ++r) {
    const PrefillTask task = in_workspace(layout_.gate() + r * columns * kBytes, payloads(columns));
    repeated(step.a[static_cast<size_t>(r)], task, job.rounds, cores * kPayloadWords);
  }
  for (int64_t c = 0; c < columns; ++c) {
    PrefillTask task =
        in_workspace(layout_.up() + c * kBytes,
                     bd_of(kArrayRows * kBWords,
                           {{1, kBWords / 2}, {kBWords / 2, 2}, {columns * kPayloadWords}}));
    repeated(step.b[static_cast<size_t>(c)], task, job.rounds, cores * kPayloadWords);
    for (int64_t upper = 0; upper < 2; ++upper) {
      task.offset = layout_.act() + (kPairs * upper * columns + c) * kBytes;
      task.bd = bd_of(kPairs * kPayloadWords,
                      {{1, kBlockWords}, {columns * kPayloadWords, kPairs}, {kBlockWords}});
      repeated(step.c[static_cast<size_t>(upper)][static_cast<size_t>(c)], task, job.rounds,
               cores * kPayloadWords);
    }
  }
}

void PrefillPlan::rotation(PrefillStep& step, size_t layer) {
  const DecoderShape& s = model_.shape;
  Job job{};
  job.kind = word(int64_t(prefill::Kind::kRotation));
  job.constants = 1;
  job.used = word(used_columns());
  job.rounds = word(divide_up(used_, array_.cores()));
  job.first_groups = word(objects_of(layout_.table_bytes()));
  job.groups = 1;
  job.b_turns = word(s.heads + 2 * s.kv_heads);
  job.b_pieces = word(s.head_dim / kSlice);
  job.heads = word(s.heads), job.kv_heads = word(s.kv_heads);
  job.head_dim = word(s.head_dim), job.dim = word(s.dim);
  // The mean is over head_dim elements, of which dim are not 0; the weights make up for it.
  const float share = static_cast<float>(s.dim) / static_cast<float>(s.head_dim);
  job.epsilon = std::bit_cast<int32_t>(s.epsilon * share);
  add_header(step, job);
  add_constants(step, layout_.constants(layer, PrefillLayout::kHeads), 1);
  for (int64_t round = 0; round < job.rounds; ++round, ++group_) {
    rotation_round(step, layer, round);
  }
}

// Core (row, column) has row-block 4 column + row of the round.
void PrefillPlan::rotation_round(PrefillStep& step, size_t layer, int64_t round) {
  const DecoderShape& s = model_.shape;
  const int64_t first = round * array_.cores(), column = layout_.row_blocks() * kBlockWords;
  const int64_t high = s.head_dim / kSlice;  // blocks of a unit
  const int64_t unit = high * kBlockWords, table = layout_.table_bytes();
  const int kind = DecoderWorkspace::kind_of(model_.layers[layer]);
  for (int64_t r = 0; r < kArrayRows; ++r) {
    PrefillTask task;
    task.group = group_;
    task.early = true;
    task.offset = layout_.table(kind) + (first + r) * table;
    task.bd = bd_of(used_columns() * a_words_,
                    {{1, a_words_ / 2}, {a_words_ / 2, 2}, {kArrayRows * table / 4}});
    repeated(step.a[static_cast<size_t>(r)], task, objects_of(table), kPayloadWords);
  }
  for (int64_t c = 0; c < used_columns(); ++c) {
    const int64_t at = first + kArrayRows * c;
    PrefillTask task =
        in_workspace(layout_.qkv() + at * kBlock,
                     bd_of(kArrayRows * kBWords,
                           {{1, kBlockWords}, {column, kBWords / kBlockWords}, {kBlockWords}}));
    repeated(step.b[static_cast<size_t>(c)], task, s.heads + 2 * s.kv_heads,
             s.dim / kSlice * column);
    for (int64_t upper = 0; upper < 2; ++upper) {
      auto& channel = step.c[static_cast<size_t>(upper)][static_cast<size_t>(c)];
      const int64_t row = at + kPairs * upper;
      if (row >= used_) {  // the cache may have no page there
        dump(channel, c, (s.heads + 2 * s.kv_heads) * kPairs * unit);
        continue;
      }
      const size_t tasks = channel.size();
      for (int64_t g = 0; g < s.kv_heads; ++g) {
        task.offset = layout_.queries(g) + row * layout_.group() * unit * 4;
        task.bd = bd_of(kPairs * unit,
                        {{1, kBlockWords}, {layout_.group() * unit, kPairs}, {kBlockWords}});
        repeated(channel, task, s.group(), unit);
      }
      if (batch_ != nullptr) {
        batch_keys(channel, layer, c, row);
      } else {
        chunk_keys(channel, layer, c, row);
      }
      in_order(channel, tasks);
    }
  }
}

}  // namespace npu::ops
