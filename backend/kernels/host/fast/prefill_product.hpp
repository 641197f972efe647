// Products of the prefill configuration in the `fast` builds, in place of the loops of
// aie_kernels/prefill_product.cc: sums are row-major [m][32 blocks], in another order of additions.
//
// Weights become panels (prefill_panels.hpp). A keeps its layout; npu2's BFP16 becomes mantissas
// and exponents (block_pack.hpp). Both forms are made once for all cores that were sent an object;
// a core that shares with nobody makes what its slice needs.
#pragma once

#include "aie_kernels/prefill_job.h"
#include "prefill_panels.hpp"

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

template <Format kFormat>
AIE_HOST_INLINE const int32_t* panel_of(uint32_t operand, const uint8_t* block, int32_t slice) {
  using Slice = weight_slice<kFormat, 0>;
  constexpr auto kPack = &pack_slice<kFormat>;
  return packed_part<int32_t>(operand, reinterpret_cast<const void*>(kPack), Slice::kSlices, slice,
                              pf_panel(Slice::kColumns),
                              [&](int32_t i, int32_t* out) { return kPack(block, i, out); });
}
inline const int32_t* panel_of(uint32_t operand, const uint8_t* block, Format format,
                               int32_t slice) {
  switch (format) {
    case Format::kQ4nx:
      return panel_of<Format::kQ4nx>(operand, block, slice);
    case Format::kQ8:
      return panel_of<Format::kQ8>(operand, block, slice);
    case Format::kQ4_0:
      return panel_of<Format::kQ4_0>(operand, block, slice);
    case Format::kQ8_0:
      return panel_of<Format::kQ8_0>(operand, block, slice);
    case Format::kBf16:
      break;
  }
  return panel_of<Format::kBf16>(operand, block, slice);
}

// Of a slice of A, a row of tiles: elements of the packed form, and bytes.
inline constexpr int32_t kPfTiles = kPfSlice / 8 * kPfTile;
inline constexpr int32_t kPfTilesBytes =
    npu::prefill::kOperandBytes / npu::prefill::kRows * kPfTileRows;

// A row of a tile of A; those of the next eight columns are a tile further.
struct TileRow {
  const pf_packed* tile;
  int32_t row;
};
// Row `row` of a slice of A, which is stored one row of tiles after the other.
inline TileRow row_of(const pf_packed* a, int32_t row) {
  return {a + row / kPfTileRows * kPfTiles, row % kPfTileRows};
}

// Which rows of a slice of A are not all zeros: a prompt seldom fills its last rows, a batch has
// one of 8 (docs/prefill.md).
struct UsedRows {
  uint64_t bits[2] = {};  // row i: bit i % 64

  // A row of tiles, the first of whose rows is number `row`.
  AIE_HOST_INLINE void add(const pf_packed* tiles, int32_t row) {
    static_assert(npu::prefill::kRowSlots <= 128 && 64 % kPfTileRows == 0);
    bits[row / 64] |= used(tiles) << row % 64;
  }
  bool any() const { return (bits[0] | bits[1]) != 0; }
  // Of `count` rows from `first` on, a multiple of it.
  uint32_t of(int32_t first, int32_t count) const {
    return uint32_t(bits[first / 64] >> first % 64) & ((1u << count) - 1);
  }

 private:
  static uint64_t used(const pf_packed* tile) {
    constexpr uint64_t kZero = sizeof(pf_packed) == 1 ? 0x8080808080808080 : 0;  // 128 more
    constexpr unsigned kWords = kPfTileRows * sizeof(pf_packed), kRow = sizeof(pf_packed);
    simd<uint64_t, kWords> any{};
    for (int32_t step = 0; step < kPfSlice / 8; ++step) {
      any |= load<simd<uint64_t, kWords>>(tile + step * kPfTile) ^ kZero;
    }
    const uint32_t words = not_zero<kWords>(any);
    if constexpr (kRow == 1) return words;
    uint64_t rows = 0;
    for (unsigned row = 0; row < unsigned(kPfTileRows); ++row) {
      rows |= uint64_t{(words >> row * kRow & ((1u << kRow) - 1)) != 0} << row;
    }
    return rows;
  }
  // Bit by bit, which words are not 0.
  template <unsigned kWords>
  static uint32_t not_zero(const simd<uint64_t, kWords>& words) {
#if defined(__AVX512F__)
    if constexpr (kWords == 8) return _mm512_test_epi64_mask((__m512i)words, (__m512i)words);
#endif
    uint32_t bits = 0;
    for (unsigned word = 0; word < kWords; ++word) bits |= uint32_t{words[word] != 0} << word;
    return bits;
  }
};

