// dequant_q4nx: every host build gives, bit for bit, m + d code in float32 rounded to bfloat16 here
// by integer arithmetic, for the block read by the published formula; operands that must be
// refused.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "error.h"
#include "kernel_calls.h"
#include "kernels/kernel.h"

namespace {

using namespace npu;
using kernel_test::Build, kernel_test::builds;

float widen(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

struct Memory {
  alignas(64) std::byte block[5120];
  alignas(64) uint16_t out[32 * 256];

  // Any bits in the planes but infinities and NaN.
  explicit Memory(unsigned seed) : Memory() {
    std::mt19937 random(seed);
    for (std::byte& b : block) b = static_cast<std::byte>(random());
    auto* planes = reinterpret_cast<uint16_t*>(block);
    for (int i = 0; i < 512; ++i) {
      if ((planes[i] & 0x7F80) == 0x7F80) planes[i] = static_cast<uint16_t>(planes[i] & 0x807F);
      if (seed % 2 == 1) planes[i] = static_cast<uint16_t>((planes[i] & 0x83FF) | 0x3C00);
    }
  }

  uint16_t expected(int row, int column) const {
    const auto* planes = reinterpret_cast<const uint16_t*>(block);
    const auto byte =
        static_cast<unsigned>(block[1024 + row / 16 * 2048 + column * 8 + row % 16 / 2]);
    const auto code = static_cast<float>(row % 2 == 0 ? byte & 15 : byte >> 4);
    const int at = column / 32 * 32 + row;
    const volatile float product = widen(planes[at]) * code;  // rounded (to infinity) on its own
    const float sum = product + widen(planes[256 + at]);
    if (std::isnan(sum)) return 0x7FC0;
    const auto bits = std::bit_cast<uint32_t>(sum);
    return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
  }

  std::vector<KernelArgument> arguments() {
    const auto buffer = [](auto& array) {
      return KernelArgument{reinterpret_cast<std::byte*>(array), sizeof array, 0};
    };
    return {buffer(block), buffer(out)};
  }

 private:
  Memory() {
    std::memset(block, 0, sizeof block);
    std::memset(out, 0, sizeof out);
  }
};

}  // namespace

TEST_CASE("dequant_q4nx: every build gives the bits of the formula") {
  for (const Build& build : builds()) {
    CAPTURE(build.name());
    const HostKernel kernel = build.find("dequant_q4nx");
    REQUIRE(bool(kernel));
    for (unsigned seed = 0; seed < 6; ++seed) {
      CAPTURE(seed);
      if (build.arithmetic == Arithmetic::kSilicon && seed % 2 == 0)
        continue;  // AIE2's rule has no denormals
      Memory memory(seed);
      CoreState core;
      kernel(memory.arguments(), core);
      int wrong = 0;
      for (int r = 0; r < 32; ++r) {
        for (int c = 0; c < 256; ++c) {
          const uint16_t found = memory.out[r * 256 + c], wanted = memory.expected(r, c);
          const bool nan = std::isnan(widen(wanted)) && std::isnan(widen(found));
          wrong += found != wanted && !nan;
        }
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("dequant_q4nx: refused operands") {
  const HostKernel kernel =
      find_host_kernel("dequant_q4nx", arch::Generation::kNpu2, Arithmetic::kFast);
  Memory memory(1);
  CoreState core;
  const auto refused = [&](std::vector<KernelArgument> arguments) {
    CHECK_THROWS_AS(kernel(arguments, core), Error);
  };
  auto arguments = memory.arguments();
  refused({arguments[0]});
  refused({arguments[1], arguments[1]});
  for (const size_t i : {size_t{0}, size_t{1}}) {
    auto shorter = arguments;
    --shorter[i].bytes;
    refused(shorter);
    auto number = arguments;
    number[i] = KernelArgument{};
    refused(number);
    auto odd = arguments;
    ++odd[i].data;
    refused(odd);
  }
}
