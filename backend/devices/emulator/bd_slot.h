// One buffer descriptor (BD) of a tile: its register words and what follows from them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "arch/bd.h"
#include "arch/geometry.h"
#include "devices/emulator/walk.h"

namespace npu::emulator {

struct BdSlot {
  std::array<uint32_t, 8> words{};
  // The rest is that of `words` after decode().
  arch::Bd bd;
  Walk pattern;                    // at base 0 and iteration 0
  uint64_t last = 0;               // largest word offset of that walk
  bool fills = false;              // Walk::fills of the BD's length
  bool padded = false;             // has_padding
  bool reaches_neighbour = false;  // names a lock or memory of a memtile beside

  void write(size_t word, uint32_t value) {
    words[word] = value;
    stale_ = true;
  }
  BdSlot& decode(const arch::TileGeometry& geometry) {
    if (stale_) decode_words(geometry);
    return *this;
  }
  // The iteration counter, in the words and in the decoded BD.
  void set_iteration(const arch::TileGeometry& geometry, uint32_t current);

 private:
  void decode_words(const arch::TileGeometry& geometry);
  bool stale_ = true;
};

}  // namespace npu::emulator
