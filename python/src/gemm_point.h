// A design point of Python (npu.designs.gemm.DesignPoint) as the closed form sees it.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>

#include "arch/geometry.h"
#include "ops/gemm/gemm_design.h"
#include "perf/gemm_cost.h"

namespace npu::python {

arch::Generation generation_of(const nanobind::object& design);

// Of the word that `accumulate` is.
ops::GemmSums sums_named(const std::string& word);

// Everything but the problem's size.
perf::GemmPoint gemm_point(const nanobind::object& design);

// Numbers are 1 to 2^30.
void set_tile(perf::GemmPoint& point, int64_t m, int64_t k, int64_t n, int64_t k_mt,
              int64_t c_buffers);
void set_size(perf::GemmPoint& point, int64_t m, int64_t k, int64_t n);

}  // namespace npu::python
