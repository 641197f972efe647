// Attention of prompts in the `fast` builds (aie_kernels/prefill_attention.cc): the same arithmetic
// with sums in another order. npu2's operands are rounded to BFP16 as the core's are, queries once,
// keys and values once per object; products and sums are fp32.
//
// "Words" are fp32 or, with AVX512BF16, pairs of bfloat16 that vdpbf16ps multiplies (denormal
// factors and results count as zero). Orders of memory of their own, 8 rows r, h = 0 and 1:
//   queries  words [unit][word / 2][r][h] of a row's words: two scalars of k meet 16 lanes of q.
//            npu2 keeps their mantissas, int8, in that order, then an exponent per block,
//            [unit][dim / 8][r], in parts of kPartUnits units; npu1 bfloat16 pairs, or row-major
//   weights  pairs of positions [position / 2][row]
//   y        row-major, what exceeds the store elsewhere
#pragma once

#include "aie_kernels/prefill_job.h"
#include "attention.hpp"
#include "prefill_operand.hpp"

#define AIE_HOST_PREFILL_ATTENTION 1

AIE_HOST_BEGIN
namespace host {

namespace prefill = npu::prefill;

inline constexpr bool kPrefillRounds = __AIE_ARCH__ >= 21;
inline constexpr int32_t kPrefillUnits = prefill::kUnits, kUnitRows = prefill::kRows;
inline constexpr int32_t kPrefillRows = kPrefillUnits * kUnitRows, kPrefillDim = 256;
inline constexpr int32_t kPrefillElements = prefill::kAPayload / 2;
inline constexpr int32_t kQueryParts = 2, kPartUnits = kPrefillUnits / kQueryParts;
#if defined(__AVX512BF16__)
inline constexpr int32_t kPerWord = 2;  // elements
#else
inline constexpr int32_t kPerWord = 1;
#endif
using prefill_word = std::conditional_t<kPerWord == 2, uint32_t, float>;
using row8 = simd<float, 8>;
inline constexpr int32_t kExponent = 0x7F800000;  // field of an fp32
inline constexpr int32_t kHighBlock = 236 << 23;  // from here on rounding by a sum overflows
inline constexpr int32_t kUpper = static_cast<int32_t>(0xFFFF0000);

// Words of the even and the odd elements.
template <typename V>
AIE_HOST_INLINE bits_of<V> paired(V even, V odd) {
  const auto low = (bits_of<V>)((simd<uint32_t, sizeof(V) / 4>)even >> 16);
  return low | ((bits_of<V>)odd & kUpper);
}
// Of 2 N lanes, those with even (kFirst 0) or odd numbers.
template <int kFirst, typename V, int... I>
AIE_HOST_INLINE auto every_other(V v, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(v, v, (2 * I + kFirst)...);
}

// x to BFP16, in a block whose largest exponent is `top`, an fp32 exponent field (pack.hpp).
template <typename V>
AIE_HOST_INLINE V to_block(V x, bits_of<V> top) {
  const V magic = (V)((top + (17 << 23)) | 0x400000), max = (V)(top | 0x7E0000);
  const V rounded = (x + magic) - magic;
  return rounded > max ? max : rounded;
}

#if __AIE_ARCH__ >= 21

// 2^(exponent - 133); NaN for a block of infinities or NaN.
AIE_HOST_INLINE float block_unit(int32_t exponent) {
  return exponent == 255 ? __builtin_nanf("") : __builtin_ldexpf(1.0f, exponent - 133);
}

// An object that the loops below cannot round. `stride`: between a block's elements, 1 for rows of
// keys, head_dim for columns of values.
[[gnu::noinline]] inline void round_all(const bfloat16* from, int32_t stride, bfloat16* to) {
  for (int32_t i = 0; i < kPrefillElements / 8; ++i) {
    const int32_t at = i / stride * 8 * stride + i % stride;
    float values[8];
    int8_t mantissas[8];
    for (int32_t j = 0; j < 8; ++j) values[j] = from[at + j * stride];
    const float unit = block_unit(round_any(values, mantissas));
    for (int32_t j = 0; j < 8; ++j) {
      const float rounded = static_cast<float>(mantissas[j]) * unit;
      to[at + j * stride] = {static_cast<uint16_t>(__builtin_bit_cast(uint32_t, rounded) >> 16)};
    }
  }
}

// Words of rows, blocks of eight elements. False if a block is too large for this.
[[gnu::noinline]] inline bool round_keys(const bfloat16* k, prefill_word* out) {
#if defined(__AVX512BF16__)
  lanes high = {};
  for (int32_t i = 0; i < kPrefillElements / 2; i += kAttLanes) {
    const auto pairs = load<lanes>(reinterpret_cast<const uint32_t*>(k) + i);
    const att_floats even = even_of(pairs), odd = odd_of(pairs);
    lanes size = larger((lanes)even & 0x7FFFFFFF, (lanes)odd & 0x7FFFFFFF);
    size = larger(size, swapped<1>(size));
    size = larger(size, swapped<2>(size)) & kExponent;
    high = larger(high, size);
    store(paired(to_block(even, size), to_block(odd, size)), out + i);
  }
#else
  constexpr unsigned kWide = kLanes > 8 ? kLanes : 8;
  using V = simd<float, kWide>;
  simd<int32_t, kWide> high = {};
  for (int32_t i = 0; i < kPrefillElements; i += int32_t(kWide)) {
    const auto x = __builtin_convertvector(
                       load<simd<uint16_t, kWide>>(reinterpret_cast<const uint16_t*>(k) + i),
                       simd<int32_t, kWide>)
                   << 16;
    auto size = x & 0x7FFFFFFF;
    size = larger(size, swapped<1>(size));
    size = larger(size, swapped<2>(size));
    size = larger(size, swapped<4>(size)) & kExponent;
    high = larger(high, size);
    store(to_block((V)x, size), out + i);
  }
#endif
  bool good = true;
  for (unsigned i = 0; i < sizeof high / 4; ++i) good &= high[i] < kHighBlock;
  return good;
}

// Words of `positions` rows of values, blocks of eight positions: fp32 rows, or rows of pairs.
[[gnu::noinline]] inline bool round_values(const bfloat16* v, int32_t dim, prefill_word* out) {
  lanes high = {};
#if defined(__AVX512BF16__)
  pair_positions(v, kPrefillElements / dim, dim, out);
  for (int32_t p = 0; p < kPrefillElements / dim / 2; p += 4) {
    for (int32_t c = 0; c < dim; c += kAttLanes) {
      prefill_word* const at = out + p * dim + c;
      lanes pairs[4], size = {};
      unroll<4>([&](auto i) {
        pairs[i.value] = load<lanes>(at + int32_t(i.value) * dim);
        size =
            larger(size, larger((pairs[i.value] << 16) & 0x7FFFFFFF, pairs[i.value] & 0x7FFFFFFF));
      });
      size &= kExponent;
      high = larger(high, size);
      unroll<4>([&](auto i) {
        const lanes pair = pairs[i.value];
        store(paired(to_block(even_of(pair), size), to_block(odd_of(pair), size)),
              at + int32_t(i.value) * dim);
      });
    }
  }
#else
  for (int32_t p = 0; p < kPrefillElements / dim; p += 8) {
    for (int32_t c = 0; c < dim; c += kAttLanes) {
      const int32_t at = p * dim + c;
      lanes x[8], size = {};
      unroll<8>([&](auto i) {
        const auto* from = reinterpret_cast<const uint16_t*>(v) + at + int32_t(i.value) * dim;
        x[i.value] = __builtin_convertvector(load<simd<uint16_t, kLanes>>(from), lanes) << 16;
        size = larger(size, x[i.value] & 0x7FFFFFFF);
      });
      size &= kExponent;
      high = larger(high, size);
      unroll<8>([&](auto i) {
        store(to_block((att_floats)x[i.value], size), out + at + int32_t(i.value) * dim);
      });
    }
  }
#endif
  bool good = true;
  for (unsigned i = 0; i < kLanes; ++i) good &= high[i] < kHighBlock;
  return good;
}

// Place of element e of a block among the mantissas of its row's unit.
constexpr int32_t mantissa_at(int32_t row, int32_t e) {
  return kPerWord == 2 ? e / 4 * 32 + e % 2 * 16 + 2 * row + e / 2 % 2
                       : e / 2 * 16 + 2 * row + e % 2;
}

// q: [dim / 32][8][32]. unit: of the part `queries`.
inline void prefill_pack(const bfloat16* q, int32_t* queries, int32_t unit, int32_t dim) {
  auto* mantissas = reinterpret_cast<int8_t*>(queries) + unit * kUnitRows * dim;
  auto* exponents = reinterpret_cast<uint8_t*>(queries) + kPartUnits * kUnitRows * dim + unit * dim;
  for (int32_t block = 0; block < dim / 8; ++block, mantissas += 64, exponents += 8) {
    for (int32_t row = 0; row < kUnitRows; ++row) {
      uint8_t packed[9];
      operand_block(q + block / 4 * 256 + row * 32 + block % 4 * 8, packed);
      exponents[row] = packed[0];
      for (int32_t e = 0; e < 8; ++e) {
        mantissas[mantissa_at(row, e)] = static_cast<int8_t>(packed[1 + e]);
      }
    }
  }
}

// The words of the queries of a part.
[[gnu::noinline]] inline void unpack_queries(const int32_t* queries, int32_t dim,
                                             prefill_word* out) {
  const auto* mantissas = reinterpret_cast<const int8_t*>(queries);
  const auto* exponents = reinterpret_cast<const uint8_t*>(queries) + kPartUnits * kUnitRows * dim;
  const lanes none = {}, nan = none + 0x7FC00000;
  for (int32_t block = 0; block < kPartUnits * dim / 8; ++block, mantissas += 64) {
    const __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(exponents + 8 * block));
    alignas(16) uint8_t twice[16];
    store(_mm_unpacklo_epi8(eight, eight), twice);
    unroll<16 / kLanes>([&](auto v) {
      constexpr auto kFirst = static_cast<int32_t>(v.value * kLanes);
      const lanes exponent = widen_bytes<kLanes>(twice + kFirst);
      const lanes bits = exponent > 6 ? (exponent - 6) << 23 : none;
      const auto unit = (att_floats)(exponent == 255 ? nan : bits);
      att_floats x[4];
      unroll<4>([&](auto i) {
        const lanes mantissa = widen_bytes<kLanes>(mantissas + 16 * int32_t(i.value) + kFirst);
        x[i.value] = __builtin_convertvector(mantissa, att_floats) * unit;
      });
      prefill_word* const to = out + block * 64 / kPerWord + kFirst;
      if constexpr (kPerWord == 2) {
        store(paired(x[0], x[1]), to);
        store(paired(x[2], x[3]), to + 16);
      } else {
        unroll<4>([&](auto i) { store(x[i.value], to + 16 * int32_t(i.value)); });
      }
    });
  }
}

