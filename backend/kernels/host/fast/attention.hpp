// Attention in the `fast` builds (aie_kernels/attention.cc): the same arithmetic with sums in
// another order. Queries are lanes while keys are scored, elements of a row while values are added.
//
// Orders of memory of their own:
//   q        [head_dim / 2][32 rows][2], pairs of bfloat16; row-major where rows are few, whose
//            scores have elements of a row in the lanes
//   weights  [positions / 2][32 rows][2]
//   y        row-major
// With AVX512BF16 pairs are multiplied by vdpbf16ps (denormal factors and results count as zero),
// without it in fp32.
#pragma once

#include "aie_kernels/attention.h"
#include "pack.hpp"

#define AIE_HOST_ATTENTION 1

AIE_HOST_BEGIN
namespace host {

namespace att = npu::attention;
using att_floats = simd<float, kLanes>;

inline constexpr int32_t kAttRows = att::kRows, kAttElements = att::kPartBytes / 2;
inline constexpr int32_t kAttLanes = static_cast<int32_t>(kLanes);
inline constexpr int32_t kCorrectionAt = att::kWeightBytes / 4;
inline constexpr float kAttInfinity = __builtin_inff();

inline constexpr int32_t kFewRows = 8, kTogether = 4;  // rows and positions scored side by side
inline bool is_few(const att::Record& r) {
  return r.rows <= (r.head_dim == att::kMaxDim ? kFewRows : kTogether);
}

inline void pack_queries(bfloat16* q, const att::Record& r) {
  if (is_few(r)) {
    const int32_t padded = (r.rows + kTogether - 1) / kTogether * kTogether;
    __builtin_memset(q + r.rows * r.head_dim, 0,
                     static_cast<size_t>((padded - r.rows) * r.head_dim) * sizeof *q);
    return;
  }
  alignas(64) uint32_t pairs[att::kMaxDim / 2 * kAttRows];
  const int32_t half = r.head_dim / 2;
  for (int32_t i = 0; i < half; ++i) {
    for (int32_t row = 0; row < kAttRows; ++row) {
      uint32_t pair = 0;
      if (row < r.rows) __builtin_memcpy(&pair, q + row * r.head_dim + 2 * i, 4);
      pairs[i * kAttRows + row] = pair;
    }
  }
  __builtin_memcpy(q, pairs, static_cast<size_t>(half) * kAttRows * 4);
}

// bfloat16 as fp32.
inline void widen_all(const bfloat16* from, int32_t count, float* to) {
  for (int32_t i = 0; i < count; i += kAttLanes) {
    const auto bits = __builtin_convertvector(
        load<simd<uint16_t, kLanes>>(reinterpret_cast<const uint16_t*>(from) + i), lanes);
    store((att_floats)(bits << 16), to + i);
  }
}
AIE_HOST_INLINE att_floats even_of(lanes pairs) { return (att_floats)(pairs << 16); }
AIE_HOST_INLINE att_floats odd_of(lanes pairs) {
  return (att_floats)(pairs & static_cast<int32_t>(0xFFFF0000));
}

inline constexpr int32_t kAttPositions = kSimdBytes == 64 ? 8 : 4;  // scored at a time

// scores [positions][32] of kCount vectors of rows from row `first` on. k: fp32, or pairs.
template <int32_t kCount, typename Key>
[[gnu::noinline]] inline void score_rows(const Key* k, const uint32_t* q, int32_t dim,
                                         float* scores) {
  const int32_t positions = att::positions_of(dim), half = dim / 2;
  for (int32_t p = 0; p < positions; p += kAttPositions) {
    att_floats sums[kAttPositions][kCount] = {};
    for (int32_t i = 0; i < half; ++i) {
      lanes pairs[kCount];
      unroll<kCount>([&](auto v) {
        pairs[v.value] = load<lanes>(q + i * kAttRows + int32_t(v.value * kLanes));
      });
      unroll<kAttPositions>([&](auto j) {
        const int32_t row = p + int32_t(j.value);
#if defined(__AVX512BF16__)
        const __m512bh key = (__m512bh)_mm512_set1_epi32(static_cast<int>(k[row * half + i]));
        unroll<kCount>([&](auto v) {
          sums[j.value][v.value] = (att_floats)_mm512_dpbf16_ps((__m512)sums[j.value][v.value],
                                                                (__m512bh)pairs[v.value], key);
        });
#else
        const float even = k[row * dim + 2 * i], odd = k[row * dim + 2 * i + 1];
        unroll<kCount>([&](auto v) {
          sums[j.value][v.value] += even_of(pairs[v.value]) * even;
          sums[j.value][v.value] += odd_of(pairs[v.value]) * odd;
        });
#endif
      });
    }
    unroll<kAttPositions>([&](auto j) {
      unroll<kCount>([&](auto v) {
        store(sums[j.value][v.value],
              scores + (p + int32_t(j.value)) * kAttRows + int32_t(v.value * kLanes));
      });
    });
  }
}

template <unsigned N>
AIE_HOST_INLINE float sum_of_lanes(simd<float, N> v) {
  if constexpr (N == 1) {
    return v[0];
  } else {
    return sum_of_lanes<N / 2>(part<N / 2, 0>(v) + part<N / 2, N / 2>(v));
  }
}

// scores [positions][32] of a few rows. k and q: fp32, or with AVX512BF16 pairs.
template <typename Element>
[[gnu::noinline]] inline void score_few(const Element* k, const Element* q, int32_t rows,
                                        int32_t dim, float* scores) {
  constexpr int32_t kPerLane = std::is_same_v<Element, float> ? 1 : 2;
  const int32_t width = dim / kPerLane, positions = att::positions_of(dim);
  for (int32_t row = 0; row < rows; row += kTogether) {
    for (int32_t p = 0; p < positions; p += kTogether) {
      att_floats sums[kTogether][kTogether] = {};
      const Element *keys = k + p * width, *queries = q + row * width;
      for (int32_t i = 0; i < width; i += kAttLanes) {
        unroll<kTogether>([&](auto j) {
          const auto key = load<simd<Element, kLanes>>(keys + int32_t(j.value) * width + i);
          unroll<kTogether>([&](auto r) {
            const auto query = load<simd<Element, kLanes>>(queries + int32_t(r.value) * width + i);
            att_floats& sum = sums[j.value][r.value];
#if defined(__AVX512BF16__)
            sum = (att_floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)key, (__m512bh)query);
#else
            sum += key * query;
#endif
          });
        });
      }
      unroll<kTogether>([&](auto j) {
        unroll<kTogether>([&](auto r) {
          scores[(p + int32_t(j.value)) * kAttRows + row + int32_t(r.value)] =
              sum_of_lanes<kLanes>(sums[j.value][r.value]);
        });
      });
    }
  }
}

