// Host replacement of aie_kernels/mmul_block.h in `fast` builds: the same 2x2 block of C tiles with
// the same interface, kept in x86 vector registers with one vector per row of both column tiles.
//
// Three data paths, chosen by the instruction set this file is compiled for:
//   any        bf16 is widened to fp32 (a shift), then fp32 multiply-adds; int8 is widened to int16
//              and multiplied in pairs. Both sums are taken per k, in order.
//   AVX512BF16 vdpbf16ps on the bf16 operands: two fp32 FMA roundings per pair, as above, but odd k
//              before even k, and denormal operands and results count as zero.
//   AVX512VNNI vpdpbusd on four int8 at a time; exact, see below.
#pragma once

#include <immintrin.h>

#include "aie_api/vector.hpp"

#define AIE_HOST_MMUL_BLOCK aie::host::mmul_block

AIE_HOST_BEGIN
namespace host {

#if defined(__AVX512F__)
inline constexpr unsigned kSimdBytes = 64;
#elif defined(__AVX2__)
inline constexpr unsigned kSimdBytes = 32;
#else
inline constexpr unsigned kSimdBytes = 16;
#endif

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

template <typename T, unsigned Bytes>
struct simd_of {
  typedef T type __attribute__((vector_size(Bytes)));
};

template <typename V, typename T>
AIE_HOST_INLINE V load(const T* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

// Two tiles of `Columns` elements per row seen as one row of 2 * Columns, in vectors of Lanes.
// A vector either lies in one tile or holds half of its lanes from each.
template <typename T, unsigned Columns, unsigned Lanes>
struct row_pair {
  using simd = typename simd_of<T, Lanes * sizeof(T)>::type;
  static constexpr unsigned kParts = 2 * Columns / Lanes;

  using half = typename simd_of<T, Lanes * sizeof(T) / 2>::type;

  // In registers: halves that meet in memory would stall the load of the whole.
  AIE_HOST_INLINE static simd join(half low, half high) {
    if constexpr (Lanes == 16) {
      return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14,
                                     15);
    } else {
      static_assert(Lanes == 8);
      return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
    }
  }

  // `tile` points at the row in the left tile; the right tile is `distance` elements on.
  AIE_HOST_INLINE static simd load_part(const T* tile, unsigned distance, unsigned part) {
    simd v;
    if constexpr (Lanes == 2 * Columns) {
      v = join(load<half>(tile), load<half>(tile + distance));
    } else {
      const unsigned column = part * Lanes;
      v = load<simd>(column < Columns ? tile + column : tile + distance + column - Columns);
    }
    return v;
  }
  AIE_HOST_INLINE static void store_part(simd v, T* tile, unsigned distance, unsigned part) {
    if constexpr (Lanes == 2 * Columns) {
      __builtin_memcpy(tile, &v, sizeof v / 2);
      __builtin_memcpy(tile + distance, reinterpret_cast<const char*>(&v) + sizeof v / 2,
                       sizeof v / 2);
    } else {
      const unsigned column = part * Lanes;
      T* p = column < Columns ? tile + column : tile + distance + column - Columns;
      __builtin_memcpy(p, &v, sizeof v);
    }
  }
};

// Accumulators of a block of 2R rows x 2T columns, and their way from and to the C tiles.
template <typename T, unsigned R, unsigned Columns>
struct block_accumulators {
  static constexpr unsigned kLanes = kSimdBytes / 4 < 2 * Columns ? kSimdBytes / 4 : 2 * Columns;
  static constexpr unsigned kRows = 2 * R;
  using rows = row_pair<T, Columns, kLanes>;
  using simd = typename rows::simd;
  static constexpr unsigned kParts = rows::kParts;

  simd rows_[kRows][kParts];

