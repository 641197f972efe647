// npu_matmul, npu_pack and npu_matmul_packed: checks of matrices and options, then ops::Matmul.
#include <cstring>
#include <utility>
#include <vector>

#include "api/guard.h"
#include "api/matrix.h"

namespace npu::api {

namespace {

using ops::ElementType;
using ops::MatrixView;

bool is_float(ElementType type) { return type == ElementType::kF32 || type == ElementType::kBf16; }

// bfp16 or native, as the caller says, else as `otherwise` does.
bool bfp16_of(const npu_device& device, const char* word, ElementType operand, bool otherwise,
              const char* function) {
  const bool floats = is_float(operand);
  if (word == nullptr) return floats && otherwise;
  const std::string mode = word;
  const bool npu2 = device.info.generation == arch::Generation::kNpu2;
  if (!floats || (mode != "native" && !(mode == "bfp16" && npu2))) {
    fail(ErrorKind::kArgument, "[%s] bf16 is \"%.40s\"; %s", function, mode.c_str(),
         floats ? "use \"native\", or on npu2 \"bfp16\"" : "leave it out for integers");
  }
  return mode == "bfp16";
}

ops::MatmulOptions options_of(const npu_device& device, const npu_matmul_options* given,
                              ElementType a, ElementType c, bool bfp16) {
  const npu_matmul_options defaults = NPU_MATMUL_OPTIONS_INIT;
  check_size(given, "matmul", "NPU_MATMUL_OPTIONS_INIT");
  const npu_matmul_options in = read_struct(given, defaults);
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
  out.bfp16 = bfp16_of(device, in.bf16, a, bfp16, "matmul");
  return out;
}

template <typename Handle>
void check_handle(Handle* handle, const char* name) {
  if (handle == nullptr) fail(ErrorKind::kArgument, "[matmul] %s is null", name);
}

void check_shapes(const MatrixView& a, int64_t b_rows, int64_t b_cols, const MatrixView& c) {
  if (a.cols != b_rows || c.rows != a.rows || c.cols != b_cols) {
    fail(ErrorKind::kShape,
         "[matmul] A is (%lld, %lld), B (%lld, %lld) and C (%lld, %lld); expected (M, K), (K, N) "
         "and (M, N)",
         static_cast<long long>(a.rows), static_cast<long long>(a.cols),
         static_cast<long long>(b_rows), static_cast<long long>(b_cols),
         static_cast<long long>(c.rows), static_cast<long long>(c.cols));
  }
  check_sizes(a.rows, a.cols, b_cols);
}

void zero(const MatrixView& c, std::byte* data) {
  const size_t row = static_cast<size_t>(c.cols) * element_bytes(c.type);
  const int64_t step = c.row_stride * static_cast<int64_t>(element_bytes(c.type));
  for (int64_t i = 0; i < c.rows && row > 0; ++i) std::memset(data + i * step, 0, row);
}

// run(where to put a dense C), if there is anything to compute. C has dense rows.
template <typename Run>
void into(const MatrixView& c, int64_t depth, void* memory, const Run& run) {
  auto* data = static_cast<std::byte*>(memory);
  if (c.rows == 0 || c.cols == 0) return;
  if (depth == 0) return zero(c, data);
  if (c.row_stride == c.cols || c.rows == 1) return run(data);
  const size_t bytes = element_bytes(c.type);
  std::vector<std::byte> dense(static_cast<size_t>(c.rows) * static_cast<size_t>(c.cols) * bytes);
  run(dense.data());
  ops::copy_block(dense.data(), c.cols, data, c.row_stride, c.rows, c.cols, bytes);
}

npu_run run_of(const ops::MatmulReport& report) {
  npu_run out = NPU_RUN_INIT;
  if (report.design == nullptr) return out;  // nothing had to run
  const perf::GemmPoint& point = report.design->point;
  put(out.configuration, report.design->key);
  put(out.reason, report.choice.reason);
  out.tile_m = static_cast<int32_t>(point.m);
  out.tile_k = static_cast<int32_t>(point.k);
  out.tile_n = static_cast<int32_t>(point.n);
  out.k_mt = static_cast<int32_t>(point.k_mt);
  out.predicted_seconds = report.choice.predicted_seconds;
  out.load_seconds = report.choice.load_seconds;
  out.array_ns = report.run.array_ns;
  out.read_bytes = report.run.shim_read_bytes;
  out.write_bytes = report.run.shim_write_bytes;
  out.kernel_calls = report.run.kernel_calls;
  return out;
}

}  // namespace

}  // namespace npu::api

using namespace npu::api;

npu_status npu_matmul(npu_device* device, const npu_matrix* a, const npu_matrix* b,
                      const npu_matrix* c, const npu_matmul_options* options, npu_run* run) {
  return guarded([&] {
    check_handle(device, "device");
    check_size(run, "matmul", "NPU_RUN_INIT");
    MatrixView left = view_of(a, "A"), right = view_of(b, "B"), out = view_of(c, "C");
    check_shapes(left, right.rows, right.cols, out);
    const Extent operands[] = {extent_of(left, "A"), extent_of(right, "B")};
    const auto chosen = options_of(*device, options, left.type, out.type, device->bfp16);
    device->matmul->designs_for(left.type, right.type, out.type, npu::ops::GemmLayout::kRow,
                                chosen);
    if (out.col_stride != 1 && out.row_stride == 1) {  // C^T = B^T A^T
      std::swap(left, right);
      left = left.transposed();
      right = right.transposed();
      out = out.transposed();
    }
    check_result(out, operands, "rows or its columns");
    npu::ops::MatmulReport report;
    into(out, left.cols, c->data, [&](std::byte* dense) {
      report = device->matmul->run(left, right, dense, out.type, chosen);
    });
    write_struct(run, run_of(report));
  });
}

npu_status npu_pack(npu_device* device, const npu_matrix* b, const char* bf16,
                    npu_packed** packed) {
  if (packed != nullptr) *packed = nullptr;
  return guarded([&] {
    check_handle(device, "device");
    check_handle(packed, "packed");
    const MatrixView view = view_of(b, "B");
    check_sizes(1, view.rows, view.cols);
    extent_of(view, "B");
    const bool bfp16 = bfp16_of(*device, bf16, view.type, device->bfp16, "pack");
    *packed = new npu_packed{device->matmul->pack(view, bfp16)};
  });
}

void npu_packed_free(npu_packed* packed) { delete packed; }

npu_status npu_matmul_packed(npu_device* device, const npu_matrix* a, const npu_packed* b,
                             const npu_matrix* c, const npu_matmul_options* options, npu_run* run) {
  return guarded([&] {
    check_handle(device, "device");
    check_handle(b, "B");
    check_size(run, "matmul", "NPU_RUN_INIT");
    const MatrixView left = view_of(a, "A"), out = view_of(c, "C");
    const npu::ops::PackedMatrix& right = b->matrix;
    check_shapes(left, right.b->k, right.b->n, out);
    const Extent operands[] = {extent_of(left, "A")};
    check_result(out, operands, "rows");
    const auto chosen = options_of(*device, options, left.type, out.type, right.bfp16);
    npu::ops::MatmulReport report;
    into(out, left.cols, c->data, [&](std::byte* dense) {
      report = device->matmul->run(left, right, dense, out.type, chosen);
    });
    write_struct(run, run_of(report));
  });
}
