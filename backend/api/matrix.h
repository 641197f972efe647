// Matrices of the C interface: as the backend sees them, and whether they are what a product needs.
#pragma once

#include <npu/npu.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "formats/pack.h"

namespace npu::api {

// `name`: "A", in messages. Throws Error(kArgument, kShape, kDtype).
ops::MatrixView view_of(const npu_matrix* matrix, const char* name);

// From the lowest to behind the highest byte of an element.
struct Extent {
  const std::byte *begin, *end;
};
// Throws Error(kShape) if no address space holds the matrix.
Extent extent_of(const ops::MatrixView& matrix, const char* name);

// Throws Error(kShape) for sizes whose padded matrices no 64-bit offset reaches.
void check_sizes(int64_t m, int64_t k, int64_t n);
// Rows of C are dense and apart from each other and from the operands. `dense`: what the caller may
// choose to be, in messages. Throws Error(kArgument).
void check_result(const ops::MatrixView& c, std::span<const Extent> operands, const char* dense);

}  // namespace npu::api
