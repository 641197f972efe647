// Asserts of the table of schedules (perf/kernel_schedules.h) that its kernels exist and none is
// faster than its multiplications, sums of blocks by hand, and who is charged with it: profiles,
// the declared kernels, calls that contain generated loops, the closed form.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "arch/timing.h"
#include "error.h"
#include "kernels/call.h"
#include "kernels/registry.h"
#include "perf/gemm_cost.h"
#include "perf/kernel_schedules.h"

namespace {

using namespace npu;
using arch::Generation;
using arch::Timing;
using arch::TimingTable;
using doctest::Approx;

Timing with_profile(Generation generation, double number) {
  TimingTable table;
  table.set("kernels", number);
  return {generation, table};
}
Timing scheduled(Generation generation) { return with_profile(generation, 2); }

// A line with the only shape of blocks for its k, or of the widest.
const perf::KernelSchedule& line_of(Generation generation, std::string_view kernel) {
  for (const perf::KernelSchedule& s : perf::kernel_schedules()) {
    if (s.generation == generation && s.kernel == kernel) return s;
  }
  FAIL("no line");
  return perf::kernel_schedules().front();
}

constexpr const char* kBf16 = "matmul_bf16_f32";

bool is_conversion(const perf::KernelSchedule& s) { return s.kernel.starts_with("convert_"); }
// Of lanes: what kernels name as parts of their calls.
bool is_loop(const perf::KernelSchedule& s) {
  return !is_conversion(s) && !s.kernel.starts_with("matmul_");
}

}  // namespace

TEST_CASE("schedules: of declared kernels, not faster than their multiplications, in 16 KB") {
  REQUIRE(!perf::kernel_schedules().empty());
  for (const perf::KernelSchedule& s : perf::kernel_schedules()) {
    CAPTURE(std::string(s.kernel));
    CAPTURE(s.k);
    CHECK(s.outside >= 0);
    CHECK(s.code_bytes > 0);
    CHECK(s.code_bytes <= 16384);
    if (is_loop(s)) continue;
    const kernels::Declaration* kernel = kernels::find_declaration(s.kernel, s.generation);
    REQUIRE(kernel != nullptr);
    if (is_conversion(s)) {
      CHECK(bool(kernel->parts));
      // Two loads of 64 bytes per tile at least; the table's k is that of a row-major B.
      CHECK(s.interval >= s.block_n / 32);
      CHECK((s.k == 1) == (s.kernel != "convert_bf16_bfp16_b"));
      continue;
    }
    CHECK(kernel->product != kernels::Product::kNone);
    const Timing timing(s.generation, TimingTable());
    const double peak = s.kernel.starts_with("matmul_i8")    ? timing.mac_int8
                        : s.kernel.starts_with("matmul_i16") ? timing.mac_int16
                        : s.generation == Generation::kNpu2  ? timing.mac_bfp16
                                                             : timing.mac_bf16_native;
    CHECK(s.interval >= double(s.block_m) * s.block_n * s.k / peak);
  }
}

TEST_CASE("schedules: blocks times interval, what is outside, and a call; leftovers of n") {
  const Timing timing(Generation::kNpu1, TimingTable());
  const auto lines = perf::kernel_schedules();
  const auto wide = std::ranges::find_if(lines, [](const perf::KernelSchedule& s) {
    return s.generation == Generation::kNpu1 && s.kernel == kBf16 && s.k == 40 && s.block_n == 16;
  });
  REQUIRE(wide != lines.end());
  const perf::KernelSchedule& narrow = *(wide + 1);
  REQUIRE((narrow.k == 40 && narrow.block_n == 8 && narrow.block_m == 8));
  const auto cycles = [&](int64_t m, int64_t k, int64_t n) {
    return perf::scheduled_cycles(timing, kBf16, m, k, n);
  };
  const double call = timing.schedule_call;
  CHECK(cycles(64, 40, 96) == 8 * 6 * wide->interval + wide->outside + call);
  CHECK(cycles(64, 40, 88) ==
        8 * 5 * wide->interval + wide->outside + 8 * narrow.interval + narrow.outside + call);
  CHECK(cycles(64, 40, 8) == 8 * narrow.interval + narrow.outside + call);
  CHECK(!cycles(60, 40, 96));  // rows of half a block
  CHECK(!cycles(64, 40, 92));  // and columns
  CHECK(!cycles(64, 44, 96));  // no line for that k
  CHECK(!perf::scheduled_cycles(timing, "matmul_bf16_f64", 64, 40, 96));
  const Timing other(Generation::kNpu2, TimingTable());
  CHECK(!perf::scheduled_cycles(other, kBf16, 64, 40, 96));
}

