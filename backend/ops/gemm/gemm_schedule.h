// How a GEMM is laid out: which parts of A, B and C the array reads and writes in place, the blocks
// of C that one submission covers, and the commands of a submission: shim BDs, queue pushes, waits
// and runtime parameters. Five BDs each for A, B and C per shim tile; the stream waits for the
// oldest C token and refills the three retired BDs while the rest stay in flight (arXiv 2512.13282,
// section 4.4). With K tails a round takes up to five BDs, so three are in flight.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "formats/pack.h"
#include "runtime/configuration.h"
#include "stream/txn.h"

namespace npu::ops {

// What transfers of A, B or C move: its elements in memory, values or 8x8 tiles of BFP16 blocks.
struct GemmCell {
  int64_t side = 1;  // values
  int64_t bytes = 0;
  auto operator<=>(const GemmCell&) const = default;
  static GemmCell of(ElementType type) {
    return {element_side(type), static_cast<int64_t>(element_bytes(type))};
  }
  int64_t count(int64_t values) const { return values / side; }
  int64_t span(int64_t values) const { return count(values) * bytes; }  // a row's bytes
};

// What a GEMM configuration fixes (its `param` lines). Sizes are in values.
struct GemmTile {
  int64_t m, k, n;        // tile of one core
  int64_t k_mt;           // columns of A (and rows of column-major B) per memtile object
  bool b_columns;         // B is column-major: (N, K) row-major in memory
  int64_t rows, columns;  // cores
  GemmCell a, b, c;
  // Row-major B: two ports read the columns of two neighbouring core columns together, the first
  // one the upper, the second one the lower half of the rows of every memtile object.
  bool b_pairs = false;
  int64_t b_rows = 0;  // of a row-major B per memtile object, a multiple of k
  // Operands may also be read across their rows (GemmOrder); tiles are square.
  bool square = false;
  // Memtiles keep an operand (gemm_store.h).
  bool stores = false;

  // Throws Error(kFormat) for parameters that are missing or describe no array.
  static GemmTile of(const Configuration& configuration);
  // Whether B packed for the other one can be read with this: C's type and A's tiles do not
  // matter, and of its panels there may be more than this one reads.
  bool packs_b_like(const GemmTile& other) const {
    return k_mt == other.k_mt && b_panel() == other.b_panel() && n == other.n &&
           other.native_n() % native_n() == 0 && b_columns == other.b_columns && b == other.b;
  }
  int64_t native_m() const { return m * rows; }
  int64_t native_k() const { return k_mt; }
  int64_t native_n() const { return n * columns; }
  int64_t b_panel() const { return b_pairs ? 2 * n : n; }  // columns of B that a port reads
  // Whether shim BDs can address a B whose rows (columns, if column-major) are row_bytes apart.
  bool b_step_fits(int64_t row_bytes) const;
};

// Arguments of a stream. Packed parts hold what is not read or written in place.
enum GemmArgument : uint32_t { kA, kB, kC, kAPacked, kBPacked, kCPacked, kATail, kBTail };

// In which order the stored elements of a tile row of A, or a panel of B, are read.
//   - kAlong: rows that run along K, as tiles of (rows, k_mt).
//   - The others read a matrix that is stored with K down its columns, and square tiles as they are
//     stored; cores turn them. A memtile takes k_mt / k tiles side by side. kTurned: the tiles one
//     after the other along K, a row of each at a time, an object per execution of a BD.
//     kInterleaved: rows as they lie, so that tile t has every (k_mt / k)-th row of an object: for
//     an A and a B that are both read so.
enum class GemmOrder : uint8_t { kAlong, kTurned, kInterleaved };

// How A, or B, reaches the array, in cells. Rows are those of A, columns those of B.
//   - The first `direct` rows (a multiple of the native size) are read in place: their first
//   `depth`
//     elements along K (a multiple of k_mt) from the matrix (kA, kB), whose rows lie `stride`
//     elements apart, and the last k_mt, if K exceeds `depth`, from the tail (kATail, kBTail).
//   - The others are read from a packed copy (kAPacked, kBPacked).
// A in place is (M, K) row-major; B as the configuration's layout says, (K, N) or (N, K) row-major.
// Packed A: (tile_m, k_mt) tiles, one tile row after the other. Packed B: panels of b_panel()
// columns one after the other, each (K, b_panel()) row-major, or (tile_n, k_mt) tiles of the (N, K)
// matrix.
// Of other orders than kAlong: panels of tile_m rows of A or tile_n columns of B, each (K, panel)
// row-major.
// Tails: the same with k_mt for K. Reads of packed copies and tails are linear but for kTurned.
struct GemmFeed {
  int64_t direct = 0, depth = 0, stride = 0;
  GemmOrder order = GemmOrder::kAlong;
  auto operator<=>(const GemmFeed&) const = default;
};

// A problem whose sizes are multiples of the native ones.
struct GemmProblem {
  int64_t m = 0, k = 0, n = 0;
  GemmFeed a = {}, b = {};  // default: packed
  // The top left (c_rows, c_cols), multiples of the native sizes, is written in place (kC, rows
  // of cells c_stride cells apart); then follow in kCPacked the rows below, n elements each, and
  // the columns to the right, n - c_cols elements each.
  int64_t c_rows = 0, c_cols = 0, c_stride = 0;
  int shift = 0;        // right shift of integer results, for configurations that narrow them
  bool overlap = true;  // false: each round's BDs are written only after the round before it ended
  auto operator<=>(const GemmProblem&) const = default;

