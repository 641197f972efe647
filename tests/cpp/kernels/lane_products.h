// Products of fp32 lanes on AIE2 by their definition, in double: every operation rounds its terms
// to multiples of 2^-23 of the power of two that the largest one reaches (a product: of the powers
// that its factors reach), adds them and rounds once. For products in fp32's normal range.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace kernel_test {

// The largest relative error of such a product. In units of 2^-24: what lacks, b f + c e + c f, 2;
// the last bit of a factor whose first part is the power of two above it, 1 each; the last
// operation 1 1/2, those before, on sums 2^-7 as large, 0.1.
constexpr double kProductUnit = 5.6 * 0x1p-24;

inline int power_of(double value) { return value == 0 ? -999 : std::ilogb(value); }

// a b and the sums.
inline float sum_of_terms(double a, double b, std::vector<double> sums) {
  int top = a == 0 || b == 0 ? -999 : power_of(a) + power_of(b);
  for (const double sum : sums) top = std::max(top, power_of(sum));
  if (top == -999) return 0;
  double total = std::nearbyint(std::ldexp(a * b, 23 - top));
  for (const double sum : sums) total += std::nearbyint(std::ldexp(sum, 23 - top));
  return static_cast<float>(std::ldexp(total, top - 23));
}

// `narrow`: rounds to bf16.
template <typename Narrow>
std::array<float, 3> parts_of(float value, const Narrow& narrow) {
  std::array<float, 3> found;
  for (float& part : found) {
    part = narrow(value);
    value = sum_of_terms(-part, 1, {value});
  }
  return found;
}

// plus + a b
template <typename Narrow>
float six_products(float a, float b, float plus, const Narrow& narrow) {
  constexpr int kOrder[][2] = {{0, 2}, {1, 1}, {2, 0}, {1, 0}, {0, 1}};
  const auto x = parts_of(a, narrow), y = parts_of(b, narrow);
  float below = 0;
  for (const auto& [i, j] : kOrder) below = sum_of_terms(x[i], y[j], {below});
  return sum_of_terms(x[0], y[0], {below, plus});
}

}  // namespace kernel_test
