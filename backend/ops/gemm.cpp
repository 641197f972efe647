// GEMM on a device (gemm.h). Sizes are padded to the native GEMM size of the configuration; an
// operand that needs no padding and no conversion is read where it lies.
#include "ops/gemm.h"

#include <algorithm>

#include "error.h"

namespace npu::ops {

namespace {

constexpr int64_t kMaxRounds = 2048;                 // output rounds per stream: about 6 MB on npu2
constexpr size_t kStreamBudget = size_t{256} << 20;  // bytes of cached streams per configuration

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// The widest C a shim BD can address: its row stride must fit the step field.
int64_t widest_c(const GemmTile& tile) {
  const int64_t words = arch::tile_model(arch::TileKind::kShim).max_step;
  return words * 4 / tile.c_bytes / tile.native_n() * tile.native_n();
}

BufferView part(const BufferView& view, size_t offset) {
  return {view.data + offset, view.bytes - offset, view.writable};
}

}  // namespace

Gemm::Gemm(std::shared_ptr<SharedDevice> device, Configuration configuration)
    : shared_(std::move(device)),
      configuration_(std::move(configuration)),
      tile_(GemmTile::of(configuration_)),
      input_(tile_.a_bytes == 1 ? ElementType::kI8 : ElementType::kBf16),
      output_(input_ == ElementType::kI8 ? ElementType::kI32
              : tile_.c_bytes == 2       ? ElementType::kBf16
                                         : ElementType::kF32),
      streams_(kStreamBudget) {}

OpCounters Gemm::counters() const {
  const std::lock_guard<std::mutex> guard(shared_->mutex);
  return {streams_.built(), streams_.hits()};
}

void Gemm::check(const MatrixView& a, int64_t b_rows, ElementType b_type) const {
  if (a.cols != b_rows) {
    fail(ErrorKind::kShape, "[gemm] A is (%lld, %lld) and B has %lld rows; they must agree in K",
         static_cast<long long>(a.rows), static_cast<long long>(a.cols),
         static_cast<long long>(b_rows));
  }
  for (const ElementType type : {a.type, b_type}) {
    const bool accepted = input_ == ElementType::kI8
                              ? type == ElementType::kI8
                              : type == ElementType::kF32 || type == ElementType::kBf16;
    if (!accepted) {
      fail(ErrorKind::kDtype, "[gemm] configuration \"%s\" does not take %s operands",
           configuration_.name.c_str(), element_name(type));
    }
  }
}

BufferView Gemm::scratch(std::unique_ptr<Buffer>& buffer, size_t bytes) {
  if (!buffer || buffer->bytes() < bytes) buffer = shared_->device->allocate(bytes);
  return {buffer->data(), buffer->bytes(), true};
}

Gemm::Operand Gemm::place_a(const MatrixView& a, int64_t padded_m, int64_t padded_k) {
  const int64_t max_step = arch::tile_model(arch::TileKind::kShim).max_step;
  const bool direct = shared_->device->accepts_host_memory() && a.type == input_ &&
                      a.rows == padded_m && a.cols == padded_k && a.dense_rows() &&
                      a.row_stride == a.cols && a.cols * tile_.a_bytes / 4 <= max_step &&
                      reinterpret_cast<uintptr_t>(a.data) % 4 == 0;
  if (direct) {
    const size_t bytes = static_cast<size_t>(a.rows * a.cols * tile_.a_bytes);
    return {{const_cast<std::byte*>(a.data), bytes, false}, false};
  }
  const size_t bytes = packed_bytes(a.rows, a.cols, input_, tile_.native_m(), tile_.k);
  BufferView view = scratch(a_scratch_, bytes);
  // Rows are padded to the native size, tiles are the cores'.
  pack_tiles(a, input_, tile_.m, tile_.k, TileOrder::kRowsFirst, view.data);
  const size_t written = packed_bytes(a.rows, a.cols, input_, tile_.m, tile_.k);
  std::fill(view.data + written, view.data + bytes, std::byte{0});
  a_scratch_->sync_to_device();
  return {view, true};
}

Gemm::Operand Gemm::place_b(const MatrixView& b, int64_t padded_k, int64_t padded_n) {
  const bool direct = shared_->device->accepts_host_memory() && b.type == input_ &&
                      b.rows == padded_k && b.cols == padded_n && b.dense_rows() &&
                      b.row_stride == b.cols && row_step_fits(b.cols * tile_.a_bytes) &&
                      reinterpret_cast<uintptr_t>(b.data) % 4 == 0;
  if (direct) {
    const size_t bytes = static_cast<size_t>(b.rows * b.cols * tile_.a_bytes);
    return {{const_cast<std::byte*>(b.data), bytes, false}, false};
  }
  const size_t bytes = static_cast<size_t>(padded_k * padded_n * tile_.a_bytes);
  BufferView view = scratch(b_scratch_, bytes);
  pack_tiles(b, input_, tile_.k, tile_.n, TileOrder::kColumnsFirst, view.data);
  const size_t written = packed_bytes(b.rows, b.cols, input_, tile_.k, tile_.n);
  std::fill(view.data + written, view.data + bytes, std::byte{0});
  b_scratch_->sync_to_device();
  return {view, true};
}

std::shared_ptr<const PackedB> Gemm::pack(const MatrixView& b) {
  if (b.rows < 1 || b.cols < 1) {
    fail(ErrorKind::kShape, "[pack] B is (%lld, %lld); both sizes must be at least 1",
         static_cast<long long>(b.rows), static_cast<long long>(b.cols));
  }
  auto packed = std::make_shared<PackedB>();
  packed->k = b.rows;
  packed->n = b.cols;
  packed->padded_k = round_up(b.rows, tile_.k);
  packed->padded_n = round_up(b.cols, tile_.native_n());
  packed->tile = tile_;
  const size_t bytes = static_cast<size_t>(packed->padded_k * packed->padded_n * tile_.a_bytes);
  const std::lock_guard<std::mutex> guard(shared_->mutex);
  packed->buffer = shared_->device->allocate(bytes);
  pack_tiles(b, input_, tile_.k, tile_.n, TileOrder::kColumnsFirst, packed->buffer->data());
  const size_t written = packed_bytes(b.rows, b.cols, input_, tile_.k, tile_.n);
  std::fill(packed->buffer->data() + written, packed->buffer->data() + bytes, std::byte{0});
  packed->buffer->sync_to_device();
  return packed;
}

RunReport Gemm::run(const MatrixView& a, const MatrixView& b, std::byte* c) {
  check(a, b.rows, b.type);
  const std::lock_guard<std::mutex> guard(shared_->mutex);
  const int64_t padded_n = round_up(b.cols, tile_.native_n());
  return multiply(a, place_b(b, round_up(b.rows, tile_.k), padded_n), b.cols, padded_n, c);
}

RunReport Gemm::run(const MatrixView& a, const PackedB& b, std::byte* c) {
  check(a, b.k, input_);
  if (b.tile.k != tile_.k || b.tile.n != tile_.n || b.tile.a_bytes != tile_.a_bytes ||
      b.tile.columns != tile_.columns) {
    fail(ErrorKind::kArgument,
         "[gemm] B was packed for tiles of another configuration; pack it again for this device");
  }
  const std::lock_guard<std::mutex> guard(shared_->mutex);
  const Operand operand{{b.buffer->data(), b.buffer->bytes(), false}, true};
  return multiply(a, operand, b.n, b.padded_n, c);
}

namespace {

void add(RunReport& total, const RunReport& part) {
  total.operations += part.operations;
  total.kernel_calls += part.kernel_calls;
  total.shim_read_bytes += part.shim_read_bytes;
  total.shim_write_bytes += part.shim_write_bytes;
  total.memtile_read_bytes += part.memtile_read_bytes;
  total.memtile_write_bytes += part.memtile_write_bytes;
  total.core_read_bytes += part.core_read_bytes;
  total.core_write_bytes += part.core_write_bytes;
}

}  // namespace

RunReport Gemm::multiply(const MatrixView& a, const Operand& b, int64_t n, int64_t padded_n,
                         std::byte* c) {
  const int64_t padded_m = round_up(a.rows, tile_.native_m());
  const int64_t padded_k = round_up(a.cols, tile_.k);
  const Operand operand_a = place_a(a, padded_m, padded_k);
  shared_->device->load(configuration_);

  RunReport total;
  // C wider than a BD's row stride is computed in column chunks (only packed B gets that wide), and
  // rows in chunks that bound a stream's length.
  const int64_t width = b.packed ? std::min(padded_n, widest_c(tile_)) : padded_n;
  const int64_t height =
      std::max<int64_t>(1, kMaxRounds * tile_.native_n() / width) * tile_.native_m();
  for (int64_t col = 0; col < padded_n; col += width) {
    for (int64_t row = 0; row < padded_m; row += height) {
      const Block block{row, col, std::min(height, padded_m - row),
                        std::min(width, padded_n - col)};
      add(total, multiply_block(block, a.rows, n, padded_k, operand_a, b, c));
    }
  }
  return total;
}

// One submission: a block of C, whose rows and columns are multiples of the native size.
RunReport Gemm::multiply_block(const Block& block, int64_t m, int64_t n, int64_t padded_k,
                               const Operand& a, const Operand& b, std::byte* c) {
  const size_t c_bytes = static_cast<size_t>(tile_.c_bytes);
  std::byte* target = c + static_cast<size_t>(block.row * n + block.col) * c_bytes;
  const int64_t rows = std::min(block.rows, m - block.row);
  const int64_t cols = std::min(block.cols, n - block.col);
  const bool direct = shared_->device->accepts_host_memory() && rows == block.rows &&
                      block.cols == n && reinterpret_cast<uintptr_t>(target) % 4 == 0;
  const size_t bytes = static_cast<size_t>(block.rows * block.cols) * c_bytes;
  const BufferView out = direct ? BufferView{target, bytes, true} : scratch(c_scratch_, bytes);
  const GemmProblem problem{block.rows, padded_k, block.cols,
                            a.packed ? ALayout::kTiles : ALayout::kRowMajor,
                            b.packed ? BLayout::kPanels : BLayout::kMatrix};
  const auto stream =
      streams_.get(problem, [&] { return build_gemm_stream(configuration_, problem); });
  // Rows of A are contiguous in both layouts, columns of B in panels.
  const auto offset = [&](int64_t first) {
    return static_cast<size_t>(first * padded_k * tile_.a_bytes);
  };
  const BufferView arguments[] = {part(a.view, offset(block.row)), part(b.view, offset(block.col)),
                                  out};
  const RunReport report = shared_->device->submit(*stream, arguments);
  if (!direct) {
    c_scratch_->sync_from_device();
    copy_block(out.data, block.cols, target, n, rows, cols, c_bytes);
  }
  return report;
}

}  // namespace npu::ops
