// Packing loops (pack.h), spread over the thread pool by rows of tiles.
#include "formats/pack.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "host/thread_pool.h"
#include "rounding.h"

namespace npu::ops {

namespace {

// float32 bits -> bfloat16, round to nearest even; NaN stays NaN.
inline uint16_t to_bf16(uint32_t bits) {
  const uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
  const bool nan = (bits & 0x7FFFFFFF) > 0x7F800000;
  return static_cast<uint16_t>(nan ? (bits >> 16 | 0x40) : rounded);
}

struct F32ToBf16 {
  using In = uint32_t;
  using Out = uint16_t;
  static Out convert(In value) { return to_bf16(value); }
};
template <typename T>
struct Same {
  using In = T;
  using Out = T;
  static Out convert(In value) { return value; }
};
struct BlockTile {
  std::byte bytes[72] = {};
};

// NumPy arrays need not be aligned to their elements, so elements are copied out.
template <typename T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// `stride` in bytes.
template <typename Op>
void copy_row(const std::byte* from, int64_t stride, typename Op::Out* to, int64_t count) {
  using In = typename Op::In;
  constexpr int64_t kDense = sizeof(In);
  if (stride == kDense) {
    for (int64_t i = 0; i < count; ++i) to[i] = Op::convert(load<In>(from + i * kDense));
  } else {
    for (int64_t i = 0; i < count; ++i) to[i] = Op::convert(load<In>(from + i * stride));
  }
}

template <typename Op>
void pack(const MatrixView& matrix, int64_t tile_rows, int64_t tile_cols, TileOrder order,
          std::byte* out_bytes) {
  using Out = typename Op::Out;
  constexpr int64_t kIn = sizeof(typename Op::In);
  const int64_t row_step = matrix.row_stride * kIn, col_step = matrix.col_stride * kIn;
  Out* out = reinterpret_cast<Out*>(out_bytes);
  const int64_t down = divide_up(matrix.rows, tile_rows);
  const int64_t across = divide_up(matrix.cols, tile_cols);
  const int64_t tile_size = tile_rows * tile_cols;
  ThreadPool::shared().parallel_for(static_cast<size_t>(down * across), [&](size_t i) {
    // Consecutive indices are consecutive in memory of the output.
    const int64_t t = static_cast<int64_t>(i);
    const int64_t tr = order == TileOrder::kRowsFirst ? t / across : t % down;
    const int64_t tc = order == TileOrder::kRowsFirst ? t % across : t / down;
    Out* tile = out + t * tile_size;
    const int64_t rows = std::min(tile_rows, matrix.rows - tr * tile_rows);
    const int64_t cols = std::min(tile_cols, matrix.cols - tc * tile_cols);
    const std::byte* first = matrix.data + tr * tile_rows * row_step + tc * tile_cols * col_step;
    for (int64_t r = 0; r < rows; ++r) {
      copy_row<Op>(first + r * row_step, col_step, tile + r * tile_cols, cols);
      std::fill(tile + r * tile_cols + cols, tile + (r + 1) * tile_cols, Out{});
    }
    std::fill(tile + rows * tile_cols, tile + tile_size, Out{});
  });
}

}  // namespace

size_t element_bytes(ElementType type) {
  switch (type) {
    case ElementType::kF32:
    case ElementType::kI32:
      return 4;
    case ElementType::kBf16:
    case ElementType::kI16:
      return 2;
    case ElementType::kBfp16:
      return sizeof(BlockTile);
    case ElementType::kI8:
      break;
  }
  return 1;
}

int64_t element_side(ElementType type) { return type == ElementType::kBfp16 ? 8 : 1; }

const char* element_name(ElementType type) {
  switch (type) {
    case ElementType::kF32:
      return "float32";
    case ElementType::kI32:
      return "int32";
    case ElementType::kBf16:
      return "bfloat16";
    case ElementType::kI16:
      return "int16";
    case ElementType::kBfp16:
      return "bfp16";
    case ElementType::kI8:
      break;
  }
  return "int8";
}

std::optional<ElementType> element_named(std::string_view name) {
  for (int number = 0; number < kElementTypes; ++number) {
    const auto type = static_cast<ElementType>(number);
    if (name == element_name(type)) return type;
  }
  return std::nullopt;
}

size_t packed_bytes(int64_t rows, int64_t cols, ElementType target, int64_t tile_rows,
                    int64_t tile_cols) {
  const int64_t down = divide_up(rows, tile_rows);
  const int64_t across = divide_up(cols, tile_cols);
  return static_cast<size_t>(down * across * tile_rows * tile_cols) * element_bytes(target);
}

void pack_tiles(const MatrixView& matrix, ElementType target, int64_t tile_rows, int64_t tile_cols,
                TileOrder order, std::byte* out) {
  if (target == ElementType::kBf16 && matrix.type == ElementType::kF32) {
    pack<F32ToBf16>(matrix, tile_rows, tile_cols, order, out);
  } else if (target == matrix.type && element_bytes(target) == 2) {
    pack<Same<uint16_t>>(matrix, tile_rows, tile_cols, order, out);
  } else if (target == ElementType::kBfp16) {
    assert(matrix.type == target);
    pack<Same<BlockTile>>(matrix, tile_rows, tile_cols, order, out);
  } else {
    assert(target == ElementType::kI8 && matrix.type == ElementType::kI8);
    pack<Same<uint8_t>>(matrix, tile_rows, tile_cols, order, out);
  }
}

void copy_block(const std::byte* from, int64_t from_cols, std::byte* to, int64_t to_cols,
                int64_t rows, int64_t cols, size_t element) {
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(to + static_cast<size_t>(r * to_cols) * element,
                from + static_cast<size_t>(r * from_cols) * element,
                static_cast<size_t>(cols) * element);
  }
}

}  // namespace npu::ops
