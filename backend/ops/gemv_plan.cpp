// Plans a GEMV (gemv_stream.h): which core multiplies which row-blocks, and the setup object.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "arch/timing.h"
#include "error.h"
#include "kernels/call.h"
#include "kernels/registry.h"
#include "ops/gemv_stream.h"

namespace npu::ops {

namespace {

constexpr int64_t kMostRowBlocks = int64_t{1} << 26;  // 2^31 rows: an int32 holds any row
constexpr int64_t kMostColumnBlocks = 1 << 20;

// The largest divisor of n up to `most`.
int64_t divisor_up_to(int64_t n, int64_t most) {
  for (int64_t d = std::min(n, most); d > 1; --d) {
    if (n % d == 0) return d;
  }
  return 1;
}

void check(const GemvArray& array, const GemvProblem& p) {
  if (p.row_blocks < array.least_row_blocks() || p.column_blocks < 1) {
    fail(ErrorKind::kShape,
         "[gemv] W has %lld x %lld blocks; this configuration needs at least %lld x 1",
         static_cast<long long>(p.row_blocks), static_cast<long long>(p.column_blocks),
         static_cast<long long>(array.least_row_blocks()));
  }
  // A core's row-blocks are a channel's cores apart; a second channel takes what a first leaves.
  const int64_t cores = array.cores_per_port();
  if (array.columns == 1 && p.row_blocks % cores != 0) {
    fail(ErrorKind::kShape,
         "[gemv] W has %lld row-blocks; this configuration, one channel of %lld cores, needs a "
         "multiple of %lld; pad W or use more columns",
         static_cast<long long>(p.row_blocks), static_cast<long long>(cores),
         static_cast<long long>(cores));
  }
  if (p.row_blocks > kMostRowBlocks || p.column_blocks > kMostColumnBlocks) {
    fail(ErrorKind::kOutOfRange,
         "[gemv] W has %lld x %lld blocks, at most %lld x %lld can be addressed; split it",
         static_cast<long long>(p.row_blocks), static_cast<long long>(p.column_blocks),
         static_cast<long long>(kMostRowBlocks), static_cast<long long>(kMostColumnBlocks));
  }
  const int64_t step = p.column_blocks * kQ4BlockBytes / 4;
  if (step > arch::tile_model(arch::TileKind::kShim).max_step) {
    fail(ErrorKind::kOutOfRange,
         "[gemv] row-blocks of %lld blocks are further apart than a shim BD can step; split K",
         static_cast<long long>(p.column_blocks));
  }
  if (p.batch != 1 && p.batch != 2 && p.batch != 4 && p.batch != kGemvBatch) {
    fail(ErrorKind::kArgument, "[gemv] batch is %d; use 1, 2, 4 or 8", p.batch);
  }
  if (p.output == GemvOutput::kF32 && p.batch * kQ4Rows * 4 > array.y_bytes) {
    fail(ErrorKind::kArgument, "[gemv] batch is %d; float32 results allow up to %lld", p.batch,
         static_cast<long long>(array.y_bytes / (kQ4Rows * 4)));
  }
  if (p.output == GemvOutput::kTop &&
      (p.top < 1 || p.top * p.batch * kGemvTopBytes > array.y_bytes)) {
    fail(ErrorKind::kArgument, "[gemv] top is %d; with %d vectors use 1 to %lld", p.top, p.batch,
         static_cast<long long>(array.y_bytes / kGemvTopBytes / p.batch));
  }
}

using Rounds = std::vector<int64_t>;  // per column

// The reads of a plan as flows: every column starts when the command processor reaches it, and the
// channels that run share the memory evenly.
class Reading {
 public:
  // x_bytes: of x, once per round.
  Reading(const GemvArray& array, const GemvProblem& p, const arch::Timing& timing, int64_t x_bytes)
      : array_(array),
        bandwidth_(timing.dram_read),
        x_cycles_(static_cast<double>(x_bytes) / timing.dram_read) {
    const auto row_block = static_cast<double>(p.column_blocks * kQ4BlockBytes);
    const int cores = array.cores_per_port();
    round_ = row_block * cores;
    // A channel pauses between row-blocks and is no faster than its cores.
    const kernels::Declaration& gemv = *kernels::find_declaration("gemv_q4nx", array.generation);
    const double compute =
        kQ4BlockBytes * cores / kernels::call_cycles(gemv, timing, kernels::Integers{p.batch});
    const double pause = timing.shim_task_start + timing.bd_overhead;
    limit_ = std::min(compute, row_block / (row_block / timing.stream + pause));
    double now = 0;
    for (int c = 0; c < array.columns; ++c) {
      const double task = timing.cp_block + 2 * timing.cp_block_word + timing.cp_write;
      now += array.ports(c) * task;
      if (array.opening_blocks == 0) {
        now += timing.cp_block + 8 * array.ports(c) * timing.cp_block_word;
      }
      starts_.push_back(now);
    }
  }

