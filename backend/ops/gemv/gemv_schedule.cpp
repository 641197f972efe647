// Lays a GEMV out over the cores (gemv_schedule.h): row-blocks of each, and the setup object.
#include "ops/gemv/gemv_schedule.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "arch/machines.h"
#include "arch/timing.h"
#include "error.h"
#include "ops/block_weights.h"
#include "perf/gemv_reads.h"
#include "rounding.h"

namespace npu::ops {

namespace {

constexpr int64_t kMaxRowBlocks = int64_t{1} << 26;  // 2^31 rows: an int32 holds any row
constexpr int64_t kMaxColumnBlocks = 1 << 20;

// The largest divisor of n up to `max`.
int64_t divisor_up_to(int64_t n, int64_t max) {
  for (int64_t d = std::min(n, max); d > 1; --d) {
    if (n % d == 0) return d;
  }
  return 1;
}

void check(const GemvArray& array, const GemvProblem& p) {
  check_block_bytes("gemv", p.format, array.block_bytes);
  if (p.row_blocks < array.min_row_blocks() || p.column_blocks < 1) {
    fail(ErrorKind::kShape,
         "[gemv] W has %lld x %lld blocks; this configuration needs at least %lld x 1",
         static_cast<long long>(p.row_blocks), static_cast<long long>(p.column_blocks),
         static_cast<long long>(array.min_row_blocks()));
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
  if (p.row_blocks > kMaxRowBlocks || p.column_blocks > kMaxColumnBlocks) {
    fail(ErrorKind::kOutOfRange,
         "[gemv] W has %lld x %lld blocks, at most %lld x %lld can be addressed; split it",
         static_cast<long long>(p.row_blocks), static_cast<long long>(p.column_blocks),
         static_cast<long long>(kMaxRowBlocks), static_cast<long long>(kMaxColumnBlocks));
  }
  const int64_t step = p.column_blocks * array.block_bytes / 4;
  if (step > arch::tile_geometry(arch::TileKind::kShim).max_step) {
    fail(ErrorKind::kOutOfRange,
         "[gemv] row-blocks of %lld blocks are further apart than a shim BD can step; split K",
         static_cast<long long>(p.column_blocks));
  }
  if (p.batch != 1 && p.batch != 2 && p.batch != 4 && p.batch != kGemvBatch) {
    fail(ErrorKind::kArgument, "[gemv] batch is %d; use 1, 2, 4 or 8", p.batch);
  }
  if (p.output == GemvOutput::kF32 && p.batch * blocks::kRows * 4 > array.y_bytes) {
    fail(ErrorKind::kArgument, "[gemv] batch is %d; float32 results allow up to %lld", p.batch,
         static_cast<long long>(array.y_bytes / (blocks::kRows * 4)));
  }
  if (p.output == GemvOutput::kTop &&
      (p.top < 1 || p.top * p.batch * kGemvTopBytes > array.y_bytes)) {
    fail(ErrorKind::kArgument, "[gemv] top is %d; with %d vectors use 1 to %lld", p.top, p.batch,
         static_cast<long long>(array.y_bytes / kGemvTopBytes / p.batch));
  }
}

using perf::Rounds;

constexpr double kClear = 0.99;  // differences below 1 % are beyond flows

// Covers W, then moves single rounds between columns, or away, if that takes time off clearly.
double improve(const GemvArray& array, const GemvProblem& p, const perf::GemvReads& reads,
               Rounds* rounds) {
  constexpr int kMaxMoves = 16;
  const int64_t max_rounds = p.row_blocks / array.cores_per_port();
  int64_t spare = -p.row_blocks;
  for (int c = 0; c < array.columns; ++c) {
    int64_t& share = (*rounds)[static_cast<size_t>(c)];
    share = std::min(share, max_rounds);
    spare += share * array.cores(c);
  }
  for (int c = 0; spare < 0; c = (c + 1) % array.columns) {
    if ((*rounds)[static_cast<size_t>(c)] == max_rounds) continue;
    ++(*rounds)[static_cast<size_t>(c)];
    spare += array.cores(c);
  }
  const double before = reads.cycles(*rounds);
  Rounds current = *rounds;
  double shortest = before;
  for (int move = 0; move < kMaxMoves; ++move) {
    Rounds best;
    int64_t best_spare = 0;
    for (int from = 0; from < array.columns; ++from) {
      if (current[static_cast<size_t>(from)] == 0) continue;
      for (int to = 0; to < array.columns; ++to) {
        Rounds moved = current;
        --moved[static_cast<size_t>(from)];
        if (to != from) ++moved[static_cast<size_t>(to)];
        const int64_t after = spare - array.cores(from) + (to != from ? array.cores(to) : 0);
        if (after < 0 || moved[static_cast<size_t>(to)] > max_rounds) continue;
        const double cycles = reads.cycles(moved);
        if (cycles >= shortest) continue;
        shortest = cycles;
        best = std::move(moved);
        best_spare = after;
      }
    }
    if (best.empty()) break;
    current = std::move(best);
    spare = best_spare;
  }
  if (shortest >= kClear * before) return before;
  *rounds = std::move(current);
  return shortest;
}

// Partitions the rounds among the columns so that the last weight is read as early as possible.
void partition(const GemvArray& array, const GemvProblem& p, const arch::Timing& timing,
               GemvSchedule& schedule) {
  schedule.shares.assign(static_cast<size_t>(array.columns), {});
  perf::GemvReadShape shape;
  shape.generation = array.generation;
  for (int c = 0; c < array.columns; ++c) shape.ports.push_back(array.ports(c));
  shape.cores_per_port = array.cores_per_port();
  shape.preconfigured = array.preconfigured_blocks > 0;
  shape.row_block_bytes = p.column_blocks * array.block_bytes;
  shape.batch = p.batch;
  shape.format = p.format;
  shape.x_bytes = schedule.resident ? 0 : schedule.x_objects * array.x_bytes;
  const perf::GemvReads reads(shape, timing);
  double shortest = std::numeric_limits<double>::infinity();
  for (int columns = array.columns; columns > 0; --columns) {
    Rounds rounds = reads.partition(p.row_blocks, columns);
    const double cycles = improve(array, p, reads, &rounds);
    if (cycles >= kClear * shortest) continue;
    shortest = cycles;
    for (size_t c = 0; c < rounds.size(); ++c) schedule.shares[c].rounds = rounds[c];
  }
}

// Which row-blocks each core takes. Where W ends inside a round, its last cores begin earlier and
// compute rows that others compute too.
void place(const GemvArray& array, const GemvProblem& p, GemvSchedule& schedule) {
  int64_t next = 0;
  for (int c = 0; c < array.columns; ++c) {
    GemvShare& share = schedule.shares[static_cast<size_t>(c)];
    const int cores = array.cores_per_port();
    share.step = cores;
    schedule.rounds = std::max(schedule.rounds, share.rounds);
    for (int port = 0; port < array.ports(c); ++port) {
      const int64_t first = std::min(p.row_blocks - share.rounds * cores, next);
      for (int j = 0; j < cores; ++j) share.first.push_back(first + j);
      next = std::min(p.row_blocks, next + share.rounds * cores);
    }
    const bool top = p.output == GemvOutput::kTop;
    const int64_t element = p.output == GemvOutput::kF32 ? 4 : 2;
    const int64_t room = array.y_bytes / (p.batch * blocks::kRows * element);
    share.y_row_blocks = top ? share.rounds : divisor_up_to(share.rounds, room);
    if (share.rounds == 0) continue;
    share.y_objects = share.rounds / share.y_row_blocks;
    share.y_offset = schedule.y_bytes;
    schedule.y_bytes += share.y_objects * array.cores(c) * array.y_bytes;
  }
}

// A word of a setup record.
int32_t word(int64_t value) {
  if (value > std::numeric_limits<int32_t>::max()) {
    fail(ErrorKind::kOutOfRange, "[gemv] a count of %lld does not fit a core's setup; split W",
         static_cast<long long>(value));
  }
  return static_cast<int32_t>(value);
}

// Core r of a column; idle columns let all of x pass.
gemv::Setup setup_of(const GemvProblem& p, const GemvSchedule& schedule, const GemvShare& share,
                     size_t r) {
  const bool works = share.rounds > 0, resident = schedule.resident;
  const int64_t idle = resident ? !works : schedule.rounds - share.rounds;
  gemv::Setup setup{};
  setup.y_objects = word(resident ? 0 : share.y_objects);
  setup.row_blocks = word(share.y_row_blocks);
  setup.x_objects = word(schedule.x_objects - 1);
  setup.x_blocks = word(schedule.x_blocks);
  setup.idle = word(idle * schedule.x_objects);
  setup.batch = p.batch;
  setup.output = static_cast<int32_t>(p.output);
  setup.top = p.top;
  setup.first = word(share.first[r] * blocks::kRows);
  setup.step = word(share.step * blocks::kRows);
  setup.rows = word(p.rows);
  setup.resident = resident && works;
  setup.resident_objects = word(share.y_objects);
  setup.resident_blocks = word(share.y_row_blocks * schedule.x_blocks);
  setup.format = static_cast<int32_t>(p.format);
  setup.x_last = word(p.column_blocks - (schedule.x_objects - 1) * schedule.x_blocks);
  return setup;
}

void write_setup(const GemvArray& array, const GemvProblem& p, GemvSchedule& schedule) {
  schedule.setup.assign(static_cast<size_t>(array.x_bytes / 4), 0);
  for (int c = 0; c < array.columns; ++c) {
    for (int r = 0; r < array.cores(c); ++r) {
      const gemv::Setup setup =
          setup_of(p, schedule, schedule.shares[static_cast<size_t>(c)], static_cast<size_t>(r));
      const auto at = static_cast<size_t>((c * array.rows + r) * gemv::kSetupWords);
      std::memcpy(schedule.setup.data() + at, &setup, sizeof setup);
    }
  }
}

}  // namespace

GemvArray GemvArray::of(const Configuration& configuration) {
  const auto param = [&](const char* name, int64_t min, int64_t max) {
    return configuration.param(name, min, max);
  };
  GemvArray array;
  array.generation = configuration.generation;
  const int columns = arch::device_geometry(configuration.generation).columns;
  array.columns = static_cast<int>(param("columns", 1, columns));
  array.rows = static_cast<int>(param("rows", 1, arch::kCoreRows));
  array.channels = static_cast<int>(param("channels", 1, 2));
  array.block_bytes = block_bytes_of(configuration);
  array.x_bytes = param("x_bytes", kGemvBatch * q4nx::kColumns * 2, 1 << 16);
  array.y_bytes = param("y_bytes", kGemvBatch * blocks::kRows * 2, 1 << 16);
  array.preconfigured_blocks = param("preconfigured_blocks", 0, 1 << 10);
  param("setup_words", gemv::kSetupWords, array.x_bytes / 4 / array.columns / array.rows);
  if (array.rows % array.channels != 0) {
    fail(ErrorKind::kFormat,
         "[GemvArray::of] configuration \"%s\" has %d cores per column on %d channels; lower the "
         "design again",
         configuration.name.c_str(), array.rows, array.channels);
  }
  return array;
}

GemvSchedule schedule_gemv(const GemvArray& array, const GemvProblem& problem) {
  check(array, problem);
  GemvSchedule schedule;
  // As few objects as hold x, of about equally many blocks.
  const auto objects = [&](int64_t blocks) { return divide_up(problem.column_blocks, blocks); };
  const int64_t line = blocks::columns_of(problem.format) * problem.batch;  // elements
  schedule.x_objects = objects(array.x_bytes / (2 * line));
  schedule.x_blocks = divide_up(problem.column_blocks, schedule.x_objects);
  schedule.x_objects = objects(schedule.x_blocks);
  schedule.x_bytes = (1 + schedule.x_objects) * array.x_bytes;
  schedule.resident = schedule.x_objects == 1;
  // One stream, whatever a simulation charges for kernels.
  const auto counted = arch::timing_table("gemv", array.generation, "", "published");
  partition(array, problem, arch::Timing(array.generation, counted), schedule);
  place(array, problem, schedule);
  schedule.x_sends = schedule.resident ? 1 : schedule.rounds;
  write_setup(array, problem, schedule);
  return schedule;
}

}  // namespace npu::ops