#else  // npu1: as they are

inline void prefill_pack(const bfloat16* q, int32_t* queries, int32_t unit, int32_t dim) {
  auto* const out = reinterpret_cast<bfloat16*>(queries) + unit * kUnitRows * dim;
  for (int32_t row = 0; row < kUnitRows; ++row) {
    for (int32_t e = 0; e < dim; ++e) {
      const int32_t word = e / kPerWord, lane = 2 * row + word % 2;
      out[(word / 2 * 16 + lane) * kPerWord + e % kPerWord] = q[e / 32 * 256 + row * 32 + e % 32];
    }
  }
}

#endif

inline constexpr int32_t kLanesPerUnit = 16;
inline constexpr unsigned kUnitVectors = kLanesPerUnit / kLanes;
inline constexpr int32_t kUnitsTogether = kSimdBytes == 64 ? 2 : 1;
static_assert(kPrefillUnits % kUnitsTogether == 0);
inline constexpr int32_t kKeysTogether = kSimdBytes == 64 ? 8 : kSimdBytes == 32 ? 4 : 2;

// sum += q k of a word's elements.
AIE_HOST_INLINE att_floats multiplied(att_floats sum, lanes q, lanes k) {
#if defined(__AVX512BF16__)
  return (att_floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)q, (__m512bh)k);
