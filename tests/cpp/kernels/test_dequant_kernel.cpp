// dequant_q4nx and dequant_q4_0: every host build gives, bit for bit, m + d code, or d (code - 8),
// in float32 rounded to bfloat16 here by integer arithmetic, for the block read by the published
// formula; operands that must be refused.
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

constexpr const char* kKernels[] = {"dequant_q4nx", "dequant_q4_0"};

struct Memory {
  bool minima;                        // of dequant_q4nx
  alignas(64) std::byte block[5120];  // behind a small block random, too
  alignas(64) uint16_t out[32 * 256];

  // Any bits in the planes but infinities and NaN.
  Memory(const char* kernel, unsigned seed) : minima(kernel == kKernels[0]) {
    std::memset(out, 0, sizeof out);
    std::mt19937 random(seed);
    for (std::byte& b : block) b = static_cast<std::byte>(random());
    auto* planes = reinterpret_cast<uint16_t*>(block);
    for (int i = 0; i < (minima ? 512 : 256); ++i) {
      if ((planes[i] & 0x7F80) == 0x7F80) planes[i] = static_cast<uint16_t>(planes[i] & 0x807F);
      if (seed % 2 == 1) planes[i] = static_cast<uint16_t>((planes[i] & 0x83FF) | 0x3C00);
    }
  }

  uint16_t expected(int row, int column) const {
    const auto* planes = reinterpret_cast<const uint16_t*>(block);
    const int codes_at = minima ? 1024 : 512;
    const auto byte =
        static_cast<unsigned>(block[codes_at + row / 16 * 2048 + column * 8 + row % 16 / 2]);
    const auto code =
        static_cast<float>(row % 2 == 0 ? byte & 15 : byte >> 4) - (minima ? 0.0f : 8.0f);
    const int at = column / 32 * 32 + row;
    const volatile float product = widen(planes[at]) * code;  // rounded (to infinity) on its own
    const float sum = product + (minima ? widen(planes[256 + at]) : 0.0f);  // there is no -0
    if (std::isnan(sum)) return 0x7FC0;
    const auto bits = std::bit_cast<uint32_t>(sum);
    return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
  }

  std::vector<KernelArgument> arguments() {
    const auto buffer = [](auto& array) {
      return KernelArgument{reinterpret_cast<std::byte*>(array), sizeof array, 0};
    };
    return {{block, minima ? 5120u : 4608u, 0}, buffer(out)};
  }
};

}  // namespace

TEST_CASE("dequant_q4nx, dequant_q4_0: every build gives the bits of the formula") {
  for (const Build& build : builds()) {
    CAPTURE(build.name());
    for (const char* name : kKernels) {
      CAPTURE(std::string(name));
      const HostKernel kernel = build.find(name);
      REQUIRE(bool(kernel));
      for (unsigned seed = 0; seed < 6; ++seed) {
        CAPTURE(seed);
        if (build.arithmetic == Arithmetic::kSilicon && seed % 2 == 0)
          continue;  // AIE2's rule has no denormals
        Memory memory(name, seed);
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
}

TEST_CASE("dequant_q4nx, dequant_q4_0: refused operands") {
  for (const char* name : kKernels) {
    CAPTURE(std::string(name));
    const HostKernel kernel = find_host_kernel(name, arch::Generation::kNpu2, Arithmetic::kFast);
    Memory memory(name, 1);
    CoreState core;
    const auto refused = [&](std::vector<KernelArgument> arguments) {
      CHECK_THROWS_AS(kernel(arguments, core), Error);
    };
    auto arguments = memory.arguments();
    CHECK_NOTHROW(kernel(arguments, core));
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
}