  // Cycles until the last column has read its rounds; the others' times count a little.
  double cycles(const Rounds& rounds) const {
    Rounds given = rounds;
    return run(&given, 0, array_.columns);
  }

  // Gives row-blocks to the first `columns` columns, a round to whichever has read its last.
  Rounds deal(int64_t row_blocks, int columns) const {
    constexpr int64_t kByTurns = 64;  // the last rounds of a column; the others are dealt evenly
    int64_t cores = 0;
    for (int c = 0; c < columns; ++c) cores += array_.cores(c);
    Rounds rounds(static_cast<size_t>(array_.columns), 0);
    const int64_t even = std::max<int64_t>(0, row_blocks / cores - kByTurns);
    std::fill_n(rounds.begin(), columns, even);
    run(&rounds, row_blocks - even * cores, columns);
    return rounds;
  }

 private:
  double run(Rounds* rounds, int64_t left_over, int columns) const {
    const auto count = static_cast<size_t>(columns);
    std::vector<double> left(count);
    double now = 0, squares = 0;
    for (size_t c = 0; c < count; ++c) left[c] = static_cast<double>((*rounds)[c]) * round_;
    for (;;) {
      double until = std::numeric_limits<double>::infinity(), least = until;
      int active = 0;
      for (size_t c = 0; c < count; ++c) {
        if (starts_[c] > now) {
          if (left[c] > kDone || left_over > 0) until = std::min(until, starts_[c]);
          continue;
        }
        if (left[c] <= kDone && left_over > 0) {
          left[c] = round_;
          ++(*rounds)[c];
          left_over -= array_.cores(static_cast<int>(c));
        }
        if (left[c] <= kDone) continue;
        active += array_.ports(static_cast<int>(c));
        least = std::min(least, left[c]);
      }
      const double rate = active > 0 ? std::min(limit_, bandwidth_ / active) : 0;
      if (active > 0) until = std::min(until, now + least / rate);
      if (until == std::numeric_limits<double>::infinity()) break;
      for (size_t c = 0; c < count; ++c) {
        if (left[c] <= kDone || starts_[c] > now) continue;
        left[c] -= rate * (until - now);
        if (left[c] <= kDone) squares += until * until;
      }
      now = until;
    }
    const int64_t most = *std::max_element(rounds->begin(), rounds->end());
    return now + static_cast<double>(most) * x_cycles_ +
           1e-2 * std::sqrt(squares / static_cast<double>(count));
  }