#else
  return sum + (att_floats)q * (att_floats)k;
#endif
}

// The scores [position][row] of kUnitsTogether units and kKeysTogether positions, `words` each.
AIE_HOST_INLINE void score_some(const prefill_word* k, const prefill_word* q, int32_t words,
                                float* scores) {
  att_floats sums[kKeysTogether][kUnitsTogether][kUnitVectors] = {};
  for (int32_t i = 0; i < words; i += 2) {
    lanes queries[kUnitsTogether][kUnitVectors];
    unroll<kUnitsTogether>([&](auto u) {
      unroll<kUnitVectors>([&](auto v) {
        queries[u.value][v.value] = load<lanes>(q + int32_t(u.value) * words * kUnitRows +
                                                i * kUnitRows + int32_t(v.value * kLanes));
      });
    });
    unroll<kKeysTogether>([&](auto j) {
      const auto two = load<uint64_t>(k + int32_t(j.value) * words + i);
      const auto key = (lanes)(simd<uint64_t, kLanes / 2>{} + two);
      unroll<kUnitsTogether>([&](auto u) {
        unroll<kUnitVectors>([&](auto v) {
          att_floats& sum = sums[j.value][u.value][v.value];
          sum = multiplied(sum, queries[u.value][v.value], key);
        });
      });
    });
  }
  unroll<kKeysTogether>([&](auto j) {
    unroll<kUnitsTogether>([&](auto u) {
      const auto& parts = sums[j.value][u.value];
      float* const to = scores + int32_t(j.value) * kPrefillRows + int32_t(u.value) * kUnitRows;
      constexpr std::make_integer_sequence<int, (kLanes < 8 ? kLanes : 8)> kNumbers;
      if constexpr (kUnitVectors == 1) {
        store(every_other<0>(parts[0], kNumbers) + every_other<1>(parts[0], kNumbers), to);
      } else {
        unroll<kUnitVectors / 2>([&](auto v) {
          const auto both = join<float, kLanes>(parts[2 * v.value], parts[2 * v.value + 1]);
          store(every_other<0>(both, kNumbers) + every_other<1>(both, kNumbers),
                to + int32_t(v.value * kLanes));
        });
      }
    });
  });
}

