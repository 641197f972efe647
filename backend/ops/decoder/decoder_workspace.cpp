// Lays out the workspace and the steps of a token (decoder_workspace.h).
#include "ops/decoder/decoder_workspace.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>

#include "aie_kernels/attention.h"
#include "arch/geometry.h"
#include "rounding.h"

namespace npu::ops {

namespace {

constexpr int64_t kIn = vector::kInBytes, kAlignment = 1024;
// Statistics in an object; heads begin with one.
constexpr int64_t kRecords = kIn / (8 * attention::kRows);
static_assert(DecoderArray::kMaxParts % kRecords == 0);
using vector::Job, vector::Kind;

int32_t word(int64_t value) { return static_cast<int32_t>(value); }
int32_t bits(float value) { return std::bit_cast<int32_t>(value); }

Job empty_job(Kind kind, const DecoderShape& shape) {
  Job job{};
  job.kind = static_cast<int32_t>(kind);
  job.epsilon = bits(shape.epsilon);
  job.heads = word(shape.group());
  job.kv_heads = word(shape.kv_heads);
  job.head_dim = word(shape.head_dim);
  job.dim = word(shape.dim);
  job.width = word(shape.head_dim);
  return job;
}

DecoderRead linear(int64_t offset, int64_t bytes) {
  DecoderRead read{offset, {}};
  read.bd.length = static_cast<uint32_t>(bytes / 4);
  return read;
}

}  // namespace

int64_t DecoderWorkspace::take(int64_t bytes) {
  const int64_t at = bytes_;
  bytes_ += round_up(bytes, kAlignment);
  return at;
}

int64_t DecoderWorkspace::queries_bytes() const {
  return attention::kTableBytes + shape_.group() * shape_.head_dim * 2;
}

int64_t DecoderWorkspace::partial(int kind, int64_t kv_head, int64_t part) const {
  const int64_t head = kind * shape_.kv_heads + kv_head;
  return partials_ +
         (head * DecoderArray::kMaxParts + part) * partial_objects() * attention::kOutBytes;
}

// The object with a job, then the table for the cores, then `more` bytes, so that one read takes
// all.
int64_t DecoderWorkspace::keep_job(const Job& job, const DecoderPass* pass, int64_t more) {
  std::vector<int32_t> words(vector::kInBytes / 4, 0);
  std::memcpy(words.data(), &job, sizeof job);
  if (pass != nullptr) {
    const std::vector<int32_t> table = pass->setup(array_);
    words.insert(words.end(), table.begin(), table.end());
  }
  const auto bytes = std::as_bytes(std::span(words));
  const int64_t at = take(static_cast<int64_t>(bytes.size()) + more);
  constants_.push_back({at, {bytes.begin(), bytes.end()}});
  return at;
}

void DecoderWorkspace::send_x(Job& job, const DecoderPass& pass, int64_t x_at) const {
  job.tables = 1;
  job.table_parts = word(array_.cores() * gemv::kLongSetupWords * 4 / kIn);
  job.x_at = word(x_at);
  job.x_elements = word(pass.segment.k);
  job.x_piece = word(pass.x_piece());
  job.x_objects = word(pass.x_sends);
  job.x_cycle = word(pass.x_objects);
}

// x from the store to a pass.
DecoderStep DecoderWorkspace::send_step(const DecoderPass& pass, int64_t x_at) {
  Job job = empty_job(Kind::kSend, shape_);
  send_x(job, pass, x_at);
  DecoderStep step;
  step.early = {linear(keep_job(job, &pass), kIn * (1 + job.table_parts))};
  step.pass = &pass;
  return step;
}

void DecoderWorkspace::add_sends(const std::vector<DecoderPass>& passes, int64_t x_at) {
  for (size_t i = 1; i < passes.size(); ++i) steps_.push_back(send_step(passes[i], x_at));
}

// y < 0: the row is a token's embedding. Weights of the norm of y, then of that of the row, follow
// the job: they are read with it where the store has room for them, before what the step waits for.
DecoderWorkspace::NormWeights DecoderWorkspace::add_norm(int64_t y,
                                                         const std::vector<DecoderPass>& passes,
                                                         bool keep_row) {
  const int64_t row = 4 * width_words_, norms = y < 0 ? 1 : 2, weights = norms * row;
  const bool stays = row_stays(), reads = y < 0 || !stays;
  const bool kept = stays || weights + norm_bytes() <= vector::kStoreBytes;
  const int64_t y_bytes = y < 0 ? 0 : round_up(row / 2, kIn), before = kept ? weights : 0;
  const int64_t x_at = before + (reads ? row : 0);
  Job job = empty_job(kept ? Kind::kNorm : Kind::kLongNorm, shape_);
  job.width = word(shape_.width);
  job.take = word((x_at + y_bytes) / kIn);
  job.inputs = word(job.take + (weights - before) / kIn);
  job.piece = word(kept ? width_words_ : kIn / 4);
  job.pieces = y < 0 ? 0 : word(width_words_ / job.piece);
  job.kept = kept ? word(norms) : 0;
  job.work_at = kept ? word(x_at + row / 2) : vector::kDataBytes;
  job.row_at = word(before);
  job.out_at = stays ? word(vector::kDataBytes - row) : job.row_at;
  job.scale = bits(shape_.embedding_scale);
  send_x(job, passes[0], x_at);
  DecoderStep step;
  if (keep_row && !stays) {
    step.writes_row = true;
    job.out = word(row / vector::kOutBytes);
  }
  const int64_t job_bytes = kIn * (1 + job.table_parts);
  const int64_t at = keep_job(job, &passes[0], weights);
  step.early = {linear(at, job_bytes + before)};
  if (reads) step.late = {linear(row_, row)};
  if (y >= 0) {
    step.needs = DecoderStep::Needs::kResults;
    step.reads_row = reads;
    step.late.push_back(linear(y, y_bytes));
  }
  if (!kept) step.late.push_back(linear(at + job_bytes, weights));
  step.pass = &passes[0];
  steps_.push_back(std::move(step));
  add_sends(passes, x_at);
  return {y < 0 ? -1 : at + job_bytes, at + job_bytes + weights - row};
}

// What a norm keeps besides its weights: a row, x, a row to work with.
int64_t DecoderWorkspace::norm_bytes() const { return 10 * width_words_ + 128; }

// Whether no job of a token needs the place of the residual row, the end of the store's data.
// Between two streams nothing stays.
bool DecoderWorkspace::row_stays() const {
  if (cut_ != Cut::kWhole) return false;
  const int64_t row = 4 * width_words_, kv = shape_.kv_heads;
  const int64_t norm = 2 * row + norm_bytes();
  const int64_t geglu = kIn * (divide_up(shape_.ffn, kIn / 2) + 1);
  const int64_t rotation = kIn * 3 + round_up(kv * attention::kTableBytes, kIn) +
                           round_up(2 * shape_.qkv_rows(), kIn) +
                           kv * (queries_bytes() + 4 * shape_.head_dim);
  const int64_t combination = combine_at() + 3 * kIn + 2 * shape_.heads * shape_.head_dim;
  return std::max({norm, geglu, rotation, combination}) + row <= vector::kDataBytes;
}

int64_t DecoderWorkspace::combine_at() const {
  return round_up(8 * int64_t{attention::kRows} * DecoderArray::kMaxParts * shape_.kv_heads,
                  kAlignment);
}

void DecoderWorkspace::add_layer(const DecoderModel& model, size_t index,
                                 std::vector<int64_t>& load) {
  const DecoderLayer& layer = model.layers[index];
  const auto passes = [&](const DecoderMatrix& matrix, int64_t y) -> std::vector<DecoderPass>& {
    passes_.push_back(decoder_passes(array_, model, matrix, gemv::Output::kBf16, 0, y, load));
    return passes_.back();
  };
  // The largest matrix last: its rounds make up for what the others left uneven.
  const auto& qkv = passes(layer.qkv, y_qkv_);
  const auto& output = passes(layer.output, y_output_);
  const auto& down = passes(layer.down, y_down_);
  const auto& gate_up = passes(layer.gate_up, y_gate_up_);
  const NormWeights first = add_norm(index == 0 ? -1 : y_down_, qkv, true);
  if (index > 0) norms_[index - 1][5] = first.post;
  const int number = static_cast<int>(index), kind = kind_of(layer);
  const int64_t heads = add_rotation(number, kind);
  if (cut_ == Cut::kHalves) end_part(model, index);
  DecoderStep attention;
  attention.needs = DecoderStep::Needs::kMemory;
  attention.kind = DecoderStep::Kind::kAttention;
  attention.layer = number;
  steps_.push_back(attention);
  add_combination(number, kind, output);
  const NormWeights second = add_norm(y_output_, gate_up, true);
  norms_.push_back({first.pre, heads, heads + kIn, second.post, second.pre, -1});
  add_geglu(down);
}

// QK-norm weights, with the job in one read, the rotation and the tables, then the row of q, k, v.
// Returns where the weights are.
int64_t DecoderWorkspace::add_rotation(int layer, int kind) {
  const int64_t tables = divide_up(shape_.kv_heads * attention::kTableBytes, kIn);
  const int64_t rows = divide_up(2 * shape_.qkv_rows(), kIn);
  Job job = empty_job(Kind::kRotate, shape_);
  job.take = job.inputs = word(2 + 1 + tables + rows);
  job.rows = word((shape_.group() + 1) * shape_.kv_heads);
  job.y_at = word(kIn * (3 + tables));
  job.out_at = word(kIn * (3 + tables + rows));
  // The cores' mean is over head_dim elements; write_constants() scales the weights, too.
  const float share = static_cast<float>(shape_.dim) / static_cast<float>(shape_.head_dim);
  job.epsilon = bits(shape_.epsilon * share);
  const int64_t out = shape_.kv_heads * (queries_bytes() + 4 * shape_.head_dim);
  assert(out % vector::kOutBytes == 0);
  job.out = word(out / vector::kOutBytes);
  DecoderStep step;
  step.needs = DecoderStep::Needs::kResults;
  const int64_t at = keep_job(job, nullptr, 2 * kIn);
  step.early = {linear(at, 3 * kIn), linear(rotation(kind), kIn * (1 + tables))};
  step.late = {linear(y_qkv_, kIn * rows)};
  step.kind = DecoderStep::Kind::kRotation;
  step.layer = layer;
  steps_.push_back(std::move(step));
  return at + kIn;
}

// A constant but for the number of parts (write_parts).
void DecoderWorkspace::add_combination(int layer, int kind,
                                       const std::vector<DecoderPass>& passes) {
  Job job = empty_job(Kind::kCombine, shape_);
  job.rows = job.heads;
  job.y_at = word(combine_at());
  send_x(job, passes[0], combine_at() + 2 * kIn);
  DecoderStep step;
  combinations_.push_back({kind, keep_job(job, &passes[0]), job});
  step.early = {linear(combinations_.back().offset, kIn * (1 + job.table_parts))};
  step.needs = DecoderStep::Needs::kAttention;
  step.kind = DecoderStep::Kind::kCombination;
  step.layer = layer;
  step.pass = &passes[0];
  steps_.push_back(std::move(step));
  add_sends(passes, combine_at() + 2 * kIn);
}

void DecoderWorkspace::write_parts(const std::array<int64_t, kKinds>& parts,
                                   std::span<std::byte> memory) const {
  for (const Combination& one : combinations_) {
    const int64_t count = parts[static_cast<size_t>(one.kind)];
    Job job = one.job;
    job.parts = word(count);
    job.take = word(divide_up(count, kRecords) * shape_.kv_heads);
    job.inputs = word(job.take + count * shape_.kv_heads * part_objects_);
    std::memcpy(memory.data() + one.offset, &job, sizeof job);
  }
}

// Pairs of 512 gates and what they multiply, from the two halves of a row.
void DecoderWorkspace::add_geglu(const std::vector<DecoderPass>& passes) {
  const int64_t half = kIn / 2, pairs = divide_up(shape_.ffn, half);
  Job job = empty_job(Kind::kGeglu, shape_);
  job.inputs = word(2 * pairs);
  job.y_at = word(pairs * kIn);
  send_x(job, passes[0], 0);
  DecoderStep step;
  step.needs = DecoderStep::Needs::kResults;
  step.early = {linear(keep_job(job, &passes[0]), kIn * (1 + job.table_parts))};
  DecoderRead read = linear(y_gate_up_, 2 * pairs * kIn);
  read.bd.wrap[0] = static_cast<uint32_t>(kIn / 4);
  read.bd.wrap[1] = 2;
  read.bd.step[1] = static_cast<uint32_t>(shape_.ffn / 2);
  read.bd.step[2] = static_cast<uint32_t>(kIn / 4);
  step.late = {read};
  step.pass = &passes[0];
  steps_.push_back(std::move(step));
  add_sends(passes, 0);
}

// All that follows the last part.
void DecoderWorkspace::end_part(const DecoderModel& model, size_t layer) {
  DecoderPart part;
  part.first = parts_.empty() ? 0 : parts_.back().last;
  part.last = steps_.size();
  part.layer = layer;
  part.workspace = head_.empty() ? y_head_ : constants_begin_;
  part.constants = {parts_.empty() ? constants_begin_ : parts_.back().constants.end, bytes_};
  for (const int64_t bytes : model.region_bytes) {
    part.weights.push_back(cut_ == Cut::kWhole ? DecoderBytes{0, bytes} : DecoderBytes{});
  }
  for (size_t i = part.first; i < part.last; ++i) {
    const DecoderPass* pass = steps_[i].pass;
    for (int c = 0; pass != nullptr && c < array_.columns; ++c) {
      part.weights[static_cast<size_t>(pass->segment.region)].add(pass->read_bytes(array_, c));
    }
  }
  parts_.push_back(std::move(part));
}

DecoderWorkspace::DecoderWorkspace(const DecoderArray& array, const DecoderModel& model,
                                   gemv::Output output, int top, int64_t rows, Cut cut)
    : array_(array), shape_(model.shape), cut_(cut) {
  width_words_ = round_up(shape_.width, kIn / 4);
  row_ = take(4 * width_words_);
  const int64_t tables = divide_up(shape_.kv_heads * attention::kTableBytes, kIn);
  for (int64_t& rotation : rotations_) rotation = take(kIn * (1 + tables));
  control_bytes_ = bytes_;
  header_bytes_ = round_up(queries_bytes(), attention::kPartBytes);
  headers_ = take(shape_.kv_heads * header_bytes_);
  part_objects_ = divide_up(shape_.group() * shape_.head_dim * 4, attention::kOutBytes);
  partials_ = take(kKinds * shape_.kv_heads * DecoderArray::kMaxParts * partial_objects() *
                   attention::kOutBytes);
  y_qkv_ = take(2 * shape_.qkv_rows() + kIn);
  y_output_ = take(2 * width_words_ + kIn);
  y_gate_up_ = take(4 * shape_.ffn + 2 * kIn);
  y_down_ = take(2 * width_words_ + kIn);
  DecoderMatrix head;
  for (DecoderSegment segment : model.head) {
    segment.n = std::min(segment.n, rows);
    rows -= segment.n;
    if (segment.n > 0) head.push_back(segment);
  }
  // Lists follow one another; how long they are does not depend on which columns have rounds.
  std::vector<int64_t> load(static_cast<size_t>(array.columns), 0);
  const DecoderPass last = decoder_passes(array, model, head, output, top, 0, load).back();
  y_head_ = take(output == gemv::Output::kTop ? last.y + last.active() * last.y_bytes()
                                              : 4 * round_up(shape_.vocabulary, 32));
  constants_begin_ = bytes_;
  passes_.reserve(4 * model.layers.size());
  std::ranges::fill(load, 0);
  for (size_t i = 0; i < model.layers.size(); ++i) {
    add_layer(model, i, load);
    if (cut_ == Cut::kWhole) continue;
    end_part(model, i);
    std::ranges::fill(load, 0);
  }
  head_ = decoder_passes(array, model, head, output, top, y_head_, load);
  const NormWeights end = add_norm(y_down_, head_, false);
  norms_.back()[5] = end.post;
  output_norm_ = end.pre;
  end_part(model, cut_ == Cut::kWhole ? 0 : model.layers.size());
}

void DecoderWorkspace::write_constants(const DecoderNorms& norms,
                                       std::span<std::byte> memory) const {
  for (const Constant& constant : constants_) {
    std::memcpy(memory.data() + constant.offset, constant.bytes.data(), constant.bytes.size());
  }
  const auto put = [&](int64_t at, const float* from, int64_t count) {
    if (from != nullptr) std::memcpy(memory.data() + at, from, static_cast<size_t>(count) * 4);
  };
  // Of a head: where vector.cc puts its elements.
  const auto put_head = [&](int64_t at, const float* from) {
    if (from == nullptr) return;
    const int64_t half = shape_.dim / 2;
    const float scale =
        std::sqrt(static_cast<float>(shape_.dim) / static_cast<float>(shape_.head_dim));
    for (int64_t i = 0; i < shape_.dim; ++i) {
      const int64_t place = i < half ? i : shape_.head_dim / 2 + i - half;
      const float value = from[i] * scale;
      std::memcpy(memory.data() + at + 4 * place, &value, 4);
    }
  };
  for (size_t i = 0; i < norms.layers.size(); ++i) {
    const DecoderNorms::Layer& layer = norms.layers[i];
    put(norms_[i][0], layer.attention, shape_.width);
    put_head(norms_[i][1], layer.q);
    put_head(norms_[i][2], layer.k);
    put(norms_[i][3], layer.post_attention, shape_.width);
    put(norms_[i][4], layer.ffn, shape_.width);
    put(norms_[i][5], layer.post_ffn, shape_.width);
  }
  put(output_norm_, norms.output, shape_.width);
}

}  // namespace npu::ops
