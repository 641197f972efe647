// What the headers of vector kernels offer beyond the kernels: gelu.h of AIE2 before its result is
// rounded (the relative error of its factor h, for every bfloat16 gate, and of the polynomials it
// is made of); norm.h and rope.h with fp32 operands and results, in place.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>

#define __AIE_ARCH__ 20
#define AIE_HOST_VARIANT test_vector_headers
#define AIE_HOST_SILICON 1
#include "aie_kernels/gelu.h"
#include "aie_kernels/norm.h"
#include "aie_kernels/rope.h"
#include "kernel_calls.h"
#include "lane_products.h"

using namespace npu::gelu;
using kernel_test::kUnit;

namespace {

// Of 32 lanes from `first` on in steps of `step`, the largest error relative to exact(x).
template <typename Function, typename Exact>
double error_of(const Function& function, const Exact& exact, double first, double step) {
  Floats x;
  for (unsigned i = 0; i < kLanes; ++i) x.set(static_cast<float>(first + i * step), i);
  const Floats found = function(x);
  double worst = 0;
  for (unsigned i = 0; i < kLanes; ++i) {
    const double wanted = exact(double{x[i]});
    worst = std::max(worst, std::fabs(found[i] - wanted) / wanted);
  }
  return worst;
}

}  // namespace

TEST_CASE("the polynomials of gelu.h have the errors stated there") {
  double power = 0, inverse = 0;
  for (int i = 0; i < 1000; ++i) {
    power = std::max(power, error_of([](const Floats& x) { return polynomial<kExp2>(x); },
                                     [](double x) { return std::exp2(x); }, -0.5 + i * 1e-3, 3e-5));
    inverse = std::max(inverse, error_of([](const Floats& x) { return polynomial<kInverse>(x); },
                                         [](double x) { return 1 / (1 + x); }, i * 1e-3, 3e-5));
  }
  CHECK(power < 1.02e-4);
  CHECK(inverse < 5.92e-5 + 5 * kernel_test::kProductUnit);
}

TEST_CASE("h of AIE2 is (1 + tanh u) / 2 within 1.9e-4 for every gate") {
  for (uint32_t word = 0; word < 0x10000; word += kLanes) {
    npu::fp32::Bf16s gate;
    for (unsigned i = 0; i < kLanes; ++i) gate.set({static_cast<uint16_t>(word + i)}, i);
    const Floats found = h(gate);
    for (unsigned i = 0; i < kLanes; ++i) {
      const double g = gate[i];
      if (std::isnan(g)) continue;
      const double u = std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g);
      const double exact =
          u < 0 ? std::exp(2 * u) / (1 + std::exp(2 * u)) : 1 / (1 + std::exp(-2 * u));
      CHECK_MESSAGE(std::fabs(found[i] - exact) <= 1.9e-4 * exact + 0x1p-125, g);
    }
  }
}

