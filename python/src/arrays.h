// What the bindings of the operations share (ops.cpp, gemv.cpp, dequant.cpp, operations.cpp): views
// of arrays, checks of outputs, runs, counters.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>

#include <cstddef>
#include <cstdint>
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
using Output =
    nanobind::ndarray<uint8_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

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

inline void check_size(const Output& out, size_t wanted, const char* function) {
  if (out.size() == wanted) return;
  fail(ErrorKind::kShape, "[%s] the output has %zu bytes, the result %zu", function, out.size(),
       wanted);
}

template <typename Operation>
nanobind::dict counters_dict(const Operation& operation) {
  const OperationCounters counters = [&] {
    nanobind::gil_scoped_release release;  // counters() waits for a run of another thread
    return operation.counters();
  }();
  nanobind::dict d;
  d["streams_built"] = counters.streams_built;
  d["stream_hits"] = counters.stream_hits;
  d["host_copy_bytes"] = counters.host_copy_bytes;
  d["submit_overhead_ns"] = counters.submit_overhead_ns;
  d["stream_build_ns"] = counters.stream_build_ns;
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
