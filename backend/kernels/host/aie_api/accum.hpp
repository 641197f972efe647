// aie::accum: accumulator registers (acc32 and acc64: integers that wrap, accfloat: fp32) and their
// conversions, which round and saturate as the core's modes say.
#pragma once

#include "bfp16.hpp"
#include "vector.hpp"

struct acc32;  // tags: built-in types in NPU compilers
struct acc64;
struct accfloat;
struct accauto;

AIE_HOST_BEGIN

namespace detail {

template <typename T, unsigned N>
struct register_of {
  using type = vector<T, N>;
};
template <unsigned N>
struct register_of<bfp16ebs8, N> {
  using type = block_vector<bfp16ebs8, N>;
};

}  // namespace detail

template <typename Tag, unsigned N>
class accum {
  static constexpr bool kFloat = std::is_same_v<Tag, accfloat>, kWide = std::is_same_v<Tag, acc64>;
  static_assert(kFloat || kWide || std::is_same_v<Tag, acc32>,
                "accumulator not supported by the host");

 public:
  using value_type = std::conditional_t<kFloat, float, std::conditional_t<kWide, int64_t, int32_t>>;
  static constexpr unsigned size() { return N; }

  accum() = default;
  template <typename T>
  AIE_HOST_INLINE explicit accum(const vector<T, N>& v, int shift = 0) {
    from_vector(v, shift);
  }
  template <typename T>
  AIE_HOST_INLINE explicit accum(const block_vector<T, N>& v) {
    static_assert(kFloat);
    for (unsigned i = 0; i < N; ++i) data_[i] = v.value(i);
  }

  AIE_HOST_INLINE value_type get(unsigned i) const { return data_[i]; }
  AIE_HOST_INLINE void set(value_type value, unsigned i) { data_[i] = value; }

  // Integers enter shifted left (saturation modes apply); floats enter exactly.
  template <typename T>
  AIE_HOST_INLINE void from_vector(const vector<T, N>& v, int shift = 0) {
    if constexpr (kFloat) {
      for (unsigned i = 0; i < N; ++i) data_[i] = v.get(i);
    } else {
      const saturation_mode saturation = get_saturation();
      for (unsigned i = 0; i < N; ++i) {
        data_[i] = static_cast<value_type>(
            detail::shift_up(v.get(i), shift, sizeof(value_type) * 8, saturation));
      }
    }
  }

  template <typename T>
  AIE_HOST_INLINE typename detail::register_of<T, N>::type to_vector(int shift = 0) const {
    typename detail::register_of<T, N>::type out;
    if constexpr (std::is_same_v<T, bfp16ebs8>) {
      static_assert(kFloat);
      const rounding_mode mode = get_rounding();
      for (unsigned i = 0; i < N / 8; ++i) out.convert(i, data_ + 8 * i, mode);
    } else if constexpr (kFloat) {
      static_assert(std::is_same_v<T, float> || std::is_same_v<T, bfloat16>);
      if constexpr (std::is_same_v<T, float>) {
        out.load(data_);
      } else {
        narrow(out);
      }
    } else {
      const rounding_mode rounding = get_rounding();
      const saturation_mode saturation = get_saturation();
      if (sizeof(T) < 4 && !kWide && rounding == rounding_mode::conv_even &&
          saturation == saturation_mode::saturate) {
        constexpr int32_t kMost = sizeof(T) == 1 ? 0x7F : 0x7FFF;
        T narrowed[N];
        for (unsigned i = 0; i < N; ++i) {
          narrowed[i] = static_cast<T>(
              detail::shift_round_saturate_even(static_cast<int32_t>(data_[i]), shift, kMost));
        }
        out.load(narrowed);
        return out;
      }
      for (unsigned i = 0; i < N; ++i) {
        out.set(static_cast<T>(detail::shift_round_saturate(data_[i], shift, sizeof(T) * 8,
                                                            rounding, saturation)),
                i);
      }
    }
    return out;
  }

 private:
  AIE_HOST_INLINE void narrow(vector<bfloat16, N>& out) const {
    const rounding_mode mode = get_rounding();
    uint16_t narrowed[N];
    if (mode == rounding_mode::conv_even) {
      constexpr unsigned kAtOnce = N < 16 ? N : 16;
      static_assert(N % kAtOnce == 0);
      for (unsigned i = 0; i < N; i += kAtOnce) {
        typename detail::lanes_of<uint32_t, kAtOnce>::type bits;
        __builtin_memcpy(&bits, data_ + i, sizeof bits);
        const auto halves = detail::narrow_bf16_even<kAtOnce>(bits);
        __builtin_memcpy(narrowed + i, &halves, sizeof halves);
      }
    } else {
      for (unsigned i = 0; i < N; ++i) {
        narrowed[i] = detail::narrow_bf16(__builtin_bit_cast(uint32_t, data_[i]), mode);
      }
    }
    out.load(reinterpret_cast<const bfloat16*>(narrowed));
  }

  alignas(sizeof(value_type) * N < 64 ? sizeof(value_type) * N : 64) value_type data_[N];
};

AIE_HOST_END
