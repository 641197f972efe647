// Register map of one tile, walked from an offset to a name (offsets: arch/geometry.cpp).
#include "stream/register_name.h"

#include "error.h"

namespace npu::stream {

namespace {

using Area = RegisterPlace::Area;

constexpr uint32_t kBdStride = 0x20, kLockStride = 0x10;
constexpr uint32_t kSwitchBytes = 0x1000;
constexpr uint32_t kProgramBase = 0x20000, kProgramBytes = 0x4000;  // cores

bool inside(uint32_t offset, uint32_t base, uint32_t bytes) {
  return offset >= base && offset - base < bytes;
}

}  // namespace

RegisterPlace locate_register(arch::TileKind kind, uint32_t offset) {
  const arch::TileGeometry& tile = arch::tile_geometry(kind);
  RegisterPlace place;
  if (inside(offset, tile.bd_base, kBdStride * static_cast<uint32_t>(tile.bds))) {
    place.area = Area::kBd;
    place.index = static_cast<int>((offset - tile.bd_base) / kBdStride);
    place.within = (offset - tile.bd_base) % kBdStride;
    return place;
  }
  if (inside(offset, tile.lock_base, kLockStride * static_cast<uint32_t>(tile.locks))) {
    place.area = Area::kLock;
    place.index = static_cast<int>((offset - tile.lock_base) / kLockStride);
    place.within = (offset - tile.lock_base) % kLockStride;
    return place;
  }
  for (const arch::Direction direction : {arch::Direction::kS2MM, arch::Direction::kMM2S}) {
    const uint32_t base = arch::channel_control(kind, direction, 0);
    if (!inside(offset, base, 8u * static_cast<uint32_t>(tile.channels))) continue;
    place.area = (offset - base) % 8 < 4 ? Area::kControl : Area::kQueue;
    place.direction = direction;
    place.index = static_cast<int>((offset - base) / 8);
    place.within = (offset - base) % 4;
    return place;
  }
  if (inside(offset, tile.switch_base, kSwitchBytes)) {
    place.area = Area::kSwitch;
    place.within = offset - tile.switch_base;
  } else if (offset < tile.memory_bytes) {
    place.area = Area::kMemory;
    place.within = offset;
  } else if (kind == arch::TileKind::kCore && inside(offset, kProgramBase, kProgramBytes)) {
    place.area = Area::kProgram;
    place.within = offset - kProgramBase;
  }
  return place;
}

std::string tile_name(int col, int row) {
  const char* kind = "core";
  if (row == 0) kind = "shim";
  if (row > 0 && row < arch::kFirstCoreRow) kind = "mem";
  return strf("%s(%d,%d)", kind, col, row);
}

std::string register_name(uint64_t address) {
  if (address >> 32 != 0) return strf("0x%llx", static_cast<unsigned long long>(address));
  const uint32_t narrow = static_cast<uint32_t>(address);
  const int row = arch::address_row(narrow);
  if (row >= arch::kRows) return strf("0x%08x", narrow);
  const uint32_t offset = arch::address_offset(narrow);
  const RegisterPlace place = locate_register(arch::tile_kind(row), offset);
  const std::string tile = tile_name(arch::address_col(narrow), row);
  const char* direction = place.direction == arch::Direction::kS2MM ? "s2mm" : "mm2s";
  std::string name;
  switch (place.area) {
    case Area::kOther:
      return strf("%s.0x%05x", tile.c_str(), offset);
    case Area::kMemory:
      return strf("%s.memory[0x%x]", tile.c_str(), place.within);
    case Area::kProgram:
      return strf("%s.program[0x%x]", tile.c_str(), place.within);
    case Area::kSwitch:
      return strf("%s.switch[0x%x]", tile.c_str(), place.within);
    case Area::kBd:
      name = strf("%s.bd[%d]", tile.c_str(), place.index);
      break;
    case Area::kLock:
      name = strf("%s.lock[%d]", tile.c_str(), place.index);
      break;
    case Area::kControl:
      name = strf("%s.%s[%d].control", tile.c_str(), direction, place.index);
      break;
    case Area::kQueue:
      name = strf("%s.%s[%d].queue", tile.c_str(), direction, place.index);
      break;
  }
  return place.within == 0 ? name : name + strf("+0x%x", place.within);
}

}  // namespace npu::stream
