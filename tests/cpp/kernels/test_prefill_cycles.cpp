// Cycles of the prefill configuration's products, how they depend on rows, row-blocks and formats
// and what bounds them, and of its jobs of rows.
#include <doctest/doctest.h>

#include <string>

#include "arch/timing.h"
#include "kernels/call.h"
#include "kernels/registry.h"

using namespace npu;

namespace {

constexpr int kQ4nx = 0, kQ8 = 1, kBf16 = 2, kQ4_0 = 3, kQ8_0 = 4;

// The kernel of a step for the formats of one size of blocks.
std::string kernel_of(const char* step, int64_t format) {
  return (format >= kQ4_0 ? "prefill_small_" : "prefill_") + std::string(step);
}

}  // namespace

TEST_CASE("prefill_multiply: cycles grow with rows, row-blocks and 8-bit weights") {
  for (const auto generation : {arch::Generation::kNpu1, arch::Generation::kNpu2}) {
    const arch::Timing timing(generation, arch::TimingTable());
    const auto cycles = [&](int64_t m, int64_t blocks, int64_t format) {
      const int64_t integers[] = {m, blocks, format};
      const std::string name = kernel_of("multiply", format);
      return kernels::find_declaration(name, generation)->cycles(timing, integers);
    };
    for (const int format : {kQ4nx, kQ8, kQ4_0, kQ8_0}) {
      // An object of 64 rows has half the slices of one of 32; each is expanded in both.
      CHECK(2 * cycles(64, 1, format) > cycles(32, 1, format));
      CHECK(cycles(64, 1, format) > cycles(32, 1, format) / 2 + 32.0 * 32 * 32 / timing.mac_bfp16);
      CHECK(cycles(64, 2, format) > cycles(64, 1, format));
    }
    CHECK(cycles(64, 2, kQ8) > cycles(64, 2, kQ4nx));
    CHECK(cycles(64, 2, kQ8_0) > cycles(64, 2, kQ4_0));
    // No faster than the multiplications alone.
    const double peak =
        generation == arch::Generation::kNpu1 ? timing.mac_bf16_native : timing.mac_bfp16;
    for (const int format : {kQ4nx, kQ4_0}) CHECK(cycles(32, 2, format) > 2 * 32 * 64 * 32 / peak);
    CHECK(cycles(64, 1, kBf16) > 64 * 32 * 32 / peak);
    CHECK(cycles(64, 1, kBf16) < cycles(64, 1, 1));  // nothing is multiplied by scales
  }
}

TEST_CASE("prefill products: no faster than what they load and store") {
  for (const auto generation : {arch::Generation::kNpu1, arch::Generation::kNpu2}) {
    const arch::Timing timing(generation, arch::TimingTable());
    const auto cycles = [&](const std::string& kernel, int64_t m, int64_t blocks, int64_t format) {
      const int64_t integers[] = {m, blocks, format};
      return kernels::find_declaration(kernel, generation)->cycles(timing, integers);
    };
    const auto step = [&](const char* name, int64_t m, int64_t blocks, int64_t format) {
      return cycles(kernel_of(name, format), m, blocks, format);
    };
    for (const int m : {16, 64}) {
      for (const int blocks : {1, 2}) {
        const double sums = 4.0 * m * 32 * blocks;  // bytes
        CHECK(cycles("prefill_clear", m, blocks, 0) > sums / timing.l1_port);
        CHECK(cycles("prefill_scale", m, blocks, 0) > sums / timing.l1_port);
        CHECK(step("finish", m, blocks, kQ4nx) > sums / timing.l1_port);
        CHECK(step("finish", m, blocks, kQ4_0) > sums / timing.l1_port);
      }
    }
    // A call fills its loop once, whatever the row-blocks.
    for (const int format : {kQ4nx, kQ4_0}) {
      CHECK(step("expand", 64, 2, format) < 2 * step("expand", 64, 1, format) - 24);
      CHECK(step("expand", 64, 2, format) == step("expand", 16, 2, format));
    }
    // An object of the two slices that are expanded at once.
    const int m = generation == arch::Generation::kNpu1 ? 32 : 64;
    for (const int format : {kQ4nx, kQ8, kQ4_0, kQ8_0}) {
      CHECK(step("multiply", m, 2, format) ==
            doctest::Approx(step("expand", m, 2, format) + step("finish", m, 2, format)));
    }
    // Of five slices of bfloat16 the last one is alone; an object before it has two, as here.
    const int64_t twice[] = {m, 1, 0}, once[] = {m, 1, kBf16};
    const auto product = [&](const int64_t* integers) {
      return kernels::find_declaration("prefill_finish", generation)->cycles(timing, integers);
    };
    CHECK(cycles("prefill_multiply", m, 1, kBf16) ==
          doctest::Approx(2 * (cycles("prefill_expand", m, 1, kBf16) - 24) + 24 + product(twice)));
    CHECK(product(once) < product(twice));
  }
}

