// Marks in the assembly, and the registers whose parts they take: what the counting aie.hpp is made
// of.
#pragma once

#include <stdint.h>

#include <type_traits>
#include <utility>

#if __AIE_ARCH__ != 20 && __AIE_ARCH__ != 21
#error "the counting aie_api knows __AIE_ARCH__ 20 (AIE2) and 21 (AIE2P)"
#endif

#define AIE_PREPARE_FOR_PIPELINING
#define AIE_LOOP_MIN_ITERATION_COUNT(count)
#define AIE_LOOP_RANGE(...)
#define AIE_LOOP_FLATTEN
#define COUNT_INLINE [[gnu::always_inline]] inline

struct bfloat16 {
  uint16_t bits;
  COUNT_INLINE operator float() const { return __builtin_bit_cast(float, uint32_t(bits) << 16); }
};
struct bfp16ebs8 {};
struct uint4 {
  uint8_t pair;
};
struct acc32;
struct acc64;
struct accfloat;
struct accauto;

namespace aie {

namespace detail {

constexpr bool kAie2 = __AIE_ARCH__ == 20;
// Cycles. Loads, multiply-adds and conversions as documented; the rest does its work in two.
constexpr int kLoad = 7, kMac = 6, kConvert = 4, kMove = 2;
// Loads and stores of 512 bits: AIE2 has ports of 256.
constexpr int kPorts = kAie2 ? 2 : 1;
// fp32 product of 16 lanes: six bf16 products; each factor in three bf16 parts by three
// conversions, two back and two subtractions (aie_api, AIE_FP32_EMULATION_ACCURACY_FAST), and 4
// moves.
constexpr int kProduct = 6 + 2 * (3 + 2 + 2) + 4;
// bf16 product of 16 lanes. AIE2's multiplier takes 32 of which the upper ones must be zeros: a
// move per factor (llvm-aie, TanhTemplated-swp.ll).
constexpr int kBf16Product = kAie2 ? 3 : 1;
constexpr int kCompare = 4;  // of fp32 lanes, which only integers have an instruction for

constexpr unsigned parts_of(unsigned bits) { return (bits + 511) / 512; }
constexpr int log2(unsigned n) { return n <= 1 ? 0 : 1 + log2(n / 2); }

#define COUNT(outputs, ...)      \
  asm("#@ %c[slots] %c[latency]" \
      : outputs                  \
      : [slots] "i"(kSlots), [latency] "i"(kLatency), __VA_ARGS__)
#define COUNT_OUT(out) [result] "=v"(out)

// Ends a round of a loop that is not pipelined (NPU_SERIAL_FOR).
COUNT_INLINE void serial() { asm volatile("#@ serial"); }

template <int kSlots, int kLatency>
COUNT_INLINE float op() {
  float out;
  asm("#@ %c[slots] %c[latency]" : "=v"(out) : [slots] "i"(kSlots), [latency] "i"(kLatency));
  return out;
}
template <int kSlots, int kLatency>
COUNT_INLINE float op(float a) {
  float out;
  COUNT(COUNT_OUT(out), "v"(a));
  return out;
}
template <int kSlots, int kLatency>
COUNT_INLINE float op(float a, float b) {
  float out;
  COUNT(COUNT_OUT(out), "v"(a), "v"(b));
  return out;
}
template <int kSlots, int kLatency>
COUNT_INLINE float op(float a, float b, float c) {
  float out;
  COUNT(COUNT_OUT(out), "v"(a), "v"(b), "v"(c));
  return out;
}
template <int kSlots, int kLatency>
COUNT_INLINE float from_scalar(uint32_t a) {
  float out;
  COUNT(COUNT_OUT(out), "r"(a));
  return out;
}
template <int kSlots, int kLatency>
COUNT_INLINE uint32_t to_scalar(float a) {
  uint32_t out;
  COUNT([result] "=r"(out), "v"(a));
  return out;
}
template <int kSlots, int kLatency>
COUNT_INLINE uint32_t to_scalar(float a, float b) {
  uint32_t out;
  COUNT([result] "=r"(out), "v"(a), "v"(b));
  return out;
}
// A control register is written.
COUNT_INLINE void control(int value) { asm volatile("#@ 2 1" : : "r"(value)); }

template <unsigned kBytes>
struct Bytes {
  char data[kBytes];
} __attribute__((may_alias));

template <unsigned kBytes>
COUNT_INLINE float load(const void* p) {
  constexpr int kSlots = kBytes > 32 ? kPorts : 1, kLatency = kLoad;
  float out;
  COUNT(COUNT_OUT(out), "m"(*static_cast<const Bytes<kBytes>*>(p)));
  return out;
}
template <unsigned kBytes>
COUNT_INLINE void store(void* p, float a) {
  constexpr int kSlots = kBytes > 32 ? kPorts : 1, kLatency = kMove;
  asm volatile("#@ %c[slots] %c[latency]"  // volatile: GCC drops others where p is __restrict
               : "=m"(*static_cast<Bytes<kBytes>*>(p))
               : [slots] "i"(kSlots), [latency] "i"(kLatency), "v"(a));
}

template <typename T>
COUNT_INLINE uint32_t scalar_bits(T value) {
  if constexpr (std::is_same_v<T, bfloat16>) {
    return value.bits;
  } else if constexpr (std::is_same_v<T, float>) {
    return __builtin_bit_cast(uint32_t, value);
  } else {
    return static_cast<uint32_t>(value);
  }
}
template <typename T>
COUNT_INLINE T scalar_of(uint32_t bits) {
  if constexpr (std::is_same_v<T, bfloat16>) {
    return {static_cast<uint16_t>(bits)};
  } else if constexpr (std::is_same_v<T, float>) {
    return __builtin_bit_cast(float, bits);
  } else {
    return static_cast<T>(bits);
  }
}

// Registers of so many bits; operations on parts of 512.
template <unsigned kBits>
struct Registers {
  static constexpr unsigned kParts = parts_of(kBits), kPartBits = kBits < 512 ? kBits : 512;
  float part[kParts];

