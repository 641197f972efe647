// A model as Python describes it to operations of the array (array_model.h).
#include "array_model.h"

namespace nb = nanobind;

namespace npu::python {

namespace {

constexpr size_t kNorms = 6;  // of a layer

ops::DecoderMatrix matrix_of(const std::vector<ModelSegment>& segments) {
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

void check_norm(const Floats& norm, int64_t size) {
  if (static_cast<int64_t>(norm.size()) == size) return;
  fail(ErrorKind::kShape, "[decoder] a norm has %zu weights, expected %lld", norm.size(),
       static_cast<long long>(size));
}

}  // namespace

ModelArguments::ModelArguments(const nb::dict& shape, const std::vector<ModelLayer>& layers,
                               const std::vector<ModelSegment>& head, std::vector<Input> regions_,
                               std::vector<Floats> norms_)
    : regions(std::move(regions_)), norms(std::move(norms_)) {
  model.shape = shape_of(shape);
  model.head = matrix_of(head);
  if (norms.size() != kNorms * layers.size() + 1) {
    fail(ErrorKind::kShape, "[decoder] %zu norms for %zu layers", norms.size(), layers.size());
  }
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
  for (const Input& region : regions) {
    memory.emplace_back(reinterpret_cast<const std::byte*>(region.data()), region.size());
    model.region_bytes.push_back(static_cast<int64_t>(region.size()));
  }
}

}  // namespace npu::python
