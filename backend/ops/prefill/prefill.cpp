// Chunks of a prompt on a device (prefill.h).
#include "ops/prefill/prefill.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "error.h"
#include "ops/decoder/decoder_request.h"
#include "ops/shim_commands.h"

namespace npu::ops {

namespace {

constexpr int64_t kSide = prefill::kSlice, kHigh = prefill::kRows;

// fp32 of a block of the residual in the workspace.
float* x_block(const PrefillLayout& layout, std::byte* memory, int64_t column, int64_t row) {
  return reinterpret_cast<float*>(memory + layout.records() +
                                  (column * layout.row_blocks() + row) * prefill::kRecordBytes);
}

}  // namespace

Prefill::Prefill(std::shared_ptr<SharedDevice> device, Configuration configuration,
                 DecoderModel model, std::span<const std::span<const std::byte>> regions,
                 const DecoderNorms& norms)
    : operation_(std::move(device), std::move(configuration)),
      array_(PrefillArray::of(operation_.configuration())),
      model_(std::move(model)),
      norms_(norms) {
  check_prefill(array_, model_);
  const auto guard = operation_.lock();
  regions_ = std::make_unique<ModelRegions>("prefill", operation_.device(), regions,
                                            size_t{kPrefillRegions});
  operation_.count_copy(regions_->copied());
}

void Prefill::check_sizes(const Rows& rows, int64_t count) const {
  const DecoderShape& s = model_.shape;
  bool good = rows.embeddings.size() == static_cast<size_t>(count * s.width);
  for (const auto& rotation : rows.rotations) {
    good = good && rotation.size() == static_cast<size_t>(count * s.dim);
  }
  if (good) return;
  fail(ErrorKind::kShape, "[prefill] expected %lld rows of %lld and rotations of %lld",
       static_cast<long long>(count), static_cast<long long>(s.width),
       static_cast<long long>(s.dim));
}

// Pages that tokens read or write; pool: bytes.
void Prefill::check_pages(std::span<const std::span<const int64_t>> pages, int64_t position,
                          int64_t count, size_t pool) const {
  if (pages.size() != model_.layers.size()) {
    fail(ErrorKind::kShape, "[prefill] pages of %zu layers, the model has %zu", pages.size(),
         model_.layers.size());
  }
  const KvLayout kv{model_.shape.kv_heads, model_.shape.head_dim};
  const int64_t pool_pages = (static_cast<int64_t>(pool) - array_.behind_pool()) / kv.page_bytes();
  for (size_t i = 0; i < model_.layers.size(); ++i) {
    const int64_t last = position + count - 1,
                  first = first_seen(position, model_.layers[i].window);
    for (int64_t page = first / kPagePositions; page <= last / kPagePositions; ++page) {
      const auto& table = pages[i];
      if (page < static_cast<int64_t>(table.size()) && table[static_cast<size_t>(page)] >= 0 &&
          table[static_cast<size_t>(page)] < pool_pages) {
        continue;
      }
      fail(ErrorKind::kOutOfRange,
           "[prefill] layer %zu has no page %lld for position %lld among the %lld of the pool, "
           "which needs %lld bytes behind them",
           i, static_cast<long long>(page), static_cast<long long>(last),
           static_cast<long long>(pool_pages), static_cast<long long>(array_.behind_pool()));
    }
  }
}

void Prefill::check(const PrefillTokens& tokens) const {
  if (tokens.count < 1 || tokens.count > kMaxTokens || tokens.position < 0) {
    fail(ErrorKind::kOutOfRange, "[prefill] %lld tokens at position %lld; a chunk has 1 to %lld",
         static_cast<long long>(tokens.count), static_cast<long long>(tokens.position),
         static_cast<long long>(kMaxTokens));
  }
  check_sizes({tokens.rows, tokens.rotations, {}}, tokens.count);
  check_pages(tokens.pages, tokens.position, tokens.count, tokens.pool.size());
}

Prefill::Place& Prefill::place(Place& at, int64_t tokens, bool head) {
  auto layout = std::make_unique<PrefillLayout>(array_, model_, tokens, head);
  if (at.layout != nullptr && at.layout->row_blocks() == layout->row_blocks()) return at;
  at = {};
  at.buffer = operation_.device().allocate(static_cast<size_t>(layout->bytes()));
  const std::span memory(at.buffer->host(), static_cast<size_t>(layout->bytes()));
  std::memset(memory.data(), 0, memory.size());
  layout->write_constants(norms_, memory);
  at.buffer->sync_to_device(0, memory.size());
  at.layout = std::move(layout);
  return at;
}

// Embeddings and rotations; other rows and columns are zero, whatever was there: 0 * NaN is NaN.
void Prefill::write(const Rows& rows, Place& at) const {
  const PrefillLayout& layout = *at.layout;
  std::byte* memory = at.buffer->host();
  const int64_t width = model_.shape.width, d = model_.shape.head_dim, half = model_.shape.dim / 2;
  for (int64_t row = 0; row < layout.row_blocks() * kHigh; ++row) {
    const bool is_token =
        row < std::ssize(rows.tokens) && rows.tokens[static_cast<size_t>(row)] >= 0;
    const int64_t token = is_token ? rows.tokens[static_cast<size_t>(row)] : -1;
    for (int64_t column = 0; column < layout.width_blocks() * kSide; column += kSide) {
      float* to = x_block(layout, memory, column / kSide, row / kHigh) + row % kHigh * kSide;
      if (is_token && column < width) {
        std::memcpy(to, rows.embeddings.data() + token * width + column, kSide * sizeof(float));
      } else {
        std::memset(to, 0, kSide * sizeof(float));
      }
    }
    for (int kind = 0; is_token && kind < DecoderWorkspace::kKinds; ++kind) {
      const std::span<const float> from = rows.rotations[static_cast<size_t>(kind)];
      std::byte* to = memory + layout.table(kind) + row * d * 4;
      for (int64_t i = 0; i < 2; ++i) {  // cosines, sines
        std::memcpy(to + i * d * 2, from.data() + (2 * token + i) * half,
                    static_cast<size_t>(half) * 4);
      }
    }
  }
  at.buffer->sync_to_device(
      static_cast<size_t>(layout.records()),
      static_cast<size_t>(layout.width_blocks() * layout.row_blocks() * prefill::kRecordBytes));
  for (int kind = 0; kind < DecoderWorkspace::kKinds; ++kind) {
    at.buffer->sync_to_device(static_cast<size_t>(layout.table(kind)),
                              rows.tokens.size() * static_cast<size_t>(d) * 4);
  }
}

void Prefill::read(const PrefillTokens& tokens, const Place& at) const {
  const int64_t width = model_.shape.width, lead = tokens.position % PrefillLayout::kAlign;
  for (int64_t token = 0; token < tokens.count; ++token) {
    const int64_t row = token + lead;
    for (int64_t column = 0; column < width; column += kSide) {
      const float* from = x_block(*at.layout, at.buffer->host(), column / kSide, row / kHigh);
      std::memcpy(tokens.rows.data() + token * width + column, from + row % kHigh * kSide,
                  kSide * sizeof(float));
    }
  }
}

RunReport Prefill::run(const PrefillTokens& tokens) {
  check(tokens);
  const auto guard = operation_.lock();
  const int64_t lead = tokens.position % PrefillLayout::kAlign;
  Place& at = place(place_, lead + tokens.count, false);
  Rows rows{tokens.rows, tokens.rotations, {}};
  for (int64_t row = -lead; row < tokens.count; ++row)
    rows.tokens.push_back(std::max<int64_t>(row, -1));
  write(rows, at);
  PrefillChunk chunk;
  chunk.layout = {model_.shape.kv_heads, model_.shape.head_dim};
  chunk.position = tokens.position - lead;
  chunk.tokens = lead + tokens.count;
  chunk.lead = lead;
  chunk.pages = tokens.pages;
  PrefillPlan plan(array_, model_, *at.layout, chunk);
  const RunReport report = submit(plan, at, tokens.pool, chunk.tokens);
  read(tokens, at);
  return report;
}

std::vector<Prefill::Part> Prefill::parts(const PrefillPlan& plan, int64_t rows) const {
  const auto layers = static_cast<int64_t>(model_.layers.size());
  const bool by_layer = operation_.device().repeats();
  const int64_t count = by_layer ? layers : std::min(divide_up(rows, kSubmissionRows), layers);
  std::vector<Part> parts;
  for (int64_t part = 0; part < count; ++part) {
    parts.push_back({static_cast<size_t>(layers * part / count) * PrefillPlan::kLayerSteps,
                     static_cast<size_t>(layers * (part + 1) / count) * PrefillPlan::kLayerSteps});
  }
  if (by_layer) parts.push_back({parts.back().last, parts.back().last});
  parts.back().last = plan.steps();  // what follows the last layer
  return parts;
}

// All steps.
RunReport Prefill::submit(PrefillPlan& plan, Place& at, std::span<std::byte> memory, int64_t rows) {
  CachePool pool(operation_.device(), memory);
  RunReport report;
  headers_used_ = 0;
  {
    const Series series(operation_.device());
    for (const Part& part : parts(plan, rows)) {
      add(report, submit_part(plan, part, at, pool.ref()));
    }
  }
  operation_.count_copy(pool.finish());
  return report;
}

// The argument of that name. Programs are written once; of a series, whose arguments stay as they
// are, runs have the same one or others.
BufferRef Prefill::headers(const PrefillPlan& plan) {
  const std::span packets = std::as_bytes(std::span(array_.packets));
  std::vector<std::byte> jobs = plan.job_headers();
  const size_t bytes = packets.size() + jobs.size();
  const auto end = headers_.begin() + static_cast<std::ptrdiff_t>(headers_used_);
  const auto known = std::ranges::find(headers_.begin(), end, jobs, &Headers::jobs);
  if (known != end) return {known->buffer.get(), 0, bytes, Access::kRead};
  if (headers_used_ == headers_.size()) headers_.emplace_back();
  Headers& next = headers_[headers_used_];
  next.jobs.clear();
  if (next.buffer == nullptr || next.buffer->bytes() < bytes) {
    std::unique_ptr<Buffer> fresh = operation_.device().allocate(std::bit_ceil(bytes));
    std::ranges::copy(packets, fresh->host());
    fresh->sync_to_device(0, packets.size());
    next.buffer = std::move(fresh);  // complete, whatever was raised before
  }
  std::ranges::copy(jobs, next.buffer->host() + packets.size());
  next.buffer->sync_to_device(packets.size(), jobs.size());
  next.jobs = std::move(jobs);
  ++headers_used_;
  return {next.buffer.get(), 0, bytes, Access::kRead};
}

namespace {

// What of each region steps [first, last) of a plan multiply by.
std::vector<DecoderBytes> weights_of(const DecoderModel& model, size_t first, size_t last) {
  std::vector<DecoderBytes> all(model.region_bytes.size());
  const auto add = [&](const DecoderMatrix& matrix) {
    for (const DecoderSegment& segment : matrix) {
      all[static_cast<size_t>(segment.region)].add(
          {segment.offset, segment.offset + segment.bytes() + segment.slack()});
    }
  };
  const size_t layers = model.layers.size(), steps = PrefillPlan::kLayerSteps;
  for (size_t layer = first / steps; layer < layers && layer * steps < last; ++layer) {
    const DecoderLayer& of = model.layers[layer];
    for (const DecoderMatrix* matrix : {&of.qkv, &of.output, &of.gate_up, &of.down}) add(*matrix);
  }
  if (last > layers * steps) add(model.head);
  return all;
}

}  // namespace

namespace {

// What differs between layers but for their weights: keys and values, norm weights, tables of RoPE.
std::vector<ArgumentRange> layer_ranges(const PrefillLayout& layout) {
  const auto workspace = [](int64_t begin, int64_t end) {
    return ArgumentRange{kPrefillWorkspace, static_cast<uint64_t>(begin),
                         static_cast<uint64_t>(end)};
  };
  std::vector<ArgumentRange> all{
      {kPrefillPool},
      workspace(layout.constants(0, PrefillLayout::kFirst), layout.last_constants())};
  for (int kind = 0; kind < DecoderWorkspace::kKinds; ++kind) {
    const int64_t table = layout.table(kind);
    all.push_back(workspace(table, table + layout.row_blocks() * layout.table_bytes()));
  }
  return all;
}

}  // namespace

// Where runs are repeated, arguments with weights begin at the part's: so layers are alike.
RunReport Prefill::submit_part(PrefillPlan& plan, const Part& part, const Place& at,
                               const BufferRef& pool) {
  const bool repeats = operation_.device().repeats();
  std::vector<BufferRef> weights(regions_->refs().begin(), regions_->refs().end());
  std::vector<int64_t> origins;
  if (repeats) {
    for (size_t region = 0; const DecoderBytes& used : weights_of(model_, part.first, part.last)) {
      BufferRef& argument = weights[region++];
      argument = part_of(argument, used);
      origins.push_back(used.first);
    }
  }
  const auto build = [&](stream::Builder& builder) {
    append_prefill(builder, operation_.configuration(), array_, plan, part.first, part.last,
                   origins);
    return std::monostate{};
  };
  // The first layer has no norm of results before it, so that no other one is like it.
  const bool alike = part.first > 0 && part.last < plan.steps();
  const std::vector<ArgumentRange> moving = layer_ranges(*at.layout);
  const auto entry =
      repeats ? operation_.prepare_alike(build, alike, moving) : operation_.prepare_once(build);
  std::vector<BufferRef> arguments = {
      {at.buffer.get(), 0, static_cast<size_t>(at.layout->bytes()), Access::kReadWrite},
      pool,
      headers(plan)};
  arguments.insert(arguments.end(), weights.begin(), weights.end());
  return operation_.submit(*entry, arguments);
}

namespace {

// A stream for `plan`; pages: of the pool.
Submission submission(const Configuration& configuration, const PrefillArray& array,
                      const DecoderModel& model, const PrefillLayout& layout, PrefillPlan& plan,
                      int64_t pages, const Request& request) {
  const auto steps = static_cast<int64_t>(plan.steps());
  const int64_t first = request.get("first_step", 0, steps), end = request.get("steps", 0, steps);
  Submission out;
  out.words = stream_words(configuration, [&](stream::Builder& builder) {
    append_prefill(builder, configuration, array, plan, static_cast<size_t>(first),
                   static_cast<size_t>(end > 0 ? std::min(first + end, steps) : steps));
  });
  const KvLayout kv{model.shape.kv_heads, model.shape.head_dim};
  ArgumentLayout workspace = ArgumentLayout::output("workspace", layout.bytes());
  ArgumentLayout pool =
      ArgumentLayout::output("pool", pages * kv.page_bytes() + array.behind_pool());
  workspace.access = pool.access = Access::kReadWrite;
  const std::vector<std::byte> headers = plan.headers();
  out.arguments = {workspace, pool,
                   ArgumentLayout::input("headers", static_cast<int64_t>(headers.size()), headers),
                   ArgumentLayout::input("weights", model.region_bytes[0])};
  return out;
}

// Sequences that are alike, with pages of their own.
Submission batch_submission(const Configuration& configuration, const PrefillArray& array,
                            const DecoderModel& model, const Request& request, int64_t sequences) {
  const int64_t position = request.get("position", 0, (int64_t{1} << 24) - 1);
  const int64_t tokens = request.get("tokens", 1, PrefillBatch::kMaxTokens);
  const DecoderPages pages(model, position, position + tokens - 1);
  std::vector<DecoderPages> own(static_cast<size_t>(sequences), pages);
  PrefillBatch batch;
  for (size_t i = 0; i < own.size(); ++i) {
    for (auto& table : own[i].tables) {
      for (int64_t& page : table) page += page >= 0 ? static_cast<int64_t>(i) * pages.count : 0;
    }
    batch.sequences.push_back({position, tokens, own[i].spans()});
  }
  const PrefillLayout layout(array, model, PrefillBatch::kMaxSequences * kHigh, true);
  PrefillPlan plan(array, model, layout, batch);
  return submission(configuration, array, model, layout, plan, sequences * pages.count, request);
}

std::vector<Submission> submissions(const Configuration& configuration, const Request& request) {
  const PrefillArray array = PrefillArray::of(configuration);
  const DecoderModel model = decoder_model_of(request);
  check_prefill(array, model);
  const int64_t sequences = request.get("sequences", 0, PrefillBatch::kMaxSequences);
  if (sequences > 0) return {batch_submission(configuration, array, model, request, sequences)};
  PrefillChunk chunk;
  chunk.layout = {model.shape.kv_heads, model.shape.head_dim};
  const int64_t position = request.get("position", 0, (int64_t{1} << 24) - 1);
  chunk.lead = position % PrefillLayout::kAlign;
  chunk.position = position - chunk.lead;
  chunk.tokens = chunk.lead + request.get("tokens", 1, Prefill::kMaxTokens);
  const PrefillLayout layout(array, model, chunk.tokens);
  const DecoderPages pages(model, position, chunk.position + chunk.tokens - 1);
  chunk.pages = pages.spans();
  PrefillPlan plan(array, model, layout, chunk);
  return {submission(configuration, array, model, layout, plan, pages.count, request)};
}

}  // namespace

const OperationType kPrefillType = {
    "prefill",
    "a chunk of a prompt, or a batch of sequences: all layers of a decoder in one stream",
    decoder_model_fields({{"tokens", "of the chunk"},
                          {"position", "of the first token; the cache holds those before it", 0},
                          {"sequences", "each with so many tokens; 0: a chunk of a prompt", 0},
                          {"first_step", "of 9 per layer and a last one; sequences: the head", 0},
                          {"steps", "how many; 0: all", 0}},
                         64),  // the head is not part of a chunk
    {{"a layer of 1B, 256 tokens",
      {{"tokens", 256},
       {"position", 512},
       {"sliding", 1},
       {"global", 0},
       {"width", 1152},
       {"heads", 4},
       {"kv_heads", 1},
       {"head_dim", 256},
       {"ffn", 6912}}},
     {"two small layers, 40 tokens",
      {{"tokens", 40},
       {"position", 96},
       {"sliding", 1},
       {"global", 1},
       {"width", 320},
       {"heads", 4},
       {"kv_heads", 2},
       {"head_dim", 64},
       {"ffn", 512},
       {"window", 32}}},
     {"a layer of each kind, three sequences, and the head",
      {{"tokens", 2},
       {"sequences", 3},
       {"position", 300},
       {"sliding", 1},
       {"global", 1},
       {"width", 320},
       {"heads", 4},
       {"kv_heads", 2},
       {"head_dim", 64},
       {"ffn", 512},
       {"window", 32},
       {"vocabulary", 1000}}}},
    &submissions};

}  // namespace npu::ops
