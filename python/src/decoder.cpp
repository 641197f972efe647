// npu._npu.ops.Decoder: a token of a decoder on the array (ops/decoder). python/npu/models/gemma3
// describes the model and does the checking that users see.
#include "ops/decoder/decoder.h"

#include "array_model.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace npu::python {

namespace {

using Held = HeldModel<ops::Decoder>;

// Position, embedding, rotations of global and of sliding layers, pages of each layer.
using Token = std::tuple<int64_t, Floats, Floats, Floats, std::vector<Pages>>;

ops::DecoderToken token_of(const Token& of, const Output& pool) {
  const auto& [position, embedding, global, sliding, pages] = of;
  ops::DecoderToken token;
  token.position = position;
  token.embedding = span_of(embedding);
  token.rotations = {span_of(global), span_of(sliding)};
  token.pool = {reinterpret_cast<std::byte*>(pool.data()), pool.size()};
  for (const Pages& one : pages) token.pages.emplace_back(one.data(), one.size());
  return token;
}

std::vector<ops::DecoderToken> tokens_of(const std::vector<Token>& all, nb::handle pool) {
  const Output cache = output_of(pool, "decoder", "pool");
  std::vector<ops::DecoderToken> out;
  for (const Token& one : all) out.push_back(token_of(one, cache));
  return out;
}

}  // namespace

void init_decoder(nb::module_& m) {
  nb::module_ sub = nb::borrow<nb::module_>(m.attr("ops"));
  nb::class_<Held>(sub, "Decoder")
      .def(nb::new_(&Held::make), "device"_a, "config"_a, "shape"_a, "layers"_a, "head"_a,
           "regions"_a, "norms"_a)
      .def(
          "logits",
          [](Held& self, const std::vector<Token>& tokens, nb::handle pool, nb::handle result) {
            const std::vector<ops::DecoderToken> given = tokens_of(tokens, pool);
            const Output out = output_of(result, "decoder", "logits");
            const auto vocabulary = static_cast<size_t>(self.native->model().shape.vocabulary);
            check_size(out, tokens.size() * vocabulary * 4, "decoder");
            return run_report(
                [&] { return self.native->logits(given, reinterpret_cast<float*>(out.data())); });
          },
          "tokens"_a, "pool"_a, "result"_a)
      .def(
          "last_logits",
          [](Held& self, const std::vector<Token>& tokens, nb::handle pool, nb::handle result) {
            const std::vector<ops::DecoderToken> given = tokens_of(tokens, pool);
            const Output out = output_of(result, "decoder", "logits");
            check_size(out, static_cast<size_t>(self.native->model().shape.vocabulary) * 4,
                       "decoder");
            return run_report([&] {
              return self.native->last_logits(given, reinterpret_cast<float*>(out.data()));
            });
          },
          "tokens"_a, "pool"_a, "result"_a)
      .def(
          "extend",
          [](Held& self, const std::vector<Token>& tokens, nb::handle pool) {
            const std::vector<ops::DecoderToken> given = tokens_of(tokens, pool);
            return run_report([&] { return self.native->extend(given); });
          },
          "tokens"_a, "pool"_a)
      .def(
          "top",
          [](Held& self, const std::vector<Token>& tokens, nb::handle pool, int64_t k,
             int64_t rows) {
            const std::vector<ops::DecoderToken> given = tokens_of(tokens, pool);
            std::vector<ops::TopEntry> found(
                static_cast<size_t>(std::clamp<int64_t>(k, 0, ops::kMaxTop)));
            {
              nb::gil_scoped_release release;
              self.native->top(given, k, rows, found.data());
            }
            std::vector<std::tuple<float, int64_t>> out;
            for (const ops::TopEntry& one : found) out.emplace_back(one.value, one.row);
            return out;
          },
          "tokens"_a, "pool"_a, "k"_a, "rows"_a)
      .def("counters", [](const Held& self) { return counters_dict(*self.native); });
}

}  // namespace npu::python
