// npu._npu.ops: operations on a device. Arrays come as byte pointers with shape and strides,
// because bfloat16 has no buffer-protocol code; python/npu/matmul.py does the checking that users
// see.
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bindings.h"
#include "error.h"
#include "ops/gemm.h"
#include "report.h"

namespace nb = nanobind;

namespace npu::python {

namespace {

ops::ElementType element_type(const std::string& name) {
  for (int number = 0; number < ops::kElementTypes; ++number) {
    const auto type = static_cast<ops::ElementType>(number);
    if (name == ops::element_name(type)) return type;
  }
  fail(ErrorKind::kDtype, "[gemm] element type \"%s\" is unknown", name.c_str());
}

// An integer view of a 2-D array with the element size of `type`; any strides.
using Matrix = nb::ndarray<nb::ndim<2>, nb::ro, nb::device::cpu>;

ops::MatrixView view_of(const Matrix& array, const std::string& type) {
  ops::MatrixView view;
  view.type = element_type(type);
  if (array.itemsize() != ops::element_bytes(view.type)) {
    fail(ErrorKind::kDtype, "[gemm] an array with %zu-byte elements was passed as %s",
         array.itemsize(), type.c_str());
  }
  view.data = static_cast<const std::byte*>(array.data());
  view.rows = static_cast<int64_t>(array.shape(0));
  view.cols = static_cast<int64_t>(array.shape(1));
  view.row_stride = array.stride(0);
  view.col_stride = array.stride(1);
  return view;
}

using Output = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::byte* output_of(const Output& out, const ops::Gemm& gemm, int64_t rows, int64_t cols) {
  const size_t wanted = static_cast<size_t>(rows * cols) * ops::element_bytes(gemm.output_type());
  if (out.size() != wanted) {
    fail(ErrorKind::kShape, "[gemm] the output has %zu bytes, the result %zu", out.size(), wanted);
  }
  return reinterpret_cast<std::byte*>(out.data());
}

}  // namespace

void init_ops(nb::module_& m) {
  nb::module_ sub = m.def_submodule("ops", "Operations on a device.");
  sub.def(
      "gemm_stream",
      [](const nb::bytes& config, int64_t m_size, int64_t k_size, int64_t n_size, bool packed_a,
         bool packed_b, int shift, bool overlap) {
        const std::span<const std::byte> view{reinterpret_cast<const std::byte*>(config.c_str()),
                                              config.size()};
        const Configuration configuration = Configuration::parse(view);
        ops::GemmProblem problem =
            ops::GemmProblem::dense(ops::GemmTile::of(configuration), m_size, k_size, n_size);
        if (packed_a) problem.a = {};
        if (packed_b) problem.b = {};
        problem.shift = shift;
        problem.overlap = overlap;
        const std::vector<uint32_t> words = ops::build_gemm_stream(configuration, problem);
        return nb::bytes(words.data(), words.size() * 4);
      },
      nb::arg("config"), nb::arg("m"), nb::arg("k"), nb::arg("n"), nb::arg("packed_a") = false,
      nb::arg("packed_b") = false, nb::arg("shift") = 0, nb::arg("overlap") = true);
  nb::class_<ops::PackedB>(sub, "PackedB")
      .def_ro("k", &ops::PackedB::k)
      .def_ro("n", &ops::PackedB::n)
      .def_prop_ro("nbytes", [](const ops::PackedB& self) { return self.buffer->bytes(); });
  nb::class_<ops::Gemm>(sub, "Gemm")
      .def("__init__",
           [](ops::Gemm* self, std::shared_ptr<ops::SharedDevice> device, const nb::bytes& config) {
             const std::span<const std::byte> bytes{
                 reinterpret_cast<const std::byte*>(config.c_str()), config.size()};
             new (self) ops::Gemm(std::move(device), Configuration::parse(bytes));
           })
      .def("pack",
           [](ops::Gemm& self, const Matrix& b, const std::string& type) {
             const ops::MatrixView view = view_of(b, type);
             nb::gil_scoped_release release;
             return std::const_pointer_cast<ops::PackedB>(self.pack(view));
           })
      .def("run",
           [](ops::Gemm& self, const Matrix& a, const std::string& a_type, const Matrix& b,
              const std::string& b_type, const Output& c, int shift) {
             const ops::MatrixView va = view_of(a, a_type), vb = view_of(b, b_type);
             std::byte* out = output_of(c, self, va.rows, vb.cols);
             RunReport report;
             {
               nb::gil_scoped_release release;
               report = self.run(va, vb, out, shift);
             }
             return report_dict(report);
           })
      .def("run_packed",
           [](ops::Gemm& self, const Matrix& a, const std::string& a_type, const ops::PackedB& b,
              const Output& c, int shift) {
             const ops::MatrixView va = view_of(a, a_type);
             std::byte* out = output_of(c, self, va.rows, b.n);
             RunReport report;
             {
               nb::gil_scoped_release release;
               report = self.run(va, b, out, shift);
             }
             return report_dict(report);
           })
      .def("set_whole_padding", &ops::Gemm::set_whole_padding)
      .def("counters", [](const ops::Gemm& self) {
        ops::OpCounters counters;
        {
          nb::gil_scoped_release release;  // counters() waits for a run of another thread
          counters = self.counters();
        }
        nb::dict d;
        d["streams_built"] = counters.streams_built;
        d["stream_hits"] = counters.stream_hits;
        d["host_copy_bytes"] = counters.host_copy_bytes;
        d["submit_overhead_ns"] = counters.submit_overhead_ns;
        d["stream_build_ns"] = counters.stream_build_ns;
        return d;
      });
}

}  // namespace npu::python
