// npu._npu.ops: operations on a device. Arrays come as byte pointers with shape and strides,
// because bfloat16 has no buffer-protocol code; python/npu/ops/matmul.py does the checking that
// users see.
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "arrays.h"
#include "bindings.h"
#include "error.h"
#include "formats/pack.h"
#include "ops/gemm/bfp16_matrix.h"
#include "ops/gemm/gemm.h"
#include "rounding.h"

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

std::byte* bytes_of(const Output& out) { return reinterpret_cast<std::byte*>(out.data()); }

// rows, cols: of values.
Output result_of(nb::handle c, const ops::Gemm& gemm, int64_t rows, int64_t cols) {
  const Output out = output_of(c, "gemm", "c");
  const int64_t side = ops::element_side(gemm.output_type());
  check_size(out,
             static_cast<size_t>(divide_up(rows, side) * divide_up(cols, side)) *
                 ops::element_bytes(gemm.output_type()),
             "gemm");
  return out;
}

// A matrix in BFP16, tiles of 8x8 values.
using Tiles = nb::ndarray<const uint8_t, nb::shape<-1, -1, 72>, nb::c_contig, nb::device::cpu>;

ops::MatrixView view_of(const Tiles& tiles) {
  const auto rows = static_cast<int64_t>(tiles.shape(0));
  const auto cols = static_cast<int64_t>(tiles.shape(1));
  return {reinterpret_cast<const std::byte*>(tiles.data()),
          ops::ElementType::kBfp16,
          rows,
          cols,
          cols,
          1};
}

// c = a @ b: b in tiles of its columns, that is of its transpose.
nb::dict run_blocks(ops::Gemm& gemm, const ops::MatrixView& a, const Tiles& b, nb::handle c) {
  const ops::MatrixView vb = view_of(b).transposed();
  const Output out = result_of(c, gemm, a.rows * ops::element_side(a.type), vb.cols * 8);
  check_apart(overlap(out, a), "gemm", "a");
  check_apart(overlap(out, vb), "gemm", "b");
  return run_report([&] { return gemm.run(a, vb, bytes_of(out)); });
}

// (a, its type, b, its type or "" of a PackedB, c, shift), as Python has a product.
using Product = std::tuple<Matrix, std::string, nb::object, std::string, nb::object, int>;

ops::GemmProduct product_of(const ops::Gemm& gemm, const Product& product) {
  const auto& [a, a_type, b, b_type, c, shift] = product;
  ops::GemmProduct out{view_of(a, a_type), {}, nullptr, nullptr, shift};
  if (b_type.empty()) {
    out.packed = nb::cast<const ops::PackedB*>(b);
  } else {
    out.b = view_of(nb::cast<Matrix>(b), b_type);
  }
  const Output result =
      result_of(c, gemm, out.a.rows, out.packed != nullptr ? out.packed->n : out.b.cols);
  check_apart(overlap(result, out.a), "gemm", "a");
  if (out.packed == nullptr) check_apart(overlap(result, out.b), "gemm", "b");
  out.c = bytes_of(result);
  return out;
}

void round_to_bf16(const Matrix& matrix, const std::string& type, nb::handle rounded) {
  const ops::MatrixView view = view_of(matrix, type);
  const Output out = output_of(rounded, "round", "rounded");
  check_size(out, ops::packed_bytes(view.rows, view.cols, ops::ElementType::kBf16, 1, view.cols),
             "round");
  check_apart(overlap(out, view), "round", "the matrix");
  nb::gil_scoped_release release;
  ops::pack_tiles(view, ops::ElementType::kBf16, 1, view.cols, ops::TileOrder::kRowsFirst,
                  bytes_of(out));
}

void pack_bfp16(const Matrix& matrix, const std::string& type, nb::handle tiles) {
  const ops::MatrixView view = view_of(matrix, type);
  const Output out = output_of(tiles, "pack", "tiles");
  check_size(out, ops::bfp16_bytes(view.rows, view.cols), "pack");
  check_apart(overlap(out, view), "pack", "the matrix");
  nb::gil_scoped_release release;
  ops::pack_bfp16(view, bytes_of(out));
}

}  // namespace

void init_ops(nb::module_& m) {
  nb::module_ sub = m.def_submodule("ops", "Operations on a device.");
  nb::class_<ops::PackedB>(sub, "PackedB")
      .def_ro("k", &ops::PackedB::k)
      .def_ro("n", &ops::PackedB::n)
      .def_prop_ro("nbytes", [](const ops::PackedB& self) { return self.buffer->bytes(); });
  sub.def("pack_bfp16", &pack_bfp16, nb::arg("matrix"), nb::arg("type"), nb::arg("tiles"),
          "A float32 or bfloat16 matrix in BFP16: tiles of 8x8, 72 bytes each, blocks along rows.");
  sub.def("round_to_bf16", &round_to_bf16, nb::arg("matrix"), nb::arg("type"), nb::arg("rounded"),
          "A float32 or bfloat16 matrix in bfloat16, row-major, to nearest even.");
  operation_class<ops::Gemm>(sub, "Gemm")
      .def("run_blocks", [](ops::Gemm& self, const Tiles& a, const Tiles& b,
                            nb::handle c) { return run_blocks(self, view_of(a), b, c); })
      .def("run_values_blocks",
           [](ops::Gemm& self, const Matrix& a, const std::string& a_type, const Tiles& b,
              nb::handle c) { return run_blocks(self, view_of(a, a_type), b, c); })
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
             const nb::gil_scoped_release release;
             self.run(va, vb, bytes_of(out), shift);
           })
      .def("run_packed",
           [](ops::Gemm& self, const Matrix& a, const std::string& a_type, const ops::PackedB& b,
              nb::handle c, int shift) {
             const ops::MatrixView va = view_of(a, a_type);
             const Output out = result_of(c, self, va.rows, b.n);
             check_apart(overlap(out, va), "gemm", "a");
             const nb::gil_scoped_release release;
             self.run(va, b, bytes_of(out), shift);
           })
      .def(
          "run_both",
          [](ops::Gemm& self, const Product& first, const Product& second) {
            const ops::GemmProduct one = product_of(self, first), other = product_of(self, second);
            return run_report([&] { return self.run_both(one, other); });
          },
          nb::arg("first"), nb::arg("second"),
          "Two products, in one submission where each needs no more. Of each: a, its type, b, its "
          "type or \"\" of a PackedB, c, shift. Neither reads what the other writes.");
}

}  // namespace npu::python
