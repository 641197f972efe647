// gelu.h of AIE2 before its result is rounded: the relative error of its factor h and of the two
// polynomials it is made of, for every bfloat16 gate.
#include <doctest/doctest.h>

#include <cmath>

#define __AIE_ARCH__ 20
#define AIE_HOST_VARIANT test_gelu
#define AIE_HOST_SILICON 1
#include "aie_kernels/gelu.h"
#include "kernel_calls.h"

using namespace npu::gelu;

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
    power = std::max(power, error_of([](const Floats& x) { return polynomial(kExp2, x); },
                                     [](double x) { return std::exp2(x); }, -0.5 + i * 1e-3, 3e-5));
    inverse = std::max(inverse, error_of([](const Floats& x) { return polynomial(kInverse, x); },
                                         [](double x) { return 1 / (1 + x); }, i * 1e-3, 3e-5));
  }
  CHECK(power < 1.02e-4);
  CHECK(inverse < 5.92e-5);
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
