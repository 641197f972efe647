// Weights of the prefill configuration in the `fast` builds, as prefill_product.hpp multiplies
// them: a block becomes one panel [k / per lane][32] per slice of 32 columns (bf16: 16), whose
// columns lie in memory as a panel's lines do, so that nothing is transposed. npu2 rounds them to
// BFP16 (block_pack.hpp). The same in the place of an expanded slice that a core keeps.
#pragma once

#include <type_traits>

#include "aie_kernels/prefill_job.h"
#include "dequant.hpp"
#include "gemv.hpp"
#include "matmul.hpp"
#include "prefill_codes.hpp"
#include "q4nx.hpp"

AIE_HOST_BEGIN
namespace host {

inline constexpr int32_t kPfSlice = npu::prefill::kSlice, kPfBlock = kBlockRows;
inline constexpr bool kPfBlockFloat = __AIE_ARCH__ >= 21;
inline constexpr int32_t kPfTileRows = __AIE_ARCH__ >= 21 ? 8 : 4;  // of A

#if __AIE_ARCH__ >= 21
using pf_packed = block_packed;
inline constexpr int32_t kPfTile = kBlockTile, kPfEight = kBlockLanes;
inline constexpr int32_t kPfWeights = kBlockMantissas * kBlockPanel;
static_assert(kPfBlock == kBlockPanel);
#else
using pf_format = format_of<bfloat16>::type;
inline constexpr int32_t kPfPerLane = pf_format::kPerLane;
using pf_packed = pf_format::packed;
inline constexpr int32_t kPfTile = kPfTileRows * 8, kPfEight = 8 / kPfPerLane * kPfBlock;
inline constexpr int32_t kPfWeights = kPfEight;
#endif
// Lanes of a panel, kPfEight for eight columns, which begin with kPfWeights; a tile of A takes
// kPfTile.
constexpr int32_t pf_panel(int32_t columns) { return columns / 8 * kPfEight; }

using npu::blocks::Format;

// Scales and minima of rows First on of a slice of 4-bit weights, kLanes of them.
template <bool kMinima>
struct q4_scales {
  float_lanes d, m;

  q4_scales(const uint8_t* block, int32_t slice, int32_t first) {
    const auto* scales = reinterpret_cast<const uint16_t*>(block) + slice * kQ4Rows + first;
    d = widen_bf16(scales);
    if constexpr (kMinima) {
      m = widen_bf16(scales + kQ4Plane / 2);
    } else {
      m = d * float{-kQ4Zero<kMinima>};
    }
  }
};

// Weights of rows First on of a slice, kLanes at a time, as fp32. kSlices of kColumns a block has.
template <Format kFormat, unsigned First>
struct weight_slice;
template <Format kFormat, unsigned First>
  requires(npu::blocks::is_int4(kFormat))
struct weight_slice<kFormat, First> {
  static constexpr bool kMinima = kFormat == Format::kQ4nx;
  q4_scales<kMinima> scales;
  const uint8_t* codes;

  static constexpr int32_t kColumns = kPfSlice, kSlices = kQ4Columns / kColumns;
  weight_slice(const uint8_t* block, int32_t slice)
      : scales(block, slice, First),
        codes(block + kQ4Codes<kMinima> + First / kQ4HalfRows * kQ4HalfBytes +
              slice * kPfSlice * kQ4ColumnBytes) {}
  AIE_HOST_INLINE float_lanes column(int32_t c) const {
    const float_lanes code = codes_of<First % kQ4HalfRows>(codes + c * kQ4ColumnBytes);
    return rounded(code * scales.d) + scales.m;
  }
};
template <Format kFormat, unsigned First>
  requires(npu::blocks::is_int8(kFormat))
struct weight_slice<kFormat, First> {
  using Layout = int8_layout<kFormat>;
  const float* scales;
  const int8_t* codes;

