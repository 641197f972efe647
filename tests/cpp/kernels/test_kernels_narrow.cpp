// Asserts the kernels that narrow integers, in every host build: matmul_i8_i8, matmul_i8_i16 (both
// layouts of B, every shift, one rounding and saturation per call) and narrow_i32_i8, _i16. The
// references are naive int64 sums divided in double, which is exact.
#include <doctest/doctest.h>

#include <algorithm>

#include "kernel_calls.h"

using namespace kernel_test;

namespace {

struct Seen {
  int ties = 0, low = 0, high = 0;
};

// x / 2^shift to nearest, ties to even, saturated to T.
template <typename T>
T narrowed(int32_t x, int shift, Seen& seen) {
  const double exact = std::ldexp(static_cast<double>(x), -shift);
  seen.ties += exact - std::floor(exact) == 0.5;
  const double rounded = std::nearbyint(exact);
  constexpr double kLow = std::numeric_limits<T>::min(), kHigh = std::numeric_limits<T>::max();
  seen.low += rounded < kLow;
  seen.high += rounded > kHigh;
  return static_cast<T>(std::clamp(rounded, kLow, kHigh));
}

// C enters as c * 2^shift, saturated to 32 bits; sums wrap; the result is narrowed.
template <typename T>
void check_matmul(const MatmulCall& call, Size size, const std::vector<int8_t>& a,
                  const std::vector<int8_t>& b, const std::vector<T>& c, Seen& seen) {
  const auto [m, k, n] = size;
  const auto got = multiply(call, m, k, n, a, b, c);
  int wrong = 0;
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < n; ++j) {
      int64_t sum = std::clamp(int64_t{at(c, n, i, j)} * (int64_t{1} << call.shift),
                               int64_t{std::numeric_limits<int32_t>::min()},
                               int64_t{std::numeric_limits<int32_t>::max()});
      for (int x = 0; x < k; ++x) sum += at(a, k, i, x) * at(b, n, x, j);
      const T want = narrowed<T>(wrapped(sum), call.shift, seen);
      if (tiled_at(got, n, call.shape.r, call.shape.t, i, j) != want) ++wrong;
    }
  }
  INFO(call.text() << " m=" << m << " k=" << k << " n=" << n);
  CHECK(wrong == 0);
}

template <typename T>
void check_matmuls(const char* name) {
  std::mt19937 rng(6);
  constexpr T kLow = std::numeric_limits<T>::min(), kHigh = std::numeric_limits<T>::max();
  for (const Build& build : builds()) {
    const Shape shape = i8_shape(build.generation);
    Seen seen;
    for (const bool column_major : {false, true}) {
      for (int shift = 0; shift <= 31; ++shift) {
        const MatmulCall call{build, name, shape, column_major, shift};
        for (const Size size : {sizes(shape)[0], sizes(shape)[1]}) {
          const auto [m, k, n] = size;
          check_matmul(call, size, random_integers<int8_t>(area(m, k), rng),
                       random_integers<int8_t>(area(k, n), rng),
                       random_integers<T>(area(m, n), rng), seen);
        }
        const auto [m, k, n] = sizes(shape)[0];
        // Both ends of C and of the sums.
        for (const int8_t x : {int8_t{-128}, int8_t{127}}) {
          for (const T start : {kLow, kHigh, T{0}}) {
            check_matmul(call, {m, k, n}, std::vector<int8_t>(area(m, k), x),
                         std::vector<int8_t>(area(k, n), -128), std::vector<T>(area(m, n), start),
                         seen);
          }
        }
      }
    }
    INFO(build.name());
    CHECK(seen.ties > 100);  // the inputs reach ties and both ends
    CHECK(seen.low > 100);
    CHECK(seen.high > 100);
  }
}

template <typename T>
void check_narrow(const char* name) {
  std::mt19937 rng(7);
  std::vector<int32_t> src = {0,
                              1,
                              -1,
                              127,
                              128,
                              -128,
                              -129,
                              32767,
                              32768,
                              -32768,
                              -32769,
                              std::numeric_limits<int32_t>::max(),
                              std::numeric_limits<int32_t>::min()};
  std::uniform_int_distribution<int> bits(0, 31);
  for (int i = 0; i < 1000; ++i) {  // every magnitude is as likely as any other
    src.push_back(random_integers<int32_t>(1, rng)[0] >> bits(rng));
  }
  for (int i = -300; i <= 300; ++i) src.push_back(i * 8);  // ties at shift 4
  while (src.size() % 16 != 0) src.push_back(-5);
  for (const Build& build : builds()) {
    Seen seen;
    for (int shift = 0; shift <= 31; ++shift) {
      npu::CoreState core{0, 3};
      std::vector<T> dst(src.size() + 16, T{99});
      build.find(name)(std::vector{buffer(src), buffer(dst),
                                   integer(static_cast<int64_t>(src.size())), integer(shift)},
                       core);
      int wrong = 0;
      for (size_t i = 0; i < src.size(); ++i) {
        if (dst[i] != narrowed<T>(src[i], shift, seen)) ++wrong;
      }
      INFO(build.name() << " " << name << " shift " << shift);
      CHECK(wrong == 0);
      CHECK(dst[src.size()] == T{99});  // nothing past count
      CHECK(core.rounding == 12);
      CHECK(core.saturation == 1);
    }
    CHECK(seen.ties > 100);
    CHECK(seen.low > 100);
    CHECK(seen.high > 100);
  }
}

}  // namespace

