// npu._npu.ops: operations on a device. Arrays come as byte pointers with shape and strides,
// because bfloat16 has no buffer-protocol code; python/npu/ops/matmul.py does the checking that
// users see.
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "arrays.h"
#include "bindings.h"
#include "error.h"
#include "ops/gemm/gemm.h"

namespace nb = nanobind;

namespace npu::python {

namespace {

ops::ElementType element_type(const std::string& name) {
  const std::optional<ops::ElementType> type = ops::element_named(name);
  if (!type) fail(ErrorKind::kDtype, "[gemm] element type \"%s\" is unknown", name.c_str());
  return *type;
}

ops::MatrixView view_of(const Matrix& array, const std::string& type) {
  return matrix_view(array, element_type(type), type, "gemm");
}

Output result_of(nb::handle c, const ops::Gemm& gemm, int64_t rows, int64_t cols) {
  const Output out = output_of(c, "gemm", "c");
  check_size(out, static_cast<size_t>(rows * cols) * ops::element_bytes(gemm.output_type()),
             "gemm");
  return out;
}

std::byte* bytes_of(const Output& out) { return reinterpret_cast<std::byte*>(out.data()); }

}  // namespace

void init_ops(nb::module_& m) {
  nb::module_ sub = m.def_submodule("ops", "Operations on a device.");
  nb::class_<ops::PackedB>(sub, "PackedB")
      .def_ro("k", &ops::PackedB::k)
      .def_ro("n", &ops::PackedB::n)
      .def_prop_ro("nbytes", [](const ops::PackedB& self) { return self.buffer->bytes(); });
  operation_class<ops::Gemm>(sub, "Gemm")
      .def("pack",
           [](ops::Gemm& self, const Matrix& b, const std::string& type) {
             const ops::MatrixView view = view_of(b, type);
             nb::gil_scoped_release release;
             return std::const_pointer_cast<ops::PackedB>(self.pack(view));
           })
      .def("run",
           [](ops::Gemm& self, const Matrix& a, const std::string& a_type, const Matrix& b,
              const std::string& b_type, nb::handle c, int shift) {
             const ops::MatrixView va = view_of(a, a_type), vb = view_of(b, b_type);
             const Output out = result_of(c, self, va.rows, vb.cols);
             check_apart(overlap(out, va), "gemm", "a");
             check_apart(overlap(out, vb), "gemm", "b");
             return run_report([&] { return self.run(va, vb, bytes_of(out), shift); });
           })
      .def("run_packed", [](ops::Gemm& self, const Matrix& a, const std::string& a_type,
                            const ops::PackedB& b, nb::handle c, int shift) {
        const ops::MatrixView va = view_of(a, a_type);
        const Output out = result_of(c, self, va.rows, b.n);
        check_apart(overlap(out, va), "gemm", "a");
        return run_report([&] { return self.run(va, b, bytes_of(out), shift); });
      });
}

}  // namespace npu::python
