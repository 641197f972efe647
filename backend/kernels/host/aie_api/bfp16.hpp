// Block floating point of AIE2P: 8 values share an exponent (bfp16ebs8). Modelled, not
// silicon-verified: the rounding of the conversion, its saturation and the handling of infinities.
//
//   E = the largest biased exponent of the block; mantissa = value / 2^(E - 133), rounded as the
//   core's mode says, in [-128, 127] (a value that would round to 128 stays at 127).
//   A block with an infinity or a NaN has E = 255, and everything that is computed from it is NaN.
#pragma once

#include "vector.hpp"

struct bfp16ebs8 {};  // a built-in type in NPU compilers

AIE_HOST_BEGIN

// Exponents E of blocks that additions of fp32 round: 1.5 * 2^(E + 17) is finite, its last bit
// 2^(E - 133) is that of a normal number, as is the inverse.
inline constexpr int32_t kLeastBySums = 18, kMostBySums = 236;

template <typename T, unsigned N>
class block_vector {
  static_assert(std::is_same_v<T, bfp16ebs8> && __AIE_ARCH__ >= 21,
                "block type not supported by the host aie_api");
  static_assert(N == 64 || N == 128 || N == 256, "no block vector of this size");

 public:
  using value_type = T;
  static constexpr unsigned kBlock = 8;
  static constexpr unsigned size() { return N; }

  AIE_HOST_INLINE int exponent(unsigned block) const { return exponents_[block]; }
  AIE_HOST_INLINE int mantissa(unsigned i) const { return mantissas_[i]; }
  // mantissa 2^(exponent - 133); NaN in a block with an infinity or a NaN.
  AIE_HOST_INLINE float value(unsigned i) const {
    const unsigned exponent = exponents_[i / kBlock];
    if (exponent == 255) return __builtin_nanf("");
    const uint32_t unit = exponent > 6 ? (exponent - 6) << 23 : 1u << (exponent + 16);
    return static_cast<float>(mantissas_[i]) * __builtin_bit_cast(float, unit);
  }

  // `values`: 8 fp32 values that become block number `block`.
  AIE_HOST_INLINE void convert(unsigned block, const float* values, rounding_mode mode) {
    int32_t top = 0;
    for (unsigned i = 0; i < kBlock; ++i) {
      const int32_t exponent = biased(values[i]);
      top = exponent > top ? exponent : top;
    }
    exponents_[block] = static_cast<uint8_t>(top);
    if (mode == rounding_mode::conv_even && top >= kLeastBySums && top <= kMostBySums) {
      // The same by fp32 additions, whose last bit is the unit and which round to nearest even.
      const float magic =
          __builtin_bit_cast(float, static_cast<uint32_t>(top + 17) << 23 | 0x400000);
      const float scale = __builtin_bit_cast(float, static_cast<uint32_t>(260 - top) << 23);
      for (unsigned i = 0; i < kBlock; ++i) {
        const auto rounded = static_cast<int32_t>(((values[i] + magic) - magic) * scale);
        mantissas_[block * kBlock + i] = static_cast<int8_t>(rounded < 127 ? rounded : 127);
      }
      return;
    }
    for (unsigned i = 0; i < kBlock; ++i) {
      const uint32_t bits = __builtin_bit_cast(uint32_t, values[i]);
      const int32_t exponent = biased(values[i]);
      const int32_t fraction = static_cast<int32_t>(bits & 0x7FFFFF);
      const int32_t significand = exponent == 0 ? fraction : fraction | 0x800000;
      const int32_t dropped = 17 + top - (exponent == 0 ? 1 : exponent);
      // 60: every bit of a 24-bit significand is dropped, and none is half a unit.
      mantissas_[block * kBlock + i] = static_cast<int8_t>(detail::shift_round_saturate(
          bits >> 31 != 0 ? -significand : significand, dropped < 60 ? dropped : 60, 8, mode,
          saturation_mode::saturate));
    }
  }

  // Memory form, 9 bytes a block: the exponent, then the mantissas.
  AIE_HOST_INLINE void load(const uint8_t* in) {
    for (unsigned block = 0; block < N / kBlock; ++block, in += 1 + kBlock) {
      exponents_[block] = in[0];
      __builtin_memcpy(mantissas_ + block * kBlock, in + 1, kBlock);
    }
  }
  AIE_HOST_INLINE void store(uint8_t* out) const {
    for (unsigned block = 0; block < N / kBlock; ++block, out += 1 + kBlock) {
      out[0] = exponents_[block];
      __builtin_memcpy(out + 1, mantissas_ + block * kBlock, kBlock);
    }
  }

 private:
  AIE_HOST_INLINE static int32_t biased(float x) {
    return static_cast<int32_t>(__builtin_bit_cast(uint32_t, x) >> 23 & 0xFF);
  }

  int8_t mantissas_[N];
  uint8_t exponents_[N / kBlock];
};

// Block vectors in memory are not aligned to vector loads: they are read and written in order.
template <typename T, unsigned N>
class block_vector_input_buffer_stream {
 public:
  explicit block_vector_input_buffer_stream(const T* at)
      : at_(reinterpret_cast<const uint8_t*>(at)) {}
  AIE_HOST_INLINE block_vector<T, N> pop() {
    block_vector<T, N> out;
    out.load(at_);
    seek(1);
    return out;
  }
  AIE_HOST_INLINE void seek(int vectors) { at_ += vectors * static_cast<int>(N / 8 * 9); }

 private:
  const uint8_t* at_;
};

template <typename T, unsigned N>
class block_vector_output_buffer_stream {
 public:
  explicit block_vector_output_buffer_stream(T* at) : at_(reinterpret_cast<uint8_t*>(at)) {}
  AIE_HOST_INLINE void push(const block_vector<T, N>& v) {
    v.store(at_);
    seek(1);
  }
  AIE_HOST_INLINE void seek(int vectors) { at_ += vectors * static_cast<int>(N / 8 * 9); }

 private:
  uint8_t* at_;
};

namespace detail {

// sum * 2^(ea + eb - 266): the products of two blocks, summed exactly, as fp32.
AIE_HOST_INLINE float block_product(int32_t sum, int ea, int eb) {
  if (ea == 255 || eb == 255) return __builtin_nanf("");
  const auto exponent = static_cast<uint64_t>(ea + eb - 266 + 1023);
  return static_cast<float>(sum * __builtin_bit_cast(double, exponent << 52));
}

}  // namespace detail

AIE_HOST_END
