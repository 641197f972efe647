// How a kernel is stated: its function and, for the hosts that call it, its declaration.
//
//   NPU_KERNEL void zero_f32(float* c, int32_t count) { ... }
//   NPU_DECLARE(zero_f32, {.operands = {buffer("c", "count"), multiple("count", 16)},
//                          .cycles = ...});
//
// For the NPU a kernel is a C function and the declaration nothing. In a host build it belongs to
// that build alone, and the declaration enters it in the build's table (backend/kernels).
// Parameters are `const T*` (read), `T*` (written, perhaps read) and int32_t; declared are their
// names, the elements that a call accesses as formulas of the integers, the integers' limits, and
// the cost.
#pragma once

#ifdef AIE_HOST_VARIANT

#define NPU_KERNEL static
#define NPU_DECLARATIONS 1  // whether what only declarations need is to be compiled
#define NPU_DECLARE(function, ...) NPU_DECLARE_AS(__COUNTER__, function, __VA_ARGS__)

#include "kernels/host/declared.h"

#else  // the NPU

#define NPU_KERNEL extern "C"
#define NPU_DECLARATIONS 0
#define NPU_DECLARE(...) static_assert(true)

#endif
