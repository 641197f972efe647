// Asserts that every host build of every kernel (generation x arithmetic x CPU level) computes what
// its name says on the tiled layouts, compared with naive loops in double or exact integers, and
// that wrong operands raise Error(kKernel), also among repeated calls. Add a kernel: one TEST_CASE
// over builds().
#include <doctest/doctest.h>

#include <limits>

#include "kernel_calls.h"

using namespace kernel_test;

namespace {

// Error of k fp32 accumulations relative to |c| + sum |a||b|. bf16 products are exact in fp32.
// Sequential: gamma_k. AIE2 silicon: per group of eight, nine alignments and one final rounding of
// half a unit in the last place of the largest term, 10/8 roundings per k.
double error_bound(const Build& build, int k) {
  const bool fused =
      build.arithmetic == Arithmetic::kSilicon && build.generation == Generation::kNpu1;
  const double roundings = fused ? 1.25 * k : k;
  return roundings * kUnit / (1 - roundings * kUnit);
}

// bf16 and fp32 C: a bf16 result is rounded once more, half a unit in the last of 8 bits.
template <typename TOut>
void check_bf16(const MatmulCall& call, Size size) {
  const auto [m, k, n] = size;
  std::mt19937 rng(static_cast<unsigned>(m * 31 + k * 7 + n));
  const auto a = random_bf16(area(m, k), rng), b = random_bf16(area(k, n), rng);
  const auto value = [](TOut x) {
    if constexpr (sizeof(TOut) == 2) {
      return static_cast<double>(bf16_value(x));
    } else {
      return static_cast<double>(x);
    }
  };
  std::vector<TOut> c(area(m, n));
  for (TOut& x : c) {
    const float start = std::normal_distribution<float>(0, 10)(rng);
    if constexpr (sizeof(TOut) == 2) {
      x = bf16_word(start);
    } else {
      x = start;
    }
  }
  const auto got = multiply(call, m, k, n, a, b, c);
  int wrong = 0;
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < n; ++j) {
      double sum = value(at(c, n, i, j)), magnitude = std::fabs(sum);
      for (int x = 0; x < k; ++x) {
        const double product =
            static_cast<double>(bf16_value(at(a, k, i, x))) * bf16_value(at(b, n, x, j));
        sum += product;
        magnitude += std::fabs(product);
      }
      const double error =
          std::fabs(value(tiled_at(got, n, call.shape.r, call.shape.t, i, j)) - sum);
      const double bound = error_bound(call.build, k) * magnitude;
      const double rounding = sizeof(TOut) == 2 ? 0x1p-8 * (std::fabs(sum) + bound) : 0;
      if (!(error <= bound + rounding)) ++wrong;
    }
  }
  INFO(call.text() << " m=" << m << " k=" << k << " n=" << n);
  CHECK(wrong == 0);
}

template <typename T>
void check_exact(const MatmulCall& call, Size size, const std::vector<T>& a,
                 const std::vector<T>& b, const std::vector<int32_t>& c) {
  const auto [m, k, n] = size;
  // Modes that would round or saturate if the kernel depended on what an earlier one left.
  const auto got = multiply(call, m, k, n, a, b, c, npu::CoreState{1, 3});
  int wrong = 0;
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < n; ++j) {
      int64_t sum = at(c, n, i, j);
      for (int x = 0; x < k; ++x) sum += int64_t{at(a, k, i, x)} * at(b, n, x, j);
      if (tiled_at(got, n, call.shape.r, call.shape.t, i, j) != wrapped(sum)) ++wrong;
    }
  }
  INFO(call.text() << " m=" << m << " k=" << k << " n=" << n);
  CHECK(wrong == 0);
}

