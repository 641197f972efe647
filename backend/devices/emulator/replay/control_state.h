// Everything of an array that decides what a run does next, between two runs: locks, BDs, where
// channels and cores are, of cores with overlays the one that is loaded and its slot counters.
// Routes, pad values and other programs are not part of it: a run that changes those is not
// recorded. Nor is the rest of the data memories, where only words that steer cores matter
// (steering.h).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "devices/emulator/bd_engine.h"
#include "devices/emulator/bd_slot.h"
#include "devices/emulator/program_core.h"

namespace npu::emulator {

class Array;

class ControlState {
 public:
  // Of an array between two runs. Empty if a core has no worker program.
  static std::optional<ControlState> of(Array& array);

  // Whether locks have the values of this state, channels as many tasks, and overlays have ended:
  // no run has left anything behind that the next one may wait for or has to end.
  bool leaves_nothing(const Array& array) const;
  // Brings an array into this state. moved: what is added to the addresses that address patches
  // have written, by BdSlot::patch.
  void install(Array& array, std::span<const int64_t> moved = {}) const;
  // Moves addresses of an array that install(), or this, has left with `before`, on to `moved`.
  static void move_addresses(Array& array, std::span<const int64_t> before,
                             std::span<const int64_t> moved);
  size_t bytes() const;

 private:
  struct TileState {
    std::vector<int> locks;
    std::vector<uint32_t> written;  // Lock::written
    std::vector<BdSlot> bds;
    std::vector<BdEngine::Rest> channels;
    std::optional<ProgramCore::Rest> core;
    // Of a core that runs overlays.
    uint32_t core_control = 0;
    std::shared_ptr<const std::vector<uint32_t>> program;  // what program memory holds
  };
  std::vector<TileState> tiles_;
  size_t program_bytes_ = 0;
};

}  // namespace npu::emulator
