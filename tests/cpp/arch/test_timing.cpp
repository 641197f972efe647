// Asserts the timing constants (table, overrides, number fitted), the kernel costs against hand
// calculation, and of the closed form: bounds that no GEMM may beat, monotonicity, padding.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>

#include "arch/timing.h"
#include "error.h"
#include "kernels/call.h"
#include "kernels/registry.h"
#include "perf/gemm_cost.h"

namespace {

using namespace npu;
using arch::Generation;
using arch::Timing;
using arch::TimingTable;
using doctest::Approx;

Timing npu2() { return {Generation::kNpu2, TimingTable()}; }

perf::GemmPoint int8_point(int64_t size) {
  perf::GemmPoint p;
  p.c_bytes = 1;
  p.m = p.n = 144;
  p.k = 72;
  p.k_mt = 432;
  p.columns = 8;
  p.M = p.K = p.N = size;
  return p;
}

// Of a declared kernel whose integer operands are `integers`, by constants.
double cycles(const char* name, const kernels::Integers& integers,
              Generation generation = Generation::kNpu2) {
  const kernels::Declaration* kernel = kernels::find_declaration(name, generation);
  REQUIRE(kernel != nullptr);
  TimingTable published;
  published.set("kernels", 1);
  return kernels::call_cycles(*kernel, Timing(generation, published), integers);
}

}  // namespace

TEST_CASE("timing constants: unique names, graded, at most 25 fitted, sources given") {
  std::set<std::string> names;
  int fitted = 0;
  for (const arch::TimingConstant& c : arch::timing_constants()) {
    CHECK(names.insert(c.name).second);
    CHECK(c.value > 0);
    CHECK(std::string(c.source).size() > 3);
    const bool is_fitted = c.grade == arch::Grade::kFitted;
    CHECK(is_fitted == !std::string(c.fitted_on).empty());
    fitted += is_fitted;
  }
  CHECK(fitted <= 25);
  CHECK(names.size() == static_cast<size_t>(arch::TimingId::kCount));
}

TEST_CASE("timing table: overrides by name, refused when unknown or not positive") {
  TimingTable table;
  table.set("row_visit", 200);
  CHECK(Timing(Generation::kNpu1, table).row_visit == 200);
  for (const double value : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(),
                             std::numeric_limits<double>::infinity()}) {
    CHECK_THROWS_AS(table.set("row_visit", value), Error);
  }
  CHECK_THROWS_AS(table.set("row_visits", 1), Error);
  CHECK_THROWS_AS(table.set("", 1), Error);
}

TEST_CASE("timing: units of both generations") {
  // 52.7 GB/s at 1.8 GHz; 1.2 us at 1 GHz.
  CHECK(npu2().dram_read == Approx(52.7 / 1.8));
  CHECK(Timing(Generation::kNpu1, TimingTable()).round == Approx(1200));
}

TEST_CASE("DRAM bandwidth: below both limits, equal to the lower one far from the other") {
  CHECK(arch::dram_bandwidth(20, 2000) == Approx(20));
  CHECK(arch::dram_bandwidth(20, 0.2) == Approx(0.2));
  CHECK(arch::dram_bandwidth(20, 20) == Approx(20 / std::pow(2, 0.25)));
  // Runs of 112 B begin at 0, 16, 32 or 48 of a line and touch 2 or 3 lines, 2.5 on average.
  CHECK(arch::line_overfetch(112, 64) == Approx(160.0 / 112));
  CHECK(arch::line_overfetch(192, 64) == Approx(1));
  CHECK(arch::line_overfetch(0, 64) == 1);
}

TEST_CASE("kernel costs by operands") {
  const Timing t = npu2();
  const kernels::Integers mkn{128, 72, 112};
  // 128 * 112 outputs, each 72 / 512 cycles of MACs, a move, and 2 bytes in and out at 64 B/cycle.
  CHECK(cycles("matmul_i8_i16", mkn) == Approx(14336 * (0.140625 + t.integer_move + 0.0625)));
  CHECK(cycles("matmul_i8_i16_bcol", mkn) == cycles("matmul_i8_i16", mkn));
  CHECK(cycles("matmul_bf16bfp16_bf16", mkn) < cycles("matmul_bf16_bf16", mkn) / 3);
  CHECK(cycles("matmul_i16_i32", mkn) == Approx(14336 * (72 / 128.0 + t.integer_move + 0.125)));
  CHECK(cycles("zero_i16", {14336}) == Approx(14336 * 2 / 64.0 + t.round));
  CHECK(cycles("zero_bf16", {14336}) == cycles("zero_i16", {14336}));
  CHECK(cycles("convert_f32_bf16", {14336}) == Approx(14336 * 6 / 64.0));
  CHECK(cycles("narrow_i32_i8", {14336, 9}) == Approx(14336 * 5 / 64.0));
  CHECK(cycles("zero_i8", {0}) == Approx(t.round));
}

