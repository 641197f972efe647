// Host-side packing of matrices into the order in which the array takes them: conversion to the
// device's element type, zero padding and tiling in one pass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace npu::ops {

// The numbers are those of the a_type, b_type and c_type parameters of GEMM configurations. kBfp16:
// tiles of 8x8 values, 8 blocks of an exponent and 8 mantissas; a matrix has such tiles for
// elements.
enum class ElementType : uint8_t { kF32 = 0, kBf16 = 1, kI8 = 2, kI16 = 3, kI32 = 4, kBfp16 = 5 };
inline constexpr int kElementTypes = 6;
size_t element_bytes(ElementType type);
int64_t element_side(ElementType type);  // values along both sides of an element: 1, of kBfp16 8
const char* element_name(ElementType type);
std::optional<ElementType> element_named(std::string_view name);

// A matrix in host memory; strides in elements, any sign; data at any address.
struct MatrixView {
  const std::byte* data = nullptr;
  ElementType type = ElementType::kF32;
  int64_t rows = 0, cols = 0;
  int64_t row_stride = 0, col_stride = 1;
  bool dense_rows() const { return col_stride == 1; }
  MatrixView transposed() const { return {data, type, cols, rows, col_stride, row_stride}; }
};

enum class TileOrder : uint8_t { kRowsFirst, kColumnsFirst };

// Writes the matrix as tiles of (tile_rows, tile_cols), each row-major, zero-padded at the edges;
// the tiles of one tile row (kRowsFirst) or one tile column (kColumnsFirst) follow each other.
// `target` is kBf16 (from kF32 by round-to-nearest-even, or from kBf16), kI8, kI16 or kBfp16 (from
// the same).
void pack_tiles(const MatrixView& matrix, ElementType target, int64_t tile_rows, int64_t tile_cols,
                TileOrder order, std::byte* out);

// Bytes that pack_tiles writes.
size_t packed_bytes(int64_t rows, int64_t cols, ElementType target, int64_t tile_rows,
                    int64_t tile_cols);

// Copies the top left (rows, cols) of a row-major matrix with `from_cols` columns to one with
// `to_cols`.
void copy_block(const std::byte* from, int64_t from_cols, std::byte* to, int64_t to_cols,
                int64_t rows, int64_t cols, size_t element);

}  // namespace npu::ops
