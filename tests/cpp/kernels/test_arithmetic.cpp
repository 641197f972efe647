// Asserts the arithmetic of the host <aie_api/aie.hpp>: the AIE2 bf16 multiply-accumulate against
// silicon observations and an independent formulation in double, the ten rounding modes against
// silicon and against exact distances, shift-round-saturate, vector and mmul basics.
// Silicon vectors: tests/golden/silicon.
#include <doctest/doctest.h>

#include <algorithm>

#define __AIE_ARCH__ 20
#define AIE_HOST_VARIANT test_arithmetic
#define AIE_HOST_SILICON 1
#include "error.h"
#include "golden.h"
#include "kernel_calls.h"
#include "kernels/host/aie_api/aie.hpp"
#include "kernels/host/core_state.h"

using namespace kernel_test;
using aie::rounding_mode;
using aie::saturation_mode;
using Mmul = aie::mmul<4, 8, 4, bfloat16>;

namespace {

// The same rule with real numbers: terms are rounded to multiples of a quantum by nearbyint.
// Operands are finite.
float fused_reference(const uint16_t* a, const uint16_t* b, int stride, float c) {
  double terms[9];
  int top = std::numeric_limits<int>::min();  // weight of bit 0 of the significands' common frame
  const auto exponent_field = [](uint32_t bits, int mantissa_bits) {
    const int e = static_cast<int>(bits >> mantissa_bits & 0xFF);
    return std::max(e, 1) - 127;
  };
  for (int k = 0; k < 8; ++k) {
    const uint16_t x = a[k], y = b[k * stride];
    terms[k] = static_cast<double>(bf16_value(x)) * bf16_value(y);
    // A product lies in [1, 4) * 2^(ea + eb): its frame keeps 23 bits below 2^(ea + eb).
    if (terms[k] != 0) top = std::max(top, exponent_field(x, 7) + exponent_field(y, 7));
  }
  terms[8] = c;
  if (c != 0) top = std::max(top, exponent_field(std::bit_cast<uint32_t>(c), 23));
  if (top == std::numeric_limits<int>::min()) return 0;
  double sum = 0;  // integers below 2^30: exact
  for (const double term : terms) sum += std::nearbyint(std::ldexp(term, 23 - top));
  if (sum == 0) return 0;
  const int lead = std::ilogb(sum);
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(sum, 23 - lead)), lead - 23);
  const double value = std::ldexp(rounded, top - 23);
  if (std::fabs(value) >= 0x1p128)
    return std::copysign(std::numeric_limits<float>::infinity(), static_cast<float>(sum));
  return std::fabs(value) < 0x1p-126 ? 0.0f : static_cast<float>(value);
}

// One mmul on bit patterns.
void mac(const uint16_t* a, const uint16_t* b, float* c) {
  bfloat16 wide_a[32], wide_b[32];
  for (int i = 0; i < 32; ++i) {
    wide_a[i].bits = a[i];
    wide_b[i].bits = b[i];
  }
  Mmul m(aie::load_v<16>(c));
  m.mac(aie::load_v<32>(wide_a), aie::load_v<32>(wide_b));
  aie::store_v(c, m.to_vector<float>());
}

constexpr rounding_mode kModes[] = {rounding_mode::floor,           rounding_mode::ceil,
                                    rounding_mode::symmetric_floor, rounding_mode::symmetric_ceil,
                                    rounding_mode::negative_inf,    rounding_mode::positive_inf,
                                    rounding_mode::symmetric_zero,  rounding_mode::symmetric_inf,
                                    rounding_mode::conv_even,       rounding_mode::conv_odd};

// Rounds a real number to an integer as the mode's name says.
double round_real(double x, rounding_mode mode) {
  const double low = std::floor(x), high = std::ceil(x);
  const double inner = x < 0 ? high : low, outer = x < 0 ? low : high;
  if (low == high) return x;
  switch (mode) {
    case rounding_mode::floor:
      return low;
    case rounding_mode::ceil:
      return high;
    case rounding_mode::symmetric_floor:
      return inner;
    case rounding_mode::symmetric_ceil:
      return outer;
    default:
      break;
  }
  if (x - low != high - x) return x - low < high - x ? low : high;
  const double even = std::fmod(low, 2) == 0 ? low : high;
  switch (mode) {
    case rounding_mode::negative_inf:
      return low;
    case rounding_mode::positive_inf:
      return high;
    case rounding_mode::symmetric_zero:
      return inner;
    case rounding_mode::symmetric_inf:
      return outer;
    case rounding_mode::conv_even:
      return even;
    default:
      return even == low ? high : low;
  }
}