  static constexpr double kDone = 1e-3;  // bytes: rounding of rates leaves no endless rest
  const GemvArray& array_;
  double bandwidth_, x_cycles_, limit_ = 0;  // bytes per cycle; of x per round
  double round_ = 0;                         // bytes of a round of a channel
  std::vector<double> starts_;               // per column
};

constexpr double kClear = 0.99;  // differences below 1 % are beyond flows

// Covers W, then moves single rounds between columns, or away, if that takes time off clearly.
double improve(const GemvArray& array, const GemvProblem& p, const Reading& reading,
               Rounds* rounds) {
  constexpr int kMostMoves = 16;
  const int64_t most = p.row_blocks / array.cores_per_port();
  int64_t spare = -p.row_blocks;
  for (int c = 0; c < array.columns; ++c) {
    int64_t& share = (*rounds)[static_cast<size_t>(c)];
    share = std::min(share, most);
    spare += share * array.cores(c);
  }
  for (int c = 0; spare < 0; c = (c + 1) % array.columns) {
    if ((*rounds)[static_cast<size_t>(c)] == most) continue;
    ++(*rounds)[static_cast<size_t>(c)];
    spare += array.cores(c);
  }
  const double before = reading.cycles(*rounds);
  Rounds current = *rounds;
  double least = before;
  for (int move = 0; move < kMostMoves; ++move) {
    Rounds best;
    int64_t best_spare = 0;
    for (int from = 0; from < array.columns; ++from) {
      if (current[static_cast<size_t>(from)] == 0) continue;
      for (int to = 0; to < array.columns; ++to) {
        Rounds moved = current;
        --moved[static_cast<size_t>(from)];
        if (to != from) ++moved[static_cast<size_t>(to)];
        const int64_t after = spare - array.cores(from) + (to != from ? array.cores(to) : 0);
        if (after < 0 || moved[static_cast<size_t>(to)] > most) continue;
        const double cycles = reading.cycles(moved);
        if (cycles >= least) continue;
        least = cycles;
        best = std::move(moved);
        best_spare = after;
      }
    }
    if (best.empty()) break;
    current = std::move(best);
    spare = best_spare;
  }
  if (least >= kClear * before) return before;
  *rounds = std::move(current);
  return least;
}

// Deals rounds to the columns so that the last weight is read as early as possible.
void deal(const GemvArray& array, const GemvProblem& p, const arch::Timing& timing,
          GemvPlan& plan) {
  plan.shares.assign(static_cast<size_t>(array.columns), {});
  const Reading reading(array, p, timing, plan.resident ? 0 : plan.x_objects * array.x_bytes);
  double least = std::numeric_limits<double>::infinity();
  for (int columns = array.columns; columns > 0; --columns) {
    Rounds rounds = reading.deal(p.row_blocks, columns);
    const double cycles = improve(array, p, reading, &rounds);
    if (cycles >= kClear * least) continue;
    least = cycles;
    for (size_t c = 0; c < rounds.size(); ++c) plan.shares[c].rounds = rounds[c];
  }
}

// Which row-blocks each core takes. Where W ends inside a round, its last cores begin earlier and
// compute rows that others compute too.
void place(const GemvArray& array, const GemvProblem& p, GemvPlan& plan) {
  int64_t next = 0;
  for (int c = 0; c < array.columns; ++c) {
    GemvShare& share = plan.shares[static_cast<size_t>(c)];
    const int cores = array.cores_per_port();
    share.step = cores;
    plan.rounds = std::max(plan.rounds, share.rounds);
    for (int port = 0; port < array.ports(c); ++port) {
      const int64_t first = std::min(p.row_blocks - share.rounds * cores, next);
      for (int j = 0; j < cores; ++j) share.first.push_back(first + j);
      next = std::min(p.row_blocks, next + share.rounds * cores);
    }
    const bool top = p.output == GemvOutput::kTop;
    const int64_t element = p.output == GemvOutput::kF32 ? 4 : 2;
    const int64_t room = array.y_bytes / (p.batch * kQ4Rows * element);
    share.y_row_blocks = top ? share.rounds : divisor_up_to(share.rounds, room);
    if (share.rounds == 0) continue;
    share.y_objects = share.rounds / share.y_row_blocks;
    share.y_offset = plan.y_bytes;
    plan.y_bytes += share.y_objects * array.cores(c) * array.y_bytes;
  }
}

}  // namespace

GemvArray GemvArray::of(const Configuration& configuration) {
  const auto param = [&](const char* name, int64_t least, int64_t most) {
    const int64_t value = configuration.param(name);
    if (value < least || value > most) {
      fail(ErrorKind::kFormat,
           "[GemvArray::of] configuration \"%s\" has %s = %lld, must be %lld..%lld; lower the "
           "design again",
           configuration.name.c_str(), name, static_cast<long long>(value),
           static_cast<long long>(least), static_cast<long long>(most));
    }
    return value;
  };
  GemvArray array;
  array.generation = configuration.generation;
  const int columns = arch::device_model(configuration.generation).columns;
  array.columns = static_cast<int>(param("columns", 1, columns));
  array.rows = static_cast<int>(param("rows", 1, arch::kCoreRows));
  array.channels = static_cast<int>(param("channels", 1, 2));
  param("block_bytes", kQ4BlockBytes, kQ4BlockBytes);
  array.x_bytes = param("x_bytes", kGemvBatch * kQ4Columns * 2, 1 << 16);
  array.y_bytes = param("y_bytes", kGemvBatch * kQ4Rows * 2, 1 << 16);
  array.opening_blocks = param("opening_blocks", 0, 1 << 10);
  array.setup_words = param("setup_words", 15, array.x_bytes / 4 / array.columns / array.rows);
  if (array.rows % array.channels != 0) {
    fail(ErrorKind::kFormat,
         "[GemvArray::of] configuration \"%s\" has %d cores per column on %d channels; lower the "
         "design again",
         configuration.name.c_str(), array.rows, array.channels);
  }
  return array;
}

GemvPlan plan_gemv(const GemvArray& array, const GemvProblem& problem) {
  check(array, problem);
  GemvPlan plan;
  // As few objects as hold x, of about equally many blocks.
  const auto objects = [&](int64_t blocks) {
    return (problem.column_blocks + blocks - 1) / blocks;
  };
  plan.x_objects = objects(array.x_bytes / (2 * kQ4Columns * problem.batch));
  plan.x_blocks = (problem.column_blocks + plan.x_objects - 1) / plan.x_objects;
  plan.x_objects = objects(plan.x_blocks);
  plan.x_bytes = (1 + plan.x_objects) * array.x_bytes;
  plan.resident = plan.x_objects == 1;
  deal(array, problem, arch::Timing(array.generation, arch::TimingTable()), plan);
  place(array, problem, plan);
  plan.x_sends = plan.resident ? 1 : plan.rounds;
  plan.setup.assign(static_cast<size_t>(array.x_bytes / 4), 0);
  for (int c = 0; c < array.columns; ++c) {
    const GemvShare& share = plan.shares[static_cast<size_t>(c)];
    for (int r = 0; r < array.cores(c); ++r) {
      const bool works = share.rounds > 0;
      const int64_t idle = plan.resident ? !works : plan.rounds - share.rounds;
      const int64_t record[] = {plan.resident ? 0 : share.y_objects,
                                share.y_row_blocks,
                                plan.x_objects - 1,
                                plan.x_blocks,
                                idle * plan.x_objects,
                                problem.batch,
                                static_cast<int64_t>(problem.output),
                                problem.top,
                                share.first[static_cast<size_t>(r)] * kQ4Rows,
                                share.step * kQ4Rows,
                                problem.rows,
                                plan.resident && works,
                                share.y_objects,
                                share.y_row_blocks * plan.x_blocks,
                                problem.column_blocks - (plan.x_objects - 1) * plan.x_blocks};
      const size_t at = static_cast<size_t>((c * array.rows + r) * array.setup_words);
      for (size_t i = 0; i < std::size(record); ++i) {
        if (record[i] > std::numeric_limits<int32_t>::max()) {
          fail(ErrorKind::kOutOfRange, "[gemv] %lld x %lld blocks are too many; split W",
               static_cast<long long>(problem.row_blocks),
               static_cast<long long>(problem.column_blocks));
        }
        plan.setup[at + i] = static_cast<int32_t>(record[i]);
      }
    }
  }
  return plan;
}

}  // namespace npu::ops
