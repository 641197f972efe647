// npu._npu.ops.Prefill: a chunk of a prompt, or the next tokens of several sequences, on the array
// (ops/prefill). python/npu/models/gemma3 describes the model and does the checking that users see.
#include "ops/prefill/prefill.h"

#include "array_model.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace npu::python {

namespace {

using Held = HeldModel<ops::Prefill>;

}  // namespace

void init_prefill(nb::module_& m) {
  nb::module_ sub = nb::borrow<nb::module_>(m.attr("ops"));
  nb::class_<Held> prefill(sub, "Prefill");
  prefill.attr("MOST") = ops::Prefill::kMaxTokens;
  prefill.attr("SUBMISSION_ROWS") = ops::Prefill::kSubmissionRows;
  prefill.attr("ALIGN") = ops::PrefillLayout::kAlign;
  prefill.attr("MOST_SEQUENCES") = ops::PrefillBatch::kMaxSequences;
  prefill.attr("MOST_NEW") = ops::PrefillBatch::kMaxTokens;
  prefill
      .def(nb::new_(&Held::make), "device"_a, "config"_a, "shape"_a, "layers"_a, "head"_a,
           "regions"_a, "norms"_a)
      .def(
          "run",
          [](Held& self, int64_t position, int64_t count, nb::handle rows, const Floats& global,
             const Floats& sliding, nb::handle pool, const std::vector<Pages>& pages) {
            const Output memory = output_of(pool, "prefill", "pool");
            const Output x = output_of(rows, "prefill", "rows");
            ops::PrefillTokens tokens;
            tokens.position = position, tokens.count = count;
            tokens.rows = {reinterpret_cast<float*>(x.data()), x.size() / sizeof(float)};
            tokens.rotations = {span_of(global), span_of(sliding)};
            tokens.pool = {reinterpret_cast<std::byte*>(memory.data()), memory.size()};
            for (const Pages& one : pages) tokens.pages.emplace_back(one.data(), one.size());
            return run_report([&] { return self.native->run(tokens); });
          },
          "position"_a, "count"_a, "rows"_a, "global_rotation"_a, "sliding_rotation"_a, "pool"_a,
          "pages"_a)
      // Per sequence its position, how many tokens, and pages per layer.
      .def(
          "run_sequences",
          [](Held& self,
             const std::vector<std::tuple<int64_t, int64_t, std::vector<Pages>>>& sequences,
             const Floats& rows, const Floats& global, const Floats& sliding, nb::handle pool,
             nb::handle logits) {
            const Output memory = output_of(pool, "prefill", "pool");
            const Output out = output_of(logits, "prefill", "logits");
            ops::PrefillSequences batch;
            for (const auto& [position, count, pages] : sequences) {
              auto& one = batch.sequences.emplace_back();
              one.position = position, one.count = count;
              for (const Pages& table : pages) one.pages.emplace_back(table.data(), table.size());
            }
            batch.rows = span_of(rows);
            batch.rotations = {span_of(global), span_of(sliding)};
            batch.pool = {reinterpret_cast<std::byte*>(memory.data()), memory.size()};
            batch.logits = {reinterpret_cast<float*>(out.data()), out.size() / sizeof(float)};
            return run_report([&] { return self.native->run(batch); });
          },
          "sequences"_a, "rows"_a, "global_rotation"_a, "sliding_rotation"_a, "pool"_a, "logits"_a)
      .def("counters", [](const Held& self) { return counters_dict(*self.native); });
}

}  // namespace npu::python
