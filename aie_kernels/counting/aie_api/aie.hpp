// A counting <aie_api/aie.hpp>: the part of it that the kernels use, where an operation is a mark
// in the assembly of the host's compiler, "#@ SLOTS LATENCY", instead of instructions. Nothing of
// it can run: program_bytes.py reads what the compiler makes of a kernel and estimates its bytes.
//
// SLOTS: single-slot operations of the core that the operation takes; LATENCY: cycles until its
// result can be read, of the slowest of them (docs/reference/arithmetic.md, section 8). A register
// of 512 bits is a float, of which an x86 with AVX-512 has 32 (AIE2: 12 vectors, 18 halves of
// accumulators; AIE2P: 12 and 20 quarters), so that spills are counted too.
#pragma once

#include <type_traits>
#include <utility>

#include "marks.hpp"

namespace aie {

enum class rounding_mode : uint8_t { floor, conv_even };
enum class saturation_mode : uint8_t { none, saturate };

template <typename T, unsigned N>
class vector : public detail::Registers<N * detail::kBitsOf<T>> {
  using registers = detail::Registers<N * detail::kBitsOf<T>>;

 public:
  using registers::kParts, registers::part;
  using value_type = T;
  static constexpr unsigned size() { return N; }
  static constexpr unsigned bits() { return N * detail::kBitsOf<T>; }

  COUNT_INLINE T get(unsigned i) const {
    return detail::scalar_of<T>(detail::to_scalar<1, detail::kMove>(part[i * kParts / N % kParts]));
  }
  COUNT_INLINE void set(T value, unsigned i) {
    float& at = part[i * kParts / N % kParts];
    at = detail::op<1, detail::kMove>(
        at, detail::from_scalar<1, detail::kMove>(detail::scalar_bits(value)));
  }
  COUNT_INLINE T operator[](unsigned i) const { return get(i); }

  template <unsigned M>
  COUNT_INLINE vector<T, M> extract(unsigned at) const {
    vector<T, M> out;
    if constexpr (vector<T, M>::bits() >= 512) {
      for (unsigned i = 0; i < out.kParts; ++i) out.part[i] = part[at * out.kParts + i];
    } else {
      out.part[0] = detail::op<1, detail::kMove>(part[at * M * kParts / N % kParts]);
    }
    return out;
  }
  template <unsigned M>
  COUNT_INLINE vector& insert(unsigned at, const vector<T, M>& v) {
    if constexpr (vector<T, M>::bits() >= 512) {
      for (unsigned i = 0; i < v.kParts; ++i) part[at * v.kParts + i] = v.part[i];
    } else {
      float& into = part[at * M * kParts / N % kParts];
      into = detail::op<1, detail::kMove>(into, v.part[0]);
    }
    return *this;
  }
  template <typename U>
  COUNT_INLINE vector<U, bits() / detail::kBitsOf<U>> cast_to() const {
    vector<U, bits() / detail::kBitsOf<U>> out;
    for (unsigned i = 0; i < kParts; ++i) out.part[i] = part[i];
    return out;
  }
};

template <unsigned N, typename T>
COUNT_INLINE vector<T, N> load_v(const T* p) {
  vector<T, N> out;
  out.load(p);
  return out;
}
template <typename T, unsigned N>
COUNT_INLINE void store_v(T* p, const vector<T, N>& v) {
  v.store(p);
}
template <typename T, unsigned N>
COUNT_INLINE vector<T, N> broadcast(T value) {
  vector<T, N> out;
  for (float& part : out.part) {
    part = detail::from_scalar<1, detail::kMove>(detail::scalar_bits(value));
  }
  return out;
}
template <typename T, unsigned N>
COUNT_INLINE vector<T, N> zeros() {
  vector<T, N> out;
  for (float& part : out.part) part = detail::op<1, detail::kMove>();
  return out;
}
// Two shuffles per part.
template <typename T, unsigned N>
COUNT_INLINE vector<T, N> transpose(const vector<T, N>& v, unsigned, unsigned) {
  return detail::each<2, 2 * detail::kMove, vector<T, N>>(v);
}

template <typename T, unsigned N>
COUNT_INLINE vector<T, N / 2> filter_even(const vector<T, N>& v, unsigned = 1) {
  return detail::each<1, detail::kMove, vector<T, N / 2>>(v);
}
template <typename T, unsigned N>
COUNT_INLINE vector<T, N / 2> filter_odd(const vector<T, N>& v, unsigned = 1) {
  return detail::each<1, detail::kMove, vector<T, N / 2>>(v);
}

template <typename T, unsigned N>
class block_vector : public detail::Registers<512 * (N / 64)> {};  // its exponents: EX registers

template <typename T, unsigned N>
class block_vector_input_buffer_stream {
 public:
  explicit block_vector_input_buffer_stream(const T* at) : at_(reinterpret_cast<const char*>(at)) {}
  COUNT_INLINE block_vector<T, N> pop() {  // a refill and a pop
    block_vector<T, N> out;
    for (float& part : out.part) {
      part = detail::op<1, detail::kLoad>(detail::load<64>(at_));
      at_ += 72;
    }
    return out;
  }
  COUNT_INLINE void seek(int vectors) { at_ += vectors * static_cast<int>(N / 8 * 9); }

