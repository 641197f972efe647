// npu_matmul: checks of matrices and options, then ops::Matmul.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "api/guard.h"

namespace npu::api {

namespace {

using ops::ElementType;
using ops::MatrixView;

// Beyond that no 64-bit offset reaches a padded matrix; no native size is larger than kPadding.
constexpr double kMaxBytes = 0x1p62;
constexpr int64_t kPadding = 1024;

struct Extent {
  const std::byte *begin, *end;
};

ElementType element_type(const npu_matrix& m, const char* name) {
  if (m.dtype >= 0 && m.dtype < ops::kElementTypes) return static_cast<ElementType>(m.dtype);
  fail(ErrorKind::kDtype, "[matmul] %s has dtype %d; use NPU_FLOAT32 to NPU_INT32", name, m.dtype);
}

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
  out.row_stride = dense ? m->cols : m->row_stride;
  out.col_stride = dense ? 1 : m->col_stride;
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

void check_result(const MatrixView& c, const Extent& a, const Extent& b) {
  const bool rows = c.col_stride == 1 && (c.row_stride >= c.cols || c.rows <= 1);
  if (!rows) {
    fail(
        ErrorKind::kArgument,
        "[matmul] C has strides (%lld, %lld); its rows or its columns must be dense and apart from "
        "each other",
        static_cast<long long>(c.row_stride), static_cast<long long>(c.col_stride));
  }
  const Extent own = extent_of(c, "C");
  for (const Extent& in : {a, b}) {
    if (own.begin < in.end && in.begin < own.end) {
      fail(ErrorKind::kArgument, "[matmul] C overlaps an operand; pass memory of its own");
    }
  }
}

ops::MatmulOptions options_of(const npu_device& device, const npu_matmul_options* given,
                              bool floats, ElementType c) {
  const npu_matmul_options defaults = NPU_MATMUL_OPTIONS_INIT;
  check_size(given, "matmul", "NPU_MATMUL_OPTIONS_INIT");
  const npu_matmul_options& in = given != nullptr ? *given : defaults;
  ops::MatmulOptions out;
  out.shift = in.shift;
  if (in.shift < 0 || in.shift > ops::kMaxShift) {
    fail(ErrorKind::kArgument, "[matmul] shift is %d; use 0 to %d", in.shift, ops::kMaxShift);
  }
  if (in.shift != 0 && c != ElementType::kI8 && c != ElementType::kI16) {
    fail(ErrorKind::kArgument, "[matmul] shift is %d and C %s; it is for int16 and int8 results",
         in.shift, element_name(c));
  }
  const std::string sums = in.accumulate != nullptr ? in.accumulate : "wide";
  if (sums != "wide" && sums != "narrow") {
    fail(ErrorKind::kArgument, "[matmul] accumulate is \"%.40s\"; use \"wide\" or \"narrow\"",
         sums.c_str());
  }
  out.narrow = sums == "narrow";
  if (in.bf16 == nullptr) {
    out.bfp16 = floats && device.bfp16;
    return out;
  }
  const std::string mode = in.bf16;
  const bool npu2 = device.info.generation == arch::Generation::kNpu2;
  if (!floats || (mode != "native" && !(mode == "bfp16" && npu2))) {
    fail(ErrorKind::kArgument, "[matmul] bf16 is \"%.40s\"; %s", mode.c_str(),
         floats ? "use \"native\", or on npu2 \"bfp16\"" : "leave it out for integers");
  }
  out.bfp16 = mode == "bfp16";
  return out;
}

void zero(const MatrixView& c, std::byte* data) {
  const size_t row = static_cast<size_t>(c.cols) * element_bytes(c.type);
  const int64_t step = c.row_stride * static_cast<int64_t>(element_bytes(c.type));
  for (int64_t i = 0; i < c.rows && row > 0; ++i) std::memset(data + i * step, 0, row);
}

// A and B not empty, C with dense rows.
ops::MatmulReport multiply(ops::Matmul& matmul, const MatrixView& a, const MatrixView& b,
                           const MatrixView& c, std::byte* data,
                           const ops::MatmulOptions& options) {
  if (c.row_stride == c.cols || c.rows == 1) return matmul.run(a, b, data, c.type, options);
  const size_t bytes = element_bytes(c.type);
  std::vector<std::byte> dense(static_cast<size_t>(c.rows) * static_cast<size_t>(c.cols) * bytes);
  ops::MatmulReport report = matmul.run(a, b, dense.data(), c.type, options);
  ops::copy_block(dense.data(), c.cols, data, c.row_stride, c.rows, c.cols, bytes);
  return report;
}

void fill(npu_run* out, const ops::MatmulReport& report) {
  if (report.design == nullptr) return;
  const perf::GemmPoint& point = report.design->point;
  put(out->configuration, report.design->key);
  put(out->reason, report.choice.reason);
  out->tile_m = static_cast<int32_t>(point.m);
  out->tile_k = static_cast<int32_t>(point.k);
  out->tile_n = static_cast<int32_t>(point.n);
  out->k_mt = static_cast<int32_t>(point.k_mt);
  out->predicted_seconds = report.choice.predicted_seconds;
  out->load_seconds = report.choice.load_seconds;
  out->array_ns = report.run.array_ns;
  out->read_bytes = report.run.shim_read_bytes;
  out->write_bytes = report.run.shim_write_bytes;
  out->kernel_calls = report.run.kernel_calls;
}

}  // namespace

}  // namespace npu::api

npu_status npu_matmul(npu_device* device, const npu_matrix* a, const npu_matrix* b,
                      const npu_matrix* c, const npu_matmul_options* options, npu_run* run) {
  using namespace npu::api;
  return guarded([&] {
    if (device == nullptr) {
      npu::fail(npu::ErrorKind::kArgument, "[matmul] device is null; open one");
    }
    check_size(run, "matmul", "NPU_RUN_INIT");
    MatrixView left = view_of(a, "A"), right = view_of(b, "B"), out = view_of(c, "C");
    if (left.cols != right.rows || out.rows != left.rows || out.cols != right.cols) {
      npu::fail(npu::ErrorKind::kShape,
                "[matmul] A is (%lld, %lld), B (%lld, %lld) and C (%lld, %lld); expected (M, K), "
                "(K, N) and (M, N)",
                static_cast<long long>(left.rows), static_cast<long long>(left.cols),
                static_cast<long long>(right.rows), static_cast<long long>(right.cols),
                static_cast<long long>(out.rows), static_cast<long long>(out.cols));
    }
    check_sizes(left.rows, left.cols, right.cols);
    if (out.col_stride != 1 && out.row_stride == 1) {  // C^T = B^T A^T
      std::swap(left, right);
      left = left.transposed();
      right = right.transposed();
      out = out.transposed();
    }
    check_result(out, extent_of(left, "A"), extent_of(right, "B"));
    const bool floats = left.type == ElementType::kF32 || left.type == ElementType::kBf16;
    const auto chosen = options_of(*device, options, floats, out.type);
    const size_t size = run != nullptr ? run->size : 0;
    npu_run result = NPU_RUN_INIT;
    if (out.rows > 0 && out.cols > 0) {
      auto* data = static_cast<std::byte*>(c->data);
      if (left.cols == 0) {
        zero(out, data);
      } else {
        fill(&result, multiply(*device->matmul, left, right, out, data, chosen));
      }
    }
    if (run == nullptr) return;
    *run = result;
    run->size = size;
  });
}