[[gnu::noinline]] inline void score_keys(const prefill_word* k, const prefill_word* q, int32_t dim,
                                         float* scores) {
  const int32_t words = dim / kPerWord, positions = kPrefillElements / dim;
  for (int32_t unit = 0; unit < kPrefillUnits; unit += kUnitsTogether) {
    for (int32_t p = 0; p < positions; p += kKeysTogether) {
      score_some(k + p * words, q + unit * kUnitRows * words, words,
                 scores + p * kPrefillRows + unit * kUnitRows);
    }
  }
}

// What a half of K changes: statistics per row, the weights of the half and of the first one, or
// null.
struct PrefillHalf {
  const int32_t* queries[kQueryParts];  // parts; npu1: all in the first
  float *maximum, *sum, *correction;
  uint32_t *weights, *first;
};

// A unit's scores to weights and statistics. from, end: keys that each row sees, counted from the
// half's first; from: null if all do.
AIE_HOST_INLINE void weigh_unit(float* scores, const PrefillHalf& half, int32_t unit,
                                int32_t positions, float scale, const int32_t* from,
                                const int32_t* end) {
  const int32_t first = unit * kUnitRows;
  const row8 zero = {}, nothing = zero - kAttInfinity;
  row8 best = zero + att::kNothing;
  const auto low = from != nullptr ? load<simd<int32_t, 8>>(from + first) : simd<int32_t, 8>{};
  const auto high = from != nullptr ? load<simd<int32_t, 8>>(end + first) : simd<int32_t, 8>{};
  for (int32_t p = 0; p < positions; ++p) {
    float* const at = scores + p * kPrefillRows + first;
    row8 s = load<row8>(at) * scale;
    if (from != nullptr) s = ((low <= p) & (high > p)) ? s : nothing;
    store(s, at);
    best = best < s ? s : best;
  }
  const auto before = load<row8>(half.maximum + first);
  const row8 up = rounded_up(best);
  const row8 top = before < up ? up : before;
  const row8 factor = correction_of(before - top);
  row8 total = load<row8>(half.sum + first) * factor;
  for (int32_t p = 0; p < positions; p += 8) {
    row8 weight[8];
    simd<int32_t, 8> size = {};
    unroll<8>([&](auto i) {
      row8 x = load<row8>(scores + (p + int32_t(i.value)) * kPrefillRows + first) - top;
      x = x > zero ? zero : x;  // a product may have been fused with the difference
      weight[i.value] = (row8)rounded_weight(power_of_two(x));
      size = larger(size, (simd<int32_t, 8>)weight[i.value]);
    });
    unroll<8>([&](auto i) {
      if constexpr (kPrefillRounds) weight[i.value] = to_block(weight[i.value], size & kExponent);
      total += weight[i.value];
    });
    unroll<4>([&](auto i) {
      store(paired(weight[2 * i.value], weight[2 * i.value + 1]),
            half.weights + (p / 2 + int32_t(i.value)) * kPrefillRows + first);
    });
  }
  store(top, half.maximum + first);
  store(total, half.sum + first);
  if (half.first == nullptr) {
    store(factor, half.correction + first);
    return;
  }
  store(load<row8>(half.correction + first) * factor, half.correction + first);
  for (int32_t p = 0; p < positions / 2; ++p) {
    uint32_t* const at = half.first + p * kPrefillRows + first;
    const auto pair = load<simd<int32_t, 8>>(at);
    store(paired((row8)(pair << 16) * factor, (row8)(pair & kUpper) * factor), at);
  }
}