  COUNT_INLINE void load(const void* p) {
    for (unsigned i = 0; i < kParts; ++i) {
      part[i] = detail::load<kPartBits / 8>(static_cast<const char*>(p) + i * 64);
    }
  }
  COUNT_INLINE void store(void* p) const {
    for (unsigned i = 0; i < kParts; ++i) {
      detail::store<kPartBits / 8>(static_cast<char*>(p) + i * 64, part[i]);
    }
  }
};

// One operation per part of `Out` on the parts of operands that have as many, or fewer.
template <int kSlots, int kLatency, typename Out, typename... In>
COUNT_INLINE Out each(const In&... in) {
  Out out;
  for (unsigned i = 0; i < Out::kParts; ++i) {
    out.part[i] = op<kSlots, kLatency>(in.part[i * In::kParts / Out::kParts]...);
  }
  return out;
}
// The same in accumulators: AIE2P's operations are as wide as two parts (llvm-aie,
// gelu-templated.ll).
template <int kSlots, int kLatency, typename Out, typename... In>
COUNT_INLINE Out each_accumulator(const In&... in) {
  Out out;
  for (unsigned i = 0; i < Out::kParts; i += 2) {
    out.part[i] = op<kSlots, kLatency>(in.part[i * In::kParts / Out::kParts]...);
    if (i + 1 == Out::kParts) break;
    constexpr int kMore = kAie2 ? kSlots : 0;
    out.part[i + 1] = op<kMore, kLatency>(in.part[(i + 1) * In::kParts / Out::kParts]...);
  }
  return out;
}
// The same where operands have at least as many parts: one operation for each of theirs.
template <int kSlots, int kLatency, typename Out, typename In>
COUNT_INLINE Out narrowed(const In& in) {
  Out out;
  constexpr unsigned kEach = In::kParts > Out::kParts ? In::kParts / Out::kParts : 1;
  for (unsigned i = 0; i < Out::kParts; ++i) {
    const unsigned first = i * In::kParts / Out::kParts;
    if constexpr (kEach == 1) out.part[i] = op<kSlots, kLatency>(in.part[first]);
    if constexpr (kEach == 2) {  // AIE2P converts two parts at once
      out.part[i] = op < kAie2 ? 2 * kSlots : kSlots,
      kLatency > (in.part[first], in.part[first + 1]);
    }
    if constexpr (kEach == 4) {
      out.part[i] =
          op<2 * kSlots, kLatency>(op<2 * kSlots, kLatency>(in.part[first], in.part[first + 1]),
                                   in.part[first + 2], in.part[first + 3]);
    }
    static_assert(kEach == 1 || kEach == 2 || kEach == 4);
  }
  return out;
}

template <typename T>
inline constexpr unsigned kBitsOf = 8 * sizeof(T);
template <>
inline constexpr unsigned kBitsOf<uint4> = 4;

}  // namespace detail

}  // namespace aie
