// A design point of Python (npu.designs.gemm.DesignPoint) as the closed form sees it.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "arch/geometry.h"
#include "perf/gemm_cost.h"

namespace npu::python {

arch::Generation generation_of(const nanobind::object& design);

// Everything but the problem's size.
perf::GemmPoint gemm_point(const nanobind::object& design);

// Padded sizes of what single submissions compute of a product, and how often each occurs.
std::vector<std::pair<std::array<int64_t, 3>, int64_t>> gemm_blocks(
    const nanobind::object& design, const std::array<int64_t, 3>& size);

// Numbers are 1 to 2^30.
void set_tile(perf::GemmPoint& point, int64_t m, int64_t k, int64_t n, int64_t k_mt,
              int64_t c_buffers);
void set_size(perf::GemmPoint& point, int64_t m, int64_t k, int64_t n);

}  // namespace npu::python
