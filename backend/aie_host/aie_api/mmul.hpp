// aie::mmul: C += A @ B on one register tile (A: M x K, B: K x N, C: M x N, all row-major).
//
// Three arithmetic contracts exist for bf16:
//   AIE2 silicon   every K = 8 products and the accumulator aligned and summed as integers
//                  (fused_dot8.hpp); bit-exact with hardware observations
//   AIE2P silicon  one fp32 FMA per k, in order; modelled, not silicon-verified
//   fast           fp32 in any order the host compiler likes
// int8 is exact in all of them: int32 that wraps.
#pragma once

#include "accum.hpp"
#include "fused_dot8.hpp"

AIE_HOST_BEGIN

namespace detail {

// Shapes that the generation multiplies in hardware or that aie_api composes for it.
template <typename T>
constexpr bool is_mmul_shape(unsigned m, unsigned k, unsigned n) {
  if (std::is_same_v<T, int8_t>) {
    if (k != 8 || n != 8) return false;
    return __AIE_ARCH__ == 20 ? m == 2 || m == 4 || m == 8 : m == 4 || m == 8;
  }
  if (__AIE_ARCH__ == 20) return k == 8 && n == 4 && (m == 4 || m == 8);
  return (m == 4 && k == 8 && n == 8) || (m == 8 && k == 8 && n == 4);
}

template <unsigned M, unsigned K, unsigned N>
AIE_HOST_INLINE void mac_tile(const int8_t* a, const int8_t* b, int32_t* c) {
  for (unsigned i = 0; i < M; ++i) {
    for (unsigned j = 0; j < N; ++j) {
      uint32_t sum = static_cast<uint32_t>(c[i * N + j]);
      for (unsigned k = 0; k < K; ++k) sum += static_cast<uint32_t>(a[i * K + k] * b[k * N + j]);
      c[i * N + j] = static_cast<int32_t>(sum);
    }
  }
}

template <unsigned M, unsigned K, unsigned N>
AIE_HOST_INLINE void mac_tile(const bfloat16* a, const bfloat16* b, float* c) {
#if AIE_HOST_SILICON && __AIE_ARCH__ == 20
  fused_dot8_tile<M, N>(a, b, c);
#else
  for (unsigned i = 0; i < M; ++i) {
    for (unsigned k = 0; k < K; ++k) {
      const float x = a[i * K + k];
      for (unsigned j = 0; j < N; ++j) {
        const float y = b[k * N + j];
        float& sum = c[i * N + j];
#if AIE_HOST_SILICON
        sum = __builtin_fmaf(x, y, sum);
#else
        sum += x * y;
#endif
      }
    }
  }
#endif
}

}  // namespace detail

template <unsigned M, unsigned K, unsigned N, typename TA, typename TB = TA, typename Tag = accauto>
class mmul {
  static_assert(std::is_same_v<TA, TB>, "mixed operands are not supported by the host aie_api");
  static_assert(std::is_same_v<TA, int8_t> || std::is_same_v<TA, bfloat16>);
  static_assert(detail::is_mmul_shape<TA>(M, K, N), "this generation has no mmul of this shape");
  using natural_tag = std::conditional_t<std::is_same_v<TA, int8_t>, acc32, accfloat>;
  static_assert(std::is_same_v<Tag, accauto> || std::is_same_v<Tag, natural_tag>);

 public:
  static constexpr unsigned M_elems = M, K_elems = K, N_elems = N;
  static constexpr unsigned size_A = M * K, size_B = K * N, size_C = M * N;
  using accum_type = accum<natural_tag, size_C>;

  AIE_HOST_INLINE mmul() { clear(); }
  AIE_HOST_INLINE explicit mmul(const accum_type& acc) {
    for (unsigned i = 0; i < size_C; ++i) c_[i] = acc.get(i);
  }
  template <typename T>
  AIE_HOST_INLINE explicit mmul(const vector<T, size_C>& v, int shift = 0)
      : mmul(accum_type(v, shift)) {}

  AIE_HOST_INLINE void mul(const vector<TA, size_A>& a, const vector<TB, size_B>& b) {
    clear();
    mac(a, b);
  }
  AIE_HOST_INLINE void mac(const vector<TA, size_A>& a, const vector<TB, size_B>& b) {
    TA a_tile[size_A];
    TB b_tile[size_B];
    a.store(a_tile);
    b.store(b_tile);
    detail::mac_tile<M, K, N>(a_tile, b_tile, c_);
  }

  AIE_HOST_INLINE accum_type to_accum() const {
    accum_type out;
    for (unsigned i = 0; i < size_C; ++i) out.set(c_[i], i);
    return out;
  }
  template <typename T>
  AIE_HOST_INLINE vector<T, size_C> to_vector(int shift = 0) const {
    return to_accum().template to_vector<T>(shift);
  }

 private:
  AIE_HOST_INLINE void clear() {
    for (unsigned i = 0; i < size_C; ++i) c_[i] = 0;
  }

  typename accum_type::value_type c_[size_C];
};

AIE_HOST_END
