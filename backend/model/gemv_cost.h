// Cycles of the GEMV kernel (aie_kernels/gemv_q4nx.cc) per block of 32 x 256 weights, counted from
// its source under the instruction latencies of the two cores.
#pragma once

#include <cstdint>

#include "arch/device_model.h"

namespace npu::model {

double gemv_cycles(arch::Generation generation, int64_t batch);
double gemv_setup_cycles();
// Of aie_kernels/dequant_q4nx.cc, per block.
double dequant_cycles(arch::Generation generation);

}  // namespace npu::model
