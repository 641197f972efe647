// The numbers behind switch_ports.h.
#include "arch/switch_ports.h"

namespace npu::arch {

namespace {

using enum PortSide;

constexpr PortRange kCoreMaster[] = {{kCore, 0, 1},   {kDma, 1, 2},   {kControl, 3, 1},
                                     {kOther, 4, 1},  {kSouth, 5, 4}, {kWest, 9, 4},
                                     {kNorth, 13, 6}, {kEast, 19, 4}};
constexpr PortRange kCoreSlave[] = {{kCore, 0, 1},   {kDma, 1, 2},   {kControl, 3, 1},
                                    {kOther, 4, 1},  {kSouth, 5, 6}, {kWest, 11, 4},
                                    {kNorth, 15, 4}, {kEast, 19, 4}, {kOther, 23, 2}};
constexpr PortRange kMemMaster[] = {
    {kDma, 0, 6}, {kControl, 6, 1}, {kSouth, 7, 4}, {kNorth, 11, 6}};
constexpr PortRange kMemSlave[] = {
    {kDma, 0, 6}, {kControl, 6, 1}, {kSouth, 7, 6}, {kNorth, 13, 4}, {kOther, 17, 1}};
constexpr PortRange kShimMaster[] = {{kControl, 0, 1}, {kOther, 1, 1},  {kSouth, 2, 6},
                                     {kWest, 8, 4},    {kNorth, 12, 6}, {kEast, 18, 4}};
constexpr PortRange kShimSlave[] = {{kControl, 0, 1}, {kOther, 1, 1},  {kSouth, 2, 8},
                                    {kWest, 10, 4},   {kNorth, 14, 4}, {kEast, 18, 4},
                                    {kOther, 22, 1}};

constexpr uint32_t kMux = 0x1F000, kDemux = 0x1F004;
constexpr ShimDmaPort kShimMm2s[] = {{3, kMux, 10}, {7, kMux, 14}};
constexpr ShimDmaPort kShimS2mm[] = {{2, kDemux, 4}, {3, kDemux, 6}};

}  // namespace

std::span<const PortRange> port_ranges(TileKind kind, bool master) {
  switch (kind) {
    case TileKind::kShim:
      return master ? std::span<const PortRange>(kShimMaster) : kShimSlave;
    case TileKind::kMem:
      return master ? std::span<const PortRange>(kMemMaster) : kMemSlave;
    case TileKind::kCore:
      break;
  }
  return master ? std::span<const PortRange>(kCoreMaster) : kCoreSlave;
}

int first_port(TileKind kind, bool master, PortSide side) {
  for (const PortRange& range : port_ranges(kind, master)) {
    if (range.side == side) return range.first;
  }
  return -1;
}

const ShimDmaPort& shim_dma_port(Direction direction, int channel) {
  return (direction == Direction::kMM2S ? kShimMm2s : kShimS2mm)[channel];
}

}  // namespace npu::arch
