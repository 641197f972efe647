// GEMM on a device (gemm.h). Sizes are padded to the native GEMM size of the configuration; an
// operand that needs no padding and no conversion is read where it lies.
#include "ops/gemm/gemm.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "error.h"
#include "ops/shim_commands.h"
#include "rounding.h"

namespace npu::ops {

namespace {

constexpr size_t kStreamBudget = size_t{256} << 20;  // bytes of cached streams per configuration

ElementType element_param(const Configuration& configuration, const char* name) {
  return static_cast<ElementType>(configuration.param(name, 0, kElementTypes - 1));
}

constexpr const char* kArgumentNames[kGemmArguments] = {
    "A", "B", "C", "packed A", "packed B", "packed C", "tail A", "tail B"};

Submission submission(const Configuration& configuration, const GemmBlock& block) {
  Submission out{stream_words(configuration,
                              [&](stream::Builder& builder) {
                                append_gemm(builder, configuration, block.problem);
                              }),
                 {}};
  for (size_t i = 0; i < kGemmArguments; ++i) {
    const bool written = i == kC || i == kCPacked;
    out.arguments.push_back(
        {kArgumentNames[i], block.bytes[i], written ? Access::kWrite : Access::kRead});
  }
  return out;
}

std::vector<Submission> submissions(const Configuration& configuration, const Request& request) {
  constexpr int64_t kMaxSide = int64_t{1} << 31, kMaxBlocks = 1 << 16;
  const GemmTile tile = GemmTile::of(configuration);
  const int64_t m = request.get("m", 1, kMaxSide), k = request.get("k", 1, kMaxSide);
  const int64_t n = request.get("n", 1, kMaxSide);
  const double rounds = static_cast<double>(m) / static_cast<double>(tile.native_m()) *
                        static_cast<double>(n) / static_cast<double>(tile.native_n());
  if (rounds > static_cast<double>(GemmLimits{}.rounds * kMaxBlocks)) {
    fail(ErrorKind::kShape,
         "[gemm] M, K, N = %lld, %lld, %lld are more than can be addressed; split the problem",
         static_cast<long long>(m), static_cast<long long>(k), static_cast<long long>(n));
  }
  const bool a_across = request.get("a_across", 0, tile.square) != 0;
  const bool b_across = request.get("b_across", 0, tile.square) != 0;
  GemmExtent extent = GemmExtent::dense(
      tile, m, k, n, static_cast<int>(request.get("shift", 0, kMaxShift)), a_across, b_across);
  if (request.get("packed_b", 0, 1) != 0) extent.b = {};
  const bool overlap = request.get("overlap", 0, 1) != 0;
  std::vector<Submission> out;
  std::vector<GemmProblem> problems;
  for (GemmBlock& block : split_gemm(tile, GemmLimits{}, extent)) {
    block.problem.overlap = overlap;
    const auto same = std::find(problems.begin(), problems.end(), block.problem);
    if (same != problems.end()) {
      ++out[static_cast<size_t>(same - problems.begin())].count;
      continue;
    }
    problems.push_back(block.problem);
    out.push_back(submission(configuration, block));
  }
  return out;
}

}  // namespace

const OperationType kGemmType = {
    "gemm",
    "C = A B",
    {{"m", "rows of A and C"},
     {"k", "columns of A, rows of B"},
     {"n", "columns of B and C"},
     {"shift", "right shift of integer results that the configuration narrows", 0},
     {"packed_b", "1: B was packed before", 0},
     {"a_across", "1: A is (K, M) row-major, for configurations that read both", 0},
     {"b_across", "1: B is (K, N) row-major, for configurations that read both", 0},
     {"overlap", "0: a round's BDs are written only after the round before it ended", 1}},
    {{"512 cubed", {{"m", 512}, {"k", 512}, {"n", 512}}},
     {"ragged", {{"m", 300}, {"k", 500}, {"n", 700}}}},
    &submissions};

Gemm::Gemm(std::shared_ptr<SharedDevice> device, Configuration configuration,
           const GemmLimits& limits)
    : operation_(std::move(device), std::move(configuration), kStreamBudget),
      tile_(GemmTile::of(operation_.configuration())),
      limits_(limits),
      a_type_(element_param(operation_.configuration(), "a_type")),
      b_type_(element_param(operation_.configuration(), "b_type")),
      output_(element_param(operation_.configuration(), "c_type")) {}

void Gemm::check_type(ElementType type, ElementType wanted) const {
  const bool floats = wanted == ElementType::kBf16;
  if (type != wanted && !(floats && type == ElementType::kF32)) {
    fail(ErrorKind::kDtype, "[gemm] configuration \"%s\" does not take %s operands; pass %s",
         configuration().name.c_str(), element_name(type),
         floats ? "float32 or bfloat16" : element_name(wanted));
  }
}

void Gemm::check(const MatrixView& a, int64_t b_rows, int64_t b_cols, ElementType b_type) const {
  if (a.rows < 1 || a.cols < 1 || b_cols < 1) {
    fail(ErrorKind::kShape,
         "[gemm] A is (%lld, %lld) and B has %lld columns; all sizes must be at least 1",
         static_cast<long long>(a.rows), static_cast<long long>(a.cols),
         static_cast<long long>(b_cols));
  }
  // Of an operand in blocks only the number of tiles is known.
  const int64_t unit = std::max(element_side(a.type), element_side(b_type));
  if (divide_up(a.cols * element_side(a.type), unit) !=
      divide_up(b_rows * element_side(b_type), unit)) {
    fail(ErrorKind::kShape, "[gemm] A is (%lld, %lld) and B has %lld rows; they must agree in K",
         static_cast<long long>(a.rows), static_cast<long long>(a.cols),
         static_cast<long long>(b_rows));
  }
  check_type(a.type, a_type_);
  check_type(b_type, b_type_);
}

// Rows of A, columns of B, in cells, that the device could read where they lie: whole native
// blocks, if what is left of the row stride suits 32-bit words and the BD fields.
int64_t Gemm::direct_rows(const MatrixView& matrix, bool is_b) const {
  const MatrixView x = is_b && tile_.b_columns ? matrix.transposed() : matrix;
  const GemmCell& cell = this->cell(is_b);
  const int64_t stride = x.row_stride * cell.bytes;
  if (x.type != (is_b ? b_type_ : a_type_) || !x.dense_rows() || stride < x.cols * cell.bytes ||
      stride % 4 != 0 || !(is_b ? tile_.b_step_fits(stride) : row_step_fits(stride))) {
    return 0;
  }
  const int64_t rows = is_b ? matrix.cols : matrix.rows, depth = is_b ? matrix.rows : matrix.cols;
  const int64_t native = cell.count(is_b ? tile_.native_n() : tile_.native_m());
  return depth < cell.count(tile_.k_mt) ? 0 : rows / native * native;
}

// Tile rows of A or panels of B, in `bytes` bytes; what exceeds the part is zero.
void Gemm::pack_part(const MatrixView& part, bool is_b, std::byte* out, size_t bytes,
                     GemmOrder order) {
  if (bytes == 0) return;
  const ElementType type = is_b ? b_type_ : a_type_;
  const GemmCell& cell = this->cell(is_b);
  const int64_t depth = cell.count(tile_.k_mt);
  const bool across = order != GemmOrder::kAlong, panels = across || (is_b && !tile_.b_columns);
  const int64_t side = cell.count(!is_b ? tile_.m : panels ? tile_.b_panel() : tile_.n);
  const MatrixView x = is_b != panels ? part.transposed() : part;
  const int64_t height = panels ? depth : side, width = panels ? side : depth;
  const TileOrder tiles = panels ? TileOrder::kColumnsFirst : TileOrder::kRowsFirst;
  const bool turns = std::abs(x.col_stride) > std::abs(x.row_stride);
  operation_.timed_copy(bytes, turns ? CopyKind::kTranspose : CopyKind::kPack, [&] {
    pack_tiles(x, type, height, width, tiles, out);
    const size_t written = packed_bytes(x.rows, x.cols, type, height, width);
    std::fill(out + written, out + bytes, std::byte{0});
  });
}

// Whether the device could read x, A or the transpose of B, where it lies in another order than
// kAlong: K runs down its columns in memory.
bool Gemm::read_across(const MatrixView& x, bool is_b, GemmOrder order) const {
  const GemmCell& cell = this->cell(is_b);
  const int64_t stride = x.col_stride * cell.bytes;
  const int64_t step = order == GemmOrder::kTurned ? tile_.k_mt * stride : stride;
  return x.type == (is_b ? b_type_ : a_type_) && x.row_stride == 1 && x.col_stride >= x.rows &&
         stride % 4 == 0 && row_step_fits(step) && x.cols >= tile_.k_mt &&
         x.rows >= (is_b ? tile_.native_n() : tile_.native_m());
}

// How A and B are read: across their rows if they lie so and the configuration can.
std::pair<GemmOrder, GemmOrder> Gemm::orders(const MatrixView& a, const MatrixView& b) const {
  using enum GemmOrder;
  const MatrixView x = b.transposed();
  if (!tile_.square) return {kAlong, kAlong};
  if (read_across(a, false, kInterleaved) && read_across(x, true, kInterleaved)) {
    return {kInterleaved, kInterleaved};
  }
  return {kAlong, read_across(x, true, kTurned) ? kTurned : kAlong};
}

Gemm::Operand Gemm::place(const MatrixView& matrix, bool is_b, Scratch& scratch, GemmOrder order) {
  // As (rows, K), whichever of A and B it is.
  const MatrixView x = is_b ? matrix.transposed() : matrix;
  const auto part_of = [&](int64_t row, int64_t rows, int64_t col, int64_t cols) {
    MatrixView out = x;
    out.data +=
        (row * x.row_stride + col * x.col_stride) * static_cast<int64_t>(element_bytes(x.type));
    out.rows = rows;
    out.cols = cols;
    return is_b ? out.transposed() : out;
  };
  const GemmCell& cell = this->cell(is_b);
  const int64_t native = cell.count(is_b ? tile_.native_n() : tile_.native_m());
  const int64_t depth = cell.count(tile_.k_mt);
  const int64_t rows = round_up(x.rows, native), k = round_up(x.cols, depth);
  Operand out;
  out.feed.order = order;
  const bool along = order == GemmOrder::kAlong;
  if (const int64_t direct = along ? direct_rows(matrix, is_b) : x.rows / native * native;
      direct > 0) {
    const int64_t elements = (x.rows - 1) * x.row_stride + (x.cols - 1) * x.col_stride + 1;
    out.matrix =
        wrap_input(operation_.device(), x.data, static_cast<size_t>(elements * cell.bytes));
    if (out.matrix) {
      const int64_t stride = x.col_stride == 1 && along ? x.row_stride : x.col_stride;
      out.feed = {direct, x.cols / depth * depth, stride, order};
    }
  }
  const GemmPackedBytes bytes = packed_bytes_of(cell, out.feed, rows, k);
  if (bytes.packed + bytes.tail == 0) return out;
  const BufferRef all = scratch.get(operation_.device(), bytes.packed + bytes.tail, Access::kRead);
  out.packed = {all.buffer, 0, bytes.packed, Access::kRead};
  out.tail = all.after(bytes.packed);
  const int64_t direct = out.feed.direct;
  if (bytes.packed > 0) {
    const int64_t real = std::max<int64_t>(x.rows - direct, 0);
    pack_part(part_of(direct, real, 0, x.cols), is_b, all.host(), bytes.packed, order);
  }
  if (bytes.tail > 0) {
    const MatrixView end = part_of(0, direct, out.feed.depth, x.cols - out.feed.depth);
    pack_part(end, is_b, out.tail.host(), bytes.tail, order);
  }
  all.sync_to_device();
  return out;
}

std::shared_ptr<const PackedB> Gemm::pack(const MatrixView& b) {
  if (b.rows < 1 || b.cols < 1) {
    fail(ErrorKind::kShape, "[pack] B is (%lld, %lld); both sizes must be at least 1",
         static_cast<long long>(b.rows), static_cast<long long>(b.cols));
  }
  if (tile_.b.side > 1) {
    fail(ErrorKind::kArgument,
         "[pack] configuration \"%s\" reads B in blocks, in whatever order they are; pass them to "
         "the product",
         configuration().name.c_str());
  }
  check_type(b.type, b_type_);
  auto packed = std::make_shared<PackedB>();
  packed->device = operation_.shared_device();
  packed->k = b.rows;
  packed->n = b.cols;
  packed->padded_k = round_up(b.rows, tile_.k_mt);
  packed->padded_n = round_up(b.cols, tile_.native_n());
  packed->tile = tile_;
  const size_t bytes = static_cast<size_t>(packed->padded_k * packed->padded_n * tile_.b.bytes);
  const auto guard = operation_.lock();
  packed->buffer = operation_.device().allocate(bytes);
  pack_part(b, true, packed->buffer->host(), bytes);
  packed->ref().sync_to_device();
  return packed;
}

RunReport Gemm::run(const MatrixView& a, const MatrixView& b, std::byte* c, int shift) {
  check(a, b.rows, b.cols, b.type);
  const auto guard = operation_.lock();
  const auto [a_order, b_order] = orders(a, b);
  const Operand operand_a = place(a, false, a_scratch_, a_order);
  const Operand operand_b = place(b, true, b_scratch_, b_order);
  const int64_t m = a.rows * tile_.a.side, n = b.cols * tile_.b.side;
  GemmExtent extent{round_up(m, tile_.native_m()),
                    round_up(std::max(a.cols * tile_.a.side, b.rows * tile_.b.side), tile_.k_mt),
                    round_up(n, tile_.native_n()), round_up(m, tile_.c.side),
                    round_up(n, tile_.c.side)};
  extent.shift = shift;
  return multiply(operand_a, operand_b, extent, c);
}

RunReport Gemm::run(const MatrixView& a, const PackedB& b, std::byte* c, int shift) {
  check(a, b.k, b.n, b_type_);
  if (b.device != operation_.shared_device()) {
    fail(ErrorKind::kArgument,
         "[gemm] B lies in the memory of another device; pack it for this device");
  }
  if (!tile_.packs_b_like(b.tile)) {
    fail(ErrorKind::kArgument,
         "[gemm] B was packed for tiles of another configuration; pack it again for this device");
  }
  const auto guard = operation_.lock();
  const Operand operand_a = place(a, false, a_scratch_);
  Operand operand_b;
  operand_b.packed = b.ref();
  GemmExtent extent{round_up(a.rows, tile_.native_m()), b.padded_k, b.padded_n, a.rows, b.n};
  extent.shift = shift;
  return multiply(operand_a, operand_b, extent, c);
}

// c: dense, (extent.rows, extent.cols).
RunReport Gemm::multiply(const Operand& a, const Operand& b, GemmExtent extent, std::byte* c) {
  extent.a = a.feed;
  extent.b = b.feed;
  extent.c_stride = tile_.c.count(extent.cols);
  const int64_t step = tile_.c.span(extent.cols);
  Wrapped direct;
  if (step % 4 == 0 && row_step_fits(step) && extent.rows >= tile_.native_m() &&
      extent.cols >= tile_.native_n()) {
    direct = wrap_memory(operation_.device(), c,
                         static_cast<size_t>(tile_.c.count(extent.rows) * step), Access::kWrite);
  }
  extent.c_direct = static_cast<bool>(direct);
  RunReport total;
  for (const GemmBlock& block : split_gemm(tile_, limits_, extent)) {
    add(total, run_block(block, a, b, direct.ref));
    const size_t edges = block.bytes[kCPacked];
    if (edges == 0) continue;
    std::byte* target = c + tile_.c.count(block.row) * step + tile_.c.span(block.col);
    const BufferRef from = c_scratch_.get(operation_.device(), edges, Access::kWrite);
    copy_edges(block, extent.c_stride, from.host(), target);
  }
  return total;
}

RunReport Gemm::run_block(const GemmBlock& block, const Operand& a, const Operand& b,
                          const BufferRef& c) {
  const GemmProblem& problem = block.problem;
  const auto entry = operation_.prepare(problem, [&](stream::Builder& builder) {
    append_gemm(builder, operation_.configuration(), problem);
    return std::monostate{};
  });
  const auto part = [&](GemmArgument argument, const BufferRef& whole) -> BufferRef {
    if (block.bytes[argument] == 0) return {};
    BufferRef out = whole.after(block.offset[argument]);
    out.bytes = block.bytes[argument];
    return out;
  };
  BufferRef edges;
  if (const size_t bytes = block.bytes[kCPacked]; bytes > 0) {
    edges = c_scratch_.get(operation_.device(), bytes, Access::kWrite);
  }
  const BufferRef arguments[kGemmArguments] = {
      part(kA, a.matrix.ref),   part(kB, b.matrix.ref),   part(kC, c),
      part(kAPacked, a.packed), part(kBPacked, b.packed), edges,
      part(kATail, a.tail),     part(kBTail, b.tail)};
  return operation_.submit(*entry, arguments);
}

// The wanted rows and columns of what was not written in place.
void Gemm::copy_edges(const GemmBlock& block, int64_t stride, const std::byte* edges,
                      std::byte* target) {
  const GemmProblem& problem = block.problem;
  const GemmCell& cell = tile_.c;
  const size_t size = static_cast<size_t>(cell.bytes);
  const int64_t direct = cell.count(problem.c_rows), beside = cell.count(problem.c_cols);
  const int64_t width = cell.count(problem.n), columns = cell.count(block.cols);
  const int64_t below = cell.count(block.rows) - direct, right = columns - beside;
  if (below > 0) {
    operation_.timed_copy(static_cast<size_t>(below * columns) * size, CopyKind::kResult, [&] {
      copy_block(edges, width, target + direct * stride * cell.bytes, stride, below, columns, size);
    });
  }
  if (right > 0 && direct > 0) {
    const int64_t skipped = (cell.count(problem.m) - direct) * width;
    operation_.timed_copy(static_cast<size_t>(direct * right) * size, CopyKind::kResult, [&] {
      copy_block(edges + skipped * cell.bytes, width - beside, target + beside * cell.bytes, stride,
                 direct, right, size);
    });
  }
}

}  // namespace npu::ops