  static constexpr int32_t kColumns = kPfSlice, kSlices = Layout::kColumns / kColumns;
  weight_slice(const uint8_t* block, int32_t slice)
      : scales(reinterpret_cast<const float*>(block) +
               slice * kPfSlice / Layout::kGroup * kPfBlock + First),
        codes(reinterpret_cast<const int8_t*>(block) + Layout::kCodesAt +
              slice * kPfSlice * kPfBlock + First) {}
  AIE_HOST_INLINE float_lanes column(int32_t c) const {
    const auto scale = load<float_lanes>(scales + c / Layout::kGroup * kPfBlock);
    return rounded(widen_int8(codes + c * kPfBlock) * scale) + 0.0f;  // no -0, as the kernel
  }
};
// Half a slice: the third slice of two blocks has columns of both.
template <unsigned First>
struct weight_slice<Format::kBf16, First> {
  const uint16_t* values;

  static constexpr int32_t kColumns = kPfSlice / 2, kSlices = kBf16Columns / kColumns;
  static_assert(kSlices * kColumns == kBf16Columns);
  weight_slice(const uint8_t* block, int32_t slice)
      : values(reinterpret_cast<const uint16_t*>(block) + slice * kColumns * kPfBlock + First) {}
  AIE_HOST_INLINE float_lanes column(int32_t c) const { return widen_bf16(values + c * kPfBlock); }
};

// The largest magnitudes of eight columns of W, bf16 as the bits of fp32.
AIE_HOST_INLINE lanes top_of(const lanes (&columns)[8]) {
  lanes top{};
  unroll<8>([&](auto i) {
    const lanes magnitude = columns[i.value] & 0x7FFFFFFF;
    top = magnitude > top ? magnitude : top;
  });
  return top;
}
AIE_HOST_INLINE lanes out_of_range(lanes top) {
  return (top != 0) & ((top < int32_t{kLowest << 23}) |
                       (top > static_cast<int32_t>((kHighest << 23) | 0x7FFFFF)));
}

#if __AIE_ARCH__ >= 21
#if defined(AIE_HOST_BYTE_BLOCKS)
// Mantissas of four columns as bytes of a lane.
AIE_HOST_INLINE __m512i four_bytes(const lanes* columns) {
  const auto low = (__m512i)(columns[0] & 255), second = (__m512i)(columns[1] << 8);
  const auto third = (__m512i)(columns[2] << 16), last = (__m512i)(columns[3] << 24);
  const __m512i pair = _mm512_mask_mov_epi8(low, 0x2222222222222222, second);
  const __m512i other = _mm512_mask_mov_epi8(last, 0x4444444444444444, third);
  return _mm512_mask_mov_epi16(pair, 0xAAAAAAAA, other);
}
#endif
// Eight columns, a row of W per lane: mantissas and E << 23, as a panel has them.
AIE_HOST_INLINE void store_block(const lanes (&mantissas)[8], lanes exponents, int32_t* panel) {
#if defined(AIE_HOST_BYTE_BLOCKS)
  store_bytes(four_bytes(mantissas), four_bytes(mantissas + 4), panel);
#else
  unroll<4>([&](auto i) {
    const lanes pair = (mantissas[2 * i.value] & 0xFFFF) | mantissas[2 * i.value + 1] << 16;
    store(pair, panel + int32_t(i.value) * kPfBlock);
  });
#endif
  store(exponents - kUnitBias, panel + kBlockUnits * kPfBlock);
}
// The same of eight columns as bf16, whose largest magnitudes are `top`.
AIE_HOST_INLINE void store_eight(const lanes (&columns)[8], lanes top, int32_t* panel) {
  const lanes exponents = larger(top & 0x7F800000, lanes{} + int32_t{kLowest << 23});
  lanes mantissas[8];
  unroll<8>([&](auto i) {
    const lanes steps = block_steps(columns[i.value], exponents);
    mantissas[i.value] = steps < 127 ? steps : lanes{} + 127;
  });
  store_block(mantissas, exponents, panel);
}
#else
// Eight columns of a panel, a row of W per lane, as the bits of fp32.
AIE_HOST_INLINE void load_eight(const int32_t* panel, lanes (&columns)[8]) {
  unroll<8 / kPfPerLane>([&](auto i) {
    const lanes line = load<lanes>(panel + int32_t(i.value) * kPfBlock);
    if constexpr (kPfPerLane == 1) {
      columns[i.value] = line;
    } else {
      columns[2 * i.value] = line << 16;
      columns[2 * i.value + 1] = line & ~0xFFFF;
    }
  });
}
AIE_HOST_INLINE void store_columns(const lanes (&columns)[8], int32_t* panel) {
  unroll<8 / kPfPerLane>([&](auto i) {
    int32_t* const to = panel + int32_t(i.value) * kPfBlock;
    if constexpr (kPfPerLane == 1) {
      store(columns[i.value], to);
    } else {
      const auto even = (simd<uint32_t, kLanes>)columns[2 * i.value] >> 16;
      store((lanes)even | columns[2 * i.value + 1], to);
    }
  });
}
#endif

#if defined(AIE_HOST_CODE_TABLES)
// Codes with minima. Eight columns of a half are a vector. Products of a code are exact in fp32;
// conversions to bf16 take denormals for 0, so that scales and minima must be far from them.
AIE_HOST_INLINE bool pack_q4nx(const uint8_t* block, int32_t slice, int32_t* panel) {
  constexpr int kLeast = 24;  // exponent
  const __m512i rows = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
  const __m512i shift = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
  const auto below = [](__m512i magnitude, int exponent) {
    return _mm512_test_epi32_mask(magnitude, magnitude) &
           _mm512_cmplt_epi32_mask(magnitude, _mm512_set1_epi32(exponent << 23));
  };
  const __m512i unsigned_bits = _mm512_set1_epi32(0x7FFFFFFF);
  __mmask16 bad = 0;
  lanes beyond{};
  for (int32_t half = 0; half < 2; ++half, panel += kQ4HalfRows) {
    const q4_scales<true> scales(block, slice, half * kQ4HalfRows);
    const auto d = (__m512)scales.d, m = (__m512)scales.m;
    for (const __m512 scale : {d, m}) {
      const __m512i magnitude = _mm512_and_si512((__m512i)scale, unsigned_bits);
      bad |= below(magnitude, kLeast) |
             _mm512_cmpgt_epi32_mask(magnitude, _mm512_set1_epi32(0x7F7FFFFF));
    }
    const uint8_t* codes =
        block + kQ4Codes<true> + half * kQ4HalfBytes + slice * kPfSlice * kQ4ColumnBytes;
    int32_t* to = panel;
    for (int32_t c = 0; c < kPfSlice; c += 8, codes += 8 * kQ4ColumnBytes) {
      const __m512i all = _mm512_loadu_si512(codes);
      lanes columns[8];
      __m512 top = _mm512_setzero_ps();
      unroll<8>([&](auto i) {
        const __m512i own = _mm512_add_epi32(rows, _mm512_set1_epi32(2 * i.value));
        const __m512i moved = _mm512_srlv_epi32(_mm512_permutexvar_epi32(own, all), shift);
        const __m512 code = _mm512_cvtepi32_ps(_mm512_and_si512(moved, _mm512_set1_epi32(15)));
        const __m256bh rounded = _mm512_cvtneps_pbh(_mm512_fmadd_ps(code, d, m));
        const __m512i bits = _mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)rounded), 16);
        columns[i.value] = (lanes)bits;
        top = _mm512_range_ps(top, (__m512)bits, 0x0B);  // the larger magnitude
      });
      beyond |= out_of_range((lanes)top);
      store_eight(columns, (lanes)top, to);
      to += kPfEight;
    }
  }
  bad |= _mm512_test_epi32_mask((__m512i)beyond, (__m512i)beyond);
  return bad == 0;
}
#endif

