// Operands of a `fast` build in the order in which the inner loop reads them.
//
// A keeps its tile layout, only its elements change. B becomes panels of kColumns columns,
// panel[k / per lane][kColumns]: a lane holds consecutive k of one column. bfp16: block_pack.hpp.
#pragma once

#include "../aie_api/bfp16.hpp"
#include "format.hpp"

#define AIE_HOST_NARROW aie::host::narrow_floats

AIE_HOST_BEGIN
namespace host {

// Scaling sums of products of bfp16 by both units is exact while the largest magnitude of a block
// is 0 or has an exponent in [kLowest, kHighest]: nothing underflows or overflows.
inline constexpr unsigned kLowest = 70, kHighest = 187;

using float8 = simd<float, 8>;
using word8 = simd<uint32_t, 8>;
using half8 = simd<uint16_t, 8>;

// x to multiples of 2^(E - 133), nearest even, at max 127 of them; `top` has the exponent E of the
// lane's block as an fp32 exponent field. The sum's last bit is that unit.
AIE_HOST_INLINE float8 round_to_block(half8 x, word8 top) {
  const float8 wide = reinterpret_cast<float8>(__builtin_convertvector(x, word8) << 16);
  const float8 magic = reinterpret_cast<float8>((top + (17u << 23)) | 0x400000);
  const float8 max = reinterpret_cast<float8>(top | 0x7E0000);
  const float8 rounded = (wide + magic) - magic;
  return rounded > max ? max : rounded;
}

// Of eight bf16, as bits.
AIE_HOST_INLINE unsigned largest_magnitude(half8 x) {
  const __m128i inverted = _mm_xor_si128((__m128i)(x & 0x7FFF), _mm_set1_epi16(-1));
  return 0xFFFF - static_cast<unsigned>(_mm_extract_epi16(_mm_minpos_epu16(inverted), 0));
}

#if __AIE_ARCH__ >= 21
// Eight values of any size to bfp16, as the core converts them. Returns the exponent.
[[gnu::noinline]] inline int32_t round_any(const float* values, int8_t* mantissas) {
  block_vector<bfp16ebs8, 64> block;
  block.convert(0, values, rounding_mode::conv_even);
  for (unsigned i = 0; i < 8; ++i) mantissas[i] = static_cast<int8_t>(block.mantissa(i));
  return block.exponent(0);
}
#endif

// Elements one by one. Loops over whole operands vectorise.
template <typename T, typename TPacked>
AIE_HOST_INLINE void convert(const T* in, int64_t count, TPacked* out) {
  for (int64_t i = 0; i < count; ++i) {
    if constexpr (std::is_same_v<T, bfloat16> && std::is_same_v<TPacked, float>) {
      out[i] = __builtin_bit_cast(float, static_cast<uint32_t>(in[i].bits) << 16);
    } else if constexpr (std::is_same_v<T, bfloat16>) {
      out[i] = in[i].bits;
    } else {
      out[i] = in[i];
    }
  }
}

// Whether A is multiplied as it lies in memory.
template <typename T, typename TPacked>
inline constexpr bool kPackedAsIs = kOffset<T> == 0 && sizeof(T) == sizeof(TPacked);

// A, `count` elements.
template <typename T, typename TPacked>
[[gnu::noinline]] inline void pack_a(const T* in, int64_t count, TPacked* out) {
  if constexpr (kOffset<T> != 0) {
    for (int64_t i = 0; i < count; ++i) out[i] = static_cast<TPacked>(in[i] ^ kOffset<T>);
  } else {
    convert(in, count, out);
  }
}

// Rows of a tile, `kPerLane` at a time, as lanes [S / kPerLane][T] at distance `stride`.
template <unsigned S, unsigned T, typename TPacked>
AIE_HOST_INLINE void zip_rows(const TPacked* tile, int32_t* out, unsigned stride) {
  if constexpr (sizeof(TPacked) == 4) {
    for (unsigned k = 0; k < S; ++k) __builtin_memcpy(out + k * stride, tile + k * T, 4 * T);
  } else if constexpr (sizeof(TPacked) == 2) {
    for (unsigned k = 0; k < S; k += 2) {
      int32_t* to = out + k / 2 * stride;
      if constexpr (T == 8) {
        const __m128i x = load<__m128i>(tile + k * T), y = load<__m128i>(tile + k * T + T);
        store(_mm_unpacklo_epi16(x, y), to);
        store(_mm_unpackhi_epi16(x, y), to + 4);
      } else {
        static_assert(T == 4);
        const __m128i both = load<__m128i>(tile + k * T);
        store(_mm_unpacklo_epi16(both, _mm_srli_si128(both, 8)), to);
      }
    }
  } else {
    static_assert(T == 8);
    for (unsigned k = 0; k < S; k += 4) {
      const __m128i upper = load<__m128i>(tile + k * T), lower = load<__m128i>(tile + k * T + 16);
      const __m128i x = _mm_unpacklo_epi8(upper, _mm_srli_si128(upper, 8));
      const __m128i y = _mm_unpacklo_epi8(lower, _mm_srli_si128(lower, 8));
      store(_mm_unpacklo_epi16(x, y), out + k / 4 * stride);
      store(_mm_unpackhi_epi16(x, y), out + k / 4 * stride + 4);
    }
  }
}

// Columns of a column-major tile, lanes [T][Q], as lanes [Q][T] at distance `stride`.
template <unsigned Q, unsigned T>
AIE_HOST_INLINE void turn_columns(const int32_t* tile, int32_t* out, unsigned stride) {
  for (unsigned j = 0; j < T; j += 4) {
    if constexpr (Q == 2) {
      const __m128 x = load<__m128>(tile + j * Q), y = load<__m128>(tile + j * Q + 4);
      store(_mm_shuffle_ps(x, y, 0x88), out + j);
      store(_mm_shuffle_ps(x, y, 0xDD), out + stride + j);
    } else {
      for (unsigned q = 0; q < Q; q += 4) {
        __m128 x[4];
        for (unsigned i = 0; i < 4; ++i) x[i] = load<__m128>(tile + (j + i) * Q + q);
        _MM_TRANSPOSE4_PS(x[0], x[1], x[2], x[3]);
        for (unsigned i = 0; i < 4; ++i) store(x[i], out + (q + i) * stride + j);
      }
    }
  }
}

// One B tile into its place in a panel.
template <typename Tile, bool kColumnMajor, unsigned kColumns, typename TPacked>
AIE_HOST_INLINE void pack_b_tile(const typename Tile::element* in, int32_t* out) {
  using T = typename Tile::element;
  constexpr unsigned kCount = Tile::s * Tile::t;
  alignas(64) TPacked converted[kCount];
  const TPacked* tile = converted;
  if constexpr (sizeof(T) != sizeof(TPacked)) {
    convert(in, kCount, converted);
  } else {
    tile = reinterpret_cast<const TPacked*>(in);
  }
  if constexpr (kColumnMajor) {
    turn_columns<Tile::s * sizeof(TPacked) / 4, Tile::t>(reinterpret_cast<const int32_t*>(tile),
                                                         out, kColumns);
  } else {
    zip_rows<Tile::s, Tile::t>(tile, out, kColumns);
  }
}

// B of depth x columns tiles as panels of kColumns columns, the last one filled up with zeros.
template <typename Tile, bool kColumnMajor, unsigned kColumns, typename TPacked>
[[gnu::noinline]] inline void pack_b(const typename Tile::element* b, int32_t depth,
                                     int32_t columns, int32_t* out) {
  constexpr int32_t kTile = Tile::s * Tile::t, kTiles = kColumns / Tile::t;
  constexpr int32_t kStep = Tile::s * sizeof(TPacked) / 4 * kColumns;  // lanes per tile row
  for (int32_t first = 0; first < columns; first += kTiles) {
    for (int32_t j = 0; j < kTiles; ++j, out += Tile::t) {
      const int32_t column = first + j;
      for (int32_t i = 0; i < depth; ++i) {
        int32_t* at = out + i * kStep;
        if (column >= columns) {
          for (unsigned q = 0; q < kStep / kColumns; ++q) {
            __builtin_memset(at + q * kColumns, 0, Tile::t * 4);
          }
          continue;
        }
        const auto* tile = b + (kColumnMajor ? column * depth + i : i * columns + column) * kTile;
        pack_b_tile<Tile, kColumnMajor, kColumns, TPacked>(tile, at);
      }
    }
    out += depth * kStep - static_cast<int32_t>(kColumns);
  }
}

// int8 and int16 C -> accumulators, as UPS does, and back to nearest even with saturation, as SRS.
template <int kCount, typename T>
AIE_HOST_INLINE void widen_c(const T* __restrict in, int shift, int32_t* __restrict out) {
  for (int i = 0; i < kCount; ++i) out[i] = detail::shift_up_saturated(in[i], shift);
}
template <int kCount, typename T>
AIE_HOST_INLINE void narrow_c(const int32_t* __restrict in, int shift, T* __restrict out) {
  constexpr int32_t kMax = sizeof(T) == 1 ? 0x7F : 0x7FFF;
#if defined(__AVX512F__)
  // In vectors of 8 lanes, as `in` was stored just before: wider loads would wait for the stores.
  using wide = simd<int32_t, 8>;
  using bits = simd<uint32_t, 8>;
  const uint32_t unit = uint32_t{1} << shift, odd = shift > 0 ? 1 : 0;
  for (int i = 0; i < kCount; i += 8) {  // detail::shift_round_saturate_even
    const wide x = load<wide>(in + i), floor = x >> shift;
    const bits rest = ((bits)x & (unit - 1)) + (unit / 2 - odd) + ((bits)floor & odd);
    const wide rounded = floor + (wide)(rest >> shift);
    const wide low = rounded < ~kMax ? wide{} + ~kMax : rounded;
    store(__builtin_convertvector(low > kMax ? wide{} + kMax : low, simd<T, 8>), out + i);
  }
#else
  for (int i = 0; i < kCount; ++i) {
    out[i] = static_cast<T>(detail::shift_round_saturate_even(in[i], shift, kMax));
  }
#endif
}

// The elements a block is loaded from and stored to, given those of C.
template <typename T>
struct block_element {
  using type = std::conditional_t<std::is_same_v<T, float>, float, int32_t>;
};
template <>
struct block_element<bfloat16> {
  using type = uint16_t;
};

// One vector of bf16 C <-> accumulators.
template <unsigned N>
AIE_HOST_INLINE simd<float, N> widen_bf16(simd<uint16_t, N> v) {
  return reinterpret_cast<simd<float, N>>(__builtin_convertvector(v, simd<uint32_t, N>) << 16);
}
template <unsigned N>
AIE_HOST_INLINE simd<uint16_t, N> narrow_bf16(simd<float, N> v) {
  return detail::narrow_bf16_even<N>(reinterpret_cast<simd<uint32_t, N>>(v));
}

// fp32 to bf16 to nearest even, `count` elements, a multiple of 16; dst may be src.
inline void narrow_floats(const float* src, bfloat16* dst, int32_t count) {
  for (int32_t i = 0; i < count; i += kLanes) {
    store(narrow_bf16<kLanes>(load<simd<float, kLanes>>(src + i)), dst + i);
  }
}

}  // namespace host
AIE_HOST_END