  AIE_HOST_INLINE void load(const T* c0, const T* c1) {
    unroll<kRows>([&](auto i) {
      const T* tile = i.value < R ? c0 + i.value * Columns : c1 + (i.value - R) * Columns;
      unroll<kParts>(
          [&](auto p) { rows_[i.value][p.value] = rows::load_part(tile, R * Columns, p.value); });
    });
  }
  AIE_HOST_INLINE void store(T* c0, T* c1) const {
    unroll<kRows>([&](auto i) {
      T* tile = i.value < R ? c0 + i.value * Columns : c1 + (i.value - R) * Columns;
      unroll<kParts>(
          [&](auto p) { rows::store_part(rows_[i.value][p.value], tile, R * Columns, p.value); });
    });
  }
};

// Rows handled between two loads of a B row: with at most 8 live accumulators and the B vectors,
// 16 registers suffice; AVX-512 has 32.
template <unsigned Rows, unsigned Parts>
inline constexpr unsigned kRowsPerPass =
    (kSimdBytes == 64 ? 16 : 8) / Parts < Rows ? (kSimdBytes == 64 ? 16 : 8) / Parts : Rows;

template <unsigned R, unsigned S, unsigned T, typename TIn, typename TOut>
struct mmul_block;

#if defined(__AVX512BF16__) && defined(__AVX512BW__) && defined(__AVX512VL__)

// bf16, hardware dot product of two.
template <unsigned R, unsigned S, unsigned T>
struct mmul_block<R, S, T, bfloat16, float> : block_accumulators<float, R, T> {
  using base = block_accumulators<float, R, T>;
  using simd = typename base::simd;
  static_assert(base::kParts == 1 && S % 2 == 0);

  // Rows 2q and 2q + 1 of both B tiles, as pairs (b[2q][j], b[2q+1][j]) per 32-bit lane.
  AIE_HOST_INLINE static auto pairs(const bfloat16* b) {
    if constexpr (T == 8) {
      const __m512i both =
          _mm512_inserti64x4(_mm512_castsi256_si512(load<__m256i>(b)), load<__m256i>(b + S * T), 1);
      const __m512i order = _mm512_set_epi16(31, 23, 30, 22, 29, 21, 28, 20, 27, 19, 26, 18, 25, 17,
                                             24, 16,  // right tile
                                             15, 7, 14, 6, 13, 5, 12, 4, 11, 3, 10, 2, 9, 1, 8, 0);
      return _mm512_permutexvar_epi16(order, both);
    } else {
      const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(load<__m128i>(b)),
                                                   load<__m128i>(b + S * T), 1);
      const __m256i order = _mm256_set_epi16(15, 11, 14, 10, 13, 9, 12, 8,  // right tile
                                             7, 3, 6, 2, 5, 1, 4, 0);
      return _mm256_permutexvar_epi16(order, both);
    }
  }

  AIE_HOST_INLINE void mac(const bfloat16* a0, const bfloat16* a1, const bfloat16* b) {
    unroll<S / 2>([&](auto q) {
      const auto b_pairs = pairs(b + 2 * q.value * T);
      unroll<2 * R>([&](auto i) {
        const bfloat16* row = i.value < R ? a0 + i.value * S : a1 + (i.value - R) * S;
        const int32_t pair = load<int32_t>(row + 2 * q.value);
        simd& acc = this->rows_[i.value][0];
        if constexpr (T == 8) {
          acc = reinterpret_cast<simd>(_mm512_dpbf16_ps(
              reinterpret_cast<__m512>(acc), (__m512bh)_mm512_set1_epi32(pair), (__m512bh)b_pairs));
        } else {
          acc = reinterpret_cast<simd>(_mm256_dpbf16_ps(
              reinterpret_cast<__m256>(acc), (__m256bh)_mm256_set1_epi32(pair), (__m256bh)b_pairs));
        }
      });
    });
  }
};

#else

// bf16 widened to fp32.
template <unsigned R, unsigned S, unsigned T>
struct mmul_block<R, S, T, bfloat16, float> : block_accumulators<float, R, T> {
  using base = block_accumulators<float, R, T>;
  using simd = typename base::simd;
  static constexpr unsigned kParts = base::kParts, kRows = base::kRows;
  static constexpr unsigned kPass = kRowsPerPass<kRows, kParts>;

  // Count consecutive bf16 as fp32.
  template <unsigned Count>
  AIE_HOST_INLINE static void widen(const bfloat16* in, float* out) {
    constexpr unsigned kLanes = kSimdBytes / 4;
    unroll<Count / kLanes>([&](auto i) {
      const uint16_t* p = &in->bits + i.value * kLanes;
#if defined(__AVX512F__)
      const __m512i wide = _mm512_slli_epi32(_mm512_cvtepu16_epi32(load<__m256i>(p)), 16);
#elif defined(__AVX2__)
      const __m256i wide = _mm256_slli_epi32(_mm256_cvtepu16_epi32(load<__m128i>(p)), 16);
#else
      const __m128i half = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
      const __m128i wide = _mm_slli_epi32(_mm_cvtepu16_epi32(half), 16);
#endif
      __builtin_memcpy(out + i.value * kLanes, &wide, sizeof wide);
    });
  }

