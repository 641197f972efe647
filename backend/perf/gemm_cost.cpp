// The closed-form time of a GEMM (gemm_cost.h).
#include "perf/gemm_cost.h"

#include <algorithm>
#include <optional>

#include "perf/kernel_schedules.h"
#include "rounding.h"

namespace npu::perf {

namespace {

constexpr double kBlockBytes = 9.0 / 8;  // of a value in BFP16

double ceil_div(int64_t a, int64_t b) { return static_cast<double>(divide_up(a, b)); }

// Seconds to read `bytes` whose runs are `run` bytes with `channels` shim channels.
struct Reader {
  const arch::Timing& timing;
  double channels;
  double seconds(double bytes, double run) const {
    return bytes / (arch::dram_bandwidth(timing.dram_read, channels * run / timing.row_visit) *
                    timing.clock_hz);
  }
  // Runs of neighbouring channels lie in the same memory rows; lines at their ends are read whole.
  double shared_seconds(double bytes, double run) const {
    const double over = arch::line_overfetch(run, timing.memory_line);
    const double visits = channels * run / (timing.row_visit * timing.row_sharing);
    return bytes / (arch::dram_bandwidth(timing.dram_read / over, visits) * timing.clock_hz);
  }
};

// Of a call: on a part of a tile.
double product_cycles(const arch::Timing& timing, const GemmPoint& p, double sum_bytes,
                      bool* scheduled) {
  const int64_t rows = p.m / p.a_parts;
  if (wants_schedule(timing, !p.pipelined)) {
    const std::string kernel = product_kernel(timing.generation, p);
    const std::optional<double> cycles = scheduled_cycles(timing, kernel, rows, p.k, p.n);
    *scheduled = cycles.has_value();
    if (cycles) return *cycles;
  }
  const auto m = static_cast<double>(rows), k = static_cast<double>(p.k),
             n = static_cast<double>(p.n);
  if (!p.pipelined) return matmul_cycles(timing, p.input, sum_bytes, p.integer_output, m, k, n);
  const InputKind input = p.input == InputKind::kBf16 ? InputKind::kBfp16 : p.input;
  return pipelined_cycles(timing, input, sum_bytes, m, k, n);
}

// Of a conversion to BFP16 of `count` values by its schedule; k: rows of a row-major B, else 1.
std::optional<double> conversion_cycles(const arch::Timing& timing, const char* kernel, int64_t k,
                                        int64_t count) {
  if (!wants_schedule(timing, false)) return std::nullopt;
  return scheduled_cycles(timing, kernel, 1, k, count);
}

// Of a value in a run: blocks of 8 rows lie side by side.
double run_bytes(double bytes) { return bytes == kBlockBytes ? 9 : bytes; }

}  // namespace

const char* bound_name(Bound bound) {
  switch (bound) {
    case Bound::kCompute:
      return "compute";
    case Bound::kDram:
      return "DRAM";
    case Bound::kStream:
      return "stream";
    case Bound::kCommand:
      break;
  }
  return "command";
}

std::string product_kernel(arch::Generation generation, const GemmPoint& p) {
  const bool blocks = p.pipelined && !p.integer_output;  // BFP16, of one layout
  const bool converts = generation == arch::Generation::kNpu2 && p.input == InputKind::kBf16;
  std::string name = "matmul_";
  if (p.integer_output) {
    name += p.input == InputKind::kInt8 ? "i8" : "i16";
  } else {
    name += blocks ? "bfp16" : converts ? "bf16bfp16" : "bf16";
  }
  const int bytes = static_cast<int>(p.sum_bytes > 0 ? p.sum_bytes : p.c_bytes);
  if (p.integer_output) {
    name += bytes == 4 ? "_i32" : bytes == 2 ? "_i16" : "_i8";
  } else {
    name += bytes == 4 ? "_f32" : bytes == 2 ? "_bf16" : "_bfp16";
  }
  if (p.pipelined) name += "_pipelined";
  return p.b_column_major && !blocks ? name + "_bcol" : name;
}

GemmEstimate estimate_gemm(const arch::Timing& timing, const GemmPoint& p) {
  GemmEstimate e;
  const double f = timing.clock_hz, rows = p.rows, columns = p.columns;
  const double m = static_cast<double>(p.m), k = static_cast<double>(p.k),
               n = static_cast<double>(p.n), k_mt = static_cast<double>(p.k_mt);
  e.rounds = ceil_div(p.M, p.rows * p.m) * ceil_div(p.N, p.columns * p.n);
  const double depth = ceil_div(p.K, p.k_mt) * k_mt;
  const double parts = static_cast<double>(p.a_parts);
  // bf16 operands become BFP16 in the core; blocks are BFP16 already.
  const bool blocks = p.pipelined && (p.input == InputKind::kBf16 || p.input == InputKind::kBfp16);
  const bool converts_a = blocks && p.a_bytes == 2, converts_b = blocks && p.b_bytes == 2;
  const double sum_bytes = p.sum_bytes > 0 ? p.sum_bytes : p.c_bytes;
  e.cycles_per_call = parts * product_cycles(timing, p, sum_bytes, &e.scheduled);

  // (a) the cores: K/k calls, each waiting for its tiles where the streams are slower
  double move_a = m * k * p.a_bytes / timing.stream, move_b = k * n * p.b_bytes / timing.stream;
  // A single input buffer each: it is not filled while its contents are converted.
  const int64_t a_values = p.m / p.a_parts * p.k, b_values = p.k * p.n;
  const auto by_a = conversion_cycles(timing, "convert_bf16_bfp16_a", 1, a_values);
  const auto by_b = p.b_column_major
                        ? conversion_cycles(timing, "convert_bf16_bfp16_b_bcol", 1, b_values)
                        : conversion_cycles(timing, "convert_bf16_bfp16_b", p.k, b_values);
  const double convert_a =
      converts_a ? parts * by_a.value_or(bfp16_cycles(timing, double(a_values))) : 0;
  const double convert_b = converts_b ? by_b.value_or(bfp16_cycles(timing, double(b_values))) : 0;
  e.convert_scheduled = (!converts_a || by_a) && (!converts_b || by_b);
  move_a += convert_a;
  move_b += convert_b;
  e.convert_cycles = convert_a + convert_b;
  const double zero = m * n * sum_bytes / timing.l1_port;
  const bool narrows = sum_bytes > p.c_bytes;
  double narrow = narrows ? m * n * (sum_bytes + p.c_bytes) / timing.l1_port : 0;
  if (narrows && p.c_bytes == kBlockBytes) {
    const char* kernel = sum_bytes == 4 ? "convert_f32_bfp16_c" : "convert_bf16_bfp16_c";
    narrow = conversion_cycles(timing, kernel, 1, p.m * p.n).value_or(narrow);
  }
  // A core waits for its C to leave unless the next sums have a tile of their own.
  const bool waits = p.c_buffers == 0 || (p.c_buffers == 1 && !narrows);
  const double drain = waits ? m * n * p.c_bytes / timing.stream : 0;
  e.stream = depth / k * std::max(move_a, move_b) / f;
  e.compute = depth / k * (e.cycles_per_call + e.convert_cycles) / f;
  const double handover = (drain + zero + narrow + timing.round) / f;

  // (b) DRAM
  const Reader reader{timing, rows + columns};
  const double a_bytes = rows * m * depth * p.a_bytes, b_bytes = columns * n * depth * p.b_bytes;
  const double a_read = reader.seconds(a_bytes, k_mt * run_bytes(p.a_bytes));
  const double b_read = p.b_column_major
                            ? reader.seconds(b_bytes, k_mt * run_bytes(p.b_bytes))
                            : reader.shared_seconds(b_bytes, (p.b_pairs ? 2 : 1) * n * p.b_bytes);
  e.read = a_read + b_read;
  e.write = rows * m * n * p.c_bytes / timing.stream / f;
  const double c_bytes = rows * columns * m * n * p.c_bytes;
  e.memory = (a_bytes + b_bytes + c_bytes) / timing.dram_total / f;

  // The command processor: a BD, its address and its push for every transfer of a round, one wait.
  const double transfers = rows + 2 * columns;
  e.command = transfers * timing.bd_push() / f;

  // (c) the whole
  e.fill =
      (a_read + b_read) * k_mt / depth + std::max(move_a, move_b) / f + timing.shim_cold_start / f;
  e.tail = rows * m * n * p.c_bytes / timing.stream / f;
  // Runtime parameters of every core (two bounds and a lock) before the first round.
  const double startup = rows * columns * 3 * timing.cp_write / f + e.command;
  e.dispatch = timing.dispatch;
  const double busy = std::max(e.compute, e.stream) + handover;
  const double round = std::max({busy, e.read, e.write, e.memory, e.command});
  if (p.overlap_bds) {
    e.seconds = e.rounds * round + e.fill + e.tail + startup + timing.token / f + e.dispatch;
  } else {
    const double alone = e.fill + std::max(std::max(e.compute, e.stream), e.read) + handover +
                         e.tail + timing.token / f + e.command;
    e.seconds = e.rounds * alone + startup + e.dispatch;
  }
  e.dram_read_bytes = e.rounds * (a_bytes + b_bytes);
  e.dram_write_bytes = e.rounds * c_bytes;
  e.l2_read_bytes = e.dram_read_bytes + e.dram_write_bytes;
  const double slowest = round;
  if (slowest == e.command && !(slowest == busy)) {
    e.bound = Bound::kCommand;
  } else if (e.write >= slowest) {
    e.bound = Bound::kStream;
  } else if (e.read >= slowest || e.memory >= slowest) {
    e.bound = Bound::kDram;
  } else {
    e.bound = e.stream > e.compute ? Bound::kStream : Bound::kCompute;
  }
  return e;
}

}  // namespace npu::perf
