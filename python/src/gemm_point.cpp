#include "gemm_point.h"

#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>

#include <array>
#include <optional>
#include <string>

#include "error.h"
#include "ops/gemm/gemm_design.h"

namespace nb = nanobind;

namespace npu::python {

namespace {

template <typename T>
T field(const nb::object& design, const char* name) {
  return nb::cast<T>(design.attr(name));
}

int64_t in_range(int64_t value) {
  if (value < 1 || value > int64_t{1} << 30) {
    fail(ErrorKind::kShape, "[estimate] %lld is not in 1 .. 2^30", static_cast<long long>(value));
  }
  return value;
}

ops::ElementType element(const nb::object& design, const char* name) {
  const auto word = field<std::string>(design, name);
  const std::optional<ops::ElementType> type = ops::element_named(word);
  if (!type) fail(ErrorKind::kDtype, "[design] %s is \"%s\"", name, word.c_str());
  return *type;
}

}  // namespace

ops::GemmSums sums_named(const std::string& word) {
  if (word == "bfloat16") return ops::GemmSums::kBf16;
  return word == "narrow" ? ops::GemmSums::kNarrow : ops::GemmSums::kWide;
}

arch::Generation generation_of(const nb::object& design) {
  return arch::device_geometry(field<std::string>(design, "generation")).generation;
}

perf::GemmPoint gemm_point(const nb::object& design) {
  const bool blocks = element(design, "b_dtype") == ops::ElementType::kBfp16;
  const ops::GemmKind kind{element(design, "a_dtype"), element(design, "c_dtype"),
                           blocks ? ops::GemmLayout::kBlocks : ops::GemmLayout::kRow,
                           sums_named(field<std::string>(design, "accumulate")),
                           field<std::string>(design, "bf16") == "bfp16"};
  perf::GemmPoint p = ops::point_of(generation_of(design), kind);
  p.b_column_major = field<std::string>(design, "b_layout") == "col";
  p.b_pairs = field<bool>(design, "b_pairs");
  p.pipelined = field<std::string>(design, "kernel") == "pipelined";
  p.a_parts = in_range(field<int64_t>(design, "a_parts"));
  p.rows = field<int>(design, "rows");
  p.columns = field<int>(design, "columns");
  const auto tile = field<std::array<int64_t, 3>>(design, "tile");
  set_tile(p, tile[0], tile[1], tile[2], field<int64_t>(design, "k_mt"),
           field<int64_t>(design, "c_buffers"));
  return p;
}

void set_tile(perf::GemmPoint& point, int64_t m, int64_t k, int64_t n, int64_t k_mt,
              int64_t c_buffers) {
  point.m = in_range(m);
  point.k = in_range(k);
  point.n = in_range(n);
  point.k_mt = in_range(k_mt);
  point.c_buffers = c_buffers == 0 ? 0 : static_cast<int>(in_range(c_buffers));
}

void set_size(perf::GemmPoint& point, int64_t m, int64_t k, int64_t n) {
  point.M = in_range(m);
  point.K = in_range(k);
  point.N = in_range(n);
}

}  // namespace npu::python
