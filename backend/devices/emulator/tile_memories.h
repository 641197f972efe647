// The data memories of all tiles of an array, and the modes of their cores, in one piece: a run
// that goes on beside one of the array works on a copy of them (replay/joint_replay.h).
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "aligned.h"
#include "arch/geometry.h"
#include "kernels/kernel.h"

namespace npu::emulator {

class TileMemories {
 public:
  explicit TileMemories(const arch::Geometry& device);
  // The `number`-th copy. Copies begin in different sets of the CPU's caches, as runs beside each
  // other use the same addresses of tiles at the same time.
  TileMemories(const TileMemories& other, size_t number);
  TileMemories(const TileMemories&) = delete;
  TileMemories& operator=(const TileMemories&) = delete;
  ~TileMemories();

  // Of a tile, by Tile::number().
  std::span<std::byte> of(size_t tile) { return {at(tile), sizes_[tile]}; }
  // Those of a column's cores share a line, as one thread runs a column.
  CoreState& modes(size_t tile);
  // All of them and what lies between: the same in every copy.
  std::span<std::byte> all() { return {bytes_.data() + begin_, size_}; }

 private:
  std::byte* at(size_t tile) { return bytes_.data() + begin_ + offsets_[tile]; }
  void make();
  // Nobody reads or writes between the memories, as AddressSanitizer is told.
  void guard(bool on);

  std::vector<size_t> sizes_, offsets_;  // of the tiles
  size_t begin_ = 0, size_ = 0;
  AlignedBytes bytes_;
};

}  // namespace npu::emulator
