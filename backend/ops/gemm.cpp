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

ElementType element_param(const Configuration& configuration, const char* name) {
  const int64_t value = configuration.param(name);
  if (value < 0 || value >= kElementTypes) {
    fail(ErrorKind::kFormat, "[gemm] configuration \"%s\": %s = %lld is no element type",
         configuration.name.c_str(), name, static_cast<long long>(value));
  }
  return static_cast<ElementType>(value);
}

BufferView part(const BufferView& view, size_t offset) {
  return {view.data + offset, view.bytes - offset, view.writable};
}

}  // namespace

Gemm::Gemm(std::shared_ptr<SharedDevice> device, Configuration configuration)
    : shared_(std::move(device)),
      configuration_(std::move(configuration)),
      tile_(GemmTile::of(configuration_)),
      input_(element_param(configuration_, "a_type")),
      output_(element_param(configuration_, "c_type")),
      streams_(kStreamBudget) {}

OpCounters Gemm::counters() const {
  const std::lock_guard<std::mutex> guard(shared_->mutex);
  return {streams_.built(), streams_.hits(), host_copy_bytes_};
}

void Gemm::check(const MatrixView& a, int64_t b_rows, ElementType b_type) const {
  if (a.cols != b_rows) {
    fail(ErrorKind::kShape, "[gemm] A is (%lld, %lld) and B has %lld rows; they must agree in K",
         static_cast<long long>(a.rows), static_cast<long long>(a.cols),
         static_cast<long long>(b_rows));
  }
  for (const ElementType type : {a.type, b_type}) {
    const bool converted = input_ == ElementType::kBf16 && type == ElementType::kF32;
    if (type != input_ && !converted) {
      fail(ErrorKind::kDtype, "[gemm] configuration \"%s\" does not take %s operands",
           configuration_.name.c_str(), element_name(type));
    }
  }
}

BufferView Gemm::scratch(std::unique_ptr<Buffer>& buffer, size_t bytes) {
  if (!buffer || buffer->bytes() < bytes) buffer = shared_->device->allocate(bytes);
  return {buffer->data(), bytes, true};
}

// A, or the transpose of a B whose configuration is column-major: read where it lies, or packed.
Gemm::Operand Gemm::place_along_k(const MatrixView& matrix, int64_t tile_rows, int64_t native_rows,
                                  std::unique_ptr<Buffer>& buffer) {
  const size_t element = element_bytes(input_);
  const bool direct = shared_->device->accepts_host_memory() && matrix.type == input_ &&
                      matrix.rows % native_rows == 0 && matrix.cols % tile_.k_mt == 0 &&
                      matrix.dense_rows() && matrix.row_stride == matrix.cols &&
                      row_step_fits(matrix.cols * tile_.a_bytes) &&
                      reinterpret_cast<uintptr_t>(matrix.data) % 4 == 0;
  if (direct) {
    const size_t bytes = static_cast<size_t>(matrix.rows * matrix.cols) * element;
    return {{const_cast<std::byte*>(matrix.data), bytes, false}, false};
  }
  // Rows are padded to the native size, tiles are the cores'.
  const size_t bytes = packed_bytes(matrix.rows, matrix.cols, input_, native_rows, tile_.k_mt);
  const BufferView view = scratch(buffer, bytes);
  pack_tiles(matrix, input_, tile_rows, tile_.k_mt, TileOrder::kRowsFirst, view.data);
  const size_t written = packed_bytes(matrix.rows, matrix.cols, input_, tile_rows, tile_.k_mt);
  std::fill(view.data + written, view.data + bytes, std::byte{0});
  buffer->sync_to_device();
  host_copy_bytes_ += bytes;
  return {view, true};
}

// Panels of tile_n columns, in `bytes` bytes; what exceeds B is zero.
void Gemm::pack_b(const MatrixView& b, std::byte* out, size_t bytes) const {
  if (tile_.b_columns) {
    pack_tiles(b.transposed(), input_, tile_.n, tile_.k_mt, TileOrder::kRowsFirst, out);
  } else {
    pack_tiles(b, input_, tile_.k_mt, tile_.n, TileOrder::kColumnsFirst, out);
  }
  const size_t written = packed_bytes(b.rows, b.cols, input_, tile_.k_mt, tile_.n);
  std::fill(out + written, out + bytes, std::byte{0});
}

