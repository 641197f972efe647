// W = m + d * code for one Q4NX block: 32 rows x 256 columns of 4-bit codes (layout: q4nx_block.h,
// gemv_q4nx.h) become a row-major bfloat16 tile.
//
// d * code is exact in fp32, the sum with m is rounded once to fp32, then once to bfloat16. Codes
// become bf16 128 + code, their low byte, by one interleave; the 128 leaves before the product. A
// sub-block of 16 rows x 8 columns is one 64-byte load; it is transposed in registers and leaves as
// 16 rows of 16 bytes.
#include <stdint.h>

#include <aie_api/aie.hpp>

#include "kernel.h"
#include "q4nx_block.h"

namespace {
namespace dequant {

namespace q4nx = npu::q4nx;

constexpr int32_t kRows = q4nx::kRows, kColumns = q4nx::kColumns, kHalfRows = 16, kSubColumns = 8;
constexpr int32_t kGroup = q4nx::kGroup, kGroups = q4nx::kGroups, kPlane = q4nx::kPlaneBytes;
constexpr int32_t kSubBytes = kSubColumns * kHalfRows / 2;

using Sums = aie::accum<accfloat, 32>;

// Two columns of 16 codes as d * code + m; d and m have the 16 rows twice.
inline aie::vector<bfloat16, 32> values(const aie::vector<uint8_t, 32>& codes,
                                        const aie::vector<bfloat16, 32>& d, const Sums& m) {
  const auto magic = aie::broadcast<uint8_t, 32>(0x43);  // high byte of bf16 128
  const auto zipped = aie::interleave_zip(codes, magic, 1);
  const auto wide = aie::concat(zipped.first, zipped.second).template cast_to<bfloat16>();
  const Sums offset(aie::broadcast<float, 32>(-128.0f));
  const auto code = aie::add(Sums(wide), offset).template to_vector<bfloat16>();
  const auto product = aie::mac(Sums(aie::zeros<float, 32>()), code, d);
  return aie::add(product, m).template to_vector<bfloat16>();
}

inline void expand(const uint8_t* __restrict block, bfloat16* __restrict out) {
  // A core resets to floor, which would bias every value; the mode stays set afterwards.
  aie::set_rounding(aie::rounding_mode::conv_even);
  const bfloat16* planes = reinterpret_cast<const bfloat16*>(block);
  const uint8_t* codes = block + 2 * kPlane;
  for (int32_t half = 0; half < 2; ++half) {
    for (int32_t group = 0; group < kGroups; ++group) {
      const bfloat16* at = planes + group * kRows + half * kHalfRows;
      const auto d16 = aie::load_v<16>(at), m16 = aie::load_v<16>(at + kPlane / 2);
      const auto d = aie::concat(d16, d16);
      const Sums m(aie::concat(m16, m16));
      for (int32_t sub = 0; sub < kGroup; sub += kSubColumns) {
        const auto pair = aie::unpack(aie::load_v<128>(reinterpret_cast<const uint4*>(codes)));
        codes += kSubBytes;
        const auto left =
            aie::concat(values(pair.extract<32>(0), d, m), values(pair.extract<32>(1), d, m));
        const auto right =
            aie::concat(values(pair.extract<32>(2), d, m), values(pair.extract<32>(3), d, m));
        // (4 columns, 16 rows) twice -> 16 rows of 8 columns.
        const auto rows = aie::interleave_zip(aie::transpose(left, 4, kHalfRows),
                                              aie::transpose(right, 4, kHalfRows), 4);
        bfloat16* tile = out + half * kHalfRows * kColumns + group * kGroup + sub;
        for (int32_t r = 0; r < kHalfRows; ++r) {
          const auto& eight = r < 8 ? rows.first : rows.second;
          aie::store_v(tile + r * kColumns, eight.template extract<kSubColumns>(r % 8));
        }
      }
    }
  }
}

#if NPU_DECLARATIONS
// Not measured on hardware. Per 16 rows x 8 columns: 16 stores of a row's 16 bytes; in the move
// slot an unpack (npu1: two), 4 times an interleave, two conversions to bf16 and two transposing
// shuffles (npu1: of halves); in the multiply slot 4 times an addition, a multiplication and an
// addition of 32 lanes (npu1: twice).
double cycles(const Timing&, const int64_t*) {
  constexpr double kSubBlocks = kRows * kColumns / (kHalfRows * kSubColumns), kStores = 16;
  constexpr double kHalves = __AIE_ARCH__ == 20 ? 2 : 1;
  constexpr double kMoves = kHalves * (1 + 4 * (1 + 2 + 2)), kMacs = kHalves * 4 * 3;
  constexpr double kCall = 24;  // call, counters, loop set-up
  return kSubBlocks * longest(longest(kStores, kMoves), kMacs) + kCall;
}
#endif

}  // namespace dequant
}  // namespace

// block: 5120 bytes; out: (32, 256), row-major.
NPU_KERNEL void dequant_q4nx(const uint8_t* block, bfloat16* out) {
#ifdef AIE_HOST_DEQUANT  // x86 `fast` builds
  AIE_HOST_DEQUANT(block, out);
#else
  dequant::expand(block, out);
#endif
}

NPU_DECLARE(dequant_q4nx, {.operands = {buffer("block", npu::q4nx::kBlockBytes, alignof(bfloat16)),
                                        buffer("out", dequant::kRows* dequant::kColumns)},
                           .cycles = dequant::cycles});
