// Packing: float32 -> bfloat16 is the nearest value with ties to even (found here by comparing
// distances in double precision), and every element of every tile is the one its place stands for,
// zero beyond the edges.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "formats/pack.h"

namespace {

using namespace npu::ops;

uint16_t packed(float value) {
  uint16_t out = 0;
  const MatrixView view{reinterpret_cast<const std::byte*>(&value), ElementType::kF32, 1, 1, 1, 1};
  pack_tiles(view, ElementType::kBf16, 1, 1, TileOrder::kRowsFirst,
             reinterpret_cast<std::byte*>(&out));
  return out;
}

double value_of(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

}  // namespace

TEST_CASE("pack: float32 rounds to the nearest bfloat16, ties to even") {
  std::mt19937 random(2);
  std::uniform_int_distribution<uint32_t> finite(0, 0x7F7F0000);  // up to bfloat16's largest
  for (int i = 0; i < 30000; ++i) {
    // Ties, their neighbours, and anything.
    uint32_t bits = finite(random);
    if (i % 3 != 0) bits = (bits & 0xFFFF0000) + 0x8000 + (i % 3 == 1 ? 0 : random() % 3 - 1);
    bits = std::min(bits, 0x7F7F0000u) | (i % 2 ? 0x80000000u : 0u);
    const float value = std::bit_cast<float>(bits);
    const uint16_t got = packed(value);
    const uint16_t below = static_cast<uint16_t>(bits >> 16),
                   above = static_cast<uint16_t>(below + 1);
    const double down = std::fabs(value - value_of(below));
    const double up = std::fabs(value_of(above) - value);
    const uint16_t even = below % 2 == 0 ? below : above;
    REQUIRE(got == (down < up ? below : up < down ? above : even));
  }
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  CHECK(packed(kInfinity) == 0x7F80);
  CHECK(packed(-kInfinity) == 0xFF80);
  CHECK(packed(std::numeric_limits<float>::max()) == 0x7F80);
  CHECK(packed(-0.0F) == 0x8000);
  for (const uint32_t nan : {0x7FC00000u, 0x7F800001u, 0xFFFFFFFFu}) {
    CHECK(std::isnan(value_of(packed(std::bit_cast<float>(nan)))));
  }
}

TEST_CASE("pack: tiles in both orders, any strides and addresses, zero beyond the edges") {
  for (const TileOrder order : {TileOrder::kRowsFirst, TileOrder::kColumnsFirst}) {
    for (const bool transposed : {false, true}) {
      constexpr int64_t kRows = 7, kCols = 11, kTileRows = 3, kTileCols = 4;
      std::vector<std::byte> memory(kRows * kCols * 2 + 1);
      MatrixView view{
          memory.data() + 1, ElementType::kBf16, kRows, kCols, kCols, 1};  // odd address
      if (transposed) view.row_stride = 1, view.col_stride = kRows;
      for (int64_t r = 0; r < kRows; ++r) {
        for (int64_t c = 0; c < kCols; ++c) {
          const uint16_t value = static_cast<uint16_t>(100 * r + c + 1);
          std::memcpy(memory.data() + 1 + 2 * (r * view.row_stride + c * view.col_stride), &value,
                      2);
        }
      }
      constexpr int64_t kDown = 3, kAcross = 3, kTile = kTileRows * kTileCols;
      std::vector<uint16_t> out(kDown * kAcross * kTile, 0xFFFF);
      REQUIRE(packed_bytes(kRows, kCols, ElementType::kBf16, kTileRows, kTileCols) ==
              out.size() * 2);
      pack_tiles(view, ElementType::kBf16, kTileRows, kTileCols, order,
                 reinterpret_cast<std::byte*>(out.data()));
      for (int64_t i = 0; i < static_cast<int64_t>(out.size()); ++i) {
        const int64_t tile = i / kTile, within = i % kTile;
        const bool rows_first = order == TileOrder::kRowsFirst;
        const int64_t r =
            (rows_first ? tile / kAcross : tile % kDown) * kTileRows + within / kTileCols;
        const int64_t c =
            (rows_first ? tile % kAcross : tile / kDown) * kTileCols + within % kTileCols;
        const int64_t expected = r < kRows && c < kCols ? 100 * r + c + 1 : 0;
        CHECK(out[static_cast<size_t>(i)] == expected);
      }
    }
  }
}
