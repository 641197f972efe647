// The workspace of a prompt (prefill_layout.h).
#include "ops/prefill/prefill_layout.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "error.h"
#include "ops/prefill/prefill_head.h"
#include "rounding.h"
#include "runtime/overlay.h"

namespace npu::ops {

namespace {

using prefill::kAPayload, prefill::kSlice;

// Blocks of columns, in objects of 8.
int64_t padded_blocks(int64_t columns) { return round_up(divide_up(columns, kSlice), 8); }

// Heads of a group as units of a row of the array are dealt out: each row has whole row-blocks.
int64_t padded_group(const PrefillArray& array, int64_t group) {
  const int64_t per_row = int64_t{array.units} * array.columns;
  while (per_row % group != 0) ++group;
  return group;
}

void refuse(const char* what, int64_t value, const char* limit) {
  fail(ErrorKind::kShape, "[prefill] %s is %lld; the array runs %s", what,
       static_cast<long long>(value), limit);
}

// A step has one program.
void check_size_of_blocks(const DecoderMatrix& matrix) {
  for (const DecoderSegment& segment : matrix) {
    if (segment.block_bytes() != matrix.front().block_bytes())
      refuse("the size of a block", segment.block_bytes(), "one size per matrix");
  }
}

void check_matrix(const DecoderMatrix& matrix) {
  check_size_of_blocks(matrix);
  for (const DecoderSegment& segment : matrix) {
    if (segment.n % kSlice != 0)
      refuse("the number of rows of a matrix", segment.n, "multiples of 32");
  }
}

// By prefill::Kind; the last is of kProduct too (PrefillArray::kSmallProducts).
constexpr const char* kProgramNames[] = {"products", "norm",      "geglu",
                                         "rotation", "attention", "small_products"};

// Whether programs share B0's channel.
bool beside_b(const Configuration& configuration) {
  const Configuration::Port& programs = configuration.port("programs");
  const Configuration::Port& b = configuration.port("B0");
  const bool shared = programs.col == b.col && programs.channel == b.channel;
  if (shared == programs.packet.has_value()) return shared;
  fail(ErrorKind::kFormat,
       "[prefill] programs come as packets by a channel that is not B0's; lower the design again");
}

void find_programs(const Configuration& configuration, PrefillArray& array) {
  array.beside_b = beside_b(configuration);
  for (size_t i = 0; i < configuration.overlays.size(); ++i) {
    const auto name = std::ranges::find(kProgramNames, configuration.overlays[i].name);
    if (name == std::end(kProgramNames)) {
      fail(ErrorKind::kFormat,
           "[prefill] the configuration has a program \"%s\", for no kind of job",
           configuration.overlays[i].name.c_str());
    }
    const std::vector<uint32_t> packets =
        control_packets(overlay_image(configuration, i), !array.beside_b);
    array.programs[static_cast<size_t>(name - kProgramNames)] = {std::ssize(array.packets) * 4,
                                                                 std::ssize(packets)};
    array.packets.insert(array.packets.end(), packets.begin(), packets.end());
  }
  for (size_t i = 0; i < array.programs.size(); ++i) {
    if (array.programs[i].words > 0) continue;
    fail(ErrorKind::kFormat, "[prefill] the configuration has no program for %s", kProgramNames[i]);
  }
}

}  // namespace

PrefillArray PrefillArray::of(const Configuration& configuration) {
  PrefillArray array;
  array.generation = configuration.generation;
  const int columns = arch::device_geometry(configuration.generation).columns;
  array.columns = static_cast<int>(configuration.param("columns", columns, columns));
  array.units = static_cast<int>(configuration.param("units", 1, 4));
  (void)configuration.param("a_bytes", array.sizes().a_bytes(), array.sizes().a_bytes());
  find_programs(configuration, array);
  return array;
}

void check_prefill(const PrefillArray& array, const DecoderModel& model) {
  model.check();
  const DecoderShape& s = model.shape;
  const int64_t width = padded_blocks(s.width) * kSlice;
  if (s.width % kSlice != 0 || 2 * width > prefill::kStore) {
    refuse("the width", s.width, "multiples of 32 up to 3072");
  }
  if (s.dim % kSlice != 0) refuse("a head", s.dim, "multiples of 32 up to 256");
  if (s.ffn % kSlice != 0) refuse("the FFN width", s.ffn, "multiples of 32");
  if (s.heads + 2 * s.kv_heads > 64) refuse("the number of heads", s.heads + 2 * s.kv_heads, "64");
  if (padded_group(array, s.group()) > 8) refuse("the group of a key head", s.group(), "1 to 8");
  for (const DecoderLayer& layer : model.layers) {
    for (const DecoderMatrix* one : {&layer.qkv, &layer.output, &layer.gate_up, &layer.down}) {
      check_matrix(*one);
    }
  }
  check_size_of_blocks(model.head);
}

int64_t core_rows(const PrefillArray& array, int64_t left) {
  constexpr int64_t kLeast = 16;
  int64_t m = array.sizes().row_slots;
  while (m > kLeast && m / 2 * PrefillArray::kRows >= left * prefill::kRows) m /= 2;
  return m;
}

PrefillLayout::PrefillLayout(const PrefillArray& array, const DecoderModel& model, int64_t tokens,
                             bool head)
    : shape_(model.shape), head_dim_(model.shape.head_dim) {
  const DecoderShape& s = shape_;
  const int64_t round = array.cores();  // row-blocks that the cores take at once
  // Those of the smallest job of a product, of two, or rounds.
  rows_ = round_up(divide_up(tokens, prefill::kRows), 2 * PrefillArray::kRows);
  if (rows_ > 2 * PrefillArray::kRows * 2) rows_ = round_up(rows_, round);
  width_ = padded_blocks(s.width);
  ffn_ = padded_blocks(s.ffn);
  group_ = padded_group(array, s.group());
  // Reads beyond the end of an activation: rounds that are not full, and what fills B objects.
  const int64_t a_bytes = array.sizes().a_bytes();
  const int64_t column = rows_ * kBlock, slack = round * a_bytes + 16 * column;
  records_ = take(width_ * rows_ * prefill::kRecordBytes + 3 * slack);
  factors_ = take(rows_ * kBlock + 2 * round * kBlock);
  qkv_ = take(s.qkv_rows() / kSlice * column + slack);
  const int64_t units = int64_t{array.units} * array.cores();
  const int64_t jobs = divide_up(rows_ * group_, units), unit = 2 * prefill::kRows * s.head_dim;
  queries_bytes_ = jobs * units * unit + prefill::kBBytes;
  queries_ = take(s.kv_heads * queries_bytes_);
  attention_rows_ = jobs * units / group_;
  attention_ = take((padded_blocks(s.heads * s.dim) + 8) * attention_rows_ * kBlock);
  y_ = take(width_ * column + slack);
  gate_ = take(ffn_ * column + slack);
  up_ = take(ffn_ * column + slack);
  act_ = take(ffn_ * column + slack);
  for (int64_t& table : tables_) table = take(round_up(rows_, round) * table_bytes() + a_bytes);
  dump_bytes_ = round_up(
      std::max(width_ * 2 * prefill::kRecordBytes, (s.heads + 2 * s.kv_heads) * 2 * unit + a_bytes),
      int64_t{64});
  dump_ = take(array.columns * dump_bytes_);
  norm_objects_ = divide_up(2 * width_ * kSlice * 4, kAPayload);
  const auto layers = static_cast<int64_t>(model.layers.size());
  constants_ = take(layers * (2 * norm_objects_ + 1) * kAPayload);
  last_constants_ = take(norm_objects_ * kAPayload + a_bytes);
  if (head) logits_ = take(HeadResults(array, model).bytes());
}

int64_t PrefillLayout::take(int64_t bytes) {
  const int64_t at = bytes_;
  bytes_ += round_up(bytes, 64);
  return at;
}

int64_t PrefillLayout::constants(size_t layer, Constants which) const {
  const int64_t own = static_cast<int64_t>(layer) * (2 * norm_objects_ + 1);
  return constants_ + (own + which * norm_objects_) * kAPayload;
}

void PrefillLayout::write_constants(const DecoderNorms& norms, std::span<std::byte> memory) const {
  const auto put = [&](int64_t at, const float* from, int64_t count) {
    if (from != nullptr) std::memcpy(memory.data() + at, from, static_cast<size_t>(count) * 4);
  };
  // Halves of a head where those of head_dim begin, times what a mean over head_dim leaves out.
  const int64_t half = shape_.dim / 2;
  const float share = std::sqrt(static_cast<float>(shape_.dim) / static_cast<float>(head_dim_));
  const auto put_head = [&](int64_t at, const float* from) {
    auto* to = reinterpret_cast<float*>(memory.data() + at);
    for (int64_t i = 0; from != nullptr && i < shape_.dim; ++i) {
      to[i < half ? i : head_dim_ / 2 + i - half] = from[i] * share;
    }
  };
  const int64_t second = width_ * kSlice * 4;
  for (size_t i = 0; i < norms.layers.size(); ++i) {
    const DecoderNorms::Layer& layer = norms.layers[i];
    if (i > 0) put(constants(i, kFirst), norms.layers[i - 1].post_ffn, shape_.width);
    put(constants(i, kFirst) + second, layer.attention, shape_.width);
    put(constants(i, kSecond), layer.post_attention, shape_.width);
    put(constants(i, kSecond) + second, layer.ffn, shape_.width);
    put_head(constants(i, kHeads), layer.q);
    put_head(constants(i, kHeads) + head_dim_ * 4, layer.k);
  }
  if (!norms.layers.empty()) put(last_constants_, norms.layers.back().post_ffn, shape_.width);
  put(last_constants_ + second, norms.output, shape_.width);
}

}  // namespace npu::ops
