// npu._npu.tune: the closed form of GEMM for many design points in one call, which is what makes
// an exhaustive tile search take seconds. python/npu/perf/tune is what users call.
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>

#include <map>
#include <string>

#include "arch/timing.h"
#include "bindings.h"
#include "error.h"
#include "gemm_point.h"
#include "perf/gemm_cost.h"

namespace nb = nanobind;

namespace npu::python {

namespace {

constexpr size_t kInputs = 8;  // m, k, n, k_mt, c_buffers, M, K, N
using Points = nb::ndarray<const int64_t, nb::shape<-1, kInputs>, nb::c_contig, nb::device::cpu>;
using Results = nb::ndarray<double, nb::shape<-1, 3>, nb::c_contig, nb::device::cpu>;

// `design` says what all points share; a row of `points` is a tile and a size. A row of `out` gets
// seconds (dispatch included), cycles of a kernel call, and the bound's number in kBounds order.
void estimate(const nb::object& design, const std::map<std::string, double>& overrides,
              const Points& points, const Results& out) {
  if (points.shape(0) != out.shape(0)) {
    fail(ErrorKind::kShape, "[tune.estimate] %zu points and %zu rows for results", points.shape(0),
         out.shape(0));
  }
  arch::TimingTable table;
  for (const auto& [name, value] : overrides) table.set(name, value);
  const arch::Timing timing(generation_of(design), table);
  perf::GemmPoint p = gemm_point(design);
  for (size_t i = 0; i < points.shape(0); ++i) {
    const int64_t* in = points.data() + i * kInputs;
    set_tile(p, in[0], in[1], in[2], in[3], in[4]);
    set_size(p, in[5], in[6], in[7]);
    const perf::GemmEstimate e = perf::estimate_gemm(timing, p);
    double* row = out.data() + i * 3;
    row[0] = e.seconds;
    row[1] = e.cycles_per_call;
    row[2] = static_cast<double>(e.bound);
  }
}

nb::list bounds() {
  nb::list names;
  for (const perf::Bound b :
       {perf::Bound::kCompute, perf::Bound::kDram, perf::Bound::kStream, perf::Bound::kCommand}) {
    names.append(perf::bound_name(b));
  }
  return names;
}

}  // namespace

void init_tune(nb::module_& m) {
  nb::module_ sub = m.def_submodule("tune", "The closed form of GEMM, many points at a time.");
  sub.def("bounds", &bounds);
  sub.def("estimate", &estimate, nb::arg("design"), nb::arg("overrides"), nb::arg("points"),
          nb::arg("out"));
}

}  // namespace npu::python
