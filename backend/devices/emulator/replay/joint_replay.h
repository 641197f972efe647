// Replays of one array that go on beside each other instead of one after another; results are the
// same. What lies between their products each does by itself; calls that read the same weights are
// made for all of them while the weights are in the CPU's cache. Each run but the first has memory
// of its own (OwnMemory); in arguments none may read or write what another one writes.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "devices/emulator/replay/replay.h"

namespace npu::emulator {

class JointReplay {
 public:
  static constexpr size_t kMost = kernels::kMostJointCalls;

  explicit JointReplay(Replay first) { runs_.push_back(std::move(first)); }
  // Before the runs have begun, of which there are fewer than kMost.
  void add(Replay run) { runs_.push_back(std::move(run)); }
  std::span<const Replay> runs() const { return runs_; }
  // When it has ended.
  Replay take_first() { return std::move(runs_.front()); }
  bool begun() const { return begun_; }
  // Goes on until all have ended or `pause` returns true, which is asked now and then.
  bool resume(const std::function<bool()>& pause);

 private:
  bool resume_alone(const std::function<bool()>& pause);
  // The runs whose next phase has such calls, or those whose next phase has none.
  std::vector<Replay*> next(bool shares);
  void run_apart(std::span<Replay* const> runs);
  void run_together(std::span<Replay* const> runs);

  std::vector<Replay> runs_;
  bool begun_ = false;
};

}  // namespace npu::emulator