struct Activations {
  const pf_packed* rows;  // null where they are refused
  UsedRows used;
};

// Slice `slice` of m rows of an object of A, but for rows of tiles whose bits are all zero: nobody
// reads these. False for operands that are too large or small.
[[gnu::noinline]] inline bool pack_activations(const bfloat16* a, int32_t slice, int32_t m,
                                               pf_packed* out, UsedRows& used) {
  const int32_t count = m / kPfTileRows;
  const auto* const tiles = reinterpret_cast<const uint8_t*>(a) + slice * count * kPfTilesBytes;
  bool good = true;
  for (int32_t first = 0, end = 0; first < count; first = end + 1) {
    for (end = first; end < count && !all_zero(tiles + end * kPfTilesBytes, kPfTilesBytes);) ++end;
    if (end == first) continue;
    const uint8_t* const in = tiles + first * kPfTilesBytes;
    pf_packed* const to = out + first * kPfTiles;
    const int32_t elements = (end - first) * kPfTileRows * kPfSlice;
#if __AIE_ARCH__ >= 21
    good &= pack_block_a<tile_of_blocks>(reinterpret_cast<const bfp16ebs8*>(in), elements, to);
#else
    pack_a(reinterpret_cast<const bfloat16*>(in), elements, to);
#endif
    for (int32_t i = first; i < end; ++i) used.add(out + i * kPfTiles, i * kPfTileRows);
  }
  return good;
}

// Slice `slice` of the `slices` of an object of A that count.
inline Activations activations_of(const bfloat16* a, int32_t m, int32_t slice, int32_t slices) {
  const int32_t packed = m / kPfTileRows * kPfTiles;
  if constexpr (!kPfBlockFloat && kPackedAsIs<bfloat16, pf_packed>) {
    Activations as_is{reinterpret_cast<const pf_packed*>(a) + slice * packed, {}};
    for (int32_t row = 0; row < m; row += kPfTileRows) {
      as_is.used.add(row_of(as_is.rows, row).tile, row);
    }
    return as_is;
  } else {
    constexpr int32_t kUsed = 64 / sizeof(pf_packed);  // behind a slice: UsedRows
    const auto pack = [&](int32_t i, pf_packed* out) {
      UsedRows used;
      const bool good = pack_activations(a, i, m, out, used);
      __builtin_memcpy(out + packed, &used, sizeof used);
      return good;
    };
    const pf_packed* const rows = packed_part<pf_packed>(
        0, reinterpret_cast<const void*>(&pack_activations), slices, slice, packed + kUsed, pack);
    if (rows == nullptr) return {nullptr, {}};
    return {rows, load<UsedRows>(rows + packed)};
  }
}

// Sums of kPfRows x kPfVectors stay in registers for the columns of a panel, steps of k; of rows
// that are few, kPfFewVectors.
#if __AIE_ARCH__ >= 21
inline constexpr int32_t kPfRows = kSumRows;
inline constexpr unsigned kPfVectors = kSumVectors;
inline constexpr unsigned kPfFewVectors = kSumRows == 1 ? kSumVectors / 2 : kSumVectors;
#else
inline constexpr int32_t kPfRows = kSimdBytes == 64 ? 8 : 4;
inline constexpr unsigned kPfVectors = 2, kPfFewVectors = kPfBlock / kLanes;
#endif