  AIE_HOST_INLINE void mac(const bfloat16* a0, const bfloat16* a1, const bfloat16* b) {
    alignas(64) float a_wide[kRows * S];
    widen<R * S>(a0, a_wide);
    widen<R * S>(a1, a_wide + R * S);
    asm("" : "+m"(a_wide));  // broadcast from memory; GCC would extract lane by lane
    // Several passes over B read it from a widened copy, a single pass widens as it goes.
    constexpr bool kCopyB = kRows > kPass;
    alignas(64) float b_wide[kCopyB ? 2 * S * T : 1];
    if constexpr (kCopyB) {
      widen<2 * S * T>(b, b_wide);
      asm("" : "+m"(b_wide));
    }
    unroll<kRows / kPass>([&](auto pass) {
      unroll<S>([&](auto k) {
        simd b_row[kParts];
        unroll<kParts>([&](auto p) {
          if constexpr (kCopyB) {
            b_row[p.value] = base::rows::load_part(b_wide + k.value * T, S * T, p.value);
          } else {
            using narrow = row_pair<uint16_t, T, base::kLanes>;
            using wide = typename simd_of<uint32_t, base::kLanes * 4>::type;
            const auto bits = narrow::load_part(&b->bits + k.value * T, S * T, p.value);
            b_row[p.value] = reinterpret_cast<simd>(__builtin_convertvector(bits, wide) << 16);
          }
        });
        unroll<kPass>([&](auto r) {
          constexpr unsigned row = decltype(pass)::value * kPass + decltype(r)::value;
          const float a = a_wide[row * S + k.value];
          unroll<kParts>([&](auto p) { this->rows_[row][p.value] += a * b_row[p.value]; });
        });
      });
    });
  }
};

#endif

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)

// int8, hardware dot product of four. The instruction multiplies unsigned by signed bytes, so A
// enters as a + 128 and 128 * sum_k(b) is subtracted at the end: exact modulo 2^32.
template <unsigned R, unsigned S, unsigned T>
struct mmul_block<R, S, T, int8_t, int32_t> : block_accumulators<int32_t, R, T> {
  using base = block_accumulators<int32_t, R, T>;
  using simd = typename base::simd;
  static_assert(base::kParts == 1 && S == 8 && T == 8);

  __m512i excess = _mm512_setzero_si512();

  // Rows 4q .. 4q + 3 of both B tiles, four bytes b[4q..4q+3][j] per 32-bit lane.
  AIE_HOST_INLINE static __m512i quads(const int8_t* b) {
    const __m512i both =
        _mm512_inserti64x4(_mm512_castsi256_si512(load<__m256i>(b)), load<__m256i>(b + S * T), 1);
    const __m512i zip =
        _mm512_broadcast_i32x4(_mm_set_epi8(15, 7, 14, 6, 13, 5, 12, 4, 11, 3, 10, 2, 9, 1, 8, 0));
    const __m512i order = _mm512_set_epi16(31, 23, 30, 22, 29, 21, 28, 20, 27, 19, 26, 18, 25, 17,
                                           24, 16,  // right tile
                                           15, 7, 14, 6, 13, 5, 12, 4, 11, 3, 10, 2, 9, 1, 8, 0);
    return _mm512_permutexvar_epi16(order, _mm512_shuffle_epi8(both, zip));
  }

  AIE_HOST_INLINE void mac(const int8_t* a0, const int8_t* a1, const int8_t* b) {
    const __m512i offset = _mm512_set1_epi8(-128);
    unroll<2>([&](auto q) {
      const __m512i b_quads = quads(b + 4 * q.value * T);
      excess = _mm512_dpbusd_epi32(excess, offset, b_quads);
      unroll<2 * R>([&](auto i) {
        const int8_t* row = i.value < R ? a0 + i.value * S : a1 + (i.value - R) * S;
        const uint32_t quad = load<uint32_t>(row + 4 * q.value) ^ 0x80808080u;
        simd& acc = this->rows_[i.value][0];
        acc = reinterpret_cast<simd>(
            _mm512_dpbusd_epi32(reinterpret_cast<__m512i>(acc),
                                _mm512_set1_epi32(static_cast<int32_t>(quad)), b_quads));
      });
    });
  }