AIE_HOST_INLINE void prefetch_lines(const uint8_t* from, int32_t bytes) {
  for (int32_t i = 0; i < bytes; i += 64) _mm_prefetch(from + i, _MM_HINT_T1);
}
// Fetches a slice into L2: of the next block in memory, while the same one of this block is packed.
// Once is enough: the work on a block lies between, and a slice is a few lines. Of 4-bit codes no
// weight_slice is made, which would load scales that may lie beyond the matrix.
template <Format kFormat>
AIE_HOST_INLINE void prefetch_slice(const uint8_t* block, int32_t slice) {
  if constexpr (npu::blocks::is_int4(kFormat)) {
    constexpr bool kMinima = kFormat == Format::kQ4nx;
    constexpr int32_t kCodes = kPfSlice * kQ4ColumnBytes;
    const uint8_t* const codes = block + kQ4Codes<kMinima> + slice * kCodes;
    for (int32_t plane = 0; plane < kQ4Codes<kMinima>; plane += kQ4Plane) {
      prefetch_lines(block + plane + slice * kQ4Rows * 2, kQ4Rows * 2);
    }
    prefetch_lines(codes, kCodes);
    prefetch_lines(codes + kQ4HalfBytes, kCodes);
  } else {
    using Slice = weight_slice<kFormat, 0>;
    const Slice weights(block, slice);
    if constexpr (npu::blocks::is_int8(kFormat)) {
      constexpr int32_t kGroups = (kPfSlice - 1) / Slice::Layout::kGroup + 1;
      prefetch_lines(reinterpret_cast<const uint8_t*>(weights.scales), kGroups * kPfBlock * 4);
      prefetch_lines(reinterpret_cast<const uint8_t*>(weights.codes), kPfSlice * kPfBlock);
    } else {
      prefetch_lines(reinterpret_cast<const uint8_t*>(weights.values),
                     Slice::kColumns * kPfBlock * 2);
    }
  }
}

