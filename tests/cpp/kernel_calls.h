// Helpers of the kernel tests: bf16 words, calling a host kernel, tiled layouts and the CPU
// levels of this machine.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "error.h"
#include "kernels/call.h"
#include "kernels/cpu_level.h"
#include "kernels/declaration.h"
#include "kernels/kernel.h"

namespace kernel_test {

using npu::Arithmetic;
using npu::arch::Generation;

inline constexpr double kUnit = 0x1p-24;  // unit roundoff of fp32

inline float bf16_value(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// A bf16 word near `x`: its upper half, which is a bf16 value like any other.
inline uint16_t bf16_word(float x) {
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16);
}

template <typename T>
npu::KernelArgument buffer(std::vector<T>& v) {
  return {reinterpret_cast<std::byte*>(v.data()), static_cast<uint32_t>(v.size() * sizeof(T)), 0};
}

inline npu::KernelArgument integer(int64_t value) { return {nullptr, 0, value}; }

// Sets NPU_CPU for a scope.
class ForcedCpu {
 public:
  explicit ForcedCpu(const char* level) { setenv("NPU_CPU", level, 1); }
  ~ForcedCpu() { unsetenv("NPU_CPU"); }
};

inline std::vector<std::string> cpu_levels() {
  using npu::kernels::CpuLevel;
  std::vector<std::string> levels;
  for (const CpuLevel level : npu::kernels::kCpuLevels) {
    if (level <= npu::kernels::best_cpu_level()) {
      levels.emplace_back(npu::kernels::cpu_level_name(level));
    }
  }
  return levels;
}

// A host kernel of which each call is seen to leave words alone that its declaration says it keeps
// (Steering::kKeeps), and to write all of what it says it overwrites, whatever that was.
class TestedKernel {
 public:
  explicit TestedKernel(npu::HostKernel kernel) : kernel_(std::move(kernel)) {}
  operator npu::HostKernel() const { return kernel_; }  // NOLINT: in its place

  void operator()(std::span<const npu::KernelArgument> arguments, npu::CoreState& core) const {
    const auto kept = [&] {
      std::vector<std::byte> words;
      for (size_t i = 0; i < arguments.size(); ++i) {
        const npu::kernels::Operand& operand = kernel_.declaration->operands[i];
        if (operand.steering != npu::kernels::Steering::kKeeps) continue;
        REQUIRE(operand.steering_first.text == nullptr);  // from word 0 on
        const std::byte* const first = arguments[i].data;
        words.insert(words.end(), first, first + 4 * operand.steering_words);
      }
      return words;
    };
    const std::vector<std::byte> before = kept();
    const Memory memory = fills() ? copy_of(arguments) : Memory{};
    const npu::CoreState state = core;
    kernel_(arguments, core);
    REQUIRE(kept() == before);
    if (fills()) check_filled(arguments, memory, state);
  }

 private:
  using Memory = std::vector<std::vector<std::byte>>;
  bool fills() const {
    return std::ranges::any_of(kernel_.declaration->operands, &npu::kernels::Operand::filled);
  }
  static Memory copy_of(std::span<const npu::KernelArgument> arguments) {
    Memory all;
    for (const npu::KernelArgument& argument : arguments) {
      all.emplace_back(argument.data, argument.data + argument.bytes);
    }
    return all;
  }

  // Once more from the same memory, but for the results.
  void check_filled(std::span<const npu::KernelArgument> arguments, const Memory& before,
                    npu::CoreState state) const {
    const npu::kernels::Declaration& kernel = *kernel_.declaration;
    const auto filled = [&](size_t i) { return kernel.operands[i].filled; };
    const Memory after = copy_of(arguments);
    const auto uses = npu::kernels::operand_uses(kernel, arguments);
    for (size_t i = 0; i < arguments.size(); ++i) {
      std::copy(before[i].begin(), before[i].end(), arguments[i].data);
    }
    for (size_t i = 0; i < arguments.size(); ++i) {
      for (uint64_t b = 0; filled(i) && b < uses[i].bytes; ++b) arguments[i].data[b] ^= kOther;
    }
    kernel_(arguments, state);
    REQUIRE(copy_of(arguments) == after);
  }

  static constexpr std::byte kOther{0xA5};
  npu::HostKernel kernel_;
};

// A build of the kernels: "fast" once per level, "silicon" once.
struct Build {
  Generation generation;
  Arithmetic arithmetic;
  std::string level;

