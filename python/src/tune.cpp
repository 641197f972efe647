// npu._npu.tune: the closed-form GEMM model for many design points in one call, which is what makes
// an exhaustive tile search take seconds. python/npu/perf/tune is what users call.
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>

#include <map>
#include <string>

#include "arch/timing.h"
#include "bindings.h"
#include "error.h"
#include "model/gemm_model.h"

namespace nb = nanobind;

namespace npu::python {

namespace {

constexpr size_t kInputs = 8;  // m, k, n, k_mt, c_buffers, M, K, N
constexpr size_t kCBuffers = 4;
using Points = nb::ndarray<const int64_t, nb::shape<-1, kInputs>, nb::c_contig, nb::device::cpu>;
using Results = nb::ndarray<double, nb::shape<-1, 3>, nb::c_contig, nb::device::cpu>;

model::GemmPoint fixed_part(const arch::DeviceModel& device, const std::string& a_type,
                            const std::string& c_type, bool b_column_major, bool native,
                            bool wide) {
  model::GemmPoint p;
  if (a_type == "int8") {
    p.input = model::InputKind::kInt8;
  } else if (a_type == "int16") {
    p.input = model::InputKind::kInt16;
  } else {
    p.input = native ? model::InputKind::kBf16Native : model::InputKind::kBf16;
  }
  p.a_bytes = a_type == "int8" ? 1 : 2;
  p.c_bytes = c_type == "int8" ? 1 : c_type == "int16" || c_type == "bfloat16" ? 2 : 4;
  p.sum_bytes = wide ? 4 : 0;
  p.integer_output = c_type.starts_with("int");
  p.b_column_major = b_column_major;
  p.rows = arch::kCoreRows;
  p.columns = device.columns;
  return p;
}

// Each row of `out` gets seconds (dispatch included), cycles of a kernel call, and the bound's
// number in kBounds order.
void estimate(const std::string& generation, const std::string& a_type, const std::string& c_type,
              bool b_column_major, bool native, bool pipelined, int64_t a_parts, bool wide,
              const std::map<std::string, double>& overrides, const Points& points,
              const Results& out) {
  if (points.shape(0) != out.shape(0)) {
    fail(ErrorKind::kShape, "[tune.estimate] %zu points and %zu rows for results", points.shape(0),
         out.shape(0));
  }
  const arch::DeviceModel& device = arch::device_model(generation);
  arch::TimingTable table;
  for (const auto& [name, value] : overrides) table.set(name, value);
  const arch::Timing timing(device.generation, table);
  if (a_parts < 1 || a_parts > 64) {
    fail(ErrorKind::kArgument, "[tune.estimate] a_parts is %lld", static_cast<long long>(a_parts));
  }
  model::GemmPoint p = fixed_part(device, a_type, c_type, b_column_major, native, wide);
  p.pipelined = pipelined;
  p.a_parts = a_parts;
  for (size_t i = 0; i < points.shape(0); ++i) {
    const int64_t* in = points.data() + i * kInputs;
    for (size_t j = 0; j < kInputs; ++j) {
      const int64_t min = j == kCBuffers ? 0 : 1;
      if (in[j] < min || in[j] > int64_t{1} << 30) {
        fail(ErrorKind::kShape, "[tune.estimate] point %zu: %lld is not in %lld .. 2^30", i,
             static_cast<long long>(in[j]), static_cast<long long>(min));
      }
    }
    p.m = in[0];
    p.k = in[1];
    p.n = in[2];
    p.k_mt = in[3];
    p.c_buffers = static_cast<int>(in[kCBuffers]);
    p.M = in[5];
    p.K = in[6];
    p.N = in[7];
    const model::GemmEstimate e = model::estimate_gemm(timing, p);
    double* row = out.data() + i * 3;
    row[0] = e.seconds;
    row[1] = e.cycles_per_call;
    row[2] = static_cast<double>(e.bound);
  }
}

nb::list bounds() {
  nb::list names;
  for (const model::Bound b : {model::Bound::kCompute, model::Bound::kDram, model::Bound::kStream,
                               model::Bound::kCommand}) {
    names.append(model::bound_name(b));
  }
  return names;
}

}  // namespace

void init_tune(nb::module_& m) {
  nb::module_ sub = m.def_submodule("tune", "The closed-form GEMM model, many points at a time.");
  sub.def("bounds", &bounds);
  sub.def("estimate", &estimate, nb::arg("generation"), nb::arg("a_type"), nb::arg("c_type"),
          nb::arg("b_column_major"), nb::arg("native"), nb::arg("pipelined"), nb::arg("a_parts"),
          nb::arg("wide"), nb::arg("overrides"), nb::arg("points"), nb::arg("out"));
}

}  // namespace npu::python
