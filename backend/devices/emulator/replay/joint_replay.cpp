// Recorded runs beside each other (joint_replay.h).
#include "devices/emulator/replay/joint_replay.h"

#include <algorithm>
#include <array>
#include <ranges>
#include <utility>

#include "devices/emulator/replay/read_ahead.h"
#include "host/thread_pool.h"

namespace npu::emulator {

namespace {

constexpr int kPhases = 16;

// One of the runs in its lane of a phase.
struct Cursor {
  const Replay* run;
  const PackedLane* lane;
  size_t next;  // of its actions
  const CallAction& call() const { return lane->calls[lane->actions[next].index]; }
};

// Whether calls of one kernel are as many, wherever their operands lie.
bool as_many(const CallAction& a, const CallAction& b) {
  return a.shared == b.shared && a.count == b.count && a.times == b.times && a.moving == b.moving &&
         a.stride == b.stride && a.rows == b.rows && a.row_stride == b.row_stride;
}

// Makes the first of these calls, with all that read the same: those leave the list.
void call_together(std::vector<Cursor*>& waiting) {
  const Cursor& first = *waiting.front();
  const CallAction& model = first.call();
  const auto* const kernel = model.function->target<HostKernel>();
  if (kernel == nullptr || waiting.size() == 1) {
    first.run->call(*first.lane, model);
    waiting.erase(waiting.begin());
    return;
  }
  std::array<PlacedCall, JointReplay::kMost> placed;
  std::array<KernelArgument*, JointReplay::kMost> calls;
  std::array<CoreState*, JointReplay::kMost> cores;
  size_t count = 0;
  const size_t shared = model.shared - size_t{1};
  std::erase_if(waiting, [&](const Cursor* cursor) {
    const CallAction& call = cursor->call();
    const auto* const other = call.function->target<HostKernel>();
    if (other == nullptr || *other != *kernel || !as_many(model, call)) return false;
    PlacedCall& to = placed[count];
    to.put(*cursor->run, *cursor->lane, call);
    if (to.operands()[shared].data != placed[0].operands()[shared].data) return false;
    calls[count] = to.operands();
    cores[count++] = &to.modes();
    return true;
  });
  const auto all = std::span(placed).first(count);
  for (uint32_t row = 0; row < model.rows; ++row) {
    for (PlacedCall& call : all) call.go_to(row);
    kernel->repeat_joint(std::span(calls).first(count), std::span(cores).first(count), model.count,
                         model.times, model.moving, model.stride);
    for (PlacedCall& call : all) call.make_next();
  }
}

// One lane of all runs that have it.
void run_lane(std::span<Replay* const> runs, size_t number) {
  std::vector<Cursor> cursors;
  for (const Replay* run : runs) {
    if (number < run->lanes().size()) cursors.push_back({run, &run->lanes()[number], 0});
  }
  std::vector<Cursor*> waiting;
  for (;;) {
    for (Cursor& cursor : cursors) {
      cursor.next = cursor.run->run_to_shared(*cursor.lane, cursor.next);
    }
    std::erase_if(cursors, [](const Cursor& c) { return c.next == c.lane->actions.size(); });
    if (cursors.empty()) return;
    for (Cursor& cursor : cursors) {
      cursor.run->prefetch(*cursor.lane, cursor.next + 1);
      waiting.push_back(&cursor);
    }
    while (!waiting.empty()) call_together(waiting);
    for (Cursor& cursor : cursors) ++cursor.next;
  }
}

}  // namespace

std::vector<Replay*> JointReplay::next(bool shares) {
  std::vector<Replay*> all;
  for (Replay& run : runs_) {
    if (!run.ended() && run.shares() == shares) all.push_back(&run);
  }
  return all;
}

// With a run for every thread they go on until they have something to share, or for some phases, so
// that `pause` is asked; else for one phase, whose lanes have a thread each.
void JointReplay::run_apart(std::span<Replay* const> runs) {
  ThreadPool& pool = ThreadPool::shared();
  if (runs.size() >= static_cast<size_t>(pool.threads())) {
    return for_all(pool, runs.size(), [&](size_t i) {
      Replay& run = *runs[i];
      for (int phase = 0; phase < kPhases && !run.ended() && !run.shares(); ++phase) {
        for (const PackedLane& lane : run.lanes()) run.run(lane);
        run.step();
      }
    });
  }
  std::vector<std::pair<const Replay*, const PackedLane*>> lanes;
  for (const Replay* run : runs) {
    for (const PackedLane& lane : run->lanes()) lanes.emplace_back(run, &lane);
  }
  for_all(pool, lanes.size(), [&](size_t i) { lanes[i].first->run(*lanes[i].second); });
  for (Replay* run : runs) run->step();
}

void JointReplay::run_together(std::span<Replay* const> runs) {
  const auto lanes = [](const Replay* run) { return run->lanes().size(); };
  const size_t most = std::ranges::max(runs | std::views::transform(lanes));
  for_all(ThreadPool::shared(), most, [&](size_t i) { run_lane(runs, i); });
  for (Replay* run : runs) run->step();
}

bool JointReplay::resume_alone(const std::function<bool()>& pause) {
  Replay& run = runs_[0];
  ThreadPool& pool = ThreadPool::shared();  // also if another number of threads is chosen meanwhile
  ReadAhead ahead(run, static_cast<size_t>(pool.threads()));
  for (; !run.ended(); run.step()) {
    if (pause()) return false;
    const std::span<const PackedLane> phase = run.lanes();
    if (phase.size() == 1 && !ahead.left()) {
      run.run(phase[0]);
      continue;
    }
    for_all(
        pool, phase.size(), [&](size_t i) { run.run(phase[i]); },
        [&](size_t thread) { return ahead.step(thread); });
  }
  return true;
}

bool JointReplay::resume(const std::function<bool()>& pause) {
  begun_ = true;
  if (runs_.size() == 1) return resume_alone(pause);
  for (;;) {
    if (pause()) return false;
    if (const std::vector<Replay*> runs = next(false); !runs.empty()) {
      run_apart(runs);
      continue;
    }
    const std::vector<Replay*> runs = next(true);
    if (runs.empty()) return true;
    run_together(runs);
  }
}

}  // namespace npu::emulator
