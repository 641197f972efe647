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
    const int64_t value = integer(i, name);
    if (value <= 0 || value > kMaxSize || value % step != 0) {
      fail(ErrorKind::kKernel, "[%s] %s = %lld, must be a positive multiple of %d up to %lld",
           kernel_, name, static_cast<long long>(value), step, static_cast<long long>(kMaxSize));
    }
    return static_cast<int32_t>(value);
  }

  int32_t shift(size_t i) const {
    const int64_t value = integer(i, "shift");
    if (value < 0 || value > kMaxShift) {
      fail(ErrorKind::kKernel, "[%s] shift = %lld, must be 0 to %d", kernel_,
           static_cast<long long>(value), kMaxShift);
    }
    return static_cast<int32_t>(value);
  }

  // The first row of C, a multiple of `step`.
  int64_t row(size_t i, int32_t step) const {
    const int64_t value = integer(i, "row");
    if (value < 0 || value > kMaxSize || value % step != 0) {
      fail(ErrorKind::kKernel, "[%s] row = %lld, must be a multiple of %d from 0 to %lld", kernel_,
           static_cast<long long>(value), step, static_cast<long long>(kMaxSize));
    }
    return value;
  }

  // `count` elements are tiles in `k` rows.
  void check_rows(int32_t count, int32_t k) const {
    if (count % (k * kBlockSide) != 0) {
      fail(ErrorKind::kKernel, "[%s] count = %d, must be a multiple of %d: whole tiles in k = %d",
           kernel_, count, k * kBlockSide, k);
    }
  }

  // Pipelined kernels unroll k (aie_kernels/matmul_pipelined.cc).
  void check_pipelined(int64_t steps) const {
    if (steps < kMinPipelinedSteps || steps > kMaxPipelinedSteps) {
      fail(ErrorKind::kKernel, "[%s] k has %lld steps, the kernel is unrolled for %d to %d",
           kernel_, static_cast<long long>(steps), kMinPipelinedSteps, kMaxPipelinedSteps);
    }
  }

  // A buffer of `bytes` bytes, aligned to `alignment`.
  std::byte* buffer(size_t i, const char* name, int64_t bytes, int64_t alignment) const {
    const KernelArgument& argument = arguments_[i];
    if (argument.data == nullptr) {
      fail(ErrorKind::kKernel,
           "[%s] operand %zu (%s) is a buffer, the worker passes the integer %lld", kernel_, i,
           name, static_cast<long long>(argument.value));
    }
    if (bytes > argument.bytes) {
      fail(ErrorKind::kKernel,
           "[%s] operand %zu (%s) needs %lld bytes, the core's memory ends after %u; check the "
           "tile sizes and the buffer's address",
           kernel_, i, name, static_cast<long long>(bytes), argument.bytes);
    }
    if (reinterpret_cast<uintptr_t>(argument.data) % static_cast<uintptr_t>(alignment) != 0) {
      fail(ErrorKind::kKernel, "[%s] operand %zu (%s) is not aligned to its %lld-byte elements",
           kernel_, i, name, static_cast<long long>(alignment));
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
  int64_t integer(size_t i, const char* name) const {
    if (arguments_[i].data != nullptr) {
      fail(ErrorKind::kKernel, "[%s] operand %zu (%s) is an integer, the worker passes a buffer",
           kernel_, i, name);
    }
    return arguments_[i].value;
  }

  const char* kernel_;
  Arguments arguments_;
};

// The shift operand, if the kernel takes one.
int32_t shift_operand(const HostFunction& f, const Operands& operands, size_t i) {
  return f.shift ? operands.shift(i) : 0;
}

void call_matmul(const HostFunction& f, Arguments arguments, CoreState& core) {
  const Operands operands(f.name, arguments, 6u + f.shift + f.row);
  // 2x2 register blocking: two tiles of rows and of columns at a time.
  const int64_t m = operands.size(3, "m", 2 * f.tile.r);
  const int64_t k = operands.size(4, "k", f.tile.s);
  const int64_t n = operands.size(5, "n", 2 * f.tile.t);
  const int32_t shift = shift_operand(f, operands, 6);
  const int64_t row = f.row ? operands.row(6u + f.shift, 2 * f.tile.r) : 0;
  if (f.row) operands.check_pipelined(k / f.tile.s);
  const int64_t c_size = (row + m) * n * f.out_bytes;
  const std::byte* a = operands.buffer(0, "a", f.in_size(m * k), f.in_bytes);
  const std::byte* b = operands.buffer(1, "b", f.in_size(k * n), f.in_bytes);
  std::byte* c = operands.buffer(2, "c", c_size, f.out_bytes);
  operands.check_apart("a", a, f.in_size(m * k), "c", c, c_size);
  operands.check_apart("b", b, f.in_size(k * n), "c", c, c_size);
  const CoreScope scope(core);
  set_packed_operands(arguments[0].packed, arguments[1].packed);
  f.matmul(a, b, c, static_cast<int32_t>(m), static_cast<int32_t>(k), static_cast<int32_t>(n),
           shift, static_cast<int32_t>(row));
}

void call_zero(const HostFunction& f, Arguments arguments, CoreState& core) {
  const Operands operands(f.name, arguments, 2);
  const int32_t count = operands.size(1, "count", kVectorElements);
  std::byte* c = operands.buffer(0, "c", int64_t{count} * f.out_bytes, f.out_bytes);
  const CoreScope scope(core);
  f.zero(c, count);
}

void call_convert(const HostFunction& f, Arguments arguments, CoreState& core) {
  const Operands operands(f.name, arguments, f.shift || f.depth ? 4 : 3);
  const int32_t count = operands.size(2, "count", f.out_blocks ? kBlockTile : kVectorElements);
  int32_t last = shift_operand(f, operands, 3);
  if (f.depth) {
    last = operands.size(3, "k", kBlockSide);
    operands.check_rows(count, last);
  }
  const std::byte* src = operands.buffer(0, "src", f.in_size(count), f.in_bytes);
  std::byte* dst = operands.buffer(1, "dst", f.out_size(count), f.out_bytes);
  // Where they lie: a narrowing kernel has loaded what its stores overwrite.
  const bool in_place = src == dst && f.out_bytes < f.in_bytes && !f.out_blocks;
  if (!in_place) {
    operands.check_apart("src", src, f.in_size(count), "dst", dst, f.out_size(count));
  }
  const CoreScope scope(core);
  f.convert(src, dst, count, last);
}

// Sizes of the GEMV kernels: aie_kernels/gemv_q4nx.cc.
constexpr int64_t kBlockBytes = 5120, kXElements = 2048, kYBytes = 512, kSumFloats = 8 * 32;
constexpr int64_t kGemvWords = 16, kMostCores = 32, kLine = 256, kBlockRows = 32;

void call_gemv_setup(const HostFunction& f, Arguments arguments, CoreState& core) {
  const Operands operands(f.name, arguments, 5);
  const std::byte* table = operands.buffer(0, "table", 2 * kXElements, 2);
  std::byte* words = operands.buffer(1, "words", 4 * kGemvWords, 4);
  std::byte* state = operands.buffer(2, "state", 4 * kGemvWords, 4);
  std::byte* sums = operands.buffer(3, "sums", 4 * kSumFloats, 4);
  const int64_t index = arguments[4].value;
  if (arguments[4].data != nullptr || index < 0 || index >= kMostCores) {
    fail(ErrorKind::kKernel, "[%s] operand 4 (index) must be an integer from 0 to %lld", f.name,
         static_cast<long long>(kMostCores - 1));
  }
  const CoreScope scope(core);
  f.setup(table, reinterpret_cast<int32_t*>(words), reinterpret_cast<int32_t*>(state),
          reinterpret_cast<float*>(sums), static_cast<int32_t>(index));
}

// Whether a setup record keeps the kernel inside its buffers (order of words: designs/gemv.py).
bool setup_fits(const int32_t* words, const int32_t* state, int64_t batch) {
  const int64_t row_blocks = words[1], x_objects = words[2], x_blocks = words[3], output = words[6];
  const int64_t x_last = words[14];
  if (batch != words[5] || (batch != 1 && batch != 2 && batch != 4 && batch != 8)) return false;
  if (x_objects < 0 || x_blocks < 1 || x_blocks * batch * kLine > kXElements) return false;
  if (x_last < 1 || x_last > x_blocks) return false;
  if (state[0] < 0 || state[0] >= x_objects * x_blocks + x_last) return false;
  if (state[1] < 0 || state[1] >= row_blocks) return false;
  const int64_t top = words[7];
  if (output == 2) {
    return top >= 1 && top <= kYBytes && batch * top * 8 <= kYBytes && state[2] >= 0 &&
           state[2] <= top;
  }
  if (output != 0 && output != 1) return false;
  return row_blocks <= kYBytes && row_blocks * batch * kBlockRows * (output + 1) * 2 <= kYBytes;
}

void call_gemv(const HostFunction& f, Arguments arguments, CoreState& core) {
  const Operands operands(f.name, arguments, 7);
  const int32_t batch = operands.size(6, "batch", 1);
  const std::byte* block = operands.buffer(0, "block", kBlockBytes, 1);
  const std::byte* x = operands.buffer(1, "x", 2 * kXElements, 2);
  std::byte* sums = operands.buffer(2, "sums", 4 * kSumFloats, 4);
  std::byte* y = operands.buffer(3, "y", kYBytes, 4);
  const auto* words =
      reinterpret_cast<const int32_t*>(operands.buffer(4, "words", 4 * kGemvWords, 4));
  auto* state = reinterpret_cast<int32_t*>(operands.buffer(5, "state", 4 * kGemvWords, 4));
  if (!setup_fits(words, state, batch)) {
    fail(ErrorKind::kKernel,
         "[%s] the setup (row_blocks %d, x_objects %d, x_blocks %d, batch %d, output %d, top %d) "
         "or the state of the core does not fit its buffers; send the setup object first",
         f.name, words[1], words[2], words[3], words[5], words[6], words[7]);
  }
  const CoreScope scope(core);
  f.gemv(reinterpret_cast<const uint8_t*>(block), x, reinterpret_cast<float*>(sums),
         reinterpret_cast<int32_t*>(y), words, state, batch);
}

// One Q4NX block: aie_kernels/dequant_q4nx.cc.
constexpr int64_t kTileBytes = kBlockRows * kLine * 2;
void call_dequant(const HostFunction& f, Arguments arguments, CoreState& core) {
  const Operands operands(f.name, arguments, 2);
  const std::byte* block = operands.buffer(0, "block", kBlockBytes, 2);
  std::byte* out = operands.buffer(1, "out", kTileBytes, 2);
  operands.check_apart("block", block, kBlockBytes, "out", out, kTileBytes);
  const CoreScope scope(core);
  f.dequant(reinterpret_cast<const uint8_t*>(block), out);
}

}  // namespace

