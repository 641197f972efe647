// GEMM on a device (gemm.h). Sizes are padded to the native GEMM size of the configuration; an
// operand that needs no padding and no conversion is read where it lies.
#include "ops/gemm.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "arch/device_model.h"
#include "error.h"

namespace npu::ops {

namespace {

constexpr size_t kStreamBudget = size_t{256} << 20;  // bytes of cached streams per configuration

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// The widest C of one stream: a shim BD's step field must hold its row stride.
int64_t widest_c(const GemmTile& tile, int64_t limit) {
  const int64_t words = arch::tile_model(arch::TileKind::kShim).max_step;
  const int64_t addressable = words * 4 / tile.c_bytes;
  const int64_t columns = limit > 0 ? std::min(limit, addressable) : addressable;
  return std::max<int64_t>(1, columns / tile.native_n()) * tile.native_n();
}

ElementType element_param(const Configuration& configuration, const char* name) {
  const int64_t value = configuration.param(name);
  if (value < 0 || value >= kElementTypes) {
    fail(ErrorKind::kFormat, "[gemm] configuration \"%s\": %s = %lld is no element type",
         configuration.name.c_str(), name, static_cast<long long>(value));
  }
  return static_cast<ElementType>(value);
}

BufferView part(const BufferView& view, size_t offset) {
  if (view.bytes == 0) return {};
  return {view.data + offset, view.bytes - offset, view.writable};
}

}  // namespace

Gemm::Gemm(std::shared_ptr<SharedDevice> device, Configuration configuration,
           const GemmLimits& limits)
    : shared_(std::move(device)),
      configuration_(std::move(configuration)),
      tile_(GemmTile::of(configuration_)),
      max_rounds_(std::max<int64_t>(1, limits.rounds)),
      max_columns_(widest_c(tile_, limits.columns)),
      input_(element_param(configuration_, "a_type")),
      output_(element_param(configuration_, "c_type")),
      streams_(kStreamBudget) {}

OpCounters Gemm::counters() const {
  const std::lock_guard<std::mutex> guard(shared_->mutex);
  return {streams_.built(), streams_.hits(), host_copy_bytes_, submit_overhead_ns_,
          stream_build_ns_};
}

void Gemm::check_type(ElementType type) const {
  const bool floats = input_ == ElementType::kBf16;
  if (type != input_ && !(floats && type == ElementType::kF32)) {
    fail(ErrorKind::kDtype, "[gemm] configuration \"%s\" does not take %s operands; pass %s",
         configuration_.name.c_str(), element_name(type),
         floats ? "float32 or bfloat16" : element_name(input_));
  }
}

void Gemm::check(const MatrixView& a, int64_t b_rows, int64_t b_cols, ElementType b_type) const {
  if (a.rows < 1 || a.cols < 1 || b_cols < 1) {
    fail(ErrorKind::kShape,
         "[gemm] A is (%lld, %lld) and B has %lld columns; all sizes must be at least 1",
         static_cast<long long>(a.rows), static_cast<long long>(a.cols),
         static_cast<long long>(b_cols));
  }
  if (a.cols != b_rows) {
    fail(ErrorKind::kShape, "[gemm] A is (%lld, %lld) and B has %lld rows; they must agree in K",
         static_cast<long long>(a.rows), static_cast<long long>(a.cols),
         static_cast<long long>(b_rows));
  }
  check_type(a.type);
  check_type(b_type);
}

// Rows of A, columns of B, that the device can read where they lie: whole native blocks, if what
// is left of the row stride and the address suits 32-bit words and the BD fields.
int64_t Gemm::direct_rows(const MatrixView& matrix, bool is_b) const {
  const MatrixView x = is_b && tile_.b_columns ? matrix.transposed() : matrix;
  const int64_t stride = x.row_stride * tile_.a_bytes;
  if (!shared_->device->accepts_host_memory() || x.type != input_ || !x.dense_rows() ||
      stride < x.cols * tile_.a_bytes || stride % 4 != 0 || !row_step_fits(stride) ||
      reinterpret_cast<uintptr_t>(x.data) % 4 != 0) {
    return 0;
  }
  const int64_t rows = is_b ? matrix.cols : matrix.rows, depth = is_b ? matrix.rows : matrix.cols;
  const int64_t native = is_b ? tile_.native_n() : tile_.native_m();
  if (whole_padding_ && (rows % native != 0 || depth % tile_.k_mt != 0)) return 0;
  return depth < tile_.k_mt ? 0 : rows / native * native;
}

// Tile rows of A or panels of B, in `bytes` bytes; what exceeds the part is zero.
void Gemm::pack_part(const MatrixView& part, bool is_b, std::byte* out, size_t bytes) {
  size_t written = 0;
  if (bytes == 0) return;
  if (is_b && !tile_.b_columns) {
    pack_tiles(part, input_, tile_.k_mt, tile_.n, TileOrder::kColumnsFirst, out);
    written = packed_bytes(part.rows, part.cols, input_, tile_.k_mt, tile_.n);
  } else {
    const MatrixView x = is_b ? part.transposed() : part;
    const int64_t tile_rows = is_b ? tile_.n : tile_.m;
    pack_tiles(x, input_, tile_rows, tile_.k_mt, TileOrder::kRowsFirst, out);
    written = packed_bytes(x.rows, x.cols, input_, tile_rows, tile_.k_mt);
  }
  std::fill(out + written, out + bytes, std::byte{0});
  host_copy_bytes_ += bytes;
}

Gemm::Operand Gemm::place(const MatrixView& matrix, bool is_b, std::unique_ptr<Buffer>& buffer) {
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
  const int64_t native = is_b ? tile_.native_n() : tile_.native_m();
  const int64_t rows = round_up(x.rows, native), k = round_up(x.cols, tile_.k_mt);
  Operand out;
  out.feed.direct = direct_rows(matrix, is_b);
  const int64_t rest = rows - out.feed.direct;
  int64_t tail = 0;
  if (out.feed.direct > 0) {
    out.feed.depth = x.cols / tile_.k_mt * tile_.k_mt;
    out.feed.stride = x.col_stride == 1 ? x.row_stride : x.col_stride;
    tail = out.feed.direct * (k - out.feed.depth);
    const int64_t last = (x.rows - 1) * x.row_stride + (x.cols - 1) * x.col_stride + 1;
    out.matrix = {const_cast<std::byte*>(x.data), static_cast<size_t>(last * tile_.a_bytes), false};
  }
  const size_t packed_size = static_cast<size_t>(rest * k * tile_.a_bytes);
  const size_t tail_size = static_cast<size_t>(tail * tile_.a_bytes);
  if (packed_size + tail_size == 0) return out;
  const BufferView all = shared_->scratch(buffer, packed_size + tail_size);
  out.packed = {all.data, packed_size, false};
  out.tail = {all.data + packed_size, tail_size, false};
  if (rest > 0) {
    const int64_t real = std::max<int64_t>(x.rows - out.feed.direct, 0);
    pack_part(part_of(out.feed.direct, real, 0, x.cols), is_b, out.packed.data, packed_size);
  }
  if (tail > 0) {
    const MatrixView end = part_of(0, out.feed.direct, out.feed.depth, x.cols - out.feed.depth);
    pack_part(end, is_b, out.tail.data, tail_size);
  }
  buffer->sync_to_device();
  return out;
}

std::shared_ptr<const PackedB> Gemm::pack(const MatrixView& b) {
  if (b.rows < 1 || b.cols < 1) {
    fail(ErrorKind::kShape, "[pack] B is (%lld, %lld); both sizes must be at least 1",
         static_cast<long long>(b.rows), static_cast<long long>(b.cols));
  }
  check_type(b.type);
  auto packed = std::make_shared<PackedB>();
  packed->device = shared_;
  packed->k = b.rows;
  packed->n = b.cols;
  packed->padded_k = round_up(b.rows, tile_.k_mt);
  packed->padded_n = round_up(b.cols, tile_.native_n());
  packed->tile = tile_;
  const size_t bytes = static_cast<size_t>(packed->padded_k * packed->padded_n * tile_.a_bytes);
  const std::lock_guard<std::mutex> guard(shared_->mutex);
  packed->buffer = shared_->device->allocate(bytes);
  pack_part(b, true, packed->buffer->data(), bytes);
  packed->buffer->sync_to_device();
  return packed;
}

RunReport Gemm::run(const MatrixView& a, const MatrixView& b, std::byte* c, int shift) {
  check(a, b.rows, b.cols, b.type);
  const std::lock_guard<std::mutex> guard(shared_->mutex);
  const Operand operand_a = place(a, false, a_scratch_);
  return multiply({operand_a, place(b, true, b_scratch_), a.rows, b.cols,
                   round_up(a.rows, tile_.native_m()), round_up(a.cols, tile_.k_mt),
                   round_up(b.cols, tile_.native_n()), c, shift});
}

RunReport Gemm::run(const MatrixView& a, const PackedB& b, std::byte* c, int shift) {
  check(a, b.k, b.n, input_);
  if (b.device != shared_) {
    fail(ErrorKind::kArgument,
         "[gemm] B lies in the memory of another device; pack it for this device");
  }
  if (!tile_.packs_b_like(b.tile)) {
    fail(ErrorKind::kArgument,
         "[gemm] B was packed for tiles of another configuration; pack it again for this device");
  }
  const std::lock_guard<std::mutex> guard(shared_->mutex);
  const Operand operand_a = place(a, false, a_scratch_);
  Operand operand_b;
  operand_b.packed = {b.buffer->data(), b.buffer->bytes(), false};
  return multiply({operand_a, operand_b, a.rows, b.n, round_up(a.rows, tile_.native_m()),
                   b.padded_k, b.padded_n, c, shift});
}

BufferView SharedDevice::scratch(std::unique_ptr<Buffer>& buffer, size_t bytes) const {
  if (!buffer || buffer->bytes() < bytes) buffer = device->allocate(bytes);
  return {buffer->data(), bytes, true};
}

RunReport Gemm::multiply(const Call& call) {
  shared_->device->load(configuration_);
  RunReport total;
  // C wider than a BD's row stride is computed in column chunks, and rows in chunks that bound a
  // stream's length.
  const int64_t width = std::min(call.padded_n, max_columns_);
  const int64_t height =
      std::max<int64_t>(1, max_rounds_ * tile_.native_n() / width) * tile_.native_m();
  for (int64_t col = 0; col < call.padded_n; col += width) {
    for (int64_t row = 0; row < call.padded_m; row += height) {
      const Block block{row, col, std::min(height, call.padded_m - row),
                        std::min(width, call.padded_n - col)};
      add(total, multiply_block(block, call));
    }
  }
  return total;
}

namespace {

// The feed and the views of one operand for `rows` rows from `first`.
struct Slice {
  GemmFeed feed;
  BufferView matrix, packed, tail;
};

}  // namespace

// One submission: a block of C, whose rows and columns are multiples of the native size.
RunReport Gemm::multiply_block(const Block& block, const Call& call) {
  const auto begin = std::chrono::steady_clock::now();
  const auto slice = [&](const Operand& x, int64_t first, int64_t rows, bool along_k) {
    const auto bytes = [&](int64_t elements) {
      return static_cast<size_t>(elements * tile_.a_bytes);
    };
    Slice out;
    const int64_t direct = std::clamp<int64_t>(x.feed.direct - first, 0, rows);
    if (direct < rows) {
      const int64_t skipped = std::max<int64_t>(first - x.feed.direct, 0);
      out.packed = part(x.packed, bytes(skipped * call.padded_k));
    }
    if (direct == 0) return out;
    out.feed = {direct, x.feed.depth, x.feed.stride};
    out.matrix = part(x.matrix, bytes(first * (along_k ? x.feed.stride : 1)));
    out.tail = part(x.tail, bytes(first * (call.padded_k - x.feed.depth)));
    return out;
  };
  const Slice a = slice(call.a, block.row, block.rows, true);
  const Slice b = slice(call.b, block.col, block.cols, tile_.b_columns);
  GemmProblem problem{block.rows, call.padded_k, block.cols};
  problem.a = a.feed;
  problem.b = b.feed;
  problem.shift = call.shift;
  const int64_t rows = std::min(block.rows, call.m - block.row);
  const int64_t cols = std::min(block.cols, call.n - block.col);
  std::byte* target = call.c + (block.row * call.n + block.col) * tile_.c_bytes;
  place_c(problem, rows, cols, call.n, target);
  const int64_t in_place = problem.c_rows * problem.c_cols;
  const int64_t edges = block.rows * block.cols - in_place;
  BufferView c, c_edges;
  if (in_place > 0) {
    const int64_t last = (problem.c_rows - 1) * call.n + problem.c_cols;
    c = {target, static_cast<size_t>(last * tile_.c_bytes), true};
  }
  if (edges > 0) c_edges = shared_->scratch(c_scratch_, static_cast<size_t>(edges * tile_.c_bytes));

  std::chrono::nanoseconds building{0};
  const auto stream = streams_.get(problem, [&] {
    const auto start = std::chrono::steady_clock::now();
    auto built = shared_->device->prepare(build_gemm_stream(configuration_, problem));
    building = std::chrono::steady_clock::now() - start;
    return built;
  });
  const BufferView arguments[] = {a.matrix, b.matrix, c,      a.packed,
                                  b.packed, c_edges,  a.tail, b.tail};
  const RunReport report = shared_->device->submit_prepared(*stream, arguments);
  const std::chrono::nanoseconds taken = std::chrono::steady_clock::now() - begin - building;
  submit_overhead_ns_ += static_cast<uint64_t>(taken.count()) - report.array_ns;
  stream_build_ns_ += static_cast<uint64_t>(building.count());
  if (edges > 0) copy_edges(problem, rows, cols, call.n, c_edges.data, target);
  return report;
}

// Which part of a block of C, of which (rows, cols) are wanted, is written to `target` itself.
void Gemm::place_c(GemmProblem& problem, int64_t rows, int64_t cols, int64_t stride,
                   const std::byte* target) const {
  const int64_t step = stride * tile_.c_bytes;
  const bool direct = shared_->device->accepts_host_memory() && step % 4 == 0 &&
                      row_step_fits(step) && reinterpret_cast<uintptr_t>(target) % 4 == 0 &&
                      !(whole_padding_ && (rows != problem.m || cols != problem.n));
  const int64_t c_rows = rows / tile_.native_m() * tile_.native_m();
  const int64_t c_cols = cols / tile_.native_n() * tile_.native_n();
  if (!direct || c_rows == 0 || c_cols == 0) return;
  problem.c_rows = c_rows;
  problem.c_cols = c_cols;
  problem.c_stride = stride;
}

// The wanted rows and columns of what was not written in place.
void Gemm::copy_edges(const GemmProblem& problem, int64_t rows, int64_t cols, int64_t stride,
                      const std::byte* edges, std::byte* target) {
  c_scratch_->sync_from_device();
  const size_t size = static_cast<size_t>(tile_.c_bytes);
  const int64_t below = rows - problem.c_rows, right = cols - problem.c_cols;
  if (below > 0) {
    copy_block(edges, problem.n, target + problem.c_rows * stride * tile_.c_bytes, stride, below,
               cols, size);
    host_copy_bytes_ += static_cast<size_t>(below * cols) * size;
  }
  if (right > 0 && problem.c_rows > 0) {
    const int64_t skipped = (problem.m - problem.c_rows) * problem.n;
    copy_block(edges + skipped * tile_.c_bytes, problem.n - problem.c_cols,
               target + problem.c_cols * tile_.c_bytes, stride, problem.c_rows, right, size);
    host_copy_bytes_ += static_cast<size_t>(problem.c_rows * right) * size;
  }
}

}  // namespace npu::ops
