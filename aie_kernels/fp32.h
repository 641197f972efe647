// fp32 arithmetic on 32 lanes, for kernels that read and write fp32 or bf16; and what it costs.
#pragma once

#include <stdint.h>

#include <aie_api/aie.hpp>

#include "kernel.h"

namespace npu::fp32 {
namespace {  // host builds for several instruction sets are linked together and must not be merged

constexpr int32_t kLanes = 32;

using Floats = aie::vector<float, kLanes>;
using Bf16s = aie::vector<bfloat16, kLanes>;
using Sums = aie::accum<accfloat, kLanes>;

// T: float or bfloat16, here and below.
template <typename T>
inline Sums load(const T* from) {
  return Sums(aie::load_v<kLanes>(from));
}

// bf16 is rounded as the core's mode says.
template <typename T>
inline void store(T* to, const Sums& value) {
  aie::store_v(to, value.template to_vector<T>());
}

inline Floats floats(const Sums& value) { return value.template to_vector<float>(); }

// A core resets to floor, which would bias every result; the mode stays set afterwards.
inline void round_to_nearest() { aie::set_rounding(aie::rounding_mode::conv_even); }

inline Floats product(const Floats& a, const Floats& b) {
  return floats(aie::mac(Sums(aie::zeros<float, kLanes>()), a, b));
}

inline Floats broadcast(float value) { return aie::broadcast<float, kLanes>(value); }

#if NPU_DECLARATIONS
// Multiply slots per 32 lanes, not measured on hardware. AIE2 multiplies 16 bf16 lanes per cycle,
// AIE2P 32. A product of fp32 lanes is made of six bf16 ones, after two subtractions for each
// factor that is split into three parts (aie_api's AIE_FP32_EMULATION_ACCURACY_FAST).
constexpr double kBf16Slots = __AIE_ARCH__ == 20 ? 2 : 1;
constexpr double kAddSlots = kBf16Slots;
constexpr double kProductSlots = 10 * kBf16Slots;
// Between multiply-adds into the same accumulator.
constexpr double kChain = 4;
// Scalar fp32: additions, a division, a root as calls of the compiler's library. Assumed.
constexpr double kScalar = 40;
// A reduction of 32 lanes: five shifts and additions that depend on each other.
constexpr double kReduction = 5 * 8;

// Steps of 32 lanes for n elements.
constexpr double steps(int64_t n) { return double((n + kLanes - 1) / kLanes); }
#endif

}  // namespace
}  // namespace npu::fp32