TEST_CASE("prefill_finish: npu2's schedule per slice, or times what compiled ones take of it") {
  arch::Timing timing(arch::Generation::kNpu2, arch::TimingTable());
  const auto cost = [&](const char* name, int64_t m, int64_t blocks, int64_t format) {
    const kernels::Declaration* kernel = kernels::find_declaration(name, arch::Generation::kNpu2);
    const kernels::Cost found = call_cost(*kernel, timing, kernels::Integers{m, blocks, format});
    const bool published = timing.kernels == arch::KernelProfile::kPublished;
    CHECK(std::string(found.source) == (published ? "counted" : "scheduled in part"));
    return found.cycles;
  };
  const auto finish = [&](int64_t m, int64_t blocks, int64_t format) {
    return cost("prefill_finish", m, blocks, format);
  };
  // 18 cycles per 2x2 block of 8x8 sums, 56 beside them (tests/python/vliw/
  // test_vliw_prefill_multiply.py), a call; 24 for this kernel's counters.
  const double slice = 56 + timing.schedule_call;
  CHECK(finish(128, 2, 0) == doctest::Approx(32 * 18 + slice + 24));       // a slice
  CHECK(finish(64, 2, 0) == doctest::Approx(2 * (16 * 18 + slice) + 24));  // two loops
  CHECK(finish(64, 1, kBf16) == doctest::Approx(8 * 18 + slice + 24));     // the fifth alone
  CHECK(cost("prefill_small_finish", 64, 2, kQ4_0) == finish(64, 2, kQ4nx));
  // Objects of 32 rows: the first takes four slices of bfloat16, the second the fifth.
  const double multiply = cost("prefill_multiply", 32, 1, kBf16);
  timing.kernels = arch::KernelProfile::kPublished;  // two slices in one loop
  const double loops = 5 * 4 * 18 * timing.mac_interval_bfp16 + 3 * timing.kernel_call;
  CHECK(cost("prefill_multiply", 32, 1, kBf16) - multiply ==
        doctest::Approx((loops - 5 * (4 * 18 + slice)) / 2));
  const double block = 18 * timing.mac_interval_bfp16, call = timing.kernel_call + 24;
  CHECK(finish(128, 2, 0) == doctest::Approx(32 * block + call));
  CHECK(finish(64, 2, 0) == doctest::Approx(2 * 16 * block + call));
}

TEST_CASE("prefill: jobs of rows take longer than their fp32 products alone") {
  for (const auto generation : {arch::Generation::kNpu1, arch::Generation::kNpu2}) {
    const arch::Timing timing(generation, arch::TimingTable());
    const auto cycles = [&](const char* kernel, int64_t first = 0, int64_t second = 0) {
      const int64_t integers[] = {first, second};
      return kernels::find_declaration(kernel, generation)->cycles(timing, integers);
    };
    const bool npu1 = generation == arch::Generation::kNpu1;
    // Of each element of a block of 8 x 32: a product of fp32 is six of bfloat16, 32 per cycle
    // (npu1: 16).
    const auto least = [&](double products) { return products * 6 * 256 / (npu1 ? 16 : 32); };
    CHECK(3 * cycles("prefill_norm_piece") > least(4));  // of a block three results
    CHECK(cycles("prefill_geglu_piece") > least(npu1 ? 14 : 5));
    double before = 0;
    for (const int64_t d : {64, 128, 256}) {
      CHECK(cycles("prefill_rotation_piece", d, d) > least(4));
      CHECK(cycles("prefill_rotation_piece", d, d - 32) > cycles("prefill_rotation_piece", d, d));
      const double unit = cycles("prefill_rotation_piece", d, d) * double(d / 32);
      CHECK(unit > before);
      before = unit;
    }
    // A round's factors are shared by its groups.
    CHECK(cycles("prefill_norm_take", 1) > cycles("prefill_norm_take", 12));
    CHECK(cycles("prefill_norm_take", 12) > 4096 / 64);
  }
}
