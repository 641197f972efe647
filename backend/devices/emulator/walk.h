// The address generator of a DMA BD: which words of a memory it transfers, in stream order.
// Transfers are done in bulk: a walk yields contiguous runs, and copies are specialised for the
// common run lengths.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "arch/bd.h"

namespace npu::emulator {

// Padding (memtile MM2S, hardware.md 2.4): whether a BD has any; what is wrong with it, or null;
// the stream words of the BD over memory at `base`, with `pad` for the words around the data.
bool has_padding(const arch::Bd& bd);
const char* padding_problem(const arch::Bd& bd);
std::vector<std::byte> padded_stream(const arch::Bd& bd, const std::byte* base, uint32_t pad);
// Number of memory words a BD touches: its length less the padding.
uint64_t data_words(const arch::Bd& bd);
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

  // Words per contiguous run, and words from one run to the next (0: a single run).
  uint64_t run() const { return run_; }
  int64_t pitch() const { return dims_ ? stride_[0] : 0; }
  // Copies the next `words` words of this walk to / from a linear buffer.
  void gather(std::byte* to, uint64_t words);
  void scatter(const std::byte* from, uint64_t words);
  // Whether the first `words` words of this walk, not begun, are `words` consecutive ones from its
  // start on, each once, in any order.
  bool fills(uint64_t words) const;
  // Whether two walks, not begun, visit the same offsets in the same order.
  bool same_pattern(const Walk& other) const;
  // Makes this walk, not begun, start `offset` words from `base`.
  void rebase(std::byte* base, uint64_t offset) {
    base_ = base;
    offset_ = static_cast<int64_t>(offset);
  }
  Walk rebased(std::byte* base, uint64_t offset) const;              // a copy
  uint64_t start() const { return static_cast<uint64_t>(offset_); }  // word the walk begins with
  // The same words of a copy of the memory, whose base is `base`.
  void move_to(std::byte* base) { base_ = base; }
  std::byte* base() const { return base_; }
  uint64_t next() const { return static_cast<uint64_t>(offset_) + in_run_; }  // word to come
  uint64_t contiguous() const { return run_ - in_run_; }                      // from there on
  // If the next `words` words are contiguous, returns their address and advances; else null.
  std::byte* take_contiguous(uint64_t words) {
    if (contiguous() < words) return nullptr;
    std::byte* address = base_ + static_cast<int64_t>(next()) * 4;
    skip(words);
    return address;
  }
  void skip(uint64_t words) {  // that are contiguous
    in_run_ += words;
    if (in_run_ == run_) next_run();
  }

 private:
  template <bool kGather>
  void copy(std::byte* linear, uint64_t words);
  void prefetch_next_sweeps() const;
  void next_run();

  std::byte* base_ = nullptr;
  uint64_t run_ = UINT64_MAX;  // words per contiguous run
  int dims_ = 0;               // dimensions around the run, innermost first
  std::array<uint64_t, 4> count_{};
  std::array<int64_t, 4> stride_{};  // words
  std::array<uint64_t, 4> index_{};
  int64_t offset_ = 0;   // of the current run, words
  uint64_t in_run_ = 0;  // words of the current run already taken
};

}  // namespace npu::emulator
