// One buffer descriptor as named fields, and its encoding in the register words of each tile kind
// (aie-rt xaiemlgbl_params.h). Fields hold natural values: steps, wraps, lengths and addresses in
// 32-bit words (the shim base in bytes), never the "minus one" of the registers.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "arch/geometry.h"

namespace npu::arch {

struct Bd {
  uint64_t base = 0;    // words; shim: bytes (48 bit)
  uint32_t length = 0;  // words on the stream per execution, padding included
  // Dimension 0 is the innermost. wrap 0 = never wraps. The outermost dimension has no wrap field.
  std::array<uint32_t, 4> step{1, 1, 1, 1};
  std::array<uint32_t, 3> wrap{0, 0, 0};
  // Zero padding (memtile MM2S): words around d0, whole d0 rows around d1, d1 planes around d2.
  std::array<uint32_t, 3> pad_before{0, 0, 0}, pad_after{0, 0, 0};
  uint32_t iteration_step = 1;
  uint32_t iteration_wrap = 1;  // executions until the counter returns to 0
  uint32_t iteration_current = 0;
  bool packet_enable = false;
  uint32_t packet_id = 0, packet_type = 0;
  uint32_t out_of_order_id = 0;
  bool compression = false;
  bool tlast_suppress = false;
  bool use_next = false;
  uint32_t next_bd = 0;
  bool valid = true;
  bool acquire_enable = false;
  int acquire_value = 0;  // < 0: wait for >= -value and subtract; >= 0: wait for equality
  uint32_t acquire_id = 0;
  int release_value = 0;  // 0 = no release
  uint32_t release_id = 0;
  // Shim only.
  uint32_t burst = 0, axcache = 0, axqos = 0, smid = 0;
  bool secure = false;

  bool operator==(const Bd&) const = default;
};

// Register words -> fields. `words` holds tile_geometry(kind).bd_words words.
Bd decode_bd(TileKind kind, std::span<const uint32_t> words);
// Fields -> register words; throws Error(kArgument) when a field does not fit its register, or is
// not at its default although this kind of tile does not have it.
std::vector<uint32_t> encode_bd(TileKind kind, const Bd& bd);

}  // namespace npu::arch
