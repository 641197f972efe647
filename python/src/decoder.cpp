// npu._npu.ops.Decoder: a token of a decoder on the array (ops/decoder). python/npu/models/gemma3
// describes the model and does the checking that users see.
#include "ops/decoder/decoder.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "arrays.h"
#include "bindings.h"
#include "block_format.h"
#include "error.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace npu::python {

namespace {

using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Pages = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
// Region, byte, rows, columns, format.
using Segment = std::tuple<int, int64_t, int64_t, int64_t, std::string>;
// Window (0: none), then the segments of q k v, output, gate and up, down.
using Layer = std::tuple<int64_t, std::vector<Segment>, std::vector<Segment>, std::vector<Segment>,
                         std::vector<Segment>>;

ops::DecoderMatrix matrix_of(const std::vector<Segment>& segments) {
  ops::DecoderMatrix out;
  for (const auto& [region, offset, n, k, format] : segments) {
    out.push_back({region, offset, n, k, format_named(format, "decoder")});
  }
  return out;
}

int64_t number(const nb::dict& shape, const char* name) { return nb::cast<int64_t>(shape[name]); }
float real(const nb::dict& shape, const char* name) {
  return static_cast<float>(nb::cast<double>(shape[name]));
}

ops::DecoderShape shape_of(const nb::dict& shape) {
  ops::DecoderShape out;
  out.width = number(shape, "width");
  out.heads = number(shape, "heads");
  out.kv_heads = number(shape, "kv_heads");
  out.head_dim = number(shape, "head_dim");
  out.dim = number(shape, "dim");
  out.ffn = number(shape, "ffn");
  out.vocabulary = number(shape, "vocabulary");
  out.epsilon = real(shape, "epsilon");
  out.attention_scale = real(shape, "attention_scale");
  out.embedding_scale = real(shape, "embedding_scale");
  return out;
}

std::span<const float> span_of(const Floats& array) { return {array.data(), array.size()}; }

// Keeps what the decoder reads: the regions of weights and the norms.
struct Held {
  std::vector<Input> regions;
  std::vector<Floats> norms;
  std::unique_ptr<ops::Decoder> decoder;
};

void check_norm(const Floats& norm, int64_t size) {
  if (static_cast<int64_t>(norm.size()) == size) return;
  fail(ErrorKind::kShape, "[decoder] a norm has %zu weights, expected %lld", norm.size(),
       static_cast<long long>(size));
}

std::unique_ptr<Held> make(std::shared_ptr<SharedDevice> device, const nb::bytes& config,
                           const nb::dict& shape, const std::vector<Layer>& layers,
                           const std::vector<Segment>& head, std::vector<Input> regions,
                           std::vector<Floats> norms) {
  auto held = std::make_unique<Held>();
  ops::DecoderModel model;
  model.shape = shape_of(shape);
  model.head = matrix_of(head);
  constexpr size_t kNorms = 6;  // of a layer
  if (norms.size() != kNorms * layers.size() + 1) {
    fail(ErrorKind::kShape, "[decoder] %zu norms for %zu layers", norms.size(), layers.size());
  }
  ops::DecoderNorms pointers;
  for (size_t i = 0; i < layers.size(); ++i) {
    const auto& [window, qkv, output, gate_up, down] = layers[i];
    model.layers.push_back(
        {window, matrix_of(qkv), matrix_of(output), matrix_of(gate_up), matrix_of(down)});
    const Floats* of = norms.data() + kNorms * i;
    for (size_t n = 0; n < kNorms; ++n) {
      check_norm(of[n], n == 1 || n == 2 ? model.shape.dim : model.shape.width);
    }
    pointers.layers.push_back(
        {of[0].data(), of[1].data(), of[2].data(), of[3].data(), of[4].data(), of[5].data()});
  }
  check_norm(norms.back(), model.shape.width);
  pointers.output = norms.back().data();
  std::vector<std::span<const std::byte>> memory;
  for (const Input& region : regions) {
    memory.emplace_back(reinterpret_cast<const std::byte*>(region.data()), region.size());
    model.region_bytes.push_back(static_cast<int64_t>(region.size()));
  }
  held->regions = std::move(regions);
  held->norms = std::move(norms);
  held->decoder =
      std::make_unique<ops::Decoder>(std::move(device), Configuration::parse(bytes_of(config)),
                                     std::move(model), memory, pointers);
  return held;
}

ops::DecoderToken token_of(int64_t position, const Floats& embedding, const Floats& global,
                           const Floats& sliding, const Output& pool,
                           const std::vector<Pages>& pages) {
  ops::DecoderToken token;
  token.position = position;
  token.embedding = span_of(embedding);
  token.rotations = {span_of(global), span_of(sliding)};
  token.pool = {reinterpret_cast<std::byte*>(pool.data()), pool.size()};
  for (const Pages& one : pages) token.pages.emplace_back(one.data(), one.size());
  return token;
}

}  // namespace

void init_decoder(nb::module_& m) {
  nb::module_ sub = nb::borrow<nb::module_>(m.attr("ops"));
  nb::class_<Held>(sub, "Decoder")
      .def(nb::new_(&make), "device"_a, "config"_a, "shape"_a, "layers"_a, "head"_a, "regions"_a,
           "norms"_a)
      .def(
          "logits",
          [](Held& self, int64_t position, const Floats& embedding, const Floats& global,
             const Floats& sliding, nb::handle pool, const std::vector<Pages>& pages,
             nb::handle result) {
            const ops::DecoderToken token = token_of(position, embedding, global, sliding,
                                                     output_of(pool, "decoder", "pool"), pages);
            const Output out = output_of(result, "decoder", "logits");
            check_size(out, static_cast<size_t>(self.decoder->model().shape.vocabulary) * 4,
                       "decoder");
            return run_report(
                [&] { return self.decoder->logits(token, reinterpret_cast<float*>(out.data())); });
          },
          "position"_a, "embedding"_a, "global_rotation"_a, "sliding_rotation"_a, "pool"_a,
          "pages"_a, "result"_a)
      .def(
          "top",
          [](Held& self, int64_t position, const Floats& embedding, const Floats& global,
             const Floats& sliding, nb::handle pool, const std::vector<Pages>& pages, int64_t k,
             int64_t rows) {
            const ops::DecoderToken token = token_of(position, embedding, global, sliding,
                                                     output_of(pool, "decoder", "pool"), pages);
            std::vector<ops::TopEntry> found(
                static_cast<size_t>(std::clamp<int64_t>(k, 0, ops::kMaxTop)));
            {
              nb::gil_scoped_release release;
              self.decoder->top(token, k, rows, found.data());
            }
            std::vector<std::tuple<float, int64_t>> out;
            for (const ops::TopEntry& one : found) out.emplace_back(one.value, one.row);
            return out;
          },
          "position"_a, "embedding"_a, "global_rotation"_a, "sliding_rotation"_a, "pool"_a,
          "pages"_a, "k"_a, "rows"_a)
      .def("counters", [](const Held& self) { return counters_dict(*self.decoder); });
}

}  // namespace npu::python
