// Everything of an array that decides what a run does next, between two runs: locks, BDs, where
// channels and cores are. Routes, core control, pad values and programs are not part of it: a run
// that changes those is not recorded. Nor are data memories, of which only
// words that steer cores matter (steering.h).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "devices/emulator/bd_engine.h"
#include "devices/emulator/bd_slot.h"
#include "devices/emulator/program_core.h"

namespace npu::emulator {

class Array;

class ControlState {
 public:
  // Of an array between two runs. Empty if a core has no worker program, or one that streams load.
  static std::optional<ControlState> of(Array& array);

  // Whether the array is in this state, except for the BD words that a recorded run writes before
  // it uses them (BdSlot::fresh).
  bool holds(const Array& array) const;
  // The BD words of shims that need not be as they are here, after the run that began with this.
  void forgive(const Array& array);
  // Brings an array into this state.
  void install(Array& array, const ControlState& from) const;
  size_t bytes() const;

 private:
  struct TileState {
    std::vector<int> locks;
    std::vector<uint32_t> written;  // Lock::written
    std::vector<BdSlot> bds;
    std::vector<uint8_t> fresh;  // of each BD: words that need not be the same, a bit each
    std::vector<BdEngine::Rest> channels;
    std::optional<ProgramCore::Rest> core;
  };
  std::vector<TileState> tiles_;
};

}  // namespace npu::emulator
