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
//
// NPU_TRANSPOSED(b) is the second operand of a product of block floats. Its blocks lie along k, so
// that they are those of its transpose: aie_api wants to be told so, the host's knows nothing else.
//
// Program memory is 16 KB (docs/reference/program_memory.md), so marks say what is not repeated:
//
//   NPU_OUTLINED inline void f(...)                      one copy of f, which its callers call
//   NPU_ROLLED for (...)                                 the loop is not unrolled
//   NPU_SERIAL_FOR(int32_t i = 0, i < count, i += 16)    nor pipelined: what takes little time
#pragma once

#ifdef AIE_HOST_VARIANT

#define NPU_KERNEL static
#define NPU_DECLARATIONS 1  // whether what only declarations need is to be compiled
#define NPU_DECLARE(function, ...) NPU_DECLARE_AS(__COUNTER__, function, __VA_ARGS__)

#include "kernels/host/declared.h"

// x86 has room, and passes vectors of 128 bytes by memory.
#define NPU_OUTLINED
#define NPU_ROLLED
#define NPU_TRANSPOSED(b) b
#define NPU_SERIAL_FOR(start, condition, step) for (start; condition; step)

#else  // the NPU

#define NPU_KERNEL extern "C"
#define NPU_DECLARATIONS 0
#define NPU_DECLARE(...) static_assert(true)

#ifdef __clang__
#if __AIE_ARCH__ >= 21
#define NPU_TRANSPOSED(b) aie::op_transpose(b)
#else
#define NPU_TRANSPOSED(b) b
#endif
#define NPU_OUTLINED [[gnu::noinline]]
#define NPU_ROLLED _Pragma("clang loop unroll(disable)")
#define NPU_SERIAL_FOR(start, condition, step) \
  _Pragma("clang loop unroll(disable)")        \
      _Pragma("clang loop pipeline(disable)") for (start; condition; step)
#else  // counting/program_bytes.py, where a mark says that a loop is not pipelined
#define NPU_TRANSPOSED(b) b
#define NPU_OUTLINED [[gnu::noinline, gnu::noclone]]
#define NPU_ROLLED _Pragma("GCC unroll 1")
#define NPU_SERIAL_FOR(start, condition, step) \
  NPU_ROLLED for (start; condition; aie::detail::serial(), step)
#endif

#endif
