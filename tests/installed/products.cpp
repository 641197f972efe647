// Results of an installed libnpu, which finds its configurations by itself: every pair of element
// types, both generations, A, B and C by rows and by columns, B packed, C with gaps, wide and
// narrow sums, designs for the host and for the array, against sums in double precision. Prints
// what it ran.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <npu/npu.hpp>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace {

constexpr int64_t kM = 70, kK = 150, kN = 90, kGap = 3;

int failures = 0;
std::set<std::string> configurations;

template <typename T>
double value(T x) {
  return static_cast<double>(static_cast<float>(x));
}

// Memory for (rows, cols) by rows or by columns, `gap` elements between them.
template <typename T>
struct Stored {
  std::vector<T> memory;
  npu::Matrix<T> view{nullptr, 0, 0};
  Stored(int64_t rows, int64_t cols, bool by_columns, int64_t gap, T fill) {
    const int64_t outer = by_columns ? cols : rows, inner = (by_columns ? rows : cols) + gap;
    memory.assign(static_cast<size_t>(outer * inner), fill);
    view = by_columns ? npu::Matrix<T>(memory.data(), rows, cols, 1, inner)
                      : npu::Matrix<T>(memory.data(), rows, cols, inner);
  }
  T& at(int64_t i, int64_t j) { return view.data[i * view.row_stride + j * view.col_stride]; }
};

template <typename T>
void randomise(Stored<T>& x, std::mt19937& random) {
  std::uniform_int_distribution<int> small(-9, 9);
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < x.view.rows; ++i) {
    for (int64_t j = 0; j < x.view.cols; ++j) {
      x.at(i, j) = std::is_integral_v<T> ? T(small(random)) : T(normal(random));
    }
  }
}

// What an exact sum becomes in C: divided by 2^shift, rounded to nearest even, saturated.
template <typename T>
double narrowed(double sum, int shift) {
  if constexpr (std::is_integral_v<T>) {
    return std::clamp(std::nearbyint(std::ldexp(sum, -shift)),
                      double(std::numeric_limits<T>::min()), double(std::numeric_limits<T>::max()));
  }
  return sum;
}

struct Case {
  bool a_columns, b_columns, c_columns, narrow, packed;
};

template <typename A, typename C>
void run(const npu::Device& device, const Case& c, const std::string& bf16) {
  std::mt19937 random(7);
  Stored<A> a(kM, kK, c.a_columns, 0, A(0)), b(kK, kN, c.b_columns, 0, A(0));
  randomise(a, random);
  randomise(b, random);
  // Narrow sums are exact if they never saturate; a shift is for wide ones.
  const bool shifted = std::is_integral_v<C> && sizeof(C) < 4 && !c.narrow;
  const int shift = shifted ? 3 : 0;
  const int64_t depth = c.narrow && std::is_same_v<C, int8_t> ? 1 : kK;
  for (int64_t x = depth; x < kK; ++x) {
    for (int64_t i = 0; i < kM; ++i) a.at(i, x) = A(0);
  }
  Stored<C> out(kM, kN, c.c_columns, kGap, C(77));
  npu::MatmulOptions options{.shift = shift, .accumulate = c.narrow ? "narrow" : "wide"};
  if (!std::is_integral_v<A>) options.bf16 = bf16;
  const npu::Run ran =
      c.packed ? device.matmul(a.view, device.pack(b.view, options.bf16), out.view, options)
               : device.matmul(a.view, b.view, out.view, options);
  configurations.insert(ran.configuration);

  const double operand = std::is_integral_v<A>      ? 0
                         : std::is_same_v<A, float> ? 0x1p-8  // rounded to bfloat16
                                                    : 0;
  double worst = 0;
  for (int64_t i = 0; i < kM; ++i) {
    for (int64_t j = 0; j < kN; ++j) {
      double sum = 0, size = 0, largest = 0;
      for (int64_t x = 0; x < kK; ++x) {
        const double left = value(a.at(i, x)), right = value(b.at(x, j));
        sum += left * right;
        size += std::abs(left * right);
        largest = std::max({largest, std::abs(left), std::abs(right)});
      }
      double bound = 0;
      if (!std::is_integral_v<A>) {
        bound = size * (2 * operand + operand * operand + 0x1p-18);         // float32 sums
        if (bf16 == "bfp16") bound += 2 * kK * largest * largest * 0x1p-7;  // one exponent for 8
        if (sizeof(C) == 2) bound += (c.narrow ? kK / 8 + 1 : 1) * size * 0x1p-8;
      }
      const double error = std::abs(value(out.at(i, j)) - narrowed<C>(sum, shift));
      worst = std::max(worst, error - bound);
    }
  }
  bool untouched = true;  // the gaps of C
  const int64_t inner = (c.c_columns ? kM : kN) + kGap;
  for (size_t i = 0; i < out.memory.size(); ++i) {
    const bool gap = static_cast<int64_t>(i) % inner >= inner - kGap;
    untouched = untouched && (!gap || value(out.memory[i]) == 77);
  }
  if (worst > 0 || !untouched) {
    std::printf("wrong: %s by %g, A %d B %d C %d by columns, packed %d, %s sums, gaps %s\n",
                ran.configuration.c_str(), worst, c.a_columns, c.b_columns, c.c_columns, c.packed,
                options.accumulate.c_str(), untouched ? "untouched" : "overwritten");
    ++failures;
  }
}

template <typename A, typename C>
void all(const npu::Device& device) {
  const bool floats = !std::is_integral_v<A>;
  const bool npu2 = device.info().generation == "npu2";
  for (int bits = 0; bits < 32; ++bits) {
    const auto set = [&](int bit) { return (bits >> bit & 1) != 0; };
    const Case c{set(0), set(1), set(2), set(3), set(4)};
    if ((c.narrow && sizeof(C) == 4) || (c.packed && c.c_columns)) continue;
    run<A, C>(device, c, "native");
    if (floats && npu2) run<A, C>(device, c, "bfp16");
  }
}

}  // namespace

int main() try {
  for (const char* name : {"emu:npu1", "emu:npu2"}) {
    for (const char* designs : {"host", "array"}) {
      const npu::Device device(name, {.designs = designs});
      all<float, float>(device);
      all<float, npu::bfloat16>(device);
      all<npu::bfloat16, float>(device);
      all<npu::bfloat16, npu::bfloat16>(device);
      all<int8_t, int32_t>(device);
      all<int8_t, int16_t>(device);
      all<int8_t, int8_t>(device);
      all<int16_t, int32_t>(device);
    }
  }
  std::printf("%zu configurations ran, %d products are wrong\n", configurations.size(), failures);
  return failures == 0 && configurations.size() > 80 ? 0 : 1;
} catch (const npu::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