TEST_CASE("profiles: kernels that stand for published ones are fitted unless asked for schedules") {
  const perf::KernelSchedule& line = line_of(Generation::kNpu1, kBf16);
  const kernels::Declaration& kernel = *kernels::find_declaration(kBf16, Generation::kNpu1);
  const kernels::Integers sizes{2 * line.block_m, line.k, 3 * line.block_n};
  const auto cost = [&](const Timing& timing) { return call_cost(kernel, timing, sizes); };
  const Timing own(Generation::kNpu1, TimingTable());
  const double fitted = perf::matmul_cycles(own, perf::InputKind::kBf16Native, 4, false,
                                            double(sizes[0]), line.k, double(sizes[2]));
  CHECK(cost(own).cycles == fitted);
  CHECK(std::string(cost(own).source) == "published");
  CHECK(cost(with_profile(Generation::kNpu1, 1)).cycles == fitted);
  CHECK(cost(scheduled(Generation::kNpu1)).cycles ==
        6 * line.interval + line.outside + own.schedule_call);
  CHECK(std::string(cost(scheduled(Generation::kNpu1)).source) == "scheduled");
  // Where no schedule is there, the cost is what it was.
  const kernels::Integers deep{16, 248, 16};
  CHECK(std::string(call_cost(kernel, scheduled(Generation::kNpu1), deep).source) == "published");
  for (const double number : {0.0, 1.5, 3.0}) {
    CHECK_THROWS_AS(with_profile(Generation::kNpu1, number), Error);
  }
}

TEST_CASE("closed form: charges the declared kernel, as the emulator does") {
  for (const perf::KernelSchedule& s : perf::kernel_schedules()) {
    if (is_conversion(s) || is_loop(s)) continue;
    const bool i8 = s.kernel.starts_with("matmul_i8"), i16 = s.kernel.starts_with("matmul_i16");
    CAPTURE(std::string(s.kernel));
    perf::GemmPoint p;
    p.input = i8                                  ? perf::InputKind::kInt8
              : i16                               ? perf::InputKind::kInt16
              : s.generation == Generation::kNpu2 ? perf::InputKind::kBf16
                                                  : perf::InputKind::kBf16Native;
    p.integer_output = i8 || i16;
    p.pipelined = s.kernel.find("_pipelined") != std::string_view::npos;
    p.b_column_major = s.kernel.ends_with("_bcol");
    const bool wide = s.kernel.find("_i32") != std::string_view::npos ||
                      s.kernel.find("_f32") != std::string_view::npos;
    p.c_bytes = wide                                                      ? 4
                : s.kernel.find("_i8_i8") != std::string_view::npos       ? 1
                : s.kernel.find("_bfp16_bfp16") != std::string_view::npos ? 9.0 / 8
                                                                          : 2;
    p.a_bytes = i8 ? 1 : 2;
    p.m = 4 * s.block_m;
    p.n = 2 * s.block_n;
    p.k = p.k_mt = s.k;
    p.M = p.K = p.N = 1024;
    const kernels::Declaration& kernel = *kernels::find_declaration(s.kernel, s.generation);
    const perf::GemmEstimate e = perf::estimate_gemm(scheduled(s.generation), p);
    CHECK(e.scheduled);
    CHECK(e.cycles_per_call ==
          call_cost(kernel, scheduled(s.generation), kernels::Integers{p.m, p.k, p.n}).cycles);
    CHECK(!perf::estimate_gemm(with_profile(s.generation, 1), p).scheduled);
  }
}

