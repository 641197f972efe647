// Where a block of 4-bit weights has its planes and codes (aie_kernels/weight_block.h), and its
// codes as vectors. kMinima: whether it has a plane of minima (q4nx), or none (q4_0).
#pragma once

#include "aie_kernels/weight_block.h"
#include "format.hpp"
#include "simd.hpp"

AIE_HOST_BEGIN
namespace host {

inline constexpr int32_t kQ4Rows = npu::q4nx::kRows, kQ4Columns = npu::q4nx::kColumns;
inline constexpr int32_t kQ4Group = npu::q4nx::kGroup, kQ4HalfRows = 16;
inline constexpr int32_t kQ4Groups = npu::q4nx::kGroups;
inline constexpr int32_t kQ4Plane = npu::q4nx::kPlaneBytes;
inline constexpr int32_t kQ4HalfBytes = kQ4Columns * kQ4HalfRows / 2;
inline constexpr int32_t kQ4ColumnBytes = kQ4HalfRows / 2;  // of one half
template <bool kMinima>
inline constexpr int32_t kQ4Codes = npu::blocks::Int4Layout<kMinima>::kCodesAt;
template <bool kMinima>
inline constexpr int32_t kQ4Bytes = npu::blocks::Int4Layout<kMinima>::kSize;
template <bool kMinima>
inline constexpr int32_t kQ4Zero = npu::blocks::Int4Layout<kMinima>::kZero;

// kLanes bf16 as fp32.
AIE_HOST_INLINE float_lanes widen_bf16(const uint16_t* p) {
  const auto bits = __builtin_convertvector(load<simd<uint16_t, kLanes>>(p), lanes);
  return (float_lanes)(bits << 16);
}

// Rows First .. First + kLanes - 1 of one half's column of 16 codes, as fp32.
template <unsigned First>
AIE_HOST_INLINE float_lanes codes_of(const uint8_t* column) {
#if defined(__AVX512F__)
  // Even lanes have rows 0-7, odd lanes rows 8-15, four bits apart: put in order by the permute.
  const __m512i order = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
  const __m512i shift = _mm512_setr_epi32(0, 0, 4, 4, 8, 8, 12, 12, 16, 16, 20, 20, 24, 24, 28, 28);
  long long bytes;
  __builtin_memcpy(&bytes, column, 8);
  const __m512i codes =
      _mm512_and_si512(_mm512_srlv_epi32(_mm512_set1_epi64(bytes), shift), _mm512_set1_epi32(15));
  return (float_lanes)_mm512_cvtepi32_ps(_mm512_permutexvar_epi32(order, codes));
#else
  int32_t bytes = 0;
  __builtin_memcpy(&bytes, column + First / 2, kLanes / 2);  // not beyond the block
#if defined(__AVX2__)
  const __m256i shift = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
  const __m256i codes =
      _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(bytes), shift), _mm256_set1_epi32(15));
  return (float_lanes)_mm256_cvtepi32_ps(codes);
#else
  lanes out{};
  for (unsigned i = 0; i < kLanes; ++i) out[i] = bytes >> 4 * i & 15;
  return __builtin_convertvector(out, float_lanes);
#endif
#endif
}

AIE_HOST_INLINE float sum_of(float_lanes v) {
  float total = 0;
  for (unsigned i = 0; i < kLanes; ++i) total += v[i];
  return total;
}

// Where the lines of x and the sums of several vectors lie: one behind the other.
template <int32_t kColumns>
struct adjacent_vectors {
  const uint16_t* x;
  float* y;
  AIE_HOST_INLINE const uint16_t* line(int32_t v) const { return x + v * kColumns; }
  AIE_HOST_INLINE float* sums(int32_t v) const { return y + v * kQ4Rows; }
};
// The same where each lies anywhere.
struct separate_vectors {
  const bfloat16* const* x;
  float* const* y;
  AIE_HOST_INLINE const uint16_t* line(int32_t v) const {
    return reinterpret_cast<const uint16_t*>(x[v]);
  }
  AIE_HOST_INLINE float* sums(int32_t v) const { return y[v]; }
  separate_vectors from(int32_t v) const { return {x + v, y + v}; }
};

