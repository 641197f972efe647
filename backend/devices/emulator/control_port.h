// The TileControl port of a tile: it takes control packets (arch/control_packet.h) from the stream
// switch, writes the tile's registers and answers reads of them with packets that the port sends
// (ports.h). A transfer is parsed once for all tiles that it reaches.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "arch/geometry.h"

namespace npu::emulator {

class Sender;

// A write of words to consecutive registers of a tile, or a read of such registers.
struct ControlAccess {
  uint32_t offset;
  std::vector<uint32_t> words;
  uint32_t reads = 0;     // words to read; then there are none to write
  uint32_t response = 0;  // id of the packet that takes them
};

// The accesses of a transfer in their order, writes of neighbouring packets joined. Any number of
// packets on npu2, one on npu1 (docs/reference/hardware.md 3.5). Throws Error(kFormat) for what is
// no packet and Error(kUnsupported) for what is not modelled; `sender` is named in it.
std::vector<ControlAccess> parse_control_packets(std::span<const uint32_t> words,
                                                 arch::Generation generation, const Sender& sender);

}  // namespace npu::emulator
