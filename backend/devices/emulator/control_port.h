// The TileControl port of a tile: it takes control packets (arch/control_packet.h) from the stream
// switch and writes the tile's registers. A transfer is parsed once for all tiles that it reaches.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "arch/geometry.h"

namespace npu::emulator {

class Sender;

// Words for consecutive registers of a tile.
struct ControlWrite {
  uint32_t offset;
  std::vector<uint32_t> words;
};

// The writes of a transfer, those of neighbouring packets joined. Any number of packets on npu2,
// one on npu1 (docs/reference/hardware.md 3.5). Throws Error(kFormat) for what is no packet and
// Error(kUnsupported) for what is not modelled; `sender` is named in it.
std::vector<ControlWrite> parse_control_packets(std::span<const uint32_t> words,
                                                arch::Generation generation, const Sender& sender);

}  // namespace npu::emulator
