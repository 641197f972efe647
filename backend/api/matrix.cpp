// What a caller may get wrong about matrices (matrix.h).
#include "api/matrix.h"

#include <algorithm>
#include <limits>

#include "error.h"

namespace npu::api {

using ops::ElementType;
using ops::MatrixView;

namespace {

// Beyond that no 64-bit offset reaches a padded matrix; no native size is larger than kPadding.
constexpr double kMaxBytes = 0x1p62;
constexpr int64_t kPadding = 1024;

ElementType element_type(const npu_matrix& m, const char* name) {
  // Blocks of BFP16, the type behind them, are not part of the interface.
  if (m.dtype >= 0 && m.dtype <= int(ElementType::kI32)) return static_cast<ElementType>(m.dtype);
  fail(ErrorKind::kDtype, "[matmul] %s has dtype %d; use NPU_FLOAT32 to NPU_INT32", name, m.dtype);
}

}  // namespace

MatrixView view_of(const npu_matrix* m, const char* name) {
  if (m == nullptr) fail(ErrorKind::kArgument, "[matmul] %s is null; pass a matrix", name);
  const ElementType type = element_type(*m, name);
  if (m->rows < 0 || m->cols < 0) {
    fail(ErrorKind::kShape, "[matmul] %s is (%lld, %lld); sizes are at least 0", name,
         static_cast<long long>(m->rows), static_cast<long long>(m->cols));
  }
  if (m->data == nullptr && m->rows > 0 && m->cols > 0) {
    fail(ErrorKind::kArgument, "[matmul] the data of %s is null; pass where its elements are",
         name);
  }
  MatrixView out{static_cast<const std::byte*>(m->data), type, m->rows, m->cols};
  const bool dense = m->row_stride == 0 && m->col_stride == 0;
  // A stride that nothing uses may be any number: it takes no part in arithmetic.
  out.col_stride = dense || m->cols <= 1 ? 1 : m->col_stride;
  out.row_stride = dense || (m->rows <= 1 && out.col_stride == 1) ? m->cols
                   : m->rows <= 1                                 ? 1
                                                                  : m->row_stride;
  return out;
}

// Bytes between the lowest and the highest element; refuses what no address space holds.
Extent extent_of(const MatrixView& m, const char* name) {
  if (m.rows == 0 || m.cols == 0) return {m.data, m.data};
  const auto bytes = static_cast<__int128>(element_bytes(m.type));
  const __int128 down = static_cast<__int128>(m.rows - 1) * m.row_stride * bytes;
  const __int128 right = static_cast<__int128>(m.cols - 1) * m.col_stride * bytes;
  const __int128 low = std::min<__int128>(down, 0) + std::min<__int128>(right, 0);
  const __int128 high = std::max<__int128>(down, 0) + std::max<__int128>(right, 0) + bytes;
  const auto at = static_cast<__int128>(reinterpret_cast<uintptr_t>(m.data));
  if (at + low < 0 || at + high > std::numeric_limits<intptr_t>::max()) {
    fail(ErrorKind::kShape,
         "[matmul] the elements of %s would lie beyond the address space; check "
         "its sizes and strides",
         name);
  }
  return {m.data + static_cast<int64_t>(low), m.data + static_cast<int64_t>(high)};
}

void check_sizes(int64_t m, int64_t k, int64_t n) {
  const double sides[] = {static_cast<double>(m) + kPadding, static_cast<double>(k) + kPadding,
                          static_cast<double>(n) + kPadding};
  if (4 * sides[0] * sides[1] > kMaxBytes || 4 * sides[1] * sides[2] > kMaxBytes ||
      4 * sides[0] * sides[2] > kMaxBytes) {
    fail(ErrorKind::kShape, "[matmul] %lld x %lld x %lld is more than can be addressed; split it",
         static_cast<long long>(m), static_cast<long long>(k), static_cast<long long>(n));
  }
}

void check_result(const MatrixView& c, std::span<const Extent> operands, const char* dense) {
  const bool rows = c.col_stride == 1 && (c.row_stride >= c.cols || c.rows <= 1);
  if (!rows) {
    fail(ErrorKind::kArgument,
         "[matmul] C has strides (%lld, %lld); its %s must be dense and apart from each other",
         static_cast<long long>(c.row_stride), static_cast<long long>(c.col_stride), dense);
  }
  const Extent own = extent_of(c, "C");
  for (const Extent& in : operands) {
    if (own.begin < in.end && in.begin < own.end) {
      fail(ErrorKind::kArgument,
           "[matmul] the memory from C's first to its last element overlaps an operand's; "
           "pass memory of its own");
    }
  }
}

}  // namespace npu::api
