// The stream switches: the registers of one tile's switch, and the route of a stream through them.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "arch/geometry.h"
#include "devices/emulator/agent.h"

namespace npu::emulator {

struct Tile;
class Receiver;

// One side of an 8-arbiter, 4-msel stream switch. Indices are the register map's port numbers.
struct StreamSwitch {
  static constexpr int kMaxPorts = 25;
  static constexpr int kSlots = 4;
  static constexpr int kArbiters = 8;
  std::array<uint32_t, kMaxPorts> master{};
  std::array<uint32_t, kMaxPorts> slave{};
  std::array<std::array<uint32_t, kSlots>, kMaxPorts> slot{};
  // A packet holds its arbiters from header to TLAST.
  std::array<const Agent*, kArbiters> holder{};
  std::array<WaitList, kArbiters> waiters;
};

// Number of master or slave ports of a tile's switch.
int switch_ports(arch::TileKind kind, bool master);

// Where a stream goes: the S2MM channels, cores or tiles' control ports that it reaches, and the
// arbiters a packet holds on the way.
struct Route {
  struct Sink {
    Receiver* receiver;
    bool keeps_header;
  };
  std::vector<Sink> sinks;
  std::vector<Tile*> controls;  // then there are no sinks
  std::vector<std::pair<Tile*, int>> arbiters;
  bool crosses = false;          // to other columns, through arbiters or to control ports
  bool reaches_memtile = false;  // ends in one
  uint64_t epoch = 0;            // Array::switch_epoch() when it was found
};

}  // namespace npu::emulator
