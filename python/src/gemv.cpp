// npu._npu.ops: GEMV on Q4NX weights. Arrays come as byte pointers with shape and strides, as in
// ops.cpp; python/npu/ops/gemv.py does the checking that users see.
#include "ops/gemv.h"

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
#include "bound_weights.h"
#include "error.h"
#include "report.h"

namespace nb = nanobind;

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

ops::GemvProblem problem_of(int64_t n, int64_t k, int batch, const std::string& output, int top) {
  if (n < 1 || k < 1 || n > int64_t{1} << 31 || k > int64_t{1} << 31) {
    fail(ErrorKind::kShape, "[gemv] W is (%lld, %lld); both sizes must be 1 to 2^31",
         static_cast<long long>(n), static_cast<long long>(k));
  }
  ops::GemvProblem problem{(n + ops::kQ4Rows - 1) / ops::kQ4Rows,
                           (k + ops::kQ4Columns - 1) / ops::kQ4Columns, n, batch};
  problem.output = output == "top"       ? ops::GemvOutput::kTop
                   : output == "float32" ? ops::GemvOutput::kF32
                                         : ops::GemvOutput::kBf16;
  problem.top = top;
  return problem;
}

// The stream of a problem, and what it expects in its buffers: (stream, setup object, bytes of W,
// x and y).
nb::tuple gemv_stream(const nb::bytes& config, int64_t n, int64_t k, int batch,
                      const std::string& output, int top) {
  const Configuration configuration = Configuration::parse(bytes_of(config));
  const ops::GemvArray array = ops::GemvArray::of(configuration);
  ops::GemvProblem problem = problem_of(n, k, batch, output, top);
  problem.row_blocks = std::max(problem.row_blocks, array.least_row_blocks());
  const ops::GemvPlan plan = ops::plan_gemv(array, problem);
  const std::vector<uint32_t> words = ops::build_gemv_stream(configuration, problem, plan);
  const int64_t w_bytes = problem.row_blocks * problem.column_blocks * ops::kQ4BlockBytes;
  return nb::make_tuple(nb::bytes(words.data(), words.size() * 4),
                        nb::bytes(plan.setup.data(), plan.setup.size() * 4), w_bytes, plan.x_bytes,
                        plan.y_bytes);
}

}  // namespace

void init_gemv(nb::module_& m) {
  nb::module_ sub = nb::borrow<nb::module_>(m.attr("ops"));
  sub.def("gemv_stream", &gemv_stream, nb::arg("config"), nb::arg("n"), nb::arg("k"),
          nb::arg("batch") = 1, nb::arg("output") = "bfloat16", nb::arg("top") = 0);
  nb::class_<BoundWeights>(sub, "BoundWeights")
      .def_prop_ro("n", [](const BoundWeights& self) { return self.weights->n; })
      .def_prop_ro("k", [](const BoundWeights& self) { return self.weights->k; })
      .def_prop_ro("nbytes", [](const BoundWeights& self) { return self.weights->view.bytes; })
      .def_prop_ro("in_place", [](const BoundWeights& self) { return !self.weights->buffer; });
  nb::class_<ops::Gemv>(sub, "Gemv")
      .def("__init__",
           [](ops::Gemv* self, std::shared_ptr<ops::SharedDevice> device, const nb::bytes& config) {
             new (self) ops::Gemv(std::move(device), Configuration::parse(bytes_of(config)));
           })
      .def("bind",
           [](ops::Gemv& self, const Blocks& blocks, int64_t n, int64_t k) {
             const std::span<const std::byte> data{
                 reinterpret_cast<const std::byte*>(blocks.data()), blocks.size()};
             nb::gil_scoped_release release;
             return BoundWeights{blocks, self.bind(data, n, k)};
           })
      .def("run",
           [](ops::Gemv& self, const BoundWeights& w, const Matrix& x, const std::string& x_type,
              const Output& y, const std::string& y_type) {
             const ops::MatrixView view = view_of(x, x_type);
             const ops::ElementType type = float_type(y_type);
             check_size(y, static_cast<size_t>(view.rows * w.weights->n) * ops::element_bytes(type),
                        "gemv");
             RunReport report;
             {
               nb::gil_scoped_release release;
               report = self.run(*w.weights, view, reinterpret_cast<std::byte*>(y.data()), type);
             }
             return report_dict(report);
           })
      .def("top",
           [](ops::Gemv& self, const BoundWeights& w, const Matrix& x, const std::string& x_type,
              int64_t k, const Output& values, const Output& rows) {
             const ops::MatrixView view = view_of(x, x_type);
             const auto count = static_cast<size_t>(view.rows * std::max<int64_t>(k, 0));
             check_size(values, count * sizeof(float), "gemv");
             check_size(rows, count * sizeof(int64_t), "gemv");
             std::vector<ops::GemvTop> found(count);
             {
               nb::gil_scoped_release release;
               self.top(*w.weights, view, k, found.data());
             }
             for (size_t i = 0; i < count; ++i) {
               std::memcpy(values.data() + i * sizeof(float), &found[i].value, sizeof(float));
               std::memcpy(rows.data() + i * sizeof(int64_t), &found[i].row, sizeof(int64_t));
             }
           })
      .def_prop_ro("most_top", &ops::Gemv::most_top)
      .def("counters", [](const ops::Gemv& self) { return counters_dict(counters_of(self)); });
}

}  // namespace npu::python
