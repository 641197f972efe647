// Cycles of the prefill configuration's products: how they depend on rows, row-blocks and formats,
// and what bounds them.
#include <doctest/doctest.h>

#include "arch/timing.h"
#include "kernels/registry.h"

using namespace npu;

namespace {

constexpr int kBf16 = 2;  // of the formats

}  // namespace

TEST_CASE("prefill_multiply: cycles grow with rows, row-blocks and 8-bit weights") {
  for (const auto generation : {arch::Generation::kNpu1, arch::Generation::kNpu2}) {
    const arch::Timing timing(generation, arch::TimingTable());
    const auto cycles = [&](int64_t m, int64_t blocks, int64_t format) {
      const int64_t integers[] = {m, blocks, format};
      return kernels::find_declaration("prefill_multiply", generation)->cycles(timing, integers);
    };
    for (const int format : {0, 1}) {
      CHECK(cycles(64, 1, format) > cycles(32, 1, format));
      CHECK(cycles(64, 2, format) > cycles(64, 1, format));
    }
    CHECK(cycles(64, 2, 1) > cycles(64, 2, 0));
    // No faster than the multiplications alone.
    const double peak =
        generation == arch::Generation::kNpu1 ? timing.mac_bf16_native : timing.mac_bfp16;
    CHECK(cycles(64, 2, 0) > 64 * 64 * 32 / peak);
    CHECK(cycles(64, 1, kBf16) > 64 * 32 * 32 / peak);
    CHECK(cycles(64, 1, kBf16) < cycles(64, 1, 1));  // nothing is multiplied by scales
  }
}

TEST_CASE("prefill products: no faster than what they load and store") {
  for (const auto generation : {arch::Generation::kNpu1, arch::Generation::kNpu2}) {
    const arch::Timing timing(generation, arch::TimingTable());
    const auto cycles = [&](const char* kernel, int64_t m, int64_t blocks, int64_t format) {
      const int64_t integers[] = {m, blocks, format};
      return kernels::find_declaration(kernel, generation)->cycles(timing, integers);
    };
    for (const int m : {16, 64}) {
      for (const int blocks : {1, 2}) {
        const double sums = 4.0 * m * 32 * blocks;  // bytes
        CHECK(cycles("prefill_clear", m, blocks, 0) > sums / timing.l1_port);
        CHECK(cycles("prefill_scale", m, blocks, 0) > sums / timing.l1_port);
        // Loaded and stored for two slices at once where there are pairs of them.
        CHECK(cycles("prefill_finish", m, blocks, 0) > sums / timing.l1_port / 2);
      }
    }
    // A call fills its loop once, whatever the row-blocks.
    CHECK(cycles("prefill_last", 64, 2, 0) < 2 * cycles("prefill_last", 64, 1, 0) - 24);
    CHECK(cycles("prefill_last", 64, 2, 0) == cycles("prefill_last", 16, 2, 0));
    for (const int format : {0, 1, kBf16}) {
      const int blocks = format == kBf16 ? 1 : 2;
      CHECK(cycles("prefill_multiply", 64, blocks, format) ==
            cycles("prefill_last", 64, blocks, format) +
                cycles("prefill_finish", 64, blocks, format));
    }
  }
}
