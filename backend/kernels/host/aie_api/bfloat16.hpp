// bfloat16 storage and its exact widening to float. Narrowing depends on the core's rounding mode:
// see rounding.hpp.
#pragma once

#include "config.hpp"

AIE_HOST_BEGIN

struct bfloat16 {
  uint16_t bits;

  AIE_HOST_INLINE operator float() const {
    return __builtin_bit_cast(float, static_cast<uint32_t>(bits) << 16);
  }
};

AIE_HOST_END

// A built-in type in NPU compilers, hence not in namespace aie.
using aie::bfloat16;