// body.operator()<n>(vectors) for all of them, kMost at a time, of the rest as many as possible.
template <int32_t kMost, typename Body>
AIE_HOST_INLINE void for_vectors(separate_vectors vectors, int32_t count, const Body& body) {
  for (; count >= kMost; count -= kMost) {
    body.template operator()<kMost>(vectors);
    vectors = vectors.from(kMost);
  }
  if constexpr (kMost > 1) for_vectors<kMost / 2>(vectors, count, body);
}

// Lines of x as fp32.
template <int32_t kVectors, int32_t kColumns, typename Vectors>
AIE_HOST_INLINE void widen_lines(const Vectors& vectors, float* wide) {
  static_assert(kColumns % int32_t(kLanes) == 0);
  for (int32_t v = 0; v < kVectors; ++v) {
    const uint16_t* const line = vectors.line(v);
    for (int32_t i = 0; i < kColumns; i += int32_t(kLanes)) {
      store(widen_bf16(line + i), wide + v * kColumns + i);
    }
  }
}

// The blocks that usually come next lie behind this one, in memory: part `part` of kParts of the
// next two is fetched into L2. A core waits for some 40 lines at a time and drops what is
// prefetched beyond that, so callers spread it over their work where they can, and every line is
// asked for at least twice: far enough ahead for memory to answer, and again if that was lost. Of
// small parts those that begin a larger one fetch all of it.
template <int64_t kBlockBytes, int32_t kParts>
AIE_HOST_INLINE void prefetch_ahead(const uint8_t* block, int32_t part) {
  constexpr int32_t kBytes = int32_t(kBlockBytes), kLine = 64, kFew = 128;
  constexpr int32_t kPerPrefetch = kParts < kFew ? 1 : kParts / kFew;
  constexpr int32_t kSize = kBytes * kPerPrefetch / kParts;
  static_assert(kBytes * kPerPrefetch % kParts == 0);
  if (part % kPerPrefetch != 0) return;
  const uint8_t* const at = block + part / kPerPrefetch * kSize;
  for (int32_t line = 0; line < kSize; line += kLine) {
    __builtin_prefetch(at + 2 * kBytes + line, 0, 2);
    __builtin_prefetch(at + kBytes + line, 0, 2);
  }
}
// Parts that nobody has asked for.
template <int64_t kBlockBytes, int32_t kParts>
AIE_HOST_INLINE void prefetch_rest(const uint8_t* block, int32_t first) {
  for (; first < kParts; ++first) prefetch_ahead<kBlockBytes, kParts>(block, first);
}

// Whether magnitudes from 2^112 on, infinities or NaNs are among so many bf16.
AIE_HOST_INLINE bool any_large(const uint16_t* x, int32_t count) {
  constexpr uint16_t kLarge = (127 + 112) << 7;
  uint16_t found = 0;
  for (int32_t i = 0; i < count; ++i) found |= (x[i] & 0x7FFF) >= kLarge;
  return found != 0;
}

// How many of a block's groups to multiply by these lines of x. The second half of the last block
// of a row may lie beyond the end of the matrix: where its scales and minima are all 0 it adds
// nothing, unless the sum of a group, up to 32 * 144 of the largest x, is not finite.
template <bool kMinima, int32_t kVectors>
AIE_HOST_INLINE int32_t q4_groups(const uint8_t* block, const uint16_t* const (&lines)[kVectors]) {
  constexpr int32_t kHalf = kQ4Groups / 2, kHalfPlane = kQ4Plane / 2;
  // Most blocks end with other scales.
  if (load<uint64_t>(block + kQ4Plane - 8) != 0) [[likely]]
    return kQ4Groups;
  uint64_t factors = 0;
  for (int32_t plane = 0; plane < (kMinima ? 2 : 1); ++plane) {
    const uint8_t* const second = block + plane * kQ4Plane + kHalfPlane;
    for (int32_t i = 0; i < kHalfPlane; i += 8) factors |= load<uint64_t>(second + i);
  }
  if (factors != 0) return kQ4Groups;
  for (const uint16_t* line : lines) {
    if (any_large(line + kHalf * kQ4Group, kHalf * kQ4Group)) return kQ4Groups;
  }
  return kHalf;
}

}  // namespace host
AIE_HOST_END
