// State of one emulated tile: memory, locks, BDs, DMA channels, stream switch. The register map
// (registers.cpp) is the only way it is configured.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "arch/geometry.h"
#include "devices/emulator/agent.h"
#include "devices/emulator/aliasing.h"
#include "devices/emulator/bd_engine.h"
#include "devices/emulator/bd_slot.h"
#include "devices/emulator/stream_switch.h"
#include "devices/emulator/tile_memories.h"

namespace npu::emulator {

class Core;
struct Ports;
class Receiver;
class Sender;

// A counting semaphore with the hardware's rules (hardware.md 1.6).
struct Lock {
  int value = 0;
  uint32_t written = 0;  // times that its register was written
  WaitList waiters;
};

struct Tile {
  Tile(Array& array, int col, int row, std::shared_ptr<TileMemories> of);
  ~Tile();
  Tile(const Tile&) = delete;
  Tile& operator=(const Tile&) = delete;
  // Power-on state; contents: of its memory, which else stays.
  void reset(std::optional<std::byte> contents);
  std::string name() const;                                                       // "core (0,2)"
  size_t number() const { return static_cast<size_t>(col * arch::kRows + row); }  // of the array's
  BdEngine& channel(arch::Direction direction, int index) {
    return *channels[static_cast<size_t>(direction)][static_cast<size_t>(index)];
  }

  const int col, row;
  const arch::TileGeometry& geometry;
  const std::shared_ptr<TileMemories> memories;  // shared with views given to callbacks
  const std::span<std::byte> memory;             // of this tile
  AliasTable aliases;                            // of `memory`
  bool keeps_blocks = true;  // a memtile: no block had to be written back so far
  std::vector<Lock> locks;
  std::vector<BdSlot> bds;
  std::vector<std::unique_ptr<Receiver>> receivers;
  std::vector<std::unique_ptr<Sender>> senders;
  std::array<std::vector<BdEngine*>, 2> channels;  // both of these, [direction][index]
  StreamSwitch stream_switch;
  uint32_t shim_mux = 0, shim_demux = 0;
  std::array<uint32_t, 6> pad_value{};           // memtile MM2S constants (npu2)
  std::map<uint32_t, uint32_t> other_registers;  // read-back storage of undecoded writes
  std::vector<uint32_t> program_memory;          // of a core
  std::unique_ptr<Ports> ports;                  // that are not a DMA channel's
  std::unique_ptr<Core> core;
  uint64_t attached_in_run = 0;  // Array::runs_ when it was attached
  bool program_lost = false;     // a later stream has overwritten its program
  bool stirred = false;          // see advance_policy.cpp
};

}  // namespace npu::emulator
