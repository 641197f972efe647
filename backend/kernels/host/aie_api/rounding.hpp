// Rounding and saturation modes of a core and the narrowing rules that read them.
//
// Modes are per-core state and survive from one kernel to the next; the reset default is floor.
// Codes are those of the core's control register.
#pragma once

#include "bfloat16.hpp"

// The state of the core whose kernel this thread is running (backend/kernels/host/core_state.cpp).
extern "C" {
uint8_t npu_host_rounding();
void npu_host_set_rounding(uint8_t mode);
uint8_t npu_host_saturation();
void npu_host_set_saturation(uint8_t mode);
}

AIE_HOST_BEGIN

enum class rounding_mode : uint8_t {
  floor = 0,
  ceil = 1,
  symmetric_floor = 2,  // toward zero
  symmetric_ceil = 3,   // away from zero
  negative_inf = 8,     // this and the following: to nearest, the name says where ties go
  positive_inf = 9,
  symmetric_zero = 10,
  symmetric_inf = 11,
  conv_even = 12,
  conv_odd = 13,
};

enum class saturation_mode : uint8_t {
  none = 0,       // keep the low bits
  saturate = 1,   // [min, max]
  symmetric = 3,  // [-max, max]
};

AIE_HOST_INLINE void set_rounding(rounding_mode mode) {
  npu_host_set_rounding(static_cast<uint8_t>(mode));
}
AIE_HOST_INLINE rounding_mode get_rounding() {
  return static_cast<rounding_mode>(npu_host_rounding());
}
AIE_HOST_INLINE rounding_mode swap_rounding(rounding_mode mode) {
  const rounding_mode before = get_rounding();
  set_rounding(mode);
  return before;
}
AIE_HOST_INLINE void set_saturation(saturation_mode mode) {
  npu_host_set_saturation(static_cast<uint8_t>(mode));
}
AIE_HOST_INLINE saturation_mode get_saturation() {
  return static_cast<saturation_mode>(npu_host_saturation());
}
AIE_HOST_INLINE saturation_mode swap_saturation(saturation_mode mode) {
  const saturation_mode before = get_saturation();
  set_saturation(mode);
  return before;
}

