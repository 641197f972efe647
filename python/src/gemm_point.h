// A design point of Python (npu.designs.gemm.DesignPoint) as the closed form sees it.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

#include "arch/device_model.h"
#include "model/gemm_model.h"

namespace npu::python {

arch::Generation generation_of(const nanobind::object& design);

// Everything but the problem's size.
model::GemmPoint gemm_point(const nanobind::object& design);

// Numbers are 1 to 2^30.
void set_tile(model::GemmPoint& point, int64_t m, int64_t k, int64_t n, int64_t k_mt,
              int64_t c_buffers);
void set_size(model::GemmPoint& point, int64_t m, int64_t k, int64_t n);

}  // namespace npu::python
