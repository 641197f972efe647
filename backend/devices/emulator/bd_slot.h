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
  // Of a memtile: byte addresses below its memory's size are its own, not the west neighbour's.
  bool addresses_own = false;
  // The same as far as who wrote its address decides it (Array::starts_at_own).
  bool own_from_zero = false;
  // Of a shim: the address patch that has written its address, of those of the stream from 1 on;
  // 0: something else has.
  uint32_t patch = 0;

  bool same(const BdSlot& other) const {
    return words == other.words && own_from_zero == other.own_from_zero && patch == other.patch;
  }
  // Whether a write of this word changes anything.
  bool differs(size_t word, uint32_t value, bool from_zero) const {
    return words[word] != value || (word == 1 && own_from_zero != from_zero);
  }
  void write(size_t word, uint32_t value, bool from_zero) {
    words[word] = value;
    if (word == 1) own_from_zero = from_zero;
    stale_ = true;
  }
  BdSlot& decode(const arch::TileGeometry& geometry) {
    if (stale_) decode_words(geometry);
    return *this;
  }
  // Moves the address of a shim's BD by so many bytes.
  void move_address(int64_t bytes);
  // The iteration counter, in the words and in the decoded BD.
  void set_iteration(const arch::TileGeometry& geometry, uint32_t current);

 private:
  void decode_words(const arch::TileGeometry& geometry);
  bool stale_ = true;
};

}  // namespace npu::emulator
