// Lays a GEMM out (gemm_schedule.h): the configuration's tile, and blocks of C per submission.
#include "ops/gemm/gemm_schedule.h"

#include <algorithm>
#include <utility>

#include "arch/geometry.h"
#include "error.h"
#include "ops/gemm/gemm_store.h"
#include "rounding.h"

namespace npu::ops {

namespace {

// The widest C of one stream: a shim BD's step field must hold its row stride.
int64_t max_columns(const GemmTile& tile, int64_t limit) {
  const int64_t words = arch::tile_geometry(arch::TileKind::kShim).max_step;
  const int64_t addressable = words * 4 / tile.c.bytes * tile.c.side;
  const int64_t columns = limit > 0 ? std::min(limit, addressable) : addressable;
  return std::max<int64_t>(1, columns / tile.native_n()) * tile.native_n();
}

// What `count` rows (columns of B) from `first` use of an operand of depth k, in cells.
// `arguments`: matrix, packed copy and tails. `along_k`: neighbours along K are neighbours in the
// matrix.
GemmFeed slice(const GemmCell& cell, int64_t k, const GemmFeed& feed, int64_t first, int64_t count,
               bool along_k, const std::array<GemmArgument, 3>& arguments, GemmBlock& block) {
  const auto use = [&](GemmArgument argument, int64_t skipped, int64_t cells) {
    block.offset[argument] = static_cast<size_t>(skipped * cell.bytes);
    block.bytes[argument] = static_cast<size_t>(cells * cell.bytes);
  };
  const int64_t direct = std::clamp<int64_t>(feed.direct - first, 0, count);
  if (direct < count) {
    use(arguments[1], std::max<int64_t>(first - feed.direct, 0) * k, (count - direct) * k);
  }
  if (direct == 0) return {.order = feed.order};
  if (feed.order != GemmOrder::kAlong) along_k = false;
  const int64_t last =
      along_k ? (direct - 1) * feed.stride + feed.depth : (feed.depth - 1) * feed.stride + direct;
  use(arguments[0], first * (along_k ? feed.stride : 1), last);
  const int64_t rest = k - feed.depth;
  if (rest > 0) use(arguments[2], first * rest, direct * rest);
  return {direct, feed.depth, feed.stride, feed.order};
}

// Which part of the block of C is written in place, and what is not.
void place_c(const GemmTile& tile, const GemmExtent& extent, GemmBlock& block) {
  GemmProblem& problem = block.problem;
  const int64_t rows = block.rows / tile.native_m() * tile.native_m();
  const int64_t cols = block.cols / tile.native_n() * tile.native_n();
  if (extent.c_direct && rows > 0 && cols > 0) {
    problem.c_rows = rows;
    problem.c_cols = cols;
    problem.c_stride = extent.c_stride;
    const GemmCell& cell = tile.c;
    block.offset[kC] = static_cast<size_t>(
        (cell.count(block.row) * extent.c_stride + cell.count(block.col)) * cell.bytes);
    block.bytes[kC] = static_cast<size_t>(
        ((cell.count(rows) - 1) * extent.c_stride + cell.count(cols)) * cell.bytes);
  }
  const int64_t rest = problem.m * problem.n - problem.c_rows * problem.c_cols;
  block.bytes[kCPacked] = static_cast<size_t>(rest / tile.c.side / tile.c.side * tile.c.bytes);
}

}  // namespace

GemmTile GemmTile::of(const Configuration& configuration) {
  const auto param = [&](const char* name, int64_t min, int64_t max) {
    return configuration.param(name, min, max);
  };
  constexpr int64_t kMaxTile = 1 << 16;  // more elements than a core's memory has bytes
  GemmTile tile;
  tile.m = param("tile_m", 1, kMaxTile);
  tile.k = param("tile_k", 1, kMaxTile);
  tile.n = param("tile_n", 1, kMaxTile);
  tile.k_mt = param("k_mt", tile.k, kMaxTile);
  tile.b_columns = param("b_layout", 0, 1) == 1;
  tile.rows = param("rows", 1, arch::kCoreRows);
  tile.columns = param("columns", 1, arch::device_geometry(configuration.generation).columns);
  const auto cell = [&](const char* name) {
    return GemmCell::of(static_cast<ElementType>(param(name, 0, kElementTypes - 1)));
  };
  tile.a = cell("a_type");
  tile.b = cell("b_type");
  tile.c = cell("c_type");
  tile.b_pairs = param("b_pairs", 0, 1) == 1;
  tile.b_rows = param("b_rows", tile.k, kMaxTile);
  tile.square = configuration.params.contains("square") && param("square", 0, 1) == 1;
  if (tile.square && (!tile.b_columns || tile.m != tile.k || tile.n != tile.k)) {
    fail(ErrorKind::kFormat,
         "[GemmTile::of] configuration \"%s\" reads operands across their rows; that needs square "
         "tiles and a column-major B: lower the design again",
         configuration.name.c_str());
  }
  tile.stores = configuration.params.contains("a_keep_in");
  if (tile.b_pairs && (tile.b_columns || tile.b_rows % 2 != 0 || tile.columns % 2 != 0)) {
    fail(ErrorKind::kFormat,
         "[GemmTile::of] configuration \"%s\" reads pairs of columns of B; that needs a row-major "
         "B, "
         "an even b_rows and an even number of columns: lower the design again",
         configuration.name.c_str());
  }
  for (const auto& [values, layout] :
       {std::pair(tile.k, tile.a), std::pair(tile.k, tile.b), std::pair(tile.n, tile.b),
        std::pair(tile.n, tile.c), std::pair(tile.m, tile.a), std::pair(tile.m, tile.c)}) {
    if (values % layout.side == 0) continue;
    fail(ErrorKind::kFormat,
         "[GemmTile::of] configuration \"%s\" has tile sizes of %lld values; blocks of BFP16 "
         "come in tiles of 8 x 8: use another tile",
         configuration.name.c_str(), static_cast<long long>(values));
  }
  for (const int64_t row_bytes :
       {tile.a.span(tile.k), tile.b.span(tile.k), tile.b.span(tile.n), tile.c.span(tile.n)}) {
    if (row_bytes % 4 == 0) continue;
    fail(ErrorKind::kFormat,
         "[GemmTile::of] configuration \"%s\" has tile rows of %lld bytes; DMAs move multiples of "
         "4: use another tile",
         configuration.name.c_str(), static_cast<long long>(row_bytes));
  }
  const auto must_divide = [&](const char* name, int64_t value, const char* unit, int64_t size) {
    if (value % size == 0) return;
    fail(ErrorKind::kFormat,
         "[GemmTile::of] configuration \"%s\" has %s = %lld and %s = %lld; it must be a multiple: "
         "lower the design again",
         configuration.name.c_str(), name, static_cast<long long>(value), unit,
         static_cast<long long>(size));
  };
  must_divide("k_mt", tile.k_mt, "tile_k", tile.k);
  must_divide("b_rows", tile.b_rows, "tile_k", tile.k);
  if (!tile.b_columns) must_divide("k_mt", tile.k_mt, "b_rows", tile.b_rows);
  return tile;
}

GemmProblem GemmProblem::dense(const GemmTile& tile, int64_t m, int64_t k, int64_t n) {
  GemmProblem problem{m, k, n};
  problem.a = {tile.a.count(m), tile.a.count(k), tile.a.count(k)};
  problem.b = {tile.b.count(n), tile.b.count(k), tile.b.count(tile.b_columns ? k : n)};
  problem.c_rows = m;
  problem.c_cols = n;
  problem.c_stride = tile.c.count(n);
  return problem;
}

bool row_step_fits(int64_t row_bytes) {
  return row_bytes / 4 <= static_cast<int64_t>(arch::tile_geometry(arch::TileKind::kShim).max_step);
}

bool GemmTile::b_step_fits(int64_t row_bytes) const {
  return row_step_fits(b_pairs ? b_rows * row_bytes : row_bytes);  // steps over an object's rows
}

bool fit_together(const GemmTile& tile, const GemmLimits& limits, const GemmBlock& first,
                  const GemmBlock& second) {
  const auto rounds = [&](const GemmProblem& problem) {
    return problem.m / tile.native_m() * (problem.n / tile.native_n());
  };
  return rounds(first.problem) + rounds(second.problem) <= limits.rounds;
}

GemmPackedBytes packed_bytes_of(const GemmCell& cell, const GemmFeed& feed, int64_t rows,
                                int64_t k) {
  GemmPackedBytes out;
  out.packed = static_cast<size_t>((rows - feed.direct) * k * cell.bytes);
  if (feed.direct > 0) out.tail = static_cast<size_t>(feed.direct * (k - feed.depth) * cell.bytes);
  return out;
}

GemmExtent GemmExtent::dense(const GemmTile& tile, int64_t m, int64_t k, int64_t n, int shift,
                             bool a_across, bool b_across) {
  GemmExtent extent{round_up(m, tile.native_m()),
                    round_up(k, tile.k_mt),
                    round_up(n, tile.native_n()),
                    m,
                    n,
                    {},
                    {},
                    false,
                    divide_up(n, tile.c.side),
                    shift};
  const int64_t c_bytes = extent.c_stride * tile.c.bytes;
  extent.c_direct = c_bytes % 4 == 0 && row_step_fits(c_bytes);
  extent.rows = round_up(m, tile.c.side);
  extent.cols = round_up(n, tile.c.side);
  const auto feed = [&](const GemmCell& cell, int64_t rows, int64_t native, int64_t columns,
                        GemmOrder order, const auto& fits) -> GemmFeed {
    const int64_t direct = rows / native * native, stride = divide_up(columns, cell.side);
    const int64_t steps = order == GemmOrder::kTurned ? tile.k_mt : 1;
    if (k < tile.k_mt || direct == 0 || stride * cell.bytes % 4 != 0 ||
        !fits(steps * stride * cell.bytes)) {
      return {.order = order};
    }
    return {cell.count(direct), cell.count(k / tile.k_mt * tile.k_mt), stride, order};
  };
  using enum GemmOrder;
  const bool a_turned = a_across && b_across;
  extent.a = feed(tile.a, m, tile.native_m(), a_turned ? m : k, a_turned ? kInterleaved : kAlong,
                  &row_step_fits);
  extent.b = feed(tile.b, n, tile.native_n(), tile.b_columns && !b_across ? k : n,
                  !b_across  ? kAlong
                  : a_turned ? kInterleaved
                             : kTurned,
                  [&](int64_t bytes) { return tile.b_step_fits(bytes); });
  return extent;
}

// C wider than a BD's row stride is computed in column chunks, and rows in chunks that bound a
// stream's length.
GemmBlockSize block_size(const GemmTile& tile, const GemmLimits& limits, int64_t n) {
  const int64_t width = std::min(n, max_columns(tile, limits.columns));
  const int64_t rounds = std::max<int64_t>(1, limits.rounds);
  return {std::max<int64_t>(1, rounds * tile.native_n() / width) * tile.native_m(), width};
}

std::vector<GemmBlock> split_gemm(const GemmTile& tile, const GemmLimits& limits,
                                  const GemmExtent& extent) {
  GemmLimits within = limits;
  if (tile.stores) {
    within.rounds = std::min(limits.rounds, store_rounds(tile, extent.k));
    within.columns = within.rounds * tile.native_n();
    if (limits.columns > 0) within.columns = std::min(within.columns, limits.columns);
  }
  const auto [height, width] = block_size(tile, within, extent.n);
  std::vector<GemmBlock> blocks;
  for (int64_t col = 0; col < extent.n; col += width) {
    for (int64_t row = 0; row < extent.m; row += height) {
      GemmBlock block;
      block.row = row;
      block.col = col;
      block.problem.m = std::min(height, extent.m - row);
      block.problem.k = extent.k;
      block.problem.n = std::min(width, extent.n - col);
      block.rows = std::min(block.problem.m, extent.rows - row);
      block.cols = std::min(block.problem.n, extent.cols - col);
      block.problem.shift = extent.shift;
      block.problem.a = slice(tile.a, tile.a.count(extent.k), extent.a, tile.a.count(row),
                              tile.a.count(block.problem.m), true, {kA, kAPacked, kATail}, block);
      block.problem.b =
          slice(tile.b, tile.b.count(extent.k), extent.b, tile.b.count(col),
                tile.b.count(block.problem.n), tile.b_columns, {kB, kBPacked, kBTail}, block);
      place_c(tile, extent, block);
      blocks.push_back(block);
    }
  }
  return blocks;
}

}  // namespace npu::ops
