// Appends the commands of a chunk (prefill_stream.h).
//
// Every task gives a token. A channel takes four tasks; tasks go to whatever channel has room, and
// where none has, the command processor waits for the task that ends first of all that stand before
// others: what that one needs has been pushed. Results of a step are in memory when all its tasks
// have ended; before it waits for them, it pushes what the next step can begin with. Then comes the
// program of the next step, by a channel of its own or before what the step has for that of B0.
#include "ops/prefill/prefill_stream.h"

#include <cassert>
#include <deque>
#include <utility>

#include "ops/prefill/prefill_tasks.h"
#include "ops/shim_queue.h"

namespace npu::ops {

namespace {

// BDs of shim tiles, a ring per channel. A channel that only programs come by has no stream A.
constexpr BdRing kABds{0, 4}, kBBds{4, 4}, kLowerBds{8, 4}, kUpperBds{12, 4};

class PrefillCommands : private QueueCommands {
 public:
  PrefillCommands(stream::Builder& builder, const Configuration& configuration,
                  const PrefillArray& array, PrefillPlan& plan, std::span<const int64_t> origins)
      : QueueCommands(builder, configuration), plan_(plan), origins_(origins) {
    for (int r = 0; r < PrefillArray::kRows; ++r) add(port("A", r), kABds);
    for (int c = 0; c < array.columns; ++c) add(port("B", c), kBBds);
    results_ = channels_.size();
    for (int c = 0; c < array.columns; ++c) add(port("C", c), kLowerBds);
    for (int c = 0; c < array.columns; ++c) add(port("D", c), kUpperBds);
    programs_port_ = port("programs");
    if (array.beside_b) {
      beside_ = &channels_[PrefillArray::kRows];
      return;
    }
    programs_ = {programs_port_, kABds};
    for (int r = 0; r < PrefillArray::kRows; ++r) {
      [[maybe_unused]] const Port& a = *port("A", r);
      assert(a.col != programs_port_->col);  // whose BDs they would share
    }
  }

  void append(size_t first, size_t last) {
    if (first == last) return;
    take(plan_.make(first));
    load(first);
    for (size_t step = first; step < last; ++step) {
      push_all();
      if (step + 1 < last) {
        take(plan_.make(step + 1));
        push_early();
      }
      for (size_t i = results_; i < channels_.size(); ++i) drain(channels_[i]);
      if (step + 1 < last) load(step + 1);
    }
    for (Channel& channel : channels_) drain(channel);
  }

 private:
  struct Channel {
    ShimQueue queue;
    std::deque<PrefillTask> tasks;                     // not pushed yet
    std::deque<std::pair<double, int64_t>> under_way;  // when they end, when they were pushed
  };

  void add(const Port* at, BdRing ring) { channels_.push_back({{at, ring}, {}, {}}); }

  // The tasks of a step; groups count on from those before.
  void take(PrefillStep step) {
    size_t next = 0;
    int last = base_;
    const auto give = [&](std::vector<PrefillTask>& tasks) {
      for (PrefillTask& task : tasks) {
        task.group += base_;
        last = std::max(last, task.group);
      }
      Channel& channel = channels_[next++];
      channel.tasks.insert(channel.tasks.end(), tasks.begin(), tasks.end());
    };
    for (auto& tasks : step.a) give(tasks);
    for (auto& tasks : step.b) give(tasks);
    for (auto& half : step.c) {
      for (auto& tasks : half) give(tasks);
    }
    base_ = last + 1;
  }

  // The program of a step: it ends with the step, so that each needs a load. All results of the
  // step before are there, so the transfer that brought its program has ended, and that itself: a
  // core without results has let the objects of the others pass before any of those could leave.
  void load(size_t step) {
    const PrefillArray::Program& program = plan_.program(step);
    if (beside_ != nullptr) {
      const std::vector<PrefillTask> tasks = packet_tasks(program);
      beside_->tasks.insert(beside_->tasks.begin(), tasks.begin(), tasks.end());
      return;
    }
    programs_.all_ended();
    push(programs_, contiguous(program.words), kPrefillHeaders, program.offset, 1, false);
  }

  void push_next(Channel& channel) {
    const PrefillTask& task = channel.tasks.front();
    channel.under_way.emplace_back(task.group + task.part, pushed_++);
    const Port& at = task.program ? *programs_port_ : channel.queue.port();
    push_bd(at, channel.queue.next(), shim_bd(task.bd, geometry_), task.argument,
            task.offset - origin(task.argument), task.repeats, true);
    channel.tasks.pop_front();
  }

  int64_t origin(uint32_t argument) const {
    const size_t region = argument - size_t{kPrefillRegions};  // wraps around for other arguments
    return region < origins_.size() ? origins_[region] : 0;
  }

  void wait_next(Channel& channel) {
    wait_oldest(channel.queue);
    channel.under_way.pop_front();
  }

  void drain(Channel& channel) {
    while (channel.queue.under_way() > 0) wait_next(channel);
  }

  // Round after round, so that no channel is far ahead of what its cores need from the others.
  bool push_round(bool early) {
    bool any = false;
    for (Channel& channel : channels_) {
      if (channel.tasks.empty() || channel.queue.room() == 0) continue;
      // What is queued before a program must not keep it from the cores.
      if (early && (&channel == beside_ || !channel.tasks.front().early)) continue;
      push_next(channel);
      any = true;
    }
    return any;
  }

  void push_early() {
    while (push_round(true)) {
    }
  }

  void push_all() {
    for (;;) {
      while (push_round(false)) {
      }
      Channel* next = nullptr;
      for (Channel& channel : channels_) {
        if (channel.tasks.empty()) continue;
        if (next == nullptr || channel.under_way.front() < next->under_way.front()) {
          next = &channel;
        }
      }
      if (next == nullptr) return;
      wait_next(*next);
    }
  }

  PrefillPlan& plan_;
  std::span<const int64_t> origins_;
  std::vector<Channel> channels_;
  const Port* programs_port_ = nullptr;
  ShimQueue programs_;         // those that have a channel of their own
  Channel* beside_ = nullptr;  // that of the others
  size_t results_ = 0;
  int base_ = 0;  // of the groups of the next step
  int64_t pushed_ = 0;
};

}  // namespace

void append_prefill(stream::Builder& builder, const Configuration& configuration,
                    const PrefillArray& array, PrefillPlan& plan, size_t first, size_t last,
                    std::span<const int64_t> origins) {
  plan.begin();
  PrefillCommands(builder, configuration, array, plan, origins).append(first, last);
}

}  // namespace npu::ops
