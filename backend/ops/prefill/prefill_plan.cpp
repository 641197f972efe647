// Steps and jobs of a chunk (prefill_plan.h). Strides of BDs are 32-bit words.
#include "ops/prefill/prefill_plan.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>
#include <numbers>

#include "rounding.h"

namespace npu::ops {

using prefill::Job, prefill::kBBytes, prefill::kRows, prefill::kSlice;

namespace {

constexpr int64_t kBlock = PrefillLayout::kBlock, kBlockWords = kBlock / 4;
constexpr int64_t kRecord = prefill::kRecordBytes, kRecordWords = kRecord / 4;
constexpr int64_t kPayloadWords = prefill::kAPayload / 4, kBWords = kBBytes / 4;
constexpr int64_t kArrayRows = PrefillArray::kRows, kPairs = 2;
constexpr int64_t kGroupBlocks = prefill::kGroup / kSlice;
constexpr int64_t kMostRepeats = 64;  // of a BD's iteration
constexpr int64_t kLeastRows = 16;    // of a core in a product

// Dimensions from the innermost on; the last needs no size.
struct Dim {
  int64_t step, size = 0;
};

arch::Bd bd_of(int64_t length, std::initializer_list<Dim> dims) {
  arch::Bd bd;
  bd.length = static_cast<uint32_t>(length);
  size_t i = 0;
  for (const Dim& dim : dims) {
    bd.step[i] = static_cast<uint32_t>(dim.step);
    if (i < 2) bd.wrap[i] = static_cast<uint32_t>(dim.size);
    ++i;
  }
  return bd;
}

int32_t word(int64_t value) { return static_cast<int32_t>(value); }

// One task, or several where a BD cannot repeat so often; `step` words from one repeat to the next.
void repeated(std::vector<PrefillTask>& to, PrefillTask task, int64_t repeats, int64_t step) {
  for (int64_t done = 0; done < repeats; done += kMostRepeats) {
    PrefillTask part = task;
    part.repeats = std::min(kMostRepeats, repeats - done);
    part.part = static_cast<double>(done + part.repeats) / static_cast<double>(repeats);
    part.offset += done * step * 4;
    part.bd.iteration_step = static_cast<uint32_t>(step);
    part.bd.iteration_wrap = static_cast<uint32_t>(part.repeats);
    to.push_back(part);
  }
}

// Tasks from number `first` on that end one after the other while their group runs, each when what
// it and those before it move has been moved.
void in_order(std::vector<PrefillTask>& tasks, size_t first) {
  const auto words = [](const PrefillTask& task) {
    return static_cast<double>(task.bd.length) * static_cast<double>(task.repeats);
  };
  double all = 0, before = 0;
  for (size_t i = first; i < tasks.size(); ++i) all += words(tasks[i]);
  for (size_t i = first; i < tasks.size(); ++i) {
    before += words(tasks[i]);
    tasks[i].part = before / all;
  }
}

int64_t objects_of(int64_t bytes) { return divide_up(bytes, int64_t{prefill::kAPayload}); }

arch::Bd contiguous(int64_t words) { return bd_of(words, {}); }

}  // namespace

// What is multiplied: blocks in memory, from row-block to row-block and from column to column.
struct PrefillPlan::Source {
  int64_t offset, row_step, column_step;  // words
  int64_t factors = -1;                   // bytes of the workspace; -1: none
};

// Where row-blocks of a matrix (32 rows) go.
struct PrefillPlan::Target {
  int64_t first, count, offset;
};

PrefillPlan::PrefillPlan(const PrefillArray& array, const DecoderModel& model,
                         const PrefillLayout& layout, const PrefillChunk& chunk)
    : array_(array),
      model_(model),
      layout_(layout),
      chunk_(chunk),
      a_words_(array.sizes().a_bytes() / 4),
      used_(divide_up(chunk.tokens, kRows)) {
  assert(chunk.position % PrefillLayout::kAlign == 0 && used_ <= layout.row_blocks());
}

PrefillPlan::Kind PrefillPlan::kind(size_t step) const {
  if (step + 1 == steps()) return Kind::kLastNorm;
  return static_cast<Kind>(step % kLayerSteps);
}

PrefillStep PrefillPlan::make(size_t index) {
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
  const DecoderLayer& layer = model_.layers[at];
  const int64_t width = divide_up(model_.shape.width, kSlice);
  const int64_t ffn = model_.shape.ffn / kSlice;
  const Target y[] = {{0, width, l.y()}};
  switch (what) {
    case Kind::kFirstNorm:
      norm(step, l.constants(at, PrefillLayout::kFirst), at > 0);
      break;
    case Kind::kQkv: {
      const Target to[] = {{0, model_.shape.qkv_rows() / kSlice, l.qkv()}};
      product(step, layer.qkv, a, to);
      break;
    }
    case Kind::kRotation:
      rotation(step, at);
      break;
    case Kind::kAttention:
      attention(step, at);
      break;
    case Kind::kOutput:
      product(step, layer.output, {l.attention(), kBlockWords, l.attention_rows() * kBlockWords},
              y);
      break;
    case Kind::kSecondNorm:
      norm(step, l.constants(at, PrefillLayout::kSecond), true);
      break;
    case Kind::kGateUp: {
      const Target to[] = {{0, ffn, l.gate()}, {ffn, ffn, l.up()}};
      product(step, layer.gate_up, a, to);
      break;
    }
    case Kind::kGeglu:
      geglu(step);
      break;
    case Kind::kDown:
      product(step, layer.down, {l.act(), kBlockWords, column}, y);
      break;
    case Kind::kLastNorm:
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

PrefillTask PrefillPlan::header(const Job& job) {
  std::vector<int32_t> words(sizeof job / 4);
  std::memcpy(words.data(), &job, sizeof job);
  const auto number = static_cast<int64_t>(headers_.size());
  PrefillTask task =
      in_workspace(headers_.try_emplace(std::move(words), number).first->second * a_words_ * 4,
                   contiguous(a_words_));
  task.argument = kPrefillHeaders;
  task.part = 0;
  task.early = true;
  return task;
}

void PrefillPlan::add_header(PrefillStep& step, const Job& job) {
  const PrefillTask task = header(job);
  for (auto& channel : step.a) channel.push_back(task);
}

std::vector<std::byte> PrefillPlan::headers() const {
  std::vector<std::byte> out(headers_.size() * static_cast<size_t>(a_words_) * 4);
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

void PrefillPlan::dump(std::vector<PrefillTask>& to, int64_t words) const {
  PrefillTask task = in_workspace(layout_.dump(), contiguous(words));
  to.push_back(task);
}

void PrefillPlan::norm(PrefillStep& step, int64_t constants, bool adds) {
  const DecoderShape& s = model_.shape;
  const int64_t groups = layout_.width_blocks() / kGroupBlocks;
  Job job{};
  job.kind = word(int64_t(prefill::Kind::kNorm));
  job.constants = word(layout_.norm_objects());
  job.rounds = word(divide_up(used_, array_.cores()));
  job.first_groups = adds ? word(groups) : 0;
  job.groups = word(groups);
  job.a_turns = adds ? 1 : 0;
  job.b_turns = 2;
  job.b_pieces = 12;
  job.tail = 1;
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
        bd_of(array_.columns * a_words_,
              {{1, kBlockWords}, {column, a_words_ / kBlockWords}, {kArrayRows * kBlockWords}}));
    auto& channel = step.a[static_cast<size_t>(r)];
    for (int pass = 0; pass < 2; ++pass) {
      repeated(channel, task, width / kGroupBlocks, kGroupBlocks * column);
    }
  }
  constexpr int64_t kXWords = kRows * kSlice;
  for (int64_t c = 0; c < array_.columns; ++c) {
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
        dump(channel, width * kPairs * kRecordWords);
        dump(channel, kPairs * kBlockWords);
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

void PrefillPlan::product_rows(PrefillStep& step, const DecoderSegment& segment, int64_t first,
                               int64_t blocks, const Source& source, int64_t target) {
  const prefill::Sizes sizes = array_.sizes();
  const int64_t shares = segment.format == blocks::Format::kBf16 ? 1 : prefill::kMaxBlocks;
  const int64_t most = shares * array_.columns;
  const int64_t column = layout_.row_blocks() * kBlock;
  for (int64_t done = 0; done < blocks; done += most) {
    const int64_t count = std::min(most, blocks - done);
    for (int64_t row = 0; row < used_;) {
      int64_t m = sizes.row_slots;  // rows of a core, a job has four times as many
      while (m > kLeastRows && m / 2 * kArrayRows >= (used_ - row) * kRows) m /= 2;
      product_job(step, segment, first + done, count, source, target + done * column, row, m);
      row += kArrayRows * m / kRows;
      ++group_;
    }
  }
}

void PrefillPlan::product_job(PrefillStep& step, const DecoderSegment& segment, int64_t first,
                              int64_t blocks, const Source& source, int64_t target, int64_t row,
                              int64_t m) {
  const int64_t row_bytes = segment.column_blocks() * kBBytes;
  const int64_t columns = prefill::range_columns(segment.format);
  const int64_t holds = divide_up(segment.k, columns), slots = array_.sizes().row_slots;
  const int64_t operand = array_.sizes().operand_bytes / 4;
  const int64_t share = divide_up(blocks, array_.columns), high = m / kRows;
  const int64_t column = layout_.row_blocks() * kBlockWords;
  Job job{};
  job.kind = word(int64_t(prefill::Kind::kProduct));
  job.m = word(m);
  job.format = word(int64_t(segment.format));
  job.holds = word(holds);
  job.slices = word(slots / m);
  job.parts = word(divide_up(columns / kSlice, job.slices));
  job.scaled = source.factors >= 0 ? 1 : 0;
  int32_t* shares = &job.blocks0;
  for (int64_t c = 0; c < array_.columns; ++c) {
    shares[c] = word(std::clamp<int64_t>(blocks - c * share, 0, share));
  }
  add_header(step, job);
  for (int64_t r = 0; r < kArrayRows; ++r) {
    auto& channel = step.a[static_cast<size_t>(r)];
    const int64_t at = row + r * high;
    const bool exact = job.parts * job.slices * kSlice == columns;
    PrefillTask task =
        in_workspace(source.offset + at * source.row_step * 4,
                     bd_of((exact ? holds : 1) * job.parts * a_words_,
                           {{1, operand}, {source.row_step, high}, {source.column_step}}));
    repeated(channel, task, exact ? 1 : holds, columns / kSlice * source.column_step);
    if (job.scaled == 0) continue;
    task.offset = source.factors + at * kBlock;
    task.bd = bd_of(a_words_, {{1, operand}, {kBlockWords, slots / kRows}});
    channel.push_back(task);
  }
  for (int64_t c = 0; c < array_.columns; ++c) {
    if (shares[c] == 0) continue;
    PrefillTask task;
    task.group = group_;
    task.early = true;
    task.argument = kPrefillRegions + static_cast<uint32_t>(segment.region);
    task.offset = segment.offset + (first + c * share) * row_bytes;
    auto& weights = step.b[static_cast<size_t>(c)];
    if (segment.format == blocks::Format::kBf16) {
      task.bd = contiguous(row_bytes / 4);
      weights.push_back(task);
      task.offset += row_bytes - kBBytes;  // once more, times zeros, to hold two
      task.bd = contiguous(kBWords);
      if (2 * holds > segment.column_blocks()) weights.push_back(task);
    } else {
      task.bd = bd_of(shares[c] * kBWords, {{1, kBWords / 2}, {kBWords / 2, 2}, {row_bytes / 4}});
      repeated(weights, task, holds, kBWords);
    }
    task.argument = kPrefillWorkspace;
    task.early = false;
    for (int64_t upper = 0; upper < 2; ++upper) {
      task.offset = target + c * share * column * 4 + (row + kPairs * upper * high) * kBlock;
      task.bd = bd_of(kPairs * high * kBlockWords,
                      {{1, kBlockWords}, {high * kBlockWords, kPairs}, {kBlockWords}});
      repeated(step.c[static_cast<size_t>(upper)][static_cast<size_t>(c)], task, shares[c], column);
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
    task.bd = bd_of(array_.columns * a_words_,
                    {{1, a_words_ / 2}, {a_words_ / 2, 2}, {kArrayRows * table / 4}});
    repeated(step.a[static_cast<size_t>(r)], task, objects_of(table), kPayloadWords);
  }
  for (int64_t c = 0; c < array_.columns; ++c) {
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
        dump(channel, (s.heads + 2 * s.kv_heads) * kPairs * unit);
        continue;
      }
      const size_t tasks = channel.size();
      for (int64_t g = 0; g < s.kv_heads; ++g) {
        task.offset = layout_.queries(g) + row * layout_.group() * unit * 4;
        task.bd = bd_of(kPairs * unit,
                        {{1, kBlockWords}, {layout_.group() * unit, kPairs}, {kBlockWords}});
        repeated(channel, task, s.group(), unit);
      }
      PrefillTask keys;
      keys.group = group_;
      keys.argument = kPrefillPool;
      keys.bd = bd_of(kPairs * unit, {{1, kBlockWords}, {unit, kPairs}, {kBlockWords}});
      keys.offset = kv_offset(layer, 0, chunk_.position + row * kRows);
      for (int values = 0; values < 2; ++values, keys.offset += chunk_.layout.chunk_bytes()) {
        if ((row == 0 && chunk_.lead > 0) || (row + kPairs) * kRows > chunk_.tokens) {
          keys_of_tokens(channel, row, keys.offset, unit);
        } else {
          repeated(channel, keys, s.kv_heads, chunk_.layout.head_bytes() / 4);
        }
      }
      in_order(channel, tasks);
    }
  }
}

// Rows of a pair of row-blocks, whose pieces alternate: those that are no tokens go nowhere.
void PrefillPlan::keys_of_tokens(std::vector<PrefillTask>& to, int64_t first, int64_t offset,
                                 int64_t unit) const {
  const int64_t row = model_.shape.head_dim / 2;  // words
  const int64_t per_piece = kBlockWords / row, pieces = unit / kBlockWords;
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
  for (int64_t g = 0; g < model_.shape.kv_heads; ++g) {
    for (int64_t i = 0; i < kPairs * pieces * per_piece; ++i) {
      const int64_t piece = i / per_piece / kPairs, upper = i / per_piece % kPairs;
      const int64_t at = upper * kRows + piece * per_piece + i % per_piece;
      const int64_t slot = first * kRows + at;
      if (slot < chunk_.lead || slot >= chunk_.tokens) {
        add(kPrefillWorkspace, layout_.dump());
      } else {
        add(kPrefillPool, offset + g * chunk_.layout.head_bytes() + at * row * 4);
      }
    }
  }
  to.push_back(task);
}

int64_t PrefillPlan::kv_offset(size_t layer, int64_t kv_head, int64_t position) const {
  return chunk_.layout.row(chunk_.pages[layer], kv_head, position);
}

void PrefillPlan::attention(PrefillStep& step, size_t layer) {
  const int64_t units = int64_t{array_.units} * array_.cores();
  const int64_t jobs = divide_up(used_ * layout_.group(), units);
  for (int64_t g = 0; g < model_.shape.kv_heads; ++g) {
    for (int64_t job = 0; job < jobs; ++job, ++group_) attention_job(step, layer, g, job);
  }
}

// Row r of the array has the units of `high` row-blocks, each core `units` of them.
void PrefillPlan::attention_job(PrefillStep& step, size_t layer, int64_t kv_head, int64_t number) {
  const DecoderShape& s = model_.shape;
  const KvLayout& kv = chunk_.layout;
  const int64_t per_row = int64_t{array_.units} * array_.columns, group = layout_.group();
  const int64_t high = per_row / group, first = number * kArrayRows * per_row;
  const int64_t unit = s.head_dim / kSlice * kBlockWords, window = model_.layers[layer].window;
  const int64_t size = kv.chunk_positions(), end = chunk_.position + chunk_.tokens;
  Job job{};
  job.kind = word(int64_t(prefill::Kind::kAttention));
  job.units = word(array_.units);
  job.group = word(group);
  job.first_unit = word(first);
  job.head_dim = word(s.head_dim), job.dim = word(s.dim);
  job.query_position = word(chunk_.position);
  job.keys_end = word(end);
  job.window = word(window);
  job.causal = 1;
  job.scale = std::bit_cast<int32_t>(s.attention_scale * std::numbers::log2e_v<float>);
  for (int64_t r = 0; r < kArrayRows; ++r) {
    auto& channel = step.a[static_cast<size_t>(r)];
    const int64_t query = chunk_.position + (number * kArrayRows + r) * high * kRows;
    const int64_t last = std::min(query + high * kRows, end);
    const int64_t real = std::max(query, chunk_.position + chunk_.lead);
    const int64_t from = window > 0 ? std::max<int64_t>(0, real - window + 1) : 0;
    int64_t chunk = from / size;
    const int64_t chunks = last > query ? divide_up(last, size) - chunk : 0;
    job.chunks = word(chunks);
    job.key_position = word(chunk * size);
    job.keys_from = word(from);
    channel.push_back(header(job));
    for (const int64_t stop = chunk + chunks; chunk < stop;) {
      const int64_t page_end = (chunk / kv.page_chunks() + 1) * kv.page_chunks();
      const int64_t run = std::min(stop, page_end) - chunk;
      PrefillTask task;
      task.group = group_;
      task.argument = kPrefillPool;
      task.offset = kv_offset(layer, kv_head, chunk * size);
      task.bd = payloads(run * 2 * chunk_.layout.chunk_bytes() / prefill::kAPayload);
      task.part =
          static_cast<double>(chunk + run - stop + chunks) / static_cast<double>(chunks + 1);
      channel.push_back(task);
      chunk += run;
    }
  }
  for (int64_t c = 0; c < array_.columns; ++c) {
    PrefillTask task =
        in_workspace(layout_.queries(kv_head) + (first + c * array_.units) * unit * 4,
                     bd_of(array_.units * kBWords, {{1, kBWords / 2}, {kBWords / 2, 2}, {unit}}));
    repeated(step.b[static_cast<size_t>(c)], task, kArrayRows, per_row * unit);
    for (int64_t upper = 0; upper < 2; ++upper) {
      auto& channel = step.c[static_cast<size_t>(upper)][static_cast<size_t>(c)];
      const int64_t width = s.dim / kSlice, result = width * kBlockWords;
      for (int64_t j = 0; j < array_.units; ++j) {
        const int64_t u = first + kPairs * upper * per_row + c * array_.units + j;
        if (u % group >= s.group()) {
          dump(channel, kPairs * result);
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
