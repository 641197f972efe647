// Products of the prefill configuration in the `fast` builds, in place of the loops of
// aie_kernels/prefill_product.cc: sums are row-major [m][32 blocks], in another order of additions.
//
// A block of weights becomes one panel [k / per lane][32] per slice of 32 columns (bf16: 16): its
// columns lie in memory as a panel's lines do, so that nothing is transposed; on npu2 it is
// rounded to BFP16. A keeps its layout; npu2's BFP16 becomes bf16 or fp32, which hold it exactly.
// Both forms are made once for all cores that were sent an object; a core that shares with nobody
// makes what its slice needs.
#pragma once

#include "aie_kernels/prefill_job.h"
#include "bfp16.hpp"
#include "dequant.hpp"
#include "gemv.hpp"
#include "matmul.hpp"
#include "q4nx.hpp"

#define AIE_HOST_PREFILL_MULTIPLY aie::host::prefill_multiply
#define AIE_HOST_PREFILL_KEEP aie::host::prefill_keep
#define AIE_HOST_PREFILL_EXPAND_KEPT aie::host::prefill_expand_kept
#define AIE_HOST_PREFILL_FINISH aie::host::prefill_finish
#define AIE_HOST_PREFILL_SCALE aie::host::prefill_scale
#define AIE_HOST_PREFILL_PIECE aie::host::prefill_piece
#define AIE_HOST_PREFILL_WIDE_PIECE aie::host::prefill_wide_piece

// Whether what npu_host_pack_begin() gave last for this operand is for other cores too.
extern "C" int npu_host_pack_shared(uint32_t operand);

AIE_HOST_BEGIN
namespace host {

inline constexpr int32_t kPfSlice = npu::prefill::kSlice, kPfBlock = kBlockRows;
inline constexpr bool kPfBlockFloat = __AIE_ARCH__ >= 21;
inline constexpr int32_t kPfTileRows = __AIE_ARCH__ >= 21 ? 8 : 4;  // of A

using pf_format = format_of<bfloat16>::type;
using pf_packed = pf_format::packed;
inline constexpr int32_t kPfPerLane = pf_format::kPerLane;
// Lanes of a panel.
constexpr int32_t pf_panel(int32_t columns) { return columns / kPfPerLane * kPfBlock; }

// Weights of rows First on of a slice, kLanes at a time, as fp32. kSlices of kColumns a block has.
template <unsigned First>
struct q4nx_slice {
  float_lanes d, m;
  const uint8_t* codes;

  static constexpr int32_t kColumns = kPfSlice, kSlices = kQ4Columns / kColumns;
  q4nx_slice(const uint8_t* block, int32_t slice)
      : codes(block + kQ4Codes + First / kQ4HalfRows * kQ4HalfBytes +
              slice * kPfSlice * kQ4ColumnBytes) {
    const auto* scales = reinterpret_cast<const uint16_t*>(block) + slice * kQ4Rows + First;
    d = widen_bf16(scales);
    m = widen_bf16(scales + kQ4Plane / 2);
  }
  AIE_HOST_INLINE float_lanes column(int32_t c) const {
    return rounded(codes_of<First % kQ4HalfRows>(codes + c * kQ4ColumnBytes) * d) + m;
  }
};
template <unsigned First>
struct q8_slice {
  const float* scales;
  const int8_t* codes;

  static constexpr int32_t kColumns = kPfSlice, kSlices = kQ8Columns / kColumns;
  q8_slice(const uint8_t* block, int32_t slice)
      : scales(reinterpret_cast<const float*>(block) + slice * kPfSlice / kQ8Group * kPfBlock +
               First),
        codes(reinterpret_cast<const int8_t*>(block) + kQ8Codes + slice * kPfSlice * kPfBlock +
              First) {}
  AIE_HOST_INLINE float_lanes column(int32_t c) const {
    const auto scale = load<float_lanes>(scales + c / kQ8Group * kPfBlock);
    return rounded(widen_int8(codes + c * kPfBlock) * scale) + 0.0f;  // no -0, as the kernel
  }
};

// Half a slice: the third slice of two blocks has columns of both.
template <unsigned First>
struct bf16_slice {
  const uint16_t* values;

