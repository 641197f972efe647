// What products cost the host of an emulated device, roughly: enough to choose between the default
// design, on all cores of the array, and those for small products, on one core or a row of four.
#pragma once

#include "perf/gemm_cost.h"

namespace npu::ops {

// Of loading a configuration whose array is kept (devices/emulator/loaded_arrays.h).
inline constexpr double kHostLoadSeconds = 110e-6;

// Seconds of a repeated product, whose size `point` has, on so many threads. As measured on Zen 5
// with tiles of 64 x 64 x 64 and, in int8, 64 x 128 x 64, whose kernel calls take about as long.
double host_seconds(const perf::GemmPoint& point, int threads);

}  // namespace npu::ops