namespace detail {

// What a narrowing discards: compared with half a unit of the result, and whether it is zero.
struct discarded {
  bool any, above_half, half;
};

// Whether a magnitude grows by one unit when `rest` is dropped from a number of that sign.
AIE_HOST_INLINE bool rounds_away(rounding_mode mode, bool negative, bool odd, discarded rest) {
  switch (mode) {
    case rounding_mode::floor:
      return rest.any && negative;
    case rounding_mode::ceil:
      return rest.any && !negative;
    case rounding_mode::symmetric_floor:
      return false;
    case rounding_mode::symmetric_ceil:
      return rest.any;
    case rounding_mode::negative_inf:
      return rest.above_half || (rest.half && negative);
    case rounding_mode::positive_inf:
      return rest.above_half || (rest.half && !negative);
    case rounding_mode::symmetric_zero:
      return rest.above_half;
    case rounding_mode::symmetric_inf:
      return rest.above_half || rest.half;
    case rounding_mode::conv_even:
      return rest.above_half || (rest.half && odd);
    case rounding_mode::conv_odd:
      return rest.above_half || (rest.half && !odd);
  }
  return false;  // reserved codes: core_state.cpp refuses to set them
}

// fp32 -> bf16 on sign and magnitude: no flush of denormals, overflow reaches infinity; a NaN is
// cut and keeps a non-zero mantissa.
AIE_HOST_INLINE uint16_t narrow_bf16(uint32_t x, rounding_mode mode) {
  const uint32_t kept = x >> 16, rest = x & 0xFFFF;
  if ((x & 0x7FFFFFFF) > 0x7F800000) {
    return static_cast<uint16_t>((kept & 0x7F) == 0 ? kept | 1 : kept);
  }
  const discarded dropped{rest != 0, rest > 0x8000, rest == 0x8000};
  const bool up = rounds_away(mode, (x >> 31) != 0, (kept & 1) != 0, dropped);
  return static_cast<uint16_t>(kept + (up ? 1 : 0));
}

// The same for conv_even without branches, so that loops over it vectorise.
AIE_HOST_INLINE uint16_t narrow_bf16_even(uint32_t x) {
  const uint32_t rounded = (x + 0x7FFF + (x >> 16 & 1)) >> 16;
  const uint32_t kept = x >> 16;
  const uint32_t nan = kept | ((kept & 0x7F) == 0 ? 1u : 0u);
  return static_cast<uint16_t>((x & 0x7FFFFFFF) > 0x7F800000 ? nan : rounded);
}

template <typename T, unsigned N>
struct lanes_of {
  typedef T type __attribute__((vector_size(N * sizeof(T))));
};

// The same of the bits of N values at once: GCC 12 makes scalars of a loop that it unrolls.
template <unsigned N>
AIE_HOST_INLINE auto narrow_bf16_even(typename lanes_of<uint32_t, N>::type x) {
  using words = typename lanes_of<uint32_t, N>::type;
  const words kept = x >> 16, rounded = (x + 0x7FFF + (kept & 1)) >> 16;
  const words nan = (kept & 0x7F) == 0 ? kept | 1 : kept;
  const words all = (x & 0x7FFFFFFF) > 0x7F800000 ? nan : rounded;
  return __builtin_convertvector(all, typename lanes_of<uint16_t, N>::type);
}

// A value cut or saturated to `bits` bits.
AIE_HOST_INLINE int64_t fit(int64_t value, int bits, saturation_mode saturation) {
  if (bits == 64) return value;
  const int64_t max = (int64_t{1} << (bits - 1)) - 1;
  const int64_t min = saturation == saturation_mode::symmetric ? -max : -max - 1;
  if (saturation == saturation_mode::none) {
    const int unused = 64 - bits;
    return static_cast<int64_t>(static_cast<uint64_t>(value) << unused) >> unused;
  }
  return value > max ? max : value < min ? min : value;
}

// Shift-round-saturate: accumulator -> integer of `bits` bits.
AIE_HOST_INLINE int64_t shift_round_saturate(int64_t value, int shift, int bits,
                                             rounding_mode rounding, saturation_mode saturation) {
  const bool negative = value < 0;
  uint64_t magnitude = negative ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  if (shift > 0) {
    const uint64_t rest = magnitude & ((uint64_t{1} << shift) - 1);
    const uint64_t half = uint64_t{1} << (shift - 1);
    magnitude >>= shift;
    const discarded dropped{rest != 0, rest > half, rest == half};
    if (rounds_away(rounding, negative, (magnitude & 1) != 0, dropped)) magnitude += 1;
  }
  return fit(static_cast<int64_t>(negative ? 0 - magnitude : magnitude), bits, saturation);
}

// The same from 32 bits for conv_even and saturate, without branches, so that loops over it
// vectorise; results lie in [~largest, largest].
AIE_HOST_INLINE int32_t shift_round_saturate_even(int32_t value, int shift, int32_t largest) {
  const int32_t floor = value >> shift;
  // The dropped bits plus half a unit (less one if `floor` is even) carry where it rounds up.
  const uint32_t unit = uint32_t{1} << shift, below_half = unit / 2 - (shift > 0 ? 1 : 0);
  const uint32_t odd = static_cast<uint32_t>(floor) & (shift > 0 ? 1 : 0);
  const uint32_t rest = (static_cast<uint32_t>(value) & (unit - 1)) + below_half + odd;
  const int32_t rounded = floor + static_cast<int32_t>(rest >> shift);
  return rounded > largest ? largest : rounded < ~largest ? ~largest : rounded;
}

// Integer of at largest 32 bits -> accumulator of `bits` bits. That the saturation modes apply to
// it is modelled: the instruction reads the mode register.
AIE_HOST_INLINE int64_t shift_up(int32_t value, int shift, int bits, saturation_mode saturation) {
  return fit(static_cast<int64_t>(static_cast<uint64_t>(int64_t{value}) << shift), bits,
             saturation);
}

// The same to 32 bits for saturate, for loops that vectorise.
AIE_HOST_INLINE int32_t shift_up_saturated(int32_t value, int shift) {
  const int32_t largest = 0x7FFFFFFF >> shift;
  const int32_t kept = value > largest ? largest : value < ~largest ? ~largest : value;
  const auto shifted = static_cast<uint32_t>(kept) << shift;
  return static_cast<int32_t>(shifted + (value > largest ? (uint32_t{1} << shift) - 1 : 0));
}

}  // namespace detail

AIE_HOST_END
