// Cycles of the prefill configuration's products: how they depend on rows, row-blocks and formats.
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
