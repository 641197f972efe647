// aie::vector of unsigned 4-bit elements, and the register moves that turn packed integers into
// others: unpack, concat, interleave_zip.
#pragma once

#include <utility>

#include "vector.hpp"

// Two to a byte, the even element in the low nibble. A built-in type in NPU compilers.
struct uint4 {
  uint8_t pair;
};

AIE_HOST_BEGIN

template <unsigned N>
class vector<uint4, N> {
  static_assert(detail::is_register(N * 4), "no vector register of this size");

 public:
  using value_type = uint4;
  static constexpr unsigned size() { return N; }
  static constexpr unsigned bits() { return N * 4; }

  AIE_HOST_INLINE uint8_t get(unsigned i) const {
    return static_cast<uint8_t>(data_[i / 2] >> i % 2 * 4 & 15);
  }
  AIE_HOST_INLINE void load(const uint4* p) { __builtin_memcpy(data_, p, sizeof data_); }

 private:
  uint8_t data_[N / 2];
};

template <unsigned N>
AIE_HOST_INLINE vector<uint8_t, N> unpack(const vector<uint4, N>& v) {
  vector<uint8_t, N> out;
  for (unsigned i = 0; i < N; ++i) out.set(v.get(i), i);
  return out;
}

template <typename T, unsigned N>
AIE_HOST_INLINE vector<T, 2 * N> concat(const vector<T, N>& low, const vector<T, N>& high) {
  vector<T, 2 * N> out;
  return out.insert(0, low).insert(1, high);
}

// The elements of a and b in turn, `chunk` at a time: the lower and the upper half of the result.
template <typename T, unsigned N>
AIE_HOST_INLINE std::pair<vector<T, N>, vector<T, N>> interleave_zip(const vector<T, N>& a,
                                                                     const vector<T, N>& b,
                                                                     unsigned chunk) {
  std::pair<vector<T, N>, vector<T, N>> out;
  for (unsigned i = 0; i < 2 * N; ++i) {
    const unsigned from = i / (2 * chunk) * chunk + i % chunk;
    const T value = i / chunk % 2 == 0 ? a.get(from) : b.get(from);
    (i < N ? out.first : out.second).set(value, i % N);
  }
  return out;
}

AIE_HOST_END