  static constexpr int32_t kColumns = kPfSlice / 2, kSlices = kBf16Columns / kColumns;
  static_assert(kSlices * kColumns == kBf16Columns);
  bf16_slice(const uint8_t* block, int32_t slice)
      : values(reinterpret_cast<const uint16_t*>(block) + slice * kColumns * kPfBlock + First) {}
  AIE_HOST_INLINE float_lanes column(int32_t c) const { return widen_bf16(values + c * kPfBlock); }
};

// Eight columns of W, bf16 as fp32, to multiples of their rows' units (pack.hpp).
AIE_HOST_INLINE lanes round_lanes(lanes (&columns)[8]) {
  lanes top{};
  unroll<8>([&](auto i) {
    const lanes magnitude = columns[i.value] & 0x7FFFFFFF;
    top = magnitude > top ? magnitude : top;
  });
  const lanes exponents = top & 0x7F800000;
  const auto magic = (float_lanes)((exponents + (17 << 23)) | 0x400000);
  const auto max = (float_lanes)(exponents | 0x7E0000);
  unroll<8>([&](auto i) {
    const float_lanes rounded = ((float_lanes)columns[i.value] + magic) - magic;
    columns[i.value] = (lanes)(rounded > max ? max : rounded);
  });
  return (top != 0) & ((exponents < int32_t{kLowest << 23}) |
                       (exponents > static_cast<int32_t>(kHighest << 23)));
}

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
AIE_HOST_INLINE void store_eight(const lanes (&columns)[8], int32_t* panel) {
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

// One slice of a block. False if weights are not finite or beyond what floating point multiplies
// exactly.
template <template <unsigned> typename Slice>
[[gnu::noinline]] inline bool pack_slice(const uint8_t* block, int32_t slice, int32_t* panel) {
  lanes bad{};
  unroll<kPfBlock / kLanes>([&](auto p) {
    constexpr unsigned kFirst = p.value * kLanes;
    const Slice<kFirst> weights(block, slice);
    int32_t* to = panel + kFirst;
    for (int32_t c = 0; c < Slice<kFirst>::kColumns; c += 8) {
      lanes columns[8];
      unroll<8>([&](auto i) {
        const auto bits = (lanes)weights.column(c + static_cast<int32_t>(i.value));
        bad |= (bits & 0x7FFFFFFF) >= 0x7F800000;
        const auto odd = (bits >> 16) & 1;  // to nearest even
        columns[i.value] = (bits + 0x7FFF + odd) & ~0xFFFF;
      });
      if constexpr (kPfBlockFloat) bad |= round_lanes(columns);
      store_eight(columns, to);
      to += 8 / kPfPerLane * kPfBlock;
    }
  });
  int32_t any = 0;
  for (unsigned i = 0; i < kLanes; ++i) any |= bad[i];
  return any == 0;
}

// Slice `slice` of `count` elements of an object of A.
[[gnu::noinline]] inline bool pack_activations(const bfloat16* a, int32_t slice, int32_t count,
                                               pf_packed* out) {
#if __AIE_ARCH__ >= 21
  const auto* blocks = reinterpret_cast<const uint8_t*>(a) + slice * (count / 8 * 9);
  return decode_bfp16(reinterpret_cast<const bfp16ebs8*>(blocks), count, out);
#else
  return pack_a<bfloat16, false>(a + slice * count, count, out);
#endif
}

// Part `part` of a packed operand: pack(part, out) for all parts if others read them.
template <typename T, typename Pack>
AIE_HOST_INLINE const T* packed_part(uint32_t operand, const void* form, int32_t parts,
                                     int32_t part, int32_t elements, Pack&& pack) {
  int found = 0;
  auto* const to = static_cast<T*>(npu_host_pack_begin(
      operand, form, parts, sizeof(T) * static_cast<uint64_t>(parts * elements), &found));
  if (found == 0) {
    const bool all = npu_host_pack_shared(operand) != 0;
    bool good = true;
    for (int32_t i = all ? 0 : part; i < (all ? parts : part + 1); ++i) {
      good &= pack(i, to + i * elements);
    }
    npu_host_pack_end(operand, good);
    found = good ? 1 : -1;
  }
  return found > 0 ? to + part * elements : nullptr;
}

template <template <unsigned> typename Slice>
AIE_HOST_INLINE const int32_t* panel_of(uint32_t operand, const uint8_t* block, int32_t slice) {
  constexpr auto kPack = &pack_slice<Slice>;
  return packed_part<int32_t>(operand, reinterpret_cast<const void*>(kPack), Slice<0>::kSlices,
                              slice, pf_panel(Slice<0>::kColumns),
                              [&](int32_t i, int32_t* out) { return kPack(block, i, out); });
}

// Slice `slice` of the `slices` of an object of A that count.
inline const pf_packed* activations_of(const bfloat16* a, int32_t m, int32_t slice,
                                       int32_t slices) {
  const int32_t elements = m * kPfSlice;
  if constexpr (kPackedAsIs<bfloat16, kPfBlockFloat, pf_packed>) {
    return reinterpret_cast<const pf_packed*>(a) + slice * elements;
  } else {
    return packed_part<pf_packed>(
        0, reinterpret_cast<const void*>(&pack_activations), slices, slice, elements,
        [&](int32_t i, pf_packed* out) { return pack_activations(a, i, elements, out); });
  }
}

// Whether words are 0, bit by bit, as weights that pad a width are: their products add nothing.
template <int32_t kWords>
AIE_HOST_INLINE bool all_zero(const int32_t* words) {
  static_assert(kWords % int32_t(kLanes) == 0);
  for (int32_t i = 0; i < kWords; i += int32_t(kLanes)) {
    const lanes some = load<lanes>(words + i);
    int32_t any = 0;
    for (unsigned lane = 0; lane < kLanes; ++lane) any |= some[lane];
    if (any != 0) return false;
  }
  return true;
}

// Sums of kPfRows x 2 vectors stay in registers for the columns of a panel, steps of k.
inline constexpr int32_t kPfRows = kSimdBytes == 64 ? 8 : 4, kPfWidth = 2 * kLanes;

// sums += A W for kPfRows rows and kPfWidth columns; `stride` from row to row of the sums.
template <int32_t kSteps>
AIE_HOST_INLINE void multiply_part(const pf_packed* a, const int32_t* panel, float* sums,
                                   int32_t stride) {
  using vector = pf_format::vector;
  constexpr unsigned kQ = 8 / kPfPerLane;
  vector c[kPfRows][2];
  unroll<kPfRows>([&](auto i) {
    unroll<2>([&](auto v) {
      c[i.value][v.value] =
          load<vector>(sums + int32_t(i.value) * stride + int32_t(v.value * kLanes));
    });
  });
  for (int32_t step = 0; step < kSteps; ++step) {
    unroll<kQ>([&](auto q) {
      const lanes left = load<lanes>(panel), right = load<lanes>(panel + kLanes);
      unroll<kPfRows>([&](auto i) {
        constexpr int32_t kTile = i.value / kPfTileRows, kRow = i.value % kPfTileRows;
        const auto x = load<int32_t>(a + kTile * kPfTileRows * kPfSlice + kRow * 8 +
                                     int32_t(q.value) * kPfPerLane);
        c[i.value][0] = pf_format::dot(c[i.value][0], x, left);
        c[i.value][1] = pf_format::dot(c[i.value][1], x, right);
      });
      panel += kPfBlock;
    });
    a += kPfTileRows * 8;
  }
  unroll<kPfRows>([&](auto i) {
    unroll<2>([&](auto v) {
      store(c[i.value][v.value], sums + int32_t(i.value) * stride + int32_t(v.value * kLanes));
    });
  });
}

// Panels of a slice: one of each row-block; of bfloat16 one of each half of its columns.
struct Panels {
  static_assert(npu::prefill::kMaxBlocks == 2 && kPfSlice == 2 * bf16_slice<0>::kColumns);
  const int32_t* of[2];
  int32_t count;
};

// Of whole slices: the columns that pad a width.
AIE_HOST_INLINE bool nothing(const Panels& panels) {
  for (int32_t i = 0; i < panels.count; ++i) {
    if (!all_zero<pf_panel(kPfSlice)>(panels.of[i])) return false;
  }
  return true;
}

// Sums of all row-blocks [m][32 blocks], += A W; `tail`: as sums_at() has it.
template <bool kHalves>
[[gnu::noinline]] inline void multiply_panels(const pf_packed* a, const Panels& panels, float* sums,
                                              float* tail, int32_t m) {
  static_assert(npu::prefill::kRows % kPfRows == 0);  // which follow each other
  constexpr int32_t kSteps = kPfSlice / 8 / (kHalves ? 2 : 1);
  constexpr int32_t kNextA = kHalves ? kSteps * kPfTileRows * 8 : 0;
  constexpr int32_t kNextSums = kHalves ? 0 : kPfBlock;
  const int32_t stride = kHalves ? kPfBlock : panels.count * kPfBlock;
  for (int32_t row = 0; row < m; row += kPfRows) {
    const auto* rows = a + row / kPfTileRows * kPfTileRows * kPfSlice + row % kPfTileRows * 8;
    float* to = npu::prefill::sums_at(sums, tail, row, stride);
    for (int32_t i = 0; i < panels.count; ++i, rows += kNextA, to += kNextSums) {
      for (int32_t first = 0; first < kPfBlock; first += kPfWidth) {
        multiply_part<kSteps>(rows, panels.of[i] + first, to + first, stride);
      }
    }
  }
}

// Of slice `slice` of the blocks, whose operands are numbered from `operand` on. False for blocks
// that floating point does not multiply exactly.
inline bool panels_of(uint32_t operand, const uint8_t* const* b, int32_t blocks, int32_t format,
                      int32_t slice, Panels* panels) {
  using npu::blocks::Format;
  const bool halves = format == int32_t(Format::kBf16);
  bool good = true;
  panels->count = halves ? 2 : blocks;
  for (int32_t i = 0; i < panels->count; ++i) {
    constexpr int32_t kEach = bf16_slice<0>::kSlices;
    const int32_t number = halves ? 2 * slice + i : slice;
    const int32_t object = halves ? number / kEach : i;
    const uint32_t at = operand + static_cast<uint32_t>(object);
    const int32_t* const panel = halves ? panel_of<bf16_slice>(at, b[object], number % kEach)
                                 : format == int32_t(Format::kQ4nx)
                                     ? panel_of<q4nx_slice>(at, b[object], number)
                                     : panel_of<q8_slice>(at, b[object], number);
    panels->of[i] = panel;
    good &= panel != nullptr;
  }
  return good;
}

// Slice `slice` of the blocks times the slice of A that is number `in_object` of its object. False,
// with the sums untouched, for operands that floating point does not multiply exactly.
inline bool prefill_multiply(const bfloat16* a, const uint8_t* const* b, float* sums, float* tail,
                             int32_t m, int32_t blocks, int32_t format, int32_t slice,
                             int32_t in_object) {
  const int32_t range = npu::prefill::range_columns(npu::blocks::Format(format)) / kPfSlice;
  const int32_t left = range - slice + in_object, most = npu::prefill::kRowSlots / m;
  const pf_packed* const rows = activations_of(a, m, in_object, left < most ? left : most);
  Panels panels;
  const bool good = panels_of(1, b, blocks, format, slice, &panels);
  if (rows == nullptr || !good) return false;
  if (format == int32_t(npu::blocks::Format::kBf16)) {
    multiply_panels<true>(rows, panels, sums, tail, m);
  } else if (!nothing(panels)) {
    multiply_panels<false>(rows, panels, sums, tail, m);
  }
  return true;
}

// A panel as what a core keeps of it in place of an expanded slice, in as many bytes: bfloat16
// [k][32]; npu2 per 8 columns 32 exponents, then mantissas [8][32], which hold it as exactly.
inline constexpr int32_t kPfKept = kPfBlock * kPfSlice * (kPfBlockFloat ? 9 : 16) / 8;

// `steps` of 8 columns each.
[[gnu::noinline]] inline void keep_panel(const int32_t* panel, int32_t steps, uint8_t* kept) {
  for (; steps > 0; --steps, panel += 8 / kPfPerLane * kPfBlock, kept += kPfKept / 4) {
    for (int32_t n = 0; n < kPfBlock; n += kLanes) {
      lanes columns[8];
      load_eight(panel + n, columns);
#if __AIE_ARCH__ >= 21
      lanes top{}, positive{};
      unroll<8>([&](auto i) {
        const lanes value = columns[i.value], magnitude = value & 0x7FFFFFFF;
        top = magnitude > top ? magnitude : top;
        positive = value > positive ? value : positive;
      });
      // A power of two below zero has mantissa -128, beside which others may have all their bits.
      const lanes lowest = ((top & 0x7FFFFF) == 0) & (positive < top);  // all bits, if so
      const lanes exponent = (top >> 23) + lowest;
      const auto scale = (float_lanes)((260 - exponent) << 23);  // to mantissas of seven bits
      store(__builtin_convertvector(exponent, simd<int8_t, kLanes>), kept + n);
      unroll<8>([&](auto i) {
        const auto mantissa = __builtin_convertvector((float_lanes)columns[i.value] * scale, lanes);
        store(__builtin_convertvector(mantissa, simd<int8_t, kLanes>),
              kept + (1 + int32_t(i.value)) * kPfBlock + n);
      });
#else
      unroll<8>([&](auto i) {
        const auto high = (simd<uint32_t, kLanes>)columns[i.value] >> 16;
        store(__builtin_convertvector(high, simd<uint16_t, kLanes>),
              kept + (int32_t(i.value) * kPfBlock + n) * 2);
      });
#endif
    }
  }
}

[[gnu::noinline]] inline void kept_panel(const uint8_t* kept, int32_t* panel) {
  for (int32_t step = 0; step < 4; ++step, kept += kPfKept / 4) {
    for (int32_t n = 0; n < kPfBlock; n += kLanes) {
      lanes columns[8];
#if __AIE_ARCH__ >= 21
      const lanes exponent = widen_bytes<kLanes>(kept + n);
      const auto unit = (float_lanes)((exponent > 6 ? exponent - 6 : lanes{}) << 23);
      unroll<8>([&](auto i) {
        const auto* const from = reinterpret_cast<const int8_t*>(kept);
        const lanes mantissa = widen_bytes<kLanes>(from + (1 + int32_t(i.value)) * kPfBlock + n);
        columns[i.value] = (lanes)(__builtin_convertvector(mantissa, float_lanes) * unit);
      });
#else
      unroll<8>([&](auto i) {
        const auto* const from = reinterpret_cast<const uint16_t*>(kept);
        columns[i.value] = (lanes)widen_bf16(from + int32_t(i.value) * kPfBlock + n);
      });
#endif
      store_eight(columns, panel + n);
    }
    panel += 8 / kPfPerLane * kPfBlock;
  }
}

// What was kept in the order of prefill_weights.h, for the loops that are not of this file.
inline void expand_kept(const uint8_t* kept, uint8_t* to) {
  for (int32_t step = 0; step < 4; ++step, kept += kPfKept / 4) {
    for (int32_t n = 0; n < kPfBlock; ++n) {
#if __AIE_ARCH__ >= 21  // [n / 16][k / 8][2][8][8], an exponent before eight
      uint8_t* const block = to + (((n / 16 * 4 + step) * 2 + n % 16 / 8) * 8 + n % 8) * 9;
      for (int32_t k = 0; k < 9; ++k) block[k] = kept[k * kPfBlock + n];
#else  // [n / 8][k / 8][2][8][4]
      const auto* const from = reinterpret_cast<const uint16_t*>(kept) + n;
      auto* const tile =
          reinterpret_cast<uint16_t*>(to) + ((n / 8 * 4 + step) * 2 + n % 8 / 4) * 32 + n % 4;
      for (int32_t k = 0; k < 8; ++k) tile[4 * k] = from[k * kPfBlock];
#endif
    }
  }
}

// Slice `slice` of the blocks, kept one row-block after the other. False for weights that panels do
// not hold.
inline bool prefill_keep(const uint8_t* const* b, int32_t blocks, int32_t format, int32_t slice,
                         uint8_t* kept) {
  Panels panels;
  if (!panels_of(0, b, blocks, format, slice, &panels)) return false;
  const bool halves = format == int32_t(npu::blocks::Format::kBf16);
  for (int32_t i = 0; i < panels.count; ++i) {
    if (halves) {
      keep_panel(panels.of[i], 2, kept + i * (kPfKept / 2));
    } else {
      keep_panel(panels.of[i], 4, kept + i * kPfKept);
    }
  }
  return true;
}

// The same as prefill_multiply() by a slice that was kept; `slices` of A's object count. False for
// an A that is refused.
inline bool prefill_finish(const bfloat16* a, const uint8_t* kept, float* sums, float* tail,
                           int32_t m, int32_t blocks, int32_t in_object, int32_t slices) {
  const pf_packed* const rows = activations_of(a, m, in_object, slices);
  if (rows == nullptr) return false;
  alignas(64) int32_t words[npu::prefill::kMaxBlocks][pf_panel(kPfSlice)];
  for (int32_t j = 0; j < blocks; ++j) kept_panel(kept + j * kPfKept, words[j]);
  const Panels panels{{words[0], words[1]}, blocks};
  if (!nothing(panels)) multiply_panels<false>(rows, panels, sums, tail, m);
  return true;
}

// Kept slices of row-blocks, in place, as they are expanded.
inline void prefill_expand_kept(uint8_t* kept, int32_t blocks) {
  for (int32_t j = 0; j < blocks; ++j, kept += kPfKept) {
    uint8_t copy[kPfKept];
    for (int32_t i = 0; i < kPfKept; ++i) copy[i] = kept[i];
    expand_kept(copy, kept);
  }
}

inline void prefill_scale(const bfloat16* a, float* store, float* tail, int32_t m, int32_t blocks) {
  const int32_t n = blocks * kPfBlock;
  for (int32_t row = 0; row < m; ++row) {
    constexpr int32_t kGroup = npu::prefill::kRows, kStep = npu::prefill::kOperandBytes / 2;
    float* const sums = npu::prefill::sums_at(store, tail, row, n);
    const auto factor = load<float>(a + row / kGroup * kStep + row % kGroup * 2);
    for (int32_t i = 0; i < n; ++i) sums[i] *= factor;
  }
}

// 8 rows of 32 columns as [8][32].
inline void prefill_piece(const float* first_sums, const float* tail, bfloat16* out, int32_t m,
                          int32_t blocks, int32_t number) {
  constexpr int32_t kPieceRows = npu::prefill::kRows;
  const int32_t n = blocks * kPfBlock, parts = m / kPieceRows;
  const int32_t first = number % parts * kPieceRows;
  const float* sums = npu::prefill::sums_at(first_sums, tail, first, n);
  sums += number / parts * kPfBlock;
  for (int32_t row = 0; row < kPieceRows; ++row, sums += n, out += kPfBlock) {
    unroll<kPfBlock / kLanes>([&](auto i) {
      constexpr int32_t kAt = i.value * kLanes;
      store(narrow_bf16<kLanes>(load<float_lanes>(sums + kAt)), out + kAt);
    });
  }
}

// The last of every 8 rows, as lines [32].
inline void prefill_wide_piece(const float* first_sums, const float* tail, float* out, int32_t m,
                               int32_t blocks, int32_t number) {
  constexpr int32_t kLines = npu::prefill::kWideLines, kPieceRows = npu::prefill::kRows;
  const int32_t n = blocks * kPfBlock, parts = m / kPieceRows;
  for (int32_t line = number * kLines; line < (number + 1) * kLines; ++line, out += kPfBlock) {
    const int32_t row = line % parts * kPieceRows + kPieceRows - 1;
    const float* from = npu::prefill::sums_at(first_sums, tail, row, n);
    from += line / parts * kPfBlock;
    for (int32_t i = 0; i < kPfBlock; ++i) out[i] = line < parts * blocks ? from[i] : 0;
  }
}

}  // namespace host
AIE_HOST_END