TEST_CASE("matmul_i8_i8: shifts, ties and saturation") { check_matmuls<int8_t>("matmul_i8_i8"); }

TEST_CASE("matmul_i8_i16: shifts, ties and saturation") { check_matmuls<int16_t>("matmul_i8_i16"); }

TEST_CASE("a narrow C is rounded and saturated once per call") {
  for (const Build& build : builds()) {
    const MatmulCall call{build, "matmul_i8_i8", i8_shape(build.generation), false, 4};
    const auto [m, k, n] = sizes(call.shape)[0];
    const auto run = [&](int8_t product, std::vector<int8_t> c) {
      std::vector<int8_t> a(area(m, k)), b(area(k, n));
      for (int i = 0; i < m; ++i) a[area(i, k)] = product;  // one product per element
      for (int j = 0; j < n; ++j) b[static_cast<size_t>(j)] = 1;
      return multiply(call, m, k, n, a, b, c);
    };
    INFO(build.name());
    // 8/16 is a tie to 0, twice; in one call of 16 it would be 1.
    CHECK(run(8, run(8, std::vector<int8_t>(area(m, n), 0)))[0] == 0);
    CHECK(run(16, std::vector<int8_t>(area(m, n), 0))[0] == 1);
    CHECK(run(24, std::vector<int8_t>(area(m, n), 0))[0] == 2);  // 1.5 to even
    CHECK(run(-8, std::vector<int8_t>(area(m, n), 0))[0] == 0);
    CHECK(run(-24, std::vector<int8_t>(area(m, n), 0))[0] == -2);
    // 127 + 1 saturates, so taking 1 away again leaves 126.
    CHECK(run(-16, run(16, std::vector<int8_t>(area(m, n), 127)))[0] == 126);
    CHECK(run(16, run(-16, std::vector<int8_t>(area(m, n), -128)))[0] == -127);
  }
}

TEST_CASE("narrow_i32_i8: shifts, ties and saturation") { check_narrow<int8_t>("narrow_i32_i8"); }

TEST_CASE("narrow_i32_i16: shifts, ties and saturation") {
  check_narrow<int16_t>("narrow_i32_i16");
}

// The beginning of the sums becomes C: what comes later is not overwritten before it is read.
TEST_CASE("narrowing kernels may write where the sums lie") {
  for (const Build& build : builds()) {
    INFO(build.name());
    npu::CoreState core;
    for (const char* name : {"narrow_i32_i8", "narrow_i32_i16", "convert_f32_bf16"}) {
      INFO(name);
      const bool floats = name[0] == 'c';
      std::vector<uint32_t> sums(1024);
      for (uint32_t i = 0; i < sums.size(); ++i) {
        sums[i] = floats ? std::bit_cast<uint32_t>(float(i) * 1.37f) : i * 31 - 9000;
      }
      std::vector<uint32_t> apart(sums.size());
      auto arguments = std::vector{buffer(sums), buffer(apart), integer(1024)};
      if (!floats) arguments.push_back(integer(5));
      build.find(name)(arguments, core);
      arguments[1] = arguments[0];
      build.find(name)(arguments, core);
      const size_t words = std::string(name).ends_with("i8") ? 256 : 512;
      for (size_t i = 0; i < words; ++i) REQUIRE(sums[i] == apart[i]);
    }
  }
}

TEST_CASE("wrong operands of the narrowing kernels raise a kernel error and write nothing") {
  for (const Build& build : builds()) {
    INFO(build.name());
    std::vector<int8_t> a(64 * 64), b(64 * 64), c(64 * 64, 5);
    std::vector<int32_t> wide(256);
    const auto A = buffer(a), B = buffer(b), C = buffer(c), W = buffer(wide);
    const auto matmul = [&](npu::KernelArgument shift) {
      return raised(build, "matmul_i8_i8_bcol",
                    {A, B, C, integer(64), integer(64), integer(64), shift});
    };
    CHECK(matmul(integer(-1)) == "kernel");
    CHECK(matmul(integer(32)) == "kernel");
    CHECK(matmul(integer(int64_t{1} << 32)) == "kernel");
    CHECK(matmul(A) == "kernel");
    CHECK(raised(build, "matmul_i8_i8", {A, B, C, integer(64), integer(64), integer(64)}) ==
          "kernel");  // no shift
    CHECK(raised(build, "matmul_i8_i32_bcol",
                 {A, B, W, integer(8), integer(8), integer(16), integer(0)}) == "kernel");
    CHECK(raised(build, "matmul_i8_i16",
                 {A, B, C, integer(64), integer(64), integer(64), integer(0)}) ==
          "kernel");  // C is too small for int16
    CHECK(raised(build, "matmul_i16_i32", {A, B, W, integer(64), integer(64), integer(64)}) ==
          "kernel");
    CHECK(raised(build, "narrow_i32_i8", {W, C, integer(256), integer(32)}) == "kernel");
    CHECK(raised(build, "narrow_i32_i8", {W, C, integer(256)}) == "kernel");
    CHECK(raised(build, "narrow_i32_i8", {W, C, integer(272), integer(1)}) == "kernel");
    auto shifted = W;  // overlaps without beginning where the sums do
    shifted.data += 4;
    CHECK(raised(build, "narrow_i32_i16", {W, shifted, integer(16), integer(1)}) == "kernel");
    CHECK(raised(build, "zero_i8", {C, integer(8)}) == "kernel");
    for (const int8_t x : c) REQUIRE(x == 5);
  }
}