// A half of K.
inline void prefill_score(const PrefillHalf& half, const bfloat16* k, int32_t dim, float scale,
                          const int32_t* from, const int32_t* end) {
  alignas(64) float scores[kPrefillElements / 64 * kPrefillRows];
  alignas(64) [[maybe_unused]] prefill_word queries[kPrefillRows * kPrefillDim / kPerWord];
  alignas(64) [[maybe_unused]] prefill_word keys[kPrefillElements / kPerWord];
  const prefill_word *q = queries, *words = keys;
#if __AIE_ARCH__ >= 21
  for (int32_t part = 0; part < kQueryParts; ++part) {
    unpack_queries(half.queries[part], dim,
                   queries + part * kPartUnits * kUnitRows * dim / kPerWord);
  }
  if (!round_keys(k, keys)) {
    alignas(64) bfloat16 rounded[kPrefillElements];
    round_all(k, 1, rounded);
    if constexpr (kPerWord == 2) {
      __builtin_memcpy(static_cast<void*>(keys), rounded, sizeof rounded);
    } else {
      widen_all(rounded, kPrefillElements, reinterpret_cast<float*>(keys));
    }
  }
#elif defined(__AVX512BF16__)
  q = reinterpret_cast<const prefill_word*>(half.queries[0]);
  words = reinterpret_cast<const prefill_word*>(k);
#else
  widen_all(reinterpret_cast<const bfloat16*>(half.queries[0]), kPrefillRows * dim, queries);
  widen_all(k, kPrefillElements, keys);
#endif
  score_keys(words, q, dim, scores);
  for (int32_t unit = 0; unit < kPrefillUnits; ++unit) {
    weigh_unit(scores, half, unit, kPrefillElements / dim, scale, from, end);
  }
}

// Sums of all rows, of which the store has the first ones.
struct PrefillSums {
  float *store, *tail;
  float* row(int32_t number, int32_t dim) const {
    const int32_t at = number * dim;
    return at < prefill::kStore ? store + at : tail + (at - prefill::kStore);
  }
};

// A half of V without weights: y = correction y.
inline void prefill_correct(const float* correction, int32_t dim, const PrefillSums& y) {
  for (int32_t row = 0; row < kPrefillRows; ++row) {
    if (correction[row] == 1.0f) continue;
    float* const sums = y.row(row, dim);
    for (int32_t c = 0; c < dim; ++c) sums[c] *= correction[row];
  }
}

// Words of values: rows of fp32, or of pairs of positions; positions outside [from, end) are zero.
inline void pack_values(const bfloat16* v, int32_t dim, int32_t from, int32_t end,
                        prefill_word* out) {
  const int32_t positions = kPrefillElements / dim;
  alignas(64) bfloat16 cut[kPrefillElements];
  if (from > 0 || end < positions) {
    for (int32_t i = 0; i < kPrefillElements; ++i) {
      cut[i] = i / dim >= from && i / dim < end ? v[i] : bfloat16{0};
    }
    v = cut;
  }
#if __AIE_ARCH__ >= 21
  if (round_values(v, dim, out)) return;
  alignas(64) bfloat16 rounded[kPrefillElements];
  round_all(v, dim, rounded);
  v = rounded;
#endif
#if defined(__AVX512BF16__)
  pair_positions(v, positions, dim, out);
#else
  widen_all(v, kPrefillElements, out);
#endif
}

// A half of V: y = correction y + weights v. No weights: nothing is seen; no correction: 1.
inline void prefill_add(const bfloat16* v, const uint32_t* weights, const float* correction,
                        int32_t dim, int32_t from, int32_t end, const PrefillSums& y) {
  if (weights == nullptr) {
    if (correction != nullptr) prefill_correct(correction, dim, y);
    return;
  }
  alignas(64) prefill_word values[kPrefillElements / kPerWord];
  pack_values(v, dim, from, end, values);
  const int32_t steps = kPrefillElements / dim / kPerWord;
#if defined(__AVX512BF16__)
  const uint32_t* const factors = weights;
#else
  alignas(64) float factors[kPrefillElements / 64 * kPrefillRows];
  for (int32_t i = 0; i < steps / 2; ++i) {
    for (int32_t row = 0; row < kPrefillRows; row += 8) {
      const auto pairs = load<simd<int32_t, 8>>(weights + i * kPrefillRows + row);
      store((row8)(pairs << 16), factors + 2 * i * kPrefillRows + row);
      store((row8)(pairs & kUpper), factors + (2 * i + 1) * kPrefillRows + row);
    }
  }
#endif
  float ones[kPrefillRows];
  for (float& one : ones) one = 1;
  const float* const by = correction != nullptr ? correction : ones;
  for (int32_t row = 0; row < kPrefillRows; row += 4) {
    add_columns_of<4, kPrefillRows>(values, factors + row, by + row, steps, dim, y.row(row, dim));
  }
}

}  // namespace host
AIE_HOST_END
