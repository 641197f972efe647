// Asserts the npu2 kernels that multiply bf16 through bfp16 (matmul_bf16bfp16_*), in every host
// build: bit for bit the model of the emulation restated in double (largest exponent of 8 along k,
// mantissas to nearest even, exact block sums, fp32 accumulation), and its error bound.
#include <doctest/doctest.h>

#include <algorithm>

#include "kernel_calls.h"

using namespace kernel_test;

namespace {

constexpr Shape kShape{8, 8, 8};

std::vector<Build> npu2_builds() {
  std::vector<Build> out;
  for (const Build& build : builds()) {
    if (build.generation == Generation::kNpu2) out.push_back(build);
  }
  return out;
}

// Eight values that share an exponent; unit is the weight of a mantissa's last bit.
struct Block {
  double value[8];
  double unit;
};

// The values as multiples of unit = 2^(E - 133), E the largest exponent field.
Block to_block(const double* x) {
  double top = 0;
  for (int i = 0; i < 8; ++i) top = std::max(top, std::fabs(x[i]));
  const int exponent = top == 0 ? 0 : std::max(std::ilogb(top) + 127, 0);
  Block out{};
  out.unit = std::ldexp(1.0, exponent - 133);
  for (int i = 0; i < 8; ++i) {
    out.value[i] = std::min(std::nearbyint(x[i] / out.unit), 127.0) * out.unit;
  }
  return out;
}

struct Problem {
  int m, k, n;
  std::vector<uint16_t> a, b;
  std::vector<float> c;
};

// Blocks of row i of A and of column j of B.
Block row_block(const Problem& p, int i, int k) {
  double x[8];
  for (int e = 0; e < 8; ++e) x[e] = bf16_value(at(p.a, p.k, i, k + e));
  return to_block(x);
}
Block column_block(const Problem& p, int k, int j) {
  double x[8];
  for (int e = 0; e < 8; ++e) x[e] = bf16_value(at(p.b, p.n, k + e, j));
  return to_block(x);
}

std::vector<float> model(const Problem& p) {
  std::vector<float> out = p.c;
  std::vector<Block> rows, columns;
  for (int k = 0; k < p.k; k += 8) {
    for (int i = 0; i < p.m; ++i) rows.push_back(row_block(p, i, k));
    for (int j = 0; j < p.n; ++j) columns.push_back(column_block(p, k, j));
  }
  for (int i = 0; i < p.m; ++i) {
    for (int j = 0; j < p.n; ++j) {
      for (int step = 0; step < p.k / 8; ++step) {
        const Block& x = rows[area(step, p.m) + static_cast<size_t>(i)];
        const Block& y = columns[area(step, p.n) + static_cast<size_t>(j)];
        double sum = 0;  // products are multiples of one unit and below 2^18 of it: exact
        for (int e = 0; e < 8; ++e) sum += x.value[e] * y.value[e];
        out[area(i, p.n) + static_cast<size_t>(j)] += static_cast<float>(sum);
      }
    }
  }
  return out;
}

uint16_t nearest_bf16(float x) {
  const double unit = std::ldexp(1.0, std::max(std::ilogb(x), -126) - 7);
  return x == 0 ? bf16_word(x) : bf16_word(static_cast<float>(std::nearbyint(x / unit) * unit));
}

// `exponents`: the range of the operands' exponent fields.
Problem random_problem(Size size, uint32_t low, uint32_t high, std::mt19937& rng) {
  std::uniform_int_distribution<uint32_t> any, exponent(low, high);
  Problem p{size.m, size.k, size.n, {}, {}, {}};
  const auto word = [&] { return static_cast<uint16_t>((any(rng) & 0x807F) | exponent(rng) << 7); };
  for (size_t i = 0; i < area(p.m, p.k); ++i) p.a.push_back(word());
  for (size_t i = 0; i < area(p.k, p.n); ++i) p.b.push_back(word());
  const int scale = static_cast<int>(low + high) - 254;
  for (size_t i = 0; i < area(p.m, p.n); ++i) {
    p.c.push_back(std::ldexp(std::normal_distribution<float>()(rng), scale));
  }
  return p;
}

void check_model(const Build& build, const Problem& p) {
  const std::vector<float> want = model(p);
  for (const bool column_major : {false, true}) {
    const auto got = multiply({build, "matmul_bf16bfp16_f32", kShape, column_major}, p.m, p.k, p.n,
                              p.a, p.b, p.c, npu::CoreState{1, 0});
    int wrong = 0;
    for (int i = 0; i < p.m; ++i) {
      for (int j = 0; j < p.n; ++j) {
        const float x = tiled_at(got, p.n, 8, 8, i, j), y = at(want, p.n, i, j);
        wrong += std::bit_cast<uint32_t>(x) != std::bit_cast<uint32_t>(y);
      }
    }
    INFO(build.name() << " column-major " << column_major << " k=" << p.k);
    CHECK(wrong == 0);
  }
}

}  // namespace