// Below, V: a vector of floats.
template <typename V>
using bits_of = simd<int32_t, sizeof(V) / 4>;

// 2^x for x <= 0: a polynomial of degree 5 with relative error below 1e-7; 0 below 2^-126.
template <typename V>
AIE_HOST_INLINE V power_of_two(V x) {
  constexpr float kWhole = 12582912.0f;  // leaves a whole number
  const V zero = {}, least = zero - 127.0f;
  const V y = x < least ? least : x;  // NaNs stay
  const V whole = y + kWhole;
  const V f = y - (whole - kWhole);
  V p = 0.0013276472f * f + 0.009675541f;
  p = p * f + 0.05550713f;
  p = p * f + 0.2402212f;
  p = p * f + 0.69314694f;
  p = p * f + 1.0f;
  p = (V)((bits_of<V>)p + ((bits_of<V>)whole << 23));
  return (y < -126.0f ? zero : p) + (f - f);
}

// 2^moved of whole numbers up to 0.
template <typename V>
AIE_HOST_INLINE V correction_of(V moved) {
  const V zero = {};
  const bits_of<V> exponent = ((bits_of<V>)(moved + 12582912.0f) + 127) << 23;
  return moved >= -126.0f ? (V)exponent : zero;
}

template <typename V>
AIE_HOST_INLINE V rounded_up(V x) {
  const V zero = {};
  const V magic = x < 0.0f ? zero - 0x1p23f : zero + 0x1p23f;
  const V nearest = (x + magic) - magic;
  const V whole = nearest < x ? nearest + 1.0f : nearest;
  return ((x < 0x1p23f) & (x > -0x1p23f)) ? whole : x;
}

// bfloat16 of weights in [0, 1], or NaN, in the upper halves of lanes.
template <typename V>
AIE_HOST_INLINE bits_of<V> rounded_weight(V x) {
  const auto bits = (bits_of<V>)x;
  return (bits + 0x7FFF + ((bits >> 16) & 1)) & static_cast<int32_t>(0xFFFF0000);
}