namespace {

// n numbers of both signs, none of them small.
std::vector<float> numbers(int n, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> size(0.5f, 4.0f);
  std::vector<float> out;
  for (int i = 0; i < n; ++i) out.push_back(random() % 2 == 0 ? size(random) : -size(random));
  return out;
}

constexpr int kCount = 320;

float to_even(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return std::bit_cast<float>((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000);
}
float to_floor(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t below = (bits & 0xFFFF) != 0 && value < 0 ? 0x10000 : 0;
  return std::bit_cast<float>((bits & 0xFFFF0000) + below);
}

float product(float a, float b, float plus = 0) {
  return kernel_test::six_products(a, b, plus, to_even);
}

}  // namespace

TEST_CASE("products of fp32 lanes are six of bf16 parts, in the core's mode") {
  using Numbers = aie::vector<float, kLanes>;
  const auto check = [](float a, float b, float plus, const auto& narrow) {
    const Numbers x = aie::broadcast<float, kLanes>(a), y = aie::broadcast<float, kLanes>(b);
    const aie::accum<accfloat, kLanes> sum(aie::broadcast<float, kLanes>(plus));
    const float found = npu::fp32::floats(aie::mac(sum, x, y))[0];
    const float less = npu::fp32::floats(aie::msc(sum, x, y))[0];
    CHECK(std::bit_cast<uint32_t>(found) ==
          std::bit_cast<uint32_t>(kernel_test::six_products(a, b, plus, narrow)));
    CHECK(less == kernel_test::six_products(a, -b, plus, narrow));
  };
  const std::vector<float> some = numbers(3 * kCount, 21);
  for (const auto mode : {aie::rounding_mode::conv_even, aie::rounding_mode::floor}) {
    aie::set_rounding(mode);
    const auto narrow = mode == aie::rounding_mode::floor ? to_floor : to_even;
    for (size_t i = 0; i < kCount; ++i) {
      const float a = some[i], b = some[i + kCount], plus = some[i + 2 * kCount];
      check(a, b, plus, narrow);
      check(a, b, std::ldexp(plus, static_cast<int>(i % 60) - 30), narrow);
      check(a, b, -a * b, narrow);
      check(2 - 0x1p-23f * static_cast<float>(i % 300 + 1), b, 0, narrow);  // a first part of 2
    }
    check(0, 1, 0, narrow), check(-3, 0, 5, narrow), check(0x1p-100f, 1, 0, narrow);
  }
  aie::set_rounding(aie::rounding_mode::conv_even);
}

TEST_CASE("products of fp32 lanes whose parts vanish or overflow are one fused multiply-add") {
  const auto check = [](float a, float b, float plus) {
    const auto x = aie::broadcast<float, kLanes>(a), y = aie::broadcast<float, kLanes>(b);
    const aie::accum<accfloat, kLanes> sum(aie::broadcast<float, kLanes>(plus));
    const float found = npu::fp32::floats(aie::mac(sum, x, y))[0], wanted = std::fmaf(a, b, plus);
    CHECK((std::isnan(wanted) ? std::isnan(found) : found == wanted));
  };
  const float odd = 1 + 0x1p-23f;
  for (const float a : {odd * 0x1p-111f, 3.4e38f, INFINITY, -INFINITY, NAN}) {
    for (const float b : {odd, 0.0f, -odd * 0x1p20f}) check(a, b, 0), check(b, a, odd);
  }
  check(odd * 0x1p-60f, odd * 0x1p-60f, 0), check(odd * 0x1p64f, odd * 0x1p63f, 0);
  check(odd, odd, INFINITY), check(odd, odd, NAN);
}

TEST_CASE("norm.h with fp32 operands") {
  const std::vector<float> x = numbers(kCount, 1), weight = numbers(kCount, 2);
  const std::vector<float> residual = numbers(kCount, 3);
  double total = 0;
  for (const float value : x) total += double{value} * value;
  const double exact = 1 / std::sqrt(total / kCount + 0.25);
  const auto half = npu::norm::add_squares(npu::norm::no_squares(), x.data(), kCount / 2);
  const auto squares = npu::norm::add_squares(half, x.data() + kCount / 2, kCount / 2);
  const float factor = npu::norm::factor(squares, kCount, 0.25f);
  CHECK(std::fabs(factor - exact) <= exact * 12 * kUnit);

  std::vector<float> scaled = x, sum = residual, added = x, multiplied = x;
  npu::norm::scale(scaled.data(), factor, weight.data(), scaled.data(), kCount);
  npu::norm::scale_add(x.data(), factor, weight.data(), sum.data(), sum.data(), kCount);
  npu::norm::add(added.data(), residual.data(), added.data(), kCount);
  npu::norm::multiply(multiplied.data(), 3.3f, multiplied.data(), kCount);
  for (size_t i = 0; i < kCount; ++i) {
    const double wanted = double{x[i]} * factor * weight[i], before = std::fabs(wanted);
    CHECK(std::fabs(scaled[i] - wanted) <= before * 2.1 * kernel_test::kProductUnit);
    CHECK(std::fabs(sum[i] - (residual[i] + wanted)) <=
          before * 2.1 * kernel_test::kProductUnit + std::fabs(residual[i] + wanted) * 1.1 * kUnit);
    CHECK(added[i] == x[i] + residual[i]);
    CHECK(multiplied[i] == product(x[i], 3.3f));
  }
}

TEST_CASE("quotient of fp32.h is the division of positive floats, rounded to nearest") {
  std::mt19937 random(7);
  const auto check = [](float a, float b) {
    const float exact = static_cast<float>(double{a} / b);  // rounded twice, which is the same
    const float wanted = exact < 0x1p-126f ? 0 : exact;
    CHECK_MESSAGE(
        std::bit_cast<uint32_t>(npu::fp32::quotient(a, b)) == std::bit_cast<uint32_t>(wanted),
        a << " / " << b);
  };
  const auto number = [&](uint32_t exponents) {
    const auto word = (127 - exponents / 2 + random() % exponents) << 23 | random() >> 9;
    return std::bit_cast<float>(static_cast<uint32_t>(word));
  };
  for (int i = 0; i < 200000; ++i) {
    check(number(80), number(40));
    check(number(80), static_cast<float>(32 * (1 + random() % 224)));  // widths of rows
    check(1, number(40));
    // Quotients at and beside powers of two.
    const float b = number(4), beside = std::nextafter(b, i % 2 == 0 ? 0.0f : 9.0f);
    check(b, b), check(beside, b), check(b, beside);
  }
  for (const float width : {32.0f, 1152.0f, 7168.0f}) {
    for (const float a : {0.0f, 1e-44f, 0x1p-126f, 0x1p-120f, 3.4e38f}) check(a, width);
  }
  CHECK(std::isinf(npu::fp32::quotient(INFINITY, 3)));
  CHECK(std::isnan(npu::fp32::quotient(NAN, 3)));
}

TEST_CASE("passes of fp32.h and norm.h with fp32 rows, in place or into another") {
  aie::set_rounding(aie::rounding_mode::conv_even);
  const std::vector<float> x = numbers(kCount, 8), y = numbers(kCount, 9);
  alignas(64) float factor[kLanes], sums[kLanes];
  npu::fp32::fill(factor, 1.7f);
  std::vector<float> out(kCount), added = y, base = y, offset(kCount);
  std::vector<bfloat16> rounded(kCount);
  using npu::fp32::kStep, npu::fp32::multiply_add;
  const float* zeros = npu::fp32::kZeros.values;
  multiply_add(x.data(), y.data(), kStep, zeros, out.data(), rounded.data(), kCount);
  for (size_t i = 0; i < kCount; ++i) {
    CHECK(out[i] == product(x[i], y[i]));
    CHECK(std::fabs(float{rounded[i]} - out[i]) <= std::fabs(out[i]) * 0x1p-8);
  }
  multiply_add(x.data(), factor, 0, added.data(), added.data(), rounded.data(), kCount);
  multiply_add(x.data(), factor, 0, nullptr, base.data(), rounded.data(), kCount);
  multiply_add(x.data(), y.data(), kStep, factor, offset.data(), rounded.data(), kCount);
  for (size_t i = 0; i < kCount; ++i) {
    CHECK(added[i] == product(x[i], 1.7f, y[i]));
    CHECK(base[i] == y[i] + product(x[i], 1.7f));  // rounded twice
    CHECK(offset[i] == product(x[i], y[i], 1.7f));
  }
  npu::fp32::fill(sums, 1);
  const float* lanes = npu::fp32::kNothing.values;
  multiply_add(x.data(), y.data(), kStep, lanes, sums, rounded.data(), kCount);
  for (size_t lane = 0; lane < kLanes; ++lane) {
    float wanted = 1;
    for (size_t i = lane; i < kCount; i += kLanes) wanted += product(x[i], y[i]);
    CHECK(sums[lane] == wanted);
  }
}

TEST_CASE("geglu of AIE2 in passes has the bits of geglu") {
  constexpr int32_t kN = 512;
  for (uint32_t from = 0; from < 0x10000; from += kN) {
    std::vector<bfloat16> gate(kN), up(kN), one(kN), other(kN);
    for (uint32_t i = 0; i < kN; ++i) {
      const auto word = static_cast<uint16_t>(from + i);
      gate[i] = {(word & 0x7F80) == 0x7F80 ? uint16_t{0} : word};  // no infinity, no NaN
      up[i] = {kernel_test::bf16_word(static_cast<float>(static_cast<int>(i % 37) - 18) / 7)};
    }
    alignas(64) float work[passes_work(kN)];
    geglu(gate.data(), up.data(), one.data(), kN);
    geglu_in_passes(gate.data(), up.data(), other.data(), kN, work);
    int different = 0;
    for (size_t i = 0; i < kN; ++i) different += one[i].bits != other[i].bits;
    CHECK_MESSAGE(different == 0, from);
  }
}

TEST_CASE("norm.h sums bf16 and fp32 into either") {
  aie::set_rounding(aie::rounding_mode::conv_even);
  const std::vector<float> a = numbers(kCount, 4);
  std::vector<bfloat16> b(kCount), narrow(kCount);
  std::vector<float> wide(kCount);
  for (size_t i = 0; i < kCount; ++i) b[i] = {kernel_test::bf16_word(a[kCount - 1 - i])};
  npu::norm::add(a.data(), b.data(), wide.data(), kCount);
  npu::norm::add(b.data(), a.data(), narrow.data(), kCount);
  for (size_t i = 0; i < kCount; ++i) {
    CHECK(wide[i] == a[i] + float{b[i]});
    CHECK(std::fabs(narrow[i] - wide[i]) <= std::fabs(wide[i]) * 0x1p-8);
  }
}

TEST_CASE("rope.h with fp32 operands, in place") {
  for (const int d : {64, 128, 256}) {
    const std::vector<float> x = numbers(d, 5), weight = numbers(d, 6);
    std::vector<float> cosine, sine, plain = x, normed = x;
    double total = 0;
    for (int i = 0; i < d / 2; ++i) {
      cosine.push_back(std::cos(0.1f * static_cast<float>(i)));
      sine.push_back(std::sin(0.1f * static_cast<float>(i)));
    }
    for (const float value : x) total += double{value} * value;
    const double factor = 1 / std::sqrt(total / d + 1e-6f);
    npu::rope::rope(plain.data(), cosine.data(), sine.data(), plain.data(), d);
    npu::rope::qk_norm_rope(normed.data(), weight.data(), 1e-6f, cosine.data(), sine.data(),
                            normed.data(), d);
    for (size_t i = 0; i < cosine.size(); ++i) {
      const size_t j = i + cosine.size();
      const double c = cosine[i], s = sine[i];
      CHECK(std::fabs(plain[i] - (x[i] * c - x[j] * s)) <= 8 * 2 * kUnit);
      CHECK(std::fabs(plain[j] - (x[j] * c + x[i] * s)) <= 8 * 2 * kUnit);
      const double low = x[i] * factor * weight[i], high = x[j] * factor * weight[j];
      const double bound = (std::fabs(low) + std::fabs(high)) * 16 * kUnit;
      CHECK(std::fabs(normed[i] - (low * c - high * s)) <= bound);
      CHECK(std::fabs(normed[j] - (high * c + low * s)) <= bound);
    }
  }
}
