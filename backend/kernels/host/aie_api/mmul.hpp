// aie::mmul: C += A @ B on one register tile (A: M x K, B: K x N, C: M x N, all row-major).
//
// Three arithmetic contracts exist for bf16:
//   AIE2 silicon   every K = 8 products and the accumulator aligned and summed as integers
//                  (fused_dot8.hpp); bit-exact with hardware observations
//   AIE2P silicon  one fp32 FMA per k, in order; modelled, not silicon-verified
//   fast           fp32 in any order the host compiler likes
// bfp16 (AIE2P): the 8 products of two blocks are summed exactly and added to the accumulator in
// fp32; modelled, not silicon-verified. Integers are exact: int8 in acc32, int16 in acc64,
// wrapping.
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
  if (std::is_same_v<T, int16_t>) return m == 4 && k == 4 && n == (__AIE_ARCH__ == 20 ? 4 : 8);
  if (__AIE_ARCH__ == 20) return k == 8 && n == 4 && (m == 4 || m == 8);
  return (m == 4 && k == 8 && n == 8) || (m == 8 && k == 8 && n == 4);
}

template <unsigned M, unsigned K, unsigned N, typename T, typename TAcc>
AIE_HOST_INLINE void mac_tile(const T* a, const T* b, TAcc* c) {
  using wrapping = std::make_unsigned_t<TAcc>;
  for (unsigned i = 0; i < M; ++i) {
    for (unsigned j = 0; j < N; ++j) {
      auto sum = static_cast<wrapping>(c[i * N + j]);
      for (unsigned k = 0; k < K; ++k) sum += static_cast<wrapping>(a[i * K + k] * b[k * N + j]);
      c[i * N + j] = static_cast<TAcc>(sum);
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

template <typename T>
struct natural_tag {
  using type = accfloat;
};
template <>
struct natural_tag<int8_t> {
  using type = acc32;
};
template <>
struct natural_tag<int16_t> {
  using type = acc64;
};

// The accumulators of a C tile, and their way from and to vectors.
template <typename Tag, unsigned N>
class mmul_accumulators {
 public:
  static constexpr unsigned size_C = N;
  using accum_type = accum<Tag, N>;

  AIE_HOST_INLINE mmul_accumulators() { clear(); }
  AIE_HOST_INLINE explicit mmul_accumulators(const accum_type& acc) {
    for (unsigned i = 0; i < N; ++i) c_[i] = acc.get(i);
  }
  template <typename T>
  AIE_HOST_INLINE explicit mmul_accumulators(const vector<T, N>& v, int shift = 0)
      : mmul_accumulators(accum_type(v, shift)) {}

  AIE_HOST_INLINE accum_type to_accum() const {
    accum_type out;
    for (unsigned i = 0; i < N; ++i) out.set(c_[i], i);
    return out;
  }
  template <typename T>
  AIE_HOST_INLINE vector<T, N> to_vector(int shift = 0) const {
    return to_accum().template to_vector<T>(shift);
  }

 protected:
  AIE_HOST_INLINE void clear() {
    for (unsigned i = 0; i < N; ++i) c_[i] = 0;
  }

  typename accum_type::value_type c_[N];
};

}  // namespace detail

template <unsigned M, unsigned K, unsigned N, typename TA, typename TB = TA, typename Tag = accauto>
class mmul : public detail::mmul_accumulators<typename detail::natural_tag<TA>::type, M * N> {
  using natural_tag = typename detail::natural_tag<TA>::type;
  using base = detail::mmul_accumulators<natural_tag, M * N>;
  static_assert(std::is_same_v<TA, TB>, "mixed operands are not supported by the host aie_api");
  static_assert(std::is_same_v<TA, int8_t> || std::is_same_v<TA, int16_t> ||
                std::is_same_v<TA, bfloat16>);
  static_assert(detail::is_mmul_shape<TA>(M, K, N), "this generation has no mmul of this shape");
  static_assert(std::is_same_v<Tag, accauto> || std::is_same_v<Tag, natural_tag>);

 public:
  static constexpr unsigned M_elems = M, K_elems = K, N_elems = N;
  static constexpr unsigned size_A = M * K, size_B = K * N;
  using base::base;

  AIE_HOST_INLINE void mul(const vector<TA, size_A>& a, const vector<TB, size_B>& b) {
    this->clear();
    mac(a, b);
  }
  AIE_HOST_INLINE void mac(const vector<TA, size_A>& a, const vector<TB, size_B>& b) {
    TA a_tile[size_A];
    TB b_tile[size_B];
    a.store(a_tile);
    b.store(b_tile);
    detail::mac_tile<M, K, N>(a_tile, b_tile, this->c_);
  }
};

#if __AIE_ARCH__ >= 21
// Blocks of A are its rows; B comes transposed, so that its blocks are the columns.
template <typename Tag>
class mmul<8, 8, 8, bfp16ebs8, bfp16ebs8, Tag> : public detail::mmul_accumulators<accfloat, 64> {
  using base = detail::mmul_accumulators<accfloat, 64>;

 public:
  static constexpr unsigned M_elems = 8, K_elems = 8, N_elems = 8;
  static constexpr unsigned size_A = 64, size_B = 64;
  using base::base;

  AIE_HOST_INLINE void mul(const block_vector<bfp16ebs8, 64>& a,
                           const block_vector<bfp16ebs8, 64>& b) {
    this->clear();
    mac(a, b);
  }
  AIE_HOST_INLINE void mac(const block_vector<bfp16ebs8, 64>& a,
                           const block_vector<bfp16ebs8, 64>& b) {
    for (unsigned i = 0; i < 8; ++i) {
      for (unsigned j = 0; j < 8; ++j) {
        int32_t sum = 0;
        for (unsigned k = 0; k < 8; ++k) sum += a.mantissa(i * 8 + k) * b.mantissa(j * 8 + k);
        this->c_[i * 8 + j] += detail::block_product(sum, a.exponent(i), b.exponent(j));
      }
    }
  }
};
#endif

AIE_HOST_END
