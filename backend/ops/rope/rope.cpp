// Rotary embedding (designs/rope.py): which column takes which tokens, and the commands of a
// stream.
//
// A group is one object per core and head: consecutive tokens, all their heads. A task of a column
// is up to 64 groups; four tasks are in flight. Tokens that are no multiple of a group: the last
// group begins earlier and computes tokens again. Idle columns get no parameters.
//
// The tables' argument holds 256 floats of weights, the norm's first, and then for each token
// width / 2 cosines and as many sines.
#include <bit>
#include <vector>

#include "ops/shim_commands.h"
#include "rounding.h"

namespace npu::ops {

namespace {

constexpr int kRing = 4;
constexpr int64_t kMinWidth = 64;
enum Argument : uint32_t { kX, kTables, kY };

class RopeCommands : private ShimCommands {
 public:
  RopeCommands(stream::Builder& builder, const Configuration& configuration, const Request& request)
      : ShimCommands(builder, configuration),
        object_(configuration.param("object", kMinWidth, 4096)),
        width_(request.get("width", kMinWidth, object_, kMinWidth)),
        group_(configuration.param("cores", 1, arch::kCoreRows) * object_ / width_),
        tokens_(request.get("tokens", group_, int64_t{1} << 24)),
        heads_(request.get("heads", 1, 1024)),
        normed_(request.get("normed", 0, 1)),
        epsilon_(request.get("epsilon", 0, INT32_MAX)) {
    if (object_ % width_ != 0) {
      fail(ErrorKind::kShape, "[rope] width is %lld; vectors have 64, 128 or 256 elements",
           static_cast<long long>(width_));
    }
  }

  void append() {
    const int64_t groups = divide_up(tokens_, group_);
    for (int c = 0; c < geometry_.columns; ++c) {
      const auto [first, end] = equal_share(groups, c, geometry_.columns);
      if (first == end) continue;
      lanes_.push_back({port("Y", c), group_tasks(first, end, group_, tokens_), TaskRing(kRing)});
      write_rtps(c, {{"groups", end - first},
                     {"heads", heads_},
                     {"doublings", std::bit_width(static_cast<uint64_t>(width_ / kMinWidth)) - 1},
                     {"normed", normed_},
                     {"epsilon", epsilon_}});
      route_tokens(*lanes_.back().results);
    }
    run(lanes_, [&](const Lane<GroupTask>& lane, size_t i, int slot) {
      push(lane.results->col, lane.tasks[i], i == 0, slot);
    });
  }

  std::vector<ArgumentLayout> arguments() const {
    const int64_t bytes = tokens_ * heads_ * width_ * 2;
    return {ArgumentLayout::input("x", bytes),
            ArgumentLayout::input("tables", (object_ + tokens_ * width_) * 4),
            ArgumentLayout::output("y", bytes)};
  }

 private:
  void push(int col, const GroupTask& task, bool first, int slot) {
    const auto words = [](int64_t elements) { return static_cast<uint32_t>(elements / 2); };
    arch::Bd vectors = linear_bd(words(group_ * heads_ * width_));  // a head of all tokens in turn
    vectors.wrap[0] = words(width_);
    vectors.wrap[1] = static_cast<uint32_t>(group_);
    vectors.step[1] = words(heads_ * width_);
    vectors.step[2] = words(width_);
    vectors.iteration_step = vectors.length;
    vectors.iteration_wrap = static_cast<uint32_t>(task.groups);
    const int64_t offset = task.first * heads_ * width_ * 2;
    push_bd(*port("Y", col), 2 * kRing + slot, vectors, kY, offset, task.groups, true);
    push_bd(*port("X", col), slot, vectors, kX, offset, task.groups, false);
    const arch::Bd tables = linear_bd(static_cast<uint32_t>(task.groups * group_ * width_));
    const int64_t table_offset = (object_ + task.first * width_) * 4;
    if (first) push_bd(*port("T", col), kWeightBd, weight_bd(), kTables, 0, 1, false);
    push_bd(*port("T", col), kRing + slot, tables, kTables, table_offset, 1, false);
  }

  static constexpr int kWeightBd = 3 * kRing;
  arch::Bd weight_bd() const { return linear_bd(static_cast<uint32_t>(object_)); }

  int64_t object_, width_, group_, tokens_, heads_, normed_, epsilon_;
  std::vector<Lane<GroupTask>> lanes_;
};

}  // namespace

extern const OperationType kRopeType;
const OperationType kRopeType = {
    "rope",
    "rotary embedding of (tokens, heads, width), RMSNorm of each vector before it or not",
    {{"tokens", "of x, padding included"},
     {"heads", "vectors of a token"},
     {"width", "elements of a vector: 64, 128 or 256"},
     {"normed", "1: RMSNorm comes first", 0},
     {"epsilon", "bits of a float32", 0x358637BD}},  // 1e-6
    {{"1B, queries of a prompt of 512",
      {{"tokens", 512}, {"heads", 4}, {"width", 256}, {"normed", 1}}},
     {"1B, keys of a prompt of 512",
      {{"tokens", 512}, {"heads", 1}, {"width", 256}, {"normed", 1}}}},
    &one_submission<RopeCommands>};

}  // namespace npu::ops