  TestedKernel find(const char* name) const {
    const ForcedCpu forced(level.c_str());
    return TestedKernel(npu::find_host_kernel(name, generation, arithmetic));
  }
  std::string name() const {
    return std::string(generation == Generation::kNpu1 ? "npu1 " : "npu2 ") +
           npu::arithmetic_name(arithmetic) + " " + level;
  }
};

inline std::vector<Build> builds() {
  std::vector<Build> all;
  for (const auto generation : {Generation::kNpu1, Generation::kNpu2}) {
    for (const std::string& level : cpu_levels()) {
      all.push_back({generation, Arithmetic::kFast, level});
    }
    all.push_back({generation, Arithmetic::kSilicon, "v2"});
  }
  return all;
}

inline void each_build(const std::function<void(const Build&)>& body) {
  for (const Build& build : builds()) {
    CAPTURE(build.name());
    body(build);
  }
}

// (r, s, t) as the designs assume them: stated here, not read from the kernels.
struct Shape {
  int r, s, t;
};
inline Shape bf16_shape(Generation g) {
  return g == Generation::kNpu1 ? Shape{4, 8, 4} : Shape{8, 8, 8};
}
inline Shape i8_shape(Generation g) {
  return g == Generation::kNpu1 ? Shape{4, 8, 8} : Shape{8, 8, 8};
}
inline Shape i16_shape(Generation g) {
  return g == Generation::kNpu1 ? Shape{4, 4, 4} : Shape{4, 4, 8};
}

struct Size {
  int m, k, n;
};

// In units of the 2x2 block (m, n) and of s (k): the smallest, odd ratios, a full tile.
inline std::vector<Size> sizes(Shape s) {
  std::vector<Size> all;
  for (const Size blocks : {Size{1, 1, 1}, Size{3, 5, 2}, Size{2, 16, 3}}) {
    all.push_back({blocks.m * 2 * s.r, blocks.k * s.s, blocks.n * 2 * s.t});
  }
  all.push_back({64, 64, 64});
  return all;
}

inline size_t area(int rows, int columns) {
  return static_cast<size_t>(rows) * static_cast<size_t>(columns);
}

template <typename T>
T at(const std::vector<T>& matrix, int columns, int i, int j) {
  return matrix[area(i, columns) + static_cast<size_t>(j)];
}

inline std::vector<uint16_t> random_bf16(size_t count, std::mt19937& rng, int spread = 6) {
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> exponent(-spread, spread);
  std::vector<uint16_t> out(count);
  for (uint16_t& x : out) x = bf16_word(std::ldexp(normal(rng), exponent(rng)));
  return out;
}

// Every value of T is equally likely.
template <typename T>
std::vector<T> random_integers(size_t count, std::mt19937& rng) {
  std::uniform_int_distribution<int64_t> any(std::numeric_limits<T>::min(),
                                             std::numeric_limits<T>::max());
  std::vector<T> out(count);
  for (T& x : out) x = static_cast<T>(any(rng));
  return out;
}

// The low 32 bits, as int32 arithmetic that wraps leaves them.
inline int32_t wrapped(int64_t x) {
  return static_cast<int32_t>(static_cast<uint32_t>(static_cast<uint64_t>(x)));
}

// Row-major rows x columns into tiles of tile_rows x tile_columns, tiles in row-major order.
template <typename T>
std::vector<T> tiled(const std::vector<T>& matrix, int rows, int columns, int tile_rows,
                     int tile_columns) {
  std::vector<T> out;
  out.reserve(matrix.size());
  for (int i = 0; i < rows; i += tile_rows) {
    for (int j = 0; j < columns; j += tile_columns) {
      for (int y = 0; y < tile_rows; ++y) {
        for (int x = 0; x < tile_columns; ++x) {
          out.push_back(matrix[static_cast<size_t>((i + y) * columns + j + x)]);
        }
      }
    }
  }
  return out;
}

// The value of C at (i, j) in tiled form.
template <typename T>
T tiled_at(const std::vector<T>& c, int columns, int tile_rows, int tile_columns, int i, int j) {
  const int tile = i / tile_rows * (columns / tile_columns) + j / tile_columns;
  const int inside = i % tile_rows * tile_columns + j % tile_columns;
  return c[static_cast<size_t>(tile * tile_rows * tile_columns + inside)];
}

// Column-major tiles, column-major inside: B[n/t][k/s][t][s] of a row-major k x n matrix.
template <typename T>
std::vector<T> tiled_columns(const std::vector<T>& matrix, int k, int n, Shape shape) {
  std::vector<T> turned;
  for (int j = 0; j < n; ++j) {
    for (int i = 0; i < k; ++i) turned.push_back(at(matrix, n, i, j));
  }
  return tiled(turned, n, k, shape.t, shape.s);
}

// A matmul kernel of one build and how it is called.
struct MatmulCall {
  const Build& build;
  std::string name;  // without _bcol
  Shape shape;
  bool column_major = false;  // B
  int shift = -1;             // -1: the kernel takes none

  std::string text() const {
    return build.name() + " " + name + (column_major ? "_bcol" : "") + " shift " +
           std::to_string(shift);
  }
};

// Multiplies row-major a (m x k) and b (k x n) onto row-major c; C comes back tiled.
template <typename TIn, typename TOut>
std::vector<TOut> multiply(const MatmulCall& call, int m, int k, int n, const std::vector<TIn>& a,
                           const std::vector<TIn>& b, const std::vector<TOut>& c,
                           npu::CoreState core = {}) {
  const Shape shape = call.shape;
  std::vector<TIn> a_tiles = tiled(a, m, k, shape.r, shape.s);
  std::vector<TIn> b_tiles =
      call.column_major ? tiled_columns(b, k, n, shape) : tiled(b, k, n, shape.s, shape.t);
  std::vector<TOut> c_tiles = tiled(c, m, n, shape.r, shape.t);
  std::vector<npu::KernelArgument> arguments = {buffer(a_tiles), buffer(b_tiles), buffer(c_tiles),
                                                integer(m),      integer(k),      integer(n)};
  if (call.shift >= 0) arguments.push_back(integer(call.shift));
  const std::string name = call.name + (call.column_major ? "_bcol" : "");
  call.build.find(name.c_str())(arguments, core);
  return c_tiles;
}

// The kind of the error that calling `name` raises, or "none".
inline std::string raised(const Build& build, const char* name,
                          const std::vector<npu::KernelArgument>& arguments,
                          npu::CoreState core = {}) {
  try {
    build.find(name)(arguments, core);
  } catch (const npu::Error& e) {
    const bool named = std::string(e.what()).find("[") == 0;
    return std::string(npu::kind_name(e.kind())) + (named ? "" : " without [function]");
  }
  return "none";
}

}  // namespace kernel_test
