// Streams of a token for requests (decoder_request.h).
#include "ops/decoder/decoder_request.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "ops/decoder/decoder_stream.h"
#include "ops/top_list.h"

namespace npu::ops {

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
      DecoderPosition::of(array, model, request.get("position", 0, (int64_t{1} << 24) - 1));
  const DecoderPages pages(model, position.attention[0].position, position.attention[0].position);
  position.pages = pages.spans();
  Submission out;
  out.words = stream_words(configuration, [&](stream::Builder& builder) {
    append_decoder(builder, configuration, array, model, layout, layout.parts()[0], position);
  });
  std::vector<std::byte> memory(static_cast<size_t>(layout.bytes()), std::byte{0});
  layout.write_constants({}, memory);
  write_records(model, layout, position, memory);
  write_parts(layout, position, memory);
  const auto constants = static_cast<size_t>(layout.constants());
  ArgumentLayout workspace =
      ArgumentLayout::input("workspace", layout.constants(), std::span(memory).first(constants));
  ArgumentLayout pool = ArgumentLayout::output("pool", pages.count * position.layout.page_bytes());
  workspace.access = pool.access = Access::kReadWrite;
  out.arguments = {workspace,
                   ArgumentLayout::input("constants", layout.bytes() - layout.constants(),
                                         std::span(memory).subspan(constants)),
                   pool, ArgumentLayout::input("weights", model.region_bytes[0])};
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