void call(const HostFunction& function, Arguments arguments, CoreState& core) {
  if (function.matmul != nullptr) {
    call_matmul(function, arguments, core);
  } else if (function.zero != nullptr) {
    call_zero(function, arguments, core);
  } else if (function.gemv != nullptr) {
    call_gemv(function, arguments, core);
  } else if (function.dequant != nullptr) {
    call_dequant(function, arguments, core);
  } else if (function.setup != nullptr) {
    call_gemv_setup(function, arguments, core);
  } else {
    call_convert(function, arguments, core);
  }
}

OperandUse operand_use(const HostFunction& function, Arguments arguments, size_t i) {
  if (function.gemv != nullptr && i < 6) {
    constexpr uint64_t kBytes[] = {kBlockBytes, 2 * kXElements, 4 * kSumFloats,
                                   kYBytes,     4 * kGemvWords, 4 * kGemvWords};
    return {kBytes[i], i < 2 || i == 4};
  }
  // The product of two integer operands of a possible size, 0 for any others.
  const auto integer = [&](size_t index) -> uint64_t {
    if (index >= arguments.size() || arguments[index].data != nullptr) return 0;
    const int64_t value = arguments[index].value;
    return value > 0 && value <= kMaxSize ? static_cast<uint64_t>(value) : 0;
  };
  const auto in = [&](uint64_t count) {
    return static_cast<uint64_t>(function.in_size(static_cast<int64_t>(count)));
  };
  const auto out = [&](uint64_t count) {
    return static_cast<uint64_t>(function.out_size(static_cast<int64_t>(count)));
  };
  uint64_t bytes = 0;
  bool read_only = false;
  if (function.matmul != nullptr && i < 3) {
    read_only = i < 2;
    const uint64_t row = function.row ? integer(6u + function.shift) : 0;  // C from row 0 on
    bytes = i == 0   ? in(integer(3) * integer(4))
            : i == 1 ? in(integer(4) * integer(5))
                     : out((row + integer(3)) * integer(5));
  } else if (function.zero != nullptr && i == 0) {
    bytes = out(integer(1));
  } else if (function.convert != nullptr && i < 2) {
    read_only = i == 0;
    bytes = i == 0 ? in(integer(2)) : out(integer(2));
  }
  if (function.dequant != nullptr && i < 2) {
    constexpr uint64_t kBytes[] = {kBlockBytes, kTileBytes};
    return {kBytes[i], i == 0};
  }
  if (function.setup != nullptr && i < 4) {
    constexpr uint64_t kBytes[] = {2 * kXElements, 4 * kGemvWords, 4 * kGemvWords, 4 * kSumFloats};
    return {kBytes[i], i == 0};
  }
  if (bytes == 0) return {};
  return {bytes, read_only};
}

}  // namespace npu::aie_host
