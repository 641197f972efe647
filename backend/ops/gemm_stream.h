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
  int64_t k_mt;           // columns of A (and rows of column-major B) per memtile object
  bool b_columns;         // B is column-major: (N, K) row-major in memory
  int64_t rows, columns;  // cores
  int64_t a_bytes, c_bytes;
  int64_t a_column_step;  // A row r enters through column r * a_column_step

  static GemmTile of(const Configuration& configuration);
  int64_t native_m() const { return m * rows; }
  int64_t native_k() const { return k_mt; }
  int64_t native_n() const { return n * columns; }
};

// A lies row-major, or as (tile_m, k_mt) tiles, one tile row after the other.
enum class ALayout : uint8_t { kRowMajor, kTiles };
// B lies as the configuration's layout says, (K, N) or (N, K) row-major, or in panels of tile_n
// columns one after the other: each (K, tile_n) row-major, or (tile_n, k_mt) tiles of the (N, K)
// matrix. Tiles and panels make every transfer linear.
enum class BLayout : uint8_t { kMatrix, kPanels };

// A problem whose sizes are multiples of the native ones.
struct GemmProblem {
  int64_t m = 0, k = 0, n = 0;
  ALayout a_layout = ALayout::kTiles;
  BLayout b_layout = BLayout::kPanels;
  int shift = 0;        // right shift of integer results, for configurations that narrow them
  bool overlap = true;  // false: each round's BDs are written only after the round before it ended
  auto operator<=>(const GemmProblem&) const = default;
};

inline constexpr int kMaxShift = 31;

// Whether shim BDs can address a matrix with rows `row_bytes` apart.
bool row_step_fits(int64_t row_bytes);

// The stream; arguments are 0 = A, 1 = B, 2 = C. Throws Error(kShape) for sizes that are no
// multiples of the native ones, Error(kOutOfRange) for sizes beyond the BD fields and for shifts
// outside 0..kMaxShift.
std::vector<uint32_t> build_gemm_stream(const Configuration& configuration,
                                        const GemmProblem& problem);

}  // namespace npu::ops
