// Tokens on a device (decoder.h).
#include "ops/decoder/decoder.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>
#include <utility>

#include "error.h"
#include "ops/shim_commands.h"
#include "rounding.h"

namespace npu::ops {

namespace {

DecoderPosition position_of(const DecoderArray& array, const DecoderModel& model,
                            int64_t position) {
  DecoderPosition out;
  out.layout = {model.shape.kv_heads, model.shape.head_dim};
  std::array<int64_t, DecoderWorkspace::kKinds> windows{};
  for (const DecoderLayer& layer : model.layers) {
    windows[static_cast<size_t>(DecoderWorkspace::kind_of(layer))] = layer.window;
  }
  for (size_t kind = 0; kind < windows.size(); ++kind) {
    out.attention[kind] =
        DecoderAttention::of(model.shape, out.layout, array.pairs, position, windows[kind]);
  }
  return out;
}

bool same_ranges(const DecoderPosition::Attention& a, const DecoderPosition::Attention& b) {
  return std::ranges::equal(a, b, {}, &DecoderAttention::ranges, &DecoderAttention::ranges);
}

// Tables of records per key head.
void write_records(const DecoderModel& model, const DecoderWorkspace& workspace,
                   const DecoderPosition& position, std::span<std::byte> memory) {
  const DecoderShape& shape = model.shape;
  for (int kind = 0; kind < DecoderWorkspace::kKinds; ++kind) {
    const DecoderAttention& work = position.attention[static_cast<size_t>(kind)];
    std::byte* tables = memory.data() + workspace.tables(kind);
    std::memset(tables, 0, static_cast<size_t>(shape.kv_heads * attention::kTableBytes));
    for (const DecoderRange& range : work.ranges) {
      const attention::Record record = work.record(shape, position.layout, range);
      std::memcpy(tables + range.kv_head * attention::kTableBytes +
                      range.pair * attention::kRecordWords * 4,
                  &record, sizeof record);
    }
  }
}

void write_parts(const DecoderWorkspace& workspace, const DecoderPosition& position,
                 std::span<std::byte> memory) {
  workspace.write_parts({position.attention[0].parts, position.attention[1].parts}, memory);
}

std::vector<std::vector<int64_t>> copied(std::span<const std::span<const int64_t>> pages) {
  std::vector<std::vector<int64_t>> out;
  for (const std::span<const int64_t> one : pages) out.emplace_back(one.begin(), one.end());
  return out;
}

// Whether the latest token with these pages was one of the same sequence: nobody else writes to the
// page that it wrote to.
bool same_sequence(std::span<const std::vector<int64_t>> before,
                   std::span<const std::span<const int64_t>> now) {
  const std::vector<int64_t>& pages = before.front();
  return !pages.empty() && pages.size() <= now.front().size() &&
         pages.back() == now.front()[pages.size() - 1];
}

// Partial results that nobody writes count nothing: their denominators are zero.
void clear_statistics(const DecoderModel& model, const DecoderWorkspace& workspace,
                      std::span<std::byte> memory) {
  const int64_t statistics = (workspace.partial_objects() - 1) * attention::kOutBytes;
  for (int kind = 0; kind < DecoderWorkspace::kKinds; ++kind) {
    for (int64_t head = 0; head < model.shape.kv_heads; ++head) {
      for (int64_t part = 0; part < DecoderArray::kMaxParts; ++part) {
        std::memset(memory.data() + workspace.partial(kind, head, part) + statistics, 0,
                    attention::kOutBytes);
      }
    }
  }
}

}  // namespace

Decoder::Decoder(std::shared_ptr<SharedDevice> device, Configuration configuration,
                 DecoderModel model, std::span<const std::span<const std::byte>> regions,
                 const DecoderNorms& norms)
    : operation_(std::move(device), std::move(configuration)),
      array_(DecoderArray::of(operation_.configuration())),
      model_(std::move(model)),
      norms_(norms) {
  model_.check();
  // What cannot be laid out is refused here, not with the first token.
  place(gemv::Output::kF32, 0, model_.shape.vocabulary);
  const auto guard = operation_.lock();
  regions_ = std::make_unique<ModelRegions>("decoder", operation_.device(), regions,
                                            size_t{kDecoderRegions});
  operation_.count_copy(regions_->copied());
}

Decoder::Place& Decoder::place(gemv::Output output, int top, int64_t rows) {
  const std::tuple key{output, top, rows};
  if (places_.size() == kMaxPlaces && !places_.contains(key)) places_.clear();
  Place& at = places_[key];
  if (at.layout == nullptr) {
    at.layout = std::make_unique<DecoderWorkspace>(array_, model_, output, top, rows);
  }
  return at;
}

Decoder::Space& Decoder::space(Place& at, size_t number) {
  if (number < at.spaces.size()) return at.spaces[number];
  const auto bytes = static_cast<size_t>(at.layout->bytes());
  std::unique_ptr<Buffer> buffer = operation_.device().allocate(bytes);
  const std::span memory(buffer->host(), bytes);
  std::memset(memory.data(), 0, bytes);
  at.layout->write_constants(norms_, memory);
  buffer->sync_to_device(0, bytes);
  at.spaces.push_back({std::move(buffer), {}});
  return at.spaces.back();
}

void Decoder::write_control(const DecoderToken& token, const DecoderPosition& position,
                            const DecoderWorkspace& layout, Space& space) const {
  const std::span memory(space.buffer->host(), static_cast<size_t>(layout.bytes()));
  const auto row = static_cast<size_t>(layout.row());
  std::memset(memory.data() + row, 0, static_cast<size_t>(4 * layout.width_words()));
  std::memcpy(memory.data() + row, token.embedding.data(), token.embedding.size_bytes());
  for (int kind = 0; kind < DecoderWorkspace::kKinds; ++kind) {
    const std::span<const float> rotation = token.rotations[static_cast<size_t>(kind)];
    const size_t half = rotation.size() / 2;
    std::byte* to = memory.data() + layout.rotation(kind);
    std::memcpy(to, rotation.data(), half * 4);
    std::memcpy(to + vector::kInBytes / 2, rotation.data() + half, half * 4);
  }
  write_records(model_, layout, position, memory);
  if (same_ranges(position.attention, space.combined)) {
    space.buffer->sync_to_device(0, static_cast<size_t>(layout.control_bytes()));
    return;
  }
  space.combined = {};  // until all of it has reached the device
  write_parts(layout, position, memory);
  clear_statistics(model_, layout, memory);
  space.buffer->sync_to_device(0, memory.size());
  space.combined = position.attention;
}

// Best one with the same pages. While it is patched it is not among the others: if the patch
// throws, nobody knows what it does.
bool Decoder::patch_kept(const DecoderPosition& position, std::vector<Prepared>& all) {
  const auto same = [](const auto& a, const auto& b) { return std::ranges::equal(a, b); };
  // Where attention reads other ranges, a device that repeats runs would record the run anew.
  const bool repeats = operation_.device().repeats();
  for (const bool change : {false, true}) {
    for (size_t i = all.size(); i-- > 0;) {
      const bool alike = same_ranges(position.attention, all[i].position.attention);
      const bool reads = !alike || !std::ranges::equal(position.pages, all[i].pages, same);
      if (reads != change || (repeats && !alike)) continue;
      const std::vector<StreamPatch> patches = decoder_patches(
          array_.generation, model_, all[i].position, position, all[i].variables, reads);
      if (patches.empty()) continue;
      Prepared prepared = std::move(all[i]);
      all.erase(all.begin() + static_cast<std::ptrdiff_t>(i));
      if (!operation_.patch(*prepared.entry, patches)) continue;
      prepared.position.attention = position.attention;
      if (reads) prepared.pages = copied(position.pages);
      all.push_back(std::move(prepared));
      return true;
    }
  }
  return false;
}

std::shared_ptr<const Operation<int>::Entry> Decoder::prepare(const DecoderPosition& position,
                                                              Place& at) {
  std::vector<Prepared>& all = at.streams;
  if (patch_kept(position, all)) return all.back().entry;
  Prepared prepared;
  prepared.entry = operation_.prepare_once([&](stream::Builder& builder) {
    prepared.variables =
        append_decoder(builder, operation_.configuration(), array_, model_, *at.layout, position);
    return std::monostate{};
  });
  // A sequence that goes on does not come back to what its attention read before. Its stream leaves
  // when the next one is there, which may use the memory of its recording.
  std::erase_if(all, [&](const Prepared& one) { return same_sequence(one.pages, position.pages); });
  if (all.size() == kMostStreams) all.erase(all.begin());
  static constexpr ArgumentRange kMoving[] = {{kDecoderPool}};
  prepared.entry->stream->expect_repeats(kMoving);
  prepared.position = position;
  prepared.position.pages.clear();
  prepared.pages = copied(position.pages);
  all.push_back(std::move(prepared));
  return all.back().entry;
}

void Decoder::check(const DecoderToken& token) const {
  const DecoderShape& shape = model_.shape;
  if (token.embedding.size() != static_cast<size_t>(shape.width) ||
      token.pages.size() != model_.layers.size() ||
      std::ranges::any_of(token.rotations, [&](const auto& rotation) {
        return rotation.size() != static_cast<size_t>(shape.dim);
      })) {
    fail(ErrorKind::kShape,
         "[decoder] expected an embedding of %lld, rotations of %lld and pages of %zu layers",
         static_cast<long long>(shape.width), static_cast<long long>(shape.dim),
         model_.layers.size());
  }
}

Decoder::Started Decoder::start(const DecoderToken& token, Place& at, size_t number) {
  DecoderPosition position = position_of(array_, model_, token.position);
  position.pages = token.pages;
  Space& memory = space(at, number);
  write_control(token, position, *at.layout, memory);
  Started out;
  out.space = &memory;
  // Copied with every token where the device does not reach it.
  out.pool = std::make_unique<CachePool>(operation_.device(), token.pool);
  assert(number == 0 || !out.pool->is_copy());  // it would not have what the others write
  out.entry = prepare(position, at);
  out.arguments = {
      {memory.buffer.get(), 0, static_cast<size_t>(at.layout->bytes()), Access::kReadWrite},
      out.pool->ref()};
  out.arguments.insert(out.arguments.end(), regions_->refs().begin(), regions_->refs().end());
  out.run = operation_.start(*out.entry, out.arguments, number > 0);
  return out;
}

RunReport Decoder::end(const Started& started) {
  const RunReport report = operation_.end(*started.run, started.arguments);
  operation_.count_copy(started.pool->finish());
  return report;
}

// Beside each other as far as the device takes it. An error would end those under way, too.
RunReport Decoder::logits(std::span<const DecoderToken> tokens, float* out) {
  for (const DecoderToken& token : tokens) check(token);
  const auto guard = operation_.lock();
  Place& at = place(gemv::Output::kF32, 0, model_.shape.vocabulary);
  const auto vocabulary = static_cast<size_t>(model_.shape.vocabulary);
  RunReport total;
  std::vector<Started> under_way;
  const auto end_all = [&] {
    for (const Started& one : under_way) {
      add(total, end(one));
      std::memcpy(out, one.space->buffer->host() + at.layout->logits(), vocabulary * sizeof(float));
      out += vocabulary;
    }
    under_way.clear();
  };
  at.spaces.reserve(tokens.size());  // they are pointed to
  for (const DecoderToken& token : tokens) {
    if (!operation_.device().takes_more()) end_all();
    Started next = start(token, at, under_way.size());
    if (next.run == nullptr) {
      end_all();
      next.run = operation_.start(*next.entry, next.arguments, false);
    }
    under_way.push_back(std::move(next));
  }
  end_all();
  return total;
}

RunReport Decoder::top(const DecoderToken& token, int64_t k, int64_t rows, TopEntry* out) {
  if (k < 1 || k > kMaxTop || k > rows || rows > model_.shape.vocabulary) {
    fail(ErrorKind::kArgument, "[decoder] the %lld largest of %lld logits; use 1 to %lld",
         static_cast<long long>(k), static_cast<long long>(rows),
         static_cast<long long>(std::min(kMaxTop, rows)));
  }
  check(token);
  const auto guard = operation_.lock();
  const int top = static_cast<int>(round_up(k, gemv::kPieceBytes / gemv::kTopBytes));
  Place& at = place(gemv::Output::kTop, top, rows);
  const Started run = start(token, at, 0);
  const RunReport report = end(run);
  TopLists lists;
  for (const DecoderPass& pass : at.layout->head()) {
    for (int64_t list = 0; list < pass.active() * DecoderArray::kRows; ++list) {
      lists.add(run.space->buffer->host() + pass.y + list * pass.y_bytes() / 2, top, pass.segment.n,
                pass.first_row);
    }
  }
  lists.take(k, out);
  return report;
}

DecoderPages::DecoderPages(const DecoderModel& model, int64_t first, int64_t last)
    : tables(model.layers.size()) {
  for (size_t i = 0; i < tables.size(); ++i) {
    const int64_t from = first_read(first, model.layers[i].window);
    for (int64_t page = 0; page <= last / kPagePositions; ++page) {
      tables[i].push_back(page < from / kPagePositions ? -1 : count++);
    }
  }
}

std::vector<RequestField> decoder_model_fields(std::vector<RequestField> own, int64_t head_rows) {
  const RequestField model[] = {{"sliding", "layers with a window"},
                                {"global", "layers without one, after them"},
                                {"width", "of the residual stream"},
                                {"heads", "query heads"},
                                {"kv_heads", "key heads"},
                                {"head_dim", "elements of a head"},
                                {"ffn", "width of the FFN"},
                                {"vocabulary", "rows of the head", head_rows},
                                {"window", "positions that a query of a sliding layer sees", 512},
                                {"dim", "elements of a head that the model has; 0: head_dim", 0},
                                {"format",
                                 "of the weights; 0: q4nx, 1: q8, 2: bf16; or, of all matrices, "
                                 "3: q4_0, 4: q8_0",
                                 0},
                                {"format_qkv", "of q, k and v; -1: format", -1},
                                {"format_output", "of the output of attention; -1: format", -1},
                                {"format_gate_up", "of gate and up; -1: format", -1},
                                {"format_down", "of down; -1: format", -1},
                                {"format_head", "of the head; -1: format", -1}};
  own.insert(own.end(), std::begin(model), std::end(model));
  return own;
}

DecoderModel decoder_model_of(const Request& request) {
  DecoderModel model;
  DecoderShape& shape = model.shape;
  constexpr int64_t kMost = int64_t{1} << 24;
  shape.width = request.get("width", 1, kMost);
  shape.heads = request.get("heads", 1, kMost);
  shape.kv_heads = request.get("kv_heads", 1, kMost);
  shape.head_dim = request.get("head_dim", 1, kMost);
  const int64_t dim = request.get("dim", 0, shape.head_dim);
  shape.dim = dim > 0 ? dim : shape.head_dim;
  shape.ffn = request.get("ffn", 1, kMost);
  shape.vocabulary = request.get("vocabulary", 64, kMost);
  shape.attention_scale = 1 / std::sqrt(static_cast<float>(shape.dim));
  const int64_t common = request.get("format", 0, blocks::kFormats - 1);
  int64_t next = 0, slack = 0;
  const auto matrix = [&](const char* of, int64_t n, int64_t k) -> DecoderMatrix {
    const int64_t own = request.get(of, -1, blocks::kFormats - 1);
    const auto format = static_cast<blocks::Format>(own < 0 ? common : own);
    const DecoderSegment segment{0, next, n, k, format};
    next += segment.bytes();
    slack = std::max(slack, segment.slack());
    return {segment};
  };
  const int64_t sliding = request.get("sliding", 0, 1024), global = request.get("global", 0, 1024);
  const int64_t window = request.get("window", 1, kMost);
  for (int64_t i = 0; i < sliding + global; ++i) {
    DecoderLayer layer;
    layer.window = i < sliding ? window : 0;
    layer.qkv = matrix("format_qkv", shape.qkv_rows(), shape.width);
    layer.output = matrix("format_output", shape.width, shape.heads * shape.dim);
    layer.gate_up = matrix("format_gate_up", 2 * shape.ffn, shape.width);
    layer.down = matrix("format_down", shape.width, shape.ffn);
    model.layers.push_back(std::move(layer));
  }
  model.head = matrix("format_head", shape.vocabulary, shape.width);
  model.region_bytes = {next + slack};
  return model;
}

namespace {

std::vector<Submission> submissions(const Configuration& configuration, const Request& request) {
  const DecoderArray array = DecoderArray::of(configuration);
  const DecoderModel model = decoder_model_of(request);
  model.check();
  const int64_t top = request.get("top", 0, kMaxTop, 8);
  const DecoderWorkspace layout(array, model, top > 0 ? gemv::Output::kTop : gemv::Output::kF32,
                                static_cast<int>(top), model.shape.vocabulary);
  DecoderPosition position =
      position_of(array, model, request.get("position", 0, (int64_t{1} << 24) - 1));
  const DecoderPages pages(model, position.attention[0].position, position.attention[0].position);
  position.pages = pages.spans();
  Submission out;
  out.words = stream_words(configuration, [&](stream::Builder& builder) {
    append_decoder(builder, configuration, array, model, layout, position);
  });
  std::vector<std::byte> memory(static_cast<size_t>(layout.bytes()), std::byte{0});
  layout.write_constants({}, memory);
  write_records(model, layout, position, memory);
  write_parts(layout, position, memory);
  ArgumentLayout workspace = ArgumentLayout::input("workspace", layout.bytes(), memory);
  ArgumentLayout pool = ArgumentLayout::output("pool", pages.count * position.layout.page_bytes());
  workspace.access = pool.access = Access::kReadWrite;
  out.arguments = {workspace, pool, ArgumentLayout::input("weights", model.region_bytes[0])};
  return {std::move(out)};
}

}  // namespace

const OperationType kDecoderType = {
    "decoder",
    "a token of a decoder: all layers and the head in one stream",
    decoder_model_fields(
        {{"position", "of the token; the cache holds those before it"},
         {"top", "largest logits that leave the array, a multiple of 8; 0: all", 0}},
        RequestField::kRequired),
    {{"two layers of 1B",
      {{"position", 1023},
       {"sliding", 1},
       {"global", 1},
       {"width", 1152},
       {"heads", 4},
       {"kv_heads", 1},
       {"head_dim", 256},
       {"ffn", 6912},
       {"vocabulary", 8192},
       {"top", 8}}},
     {"a layer of 4B",
      {{"position", 1023},
       {"sliding", 0},
       {"global", 1},
       {"width", 2560},
       {"heads", 8},
       {"kv_heads", 4},
       {"head_dim", 256},
       {"ffn", 10240},
       {"vocabulary", 4096},
       {"window", 1024},
       {"top", 8}}}},
    &submissions};

}  // namespace npu::ops