TEST_CASE(
    "conversions to BFP16: groups of eight tiles and what is left, columns of a row-major B") {
  const Timing timing = scheduled(Generation::kNpu2);
  const double call = timing.schedule_call;
  const auto cycles = [&](const char* name, const kernels::Integers& counts) {
    const kernels::Declaration& kernel = *kernels::find_declaration(name, Generation::kNpu2);
    const kernels::Cost cost = call_cost(kernel, timing, counts);
    CHECK(std::string(cost.source) == "scheduled");
    return cost.cycles;
  };
  // docs/kernels.md: 16, 25 and 41 cycles per eight tiles, 13 per column of four.
  CHECK(cycles("convert_bf16_bfp16_a", {64 * 48}) == 6 * 16 + 8 + call);
  CHECK(cycles("convert_bf16_bfp16_a", {64 * 42}) == 5 * 16 + 8 + 12 + call);
  CHECK(cycles("convert_bf16_bfp16_b_bcol", {64 * 2}) == 12 + call);
  CHECK(cycles("convert_bf16_bfp16_c", {64 * 80}) == 10 * 25 + call);
  CHECK(cycles("convert_f32_bfp16_c", {64 * 80}) == 10 * 41 + 2 + call);
  CHECK(cycles("convert_bf16_bfp16_b", {64 * 4 * 16, 32}) == 16 * 13 + 12 + call);
  // By hand where the profile says so, or no line has that k.
  const kernels::Declaration& rows =
      *kernels::find_declaration("convert_bf16_bfp16_b", Generation::kNpu2);
  CHECK(std::string(call_cost(rows, timing, {64 * 9 * 2, 72}).source) == "counted");
  CHECK(std::string(call_cost(rows, with_profile(Generation::kNpu2, 1), {64 * 8, 32}).source) ==
        "counted");

  perf::GemmPoint p;
  p.input = perf::InputKind::kBf16;
  p.pipelined = true;
  p.a_bytes = p.b_bytes = p.c_bytes = 2;
  p.m = 128, p.n = 128, p.k = p.k_mt = 32;
  p.M = p.K = p.N = 1024;
  p.a_parts = 2;
  for (const bool columns : {false, true}) {
    p.b_column_major = columns;
    const double b = columns ? cycles("convert_bf16_bfp16_b_bcol", {128 * 32})
                             : cycles("convert_bf16_bfp16_b", {128 * 32, 32});
    const perf::GemmEstimate e = perf::estimate_gemm(timing, p);
    CHECK(e.convert_scheduled);
    CHECK(e.convert_cycles == 2 * cycles("convert_bf16_bfp16_a", {64 * 32}) + b);
    CHECK(!perf::estimate_gemm(with_profile(Generation::kNpu2, 1), p).convert_scheduled);
  }
}

namespace {

// Cycles of a line's blocks and its ends, with the call.
double line_cycles(Generation generation, const char* name, double blocks) {
  const perf::KernelSchedule& line = line_of(generation, name);
  return blocks * line.interval + line.outside + Timing(generation, TimingTable()).schedule_call;
}

struct Call {
  const char* kernel;
  kernels::Integers integers;
};

kernels::Cost cost_of(Generation generation, const Call& call, double profile) {
  const Timing timing =
      profile == 0 ? Timing(generation, TimingTable()) : with_profile(generation, profile);
  return call_cost(*kernels::find_declaration(call.kernel, generation), timing, call.integers);
}

}  // namespace

