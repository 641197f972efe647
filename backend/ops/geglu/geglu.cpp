// GeGLU (designs/geglu.py): equal shares of the objects for all columns.
//
// A task of a column is up to 64 objects of gate and up in turn: two chained BDs, repeated. Four
// tasks are in flight. Idle columns get no parameters.
#include <vector>

#include "ops/shim_commands.h"

namespace npu::ops {

namespace {

constexpr int kRing = 4;
enum Argument : uint32_t { kGate, kUp, kY };

class GegluCommands : private ShimCommands {
 public:
  GegluCommands(stream::Builder& builder, const Configuration& configuration,
                const Request& request)
      : ShimCommands(builder, configuration),
        object_(configuration.param("cores", 1, arch::kCoreRows) *
                configuration.param("chunk", 32, 4096)),
        elements_(request.get("elements", object_, int64_t{1} << 34, object_)) {}

  void append() {
    for (int c = 0; c < geometry_.columns; ++c) {
      const auto [first, end] = equal_share(elements_ / object_, c, geometry_.columns);
      if (first == end) continue;
      lanes_.push_back(
          {port("Y", c), group_tasks(first, end, 1, elements_ / object_), TaskRing(kRing)});
      write_rtps(c, {{"pairs", end - first}});
      route_tokens(*lanes_.back().results);
    }
    run(lanes_, [&](const Lane<GroupTask>& lane, size_t i, int slot) {
      push(lane.results->col, lane.tasks[i], slot);
    });
  }

  std::vector<ArgumentLayout> arguments() const {
    return {ArgumentLayout::input("gate", elements_ * 2),
            ArgumentLayout::input("up", elements_ * 2), ArgumentLayout::output("y", elements_ * 2)};
  }

 private:
  void push(int col, const GroupTask& task, int slot) {
    const int64_t bytes = object_ * 2, offset = task.first * bytes;
    const arch::Bd whole = linear_bd(static_cast<uint32_t>(task.groups * bytes / 4));
    push_bd(*port("Y", col), 2 * kRing + slot, whole, kY, offset, 1, true);
    arch::Bd up = linear_bd(static_cast<uint32_t>(bytes / 4));
    up.iteration_step = up.length;
    up.iteration_wrap = static_cast<uint32_t>(task.groups);
    arch::Bd gate = up;
    gate.use_next = true;
    gate.next_bd = static_cast<uint32_t>(kRing + slot);
    write_bd(*port("X", col), kRing + slot, up, kUp, offset);
    push_bd(*port("X", col), slot, gate, kGate, offset, task.groups, false);
  }

  int64_t object_, elements_;
  std::vector<Lane<GroupTask>> lanes_;
};

}  // namespace

extern const OperationType kGegluType;
const OperationType kGegluType = {
    "geglu",
    "y = gelu(gate) * up, tanh form",
    {{"elements", "of gate, padding included"}},
    {{"1B, a token", {{"elements", 8192}}}, {"1B, a prompt of 512", {{"elements", 512 * 6912}}}},
    &one_submission<GegluCommands>};

}  // namespace npu::ops
