// The closed-form time of a GEMM (docs/timing.md): fast enough to search over tiles. The timed
// emulator, which executes the streams, is the other estimate.
#pragma once

#include <cstdint>
#include <string>

#include "arch/timing.h"
#include "perf/kernel_cost.h"

namespace npu::perf {

// A GEMM design and a problem; sizes are padded to the design's native size.
struct GemmPoint {
  InputKind input = InputKind::kInt8;
  double a_bytes = 1, b_bytes = 1, c_bytes = 4;
  double sum_bytes = 0;  // of a sum in L1 where it is wider than C and narrowed at the end; else 0
  bool integer_output = true;
  int64_t m = 0, k = 0, n = 0;  // tile of one core
  int64_t k_mt = 0;             // contiguous depth of a memtile's tiles
  bool b_column_major = true;
  bool b_pairs = false;  // runs of a row-major B are those of two core columns
  int c_buffers = 1;     // 0: wide sums are narrowed where they lie and leave from there
  bool overlap_bds = true;
  bool pipelined = false;  // kernels that hide C's loads and stores, see pipelined_cycles
  int64_t a_parts = 1;     // row parts in which A tiles reach a core, one kernel call each
  int rows = 4, columns = 4;
  int64_t M = 0, K = 0, N = 0;
};

enum class Bound : uint8_t { kCompute, kDram, kStream, kCommand };
const char* bound_name(Bound bound);

struct GemmEstimate {
  double seconds = 0;  // dispatch included
  double dispatch = 0;
  double cycles_per_call = 0;      // of the matmul kernel, for a whole tile (a_parts calls)
  bool scheduled = false;          // those are of its schedule
  double convert_cycles = 0;       // of the conversions to BFP16 before them
  bool convert_scheduled = false;  // those are of their schedules
  double rounds = 0;
  // Seconds per output round of each resource; a round lasts as long as the longest.
  double compute = 0, stream = 0, read = 0, write = 0, command = 0;
  double memory = 0;          // reads and writes together
  double fill = 0, tail = 0;  // seconds
  double dram_read_bytes = 0, dram_write_bytes = 0, l2_read_bytes = 0;
  Bound bound = Bound::kCompute;
};

// The kernel of aie_kernels/ that multiplies in a design (designs/gemm.py).
std::string product_kernel(arch::Generation generation, const GemmPoint& point);

GemmEstimate estimate_gemm(const arch::Timing& timing, const GemmPoint& point);

}  // namespace npu::perf