// A vector of rows from `first` on: scores to weights and statistics.
inline void weigh_rows(float* scores, const att::Record& r, int32_t first, bool masked,
                       const int32_t* from, const int32_t* end, float* maximum, float* sum,
                       float* f) {
  const int32_t positions = att::positions_of(r.head_dim);
  const float scale = __builtin_bit_cast(float, r.scale);
  att_floats best = splat<float, kLanes>(att::kNothing);
  const lanes low = masked ? load<lanes>(from + first) : lanes{};
  const lanes high = masked ? load<lanes>(end + first) : lanes{};
  const att_floats nothing = splat<float, kLanes>(-kAttInfinity);
  for (int32_t p = 0; p < positions; ++p) {
    float* const at = scores + p * kAttRows + first;
    att_floats s = load<att_floats>(at) * scale;
    if (masked) {
      const lanes here = splat<int32_t, kLanes>(p);
      s = ((here >= low) & (here < high)) ? s : nothing;
    }
    store(s, at);
    best = best < s ? s : best;
  }
  const auto before = load<att_floats>(maximum + first);
  const att_floats up = rounded_up(best);
  const att_floats top = before < up ? up : before;
  const att_floats correction = correction_of(before - top), zero = {};
  att_floats total = load<att_floats>(sum + first) * correction;
  auto* const weights = reinterpret_cast<int32_t*>(f);
  for (int32_t p = 0; p < positions; p += 2) {
    lanes pair[2];
    unroll<2>([&](auto i) {
      att_floats x = load<att_floats>(scores + (p + int32_t(i.value)) * kAttRows + first) - top;
      x = x > zero ? zero : x;  // a product may have been fused with the difference
      pair[i.value] = rounded_weight(power_of_two(x));
      total += (att_floats)pair[i.value];
    });
    const lanes even = (lanes)((simd<uint32_t, kLanes>)pair[0] >> 16);
    store(even | pair[1], weights + p / 2 * kAttRows + first);
  }
  store(top, maximum + first);
  store(total, sum + first);
  store(correction, f + kCorrectionAt + first);
  store(top, f + kCorrectionAt + kAttRows + first);
  store(total, f + kCorrectionAt + 2 * kAttRows + first);
}

// A chunk's scores: f, and the rows' maxima and sums. from, end: keys that each row sees, counted
// from the chunk's first.
inline void attention_scores(const bfloat16* k, const bfloat16* q, float* f, const att::Record& r,
                             bool masked, const int32_t* from, const int32_t* end, float* maximum,
                             float* sum) {
  alignas(64) float scores[kAttElements / 64 * kAttRows];
  const auto* pairs = reinterpret_cast<const uint32_t*>(q);
#if defined(__AVX512BF16__)
  const auto* keys = reinterpret_cast<const uint32_t*>(k);
#else
  alignas(64) float keys[kAttElements];
  widen_all(k, kAttElements, keys);
#endif
  const int32_t vectors = (r.rows + kAttLanes - 1) / kAttLanes;
  if (is_few(r)) {
#if defined(__AVX512BF16__)
    score_few(keys, pairs, r.rows, r.head_dim, scores);
#else
    alignas(64) float queries[kFewRows * att::kMaxDim];
    const int32_t padded = (r.rows + kTogether - 1) / kTogether * kTogether;
    widen_all(q, padded * r.head_dim, queries);
    score_few(static_cast<const float*>(keys), queries, r.rows, r.head_dim, scores);
#endif
  }
  for (int32_t v = 0; !is_few(r) && v < vectors; v += 2) {
    const int32_t first = v * kAttLanes;
    if (v + 1 < vectors) {
      score_rows<2>(keys, pairs + first, r.head_dim, scores + first);
    } else {
      score_rows<1>(keys, pairs + first, r.head_dim, scores + first);
    }
  }
  for (int32_t v = 0; v < vectors; ++v) {
    weigh_rows(scores, r, v * kAttLanes, masked, from, end, maximum, sum, f);
  }
}

inline constexpr int32_t kAttColumns = kSimdBytes == 64 ? 4 : 2;  // vectors of y at a time

