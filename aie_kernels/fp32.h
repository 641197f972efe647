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

// Lanes of one fp32 multiplication: loops over elements that do not meet take as many at a time.
constexpr int32_t kStep = __AIE_ARCH__ == 20 ? 16 : 32;

using Step = aie::vector<float, kStep>;
using StepSums = aie::accum<accfloat, kStep>;

// T: float or bfloat16, here and below.
template <unsigned N = kLanes, typename T>
inline aie::accum<accfloat, N> load(const T* from) {
  return aie::accum<accfloat, N>(aie::load_v<N>(from));
}

// bf16 is rounded as the core's mode says.
template <typename T, unsigned N>
inline void store(T* to, const aie::accum<accfloat, N>& value) {
  aie::store_v(to, value.template to_vector<T>());
}

template <unsigned N>
inline aie::vector<float, N> floats(const aie::accum<accfloat, N>& value) {
  return value.template to_vector<float>();
}

// A core resets to floor, which would bias every result; the mode stays set afterwards.
inline void round_to_nearest() { aie::set_rounding(aie::rounding_mode::conv_even); }

template <unsigned N>
inline aie::vector<float, N> product(const aie::vector<float, N>& a,
                                     const aie::vector<float, N>& b) {
  return floats(aie::mac(aie::accum<accfloat, N>(aie::zeros<float, N>()), a, b));
}

template <unsigned N = kLanes>
inline aie::vector<float, N> broadcast(float value) {
  return aie::broadcast<float, N>(value);
}

// a / b, rounded to nearest, for positive numbers; results below 2^-126 are 0, and infinity and NaN
// in a stay. b is normal, and at least 1 where a is subnormal. An estimate of the quotient of the
// significands is corrected by its exact remainder: a third of the library's division.
NPU_OUTLINED inline float quotient(float a, float b) {
  constexpr uint32_t kOne = 0x00800000, kInfinity = 0x7F800000;
  const auto word = __builtin_bit_cast(uint32_t, a), by = __builtin_bit_cast(uint32_t, b);
  if (word >= kInfinity) return a;
  uint32_t dividend = (word & (kOne - 1)) | kOne;
  const uint32_t divisor = (by & (kOne - 1)) | kOne, less = dividend < divisor;
  const auto exponent = static_cast<int32_t>((word >> 23) - (by >> 23) - less + 126);
  if (exponent < 0) return 0;
  dividend <<= less;
  const float root = aie::invsqrt(__builtin_bit_cast(float, divisor + 0x3F000000));
  auto found =
      static_cast<int32_t>(static_cast<float>(static_cast<int32_t>(dividend)) * root * root);
  auto rest = static_cast<int32_t>((dividend << 23) - static_cast<uint32_t>(found) * divisor);
  const auto least = static_cast<int32_t>(divisor);
  NPU_SERIAL_FOR(, rest < 0, rest += least)-- found;
  NPU_SERIAL_FOR(, rest >= least, rest -= least)++ found;
  found += 2 * rest > least;  // never half way
  return __builtin_bit_cast(float, found + (exponent << 23));
}

// 32 equal values, as an operand of multiply_add() that does not advance.
inline const float* fill(float* to, float value) {
  aie::store_v(to, broadcast(value));
  return to;
}

struct alignas(128) Lanes {
  float values[kLanes];
};
constexpr Lanes lanes_of(float value) {
  Lanes out{};
  for (float& lane : out.values) lane = value;
  return out;
}
constexpr Lanes kZeros = lanes_of(0), kNothing = lanes_of(-0.0f);  // a sum with -0 is the summand

// wide = c + a b of n elements, a multiple of 32, and the same rounded. `wide` may be an operand. b
// advances by its step: kStep, or 0 for the same kStep values throughout, as those of c are unless
// it is `wide`. Where c is null: wide += a b, with a product that is rounded on its own; where it
// is kNothing, too, to a lane sum each, kLanes in all.
NPU_OUTLINED inline void multiply_add(const float* a, const float* b, int32_t b_step,
                                      const float* c, float* wide, bfloat16* rounded, int32_t n) {
#ifdef AIE_HOST_MULTIPLY_ADD  // x86 `fast` builds
  const bool lane_sums = c == kNothing.values, moves = b_step != 0;
  if (AIE_HOST_MULTIPLY_ADD<kStep>(a, b, moves, c, lane_sums, wide, rounded, n)) return;
#endif
  constexpr bool kTurns = kStep < kLanes;  // AIE2: two steps of lane sums take turns
  const float *d = wide, *const none = kNothing.values;
  int32_t c_step = 0, mask = c == none ? kLanes - kStep : -1, d_mask = mask;
  if (c == nullptr || c == none) {
    c = kZeros.values;
  } else {
    d = none, d_mask = 0;
    if (c == wide) c_step = kStep;
  }
  NPU_ROLLED for (int32_t i = 0; i < n; i += kStep, b += b_step, c += c_step) {
    const int32_t at = kTurns ? i & mask : 0, d_at = kTurns ? i & d_mask : 0;
    const StepSums part =
        aie::mac(load<kStep>(c), aie::load_v<kStep>(a + i), aie::load_v<kStep>(b));
    const StepSums sum = aie::add(load<kStep>(d + d_at), part);
    store(wide + at, sum);
    store(rounded + i, sum);
    if (!kTurns) wide += mask & kStep, d += d_mask & kStep;
  }
}

#if NPU_DECLARATIONS
// Multiply slots per 32 lanes, not measured on hardware. AIE2 multiplies 16 bf16 lanes per cycle,
// AIE2P 32. A product of fp32 lanes is made of six bf16 ones, after two subtractions for each
// factor that is split into three parts, as AMD's headers do with accuracy "fast"; the last one
// takes the accumulator, too (docs/fidelity.md, products of fp32 lanes).
constexpr double kBf16Slots = __AIE_ARCH__ == 20 ? 2 : 1;
constexpr double kAddSlots = kBf16Slots;
constexpr double kProductSlots = 10 * kBf16Slots;
// Between multiply-adds into the same accumulator.
constexpr double kChain = 4;
// Scalar fp32: additions, a division, a root as calls of the compiler's library. Assumed.
constexpr double kScalar = 40;
// A reduction of 32 lanes: five shifts and additions that depend on each other.
constexpr double kReduction = 5 * 8;

// A call of an outlined function: jump, return, their delay slots, operands. And quotient(): an
// inverse root and two products of scalars, some 30 operations of integers, five jumps.
constexpr double kOutlined = 20, kQuotient = 120;

// Steps of 32 lanes for n elements.
constexpr double steps(int64_t n) { return double((n + kLanes - 1) / kLanes); }

// multiply_add(): besides its multiply slots the call, and a round from load to store, in which
// nothing overlaps: 7 + 40 (a product, with its factors split) + 6 + 4 + 3.
constexpr double multiply_add_cycles(int64_t n) {
  return kOutlined + 60 + steps(n) * (kProductSlots + kAddSlots);
}
// To lane sums: each round loads, 7, what the one before it has added, 6, and stored, 3 and 2 more.
constexpr double multiply_lanes_cycles(int64_t n) {
  return kOutlined + 60 + steps(n) * longest(kProductSlots + kAddSlots, kLanes / kStep * 18.0);
}
#endif

}  // namespace
}  // namespace npu::fp32