// Sums of kCount rows += eight columns of A times those of a panel. place(i): of row i of A.
template <unsigned kCount, unsigned kV, typename Place>
AIE_HOST_INLINE void multiply_eight(const Place& place, const int32_t* panel,
                                    float_lanes (&c)[kCount][kV]) {
#if __AIE_ARCH__ >= 21
  const block_columns<kV> columns(panel);
  unroll<kCount>([&](auto i) {
    const TileRow row = place(i);
    columns.multiply(row.tile, row.row, c[i.value]);
  });
#else
  unroll<8 / kPfPerLane>([&](auto q) {
    lanes w[kV];
    unroll<kV>([&](auto v) {
      w[v.value] = load<lanes>(panel + int32_t(q.value * kPfBlock + v.value * kLanes));
    });
    unroll<kCount>([&](auto i) {
      const TileRow row = place(i);
      const auto x = load<int32_t>(row.tile + row.row * 8 + int32_t(q.value) * kPfPerLane);
      unroll<kV>([&](auto v) {
        c[i.value][v.value] = pf_format::dot(c[i.value][v.value], x, w[v.value]);
      });
    });
  });
#endif
}

// The same of `steps` times eight columns, kV vectors of a panel's; sums(i): of row i.
template <unsigned kCount, unsigned kV, typename Place, typename Sums>
AIE_HOST_INLINE void multiply_rows(const Place& place, const int32_t* panel, int32_t steps,
                                   const Sums& sums) {
  float_lanes c[kCount][kV];
  unroll<kCount>([&](auto i) {
    unroll<kV>([&](auto v) {
      c[i.value][v.value] = load<float_lanes>(sums(i) + int32_t(v.value * kLanes));
    });
  });
  for (int32_t step = 0; step < steps; ++step, panel += kPfEight) {
    const auto of_step = [&](auto i) {
      const TileRow row = place(i);
      return TileRow{row.tile + step * kPfTile, row.row};
    };
    multiply_eight(of_step, panel, c);
  }
  unroll<kCount>([&](auto i) {
    unroll<kV>([&](auto v) { store(c[i.value][v.value], sums(i) + int32_t(v.value * kLanes)); });
  });
}

// Panels of a slice: one of each row-block; of bfloat16 one of each half of its columns.
struct Panels {
  static_assert(npu::prefill::kMaxBlocks == 2 &&
                kPfSlice == 2 * weight_slice<Format::kBf16, 0>::kColumns);
  const int32_t* of[2];
  int32_t count;
};

// Of whole slices: the columns that pad a width.
AIE_HOST_INLINE bool nothing(const Panels& panels) {
  for (int32_t i = 0; i < panels.count; ++i) {
    if (!all_zero(panels.of[i])) return false;
  }
  return true;
}

