// Cycles of kernel calls on a core. The declarations in aie_kernels/ state their costs with these
// formulas; the closed form (gemm_cost.h) uses them too.
#pragma once

#include <cstdint>

#include "arch/timing.h"

namespace npu::perf {

// kBf16 on npu2: computed through BFP16; kBf16Native: by the bf16 multiply-adds; kBfp16: the
// operands are BFP16 in memory already.
enum class InputKind : uint8_t { kInt8, kInt16, kBf16, kBf16Native, kBfp16 };

// m x k x n product: cycles = m n (k / peak + h), h = moves + 2 bytes(C) / port. The load and the
// store of a C element cannot share an instruction, hence 2.
double matmul_cycles(const arch::Timing& timing, InputKind input, double c_bytes, bool integer,
                     double m, double k, double n);

// The same by a kernel that loads and stores C in the free slots of the multiplications: slots of
// 2x2 C blocks, see docs/timing.md. npu2, int8 or BFP16 operands.
double pipelined_cycles(const arch::Timing& timing, InputKind input, double c_bytes, double m,
                        double k, double n);

// `elements` bf16 values converted to BFP16 in memory, before a pipelined kernel multiplies them.
double bfp16_cycles(const arch::Timing& timing, double elements);

// Elements that are loaded, changed and stored: bound by the memory port.
double elementwise_cycles(const arch::Timing& timing, double elements, double in_bytes,
                          double out_bytes);

// A C tile that is cleared, the first call of an output round.
double zero_cycles(const arch::Timing& timing, double elements, double bytes);

}  // namespace npu::perf
