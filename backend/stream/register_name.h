// Names of register addresses as people read them: "shim(0,0).bd[1]+0x4", "core(1,2).lock[3]",
// "mem(0,1).mm2s[0].queue". Used by the disassembler and by error messages.
#pragma once

#include <cstdint>
#include <string>

#include "arch/geometry.h"

namespace npu::stream {

// The part of a tile an offset falls into.
struct RegisterPlace {
  enum class Area : uint8_t { kOther, kMemory, kProgram, kBd, kLock, kControl, kQueue, kSwitch };
  Area area = Area::kOther;
  arch::Direction direction = arch::Direction::kS2MM;  // kControl, kQueue
  int index = 0;                                       // BD, lock or channel
  uint32_t within = 0;  // bytes past the start of that register (or of the area)
};

RegisterPlace locate_register(arch::TileKind kind, uint32_t offset);

// "shim(0,0)"; kinds are shim, mem, core.
std::string tile_name(int col, int row);
// The whole address; one that no tile has prints as a bare number.
std::string register_name(uint64_t address);

}  // namespace npu::stream