TEST_CASE("matmul_bf16bfp16_f32 is its model bit for bit") {
  std::mt19937 rng(9);
  for (const Size size : sizes(kShape)) {
    // Like weights and activations; wide; at the ends of what the fast builds multiply;
    // beyond both ends, denormals and overflow included.
    for (const auto& [low, high] :
         {std::pair{124u, 128u}, std::pair{100u, 150u}, std::pair{60u, 80u}, std::pair{180u, 190u},
          std::pair{0u, 70u}, std::pair{0u, 2u}, std::pair{185u, 200u}}) {
      const Problem p = random_problem(size, low, high, rng);
      for (const Build& build : npu2_builds()) check_model(build, p);
    }
  }
}

TEST_CASE("bfp16: zero blocks, single values, saturation of the mantissa") {
  for (const Build& build : npu2_builds()) {
    const int m = 16, k = 8, n = 16;
    Problem p{m,
              k,
              n,
              std::vector<uint16_t>(area(m, k)),
              std::vector<uint16_t>(area(k, n)),
              std::vector<float>(area(m, n), 0.5f)};
    const auto set_a = [&](int i, std::initializer_list<float> row) {
      size_t x = area(i, k);
      for (const float value : row) p.a[x++] = bf16_word(value);
    };
    for (int j = 0; j < n; ++j) {
      for (int i = 0; i < k; ++i) p.b[area(i, n) + static_cast<size_t>(j)] = bf16_word(1.0f);
    }
    set_a(1, {1.9921875f});                      // 127.5 units: 127, not 128
    set_a(2, {-1.9921875f});                     // -128
    set_a(3, {64.0f, 0.5f, 1.5f, -0.5f});        // unit 1: ties to 0, 2, 0
    set_a(4, {64.0f, 0.25f, 0.25f, 0.25f});      // dropped, one by one
    set_a(5, {0, 0, 0, 0, 0, 0, 0, 3.140625f});  // alone in its block: 100.5 units of 1/32, to even
    check_model(build, p);
    const auto c = multiply({build, "matmul_bf16bfp16_f32", kShape}, m, k, n, p.a, p.b, p.c);
    INFO(build.name());
    const auto sum = [&](int i) { return tiled_at(c, n, 8, 8, i, 3) - 0.5f; };
    CHECK(sum(0) == 0.0f);
    CHECK(sum(1) == 1.984375f);
    CHECK(sum(2) == -2.0f);
    CHECK(sum(3) == 66.0f);
    CHECK(sum(4) == 64.0f);
    CHECK(sum(5) == 3.125f);
  }
}

TEST_CASE("matmul_bf16bfp16_bf16 narrows that to nearest even") {
  std::mt19937 rng(10);
  const Problem p = random_problem({32, 64, 32}, 110, 130, rng);
  std::vector<uint16_t> c;
  Problem from_c = p;
  for (size_t i = 0; i < p.c.size(); ++i) {
    c.push_back(bf16_word(p.c[i]));
    from_c.c[i] = bf16_value(c[i]);
  }
  const std::vector<float> want = model(from_c);
  for (const Build& build : npu2_builds()) {
    for (const bool column_major : {false, true}) {
      const auto got = multiply({build, "matmul_bf16bfp16_bf16", kShape, column_major}, p.m, p.k,
                                p.n, p.a, p.b, c, npu::CoreState{0, 0});
      int wrong = 0;
      for (int i = 0; i < p.m; ++i) {
        for (int j = 0; j < p.n; ++j) {
          wrong += tiled_at(got, p.n, 8, 8, i, j) != nearest_bf16(at(want, p.n, i, j));
        }
      }
      INFO(build.name());
      CHECK(wrong == 0);
    }
  }
}

