// GEMM on a device (gemm.h). Sizes are padded to the native GEMM size of the configuration; an
// operand that needs no padding and no conversion is read where it lies.
#include "ops/gemm/gemm.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
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

// Of a block, or of one of a product and one of the next.
Submission submission(const Configuration& configuration, std::span<const GemmBlock> blocks) {
  std::vector<GemmProblem> problems;
  Submission out;
  for (const GemmBlock& block : blocks) {
    problems.push_back(block.problem);
    for (size_t i = 0; i < kGemmArguments; ++i) {
      const bool written = i == kC || i == kCPacked;
      out.arguments.push_back(
          {kArgumentNames[i], block.bytes[i], written ? Access::kWrite : Access::kRead});
    }
  }
  out.words = stream_words(configuration, [&](stream::Builder& builder) {
    append_gemms(builder, configuration, problems);
  });
  return out;
}

// The blocks of the product that the request describes in fields with such a prefix.
std::vector<GemmBlock> blocks_of(const GemmTile& tile, const Request& request,
                                 const std::string& prefix) {
  constexpr int64_t kMaxSide = int64_t{1} << 31, kMaxBlocks = 1 << 16;
  const auto field = [&](const char* name, int64_t least, int64_t most) {
    return request.get(prefix + name, least, most);
  };
  const int64_t m = field("m", 1, kMaxSide), k = field("k", 1, kMaxSide);
  const int64_t n = field("n", 1, kMaxSide);
  const double rounds = static_cast<double>(m) / static_cast<double>(tile.native_m()) *
                        static_cast<double>(n) / static_cast<double>(tile.native_n());
  if (rounds > static_cast<double>(GemmLimits{}.rounds * kMaxBlocks)) {
    fail(ErrorKind::kShape,
         "[gemm] M, K, N = %lld, %lld, %lld are more than can be addressed; split the problem",
         static_cast<long long>(m), static_cast<long long>(k), static_cast<long long>(n));
  }
  const bool a_across = field("a_across", 0, tile.square) != 0;
  const bool b_across = field("b_across", 0, tile.square) != 0;
  GemmExtent extent = GemmExtent::dense(
      tile, m, k, n, static_cast<int>(request.get("shift", 0, kMaxShift)), a_across, b_across);
  if (field("packed_b", 0, 1) != 0) extent.b = {};
  std::vector<GemmBlock> blocks = split_gemm(tile, GemmLimits{}, extent);
  for (GemmBlock& block : blocks) block.problem.overlap = request.get("overlap", 0, 1) != 0;
  return blocks;
}

std::vector<Submission> submissions(const Configuration& configuration, const Request& request) {
  const GemmTile tile = GemmTile::of(configuration);
  std::vector<GemmBlock> blocks = blocks_of(tile, request, "");
  size_t joined = SIZE_MAX;  // the block that shares a submission with the next one
  if (request["then_m"] != 0) {
    const std::vector<GemmBlock> next = blocks_of(tile, request, "then_");
    if (fit_together(tile, GemmLimits{}, blocks.back(), next.front())) joined = blocks.size() - 1;
    blocks.insert(blocks.end(), next.begin(), next.end());
  }
  std::vector<Submission> out;
  std::vector<GemmProblem> problems;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const size_t count = i == joined ? 2 : 1;
    const auto same = std::find(problems.begin(), problems.end(), blocks[i].problem);
    if (count == 1 && same != problems.end()) {
      ++out[static_cast<size_t>(same - problems.begin())].count;
      continue;
    }
    problems.push_back(count == 1 ? blocks[i].problem : GemmProblem{});  // no block is empty
    out.push_back(submission(configuration, std::span(blocks).subspan(i, count)));
    i += count - 1;
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
     {"overlap", "0: a round's BDs are written only after the round before it ended", 1},
     {"then_m", "of another product in the last submission; 0: none", 0},
     {"then_k", "its K", 0},
     {"then_n", "its N", 0},
     {"then_packed_b", "as packed_b", 0},
     {"then_a_across", "as a_across", 0},
     {"then_b_across", "as b_across", 0}},
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