 private:
  const char* at_;
};
template <typename T, unsigned N>
class block_vector_output_buffer_stream {
 public:
  explicit block_vector_output_buffer_stream(T* at) : at_(reinterpret_cast<char*>(at)) {}
  COUNT_INLINE void push(const block_vector<T, N>& v) {  // a push and a flush
    for (const float part : v.part) {
      detail::store<64>(at_, detail::op<1, detail::kMove>(part));
      at_ += 72;
    }
  }
  COUNT_INLINE void seek(int vectors) { at_ += vectors * static_cast<int>(N / 8 * 9); }

 private:
  char* at_;
};

namespace detail {
template <typename T, unsigned N>
struct register_of {
  using type = vector<T, N>;
};
template <unsigned N>
struct register_of<bfp16ebs8, N> {
  using type = block_vector<bfp16ebs8, N>;
};
template <typename Tag>
inline constexpr unsigned kAccBits = std::is_same_v<Tag, acc64> ? 64 : 32;
}  // namespace detail

template <typename Tag, unsigned N>
class accum : public detail::Registers<N * detail::kAccBits<Tag>> {
 public:
  accum() = default;
  template <typename T>
  COUNT_INLINE explicit accum(const vector<T, N>& v, int shift = 0) {
    from_vector(v, shift);
  }
  template <typename T>
  COUNT_INLINE explicit accum(const block_vector<T, N>& v) {  // times the identity, in halves
    *this = detail::each_accumulator<1, detail::kMac, accum>(v);
  }
  template <typename T>
  COUNT_INLINE void from_vector(const vector<T, N>& v, int = 0) {
    *this = detail::each_accumulator<1, detail::kConvert, accum>(v);
  }
  template <typename T>
  COUNT_INLINE typename detail::register_of<T, N>::type to_vector(int = 0) const {
    return detail::narrowed<1, detail::kConvert, typename detail::register_of<T, N>::type>(*this);
  }
};

template <typename T, unsigned N>
COUNT_INLINE accum<accfloat, N> mac(const accum<accfloat, N>& acc, const vector<T, N>& a,
                                    const vector<T, N>& b) {
  constexpr bool kFloat = std::is_same_v<T, float>;
  constexpr int kSlots = kFloat ? detail::kProduct : detail::kBf16Product;
  // Splitting a factor is a chain of four dependent steps.
  constexpr int kLatency = kFloat ? 9 * detail::kMac : detail::kMac;
  return detail::each_accumulator<kSlots, kLatency, accum<accfloat, N>>(acc, a, b);
}
template <typename T, unsigned N>
COUNT_INLINE accum<accfloat, N> msc(const accum<accfloat, N>& acc, const vector<T, N>& a,
                                    const vector<T, N>& b) {
  return mac(acc, a, b);
}
template <unsigned N>
COUNT_INLINE accum<accfloat, N> add(const accum<accfloat, N>& a, const accum<accfloat, N>& b) {
  return detail::each_accumulator<1, detail::kMac, accum<accfloat, N>>(a, b);
}
template <unsigned N>
COUNT_INLINE accum<accfloat, N> sub(const accum<accfloat, N>& a, const accum<accfloat, N>& b) {
  return detail::each_accumulator<1, detail::kMac, accum<accfloat, N>>(a, b);
}

// Two unpacks, additions of a magic number and a subtraction of it, two conversions.
template <typename T, unsigned N>
COUNT_INLINE vector<T, N> to_float(const vector<int8_t, N>& v, int = 0) {
  return detail::each<8, 4 * detail::kMac, vector<T, N>>(v);
}
COUNT_INLINE float invsqrt(float v) { return detail::op<6, 4 * detail::kMac>(v); }
// Per halving a shift, an addition and a move between accumulator and vector.
template <unsigned N>
COUNT_INLINE float reduce_add(const vector<float, N>& v) {
  constexpr int kSteps = detail::log2(N);
  return detail::op<3 * kSteps, kSteps*(detail::kMac + 2 * detail::kMove)>(v.part[0],
                                                                           v.part[v.kParts - 1]);
}

template <unsigned N>
class mask {
 public:
  uint32_t lanes[(N + 31) / 32];
  COUNT_INLINE mask operator&(const mask& other) const {
    mask out;
    for (unsigned i = 0; i < (N + 31) / 32; ++i) out.lanes[i] = lanes[i] & other.lanes[i];
    return out;
  }
};

// A mask register holds 32 lanes: comparisons of parts are merged into it by one operation each.
template <typename T, unsigned N>
COUNT_INLINE mask<N> lt(const vector<T, N>& a, const vector<T, N>& b) {
  constexpr int kSlots = std::is_integral_v<T> ? 1 : detail::kCompare;
  mask<N> out = {};
  for (unsigned i = 0; i < a.kParts; ++i) {
    out.lanes[i * ((N + 31) / 32) / a.kParts] |=
        detail::to_scalar<kSlots, 2 * detail::kMove>(a.part[i], b.part[i]) << 16 * (i % 2);
  }
  return out;
}
template <typename T, unsigned N>
COUNT_INLINE mask<N> ge(const vector<T, N>& a, const vector<T, N>& b) {
  return lt(a, b);
}
template <typename T, unsigned N>
COUNT_INLINE vector<T, N> select(const vector<T, N>& a, const vector<T, N>& b, const mask<N>& m) {
  vector<T, N> out;
  for (unsigned i = 0; i < out.kParts; ++i) {
    constexpr int kSlots = 1, kLatency = detail::kMove;
    const uint32_t lanes = m.lanes[i * ((N + 31) / 32) / out.kParts] >> 16 * (i % 2);
    COUNT(COUNT_OUT(out.part[i]), "v"(a.part[i]), "v"(b.part[i]), "r"(lanes));
  }
  return out;
}
template <typename T, unsigned N>
COUNT_INLINE vector<T, N> max(const vector<T, N>& a, const vector<T, N>& b) {
  constexpr int kSlots = std::is_same_v<T, float> ? detail::kCompare + 1 : 1;
  return detail::each<kSlots, 3 * detail::kMove, vector<T, N>>(a, b);
}
template <typename T, unsigned N>
COUNT_INLINE vector<T, N> min(const vector<T, N>& a, const vector<T, N>& b) {
  return max(a, b);
}

#define COUNT_LANEWISE(name, slots)                                                                \
  template <unsigned N>                                                                            \
  COUNT_INLINE vector<int32_t, N> name(const vector<int32_t, N>& a, const vector<int32_t, N>& b) { \
    return detail::each<slots, detail::kMove, vector<int32_t, N>>(a, b);                           \
  }
COUNT_LANEWISE(add, 1)
COUNT_LANEWISE(bit_and, 1)
COUNT_LANEWISE(bit_or, 1)
COUNT_LANEWISE(bit_xor, 1)
#undef COUNT_LANEWISE
// Into an accumulator of 64 bits and back, in halves.
template <unsigned N>
COUNT_INLINE vector<int32_t, N> upshift(const vector<int32_t, N>& v, unsigned) {
  return detail::each<4, 2 * detail::kConvert, vector<int32_t, N>>(v);
}
template <unsigned N>
COUNT_INLINE vector<int32_t, N> downshift(const vector<int32_t, N>& v, unsigned) {
  return detail::each<4, 2 * detail::kConvert, vector<int32_t, N>>(v);
}

#if __AIE_ARCH__ >= 21
// 16 lanes at a time, and moves to and from their registers.
template <typename T, unsigned N>
COUNT_INLINE vector<T, N> exp2(const vector<float, N>& v) {
  return detail::narrowed<4, 2 * detail::kConvert, vector<T, N>>(v);
}
template <typename T, unsigned N>
COUNT_INLINE vector<T, N> tanh(const vector<float, N>& v) {
  return detail::narrowed<4, 2 * detail::kConvert, vector<T, N>>(v);
}
#endif

template <unsigned N>
COUNT_INLINE vector<uint8_t, N> unpack(const vector<uint4, N>& v) {
  return detail::each<1, detail::kLoad, vector<uint8_t, N>>(v);
}
template <typename T, unsigned N>
COUNT_INLINE vector<T, 2 * N> concat(const vector<T, N>& low, const vector<T, N>& high) {
  vector<T, 2 * N> out;
  if constexpr (vector<T, N>::bits() < 512) {
    out.part[0] = detail::op<1, detail::kMove>(low.part[0], high.part[0]);
  } else {
    out.insert(0, low).insert(1, high);
  }
  return out;
}
template <typename T, unsigned N>
COUNT_INLINE std::pair<vector<T, N>, vector<T, N>> interleave_zip(const vector<T, N>& a,
                                                                  const vector<T, N>& b, unsigned) {
  return {detail::each<1, detail::kMove, vector<T, N>>(a, b),
          detail::each<1, detail::kMove, vector<T, N>>(b, a)};
}

COUNT_INLINE void set_rounding(rounding_mode mode) { detail::control(static_cast<int>(mode)); }
COUNT_INLINE void set_saturation(saturation_mode mode) { detail::control(static_cast<int>(mode)); }

namespace detail {

// Single-slot operations of a multiplication (docs/reference/arithmetic.md, section 1): one per
// intrinsic, and two shuffles per intrinsic where data is rearranged.
template <unsigned M, unsigned K, unsigned N, typename T>
constexpr int mmul_slots() {
  if (std::is_same_v<T, bfp16ebs8>) return 1;
  if (std::is_same_v<T, int8_t>) return kAie2 && M == 8 ? 2 : 1;
  if (std::is_same_v<T, int16_t>) return kAie2 ? 1 : 6;
  if (kAie2) return M == 8 ? 2 : 1;
  return M == 8 ? 1 : 6;
}

template <typename T>
struct natural {
  using type = accfloat;
};
template <>
struct natural<int8_t> {
  using type = acc32;
};
template <>
struct natural<int16_t> {
  using type = acc64;
};

}  // namespace detail

template <unsigned M, unsigned K, unsigned N, typename TA, typename TB = TA, typename Tag = accauto>
class mmul {
 public:
  using natural_tag = typename detail::natural<TA>::type;
  using accum_type = accum<natural_tag, M * N>;
  static constexpr unsigned M_elems = M, K_elems = K, N_elems = N;
  static constexpr unsigned size_A = M * K, size_B = K * N, size_C = M * N;
  using a_type = typename detail::register_of<TA, size_A>::type;
  using b_type = typename detail::register_of<TB, size_B>::type;