TEST_CASE("calls of kernels whose loops are generated: what the loops do is replaced, no more") {
  constexpr Generation kNpu2 = Generation::kNpu2;
  const auto line = [](const char* name, double blocks) {
    return line_cycles(kNpu2, name, blocks);
  };
  struct Case {
    Call call;
    double replaced, generated;  // cycles by the source, and of generated code
    const char* source;
  };
  const auto counted = [&](const Call& call) { return cost_of(kNpu2, call, 1).cycles; };
  const Call q4nx{"dequant_q4nx", {}}, q8{"dequant_q8", {}}, gelu{"geglu", {256}};
  const Call rope{"rope_rotate", {2, 0, 0}};
  const Case cases[] = {
      {q4nx, counted(q4nx), line("dequant_q4nx", 1), "scheduled"},
      {q8, counted(q8), line("dequant_q8", 1), "scheduled"},
      {gelu, counted(gelu), line("geglu", 8), "scheduled"},
      {rope, counted(rope), line("rope", 4), "scheduled"},
      // docs/gemv.md: by the source 1,528, 2,472 and 1,724 cycles a block, 24 of them around it.
      {{"gemv_one", {0}}, 1504, line("gemv_q4nx", 1), "scheduled in part"},
      {{"gemv_kept", {0}}, 1504, line("gemv_q4nx", 1), "scheduled in part"},
      {{"gemv_block", {2, 0}}, 2448, 2 * line("gemv_q4nx", 1), "scheduled in part"},
      {{"gemv_one", {1}}, 1700, line("gemv_q8", 1), "scheduled in part"},
      {{"gemv_block", {4, 0}}, 0, 0, "counted"},
      {{"gemv_one", {2}}, 0, 0, "counted"},
      // None of small blocks is generated.
      {{"gemv_small_one", {3}}, 0, 0, "counted"},
      {{"gemv_small_kept", {4}}, 0, 0, "counted"},
      {{"gemv_small_block", {2, 3}}, 0, 0, "counted"},
      {{"gemv_small_block", {2, 4}}, 0, 0, "counted"},
      {{"dequant_q4_0", {}}, 0, 0, "counted"},
      {{"dequant_q8_0", {}}, 0, 0, "counted"},
      // A square and 20 slots for two products of fp32 per 32 elements; a root for eight chunks.
      {{"rms_square", {}}, 4 * 4, line("rms_norm_squares", 4), "scheduled in part"},
      {{"rms_scale", {1152, 0}},
       4 * 20 + 160 / 8,
       line("rms_norm_scaling", 4) + line("rms_norm_root", 1) / 8,
       "scheduled in part"},
      // Four vectors of 64 elements, normalised: the products stay.
      {{"rope_rotate", {0, 1, 0}},
       4 * (2 * 4 + 160),
       4 * (line("rms_norm_squares", 2) + line("rms_norm_root", 1)),
       "scheduled in part"},
      // An eighth of 2,048 elements and the loop's ends, 20 + 4 + 5 * 40 + 30.
      {{"prefill_geglu_piece", {}},
       (2048 / 32 * 52 + 254) / 8.0,
       line("geglu", 64) / 8,
       "scheduled in part"},
      // 16 rows are two blocks of 8, 16 positions 4 vectors each: 16 and 8 slots, 78 and 40 to
      // fill.
      {{"attention_scores", {16, 256}},
       2 * (4 * (16 + 8) + 78 + 40),
       2 * (line("softmax_scaling", 4) + line("softmax_weighing", 2)),
       "scheduled in part"},
  };
  for (const Case& one : cases) {
    CAPTURE(std::string(one.call.kernel));
    for (const double profile : {0.0, 2.0}) {
      const kernels::Cost cost = cost_of(kNpu2, one.call, profile);
      CHECK(std::string(cost.source) == one.source);
      CHECK(cost.cycles == Approx(counted(one.call) - one.replaced + one.generated));
    }
    CHECK(std::string(cost_of(kNpu2, one.call, 1).source) == "counted");
  }
}

TEST_CASE("calls of npu1: what has a loop is charged its schedule, others are counted") {
  constexpr Generation kNpu1 = Generation::kNpu1;
  const Call rotate{"rope_rotate", {1, 0, 0}};
  for (const char* expand : {"dequant_q4nx", "dequant_q8"}) {
    CHECK(cost_of(kNpu1, {expand, {}}, 0).cycles == line_cycles(kNpu1, expand, 1));
  }
  CHECK(cost_of(kNpu1, rotate, 0).cycles == line_cycles(kNpu1, "rope", 8));
  CHECK(cost_of(kNpu1, {"geglu", {256}}, 0).cycles == line_cycles(kNpu1, "geglu", 16));
  CHECK(cost_of(kNpu1, {"gemv_one", {0}}, 0).cycles == 24 + line_cycles(kNpu1, "gemv_q4nx", 1));
  CHECK(cost_of(kNpu1, {"gemv_one", {1}}, 0).cycles == 24 + line_cycles(kNpu1, "gemv_q8", 1));
  // 8 vectors of 16 elements, 20 slots each by the source; a root for eight chunks.
  const Call scale{"rms_scale", {1152, 0}};
  CHECK(cost_of(kNpu1, scale, 0).cycles ==
        Approx(cost_of(kNpu1, scale, 1).cycles - 8 * 20 - 160 / 8.0 +
               line_cycles(kNpu1, "rms_norm_scaling", 8) +
               line_cycles(kNpu1, "rms_norm_root", 1) / 8));
  // 16 rows are two blocks of 8, 16 positions 4 vectors each: 30 and 104 slots, 78 and 186 to fill.
  const Call scores{"attention_scores", {16, 256}};
  CHECK(cost_of(kNpu1, scores, 0).cycles ==
        Approx(cost_of(kNpu1, scores, 1).cycles - 2 * (4 * (30 + 104) + 78 + 186) +
               2 * (line_cycles(kNpu1, "softmax_scaling", 4) +
                    line_cycles(kNpu1, "softmax_weighing", 4) +
                    line_cycles(kNpu1, "softmax_turning", 2))));
  const Call four{"gemv_block", {4, 0}};
  CHECK(std::string(cost_of(kNpu1, four, 0).source) == "counted");
  CHECK(cost_of(kNpu1, four, 0).cycles == cost_of(kNpu1, four, 1).cycles);
}