Gemm::Operand Gemm::place_b(const MatrixView& b) {
  if (tile_.b_columns) {
    return place_along_k(b.transposed(), tile_.n, tile_.native_n(), b_scratch_);
  }
  const bool direct = shared_->device->accepts_host_memory() && b.type == input_ &&
                      b.rows % tile_.k_mt == 0 && b.cols % tile_.native_n() == 0 &&
                      b.dense_rows() && b.row_stride == b.cols && b.cols <= widest_c(tile_) &&
                      row_step_fits(b.cols * tile_.a_bytes) &&
                      reinterpret_cast<uintptr_t>(b.data) % 4 == 0;
  if (direct) {
    const size_t bytes = static_cast<size_t>(b.rows * b.cols * tile_.a_bytes);
    return {{const_cast<std::byte*>(b.data), bytes, false}, false};
  }
  const int64_t elements = round_up(b.rows, tile_.k_mt) * round_up(b.cols, tile_.native_n());
  const BufferView view = scratch(b_scratch_, static_cast<size_t>(elements * tile_.a_bytes));
  pack_b(b, view.data, view.bytes);
  b_scratch_->sync_to_device();
  host_copy_bytes_ += view.bytes;
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
  packed->padded_k = round_up(b.rows, tile_.k_mt);
  packed->padded_n = round_up(b.cols, tile_.native_n());
  packed->tile = tile_;
  const size_t bytes = static_cast<size_t>(packed->padded_k * packed->padded_n * tile_.a_bytes);
  const std::lock_guard<std::mutex> guard(shared_->mutex);
  packed->buffer = shared_->device->allocate(bytes);
  pack_b(b, packed->buffer->data(), bytes);
  packed->buffer->sync_to_device();
  host_copy_bytes_ += bytes;
  return packed;
}

RunReport Gemm::run(const MatrixView& a, const MatrixView& b, std::byte* c, int shift) {
  check(a, b.rows, b.type);
  const std::lock_guard<std::mutex> guard(shared_->mutex);
  const Operand operand_a = place_along_k(a, tile_.m, tile_.native_m(), a_scratch_);
  return multiply({operand_a, place_b(b), a.rows, b.cols, round_up(a.rows, tile_.native_m()),
                   round_up(a.cols, tile_.k_mt), round_up(b.cols, tile_.native_n()), c, shift});
}

RunReport Gemm::run(const MatrixView& a, const PackedB& b, std::byte* c, int shift) {
  check(a, b.k, input_);
  if (b.tile != tile_) {
    fail(ErrorKind::kArgument,
         "[gemm] B was packed for tiles of another configuration; pack it again for this device");
  }
  const std::lock_guard<std::mutex> guard(shared_->mutex);
  const Operand operand_a = place_along_k(a, tile_.m, tile_.native_m(), a_scratch_);
  const Operand operand_b{{b.buffer->data(), b.buffer->bytes(), false}, true};
  return multiply({operand_a, operand_b, a.rows, b.n, round_up(a.rows, tile_.native_m()),
                   b.padded_k, b.padded_n, c, shift});
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

RunReport Gemm::multiply(const Call& call) {
  shared_->device->load(configuration_);
  RunReport total;
  // C wider than a BD's row stride is computed in column chunks (row-major B read in place never
  // is), and rows in chunks that bound a stream's length.
  const int64_t width = std::min(call.padded_n, widest_c(tile_));
  const int64_t height =
      std::max<int64_t>(1, kMaxRounds * tile_.native_n() / width) * tile_.native_m();
  for (int64_t col = 0; col < call.padded_n; col += width) {
    for (int64_t row = 0; row < call.padded_m; row += height) {
      const Block block{row, col, std::min(height, call.padded_m - row),
                        std::min(width, call.padded_n - col)};
      add(total, multiply_block(block, call));
    }
  }
  return total;
}

// One submission: a block of C, whose rows and columns are multiples of the native size.
RunReport Gemm::multiply_block(const Block& block, const Call& call) {
  const size_t c_bytes = static_cast<size_t>(tile_.c_bytes);
  std::byte* target = call.c + static_cast<size_t>(block.row * call.n + block.col) * c_bytes;
  const int64_t rows = std::min(block.rows, call.m - block.row);
  const int64_t cols = std::min(block.cols, call.n - block.col);
  const bool direct = shared_->device->accepts_host_memory() && rows == block.rows &&
                      block.cols == call.n && reinterpret_cast<uintptr_t>(target) % 4 == 0;
  const size_t bytes = static_cast<size_t>(block.rows * block.cols) * c_bytes;
  const BufferView out = direct ? BufferView{target, bytes, true} : scratch(c_scratch_, bytes);
  GemmProblem problem{block.rows, call.padded_k, block.cols};
  problem.a_layout = call.a.packed ? ALayout::kTiles : ALayout::kRowMajor;
  problem.b_layout = call.b.packed ? BLayout::kPanels : BLayout::kMatrix;
  problem.shift = call.shift;
  const auto stream =
      streams_.get(problem, [&] { return build_gemm_stream(configuration_, problem); });
  // Rows of A are contiguous in both layouts, as are columns of B in panels or column-major.
  const auto offset = [&](int64_t first) {
    return static_cast<size_t>(first * call.padded_k * tile_.a_bytes);
  };
  const BufferView arguments[] = {part(call.a.view, offset(block.row)),
                                  part(call.b.view, offset(block.col)), out};
  const RunReport report = shared_->device->submit(*stream, arguments);
  if (!direct) {
    c_scratch_->sync_from_device();
    host_copy_bytes_ += static_cast<size_t>(rows * cols) * c_bytes;
    copy_block(out.data, block.cols, target, call.n, rows, cols, c_bytes);
  }
  return report;
}

}  // namespace npu::ops
