// Runs that are verified once and replayed after (docs/architecture.md, "Verified once, replayed
// after"). A run of a stream executes at register level, with every check, and is recorded: its
// actions on memory, and the state in which it leaves the array. Recorded runs begin in the state
// in which loading left the array, which a device may bring it back to between any two runs; a
// later run repeats the actions and leaves the same state.
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
#include "devices/emulator/replay/packed_phases.h"
#include "devices/emulator/replay/steering.h"
#include "devices/emulator/replay/stream_version.h"
#include "runtime/run_report.h"

namespace npu::emulator {

struct Recording {
  uint64_t epoch = 0;  // Array::epoch(): configurations and programs of cores
  std::vector<ArgumentShape> arguments;
  StreamVersion::Data data;
  std::vector<PatchUse> patches;  // of the stream's ADDRESS_PATCHes, in its order
  ControlState end;
  std::vector<SteeringWord> steering;
  SteeringBytes steering_bytes;
  PackedPhases phases;
  std::vector<OperandLists::Kept> operands;  // of their calls
  std::vector<std::unique_ptr<BlockPool>> blocks;
  RunReport report;

  size_t bytes() const;
};

// Repeats a recorded run on other arguments.
class Replay {
 public:
  // moved: what is added to the places of each address patch, from the first on.
  Replay(std::shared_ptr<const Recording> recording, std::span<const Argument> arguments,
         std::span<const int64_t> moved);
  // Goes on until the run has ended or `pause` returns true, which is asked between phases.
  bool resume(const std::function<bool()>& pause);
  const Recording& recording() const { return *recording_; }
  std::span<const int64_t> moved() const { return moved_; }

 private:
  void run(const PackedLane& lane) const;
  void call(const CallAction& call, std::span<const Move> moves) const;
  std::byte* at(const Place& place) const {
    return bases_[place.base] + place.offset + moved_[place.patch];
  }

  std::shared_ptr<const Recording> recording_;
  std::vector<std::byte*> bases_;  // null, and the arguments
  std::vector<int64_t> moved_;     // by Place::patch
  size_t next_ = 0;
};

}  // namespace npu::emulator