  // Everything in place, without gaps.
  static GemmProblem dense(const GemmTile& tile, int64_t m, int64_t k, int64_t n);
};

inline constexpr int kMaxShift = 31;

// Whether shim BDs can address a matrix with rows `row_bytes` apart.
bool row_step_fits(int64_t row_bytes);

// Appends the commands of `problem`. Throws Error(kShape) for sizes that are no multiples of the
// native ones, beyond the BD fields or a stream's length, and Error(kArgument) for shifts outside
// 0..kMaxShift.
// `first_argument`: what the stream calls kA of it.
void append_gemm(stream::Builder& builder, const Configuration& configuration,
                 const GemmProblem& problem, uint32_t first_argument = 0);
// Appends the commands of problems one after the other, each with its kGemmArguments arguments.
void append_gemms(stream::Builder& builder, const Configuration& configuration,
                  std::span<const GemmProblem> problems);

// What one submission may cover; larger problems are computed in blocks of C. 0 columns: as many as
// a shim BD can address.
struct GemmLimits {
  int64_t rounds = 2048;  // output rounds, which bound a stream's length: about 6 MB on npu2
  int64_t columns = 0;    // of C, rounded down to the native size
};

// A whole product: (m, k) by (k, n) in padded sizes, of which (rows, cols) of C are wanted.
struct GemmExtent {
  int64_t m = 0, k = 0, n = 0;  // multiples of the native sizes
  int64_t rows = 0, cols = 0;
  GemmFeed a = {}, b = {};
  bool c_direct = false;  // C is written in place as far as whole native sizes fill it
  int64_t c_stride = 0;   // cells
  int shift = 0;

  // Row-major A and C and a B as the configuration has it, dense and reachable by the device.
  // `a_across`, `b_across`: stored the other way round, for configurations with square tiles.
  static GemmExtent dense(const GemmTile& tile, int64_t m, int64_t k, int64_t n, int shift = 0,
                          bool a_across = false, bool b_across = false);
};

constexpr size_t kGemmArguments = 8;

// One submission: a block of C.
struct GemmBlock {
  int64_t row = 0, col = 0;    // of C, where it begins
  int64_t rows = 0, cols = 0;  // wanted
  GemmProblem problem;
  // Per GemmArgument: the first byte of what the block uses of the product's matrix, packed copy or
  // tails, and how many bytes; 0: none. kCPacked is scratch memory of the block alone.
  std::array<size_t, kGemmArguments> offset = {}, bytes = {};
};

// Rows and columns of C in all blocks but those at its lower and right edges.
struct GemmBlockSize {
  int64_t rows, cols;
};
GemmBlockSize block_size(const GemmTile& tile, const GemmLimits& limits, int64_t n);

std::vector<GemmBlock> split_gemm(const GemmTile& tile, const GemmLimits& limits,
                                  const GemmExtent& extent);

// Whether one submission may cover two blocks, of the same or of two products.
bool fit_together(const GemmTile& tile, const GemmLimits& limits, const GemmBlock& first,
                  const GemmBlock& second);

// Bytes of the packed copy and of the tails of an operand with `rows` rows (columns of B) of cells
// and a padded depth of k cells.
struct GemmPackedBytes {
  size_t packed = 0, tail = 0;
};
GemmPackedBytes packed_bytes_of(const GemmCell& cell, const GemmFeed& feed, int64_t rows,
                                int64_t k);

}  // namespace npu::ops