template <typename T>
void check_exact_everywhere(const char* name, Shape (*shape)(Generation)) {
  std::mt19937 rng(1);
  constexpr T kLow = std::numeric_limits<T>::min(), kHigh = std::numeric_limits<T>::max();
  for (const Build& build : builds()) {
    for (const bool column_major : {false, true}) {
      const MatmulCall call{build, name, shape(build.generation), column_major};
      for (const Size size : sizes(call.shape)) {
        const auto [m, k, n] = size;
        check_exact(call, size, random_integers<T>(area(m, k), rng),
                    random_integers<T>(area(k, n), rng), random_integers<int32_t>(area(m, n), rng));
        for (const T x : {kLow, kHigh}) {
          for (const T y : {kLow, kHigh}) {
            for (const int32_t start : {std::numeric_limits<int32_t>::max(),
                                        std::numeric_limits<int32_t>::min(), int32_t{12345}}) {
              check_exact(call, size, std::vector<T>(area(m, k), x), std::vector<T>(area(k, n), y),
                          std::vector<int32_t>(area(m, n), start));
            }
          }
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("matmul_bf16_f32 and _bf16 stay within the error bound of their arithmetic") {
  for (const Build& build : builds()) {
    const Shape shape = bf16_shape(build.generation);
    for (const bool column_major : {false, true}) {
      for (const Size size : sizes(shape)) {
        check_bf16<float>({build, "matmul_bf16_f32", shape, column_major}, size);
        check_bf16<uint16_t>({build, "matmul_bf16_bf16", shape, column_major}, size);
      }
    }
  }
}

TEST_CASE("matmul_bf16_bf16 is matmul_bf16_f32 between two conversions, to nearest even") {
  const int m = 32, k = 24, n = 32;
  std::mt19937 rng(8);
  const auto a = random_bf16(area(m, k), rng), b = random_bf16(area(k, n), rng),
             c = random_bf16(area(m, n), rng);
  std::vector<float> wide;
  for (const uint16_t x : c) wide.push_back(bf16_value(x));
  for (const Build& build : builds()) {
    const Shape shape = bf16_shape(build.generation);
    const auto got = multiply({build, "matmul_bf16_bf16", shape, true}, m, k, n, a, b, c);
    const auto sums = multiply({build, "matmul_bf16_f32", shape, true}, m, k, n, a, b, wide);
    INFO(build.name());
    for (size_t i = 0; i < got.size(); ++i) {
      const double unit = std::ldexp(1.0, std::ilogb(sums[i]) - 7);
      REQUIRE(static_cast<double>(bf16_value(got[i])) == std::nearbyint(sums[i] / unit) * unit);
    }
  }
}

TEST_CASE("matmul_i8_i32 is exact modulo 2^32, extremes and wraparound included") {
  check_exact_everywhere<int8_t>("matmul_i8_i32", i8_shape);
}

TEST_CASE("matmul_i16_i32 is exact modulo 2^32, extremes and wraparound included") {
  check_exact_everywhere<int16_t>("matmul_i16_i32", i16_shape);
}

TEST_CASE("npu2 silicon bf16 is one fp32 FMA per k, in order, bit for bit") {
  const Build build{Generation::kNpu2, Arithmetic::kSilicon, "v2"};
  const int m = 32, k = 64, n = 32;
  std::mt19937 rng(3);
  const auto a = random_bf16(area(m, k), rng), b = random_bf16(area(k, n), rng);
  const std::vector<float> c(area(m, n), 0.3f);
  const auto got =
      multiply({build, "matmul_bf16_f32", bf16_shape(build.generation)}, m, k, n, a, b, c);
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < n; ++j) {
      float sum = 0.3f;
      for (int x = 0; x < k; ++x) {
        sum = std::fma(bf16_value(a[area(i, k) + static_cast<size_t>(x)]),
                       bf16_value(b[area(x, n) + static_cast<size_t>(j)]), sum);
      }
      REQUIRE(std::bit_cast<uint32_t>(tiled_at(got, n, 8, 8, i, j)) ==
              std::bit_cast<uint32_t>(sum));
    }
  }
}

TEST_CASE("NaN and infinity reach exactly the elements that depend on them") {
  const float inf = std::numeric_limits<float>::infinity();
  for (const Build& build : builds()) {
    const Shape shape = bf16_shape(build.generation);
    const int m = 4 * shape.r, k = 2 * shape.s, n = 4 * shape.t;
    std::vector<uint16_t> a(area(m, k), bf16_word(1.0f)), b(area(k, n), bf16_word(2.0f));
    a[area(1, k) + 3] = 0x7FC0;           // NaN
    a[area(2, k) + 5] = bf16_word(inf);   // +inf
    a[area(3, k) + 5] = bf16_word(-inf);  // -inf
    a[area(4, k) + 1] = bf16_word(inf);   // inf - inf in one group of eight
    a[area(4, k) + 2] = bf16_word(-inf);
    a[area(5, k) + 1] = bf16_word(inf);  // inf - inf in two groups
    a[area(5, k) + 9] = bf16_word(-inf);
    b[area(5, n) + 6] = 0;       // inf * 0 in column 6 of rows 2 and 3
    a[area(6, k) + 0] = 0x7F7F;  // overflow: largest bf16 times 2
    std::vector<float> c(area(m, n), 1.0f);
    c[area(7, n) + 2] = std::numeric_limits<float>::quiet_NaN();
    c[area(7, n) + 3] = -inf;
    const bool column_major = build.level != "v3";  // one level row-major, the others column-major
    const auto got = multiply({build, "matmul_bf16_f32", shape, column_major}, m, k, n, a, b, c);
    INFO(build.name());
    for (int i = 0; i < m; ++i) {
      for (int j = 0; j < n; ++j) {
        const float x = tiled_at(got, n, shape.r, shape.t, i, j);
        INFO("row " << i << " column " << j << " value " << x);
        const bool nan =
            i == 1 || i == 4 || i == 5 || ((i == 2 || i == 3) && j == 6) || (i == 7 && j == 2);
        const bool positive = !nan && (i == 2 || i == 6),
                   negative = !nan && (i == 3 || (i == 7 && j == 3));
        CHECK(std::isnan(x) == nan);
        CHECK((x == inf) == positive);
        CHECK((x == -inf) == negative);
        if (!nan && !positive && !negative)
          CHECK(x == (j == 6 ? 1.0f + 2.0f * (k - 1) : 1.0f + 2.0f * k));
      }
    }
  }
}

TEST_CASE("denormal operands: exact on silicon builds, at most flushed on fast ones") {
  for (const Build& build : builds()) {
    const Shape shape = bf16_shape(build.generation);
    const int m = 2 * shape.r, k = shape.s, n = 2 * shape.t;
    const std::vector<uint16_t> a(area(m, k), 0x0001);  // 2^-133
    const std::vector<uint16_t> b(area(k, n), bf16_word(0x1p30f));
    const auto got =
        multiply({build, "matmul_bf16_f32", shape}, m, k, n, a, b, std::vector<float>(area(m, n)));
    const float exact = static_cast<float>(k) * 0x1p-103f;
    INFO(build.name());
    for (const float x : got) {
      const bool flushed = build.level == "v4bf16" && x == 0;
      CHECK((x == exact || flushed));
    }
  }
}

template <typename T>
void check_zero(const Build& build, const char* name) {
  npu::CoreState core;
  std::vector<T> c(80, T{7});
  build.find(name)(std::vector{buffer(c), integer(48)}, core);
  INFO(build.name() << " " << name);
  for (size_t i = 0; i < c.size(); ++i) {
    T bits = i < 48 ? T{0} : T{7};
    CHECK(std::memcmp(&c[i], &bits, sizeof bits) == 0);
  }
}

TEST_CASE("zero kernels clear exactly count elements") {
  for (const Build& build : builds()) {
    check_zero<float>(build, "zero_f32");
    check_zero<int32_t>(build, "zero_i32");
    check_zero<int16_t>(build, "zero_i16");
    check_zero<int8_t>(build, "zero_i8");
    check_zero<uint16_t>(build, "zero_bf16");
  }
}

TEST_CASE("convert_f32_bf16 rounds to nearest even whatever mode the core was in") {
  std::mt19937 rng(5);
  std::uniform_int_distribution<uint32_t> any;
  std::vector<float> src(4096);
  for (float& x : src) x = std::bit_cast<float>(any(rng) % 0x7F800000u);
  src[0] = 1.00390625f;  // tie between 1 and 1 + 2^-7, to even
  src[1] = 1.01171875f;  // tie, up to even
  src[2] = -1.00390625f;
  for (const Build& build : builds()) {
    npu::CoreState core;
    core.rounding = 1;
    std::vector<uint16_t> dst(src.size());
    build.find("convert_f32_bf16")(
        std::vector{buffer(src), buffer(dst), integer(static_cast<int64_t>(src.size()))}, core);
    INFO(build.name());
    CHECK(core.rounding == 12);
    CHECK(dst[0] == 0x3F80);
    CHECK(dst[1] == 0x3F82);
    CHECK(dst[2] == 0xBF80);
    int wrong = 0;
    for (size_t i = 0; i < src.size(); ++i) {
      // Nearest even: the neighbour at the smaller distance, measured in double.
      const auto low = static_cast<uint16_t>(std::bit_cast<uint32_t>(src[i]) >> 16);
      const auto high = static_cast<uint16_t>(low + 1);
      const double above =
          (high & 0x7FFF) == 0x7F80 ? std::ldexp(src[i] < 0 ? -1 : 1, 128) : bf16_value(high);
      const double to_low = std::fabs(static_cast<double>(src[i]) - bf16_value(low));
      const double to_high = std::fabs(static_cast<double>(src[i]) - above);
      const bool up = to_high < to_low || (to_high == to_low && (low & 1) != 0);
      if (dst[i] != (up ? high : low)) ++wrong;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("wrong operands raise a kernel error and write nothing") {
  for (const Build& build : builds()) {
    INFO(build.name());
    std::vector<uint16_t> a(64 * 64), b(64 * 64);
    std::vector<float> c(64 * 64, 5.0f);
    const auto call = [&](npu::KernelArgument x, npu::KernelArgument y, npu::KernelArgument z,
                          int64_t m, int64_t k, int64_t n) {
      return raised(build, "matmul_bf16_f32", {x, y, z, integer(m), integer(k), integer(n)});
    };
    const auto A = buffer(a), B = buffer(b), C = buffer(c);
    CHECK(call(A, B, C, 0, 64, 64) == "kernel");
    CHECK(call(A, B, C, -64, 64, 64) == "kernel");
    CHECK(call(A, B, C, bf16_shape(build.generation).r, 64, 64) == "kernel");  // no 2x2 block
    CHECK(call(A, B, C, 64, 60, 64) == "kernel");
    CHECK(call(A, B, C, 64, 64, bf16_shape(build.generation).t) == "kernel");
    CHECK(call(A, B, C, int64_t{1} << 40, 64, 64) == "kernel");
    CHECK(call(A, B, C, 64, std::numeric_limits<int64_t>::max() & ~7, 64) == "kernel");
    CHECK(call(A, B, C, 128, 64, 64) == "kernel");  // past the memory
    CHECK(call(A, B, integer(1), 64, 64, 64) == "kernel");
    CHECK(raised(build, "matmul_bf16_f32", {A, B, C, A, integer(64), integer(64)}) == "kernel");
    CHECK(raised(build, "matmul_bf16_f32", {A, B, C}) == "kernel");
    CHECK(raised(build, "matmul_bf16_f32", {}) == "kernel");
    CHECK(call(C, B, C, 64, 64, 64) == "kernel");  // a and c overlap
    npu::KernelArgument odd = C;
    odd.data += 2;
    odd.bytes -= 2;
    CHECK(call(A, B, odd, 16, 16, 16) == "kernel");
    CHECK(raised(build, "zero_f32", {C, integer(8)}) == "kernel");
    CHECK(raised(build, "zero_i32", {C, integer(64 * 64 + 16)}) == "kernel");
    CHECK(raised(build, "convert_f32_bf16", {C, A, integer(7)}) == "kernel");
    CHECK(raised(build, "convert_f32_bf16", {C, A, integer(64 * 64 + 16)}) == "kernel");
    CHECK(raised(build, "zero_f32", {C, integer(64)}, npu::CoreState{5, 0}) == "kernel");
    CHECK(raised(build, "zero_f32", {C, integer(64)}, npu::CoreState{0, 2}) == "kernel");
    for (const float x : c) REQUIRE(x == 5.0f);
  }
}

TEST_CASE("repeated calls do what as many calls do, and raise the error of the first wrong one") {
  each_build([](const Build& build) {
    std::vector<uint16_t> objects(64), kept(10240);
    for (size_t i = 0; i < objects.size(); ++i) objects[i] = static_cast<uint16_t>(i + 1);
    std::vector<int32_t> state(16);
    std::vector<npu::KernelArgument> keep = {buffer(objects), buffer(kept), buffer(state),
                                             integer(16)};
    npu::CoreState core;
    npu::HostKernel(build.find("gemv_keep")).repeat(keep, core, 3, 0, 32);
    for (size_t i = 0; i < 64; ++i) CHECK(kept[i] == (i < 48 ? objects[i] : 0));
    std::vector<float> c(64, 5.0f);
    std::vector<npu::KernelArgument> clear = {buffer(c), integer(16)};
    // The second one is not aligned.
    CHECK_THROWS_AS(npu::HostKernel(build.find("zero_f32")).repeat(clear, core, 3, 0, 2),
                    npu::Error);
    for (size_t i = 0; i < 64; ++i) CHECK(c[i] == (i < 16 ? 0.0f : 5.0f));
  });
}

TEST_CASE("lookup: unknown names are null, NPU_CPU is checked") {
  const auto find = [](const char* name, Generation generation) {
    return npu::find_host_kernel(name, generation, Arithmetic::kFast);
  };
  CHECK_FALSE(bool(find("matmul", Generation::kNpu2)));
  CHECK_FALSE(bool(find("", Generation::kNpu1)));
  CHECK(bool(find("zero_f32", Generation::kNpu1) != find("zero_f32", Generation::kNpu2)));
  const ForcedCpu forced("v9");
  CHECK_THROWS_AS(find("zero_f32", Generation::kNpu2), npu::Error);
}

TEST_CASE("lookup: products of floats are of the level that multiplies them best, others not") {
  using npu::kernels::CpuLevel;
  const CpuLevel best = npu::kernels::best_cpu_level();
  const CpuLevel floats = npu::kernels::product_cpu_level(best);
  const bool intel = __builtin_cpu_is("intel") != 0 && best == CpuLevel::kV4Bf16;
  CHECK(floats == (intel ? CpuLevel::kV4 : best));
  const auto same = [](const char* kernel, CpuLevel level) {
    const auto find = [&] {
      return npu::find_host_kernel(kernel, Generation::kNpu2, Arithmetic::kFast);
    };
    const auto chosen = find();
    const ForcedCpu forced(npu::kernels::cpu_level_name(level));
    CHECK(npu::kernels::product_cpu_level(level) == level);
    return chosen == find();
  };
  CHECK(same("matmul_bf16_f32", floats));
  for (const char* kernel : {"matmul_bf16bfp16_f32", "matmul_bfp16_f32_pipelined",
                             "prefill_multiply", "matmul_i8_i32", "gemv_setup", "zero_f32"}) {
    CAPTURE(kernel);
    CHECK(same(kernel, best));
  }
}

TEST_CASE("arithmetic names") {
  CHECK(std::string(npu::arithmetic_name(Arithmetic::kFast)) == "fast");
  CHECK(std::string(npu::arithmetic_name(Arithmetic::kSilicon)) == "silicon");
}
