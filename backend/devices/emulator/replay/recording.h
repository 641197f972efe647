// Runs that are verified once and replayed after (docs/architecture.md, "Verified once, replayed
// after"). A run of a stream executes at register level, with every check, and is recorded: its
// actions on memory, and the state in which it leaves the array. Recorded runs begin in the state
// in which loading left the array, which a device may bring it back to between any two runs; a
// later run repeats the actions and leaves the same state.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "devices/emulator/replay/action_log.h"
#include "devices/emulator/replay/argument_shape.h"
#include "devices/emulator/replay/control_state.h"
#include "devices/emulator/replay/last_copies.h"
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
  bool leaves_nothing = false;  // for a next run (ControlState::leaves_nothing)
  SteeringRuns steering;
  SteeringBytes steering_bytes;
  PackedPhases phases;
  LastCopies last;
  std::vector<OperandLists::Kept> operands;  // of their calls
  std::vector<std::unique_ptr<BlockPool>> blocks;
  // The same by their addresses, and where each lies if they follow each other.
  struct BlockPlace {
    const std::byte* begin;
    size_t bytes, offset;
  };
  std::vector<BlockPlace> block_places;
  RunReport report;

  void keep_blocks(std::vector<std::unique_ptr<BlockPool>> pools);
  // copies_left() for this run and that one, found once.
  const CopyNumbers& copies_left_before(const Recording& next) const;

  size_t bytes() const;

 private:
  static constexpr size_t kMostNext = 8;
  struct Next {
    uint64_t number;
    CopyNumbers left;
  };
  static uint64_t next_number();
  const uint64_t number_ = next_number();  // of all recordings
  mutable std::vector<Next> next_;
};

}  // namespace npu::emulator