// One slice of a block. False if weights are not finite or, rounded to BFP16, too large or small
// for sums of blocks to be exact.
template <Format kFormat>
[[gnu::noinline]] inline bool pack_slice(const uint8_t* block, int32_t slice, int32_t* panel) {
  prefetch_slice<kFormat>(block + npu::blocks::bytes_of(kFormat), slice);
#if defined(AIE_HOST_CODE_TABLES)
  if constexpr (kFormat == Format::kQ4_0) return pack_q4_0(block, slice, panel);
  if constexpr (kFormat == Format::kQ4nx) return pack_q4nx(block, slice, panel);
#endif
  lanes bad{};
  unroll<kPfBlock / kLanes>([&](auto p) {
    constexpr unsigned kFirst = p.value * kLanes;
    const weight_slice<kFormat, kFirst> weights(block, slice);
    int32_t* to = panel + kFirst;
    for (int32_t c = 0; c < weights.kColumns; c += 8) {
      lanes columns[8];
      unroll<8>([&](auto i) {
        const auto bits = (lanes)weights.column(c + static_cast<int32_t>(i.value));
        if constexpr (!kPfBlockFloat) bad |= (bits & 0x7FFFFFFF) >= 0x7F800000;
        const auto odd = (bits >> 16) & 1;  // to nearest even
        columns[i.value] = (bits + 0x7FFF + odd) & ~0xFFFF;
      });
#if __AIE_ARCH__ >= 21
      const lanes top = top_of(columns);
      bad |= out_of_range(top);
      store_eight(columns, top, to);
#else
      store_columns(columns, to);
#endif
      to += kPfEight;
    }
  });
  int32_t any = 0;
  for (unsigned i = 0; i < kLanes; ++i) any |= bad[i];
  return any == 0;
}

// Whether all weights of a slice are 0, bit by bit, as those that pad a width are: their products
// add nothing.
AIE_HOST_INLINE bool all_zero(const int32_t* panel) {
  for (int32_t eight = 0; eight < pf_panel(kPfSlice); eight += kPfEight) {
    if (!all_zero(panel + eight, kPfWeights * 4)) return false;
  }
  return true;
}

