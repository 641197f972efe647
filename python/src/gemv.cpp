// npu._npu.ops: GEMV on weights in blocks. Arrays come as byte pointers with shape and strides, as
// in ops.cpp; python/npu/ops/gemv.py does the checking that users see.
#include "ops/gemv/gemv.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "arrays.h"
#include "bindings.h"
#include "block_format.h"
#include "bound_weights.h"
#include "error.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace npu::python {

namespace {

ops::ElementType float_type(const std::string& name) {
  if (name == "float32") return ops::ElementType::kF32;
  if (name == "bfloat16") return ops::ElementType::kBf16;
  fail(ErrorKind::kDtype, "[gemv] element type \"%s\"; use float32 or bfloat16", name.c_str());
}

ops::MatrixView view_of(const Matrix& array, const std::string& type) {
  return matrix_view(array, float_type(type), type, "gemv");
}

}  // namespace

void init_gemv(nb::module_& m) {
  nb::module_ sub = nb::borrow<nb::module_>(m.attr("ops"));
  nb::class_<BoundWeights>(sub, "BoundWeights")
      .def_prop_ro("n", [](const BoundWeights& self) { return self.weights->n; })
      .def_prop_ro("k", [](const BoundWeights& self) { return self.weights->k; })
      .def_prop_ro("format",
                   [](const BoundWeights& self) {
                     return blocks::kFormatNames[static_cast<int>(self.weights->format)];
                   })
      .def_prop_ro("nbytes", [](const BoundWeights& self) { return self.weights->blocks.bytes; })
      .def_prop_ro("in_place", [](const BoundWeights& self) { return self.weights->in_place; });
  operation_class<ops::Gemv>(sub, "Gemv")
      .def(
          "bind",
          [](ops::Gemv& self, const Blocks& data, int64_t n, int64_t k, const std::string& format) {
            const std::span<const std::byte> bytes{reinterpret_cast<const std::byte*>(data.data()),
                                                   data.size()};
            const blocks::Format known = format_named(format, "bind");
            nb::gil_scoped_release release;
            return BoundWeights{data, self.bind(bytes, n, k, known)};
          },
          "data"_a, "n"_a, "k"_a, "format"_a = blocks::kFormatNames[0])
      .def("run",
           [](ops::Gemv& self, const BoundWeights& w, const Matrix& x, const std::string& x_type,
              nb::handle result, const std::string& y_type) {
             const ops::MatrixView view = view_of(x, x_type);
             const Output y = output_of(result, "gemv", "y");
             const ops::ElementType type = float_type(y_type);
             check_size(y, static_cast<size_t>(view.rows * w.weights->n) * ops::element_bytes(type),
                        "gemv");
             check_apart(overlap(y, view), "gemv", "x");
             check_apart(overlap(y.data(), y.size(), w.owner.data(), w.owner.size()), "gemv",
                         "the weights");
             return run_report([&] {
               return self.run(*w.weights, view, reinterpret_cast<std::byte*>(y.data()), type);
             });
           })
      .def("top", [](ops::Gemv& self, const BoundWeights& w, const Matrix& x,
                     const std::string& x_type, int64_t k, nb::handle largest, nb::handle where) {
        const ops::MatrixView view = view_of(x, x_type);
        const Output values = output_of(largest, "gemv_top", "values");
        const Output rows = output_of(where, "gemv_top", "rows");
        const auto count = static_cast<size_t>(view.rows * std::max<int64_t>(k, 0));
        check_size(values, count * sizeof(float), "gemv_top");
        check_size(rows, count * sizeof(int64_t), "gemv_top");
        check_apart(overlap(values.data(), values.size(), rows.data(), rows.size()), "gemv_top",
                    "the other one");
        std::vector<ops::TopEntry> found(count);
        {
          nb::gil_scoped_release release;
          self.top(*w.weights, view, k, found.data());
        }
        for (size_t i = 0; i < count; ++i) {
          std::memcpy(values.data() + i * sizeof(float), &found[i].value, sizeof(float));
          std::memcpy(rows.data() + i * sizeof(int64_t), &found[i].row, sizeof(int64_t));
        }
      });
}

}  // namespace npu::python
