// npu._npu.ops: dequantisation of weights in blocks; python/npu/ops/dequantize.py does the checking
// that users see.
#include "ops/dequant/dequant.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>

#include <memory>
#include <span>
#include <vector>

#include "arrays.h"
#include "bindings.h"
#include "bound_weights.h"
#include "error.h"

namespace nb = nanobind;

namespace npu::python {

void init_dequant(nb::module_& m) {
  nb::module_ sub = nb::borrow<nb::module_>(m.attr("ops"));
  operation_class<ops::Dequant>(sub, "Dequant")
      .def("run", [](ops::Dequant& self, const BoundWeights& w, int64_t first, int64_t count,
                     nb::handle result, bool padded) {
        const ops::BlockWeights& weights = *w.weights;
        const Output out = output_of(result, "dequantize", "out");
        const ops::RowBlocks part{first, count};
        const int64_t all = count * blocks::kRows;
        const int64_t rows = padded ? all : std::min(all, weights.n - first * blocks::kRows);
        const int64_t columns =
            padded ? weights.column_blocks * blocks::columns_of(weights.format) : weights.k;
        check_size(out, static_cast<size_t>(rows * columns * 2), "dequantize");
        check_apart(overlap(out.data(), out.size(), w.owner.data(), w.owner.size()), "dequantize",
                    "the weights");
        auto* target = reinterpret_cast<std::byte*>(out.data());
        return run_report([&] {
          return padded ? self.run_padded(weights, part, target) : self.run(weights, part, target);
        });
      });
}

}  // namespace npu::python