void Gemm::check(const GemmProduct& product) const {
  const PackedB* packed = product.packed;
  if (packed == nullptr) {
    return check(product.a, product.b.rows, product.b.cols, product.b.type);
  }
  check(product.a, packed->k, packed->n, b_type_);
  if (packed->device != operation_.shared_device()) {
    fail(ErrorKind::kArgument,
         "[gemm] B lies in the memory of another device; pack it for this device");
  }
  if (!tile_.packs_b_like(packed->tile)) {
    fail(ErrorKind::kArgument,
         "[gemm] B was packed for tiles of another configuration; pack it again for this device");
  }
}

RunReport Gemm::run(const MatrixView& a, const MatrixView& b, std::byte* c, int shift) {
  const GemmProduct product{a, b, nullptr, c, shift};
  check(product);
  const auto guard = operation_.lock();
  Planned planned = plan(product, memory_[0]);
  return submit_all(planned, 0, planned.blocks.size());
}

RunReport Gemm::run(const MatrixView& a, const PackedB& b, std::byte* c, int shift) {
  const GemmProduct product{a, {}, &b, c, shift};
  check(product);
  const auto guard = operation_.lock();
  Planned planned = plan(product, memory_[0]);
  return submit_all(planned, 0, planned.blocks.size());
}

namespace {

// From the first to the last byte of a matrix; none of one without values.
struct Extent {
  const std::byte *begin, *end;
  bool meets(const Extent& other) const {
    const std::less<const std::byte*> before;
    return before(begin, other.end) && before(other.begin, end);
  }
};

Extent extent_of(const MatrixView& x) {
  if (x.data == nullptr) return {nullptr, nullptr};
  const auto size = static_cast<int64_t>(element_bytes(x.type));
  const int64_t steps[] = {(x.rows - 1) * x.row_stride, (x.cols - 1) * x.col_stride};
  int64_t low = 0, high = 1;
  for (const int64_t step : steps) (step < 0 ? low : high) += step;
  return {x.data + low * size, x.data + high * size};
}

}  // namespace

void Gemm::check_apart(const GemmProduct& writes, const GemmProduct& other) const {
  const auto result = [&](const GemmProduct& of) {
    const int64_t n = of.packed ? of.packed->n : of.b.cols * tile_.b.side;
    const int64_t rows = divide_up(of.a.rows * tile_.a.side, int64_t{tile_.c.side});
    const int64_t columns = divide_up(n, int64_t{tile_.c.side});
    return extent_of({of.c, output_, rows, columns, columns, 1});
  };
  const std::pair<const char*, Extent> others[] = {
      {"the result", result(other)}, {"A", extent_of(other.a)}, {"B", extent_of(other.b)}};
  for (const auto& [what, extent] : others) {
    if (!result(writes).meets(extent)) continue;
    fail(ErrorKind::kArgument,
         "[gemm] of two products in one submission, one writes memory that %s of the other "
         "lies in; submit them one after the other, or give the result memory of its own",
         what);
  }
}

RunReport Gemm::run_both(const GemmProduct& first, const GemmProduct& second) {
  check(first);
  check(second);
  check_apart(first, second);
  check_apart(second, first);
  const auto guard = operation_.lock();
  Planned one = plan(first, memory_[0]), other = plan(second, memory_[1]);
  const size_t most = operation_.device().info().max_arguments;
  const bool fits = fit_together(tile_, limits_, one.blocks.back(), other.blocks.front());
  const size_t joined = fits && most >= 2 * kGemmArguments ? 1 : 0;
  RunReport total = submit_all(one, 0, one.blocks.size() - joined);
  if (joined > 0) {
    const Part parts[] = {{one, one.blocks.back()}, {other, other.blocks.front()}};
    add(total, submit(parts));
  }
  add(total, submit_all(other, joined, other.blocks.size()));
  return total;
}

