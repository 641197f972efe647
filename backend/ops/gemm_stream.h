// Per-size runtime streams of the GEMM design: shim BDs, queue pushes, waits and runtime parameters
// for one padded problem. Schedule: five BDs each for A, B and C per shim tile; the stream waits
// for the oldest C token and refills the three retired BDs while the rest stay in flight (arXiv
// 2512.13282, section 4.4).
#pragma once

#include <cstdint>
#include <vector>

#include "configuration.h"

namespace npu::ops {

// What a GEMM configuration fixes (its `param` lines).
struct GemmTile {
  int64_t m, k, n;        // tile of one core
  int64_t rows, columns;  // cores
  int64_t a_bytes, c_bytes;

  // Throws Error(kFormat) for parameters that are missing or describe no array.
  static GemmTile of(const Configuration& configuration);
  int64_t native_m() const { return m * rows; }
  int64_t native_n() const { return n * columns; }
};

// A lies row-major, or as (tile_m, tile_k) tiles, one tile row after the other.
enum class ALayout : uint8_t { kRowMajor, kTiles };
// B lies row-major, or as panels of tile_n columns one after the other, each (K, tile_n) row-major.
// Tiles and panels make every transfer linear.
enum class BLayout : uint8_t { kRowMajor, kPanels };

// A problem whose sizes are multiples of the native ones.
struct GemmProblem {
  int64_t m = 0, k = 0, n = 0;
  ALayout a_layout = ALayout::kTiles;
  BLayout b_layout = BLayout::kPanels;
  auto operator<=>(const GemmProblem&) const = default;
};

// Whether shim BDs can address row-major B with rows of n elements.
bool row_major_b_fits(const GemmTile& tile, int64_t n);

// The stream; arguments are 0 = A, 1 = B, 2 = C. Throws Error(kShape) for sizes that are no
// multiples of the native ones, Error(kOutOfRange) for sizes beyond the BD fields.
std::vector<uint32_t> build_gemm_stream(const Configuration& configuration,
                                        const GemmProblem& problem);

}  // namespace npu::ops
