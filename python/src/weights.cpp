// npu._npu.weights: stored rows to weight blocks; npu/models/prepare checks and documents.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include "bindings.h"
#include "block_format.h"
#include "error.h"
#include "formats/block_conversion.h"
#include "formats/gguf_rows.h"
#include "formats/weight_blocks.h"

namespace nb = nanobind;

namespace npu::python {

namespace {

using Raw = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

weights::Stored checked(const Raw& raw, int type, int64_t k, const char* function) {
  const auto stored = weights::stored_type(type);
  if (!stored) fail(ErrorKind::kArgument, "[%s] unknown tensor type %d", function, type);
  // Every type has more than two bits per element; beyond that, products would overflow.
  const bool possible = k > 0 && static_cast<uint64_t>(k) <= raw.shape(1) * 4;
  const int64_t bytes = possible ? weights::row_bytes(*stored, k) : 0;
  if (bytes == 0 || raw.shape(1) != static_cast<size_t>(bytes)) {
    fail(ErrorKind::kShape, "[%s] rows of %zu bytes are not %lld elements of type %d", function,
         raw.shape(1), static_cast<long long>(k), type);
  }
  return *stored;
}

}  // namespace

void init_weights(nb::module_& m) {
  nb::module_ sub = m.def_submodule("weights", "Stored rows to weight blocks.");
  sub.def("converts", [](int type, const std::string& format) {
    const auto stored = weights::stored_type(type);
    return stored && weights::converts(*stored, format_named(format, "converts"));
  });
  // The first row with a NaN or an infinity, or -1; blocks go to `out`.
  sub.def("convert_rows", [](const Raw& raw, int type, int64_t k, const std::string& name,
                             const Bytes& out) {
    const weights::Stored stored = checked(raw, type, k, "convert_rows");
    const auto rows = static_cast<int64_t>(raw.shape(0));
    const blocks::Format format = format_named(name, "convert_rows");
    if (!weights::converts(stored, format)) {
      fail(ErrorKind::kArgument, "[convert_rows] type %d does not become %s blocks; requantise it",
           type, name.c_str());
    }
    const int64_t count = blocks::row_blocks(rows) * blocks::column_blocks(k, format);
    if (out.shape(0) != static_cast<size_t>(count * blocks::bytes_of(format))) {
      fail(ErrorKind::kShape, "[convert_rows] the output has %zu bytes, %lld blocks are needed",
           out.shape(0), static_cast<long long>(count));
    }
    const nb::gil_scoped_release release;
    return weights::convert_rows(stored, format, raw.data(), static_cast<int64_t>(raw.shape(1)),
                                 rows, k, out.data());
  });
  sub.def("dequantize_rows", [](const Raw& raw, int type, const Floats& out) {
    const auto k = static_cast<int64_t>(out.shape(1));
    const weights::Stored stored = checked(raw, type, k, "dequantize_rows");
    if (out.shape(0) != raw.shape(0)) {
      fail(ErrorKind::kShape, "[dequantize_rows] the shapes of the arrays do not match");
    }
    const nb::gil_scoped_release release;
    for (size_t row = 0; row < raw.shape(0); ++row) {
      weights::dequantize_row(stored, raw.data() + row * raw.shape(1), k,
                              out.data() + row * out.shape(1));
    }
  });
}

}  // namespace npu::python
