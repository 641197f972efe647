// The address generator of a DMA BD: which words of a memory, in stream order. Transfers are done in
// bulk: a walk hands out contiguous runs, and copies are specialised for the common run lengths.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "arch/bd.h"

namespace npu::emulator {

// Number of memory words a BD touches: its length less the padding (memtile MM2S).
uint64_t data_words(const arch::Bd& bd, int dims);
// Largest word offset (from the base) touched by `words` words, iteration included.
uint64_t last_offset(const arch::Bd& bd, int dims, uint64_t words);

class Walk {
 public:
  Walk() = default;
  // Walks a BD's pattern over memory whose word 0 (the BD's base) is at `base`.
  // `dims` is the tile's number of address dimensions.
  Walk(std::byte* base, const arch::Bd& bd, int dims);
  // A linear walk.
  static Walk linear(std::byte* base);

  // Copies the next `words` words of this walk to / from a linear buffer.
  void gather(std::byte* to, uint64_t words);
  void scatter(const std::byte* from, uint64_t words);
  // If the next `words` words are contiguous, returns their address and advances; else null.
  std::byte* take_contiguous(uint64_t words);

 private:
  template <typename Move>
  void visit(uint64_t words, Move move);
  void next_run();

  std::byte* base_ = nullptr;
  uint64_t run_ = UINT64_MAX;  // words per contiguous run
  int dims_ = 0;               // dimensions around the run, innermost first
  std::array<uint64_t, 4> count_{};
  std::array<int64_t, 4> stride_{};  // words
  std::array<uint64_t, 4> index_{};
  int64_t offset_ = 0;  // of the current run, words
  uint64_t in_run_ = 0; // words of the current run already handed out
};

}  // namespace npu::emulator
