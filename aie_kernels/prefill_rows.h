// What jobs of rows of the prefill configuration share (prefill_job.h; prefill_norm.cc,
// prefill_geglu.cc, prefill_rotation.cc): loops over blocks of 8 rows x 32 columns, the counters of
// a round, costs. Sums and products are fp32; what leaves as bfloat16 is rounded once, to nearest
// even.
#pragma once

#include <stdint.h>

#include <aie_api/aie.hpp>

#include "fp32.h"
#include "kernel.h"
#include "prefill_job.h"
#include "prefill_operand.h"

namespace {
namespace prefill_rows {

using namespace npu::prefill;
using npu::fp32::kLanes, npu::fp32::kStep;

constexpr int32_t kBlock = kRows * kSlice;       // elements
constexpr int32_t kRowLanes = kRows * kLanes;    // words: 32 lanes for each of 8 rows
constexpr int32_t kObjectWords = kBPayload / 4;  // of A as of B
constexpr int32_t kTileRows = __AIE_ARCH__ == 20 ? 4 : 8, kEight = 8;
static_assert(2 * kBlock == kPieceBytes && kLanes == kSlice && kAPayload == kBPayload);

// Counters of a round: objects of A before groups, and of groups; the next block or unit of B, and
// its next result. Calls must come in the order of the program.
enum Counter : int32_t { kFirsts = kRowState, kTakes, kAt, kPart };

inline const Job& job_of(const int32_t* words) { return *reinterpret_cast<const Job*>(words); }
inline float bits_float(int32_t bits) { return __builtin_bit_cast(float, bits); }
inline float* floats(int32_t* words) { return reinterpret_cast<float*>(words); }
inline const int32_t* words_of(const void* from) { return static_cast<const int32_t*>(from); }
inline bfloat16* halves(int32_t* words) { return reinterpret_cast<bfloat16*>(words); }

inline void begin_round(int32_t* job) { job[kFirsts] = job[kTakes] = job[kAt] = job[kPart] = 0; }

// Multiples of 16 words, here and below.
NPU_OUTLINED inline void copy(const int32_t* __restrict from, int32_t* __restrict to,
                              int32_t words) {
  NPU_ROLLED for (int32_t i = 0; i < words; i += 16) {
    aie::store_v(to + i, aie::load_v<16>(from + i));
  }
}

NPU_OUTLINED inline void clear(int32_t* to, int32_t words) {
  NPU_ROLLED for (int32_t i = 0; i < words; i += 16) {
    aie::store_v(to + i, aie::zeros<int32_t, 16>());
  }
}

// Adds the squares of `blocks` blocks to 32 lanes of each row.
NPU_OUTLINED inline void square_rows(const bfloat16* __restrict x, int32_t blocks,
                                     float* __restrict squares) {
  NPU_ROLLED for (int32_t row = 0; row < kRowLanes; row += kLanes) {
    npu::fp32::Sums sums = npu::fp32::load(squares + row);
    const bfloat16* from = x + row;
    NPU_ROLLED for (int32_t i = 0; i < blocks; ++i, from += kBlock) {
      const auto part = aie::load_v<kLanes>(from);
      sums = aie::mac(sums, part, part);
    }
    npu::fp32::store(squares + row, sums);
  }
}

// A block that is row by row as products take it.
NPU_OUTLINED inline void to_operand(const bfloat16* __restrict from, bfloat16* __restrict to) {
  constexpr int32_t kEights = kSlice / kEight, kTile = kTileRows * kEight;
  NPU_ROLLED for (int32_t tile = 0; tile < kBlock / kTile; ++tile) {
    const bfloat16* in = from + tile / kEights * (kTileRows * kSlice) + tile % kEights * kEight;
    bfloat16* out = to + tile * kTile;
    for (int32_t row = 0; row < kTileRows; ++row) {
      aie::store_v(out + row * kEight, aie::load_v<kEight>(in + row * kSlice));
    }
  }
  npu::prefill_operand::from_tiles(to);
}

#if NPU_DECLARATIONS
[[noreturn]] void refuse(const char* kernel, const int32_t* words) {
  const Job& job = job_of(words);
  npu::fail(npu::ErrorKind::kKernel,
            "[%s] the job (kind %d, groups %d, width %d, columns %d, heads %d, kv_heads %d, "
            "head_dim %d) or its counters (%d, %d, %d, %d) do not fit; send the header first and "
            "call in the order of the program",
            kernel, job.kind, job.groups, job.width, job.columns, job.heads, job.kv_heads,
            job.head_dim, words[kFirsts], words[kTakes], words[kAt], words[kPart]);
}

// Cycles, counted from the source, not measured: slots of the loops, and of each pipelined loop a
// round in which nothing overlaps. Stores have one slot of 64 bytes (npu1: of 32), loads two.
constexpr double kCall = 24, kOutlined = npu::fp32::kOutlined;
// Such a round: from load to store of an element, 7 + 6 + 4 + 3; an fp32 product in between, with
// its factors split; a bf16 result that is converted.
constexpr double kFill = 20, kProductFill = 40, kConvertFill = 4;

constexpr double copy_cycles(double words) {
  return kOutlined + 12 + words / (__AIE_ARCH__ == 20 ? 8 : 16);
}
// Of each row the inner loop, its sums loaded before and stored behind: 30, as widen_square().
constexpr double square_cycles(double blocks) {
  return kOutlined + kRows * (30 + blocks * longest(npu::fp32::kBf16Slots, npu::fp32::kChain));
}
// Stores of 16 bytes; npu2: then tiles of 128, all loaded and converted before the first is stored.
constexpr double kToOperandCycles =
    kOutlined + 12 + kBlock / kEight +
    (__AIE_ARCH__ == 20 ? 0 : kFill + npu::prefill_operand::kFromTilesCycles);
#endif

}  // namespace prefill_rows
}  // namespace
