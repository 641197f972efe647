// RMSNorm (designs/rms_norm.py): which column takes which rows, and the commands of a stream.
//
// A task of a column is up to 64 groups of four rows; four tasks are in flight. Rows that are no
// multiple of four: the last group begins earlier and computes rows again. With a residual, the BD
// of x is chained to one of the residual, so that a group's rows and its residual alternate. Idle
// columns get no parameters, so no core reads any after its stream.
#include <vector>

#include "ops/shim_commands.h"
#include "rounding.h"

namespace npu::ops {

namespace {

constexpr int kRing = 4;
enum Argument : uint32_t { kX, kWeight, kY, kResidual };

class RmsNormCommands : private ShimCommands {
 public:
  RmsNormCommands(stream::Builder& builder, const Configuration& configuration,
                  const Request& request)
      : ShimCommands(builder, configuration),
        cores_(configuration.param("cores", 1, arch::kCoreRows)),
        chunk_(configuration.param("chunk", 2, 2048)),
        rows_(request.get("rows", cores_, int64_t{1} << 24)),
        width_(request.get("width", chunk_, configuration.param("max_width"), chunk_)),
        mean_width_(request["mean_width"] == 0 ? width_ : request.get("mean_width", 1, width_)),
        epsilon_(request.get("epsilon", 0, INT32_MAX)),
        residual_(request.get("residual", 0, 1) != 0) {}

  void append() {
    const int64_t groups = divide_up(rows_, cores_);
    for (int c = 0; c < geometry_.columns; ++c) {
      const auto [first, end] = equal_share(groups, c, geometry_.columns);
      if (first == end) continue;
      lanes_.push_back({port("Y", c), group_tasks(first, end, cores_, rows_), TaskRing(kRing)});
      write_rtps(c, {{"rows", end - first},
                     {"chunks", width_ / chunk_},
                     {"plain", !residual_},
                     {"residual", residual_},
                     {"width", mean_width_},
                     {"epsilon", epsilon_}});
      route_tokens(*lanes_.back().results);
    }
    run(lanes_, [&](const Lane<GroupTask>& lane, size_t i, int slot) {
      push(lane.results->col, lane.tasks[i], slot);
    });
  }

  std::vector<ArgumentLayout> arguments() const {
    std::vector<ArgumentLayout> out = {ArgumentLayout::input("x", rows_ * width_ * 2),
                                       ArgumentLayout::input("weight", width_ * 4),
                                       ArgumentLayout::output("y", rows_ * width_ * 2)};
    if (residual_) out.push_back(ArgumentLayout::input("residual", rows_ * width_ * 2));
    return out;
  }

 private:
  void push(int col, const GroupTask& task, int slot) {
    const auto words = [](int64_t elements) { return static_cast<uint32_t>(elements / 2); };
    arch::Bd rows = linear_bd(words(cores_ * width_));  // chunks of every row in turn
    rows.wrap[0] = rows.step[2] = words(chunk_);
    rows.wrap[1] = static_cast<uint32_t>(cores_);
    rows.step[1] = words(width_);
    rows.iteration_step = rows.length;
    rows.iteration_wrap = static_cast<uint32_t>(task.groups);
    const arch::Bd weight = linear_bd(static_cast<uint32_t>(width_));
    const int64_t offset = task.first * width_ * 2;
    push_bd(*port("Y", col), 2 * kRing + slot, rows, kY, offset, task.groups, true);
    arch::Bd x = rows;
    if (residual_) {
      x.use_next = true;
      x.next_bd = static_cast<uint32_t>(3 * kRing + slot);
      write_bd(*port("X", col), 3 * kRing + slot, rows, kResidual, offset);
    }
    push_bd(*port("X", col), slot, x, kX, offset, task.groups, false);
    push_bd(*port("W", col), kRing + slot, weight, kWeight, 0, task.groups, false);
  }

  int64_t cores_, chunk_, rows_, width_, mean_width_, epsilon_;
  bool residual_;
  std::vector<Lane<GroupTask>> lanes_;
};

}  // namespace

extern const OperationType kRmsNormType;
const OperationType kRmsNormType = {
    "rms_norm",
    "y = x / sqrt(mean(x^2) + epsilon) * weight, row by row, plus a residual",
    {{"rows", "rows of x"},
     {"width", "elements of a row, padding included"},
     {"mean_width", "elements without padding; 0: all", 0},
     {"epsilon", "bits of a float32", 0x358637BD},  // 1e-6
     {"residual", "1: one is added", 0}},
    {{"1B, a prompt of 512", {{"rows", 512}, {"width", 1152}}},
     {"the same with a residual", {{"rows", 512}, {"width", 1152}, {"residual", 1}}},
     {"widest", {{"rows", 64}, {"width", 16384}}}},
    &one_submission<RmsNormCommands>};

}  // namespace npu::ops