// y = correction y + weights v for kCount rows and kAttColumns vectors of them. v: [position]
// [stride] fp32, or with AVX512BF16 [position / 2][stride] pairs; weights likewise, kStride apart.
template <int32_t kCount, int32_t kStride, typename Value>
AIE_HOST_INLINE void add_rows(const Value* v, int32_t stride, const Value* weights,
                              const float* correction, int32_t steps, int32_t dim, float* y) {
  att_floats sums[kCount][kAttColumns];
  unroll<kCount>([&](auto i) {
    unroll<kAttColumns>([&](auto c) {
      sums[i.value][c.value] =
          load<att_floats>(y + int32_t(i.value) * dim + int32_t(c.value * kLanes)) *
          correction[i.value];
    });
  });
  for (int32_t p = 0; p < steps; ++p, v += stride, weights += kStride) {
#if defined(__AVX512BF16__)
    __m512bh values[kAttColumns];
    unroll<kAttColumns>(
        [&](auto c) { values[c.value] = (__m512bh)_mm512_loadu_si512(v + c.value * kLanes); });
    unroll<kCount>([&](auto i) {
      const auto weight = (__m512bh)_mm512_set1_epi32(static_cast<int>(weights[i.value]));
      unroll<kAttColumns>([&](auto c) {
        sums[i.value][c.value] =
            (att_floats)_mm512_dpbf16_ps((__m512)sums[i.value][c.value], values[c.value], weight);
      });
    });
#else
    att_floats values[kAttColumns];
    unroll<kAttColumns>([&](auto c) { values[c.value] = load<att_floats>(v + c.value * kLanes); });
    unroll<kCount>([&](auto i) {
      const float weight = weights[i.value];
      unroll<kAttColumns>([&](auto c) { sums[i.value][c.value] += values[c.value] * weight; });
    });
#endif
  }
  unroll<kCount>([&](auto i) {
    unroll<kAttColumns>([&](auto c) {
      store(sums[i.value][c.value], y + int32_t(i.value) * dim + int32_t(c.value * kLanes));
    });
  });
}

template <int32_t kCount, int32_t kStride = kAttRows, typename Value>
[[gnu::noinline]] inline void add_columns_of(const Value* v, const Value* weights,
                                             const float* correction, int32_t steps, int32_t dim,
                                             float* y) {
  for (int32_t c = 0; c < dim; c += kAttColumns * kAttLanes) {
    add_rows<kCount, kStride>(v + c, dim, weights, correction, steps, dim, y + c);
  }
}

#if defined(__AVX512BF16__)
// Of 32 elements of two positions: pairs of the first and of the last 16.
struct PairOrder {
  alignas(64) uint16_t at[64];
};
inline constexpr PairOrder kPairOrder = [] {
  PairOrder order{};
  for (int i = 0; i < 64; ++i) order.at[i] = static_cast<uint16_t>(i / 2 + i % 2 * 32);
  return order;
}();

// Pairs of positions [position / 2][dim] of rows of values.
AIE_HOST_INLINE void pair_positions(const bfloat16* v, int32_t positions, int32_t dim,
                                    uint32_t* values) {
  const auto* words = reinterpret_cast<const uint16_t*>(v);
  const __m512i first = _mm512_load_si512(kPairOrder.at);
  const __m512i last = _mm512_load_si512(kPairOrder.at + 32);
  for (int32_t p = 0; p < positions; p += 2) {
    for (int32_t c = 0; c < dim; c += 2 * kAttLanes) {
      const __m512i near = _mm512_loadu_si512(words + p * dim + c);
      const __m512i far = _mm512_loadu_si512(words + (p + 1) * dim + c);
      uint32_t* const to = values + p / 2 * dim + c;
      _mm512_store_si512(to, _mm512_permutex2var_epi16(near, first, far));
      _mm512_store_si512(to + kAttLanes, _mm512_permutex2var_epi16(near, last, far));
    }
  }
}
#endif

inline void attention_values(const bfloat16* v, const float* f, float* y, const att::Record& r) {
  const int32_t dim = r.head_dim, positions = att::positions_of(dim);
#if defined(__AVX512BF16__)
  alignas(64) uint32_t values[kAttElements / 2];
  pair_positions(v, positions, dim, values);
  const auto* weights = reinterpret_cast<const uint32_t*>(f);
  const int32_t steps = positions / 2;
#else
  alignas(64) float values[kAttElements], weights[kAttElements / 64 * kAttRows];
  widen_all(v, kAttElements, values);
  for (int32_t i = 0; i < positions / 2; ++i) {
    for (int32_t row = 0; row < kAttRows; row += kAttLanes) {
      const auto pairs = load<lanes>(f + i * kAttRows + row);
      store(even_of(pairs), weights + 2 * i * kAttRows + row);
      store(odd_of(pairs), weights + (2 * i + 1) * kAttRows + row);
    }
  }
  const int32_t steps = positions;
#endif
  const float* correction = f + kCorrectionAt;
  int32_t row = 0;
  for (; row + 4 <= r.rows; row += 4) {
    add_columns_of<4>(values, weights + row, correction + row, steps, dim, y + row * dim);
  }
  for (; row < r.rows; ++row) {
    add_columns_of<1>(values, weights + row, correction + row, steps, dim, y + row * dim);
  }
}

}  // namespace host
AIE_HOST_END
