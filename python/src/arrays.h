// What the bindings of the operations share (ops.cpp, gemv.cpp, dequant.cpp, operations.cpp): views
// of arrays, checks of outputs, runs, counters.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "error.h"
#include "formats/pack.h"
#include "report.h"
#include "runtime/operation.h"

namespace npu::python {

// A 2-D array whose elements are passed by size, with their type beside it; any strides.
using Matrix = nanobind::ndarray<nanobind::ndim<2>, nanobind::ro, nanobind::device::cpu>;
// Bytes where they lie; `Input` may be read-only.
using Output =
    nanobind::ndarray<uint8_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
using Input = nanobind::ndarray<uint8_t, nanobind::ndim<1>, nanobind::ro, nanobind::c_contig,
                                nanobind::device::cpu>;

// Part of an error's message: an array's type and what can be wrong with it.
inline std::string described(nanobind::handle array) {
  std::string text = nanobind::inst_name(array).c_str();
  try {
    const auto printed = [&](const char* name) {
      return nanobind::cast<std::string>(array.attr(name).attr("__str__")());
    };
    text = "an array of " + printed("dtype") + " of shape " + printed("shape");
    if (!nanobind::cast<bool>(array.attr("flags").attr("writeable"))) text += ", read-only";
  } catch (const std::exception&) {  // not NumPy's
  }
  return text;
}

inline std::span<const std::byte> bytes_of(const nanobind::bytes& data) {
  return {reinterpret_cast<const std::byte*>(data.c_str()), data.size()};
}

// `name`: the type as the caller named it; `function`: for error messages.
inline ops::MatrixView matrix_view(const Matrix& array, ops::ElementType type,
                                   const std::string& name, const char* function) {
  if (array.itemsize() != ops::element_bytes(type)) {
    fail(ErrorKind::kDtype, "[%s] an array with %zu-byte elements was passed as %s", function,
         array.itemsize(), name.c_str());
  }
  ops::MatrixView view;
  view.type = type;
  view.data = static_cast<const std::byte*>(array.data());
  view.rows = static_cast<int64_t>(array.shape(0));
  view.cols = static_cast<int64_t>(array.shape(1));
  view.row_stride = array.stride(0);
  view.col_stride = array.stride(1);
  return view;
}

// The array itself, or an error: what is written to a converted copy would be lost.
inline Output output_of(nanobind::handle array, const char* function, const char* name) {
  Output out;
  if (nanobind::try_cast(array, out, false)) return out;
  fail(ErrorKind::kArgument,
       "[%s] %s is written to, and is %s; pass a writable C-contiguous uint8 array of one "
       "dimension",
       function, name, described(array).c_str());
}

inline Input input_of(nanobind::handle array, const char* function, const char* name) {
  Input in;
  if (nanobind::try_cast(array, in, false)) return in;
  fail(ErrorKind::kArgument, "[%s] %s is %s; pass a C-contiguous uint8 array of one dimension",
       function, name, described(array).c_str());
}

inline bool overlap(const void* first, size_t first_bytes, const void* second,
                    size_t second_bytes) {
  const auto a = reinterpret_cast<uintptr_t>(first), b = reinterpret_cast<uintptr_t>(second);
  return a < b + second_bytes && b < a + first_bytes && first_bytes > 0 && second_bytes > 0;
}

// Whether any element lies in the output: rows of one matrix may be apart.
inline bool overlap(const Output& out, const ops::MatrixView& view) {
  const auto width = static_cast<int64_t>(ops::element_bytes(view.type));
  const auto start = reinterpret_cast<int64_t>(view.data) -
                     reinterpret_cast<int64_t>(static_cast<const void*>(out.data()));
  const auto meets = [&](int64_t low, int64_t high) {
    return low < static_cast<int64_t>(out.size()) && high > 0 && low < high;
  };
  if (view.rows == 0 || view.cols == 0) return false;
  // A broadcast axis is one element, however long it says it is.
  const int64_t rows = view.row_stride == 0 ? 1 : view.rows;
  const int64_t cols = view.col_stride == 0 ? 1 : view.cols;
  const int64_t down = (rows - 1) * view.row_stride * width;
  const int64_t across = (cols - 1) * view.col_stride * width;
  const int64_t below = std::min<int64_t>(across, 0), above = std::max<int64_t>(across, 0) + width;
  if (!meets(start + std::min<int64_t>(down, 0) + below,
             start + std::max<int64_t>(down, 0) + above)) {
    return false;
  }
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t low = start + row * view.row_stride * width;
    if (!meets(low + below, low + above)) continue;
    for (int64_t col = 0; col < cols; ++col) {
      const int64_t at = low + col * view.col_stride * width;
      if (meets(at, at + width)) return true;
    }
  }
  return false;
}

inline void check_apart(bool overlaps, const char* function, const char* name) {
  if (!overlaps) return;
  fail(ErrorKind::kArgument, "[%s] the result shares memory with %s; pass memory of its own",
       function, name);
}

inline void check_size(const Output& out, size_t wanted, const char* function) {
  if (out.size() == wanted) return;
  fail(ErrorKind::kShape, "[%s] the output has %zu bytes, the result %zu", function, out.size(),
       wanted);
}

template <typename Operation>
nanobind::dict counters_dict(const Operation& operation) {
  const OperationCounters counters = operation.counters();
  nanobind::dict d;
  d["streams_built"] = counters.streams_built;
  d["stream_hits"] = counters.stream_hits;
  d["host_copy_bytes"] = counters.host_copy_bytes;
  d["submit_overhead_ns"] = counters.submit_overhead_ns;
  d["stream_build_ns"] = counters.stream_build_ns;
  d["pack_ns"] = counters.pack_ns;
  d["transpose_ns"] = counters.transpose_ns;
  d["result_copy_ns"] = counters.result_copy_ns;
  return d;
}

// The report of body(), which runs without the interpreter's lock.
template <typename Body>
nanobind::dict run_report(const Body& body) {
  return report_dict([&] {
    nanobind::gil_scoped_release release;
    return body();
  }());
}

// The class of an operation with arguments of its own: made on a device from a configuration.
template <typename Operation>
nanobind::class_<Operation> operation_class(nanobind::module_& m, const char* name) {
  return nanobind::class_<Operation>(m, name)
      .def(
          "__init__",
          [](Operation* self, std::shared_ptr<SharedDevice> device, const nanobind::bytes& config) {
            new (self) Operation(std::move(device), Configuration::parse(bytes_of(config)));
          })
      .def("counters", [](const Operation& self) { return counters_dict(self); });
}

}  // namespace npu::python
