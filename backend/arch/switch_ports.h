// Ports of the stream switches, the same on both generations: numbers as in the register map (order
// of aie-rt's port maps; docs/reference/hardware.md).
#pragma once

#include <cstdint>
#include <span>

#include "arch/geometry.h"

namespace npu::arch {

enum class PortSide : uint8_t { kDma, kSouth, kWest, kNorth, kEast, kControl, kCore, kOther };

// Neighbouring ports of one side.
struct PortRange {
  PortSide side;
  int first, count;
};

// All of a tile's master or slave ports, ascending.
std::span<const PortRange> port_ranges(TileKind kind, bool master);
// The number of a side's first port; -1 if it has none.
int first_port(TileKind kind, bool master, PortSide side);

// The shim DMA hangs on South ports of its switch through a mux (MM2S) and a demux (S2MM): two bits
// of their register, 1 = DMA.
struct ShimDmaPort {
  int lane;  // of the South slaves (MM2S) or masters (S2MM)
  uint32_t offset;
  int shift;
};
const ShimDmaPort& shim_dma_port(Direction direction, int channel);

}  // namespace npu::arch
