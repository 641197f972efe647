// Vectors of the instruction set a `fast` build is compiled for: GCC vector types, constant loops,
// halves, and the two conversions between C elements and accumulators.
#pragma once

#include <immintrin.h>

#include <utility>

#include "../aie_api/vector.hpp"

AIE_HOST_BEGIN
namespace host {

#if defined(__AVX512F__)
inline constexpr unsigned kSimdBytes = 64;
#elif defined(__AVX2__)
inline constexpr unsigned kSimdBytes = 32;
#else
inline constexpr unsigned kSimdBytes = 16;
#endif
inline constexpr unsigned kLanes = kSimdBytes / 4;  // accumulators per vector

template <unsigned I>
struct index {
  static constexpr unsigned value = I;
};

// Calls f(index<0>), ... f(index<Count - 1>): constant subscripts let arrays live in registers.
template <unsigned Count, unsigned First = 0, typename F>
AIE_HOST_INLINE void unroll(F&& f) {
  if constexpr (First < Count) {
    f(index<First>{});
    unroll<Count, First + 1>(f);
  }
}

template <typename T, unsigned Bytes>
struct simd_of {
  typedef T type __attribute__((vector_size(Bytes)));
};
template <typename T, unsigned N>
using simd = typename simd_of<T, N * sizeof(T)>::type;

template <typename V, typename T>
AIE_HOST_INLINE V load(const T* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

template <typename V, typename T>
AIE_HOST_INLINE void store(V v, T* p) {
  __builtin_memcpy(p, &v, sizeof v);
}

template <typename T, unsigned N>
AIE_HOST_INLINE simd<T, N> splat(T x) {
  return simd<T, N>{} + x;
}

// Two vectors of N lanes as one of 2N, and back. In registers: halves that meet in memory would
// stall the load of the whole.
template <typename V, int... I>
AIE_HOST_INLINE auto join(V low, V high, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(low, high, I...);
}
template <typename T, unsigned N>
AIE_HOST_INLINE simd<T, 2 * N> join(simd<T, N> low, simd<T, N> high) {
  return join(low, high, std::make_integer_sequence<int, 2 * N>());
}
template <int First, typename V, int... I>
AIE_HOST_INLINE auto part(V v, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(v, v, (First + I)...);
}
template <unsigned N, unsigned First, typename V>
AIE_HOST_INLINE auto part(V v) {
  return part<static_cast<int>(First)>(v, std::make_integer_sequence<int, N>());
}

// What a C element is in memory: bf16 is handled by its bits.
template <typename T>
struct storage_of {
  using type = T;
};
template <>
struct storage_of<bfloat16> {
  using type = uint16_t;
};
template <typename T>
using storage = typename storage_of<T>::type;

// C elements -> accumulators. Integers are shifted left with saturation, as UPS does.
template <typename T, unsigned N>
AIE_HOST_INLINE auto widen(simd<storage<T>, N> v, int shift) {
  if constexpr (std::is_same_v<T, float> || std::is_same_v<T, int32_t>) {
    return v;
  } else if constexpr (std::is_same_v<T, bfloat16>) {
    return reinterpret_cast<simd<float, N>>(__builtin_convertvector(v, simd<uint32_t, N>) << 16);
  } else {
    using wide = simd<int32_t, N>;
    const wide x = __builtin_convertvector(v, wide);
    const int32_t most = 0x7FFFFFFF >> shift;
    const wide low = x < ~most ? splat<int32_t, N>(-0x7FFFFFFF - 1) : x << shift;
    return x > most ? splat<int32_t, N>(0x7FFFFFFF) : low;
  }
}

// Accumulators -> C elements, to nearest even; integers shifted right with saturation, as SRS does.
template <typename T, unsigned N, typename V>
AIE_HOST_INLINE simd<storage<T>, N> narrow(V v, int shift) {
  if constexpr (std::is_same_v<T, float> || std::is_same_v<T, int32_t>) {
    return v;
  } else if constexpr (std::is_same_v<T, bfloat16>) {
    using bits = simd<uint32_t, N>;
    const bits x = reinterpret_cast<bits>(v);
    const bits rounded = (x + 0x7FFF + (x >> 16 & 1)) >> 16;
    const bits kept = x >> 16;  // a NaN is cut and keeps a non-zero mantissa
    const bits nan = (kept & 0x7F) == 0 ? kept | 1 : kept;
    const bits out = (x & 0x7FFFFFFF) > 0x7F800000 ? nan : rounded;
    return __builtin_convertvector(out, simd<uint16_t, N>);
  } else {
    using bits = simd<uint32_t, N>;
    using wide = simd<int32_t, N>;
    const wide floor = v >> shift;
    // The dropped bits plus half a unit (less one if `floor` is even) carry where it rounds up.
    const uint32_t unit = uint32_t{1} << shift, below_half = shift > 0 ? unit / 2 - 1 : 0;
    const bits odd = shift > 0 ? reinterpret_cast<bits>(floor) & 1 : bits{};
    const bits rest = (reinterpret_cast<bits>(v) & (unit - 1)) + below_half + odd;
    const wide x = floor + reinterpret_cast<wide>(rest >> shift);
    constexpr int32_t kMost = sizeof(T) == 1 ? 0x7F : 0x7FFF;
    const wide low = x < ~kMost ? splat<int32_t, N>(~kMost) : x;
    return __builtin_convertvector(x > kMost ? splat<int32_t, N>(kMost) : low, simd<T, N>);
  }
}

}  // namespace host
AIE_HOST_END
