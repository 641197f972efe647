// aie::vector: a register of N elements, and moving it between registers and memory.
#pragma once

#include <type_traits>

#include "rounding.hpp"

AIE_HOST_BEGIN

namespace detail {

template <typename T>
inline constexpr bool is_element = false;
template <>
inline constexpr bool is_element<int8_t> = true;
template <>
inline constexpr bool is_element<uint8_t> = true;
template <>
inline constexpr bool is_element<int16_t> = true;
template <>
inline constexpr bool is_element<int32_t> = true;
template <>
inline constexpr bool is_element<bfloat16> = true;
template <>
inline constexpr bool is_element<float> = true;

// Register sizes; 2048 bits hold the 8x8 fp32 or int32 tile of an AIE2P mmul.
constexpr bool is_register(unsigned bits) {
  return bits == 128 || bits == 256 || bits == 512 || bits == 1024 ||
         (bits == 2048 && __AIE_ARCH__ >= 21);
}

}  // namespace detail

template <typename T, unsigned N>
class vector {
  static_assert(detail::is_element<T>, "element type not supported by the host aie_api");
  static_assert(detail::is_register(N * sizeof(T) * 8), "no vector register of this size");

 public:
  using value_type = T;
  static constexpr unsigned size() { return N; }
  static constexpr unsigned bits() { return N * sizeof(T) * 8; }

  AIE_HOST_INLINE T get(unsigned i) const { return data_[i]; }
  AIE_HOST_INLINE void set(T value, unsigned i) { data_[i] = value; }
  AIE_HOST_INLINE T operator[](unsigned i) const { return data_[i]; }

  template <unsigned M>
  AIE_HOST_INLINE vector<T, M> extract(unsigned part) const {
    static_assert(N % M == 0);
    vector<T, M> out;
    for (unsigned i = 0; i < M; ++i) out.set(data_[part * M + i], i);
    return out;
  }
  template <unsigned M>
  AIE_HOST_INLINE vector& insert(unsigned part, const vector<T, M>& v) {
    static_assert(N % M == 0);
    for (unsigned i = 0; i < M; ++i) data_[part * M + i] = v.get(i);
    return *this;
  }

  // The same bits as elements of another type.
  template <typename U>
  AIE_HOST_INLINE vector<U, N * sizeof(T) / sizeof(U)> cast_to() const {
    vector<U, N * sizeof(T) / sizeof(U)> out;
    out.load(reinterpret_cast<const U*>(data_));
    return out;
  }

  AIE_HOST_INLINE void load(const T* p) { __builtin_memcpy(data_, p, sizeof data_); }
  AIE_HOST_INLINE void store(T* p) const { __builtin_memcpy(p, data_, sizeof data_); }

 private:
  alignas(sizeof(T) * N < 64 ? sizeof(T) * N : 64) T data_[N];
};

template <unsigned N, typename T>
AIE_HOST_INLINE vector<T, N> load_v(const T* p) {
  vector<T, N> out;
  out.load(p);
  return out;
}

template <typename T, unsigned N>
AIE_HOST_INLINE void store_v(T* p, const vector<T, N>& v) {
  v.store(p);
}

template <typename T, unsigned N>
AIE_HOST_INLINE vector<T, N> broadcast(T value) {
  vector<T, N> out;
  for (unsigned i = 0; i < N; ++i) out.set(value, i);
  return out;
}

template <typename T, unsigned N>
AIE_HOST_INLINE vector<T, N> zeros() {
  return broadcast<T, N>(T{});
}

// The elements of a row-major rows x columns matrix in the order of its transpose.
template <typename T, unsigned N>
AIE_HOST_INLINE vector<T, N> transpose(const vector<T, N>& v, unsigned rows, unsigned columns) {
  vector<T, N> out;
  for (unsigned i = 0; i < rows; ++i) {
    for (unsigned j = 0; j < columns; ++j) out.set(v.get(i * columns + j), j * rows + i);
  }
  return out;
}

// Every second group of `step` elements, from the first or from the second group on.
template <typename T, unsigned N>
AIE_HOST_INLINE vector<T, N / 2> filter_even(const vector<T, N>& v, unsigned step = 1) {
  vector<T, N / 2> out;
  for (unsigned i = 0; i < N / 2; ++i) out.set(v.get(i / step * 2 * step + i % step), i);
  return out;
}

template <typename T, unsigned N>
AIE_HOST_INLINE vector<T, N / 2> filter_odd(const vector<T, N>& v, unsigned step = 1) {
  vector<T, N / 2> out;
  for (unsigned i = 0; i < N / 2; ++i) out.set(v.get((i / step * 2 + 1) * step + i % step), i);
  return out;
}

AIE_HOST_END
