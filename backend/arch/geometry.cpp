// The numbers behind geometry.h.
// Sources: aie-rt release/main_aig xaiemlgbl_params.h / xaie2pgbl_params.h (register offsets and
// widths, identical on both generations), mlir-aie AIETargetModel (counts), amdxdna driver DPM
// tables (clocks).
#include "arch/geometry.h"

#include "error.h"

namespace npu::arch {

namespace {

constexpr TileGeometry kShim{
    TileKind::kShim, "shim", 0,  16,      16,      2,       8,       3,      0xFFFFFFFF,
    1u << 20,        1023,   64, 0x14000, 0x1D000, 0x1D200, 0x1D210, 0x3F000};
constexpr TileGeometry kMem{
    TileKind::kMem, "memtile", 512 * 1024, 64,      48,      6,       8,       4,      131071,
    1u << 17,       1023,      64,         0xC0000, 0xA0000, 0xA0600, 0xA0630, 0xB0000};
constexpr TileGeometry kCore{
    TileKind::kCore, "core", 64 * 1024, 16,      16,      2,       6,       3,      16383,
    1u << 13,        255,    64,        0x1F000, 0x1D000, 0x1DE00, 0x1DE10, 0x3F000};

constexpr Geometry kNpu1{"npu1", Generation::kNpu1, 4, 2, 1.0e9};
constexpr Geometry kNpu2{"npu2", Generation::kNpu2, 8, 3, 1.8e9};

}  // namespace

const TileGeometry& tile_geometry(TileKind kind) {
  switch (kind) {
    case TileKind::kShim:
      return kShim;
    case TileKind::kMem:
      return kMem;
    case TileKind::kCore:
      break;
  }
  return kCore;
}

TileKind tile_kind(int row) {
  return row == 0 ? TileKind::kShim : row == 1 ? TileKind::kMem : TileKind::kCore;
}

const Geometry& device_geometry(Generation generation) {
  return generation == Generation::kNpu1 ? kNpu1 : kNpu2;
}

const Geometry& device_geometry(std::string_view name) {
  if (name == kNpu1.name) return kNpu1;
  if (name == kNpu2.name) return kNpu2;
  fail(ErrorKind::kDevice, "[geometry] unknown generation \"%.*s\"; use \"npu1\" or \"npu2\"",
       static_cast<int>(name.size()), name.data());
}

uint32_t channel_control(TileKind kind, Direction direction, int channel) {
  const TileGeometry& tile = tile_geometry(kind);
  const uint32_t base = direction == Direction::kS2MM ? tile.s2mm_base : tile.mm2s_base;
  return base + 8u * static_cast<uint32_t>(channel);
}

bool bd_reachable(TileKind kind, int channel, int bd) {
  if (bd < 0 || bd >= tile_geometry(kind).bds) return false;
  return kind != TileKind::kMem || (channel % 2 == 0) == (bd < 24);
}

}  // namespace npu::arch
