// Vectors of the instruction set a `fast` build is compiled for: GCC vector types, constant loops
// and halves.
#pragma once

#include <immintrin.h>

#include <type_traits>
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

template <typename T, unsigned N>
using simd = typename detail::lanes_of<T, N>::type;

template <typename V, typename T>
AIE_HOST_INLINE V load(const T* p) {
  V v;
  __builtin_memcpy(static_cast<void*>(&v), p, sizeof v);  // also of what is no vector
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

// Two vectors of N lanes as one of 2N, and lanes First .. First + N - 1 of a vector. In registers:
// halves that meet in memory would stall the load of the whole.
template <typename V, int... I>
AIE_HOST_INLINE auto shuffle(V low, V high, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(low, high, I...);
}
template <typename T, unsigned N>
AIE_HOST_INLINE simd<T, 2 * N> join(simd<T, N> low, simd<T, N> high) {
  return shuffle(low, high, std::make_integer_sequence<int, 2 * N>());
}
template <int First, typename V, int... I>
AIE_HOST_INLINE auto pick(V v, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(v, v, (First + I)...);
}
template <unsigned N, unsigned First, typename V>
AIE_HOST_INLINE auto part(V v) {
  return pick<static_cast<int>(First)>(v, std::make_integer_sequence<int, N>());
}

template <typename V>
AIE_HOST_INLINE V larger(V a, V b) {
  return a > b ? a : b;
}

// Every element with the one whose number differs by kBit.
template <int kBit, typename V, int... I>
AIE_HOST_INLINE V swapped(V v, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(v, v, (I ^ kBit)...);
}
template <int kBit, typename V>
AIE_HOST_INLINE V swapped(V v) {
  return swapped<kBit>(v, std::make_integer_sequence<int, int(sizeof(V) / sizeof(V{}[0]))>());
}

// Whether memory is nothing but zeros; a multiple of 32 bytes.
AIE_HOST_INLINE bool all_zero(const void* from, int32_t bytes) {
  const auto* const at = static_cast<const uint8_t*>(from);
  for (int32_t i = 0; i < bytes; i += 32) {
#if defined(__AVX2__)
    const auto some = load<__m256i>(at + i);
    if (_mm256_testz_si256(some, some) == 0) return false;
#else
    const __m128i some = _mm_or_si128(load<__m128i>(at + i), load<__m128i>(at + i + 16));
    if (_mm_testz_si128(some, some) == 0) return false;
#endif
  }
  return true;
}

// N bytes, int8_t or uint8_t, as int32: GCC 12 makes an instruction per byte of
// __builtin_convertvector.
template <unsigned N, typename T>
AIE_HOST_INLINE simd<int32_t, N> widen_bytes(const T* bytes) {
  static_assert(sizeof(T) == 1);
  constexpr bool kSigned = std::is_signed_v<T>;
  using out = simd<int32_t, N>;
  if constexpr (4 * N > kSimdBytes) {
    return join<int32_t, N / 2>(widen_bytes<N / 2>(bytes), widen_bytes<N / 2>(bytes + N / 2));
#if defined(__AVX512F__)
  } else if constexpr (N == 16) {
    const __m128i in = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
    return (out)(kSigned ? _mm512_cvtepi8_epi32(in) : _mm512_cvtepu8_epi32(in));
#endif
#if defined(__AVX2__)
  } else if constexpr (N == 8) {
    const __m128i in = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes));
    return (out)(kSigned ? _mm256_cvtepi8_epi32(in) : _mm256_cvtepu8_epi32(in));
#endif
  } else {
    static_assert(N == 4);
    const __m128i in = _mm_cvtsi32_si128(load<int32_t>(bytes));
    return (out)(kSigned ? _mm_cvtepi8_epi32(in) : _mm_cvtepu8_epi32(in));
  }
}

}  // namespace host
AIE_HOST_END