// A panel as what a core keeps of it in place of an expanded slice, in as many bytes: bfloat16
// [k][32]; npu2 per 8 columns 32 exponents, then mantissas [8][32], which hold it as exactly.
inline constexpr int32_t kPfKept = kPfBlock * kPfSlice * (kPfBlockFloat ? 9 : 16) / 8;

#if __AIE_ARCH__ >= 21
// The low bytes of lanes.
AIE_HOST_INLINE auto low_bytes(lanes x) {
#if defined(__AVX512F__)
  return _mm512_cvtepi32_epi8((__m512i)x);
#elif defined(__AVX2__)  // GCC 12 makes an instruction per byte of __builtin_convertvector
  const __m256i first = _mm256_set1_epi64x(0x0C080400);
  const __m256i picked = _mm256_shuffle_epi8((__m256i)x, first);
  return _mm_cvtsi128_si64(
      _mm_unpacklo_epi32(_mm256_castsi256_si128(picked), _mm256_extracti128_si256(picked, 1)));
#else
  return __builtin_convertvector(x, simd<int8_t, kLanes>);
#endif
}

// `steps` of 8 columns each.
[[gnu::noinline]] inline void keep_panel(const int32_t* panel, int32_t steps, uint8_t* kept) {
  for (; steps > 0; --steps, panel += kPfEight, kept += kPfKept / 4) {
    for (int32_t n = 0; n < kPfBlock; n += kLanes) {
      const lanes exponents = load<lanes>(panel + kBlockUnits * kPfBlock + n) + kUnitBias;
      store(low_bytes(exponents >> 23), kept + n);
      unroll<kBlockMantissas>([&](auto line) {
        const auto some = load<lanes>(panel + int32_t(line.value) * kPfBlock + n);
        unroll<kBlockPerLane>([&](auto i) {
          constexpr int32_t kColumn = line.value * kBlockPerLane + i.value;
          constexpr int kShift = i.value * 32 / kBlockPerLane;
          store(low_bytes(some >> kShift), kept + (1 + kColumn) * kPfBlock + n);
        });
      });
    }
  }
}

[[gnu::noinline]] inline void kept_panel(const uint8_t* kept, int32_t* panel) {
  for (int32_t step = 0; step < 4; ++step, kept += kPfKept / 4, panel += kPfEight) {
    for (int32_t n = 0; n < kPfBlock; n += kLanes) {
      lanes columns[8];
      unroll<8>([&](auto i) {
        const uint8_t* const column = kept + (1 + int32_t(i.value)) * kPfBlock + n;
        columns[i.value] = widen_bytes<kLanes>(reinterpret_cast<const int8_t*>(column));
      });
      store_block(columns, widen_bytes<kLanes>(kept + n) << 23, panel + n);
    }
  }
}
#else
// `steps` of 8 columns each.
[[gnu::noinline]] inline void keep_panel(const int32_t* panel, int32_t steps, uint8_t* kept) {
  for (; steps > 0; --steps, panel += kPfEight, kept += kPfKept / 4) {
    for (int32_t n = 0; n < kPfBlock; n += kLanes) {
      lanes columns[8];
      load_eight(panel + n, columns);
      unroll<8>([&](auto i) {
        const auto high = (simd<uint32_t, kLanes>)columns[i.value] >> 16;
        store(__builtin_convertvector(high, simd<uint16_t, kLanes>),
              kept + (int32_t(i.value) * kPfBlock + n) * 2);
      });
    }
  }
}

[[gnu::noinline]] inline void kept_panel(const uint8_t* kept, int32_t* panel) {
  for (int32_t step = 0; step < 4; ++step, kept += kPfKept / 4, panel += kPfEight) {
    for (int32_t n = 0; n < kPfBlock; n += kLanes) {
      lanes columns[8];
      unroll<8>([&](auto i) {
        const auto* const from = reinterpret_cast<const uint16_t*>(kept);
        columns[i.value] = (lanes)widen_bf16(from + int32_t(i.value) * kPfBlock + n);
      });
      store_columns(columns, panel + n);
    }
  }
}
#endif

}  // namespace host
AIE_HOST_END
