// Build settings of the host <aie_api/aie.hpp>: which NPU it stands for and how it computes.
//
// A host build defines
//   __AIE_ARCH__       20 = AIE2 (npu1), 21 = AIE2P (npu2)
//   AIE_HOST_VARIANT   an identifier, unique per (generation, arithmetic, instruction set)
//   AIE_HOST_SILICON   1 = the bit-level rules of the hardware, 0 = vectorised fp32
// Everything lives in an inline namespace named by the variant: the same header is compiled for
// several instruction sets into one library, and the linker must not merge their functions.
#pragma once

#include <cstdint>

#if !defined(__AIE_ARCH__) || !defined(AIE_HOST_VARIANT) || !defined(AIE_HOST_SILICON)
#error "the host aie_api needs __AIE_ARCH__, AIE_HOST_VARIANT and AIE_HOST_SILICON"
#endif
#if __AIE_ARCH__ != 20 && __AIE_ARCH__ != 21
#error "the host aie_api models __AIE_ARCH__ 20 (AIE2) and 21 (AIE2P)"
#endif

#define AIE_HOST_BEGIN \
  namespace aie {      \
  inline namespace AIE_HOST_VARIANT {
#define AIE_HOST_END \
  }                  \
  }
#define AIE_HOST_INLINE [[gnu::always_inline]] inline

// Scheduling hints of the NPU compilers; the host compiler needs none.
#define AIE_PREPARE_FOR_PIPELINING
#define AIE_LOOP_MIN_ITERATION_COUNT(count)
#define AIE_LOOP_RANGE(...)
#define AIE_LOOP_FLATTEN