// fp32 -> bf16 through the accumulator, as kernels do.
uint16_t narrow(uint32_t bits, rounding_mode mode) {
  npu::CoreState core;
  const npu::aie_host::CoreScope scope(core);
  aie::set_rounding(mode);
  const aie::accum<accfloat, 16> acc(aie::broadcast<float, 16>(std::bit_cast<float>(bits)));
  return acc.to_vector<bfloat16>().get(7).bits;
}

}  // namespace

TEST_CASE("silicon: 54 bf16 tile products, NaNs bit by bit") {
  const auto a = golden::integers("silicon/bf16_mac.json", "a_bf16");
  const auto b = golden::integers("silicon/bf16_mac.json", "b_bf16");
  const auto c = golden::integers("silicon/bf16_mac.json", "c_f32");
  REQUIRE(a.size() == 54 * 32);
  REQUIRE(b.size() == 54 * 32);
  REQUIRE(c.size() == 54 * 16);
  int wrong = 0;
  for (size_t tile = 0; tile < 54; ++tile) {
    uint16_t x[32], y[32];
    for (size_t i = 0; i < 32; ++i) {
      x[i] = static_cast<uint16_t>(a[tile * 32 + i]);
      y[i] = static_cast<uint16_t>(b[tile * 32 + i]);
    }
    float got[16] = {};
    mac(x, y, got);
    for (size_t i = 0; i < 16; ++i) {
      if (std::bit_cast<uint32_t>(got[i]) != static_cast<uint32_t>(c[tile * 16 + i])) ++wrong;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("silicon: the npu1 silicon kernel is that multiply-accumulate") {
  const auto a = golden::integers("silicon/bf16_mac.json", "a_bf16");
  const auto b = golden::integers("silicon/bf16_mac.json", "b_bf16");
  const auto c = golden::integers("silicon/bf16_mac.json", "c_f32");
  // Two golden tiles on the diagonal of one 2x2 block with k = 8: C00 and C11 are golden results.
  const Build build{Generation::kNpu1, Arithmetic::kSilicon, "v2"};
  int wrong = 0;
  for (size_t tile = 0; tile < 54; tile += 2) {
    std::vector<uint16_t> x(64), y(64);
    for (size_t i = 0; i < 64; ++i) {
      x[i] = static_cast<uint16_t>(a[tile * 32 + i]);  // A tiles one below the other
      y[i] = static_cast<uint16_t>(b[tile * 32 + i]);  // B tiles side by side
    }
    std::vector<float> got(64);
    npu::CoreState core;
    build.find("matmul_bf16_f32")(
        std::vector{buffer(x), buffer(y), buffer(got), integer(8), integer(8), integer(8)}, core);
    for (size_t i = 0; i < 16; ++i) {
      const uint32_t first = std::bit_cast<uint32_t>(got[i]),
                     last = std::bit_cast<uint32_t>(got[48 + i]);
      if (first != static_cast<uint32_t>(c[tile * 16 + i])) ++wrong;
      if (last != static_cast<uint32_t>(c[tile * 16 + 16 + i])) ++wrong;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("AIE2 bf16 multiply-accumulate equals the rule stated in real numbers") {
  std::mt19937 rng(11);
  std::uniform_int_distribution<uint32_t> any;
  int wrong = 0, underflows = 0, infinite = 0;
  for (int round = 0; round < 3000; ++round) {
    // Exponents from a window per round, so that alignment really mixes terms; some rounds sit at
    // the denormal and overflow ends.
    const uint32_t centre = round % 7 == 0 ? 0 : 30 + any(rng) % 160, width = 1 + any(rng) % 24;
    const auto word = [&]() {
      const uint32_t exponent = std::min(centre + any(rng) % width, 254u);
      return static_cast<uint16_t>((any(rng) & 0x807F) | exponent << 7);
    };
    uint16_t a[32], b[32];
    float c[16], want[16];
    for (int i = 0; i < 32; ++i) {
      a[i] = word();
      b[i] = round % 7 == 0
                 ? static_cast<uint16_t>((any(rng) & 0x807F) | (110 + any(rng) % 30) << 7)
                 : word();
    }
    for (float& x : c) {
      const uint32_t exponent =
          any(rng) % 4 == 0 ? 0 : std::clamp(2 * centre + any(rng) % 40, 127u, 380u) - 127;
      x = any(rng) % 8 == 0 ? 0.0f : std::bit_cast<float>((any(rng) & 0x807FFFFF) | exponent << 23);
    }
    for (int i = 0; i < 4; ++i) {
      for (int j = 0; j < 4; ++j)
        want[i * 4 + j] = fused_reference(a + i * 8, b + j, 4, c[i * 4 + j]);
    }
    mac(a, b, c);
    for (int i = 0; i < 16; ++i) {
      if (std::bit_cast<uint32_t>(c[i]) != std::bit_cast<uint32_t>(want[i])) ++wrong;
      underflows += want[i] == 0;
      infinite += std::isinf(want[i]);
    }
  }
  CHECK(wrong == 0);
  CHECK(underflows > 0);  // the generator reaches both ends
  CHECK(infinite > 0);
}

TEST_CASE("AIE2 bf16 multiply-accumulate: known single cases") {
  const auto one_lane = [](std::initializer_list<float> a, std::initializer_list<float> b,
                           float acc) {
    uint16_t x[32] = {}, y[32] = {};
    int k = 0;
    for (const float value : a) x[k++] = bf16_word(value);
    k = 0;
    for (const float value : b) y[4 * k++] = bf16_word(value);
    float c[16] = {acc};
    mac(x, y, c);
    return c[0];
  };
  CHECK(one_lane({1}, {1}, 0) == 1.0f);
  // 2^-24 is half a unit in the aligned frame of 1: each ties to even, i.e. to nothing, although
  // their exact sum is 2^-22.
  CHECK(one_lane({1, 0x1p-12f, 0x1p-12f, 0x1p-12f, 0x1p-12f},
                 {1, 0x1p-12f, 0x1p-12f, 0x1p-12f, 0x1p-12f}, 0) == 1.0f);
  CHECK(one_lane({0x1p-70f}, {0x1p-70f}, 0) == 0.0f);  // 2^-140: flushed
  CHECK(one_lane({0x1p100f}, {0x1p100f}, 0) == std::numeric_limits<float>::infinity());
  CHECK(one_lane({0}, {0}, 0x1p-130f) == 0.0f);  // a denormal accumulator is a denormal result
  CHECK(one_lane({0x1p-126f}, {1}, 0x1p-130f) == 0x1.1p-126f);  // but counts as an input
  // NaNs: infinity * 0 has no sum; a NaN accumulator passes products that are 0, and else
  // overflows.
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::bit_cast<float>(0xFFC12345);
  CHECK(std::bit_cast<uint32_t>(one_lane({infinity}, {0}, 0)) == 0x7F800001);
  CHECK(std::bit_cast<uint32_t>(one_lane({-infinity, infinity}, {1, 0}, 0)) == 0xFF800001);
  CHECK(std::bit_cast<uint32_t>(one_lane({0}, {1}, nan)) == 0xFFC12345);
  CHECK(std::bit_cast<uint32_t>(one_lane({1}, {1}, nan)) == 0xFF800001);
}

TEST_CASE("silicon: fp32 to bf16 in modes 0 and 12") {
  for (const auto& [file, mode] :
       {std::pair{"silicon/fp32_to_bf16_mode0.json", rounding_mode::floor},
        std::pair{"silicon/fp32_to_bf16_mode12.json", rounding_mode::conv_even}}) {
    const auto input = golden::integers(file, "input");
    const auto silicon = golden::integers(file, "silicon");
    REQUIRE(!input.empty());
    REQUIRE(input.size() == silicon.size());
    for (size_t i = 0; i < input.size(); ++i) {
      CHECK(narrow(static_cast<uint32_t>(input[i]), mode) == static_cast<uint16_t>(silicon[i]));
    }
  }
}

TEST_CASE("fp32 to bf16: ten modes against exact distances") {
  std::mt19937 rng(2);
  std::uniform_int_distribution<uint32_t> any;
  std::vector<uint32_t> inputs = {0,          0x80000000, 1,          0x80000001,
                                  0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000};
  for (int i = 0; i < 2000; ++i) {
    const uint32_t low[] = {0, 0x8000, 0x7FFF, 0x8001, 1, 0xFFFF, any(rng) & 0xFFFF};
    const uint32_t bits = (any(rng) & 0xFFFF0000) | low[i % 7];
    if ((bits & 0x7F800000) != 0x7F800000) inputs.push_back(bits);
  }
  for (const rounding_mode mode : kModes) {
    int wrong = 0;
    for (const uint32_t bits : inputs) {
      // In units of the discarded 16 bits the kept word is an integer; sign and magnitude.
      const double magnitude = (bits & 0x7FFFFFFF) / 65536.0;
      const double value = round_real((bits >> 31) != 0 ? -magnitude : magnitude, mode);
      const auto want =
          static_cast<uint16_t>(static_cast<uint32_t>(std::fabs(value)) | (bits >> 16 & 0x8000));
      if (narrow(bits, mode) != want) ++wrong;
    }
    INFO("mode " << static_cast<int>(mode));
    CHECK(wrong == 0);
    CHECK(narrow(0x7F800001, mode) == 0x7F81);  // NaN stays NaN
    CHECK(narrow(0xFFC0FFFF, mode) == 0xFFC0);
  }
}

TEST_CASE("a core starts in floor mode and keeps what a kernel sets") {
  npu::CoreState core, other;
  {
    const npu::aie_host::CoreScope scope(core);
    CHECK(aie::get_rounding() == rounding_mode::floor);
    CHECK(aie::get_saturation() == saturation_mode::none);
    CHECK(aie::swap_rounding(rounding_mode::conv_even) == rounding_mode::floor);
    CHECK(aie::swap_saturation(saturation_mode::symmetric) == saturation_mode::none);
    const npu::aie_host::CoreScope inner(other);
    CHECK(aie::get_rounding() == rounding_mode::floor);
  }
  CHECK(core.rounding == 12);
  CHECK(core.saturation == 3);
  CHECK(other.rounding == 0);
  CHECK_THROWS_AS(aie::set_rounding(static_cast<rounding_mode>(7)), npu::Error);
}

TEST_CASE("shift-round-saturate: integer accumulators against real division") {
  npu::CoreState core;
  const npu::aie_host::CoreScope scope(core);
  std::vector<int32_t> values = {0,
                                 1,
                                 -1,
                                 8,
                                 -8,
                                 24,
                                 -24,
                                 2039,
                                 2040,
                                 -2040,
                                 -2056,
                                 100000,
                                 -100000,
                                 std::numeric_limits<int32_t>::max(),
                                 std::numeric_limits<int32_t>::min()};
  std::mt19937 rng(4);
  for (int i = 0; i < 1000; ++i)
    values.push_back(std::uniform_int_distribution<int32_t>(-4000, 4000)(rng));
  while (values.size() % 16 != 0) values.push_back(0);
  for (const rounding_mode mode : kModes) {
    for (const saturation_mode saturation :
         {saturation_mode::none, saturation_mode::saturate, saturation_mode::symmetric}) {
      for (const int shift : {0, 1, 4}) {
        aie::set_rounding(mode);
        aie::set_saturation(saturation);
        int wrong = 0;
        for (size_t at = 0; at < values.size(); at += 16) {
          const aie::accum<acc32, 16> acc(aie::load_v<16>(&values[at]));
          const auto got = acc.to_vector<int8_t>(shift);
          for (unsigned i = 0; i < 16; ++i) {
            const double exact = round_real(values[at + i] / static_cast<double>(1 << shift), mode);
            double want = exact;
            if (saturation == saturation_mode::none) {
              want = static_cast<int8_t>(static_cast<int64_t>(exact) & 0xFF);
            } else {
              want = std::clamp(exact, saturation == saturation_mode::symmetric ? -127.0 : -128.0,
                                127.0);
            }
            if (got.get(i) != want) ++wrong;
          }
        }
        INFO("mode " << static_cast<int>(mode) << " shift " << shift);
        CHECK(wrong == 0);
      }
    }
  }
}

TEST_CASE("vector: load, store, parts, broadcast; mmul: mul starts from zero") {
  int32_t data[16];
  for (int i = 0; i < 16; ++i) data[i] = i;
  auto v = aie::load_v<16>(data);
  CHECK(v.size() == 16);
  CHECK(v.bits() == 512);
  CHECK(v.extract<4>(2).get(1) == 9);
  v.insert(3, aie::broadcast<int32_t, 4>(-5));
  v.set(77, 0);
  int32_t out[16];
  aie::store_v(out, v);
  CHECK(out[0] == 77);
  CHECK(out[11] == 11);
  CHECK(out[12] == -5);
  CHECK(out[15] == -5);
  CHECK(aie::zeros<float, 8>()[3] == 0.0f);

  aie::mmul<4, 8, 8, int8_t> m(aie::broadcast<int32_t, 32>(1000));
  m.mul(aie::broadcast<int8_t, 32>(-128), aie::broadcast<int8_t, 64>(-128));
  CHECK(m.to_vector<int32_t>().get(31) == 8 * 128 * 128);
  m.mac(aie::broadcast<int8_t, 32>(1), aie::broadcast<int8_t, 64>(2));
  CHECK(m.to_vector<int32_t>().get(0) == 8 * 128 * 128 + 16);
  CHECK(m.to_accum().get(5) == 8 * 128 * 128 + 16);
}

TEST_CASE("transpose: the elements of a rows x columns matrix in the order of its transpose") {
  int16_t data[32];
  for (int i = 0; i < 32; ++i) data[i] = static_cast<int16_t>(i);
  const auto turned = aie::transpose(aie::load_v<32>(data), 8, 4);
  CHECK(turned.get(1) == 4);  // column 0 of the 8x4 matrix is 0, 4, 8, ...
  CHECK(turned.get(8) == 1);
  CHECK(turned.get(31) == 31);
  const auto back = aie::transpose(turned, 4, 8);
  for (unsigned i = 0; i < 32; ++i) CHECK(back.get(i) == data[i]);
  CHECK(aie::transpose(aie::load_v<32>(data), 1, 32).get(9) == 9);
}

TEST_CASE("accumulators: shifts in, saturation modes, 64 bits") {
  npu::CoreState core;
  const npu::aie_host::CoreScope scope(core);
  const auto most = aie::broadcast<int8_t, 16>(127), least = aie::broadcast<int8_t, 16>(-128);
  const auto in = [](const auto& v, int shift) { return aie::accum<acc32, 16>(v, shift).get(3); };
  CHECK(in(most, 24) == 127 << 24);
  CHECK(in(most, 25) == static_cast<int32_t>(0xFE000000));  // no saturation: low bits
  aie::set_saturation(saturation_mode::saturate);
  CHECK(in(most, 25) == std::numeric_limits<int32_t>::max());
  CHECK(in(least, 24) == std::numeric_limits<int32_t>::min());
  CHECK(in(least, 31) == std::numeric_limits<int32_t>::min());
  aie::set_saturation(saturation_mode::symmetric);
  CHECK(in(least, 31) == -std::numeric_limits<int32_t>::max());

  aie::mmul<4, 4, 4, int16_t> m(aie::broadcast<int32_t, 16>(std::numeric_limits<int32_t>::max()));
  m.mac(aie::broadcast<int16_t, 16>(-32768), aie::broadcast<int16_t, 16>(-32768));
  CHECK(m.to_accum().get(0) == int64_t{std::numeric_limits<int32_t>::max()} + (int64_t{4} << 30));
  aie::set_saturation(saturation_mode::saturate);
  CHECK(m.to_vector<int32_t>().get(0) == std::numeric_limits<int32_t>::max());
  aie::set_saturation(saturation_mode::none);
  CHECK(m.to_vector<int32_t>().get(0) == std::numeric_limits<int32_t>::max());  // + 2^32
}