Gemm::Planned Gemm::plan(const GemmProduct& product, Memory& memory) {
  const MatrixView &a = product.a, &b = product.b;
  if (const PackedB* packed = product.packed) {
    Operand operand_b;
    operand_b.packed = packed->ref();
    GemmExtent extent{round_up(a.rows, tile_.native_m()), packed->padded_k,
                      round_up(packed->n, tile_.native_n()), a.rows, packed->n};
    extent.shift = product.shift;
    return plan(place(a, false, memory.a), std::move(operand_b), extent, product.c, memory);
  }
  const auto [a_order, b_order] = orders(a, b);
  const int64_t m = a.rows * tile_.a.side, n = b.cols * tile_.b.side;
  GemmExtent extent{round_up(m, tile_.native_m()),
                    round_up(std::max(a.cols * tile_.a.side, b.rows * tile_.b.side), tile_.k_mt),
                    round_up(n, tile_.native_n()), round_up(m, tile_.c.side),
                    round_up(n, tile_.c.side)};
  extent.shift = product.shift;
  return plan(place(a, false, memory.a, a_order), place(b, true, memory.b, b_order), extent,
              product.c, memory);
}

// c: dense, (extent.rows, extent.cols).
Gemm::Planned Gemm::plan(Operand a, Operand b, GemmExtent extent, std::byte* c, Memory& memory) {
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
  return {std::move(a),
          std::move(b),
          std::move(direct),
          c,
          extent.c_stride,
          step,
          memory,
          split_gemm(tile_, limits_, extent)};
}

RunReport Gemm::submit_all(Planned& product, size_t first, size_t end) {
  RunReport total;
  for (; first < end; ++first) {
    const Part part{product, product.blocks[first]};
    add(total, submit(std::span(&part, 1)));
  }
  return total;
}

RunReport Gemm::submit(std::span<const Part> parts) {
  std::vector<GemmProblem> problems;
  std::vector<BufferRef> arguments;
  for (const Part& part : parts) {
    const GemmBlock& block = part.block;
    problems.push_back(block.problem);
    const auto within = [&](GemmArgument argument, const BufferRef& whole) -> BufferRef {
      if (block.bytes[argument] == 0) return {};
      BufferRef out = whole.after(block.offset[argument]);
      out.bytes = block.bytes[argument];
      return out;
    };
    BufferRef edges;
    if (const size_t bytes = block.bytes[kCPacked]; bytes > 0) {
      edges = part.product.memory.c.get(operation_.device(), bytes, Access::kWrite);
    }
    const Operand &a = part.product.a, &b = part.product.b;
    arguments.insert(arguments.end(), {within(kA, a.matrix.ref), within(kB, b.matrix.ref),
                                       within(kC, part.product.direct.ref),
                                       within(kAPacked, a.packed), within(kBPacked, b.packed),
                                       edges, within(kATail, a.tail), within(kBTail, b.tail)});
  }
  const auto entry = operation_.prepare(problems, [&](stream::Builder& builder) {
    append_gemms(builder, operation_.configuration(), problems);
    return std::monostate{};
  });
  const RunReport report = operation_.submit(*entry, arguments);
  for (const Part& part : parts) copy_edges(part);
  return report;
}

// The wanted rows and columns of what was not written in place.
void Gemm::copy_edges(const Part& part) {
  const GemmBlock& block = part.block;
  if (block.bytes[kCPacked] == 0) return;
  const int64_t stride = part.product.c_stride;
  const std::byte* edges =
      part.product.memory.c.get(operation_.device(), block.bytes[kCPacked], Access::kWrite).host();
  std::byte* target =
      part.product.c + tile_.c.count(block.row) * part.product.c_step + tile_.c.span(block.col);
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
