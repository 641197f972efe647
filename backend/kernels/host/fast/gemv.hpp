// Blocks of 8-bit and bfloat16 weights times vectors in the `fast` builds: exact fp32 factors, sums
// in another order than the kernels' own forms (aie_kernels/gemv_q8.h, gemv_bf16.h). Blocks of
// 4-bit weights have their own file.
#pragma once

#include "aie_kernels/weight_block.h"
#include "q4nx.hpp"
#include "simd.hpp"

#define AIE_HOST_GEMV aie::host::gemv_block
#define AIE_HOST_GEMV_JOINT aie::host::gemv_joint
#define AIE_HOST_LARGEST_ORDER aie::host::largest_order

AIE_HOST_BEGIN
namespace host {

inline constexpr int32_t kBlockRows = npu::blocks::kRows;
inline constexpr int32_t kBf16Columns = npu::blocks::bf16::kColumns;

template <npu::blocks::Format kFormat>
using int8_layout =
    std::conditional_t<kFormat == npu::blocks::Format::kQ8, npu::blocks::q8, npu::blocks::q8_0>;

// kLanes int8 as fp32.
AIE_HOST_INLINE float_lanes widen_int8(const int8_t* p) {
  return __builtin_convertvector(widen_bytes<kLanes>(p), float_lanes);
}

// Rows of a pass over a block's columns: one or two vectors, so that all sums stay in registers.
inline constexpr int32_t kMostSums = kSimdBytes == 64 ? 16 : 8;
template <int32_t kVectors, int32_t kParts>
inline constexpr unsigned kPassVectors = 2 * kVectors * kParts > kMostSums ? 1 : 2;
template <int32_t kVectors, int32_t kParts>
inline constexpr int32_t kPassRows = int32_t(kPassVectors<kVectors, kParts> * kLanes);
static_assert(kBlockRows % (2 * int32_t(kLanes)) == 0);

// Sums of a vector in a core: few vectors have several, because a product has to wait for the one
// before it.
constexpr int32_t parts_of(int32_t vectors) { return vectors <= 2 ? 2 : 1; }

// The parts from `first` on of prefetch_ahead(). No lambda: GCC takes one that only prefetches for
// one that does nothing.
template <int64_t kBlockBytes, int32_t kBlockParts>
struct prefetches {
  const uint8_t* block;
  int32_t first;
  AIE_HOST_INLINE void operator()(int32_t part) const {
    prefetch_ahead<kBlockBytes, kBlockParts>(block, first + part);
  }
};

// out = columns [0, kColumns) of a pass, times the vectors' factors, added up; ahead(i) before the
// i-th kParts of them.
template <int32_t kVectors, int32_t kParts, int32_t kColumns, int32_t kStride, typename Column,
          typename Ahead>
AIE_HOST_INLINE void add_columns(float_lanes (&out)[kVectors][kPassVectors<kVectors, kParts>],
                                 const float* x, const Column& column, const Ahead& ahead) {
  constexpr unsigned kPass = kPassVectors<kVectors, kParts>;
  float_lanes sums[kVectors][kParts][kPass] = {};
  for (int32_t c = 0; c < kColumns; c += kParts) {
    ahead(c / kParts);
    unroll<kParts>([&](auto part) {
      unroll<kPass>([&](auto p) {
        const float_lanes w = column(c + int32_t(part.value), p);
        unroll<kVectors>([&](auto v) {
          sums[v.value][part.value][p.value] +=
              w * x[int32_t(v.value) * kStride + c + int32_t(part.value)];
        });
      });
    });
  }
  unroll<kVectors>([&](auto v) {
    unroll<kPass>([&](auto p) {
      float_lanes sum = sums[v.value][0][p.value];
      for (int32_t part = 1; part < kParts; ++part) sum += sums[v.value][part][p.value];
      out[v.value][p.value] = sum;
    });
  });
}

// y += block x for kVectors lines of 128.
template <typename Layout, int32_t kVectors, int32_t kParts, typename Vectors>
[[gnu::noinline]] inline void int8_block(const uint8_t* block, const Vectors& vectors) {
  constexpr int32_t kGroup = Layout::kGroup, kGroups = Layout::kGroups;
  constexpr int32_t kStride = kPassRows<kVectors, kParts>, kPasses = kBlockRows / kStride;
  constexpr unsigned kPass = kPassVectors<kVectors, kParts>;
  const auto* d = reinterpret_cast<const float*>(block);
  const auto* codes = reinterpret_cast<const int8_t*>(block + Layout::kCodesAt);
  alignas(64) float wide[kVectors * Layout::kColumns];
  widen_lines<kVectors, Layout::kColumns>(vectors, wide);
  for (int32_t first = 0; first < kBlockRows; first += kStride) {
    float_lanes rows[kVectors][kPass];
    unroll<kVectors>([&](auto v) {
      unroll<kPass>([&](auto p) {
        rows[v.value][p.value] =
            load<float_lanes>(vectors.sums(v.value) + first + int32_t(p.value * kLanes));
      });
    });
    for (int32_t g = 0; g < kGroups; ++g) {
      const int8_t* at = codes + g * kGroup * kBlockRows + first;
      float_lanes sums[kVectors][kPass];
      add_columns<kVectors, kParts, kGroup, Layout::kColumns>(
          sums, wide + g * kGroup,
          [&](int32_t c, auto p) {
            return widen_int8(at + c * kBlockRows + int32_t(p.value * kLanes));
          },
          prefetches<Layout::kSize, kPasses * Layout::kColumns / kParts>{
              block, (first / kStride * int32_t(Layout::kColumns) + g * kGroup) / kParts});
      unroll<kPass>([&](auto p) {
        const auto scale =
            load<float_lanes>(d + g * kBlockRows + first + int32_t(p.value * kLanes));
        unroll<kVectors>([&](auto v) { rows[v.value][p.value] += scale * sums[v.value][p.value]; });
      });
    }
    unroll<kVectors>([&](auto v) {
      unroll<kPass>([&](auto p) {
        store(rows[v.value][p.value], vectors.sums(v.value) + first + int32_t(p.value * kLanes));
      });
    });
  }
}

// y += block x for kVectors lines of 80.
template <int32_t kVectors, int32_t kParts, typename Vectors>
[[gnu::noinline]] inline void bf16_block(const uint8_t* block, const Vectors& vectors) {
  constexpr int32_t kStep = 16, kSteps = kBf16Columns / kStep;
  constexpr int32_t kStride = kPassRows<kVectors, kParts>, kPasses = kBlockRows / kStride;
  constexpr unsigned kPass = kPassVectors<kVectors, kParts>;
  const auto* w = reinterpret_cast<const uint16_t*>(block);
  alignas(64) float wide[kVectors * kBf16Columns];
  widen_lines<kVectors, kBf16Columns>(vectors, wide);
  for (int32_t first = 0; first < kBlockRows; first += kStride) {
    for (int32_t step = 0; step < kSteps; ++step) {
      const uint16_t* at = w + step * kStep * kBlockRows + first;
      float_lanes sums[kVectors][kPass];
      add_columns<kVectors, kParts, kStep, kBf16Columns>(
          sums, wide + step * kStep,
          [&](int32_t c, auto p) {
            return widen_bf16(at + c * kBlockRows + int32_t(p.value * kLanes));
          },
          prefetches<npu::blocks::kBytes, kPasses * kBf16Columns / kParts>{
              block, (first / kStride * kBf16Columns + step * kStep) / kParts});
      unroll<kVectors>([&](auto v) {
        unroll<kPass>([&](auto p) {
          float* to = vectors.sums(v.value) + first + int32_t(p.value * kLanes);
          store(load<float_lanes>(to) + sums[v.value][p.value], to);
        });
      });
    }
  }
}

// The largest order_of() (aie_kernels/gemv.cc) of a row-block's values.
inline int32_t largest_order(const int32_t* values) {
  const lanes nan = lanes{} + 0x7F800001;
  lanes most = -nan;
  for (int32_t i = 0; i < kBlockRows; i += int32_t(kLanes)) {
    const lanes bits = load<lanes>(values + i), magnitude = bits & 0x7FFFFFFF;
    const lanes order = magnitude < nan ? magnitude : nan;
    const lanes below = (bits < 0) | (order == nan);  // -1 where it is negative
    const lanes signed_order = (order ^ below) - below;
    most = signed_order > most ? signed_order : most;
  }
  int32_t largest = most[0];
  for (unsigned i = 1; i < kLanes; ++i) largest = most[i] > largest ? most[i] : largest;
  return largest;
}

// Of the formats whose weights are not of 4 bits.
template <npu::blocks::Format kFormat, int32_t kVectors, int32_t kParts, typename Vectors>
AIE_HOST_INLINE void wide_block(const uint8_t* block, const Vectors& vectors) {
  if constexpr (npu::blocks::is_int8(kFormat)) {
    int8_block<int8_layout<kFormat>, kVectors, kParts>(block, vectors);
  } else {
    bf16_block<kVectors, kParts>(block, vectors);
  }
}

// Vectors of a core.
template <npu::blocks::Format kFormat, int32_t kVectors>
AIE_HOST_INLINE void gemv_block(const uint8_t* block, const bfloat16* x, float* y) {
  using namespace npu::blocks;
  if constexpr (is_int4(kFormat)) {
    q4_block<kFormat == Format::kQ4nx, kVectors>(block, x, y);
  } else {
    const auto* const lines = reinterpret_cast<const uint16_t*>(x);
    const adjacent_vectors<columns_of(kFormat)> vectors{lines, y};
    wide_block<kFormat, kVectors, parts_of(kVectors)>(block, vectors);
  }
}

// The vector of each of several cores: the results are those of gemv_block<kFormat, 1>.
template <npu::blocks::Format kFormat>
inline void gemv_joint(const uint8_t* block, const bfloat16* const* x, float* const* y,
                       int32_t count) {
  using namespace npu::blocks;
  const separate_vectors vectors{x, y};
  if constexpr (is_int4(kFormat)) {
    q4_joint<kFormat == Format::kQ4nx>(block, vectors, count);
  } else {
    constexpr int32_t kMost = kMostSums / parts_of(1);
    for_vectors<kMost>(vectors, count, [&]<int32_t kVectors>(const separate_vectors& some) {
      wide_block<kFormat, kVectors, parts_of(1)>(block, some);
    });
  }
}

}  // namespace host
AIE_HOST_END
