// Lays a dequantisation out over the lanes (dequant_schedule.h).
#include "ops/dequant/dequant_schedule.h"

#include <algorithm>
#include <string>
#include <vector>

#include "arch/bd.h"
#include "arch/geometry.h"
#include "error.h"
#include "formats/weight_blocks.h"
#include "ops/shim_commands.h"
#include "rounding.h"

namespace npu::ops {

namespace {

constexpr int kRing = 4;  // tasks in flight per lane: 4 BDs each of two channels

class DequantCommands : private ShimCommands {
 public:
  DequantCommands(stream::Builder& builder, const Configuration& configuration,
                  const DequantProblem& problem)
      : ShimCommands(builder, configuration),
        array_(DequantArray::of(configuration)),
        block_words_(blocks::bytes_of(array_.format) / 4),
        run_words_(blocks::columns_of(array_.format) * 2 / 4),
        rows_(problem.row_blocks),
        columns_(problem.column_blocks) {
    check();
  }

  void append() {
    partition();
    run(lanes_, [&](const Lane<Task>& lane, size_t i, int slot) {
      if (i == 0) route_tokens(*lane.results);
      push(*lane.results, lane.tasks[i], slot);
    });
  }

 private:
  struct Task {
    int64_t row, column;            // first block
    int64_t row_step, column_step;  // blocks between executions
    int64_t repeats;
  };

  void check() const {
    if (rows_ < array_.cores || columns_ < 1) {
      fail(ErrorKind::kShape, "[dequantize] W has %lld x %lld blocks; at least %d x 1 are needed",
           static_cast<long long>(rows_), static_cast<long long>(columns_), array_.cores);
    }
    // Between row-blocks that a lane takes one after the other.
    const int64_t step =
        array_.cores * columns_ * std::max(block_words_, blocks::kRows * run_words_);
    if (columns_ * block_words_ > arch::tile_geometry(arch::TileKind::kShim).max_step ||
        rows_ > (int64_t{1} << 40) / step) {
      fail(ErrorKind::kShape,
           "[dequantize] W has %lld x %lld blocks, more than the shim's BDs can address; split it",
           static_cast<long long>(rows_), static_cast<long long>(columns_));
    }
  }

  // Equal shares of pairs of row-blocks, or, if there are few, of their column blocks. Where W ends
  // inside a pair, that pair begins earlier and its first row-block is written twice, with the same
  // values.
  void partition() {
    const int64_t cores = array_.cores, pairs = divide_up(rows_, cores);
    const int64_t lanes = int64_t{array_.columns} * array_.lanes;
    const int64_t unit = columns_ * lanes < pairs ? columns_ : 1;  // column blocks
    const int64_t units = pairs * columns_ / unit;
    // Neighbouring lanes of different columns start first.
    for (int64_t index = 0; index < lanes; ++index) {
      const auto [first, end] = equal_share(units, index, lanes);
      if (first == end) continue;
      lanes_.push_back({port(strf("Y%d_%d", static_cast<int>(index % array_.columns),
                                  static_cast<int>(index / array_.columns))),
                        tasks(first * unit, end * unit), TaskRing(kRing)});
    }
  }

  // Column blocks [first, end), counted along the pairs of row-blocks.
  std::vector<Task> tasks(int64_t first, int64_t end) const {
    const int64_t limit = arch::tile_geometry(arch::TileKind::kShim).max_iteration;
    const int64_t cores = array_.cores, last = rows_ - cores;
    std::vector<Task> out;
    // Pairs that are whole and begin where they should.
    const int64_t whole = std::min(end / columns_, rows_ / cores) - first / columns_;
    const int64_t step = cores * columns_ * std::max(block_words_, blocks::kRows * run_words_);
    if (first % columns_ == 0 && columns_ < whole &&
        step <= arch::tile_geometry(arch::TileKind::kShim).max_step) {
      const int64_t begin = first / columns_;
      for (int64_t pair = begin; pair < begin + whole; pair += limit) {
        for (int64_t q = 0; q < columns_; ++q) {
          out.push_back({pair * cores, q, cores, 0, std::min(limit, begin + whole - pair)});
        }
      }
      first += whole * columns_;
    }
    while (first < end) {
      const int64_t pair = first / columns_, q = first % columns_;
      const int64_t count = std::min({limit, columns_ - q, end - first});
      out.push_back({std::min(pair * cores, last), q, 0, 1, count});
      first += count;
    }
    return out;
  }

  // A lane's number in its column is that of its channels.
  void push(const Port& to, const Task& task, int slot_of_ring) {
    const Port& from = *port(strf("W%d_%d", to.col, to.channel));
    const int slot = slot_of_ring * array_.lanes + to.channel;
    // In: a block of every row-block, as two halves.
    arch::Bd in = task_bd(array_.cores * block_words_, task);
    in.wrap[0] = in.step[1] = static_cast<uint32_t>(block_words_ / 2);  // longer than a wrap field
    in.wrap[1] = 2;
    in.step[2] = static_cast<uint32_t>(columns_ * block_words_);
    in.iteration_step =
        iteration(task.row_step * columns_ * block_words_ + task.column_step * block_words_);
    const int64_t block = task.row * columns_ + task.column;
    // Out: rows of a block.
    arch::Bd out = task_bd(array_.cores * blocks::kRows * run_words_, task);
    out.wrap[0] = run_words_;
    out.step[1] = static_cast<uint32_t>(columns_ * run_words_);
    out.iteration_step = iteration(task.row_step * blocks::kRows * columns_ * run_words_ +
                                   task.column_step * run_words_);
    const int64_t word =
        task.row * blocks::kRows * columns_ * run_words_ + task.column * run_words_;
    // The output waits before blocks arrive.
    push_bd(to, kRing * array_.lanes + slot, out, kDequantOut, word * 4, task.repeats, true);
    push_bd(from, slot, in, kDequantBlocks, block * block_words_ * 4, task.repeats, false);
  }

  static uint32_t iteration(int64_t step) {
    return static_cast<uint32_t>(std::max<int64_t>(1, step));
  }

  arch::Bd task_bd(int64_t words, const Task& task) const {
    arch::Bd bd = linear_bd(static_cast<uint32_t>(words));
    bd.iteration_wrap = static_cast<uint32_t>(task.repeats);
    return bd;
  }

  DequantArray array_;
  int64_t block_words_;
  int64_t run_words_;       // of a row of an expanded block
  int64_t rows_, columns_;  // blocks
  std::vector<Lane<Task>> lanes_;
};

}  // namespace

DequantArray DequantArray::of(const Configuration& configuration) {
  const auto param = [&](const char* name, int64_t min, int64_t max) {
    return static_cast<int>(configuration.param(name, min, max));
  };
  DequantArray array;
  array.columns = param("columns", 1, arch::device_geometry(configuration.generation).columns);
  array.lanes = param("lanes", 1, 2);
  array.cores = param("lane_cores", 1, arch::kCoreRows / array.lanes);
  array.format = static_cast<blocks::Format>(param("format", 0, blocks::kFormats - 1));
  const int64_t bytes = blocks::bytes_of(array.format);
  param("block_bytes", bytes, bytes);
  return array;
}

void append_dequant(stream::Builder& builder, const Configuration& configuration,
                    const DequantProblem& problem) {
  DequantCommands(builder, configuration, problem).append();
}

}  // namespace npu::ops