  AIE_HOST_INLINE void store(int32_t* c0, int32_t* c1) {
    unroll<2 * R>([&](auto i) {
      simd& acc = this->rows_[i.value][0];
      acc = reinterpret_cast<simd>(_mm512_sub_epi32(reinterpret_cast<__m512i>(acc), excess));
    });
    base::store(c0, c1);
  }
};

#else

// int8 widened to int16, products of two added pairwise (at most 2 * 128 * 128: exact), sums wrap.
template <unsigned R, unsigned S, unsigned T>
struct mmul_block<R, S, T, int8_t, int32_t> : block_accumulators<int32_t, R, T> {
  using base = block_accumulators<int32_t, R, T>;
  using simd = typename base::simd;
  static constexpr unsigned kParts = base::kParts, kRows = base::kRows;
  static constexpr unsigned kPass = kRowsPerPass<kRows, kParts>;
  static_assert(S == 8 && T == 8);

  // acc + a[2q] * b[2q] + a[2q+1] * b[2q+1] per 32-bit lane.
  AIE_HOST_INLINE static simd add_products(simd acc, int32_t a_pair, simd b_pairs) {
#if defined(__AVX512F__)
    const __m512i sum = _mm512_madd_epi16(_mm512_set1_epi32(a_pair), (__m512i)b_pairs);
    return (simd)_mm512_add_epi32((__m512i)acc, sum);
#elif defined(__AVX2__)
    const __m256i sum = _mm256_madd_epi16(_mm256_set1_epi32(a_pair), (__m256i)b_pairs);
    return (simd)_mm256_add_epi32((__m256i)acc, sum);
#else
    const __m128i sum = _mm_madd_epi16(_mm_set1_epi32(a_pair), (__m128i)b_pairs);
    return (simd)_mm_add_epi32((__m128i)acc, sum);
#endif
  }

  // Rows 2q and 2q + 1 of one B tile as int16 pairs (b[2q][j], b[2q+1][j]).
  AIE_HOST_INLINE static void widen_pairs(const int8_t* b, int16_t* out) {
    const __m128i two_rows = load<__m128i>(b);
    const __m128i zipped = _mm_unpacklo_epi8(two_rows, _mm_srli_si128(two_rows, 8));
    const __m128i low = _mm_cvtepi8_epi16(zipped);
    const __m128i high = _mm_cvtepi8_epi16(_mm_srli_si128(zipped, 8));
    __builtin_memcpy(out, &low, sizeof low);
    __builtin_memcpy(out + 8, &high, sizeof high);
  }

  AIE_HOST_INLINE void mac(const int8_t* a0, const int8_t* a1, const int8_t* b) {
    alignas(64) int16_t a_wide[kRows * S];
    alignas(64) int16_t b_wide[S / 2][2][2 * T];  // row pair, tile, (column, row of the pair)
    for (unsigned i = 0; i < R * S; ++i) a_wide[i] = a0[i];
    for (unsigned i = 0; i < R * S; ++i) a_wide[R * S + i] = a1[i];
    unroll<S / 2>([&](auto q) {
      widen_pairs(b + 2 * q.value * T, b_wide[q.value][0]);
      widen_pairs(b + S * T + 2 * q.value * T, b_wide[q.value][1]);
    });
    unroll<kRows / kPass>([&](auto pass) {
      unroll<S / 2>([&](auto q) {
        simd b_pairs[kParts];
        unroll<kParts>([&](auto p) {
          b_pairs[p.value] = load<simd>(&b_wide[q.value][0][0] + p.value * sizeof(simd) / 2);
        });
        unroll<kPass>([&](auto r) {
          constexpr unsigned row = decltype(pass)::value * kPass + decltype(r)::value;
          const int32_t a_pair = load<int32_t>(a_wide + row * S + 2 * q.value);
          unroll<kParts>([&](auto p) {
            simd& acc = this->rows_[row][p.value];
            acc = add_products(acc, a_pair, b_pairs[p.value]);
          });
        });
      });
    });
  }
};

#endif

}  // namespace host
AIE_HOST_END
