// Runs that are verified once and replayed after (docs/architecture.md, "Verified once, replayed
// after"). The first run of a stream that finds the array in some state executes at register level,
// with every check, and is recorded: its actions on memory, and the state that it leaves. A run of
// the same stream that finds the array in the same state repeats the actions and leaves that state.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "devices/emulator/replay/action_log.h"
#include "devices/emulator/replay/argument_shape.h"
#include "devices/emulator/replay/control_state.h"
#include "devices/emulator/replay/steering.h"
#include "runtime/run_report.h"

namespace npu::emulator {

struct Recording {
  uint64_t epoch = 0;  // Array::epoch(): configurations and programs of cores
  std::vector<ArgumentShape> arguments;
  ControlState start, end;
  std::vector<SteeringWord> steering;
  std::vector<Phase> phases;
  std::vector<std::unique_ptr<BlockPool>> blocks;
  RunReport report;

  size_t bytes() const;
};

// Repeats a recorded run on other arguments.
class Replay {
 public:
  Replay(std::shared_ptr<const Recording> recording, std::span<const Argument> arguments);
  // Goes on until the run has ended or `pause` returns true, which is asked between phases.
  bool resume(const std::function<bool()>& pause);
  const Recording& recording() const { return *recording_; }

 private:
  void run(const Lane& lane) const;
  void call(const Lane& lane, const CallAction& call) const;
  std::byte* at(const Place& place) const { return bases_[place.base] + place.offset; }

  std::shared_ptr<const Recording> recording_;
  std::vector<std::byte*> bases_;  // null, and the arguments
  size_t next_ = 0;
};

}  // namespace npu::emulator
