// Conversion to BFP16 on the host (bfp16_matrix.h): tiles of bfloat16, then the kernel that cores
// convert with.
#include "ops/gemm/bfp16_matrix.h"

#include <algorithm>
#include <array>
#include <vector>

#include "error.h"
#include "host/thread_pool.h"
#include "kernels/kernel.h"
#include "rounding.h"

namespace npu::ops {

namespace {

constexpr int64_t kSide = 8, kValues = kSide * kSide;
constexpr int64_t kTileBytes = 72;
constexpr int64_t kRows = 512;   // at a time: bounds the copy in bfloat16
constexpr int64_t kTiles = 512;  // of a call

void convert_tiles(const HostKernel& kernel, std::byte* values, std::byte* out, int64_t tiles) {
  ThreadPool::shared().parallel_for(static_cast<size_t>(divide_up(tiles, kTiles)), [&](size_t i) {
    const int64_t first = static_cast<int64_t>(i) * kTiles;
    const int64_t count = std::min(kTiles, tiles - first);
    const std::array<KernelArgument, 3> arguments{
        KernelArgument{values + first * kValues * 2, static_cast<uint32_t>(count * kValues * 2)},
        KernelArgument{out + first * kTileBytes, static_cast<uint32_t>(count * kTileBytes)},
        KernelArgument{nullptr, 0, count * kValues}};
    CoreState core;
    kernel(arguments, core);
  });
}

}  // namespace

size_t bfp16_bytes(int64_t rows, int64_t cols) {
  return static_cast<size_t>(divide_up(rows, kSide) * divide_up(cols, kSide) * kTileBytes);
}

void pack_bfp16(const MatrixView& matrix, std::byte* out) {
  if (matrix.type != ElementType::kF32 && matrix.type != ElementType::kBf16) {
    fail(ErrorKind::kDtype, "[pack] a matrix of %s has no blocks; pass float32 or bfloat16",
         element_name(matrix.type));
  }
  const HostKernel kernel =
      find_host_kernel("convert_bf16_bfp16_a", arch::Generation::kNpu2, Arithmetic::kFast);
  const int64_t across = divide_up(matrix.cols, kSide);
  std::vector<uint16_t> values;
  for (int64_t row = 0; row < matrix.rows; row += kRows) {
    MatrixView part = matrix;
    part.rows = std::min(kRows, matrix.rows - row);
    part.data += row * matrix.row_stride * static_cast<int64_t>(element_bytes(matrix.type));
    const int64_t tiles = divide_up(part.rows, kSide) * across;
    values.resize(static_cast<size_t>(tiles * kValues));
    auto* const bytes = reinterpret_cast<std::byte*>(values.data());
    pack_tiles(part, ElementType::kBf16, kSide, kSide, TileOrder::kRowsFirst, bytes);
    convert_tiles(kernel, bytes, out + row / kSide * across * kTileBytes, tiles);
  }
}

}  // namespace npu::ops