  COUNT_INLINE mmul() { clear(); }
  COUNT_INLINE explicit mmul(const accum_type& acc) : c_(acc) {}
  template <typename T>
  COUNT_INLINE explicit mmul(const vector<T, size_C>& v, int shift = 0) : c_(v, shift) {}

  COUNT_INLINE accum_type to_accum() const { return c_; }
  template <typename T>
  COUNT_INLINE auto to_vector(int shift = 0) const {
    return c_.template to_vector<T>(shift);
  }
  COUNT_INLINE void mul(const a_type& a, const b_type& b) {
    clear();
    mac(a, b);
  }
  COUNT_INLINE void mac(const a_type& a, const b_type& b) {
    constexpr int kSlots = detail::mmul_slots<M, K, N, TA>(), kLatency = detail::kMac;
    float* const c = c_.part;
    constexpr unsigned kParts = accum_type::kParts;
    static_assert(kParts == 1 || kParts == 2 || kParts == 4);
    // All inputs are read: the last parts of operands of several registers stand for these.
    const float a1 = a.part[a.kParts - 1], b1 = b.part[b.kParts - 1];
    if constexpr (kParts == 1) {
      COUNT([c0] "+v"(c[0]), "v"(a.part[0]), "v"(a1), "v"(b.part[0]), "v"(b1));
    } else if constexpr (kParts == 2) {
      asm("#@ %c[slots] %c[latency]"
          : "+v"(c[0]), "+v"(c[1])
          : [slots] "i"(kSlots), [latency] "i"(kLatency), "v"(a.part[0]), "v"(a1), "v"(b.part[0]),
            "v"(b1));
    } else {
      asm("#@ %c[slots] %c[latency]"
          : "+v"(c[0]), "+v"(c[1]), "+v"(c[2]), "+v"(c[3])
          : [slots] "i"(kSlots), [latency] "i"(kLatency), "v"(a.part[0]), "v"(a1), "v"(b.part[0]),
            "v"(b1));
    }
  }

 private:
  COUNT_INLINE void clear() {
    for (float& part : c_.part) part = detail::op<1, detail::kMove>();
  }

  accum_type c_;
};

}  // namespace aie

#undef COUNT
#undef COUNT_OUT
#undef COUNT_INLINE
