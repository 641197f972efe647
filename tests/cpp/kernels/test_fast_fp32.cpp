// Rows of fp32 in vectors of the host (kernels/host/fast/fp32.hpp), in the build of the baseline:
// bits of a loop over elements, in every use that aie_kernels/fp32.h and norm.h allow; signed zeros
// and a NaN; nothing is done with another rounding.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

// Vectors that are wider than the baseline's registers are returned, but by functions in line only.
#pragma GCC diagnostic ignored "-Wpsabi"
#define __AIE_ARCH__ 21
#define AIE_HOST_VARIANT test_fast_fp32
#define AIE_HOST_SILICON 0
#include <aie_api/aie.hpp>

#include "kernels/host/core_state.h"

namespace {

constexpr int32_t kN = 96, kLaneSums = 32;

using Row = std::vector<float>;
using Halves = std::vector<uint16_t>;

Row numbers(unsigned seed, size_t count = kN) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Row row(count);
  for (float& value : row) value = normal(random);
  row[0] = -0.0f, row[1] = 0.0f, row[2] = std::nanf("");
  return row;
}

uint16_t narrow(float value) {  // to nearest even; a NaN is cut
  const auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

bool same(const Row& a, const Row& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), 4 * a.size()) == 0;
}

enum class Added { kRepeated, kWide, kWideToProduct, kLanes };

// One element after the other; products on their own are added to +0 first.
void expected(int32_t step, const Row& a, const Row& b, bool moves, const Row& c, Added added,
              Row& wide, Halves& rounded) {
  for (int32_t i = 0; i < kN; ++i) {
    const size_t at = static_cast<size_t>(i), in_step = static_cast<size_t>(i % step);
    const float product = a[at] * b[moves ? at : in_step];
    const bool lanes = added == Added::kLanes;
    float& to = wide[lanes ? static_cast<size_t>(i % kLaneSums) : at];
    if (added == Added::kRepeated) {
      to = c[in_step] + product;
    } else if (added == Added::kWide) {
      to = to + product;
    } else {
      to = to + (0.0f + product);
    }
    rounded[at] = narrow(to);
  }
}

template <int32_t kStep>
void check(bool moves, Added added, bool in_place) {
  CAPTURE(kStep);
  CAPTURE(moves);
  CAPTURE(int(added));
  CAPTURE(in_place);
  const Row b = numbers(2), c = numbers(3);
  Row wide = numbers(4), a = in_place ? wide : numbers(1), want = wide;
  Halves rounded(kN), narrowed(kN);
  expected(kStep, a, b, moves, c, added, want, narrowed);
  const float* const summand = added == Added::kRepeated ? c.data()
                               : added == Added::kWide   ? wide.data()
                                                         : nullptr;
  const float* const factor = in_place ? wide.data() : a.data();
  CHECK(aie::host::multiply_add<kStep>(factor, b.data(), moves, summand, added == Added::kLanes,
                                       wide.data(),
                                       reinterpret_cast<aie::bfloat16*>(rounded.data()), kN));
  CHECK(same(wide, want));
  CHECK(rounded == narrowed);
}

}  // namespace

TEST_CASE("rows: multiply_add has the bits of a loop over elements") {
  npu::CoreState core;
  const npu::aie_host::CoreScope scope(core);
  aie::set_rounding(aie::rounding_mode::conv_even);
  for (const bool moves : {false, true}) {
    for (const Added added :
         {Added::kRepeated, Added::kWide, Added::kWideToProduct, Added::kLanes}) {
      for (const bool in_place : {false, true}) {
        if (in_place && added == Added::kLanes) continue;  // sums are no elements
        check<16>(moves, added, in_place);
        check<32>(moves, added, in_place);
      }
    }
  }
}

TEST_CASE("rows: multiply_add leaves other roundings to the caller") {
  npu::CoreState core;
  const npu::aie_host::CoreScope scope(core);
  aie::set_rounding(aie::rounding_mode::floor);
  const Row a = numbers(1), b = numbers(2), before = numbers(3);
  Row wide = before;
  Halves rounded(kN, 7);
  CHECK(!aie::host::multiply_add<32>(a.data(), b.data(), true, nullptr, false, wide.data(),
                                     reinterpret_cast<aie::bfloat16*>(rounded.data()), kN));
  CHECK(same(wide, before));
  CHECK(std::ranges::all_of(rounded, [](uint16_t value) { return value == 7; }));
}

TEST_CASE("rows: widen_square") {
  const Row from = numbers(1);
  Halves x(kN);
  std::ranges::transform(from, x.begin(), narrow);
  for (const bool keeps : {false, true}) {
    Row squares = numbers(2, kLaneSums), wide(kN, 5), want = squares, widened(kN, 5);
    for (size_t i = 0; i < kN; ++i) {
      const auto value = std::bit_cast<float>(static_cast<uint32_t>(x[i]) << 16);
      widened[keeps ? i : i % kLaneSums] = value;
      want[i % kLaneSums] += value * value;
    }
    aie::host::widen_square(reinterpret_cast<const aie::bfloat16*>(x.data()), wide.data(), keeps,
                            squares.data(), kN);
    CHECK(same(squares, want));
    CHECK(same(wide, widened));
  }
}
