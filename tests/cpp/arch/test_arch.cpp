// Geometry and register addresses against the tables of AMD's register database (hardware numbers
// are written out here, not taken from the code under test).
#include <doctest/doctest.h>

#include "arch/geometry.h"
#include "error.h"

using namespace npu;
using namespace npu::arch;

TEST_CASE("addresses: column in bits 31:25, row in 24:20, offset below") {
  CHECK(tile_address(3, 4, 0xABC00DEF) == 0x06400DEFu);
  CHECK(tile_address(1, 1, 100) == 0x02100064u);
  CHECK(tile_address(2, 2, 0x04040404) == 0x04240404u);
  CHECK(address_col(0x06400DEF) == 3);
  CHECK(address_row(0x06400DEF) == 4);
  CHECK(address_offset(0x06400DEF) == 0xDEFu);
  CHECK(address_col(0xFFFFFFFF) == 127);
  CHECK(address_row(0xFFFFFFFF) == 31);
}

TEST_CASE("rows: shim, memtile, four compute rows") {
  CHECK(tile_kind(0) == TileKind::kShim);
  CHECK(tile_kind(1) == TileKind::kMem);
  for (int row = 2; row < 6; ++row) CHECK(tile_kind(row) == TileKind::kCore);
}

TEST_CASE("resources of a tile") {
  const TileGeometry& shim = tile_geometry(TileKind::kShim);
  const TileGeometry& mem = tile_geometry(TileKind::kMem);
  const TileGeometry& core = tile_geometry(TileKind::kCore);
  CHECK(core.memory_bytes == 65536u);
  CHECK(mem.memory_bytes == 524288u);
  CHECK(shim.locks == 16);
  CHECK(mem.locks == 64);
  CHECK(core.locks == 16);
  CHECK(shim.bds == 16);
  CHECK(mem.bds == 48);
  CHECK(core.bds == 16);
  CHECK(shim.channels == 2);
  CHECK(mem.channels == 6);
  CHECK(core.channels == 2);
  CHECK(core.bd_words == 6);
  CHECK(shim.address_dims == 3);
  CHECK(mem.address_dims == 4);
  CHECK(core.max_length == 16383u);
  CHECK(mem.max_length == 131071u);
  CHECK(core.max_step == 8192u);
  CHECK(mem.max_step == 131072u);
  CHECK(shim.max_step == 1048576u);
  CHECK(core.max_wrap == 255u);
  CHECK(shim.max_wrap == 1023u);
  for (const TileGeometry* tile : {&shim, &mem, &core}) CHECK(tile->max_iteration == 64u);
}

TEST_CASE("channel registers") {
  const auto s2mm = Direction::kS2MM, mm2s = Direction::kMM2S;
  CHECK(channel_control(TileKind::kCore, s2mm, 1) == 0x1DE08u);
  CHECK(channel_queue(TileKind::kCore, mm2s, 0) == 0x1DE14u);
  CHECK(channel_control(TileKind::kMem, s2mm, 5) == 0xA0628u);
  CHECK(channel_queue(TileKind::kMem, mm2s, 5) == 0xA065Cu);
  CHECK(channel_queue(TileKind::kShim, s2mm, 1) == 0x1D20Cu);
  CHECK(channel_queue(TileKind::kShim, mm2s, 0) == 0x1D214u);
  CHECK(tile_geometry(TileKind::kCore).lock_base == 0x1F000u);
  CHECK(tile_geometry(TileKind::kMem).lock_base == 0xC0000u);
  CHECK(tile_geometry(TileKind::kShim).lock_base == 0x14000u);
  CHECK(tile_geometry(TileKind::kMem).switch_base == 0xB0000u);
}

TEST_CASE("memtile channels reach half of the BDs, by parity") {
  for (int channel = 0; channel < 6; ++channel) {
    for (int bd = 0; bd < 48; ++bd) {
      CHECK(bd_reachable(TileKind::kMem, channel, bd) == ((channel % 2 == 0) == (bd < 24)));
    }
  }
  CHECK_FALSE(bd_reachable(TileKind::kMem, 0, 48));
  CHECK_FALSE(bd_reachable(TileKind::kMem, 0, -1));
  CHECK(bd_reachable(TileKind::kShim, 1, 15));
  CHECK_FALSE(bd_reachable(TileKind::kCore, 1, 16));
}

TEST_CASE("generations by name and by header byte") {
  CHECK(device_geometry("npu1").columns == 4);
  CHECK(device_geometry("npu2").columns == 8);
  CHECK(static_cast<int>(device_geometry("npu1").generation) == 3);
  CHECK(static_cast<int>(device_geometry("npu2").generation) == 4);
  CHECK(device_geometry(Generation::kNpu2).shim_burst == 3u);
  CHECK(device_geometry(Generation::kNpu1).shim_burst == 2u);
  for (const char* name : {"", "npu", "npu3", "NPU1"})
    CHECK_THROWS_AS(device_geometry(name), Error);
}
