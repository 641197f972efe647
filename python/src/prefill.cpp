// npu._npu.ops.Prefill: a chunk of a prompt on the array (ops/prefill). python/npu/models/gemma3
// describes the model and does the checking that users see.
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
  prefill.attr("ALIGN") = ops::PrefillLayout::kAlign;
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
      .def("counters", [](const Held& self) { return counters_dict(*self.native); });
}

}  // namespace npu::python
