// Shim BDs of a GEMM (gemm_transfers.h).
#include "ops/gemm/gemm_transfers.h"

#include <algorithm>
#include <cassert>
#include <limits>

#include "error.h"
#include "ops/shim_commands.h"
#include "rounding.h"

namespace npu::ops {

namespace {

int64_t max_repeats() { return arch::tile_geometry(arch::TileKind::kShim).max_iteration; }

uint32_t words(int64_t bytes) {
  assert(bytes % 4 == 0);
  if (bytes / 4 > std::numeric_limits<uint32_t>::max()) {
    fail(ErrorKind::kShape,
         "[gemm] one transfer has %lld bytes; a shim BD moves at most %lld: use a "
         "smaller K",
         static_cast<long long>(bytes), 4ll * std::numeric_limits<uint32_t>::max());
  }
  return static_cast<uint32_t>(bytes / 4);
}

// Rows of `row_bytes` bytes, `stride_bytes` apart, as many as the transfer's length asks for.
void set_rows(arch::Bd& bd, int64_t row_bytes, int64_t stride_bytes) {
  bd.wrap[0] = words(row_bytes);
  bd.step[1] = words(stride_bytes);
}

}  // namespace

int GemmTransfers::kinds() const {
  return std::max(tasks_of(problem_.a, tile_.a), tasks_of(problem_.b, tile_.b));
}

bool GemmTransfers::has_tail(const GemmFeed& feed, const GemmCell& cell) const {
  return feed.direct > 0 && feed.depth < cell.count(problem_.k);
}

// BDs that a round takes of an operand.
int GemmTransfers::tasks_of(const GemmFeed& feed, const GemmCell& cell) const {
  const int tail = has_tail(feed, cell) ? 1 : 0;
  if (!by_objects()) return 1 + tail;
  const auto tasks = [&](int64_t depth) {
    return static_cast<int>(divide_up(depth / cell.count(tile_.k_mt), max_repeats()));
  };
  // A's packed copy is one task.
  const bool packed = feed.order == GemmOrder::kTurned && feed.direct < cell.count(problem_.n);
  return std::max(feed.direct > 0 ? tasks(feed.depth) + tail : 1,
                  packed ? tasks(cell.count(problem_.k)) : 0);
}

std::vector<GemmTransfer> GemmTransfers::a(int64_t row) const {
  return pieces(problem_.a, tile_.a, {kA, kAPacked, kATail}, tile_.m, row, true);
}

std::vector<GemmTransfer> GemmTransfers::b(int64_t col) const {
  return pieces(problem_.b, tile_.b, {kB, kBPacked, kBTail}, tile_.n, col, tile_.b_columns);
}

GemmTransfer GemmTransfers::b_half(int64_t column, int64_t half, int64_t object,
                                   int64_t count) const {
  const GemmFeed& feed = problem_.b;
  const GemmCell& cell = tile_.b;
  const bool packed = cell.count(column) >= feed.direct, along = feed.order == GemmOrder::kAlong;
  const int64_t size = cell.bytes, rows = cell.count(tile_.n), span = cell.span(tile_.k_mt);
  const int64_t from = cell.count(column) - (packed ? feed.direct : 0);
  const int64_t stride = (along || !packed ? feed.stride : rows) * size;  // bytes
  GemmTransfer out{packed ? kBPacked : kB, 0, linear(rows * span / 2),
                   count > 0 ? count : problem_.k / tile_.k_mt};
  int64_t step = rows * span, skipped = step / 2;
  if (!along) {
    out.offset = packed ? from * cell.span(problem_.k) : from * size;
    step = tile_.k_mt * stride;
    skipped = tile_.k / 2 * stride;
    turn(out.bd, rows, stride);
  } else if (packed) {
    out.offset = from * cell.span(problem_.k);
  } else {
    out.offset = from * stride;
    step = span;
    skipped = rows / 2 * stride;
    set_rows(out.bd, span, stride);
  }
  out.offset += object * step + half * skipped;
  out.bd.iteration_step = words(step);
  out.bd.iteration_wrap = static_cast<uint32_t>(out.repeats);
  return out;
}

GemmTransfer GemmTransfers::a_objects(size_t r, int64_t object, int64_t count) const {
  const GemmFeed& feed = problem_.a;
  const GemmCell& cell = tile_.a;
  const int64_t first = cell.count(static_cast<int64_t>(r) * tile_.m);
  const int64_t rows = cell.count(tile_.m), span = cell.span(tile_.k_mt);
  const bool packed = first >= feed.direct;
  GemmTransfer out{packed ? kAPacked : kA, 0, linear(rows * span), count};
  const int64_t step = packed ? rows * span : span;
  out.offset =
      packed ? (first - feed.direct) * cell.span(problem_.k) : first * feed.stride * cell.bytes;
  if (!packed) set_rows(out.bd, span, feed.stride * cell.bytes);
  out.offset += object * step;
  out.bd.iteration_step = words(step);
  out.bd.iteration_wrap = static_cast<uint32_t>(count);
  return out;
}

// An object of k_mt rows of `count` cells, as tiles that lie one after the other along K, a row
// of each at a time.
void GemmTransfers::turn(arch::Bd& bd, int64_t count, int64_t stride_bytes) const {
  bd.wrap[0] = words(count * tile_.b.bytes);
  bd.step[1] = words(tile_.k * stride_bytes);
  bd.wrap[1] = static_cast<uint32_t>(tile_.k_mt / tile_.k);
  bd.step[2] = words(stride_bytes);
}

std::vector<GemmTransfer> GemmTransfers::b_of_pair(int64_t first, int64_t half) const {
  const GemmFeed& feed = problem_.b;
  const int64_t size = tile_.b.bytes, panel = tile_.b_panel(), skipped = half * tile_.b_rows / 2;
  const auto piece = [&](uint32_t argument, int64_t start, int64_t stride, int64_t depth) {
    arch::Bd bd = linear(panel * depth / 2 * size);
    set_rows(bd, panel * size, stride * size);
    bd.wrap[1] = static_cast<uint32_t>(tile_.b_rows / 2);
    bd.step[2] = words(tile_.b_rows * stride * size);
    return GemmTransfer{argument, (start + skipped * stride) * size, bd};
  };
  if (first >= feed.direct) {
    return {piece(kBPacked, (first - feed.direct) * problem_.k, panel, problem_.k)};
  }
  std::vector<GemmTransfer> out{piece(kB, first, feed.stride, feed.depth)};
  if (has_tail(feed, tile_.b)) {
    const int64_t rest = problem_.k - feed.depth;
    out.push_back(piece(kBTail, first * rest, panel, rest));
  }
  return out;
}

// A tile row of A or a panel of B, `values` rows or columns from `first_value`. `contiguous`:
// neighbours along K are neighbours in the matrix.
std::vector<GemmTransfer> GemmTransfers::pieces(const GemmFeed& feed, const GemmCell& cell,
                                                const std::array<uint32_t, 3>& arguments,
                                                int64_t values, int64_t first_value,
                                                bool contiguous) const {
  const int64_t size = cell.bytes, k = cell.count(problem_.k);
  const int64_t count = cell.count(values), first = cell.count(first_value);
  if (feed.order != GemmOrder::kAlong) return across_pieces(feed, cell, arguments, count, first);
  if (first >= feed.direct) {
    const int64_t offset = (first - feed.direct) * k * size;
    return {{arguments[1], offset, linear(count * k * size)}};
  }
  const int64_t offset = first * (contiguous ? feed.stride : 1) * size;
  std::vector<GemmTransfer> out;
  if (contiguous && by_objects()) {
    out = along_objects(count, feed, cell, arguments[0], offset);
  } else {
    out = {{arguments[0], offset,
            contiguous ? along_k(count, feed, cell) : across_k(count, feed, size)}};
  }
  if (has_tail(feed, cell)) {
    const int64_t rest = k - feed.depth;
    out.push_back({arguments[2], first * rest * size, linear(count * rest * size)});
  }
  return out;
}

// The same of a matrix that is stored with K down its columns; and of panels of such a one.
std::vector<GemmTransfer> GemmTransfers::across_pieces(const GemmFeed& feed, const GemmCell& cell,
                                                       const std::array<uint32_t, 3>& arguments,
                                                       int64_t count, int64_t first) const {
  const int64_t size = cell.bytes, k = cell.count(problem_.k);
  std::vector<GemmTransfer> out;
  const auto add = [&](uint32_t argument, int64_t offset, int64_t stride, int64_t depth) {
    if (feed.order == GemmOrder::kInterleaved) {
      arch::Bd bd = linear(count * depth * size);
      set_rows(bd, count * size, stride * size);
      out.push_back({argument, offset, bd});
      return;
    }
    const int64_t objects = depth / tile_.k_mt;
    for (int64_t object = 0; object < objects; object += max_repeats()) {
      const int64_t repeats = std::min(max_repeats(), objects - object);
      arch::Bd bd = linear(count * tile_.k_mt * size);
      turn(bd, count, stride * size);
      bd.iteration_step = words(tile_.k_mt * stride * size);
      bd.iteration_wrap = static_cast<uint32_t>(repeats);
      out.push_back({argument, offset + object * tile_.k_mt * stride * size, bd, repeats});
    }
  };
  if (first >= feed.direct) {
    add(arguments[1], (first - feed.direct) * k * size, count, k);
    return out;
  }
  add(arguments[0], first * size, feed.stride, feed.depth);
  const int64_t rest = k - feed.depth;
  if (rest > 0) add(arguments[2], first * rest * size, count, rest);
  return out;
}

GemmTransfer GemmTransfers::c(int64_t row, int64_t block, int64_t col) const {
  const bool below = row >= problem_.c_rows, direct = !below && block < problem_.c_cols;
  const GemmCell& cell = tile_.c;
  const auto cells = [&](int64_t values) { return cell.count(values); };
  const int64_t right = cells(problem_.n - problem_.c_cols), width = cells(problem_.n);
  int64_t offset = cells(row) * problem_.c_stride + cells(col), stride = problem_.c_stride;
  if (below) {
    offset = cells(row - problem_.c_rows) * width + cells(col);
    stride = width;
  } else if (!direct) {
    offset = cells(problem_.m - problem_.c_rows) * width + cells(row) * right +
             cells(col - problem_.c_cols);
    stride = right;
  }
  arch::Bd bd = linear(cells(tile_.native_m()) * cell.span(tile_.n));
  set_rows(bd, cell.span(tile_.n), stride * cell.bytes);
  return {direct ? kC : kCPacked, offset * cell.bytes, bd};
}

// `rows` rows of `depth` cells as tiles of (rows, k_mt).
arch::Bd GemmTransfers::along_k(int64_t rows, const GemmFeed& feed, const GemmCell& cell) const {
  arch::Bd bd = linear(rows * feed.depth * cell.bytes);
  if (feed.stride == cell.count(tile_.k_mt)) return bd;  // contiguous
  set_rows(bd, cell.span(tile_.k_mt), feed.stride * cell.bytes);
  bd.wrap[1] = static_cast<uint32_t>(rows);
  bd.step[2] = words(cell.span(tile_.k_mt));
  return bd;
}

// The same, an object per execution of a BD.
std::vector<GemmTransfer> GemmTransfers::along_objects(int64_t rows, const GemmFeed& feed,
                                                       const GemmCell& cell, uint32_t argument,
                                                       int64_t offset) const {
  const int64_t span = cell.span(tile_.k_mt), objects = feed.depth / cell.count(tile_.k_mt);
  std::vector<GemmTransfer> out;
  for (int64_t object = 0; object < objects; object += max_repeats()) {
    const int64_t repeats = std::min(max_repeats(), objects - object);
    arch::Bd bd = linear(rows * span);
    set_rows(bd, span, feed.stride * cell.bytes);
    bd.iteration_step = words(span);
    bd.iteration_wrap = static_cast<uint32_t>(repeats);
    out.push_back({argument, offset + object * span, bd, repeats});
  }
  return out;
}

// `depth` rows of `cols` cells of `size` bytes, which are tiles of (k, cols).
arch::Bd GemmTransfers::across_k(int64_t cols, const GemmFeed& feed, int64_t size) const {
  arch::Bd bd = linear(cols * feed.depth * size);
  set_rows(bd, cols * size, feed.stride * size);
  return bd;
}

arch::Bd GemmTransfers::linear(int64_t bytes) const {
  arch::Bd bd;
  bd.length = words(bytes);
  return shim_bd(bd, geometry_);
}

}  // namespace npu::ops