TEST_CASE("GEMV kernels: cycles per block as counted from their sources") {
  // docs/gemv.md. One vector: 16 scales and minima, 8 sums of x and four until the first is there,
  // 8 loops of 8 steps of 10 moves, 16 products of 24.
  const auto npu1 = Generation::kNpu1;
  CHECK(cycles("gemv_block", {1, 0}) == 24 + 24 + 32 + 12 * 14 + 8 * (24 + 80) + 64 + 16 * 24);
  CHECK(cycles("gemv_one", {0}) == cycles("gemv_block", {1, 0}));
  CHECK(cycles("gemv_kept", {0}, npu1) == cycles("gemv_one", {0}) + 32);
  CHECK(cycles("gemv_block", {8, 0}) == 5928);
  CHECK(cycles("gemv_block", {8, 0}, npu1) == 9928);
  // 8-bit: 8 groups, of which 16 columns take 5 moves, then 2 cycles for one vector, 4 for four.
  CHECK(cycles("gemv_block", {1, 1}) == 24 + 68 + 8 * (24 + 80 + 36 + 32) + 64 + 8 * 24);
  CHECK(cycles("gemv_block", {8, 1}) == 24 + 292 + 8 * (24 + 80 + 12 + 2 * 88) + 4 * 256);
  CHECK(cycles("gemv_block", {8, 1}, npu1) == 6108);
  // bfloat16: 80 columns; one vector takes half of them twice.
  CHECK(cycles("gemv_block", {1, 2}) == 24 + 68 + 2 * (36 + 80) + 40);
  CHECK(cycles("gemv_block", {8, 2}, npu1) == 24 + 548 + 12 + 2 * (24 + 640) + 8 * 40);
  // Without minima half the scales and products; with scales of 32 columns half the groups, of
  // twice the columns.
  CHECK(cycles("gemv_small_block", {1, 3}) == 24 + 24 + 16 + 12 * 14 + 8 * (24 + 80) + 64 + 8 * 24);
  CHECK(cycles("gemv_small_one", {3}) == cycles("gemv_small_block", {1, 3}));
  CHECK(cycles("gemv_small_kept", {3}, npu1) == cycles("gemv_small_one", {3}) + 16);
  CHECK(cycles("gemv_small_block", {1, 4}) == 24 + 68 + 4 * (24 + 160 + 36 + 64) + 64 + 4 * 24);
  CHECK(cycles("gemv_setup", {0}) == 64);
  CHECK(cycles("dequant_q4nx", {}) == 64 * 21 + 24);
  CHECK(cycles("dequant_q4nx", {}, Generation::kNpu1) == 64 * 42 + 24);
  CHECK(cycles("dequant_q4_0", {}) == cycles("dequant_q4nx", {}));
  CHECK(cycles("dequant_q8_0", {}) == cycles("dequant_q8", {}));
}

TEST_CASE("pipelined kernels cost multiplications, waits for accumulators and a call") {
  const kernels::Integers mkn{192, 32, 128};
  // 96 clusters of 16 multiplications; two cycles more each with two vectors per C block.
  CHECK(cycles("matmul_i8_i8_pipelined", mkn) == Approx(96 * 16 + 218));
  CHECK(cycles("matmul_i8_i8_pipelined_bcol", mkn) == cycles("matmul_i8_i8_pipelined", mkn));
  CHECK(cycles("matmul_i8_i16_pipelined", mkn) == Approx(96 * 18 + 218));
  CHECK(cycles("matmul_i8_i32_pipelined", mkn) == Approx(96 * 24 + 218));
  CHECK(cycles("matmul_bfp16_bf16_pipelined", mkn) == Approx(96 * 18 * 1.16 + 218));
  CHECK(cycles("convert_bf16_bfp16_a", {4096}) == Approx(4096 * 3.125 / 64 + 218));
  CHECK(cycles("convert_bf16_bfp16_b", {4096, 32}) == Approx(4096 * 3.125 / 64 + 218));
}

