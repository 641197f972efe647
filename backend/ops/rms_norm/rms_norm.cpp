// RMSNorm (designs/rms_norm.py): which column takes which rows, and the commands of a stream.
//
// A task of a column is up to 64 groups of four rows; four tasks are in flight, and the end of a
// task's results frees its BDs. Rows that are no multiple of four: the last group begins earlier
// and computes rows again. Idle columns get no parameters, so no core reads any after its stream.
#include <algorithm>
#include <string>
#include <vector>

#include "error.h"
#include "ops/shim_commands.h"
#include "runtime/operation_type.h"

namespace npu::ops {

namespace {

constexpr int kRing = 4;
constexpr int64_t kMaxRows = int64_t{1} << 24;
enum Argument : uint32_t { kX, kWeight, kY };

struct Problem {
  int64_t rows, width, mean_width, epsilon;  // epsilon: the bits of a float
};

class RmsNormCommands : private ShimCommands {
 public:
  RmsNormCommands(stream::Builder& builder, const Configuration& configuration, const Problem& p)
      : ShimCommands(builder, configuration),
        p_(p),
        cores_(configuration.param("cores", 1, arch::kCoreRows)),
        chunk_(configuration.param("chunk", 2, 2048)),
        columns_(configuration.param("columns", 1, model_.columns)) {}

  void append() {
    const int64_t groups = (p_.rows + cores_ - 1) / cores_;
    int64_t max_tasks = 0;
    for (int64_t c = 0; c < columns_; ++c) {
      const int64_t first = groups * c / columns_, end = groups * (c + 1) / columns_;
      if (first == end) continue;
      const std::string name = std::to_string(c);
      columns_in_use_.push_back({port("X" + name), port("W" + name), port("Y" + name), {}});
      Column& column = columns_in_use_.back();
      partition(first, end, groups, column.tasks);
      write_parameters(static_cast<int>(c), end - first);
      route_tokens(*column.y);
      max_tasks = std::max(max_tasks, static_cast<int64_t>(column.tasks.size()));
    }
    for (size_t i = 0; i < static_cast<size_t>(max_tasks); ++i) {
      for (Column& column : columns_in_use_) {
        if (i >= column.tasks.size()) continue;
        push(column, column.tasks[i], column.ring.next([&] { wait(*column.y); }));
      }
    }
    for (Column& column : columns_in_use_) column.ring.drain([&] { wait(*column.y); });
  }

 private:
  struct Task {
    int64_t row, groups;
  };
  struct Column {
    const Port *x, *weight, *y;
    std::vector<Task> tasks;
    TaskRing ring{kRing};
  };

  void partition(int64_t first, int64_t end, int64_t groups, std::vector<Task>& tasks) const {
    const int64_t limit = arch::tile_geometry(arch::TileKind::kShim).max_iteration;
    const bool ragged = end == groups && p_.rows % cores_ != 0;
    for (int64_t whole = end - ragged; first < whole; first += limit) {
      tasks.push_back({first * cores_, std::min(limit, whole - first)});
    }
    if (ragged) tasks.push_back({p_.rows - cores_, 1});
  }

  void write_parameters(int col, int64_t groups) {
    write_rtps([&](int used) { return used == col; },
               [&](const Configuration::Rtp& rtp) {
                 const int64_t value = rtp.name == "rows"     ? groups
                                       : rtp.name == "chunks" ? p_.width / chunk_
                                       : rtp.name == "width"  ? p_.mean_width
                                                              : p_.epsilon;
                 return static_cast<uint32_t>(value);
               });
  }

  void push(const Column& column, const Task& task, int slot) {
    const auto words = [](int64_t elements) { return static_cast<uint32_t>(elements / 2); };
    arch::Bd rows = linear_bd(words(cores_ * p_.width));  // chunks of every row in turn
    rows.wrap[0] = rows.step[2] = words(chunk_);
    rows.wrap[1] = static_cast<uint32_t>(cores_);
    rows.step[1] = words(p_.width);
    rows.iteration_step = rows.length;
    rows.iteration_wrap = static_cast<uint32_t>(task.groups);
    const int64_t offset = task.row * p_.width * 2;
    write_bd(*column.y, 2 * kRing + slot, rows, kY, offset);
    queue(*column.y, 2 * kRing + slot, task.groups, true);
    write_bd(*column.x, slot, rows, kX, offset);
    queue(*column.x, slot, task.groups, false);
    write_bd(*column.weight, kRing + slot, linear_bd(static_cast<uint32_t>(p_.width)), kWeight, 0);
    queue(*column.weight, kRing + slot, task.groups, false);
  }

  Problem p_;
  int64_t cores_, chunk_, columns_;
  std::vector<Column> columns_in_use_;
};

std::vector<Submission> submissions(const Configuration& configuration, const Request& request) {
  const Problem p{request[0], request[1], request[2] == 0 ? request[1] : request[2], request[3]};
  const int64_t cores = configuration.param("cores"), chunk = configuration.param("chunk");
  const int64_t max_width = configuration.param("max_width");
  if (p.rows < cores || p.rows > kMaxRows || p.width < chunk || p.width > max_width ||
      p.width % chunk != 0 || p.mean_width < 1 || p.mean_width > p.width) {
    fail(ErrorKind::kShape,
         "[rms_norm] (%lld, %lld) rows of bfloat16; use %lld to %lld rows and a width that is a "
         "multiple of %lld up to %lld: pad them with zeros, as npu.rms_norm does",
         static_cast<long long>(p.rows), static_cast<long long>(p.width),
         static_cast<long long>(cores), static_cast<long long>(kMaxRows),
         static_cast<long long>(chunk), static_cast<long long>(max_width));
  }
  stream::Builder builder(configuration.generation,
                          arch::device_geometry(configuration.generation).columns);
  RmsNormCommands(builder, configuration, p).append();
  const auto bytes = static_cast<size_t>(p.rows * p.width * 2);
  return {{builder.finish(),
           {{"x", bytes, Access::kRead},
            {"weight", static_cast<size_t>(p.width * 4), Access::kRead},
            {"y", bytes, Access::kWrite}}}};
}

}  // namespace

extern const OperationType kRmsNormType;
const OperationType kRmsNormType = {"rms_norm",
                                    "y = x / sqrt(mean(x^2) + epsilon) * weight, row by row",
                                    {{"rows", "rows of x"},
                                     {"width", "elements of a row, padding included"},
                                     {"mean_width", "elements without padding; 0: all", 0},
                                     {"epsilon", "bits of a float32", 0x358637BD}},  // 1e-6
                                    &submissions};

}  // namespace npu::ops