// A mantissa is off by at most half a unit, 2^-7 of the largest magnitude of its block; sums of
// k / 8 block sums round in fp32: |error| <= sum (|a| db + |b| da + da db) + gamma_{k/8} (|c| +
// sum (|a| + da)(|b| + db)).
TEST_CASE("bfp16 emulation stays within its error bound, and needs most of it") {
  std::mt19937 rng(12);
  const int m = 16, k = 128, n = 16;
  Problem p{m,
            k,
            n,
            random_bf16(area(m, k), rng, 1),
            random_bf16(area(k, n), rng, 1),
            std::vector<float>(area(m, n), 1.0f)};
  const auto largest = [](auto value, int k0) {
    double top = 0;
    for (int e = 0; e < 8; ++e) top = std::max(top, std::fabs(value(k0 + e)));
    return top;
  };
  for (const Build& build : npu2_builds()) {
    const auto c = multiply({build, "matmul_bf16bfp16_f32", kShape}, m, k, n, p.a, p.b, p.c);
    double worst = 0;
    for (int i = 0; i < m; ++i) {
      for (int j = 0; j < n; ++j) {
        const auto a = [&](int x) { return double{bf16_value(at(p.a, k, i, x))}; };
        const auto b = [&](int x) { return double{bf16_value(at(p.b, n, x, j))}; };
        double sum = 1, bound = 0, magnitude = 1;
        for (int x = 0; x < k; ++x) {
          const double da = 0x1p-7 * largest(a, x / 8 * 8), db = 0x1p-7 * largest(b, x / 8 * 8);
          sum += a(x) * b(x);
          bound += std::fabs(a(x)) * db + std::fabs(b(x)) * da + da * db;
          magnitude += (std::fabs(a(x)) + da) * (std::fabs(b(x)) + db);
        }
        const double gamma = k / 8 * kUnit / (1 - k / 8 * kUnit);
        const double error = std::fabs(tiled_at(c, n, 8, 8, i, j) - sum);
        worst = std::max(worst, error / (bound + gamma * magnitude));
      }
    }
    INFO(build.name());
    CHECK(worst <= 1);
    CHECK(worst > 0.02);  // the emulation loses bits: native bf16 stays below 1e-4 of this
  }
}

TEST_CASE("bfp16: a block with an infinity or NaN makes NaN, exactly where it is used") {
  for (const Build& build : npu2_builds()) {
    for (const bool column_major : {false, true}) {
      const int m = 16, k = 16, n = 16;
      std::vector<uint16_t> a(area(m, k), bf16_word(1.0f)), b(area(k, n), bf16_word(2.0f));
      a[area(1, k) + 3] = 0x7FC0;
      a[area(2, k) + 12] = 0xFF80;
      b[area(5, n) + 6] = 0x7F80;
      std::vector<float> c(area(m, n), 1.0f);
      c[area(4, n) + 4] = std::numeric_limits<float>::infinity();
      const auto got =
          multiply({build, "matmul_bf16bfp16_f32", kShape, column_major}, m, k, n, a, b, c);
      INFO(build.name());
      for (int i = 0; i < m; ++i) {
        for (int j = 0; j < n; ++j) {
          const float x = tiled_at(got, n, 8, 8, i, j);
          if (i == 1 || i == 2 || j == 6) {
            CHECK(std::isnan(x));
          } else if (i == 4 && j == 4) {
            CHECK(std::isinf(x));
          } else {
            CHECK(x == 33.0f);
          }
        }
      }
    }
  }
}

TEST_CASE("bfp16 kernels exist on npu2 only") {
  for (const char* name : {"matmul_bf16bfp16_f32", "matmul_bf16bfp16_f32_bcol",
                           "matmul_bf16bfp16_bf16", "matmul_bf16bfp16_bf16_bcol"}) {
    for (const Arithmetic arithmetic : {Arithmetic::kFast, Arithmetic::kSilicon}) {
      CHECK(bool(npu::find_host_kernel(name, Generation::kNpu2, arithmetic)));
      CHECK_FALSE(bool(npu::find_host_kernel(name, Generation::kNpu1, arithmetic)));
    }
  }
}