TEST_CASE("closed form: A in parts costs calls") {
  perf::GemmPoint p = int8_point(4096);
  p.pipelined = true;
  p.c_bytes = 1;
  const perf::GemmEstimate whole = estimate_gemm(npu2(), p);
  p.a_parts = 2;
  CHECK(estimate_gemm(npu2(), p).cycles_per_call ==
        Approx(whole.cycles_per_call + npu2().kernel_call));
}

TEST_CASE("closed form: wide sums cost their own traffic and a narrowing, and may hide the drain") {
  perf::GemmPoint p = int8_point(4096);
  p.c_bytes = 4;
  const perf::GemmEstimate sums = estimate_gemm(npu2(), p);
  p.c_bytes = 1;
  p.sum_bytes = 4;
  const auto handover = [&](int buffers) {
    p.c_buffers = buffers;
    const perf::GemmEstimate e = estimate_gemm(npu2(), p);
    CHECK(e.cycles_per_call == sums.cycles_per_call);
    CHECK(e.dram_write_bytes == sums.dram_write_bytes / 4);
    return e.seconds;
  };
  const double in_place = handover(0), apart = handover(1);
  CHECK(handover(2) == apart);
  const double waiting = static_cast<double>(p.m * p.n) / npu2().stream / npu2().clock_hz;
  const perf::GemmEstimate e = estimate_gemm(npu2(), p);
  CHECK(in_place - apart == Approx(e.rounds * waiting));
}

TEST_CASE("closed form: never faster than the peak MACs, the DRAM cap or a stream port") {
  for (const int64_t size : {512, 2048, 8192}) {
    const Timing t = npu2();
    const perf::GemmPoint p = int8_point(size);
    const perf::GemmEstimate e = estimate_gemm(t, p);
    const double array = e.seconds - e.dispatch;
    const double macs = std::pow(static_cast<double>(size), 3);
    CHECK(array > macs / (32 * t.mac_int8 * t.clock_hz));
    CHECK(array > e.dram_read_bytes / (t.dram_read * t.clock_hz));
    CHECK(array > e.rounds * e.stream);
  }
}

TEST_CASE("closed form: reads and writes together take no less than the memory needs") {
  perf::GemmPoint p = int8_point(144 * 8 * 8);
  p.K = p.k_mt = 72;  // little to read for much to write
  const perf::GemmEstimate e = perf::estimate_gemm(npu2(), p);
  const double bytes = e.dram_read_bytes + e.dram_write_bytes;
  CHECK(e.bound == perf::Bound::kDram);
  CHECK(e.seconds > bytes / 66.6e9);
  CHECK(e.seconds < 1.5 * bytes / 66.6e9);
}

TEST_CASE("closed form: grows with every size; faster with any better resource") {
  const perf::GemmPoint base = int8_point(4096);
  const double seconds = estimate_gemm(npu2(), base).seconds;
  for (int64_t perf::GemmPoint::*size :
       {&perf::GemmPoint::M, &perf::GemmPoint::K, &perf::GemmPoint::N}) {
    perf::GemmPoint larger = base;
    larger.*size *= 2;
    CHECK(estimate_gemm(npu2(), larger).seconds > 1.5 * seconds);
  }
  TimingTable table;
  double before = seconds;
  // In this order each of them is in the way once the one before is not.
  for (const char* better : {"dram_read_npu2", "l1_port_npu2", "mac_int8_npu2", "stream_npu2"}) {
    table.set(better, 1000);
    const double after = estimate_gemm(Timing(Generation::kNpu2, table), base).seconds;
    CHECK(after < before);
    before = after;
  }
  perf::GemmPoint alone = base, shallow = base;
  alone.overlap_bds = false;
  shallow.k_mt = 72;
  CHECK(estimate_gemm(npu2(), alone).seconds > seconds);
  CHECK(estimate_gemm(npu2(), shallow).seconds > seconds);
  CHECK(estimate_gemm(npu2(), shallow).bound == perf::Bound::kDram);
}