// Sums of all row-blocks [m][32 blocks], += A W; `tail`: as sums_at() has it.
template <bool kHalves>
[[gnu::noinline]] inline void multiply_panels(const Activations& a, const Panels& panels,
                                              float* sums, float* tail, int32_t m) {
  static_assert(npu::prefill::kRows % kPfRows == 0);  // which follow each other
  static_assert(kPfRows % kPfTileRows == 0 || kPfTileRows % kPfRows == 0);
  constexpr int32_t kSteps = kPfSlice / 8 / (kHalves ? 2 : 1);
  constexpr int32_t kNextA = kHalves ? kSteps * kPfTile : 0;
  constexpr int32_t kNextSums = kHalves ? 0 : kPfBlock;
  const int32_t stride = kHalves ? kPfBlock : panels.count * kPfBlock;
  const auto sums_of = [&](int32_t row) { return npu::prefill::sums_at(sums, tail, row, stride); };
  int32_t few[npu::prefill::kRowSlots / 2], few_count = 0;  // where most rows beside are zeros
  constexpr int32_t kGroupRows = kPfRows < kPfTileRows ? kPfTileRows : kPfRows;
  // A group in which a row of tiles is not packed is among the few.
  static_assert(kGroupRows <= 2 * kPfTileRows);
  for (int32_t together = 0; together < m; together += kGroupRows) {
    uint32_t used = a.used.of(together, kGroupRows);
    if (2 * __builtin_popcount(used) <= kGroupRows) {
      for (; used != 0; used &= used - 1) few[few_count++] = together + __builtin_ctz(used);
      continue;
    }
    for (int32_t row = together; row < together + kGroupRows; row += kPfRows) {
      const TileRow first = row_of(a.rows, row);
      float* const first_sums = sums_of(row);
      for (int32_t i = 0; i < panels.count; ++i) {
        for (int32_t column = 0; column < kPfBlock; column += kPfVectors * kLanes) {
          const auto place = [&](auto j) {
            const TileRow next = row_of(first.tile + i * kNextA, int32_t(j.value));
            return TileRow{next.tile, (kPfRows < kPfTileRows ? first.row : 0) + next.row};
          };
          float* const from = first_sums + i * kNextSums + column;
          const auto to = [&](auto j) { return from + int32_t(j.value) * stride; };
          multiply_rows<kPfRows, kPfVectors>(place, panels.of[i] + column, kSteps, to);
        }
      }
    }
  }
  // Two at a time, whose sums do not wait for each other; the last one of an odd number alone.
  for (int32_t n = 0; n < few_count; n += 2) {
    const bool alone = n + 1 == few_count;
    const int32_t two[2] = {few[n], few[alone ? n : n + 1]};
    const TileRow rows[2] = {row_of(a.rows, two[0]), row_of(a.rows, two[1])};
    float* to[2] = {sums_of(two[0]), sums_of(two[1])};
    for (int32_t i = 0; i < panels.count; ++i, to[0] += kNextSums, to[1] += kNextSums) {
      const auto place = [&](auto j) {
        return TileRow{rows[j.value].tile + i * kNextA, rows[j.value].row};
      };
      for (int32_t column = 0; column < kPfBlock; column += kPfFewVectors * kLanes) {
        const auto sums_to = [&](auto j) { return to[j.value] + column; };
        if (alone) {
          multiply_rows<1, kPfFewVectors>(place, panels.of[i] + column, kSteps, sums_to);
        } else {
          multiply_rows<2, kPfFewVectors>(place, panels.of[i] + column, kSteps, sums_to);
        }
      }
    }
  }
}

// Of slice `slice` of the blocks, whose operands are numbered from `operand` on. False for blocks
// too large or small for sums of blocks to be exact.
inline bool panels_of(uint32_t operand, const uint8_t* const* b, int32_t blocks, int32_t format,
                      int32_t slice, Panels* panels) {
  const bool halves = format == int32_t(Format::kBf16);
  bool good = true;
  panels->count = halves ? 2 : blocks;
  for (int32_t i = 0; i < panels->count; ++i) {
    constexpr int32_t kEach = weight_slice<Format::kBf16, 0>::kSlices;
    const int32_t number = halves ? 2 * slice + i : slice;
    const int32_t object = halves ? number / kEach : i;
    const uint32_t at = operand + static_cast<uint32_t>(object);
    const int32_t own = halves ? number % kEach : slice;
    panels->of[i] = panel_of(at, b[object], Format(format), own);
    good &= panels->of[i] != nullptr;
  }
  return good;
}

// Slice `slice` of the blocks times the slice of A that is number `in_object` of its object. False,
// with the sums untouched, for operands that are too large or small; weights are not looked at
// where all rows are zeros.
inline bool prefill_multiply(const bfloat16* a, const uint8_t* const* b, float* sums, float* tail,
                             int32_t m, int32_t blocks, int32_t format, int32_t slice,
                             int32_t in_object) {
  const int32_t range = npu::prefill::range_columns(Format(format)) / kPfSlice;
  const int32_t left = range - slice + in_object, most = npu::prefill::kRowSlots / m;
  const Activations rows = activations_of(a, m, in_object, left < most ? left : most);
  if (rows.rows != nullptr && !rows.used.any()) return true;
  Panels panels;
  const bool good = panels_of(1, b, blocks, format, slice, &panels);
  if (rows.rows == nullptr || !good) return false;
  if (format == int32_t(Format::kBf16)) {
    multiply_panels<true>(rows, panels, sums, tail, m);
  } else if (!nothing(panels)) {
    multiply_panels<false>(rows, panels, sums, tail, m);
  }
  return true;
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
  const bool halves = format == int32_t(Format::kBf16);
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
  const Activations rows = activations_of(a, m, in_object, slices);
  if (rows.rows == nullptr) return false;
  if (!rows.used.any()) return true;
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
