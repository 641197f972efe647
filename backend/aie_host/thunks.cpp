// Operand checks in front of the host kernels. A kernel trusts its operands as it would on the NPU;
// here a wrong size becomes an error instead of a write past the core's memory.
#include "aie_host/thunks.h"

#include "aie_host/core_state.h"
#include "error.h"

namespace npu::aie_host {

namespace {

// Larger than any tile dimension or element count in 64 KB of data memory.
constexpr int64_t kMaxSize = 1 << 16;

// The operands of one call, read in order.
class Operands {
 public:
  Operands(const char* kernel, Arguments arguments, size_t expected)
      : kernel_(kernel), arguments_(arguments) {
    if (arguments.size() != expected) {
      fail(ErrorKind::kKernel, "[%s] takes %zu operands, the worker passes %zu", kernel, expected,
           arguments.size());
    }
  }

  // A positive integer that is a multiple of `step`.
  int32_t size(size_t i, const char* name, int32_t step) const {
    const KernelArgument& argument = arguments_[i];
    if (argument.data != nullptr) {
      fail(ErrorKind::kKernel, "[%s] operand %zu (%s) is an integer, the worker passes a buffer",
           kernel_, i, name);
    }
    if (argument.value <= 0 || argument.value > kMaxSize || argument.value % step != 0) {
      fail(ErrorKind::kKernel, "[%s] %s = %lld, must be a positive multiple of %d up to %lld",
           kernel_, name, static_cast<long long>(argument.value), step,
           static_cast<long long>(kMaxSize));
    }
    return static_cast<int32_t>(argument.value);
  }

  // A buffer of `elements` elements of `element_bytes` bytes each.
  std::byte* buffer(size_t i, const char* name, int64_t elements, int64_t element_bytes) const {
    const KernelArgument& argument = arguments_[i];
    if (argument.data == nullptr) {
      fail(ErrorKind::kKernel,
           "[%s] operand %zu (%s) is a buffer, the worker passes the integer %lld", kernel_, i,
           name, static_cast<long long>(argument.value));
    }
    if (elements * element_bytes > argument.bytes) {
      fail(ErrorKind::kKernel,
           "[%s] operand %zu (%s) needs %lld bytes, the core's memory ends after %u; check the "
           "tile sizes and the buffer's address",
           kernel_, i, name, static_cast<long long>(elements * element_bytes), argument.bytes);
    }
    if (reinterpret_cast<uintptr_t>(argument.data) % static_cast<uintptr_t>(element_bytes) != 0) {
      fail(ErrorKind::kKernel, "[%s] operand %zu (%s) is not aligned to its %lld-byte elements",
           kernel_, i, name, static_cast<long long>(element_bytes));
    }
    return argument.data;
  }

  // The result may not share bytes with an input: kernels load and store in any order.
  void check_apart(const char* name, const std::byte* a, int64_t a_bytes, const char* result,
                   const std::byte* c, int64_t c_bytes) const {
    const auto a_at = reinterpret_cast<uintptr_t>(a), c_at = reinterpret_cast<uintptr_t>(c);
    if (a_at < c_at + static_cast<uintptr_t>(c_bytes) &&
        c_at < a_at + static_cast<uintptr_t>(a_bytes)) {
      fail(ErrorKind::kKernel, "[%s] %s and %s overlap in the core's memory", kernel_, name,
           result);
    }
  }

 private:
  const char* kernel_;
  Arguments arguments_;
};

struct MatmulOperands {
  int32_t m, k, n;
  std::byte *a, *b, *c;
};

MatmulOperands matmul_operands(const char* kernel, Arguments arguments, const MmulShape& shape,
                               int64_t in_bytes) {
  const Operands operands(kernel, arguments, 6);
  MatmulOperands out;
  // 2x2 register blocking: two tiles of rows and of columns at a time.
  out.m = operands.size(3, "m", 2 * shape.r);
  out.k = operands.size(4, "k", shape.s);
  out.n = operands.size(5, "n", 2 * shape.t);
  const int64_t m = out.m, k = out.k, n = out.n;
  out.a = operands.buffer(0, "a", m * k, in_bytes);
  out.b = operands.buffer(1, "b", k * n, in_bytes);
  out.c = operands.buffer(2, "c", m * n, 4);
  operands.check_apart("a", out.a, m * k * in_bytes, "c", out.c, m * n * 4);
  operands.check_apart("b", out.b, k * n * in_bytes, "c", out.c, m * n * 4);
  return out;
}

}  // namespace

void call_matmul_bf16_f32(const KernelTable& table, Arguments arguments, CoreState& core) {
  const MatmulOperands o = matmul_operands("matmul_bf16_f32", arguments, table.bf16, 2);
  const CoreScope scope(core);
  table.matmul_bf16_f32(o.a, o.b, reinterpret_cast<float*>(o.c), o.m, o.k, o.n);
}

void call_matmul_i8_i32(const KernelTable& table, Arguments arguments, CoreState& core) {
  const MatmulOperands o = matmul_operands("matmul_i8_i32", arguments, table.i8, 1);
  const CoreScope scope(core);
  table.matmul_i8_i32(reinterpret_cast<const int8_t*>(o.a), reinterpret_cast<const int8_t*>(o.b),
                      reinterpret_cast<int32_t*>(o.c), o.m, o.k, o.n);
}

void call_zero_f32(const KernelTable& table, Arguments arguments, CoreState& core) {
  const Operands operands("zero_f32", arguments, 2);
  const int32_t count = operands.size(1, "count", kVectorElements);
  std::byte* c = operands.buffer(0, "c", count, 4);
  const CoreScope scope(core);
  table.zero_f32(reinterpret_cast<float*>(c), count);
}

void call_zero_i32(const KernelTable& table, Arguments arguments, CoreState& core) {
  const Operands operands("zero_i32", arguments, 2);
  const int32_t count = operands.size(1, "count", kVectorElements);
  std::byte* c = operands.buffer(0, "c", count, 4);
  const CoreScope scope(core);
  table.zero_i32(reinterpret_cast<int32_t*>(c), count);
}

void call_convert_f32_bf16(const KernelTable& table, Arguments arguments, CoreState& core) {
  const Operands operands("convert_f32_bf16", arguments, 3);
  const int32_t count = operands.size(2, "count", kVectorElements);
  std::byte* src = operands.buffer(0, "src", count, 4);
  std::byte* dst = operands.buffer(1, "dst", count, 2);
  operands.check_apart("src", src, int64_t{count} * 4, "dst", dst, int64_t{count} * 2);
  const CoreScope scope(core);
  table.convert_f32_bf16(reinterpret_cast<const float*>(src), dst, count);
}

}  // namespace npu::aie_host
