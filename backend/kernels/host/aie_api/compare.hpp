// Lane by lane comparisons into masks, choices by them and maxima; a NaN compares false. Sums and
// shifts of int32 lanes, which wrap.
#pragma once

#include "accum.hpp"

AIE_HOST_BEGIN

template <unsigned N>
class mask {
 public:
  static constexpr unsigned size() { return N; }
  AIE_HOST_INLINE bool test(unsigned i) const { return lanes_[i]; }
  AIE_HOST_INLINE void assign(bool value, unsigned i) { lanes_[i] = value; }
  AIE_HOST_INLINE mask operator&(const mask& other) const {
    mask out;
    for (unsigned i = 0; i < N; ++i) out.lanes_[i] = lanes_[i] & other.lanes_[i];
    return out;
  }

 private:
  bool lanes_[N];
};

template <typename T, unsigned N>
AIE_HOST_INLINE mask<N> lt(const vector<T, N>& a, const vector<T, N>& b) {
  mask<N> out;
  for (unsigned i = 0; i < N; ++i) out.assign(a.get(i) < b.get(i), i);
  return out;
}

template <typename T, unsigned N>
AIE_HOST_INLINE mask<N> ge(const vector<T, N>& a, const vector<T, N>& b) {
  mask<N> out;
  for (unsigned i = 0; i < N; ++i) out.assign(a.get(i) >= b.get(i), i);
  return out;
}

// b where the mask is set, else a.
template <typename T, unsigned N>
AIE_HOST_INLINE vector<T, N> select(const vector<T, N>& a, const vector<T, N>& b,
                                    const mask<N>& m) {
  vector<T, N> out;
  for (unsigned i = 0; i < N; ++i) out.set(m.test(i) ? b.get(i) : a.get(i), i);
  return out;
}

// b where a < b, else a: a NaN of b is not taken, one of a stays (modelled).
template <typename T, unsigned N>
AIE_HOST_INLINE vector<T, N> max(const vector<T, N>& a, const vector<T, N>& b) {
  return select(a, b, lt(a, b));
}

template <unsigned N>
AIE_HOST_INLINE vector<int32_t, N> add(const vector<int32_t, N>& a, const vector<int32_t, N>& b) {
  vector<int32_t, N> out;
  for (unsigned i = 0; i < N; ++i) {
    out.set(static_cast<int32_t>(static_cast<uint32_t>(a.get(i)) + static_cast<uint32_t>(b.get(i))),
            i);
  }
  return out;
}

template <unsigned N>
AIE_HOST_INLINE vector<int32_t, N> upshift(const vector<int32_t, N>& v, unsigned shift) {
  vector<int32_t, N> out;
  for (unsigned i = 0; i < N; ++i) {
    out.set(static_cast<int32_t>(static_cast<uint32_t>(v.get(i)) << shift), i);
  }
  return out;
}

AIE_HOST_END
