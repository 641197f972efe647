// Implementation of the DMA address generator (walk.h). Semantics: hardware.md 2.0 and 2.6 — the
// innermost counter runs fastest, a wrap of 0 never wraps, the outermost dimension has no wrap.
#include "emulator/walk.h"

#include <algorithm>
#include <cassert>
#include <cstring>

namespace npu::emulator {

namespace {

// Counts per dimension for a pattern of `words` words; the first unwrapped dimension takes the rest.
struct Counts {
  std::array<uint64_t, 4> count{1, 1, 1, 1};
  int used = 1;
};

Counts counts_of(const arch::Bd& bd, int dims, uint64_t words) {
  Counts c;
  uint64_t left = std::max<uint64_t>(words, 1);
  for (int d = 0; d < dims; ++d) {
    const size_t i = static_cast<size_t>(d);
    const bool wraps = d < dims - 1 && bd.wrap[i] != 0;
    c.used = d + 1;
    c.count[i] = wraps ? std::min<uint64_t>(bd.wrap[i], left) : left;
    if (!wraps) break;
    left = (left + c.count[i] - 1) / c.count[i];
  }
  return c;
}

// Largest offset among the first `words` words of dimensions 0..d.
uint64_t max_offset(const arch::Bd& bd, const Counts& c, int d, uint64_t words) {
  if (d < 0 || words == 0) return 0;
  uint64_t below = 1;
  for (int i = 0; i < d; ++i) below *= c.count[static_cast<size_t>(i)];
  const uint64_t step = bd.step[static_cast<size_t>(d)];
  const uint64_t last = (words - 1) / below;
  const uint64_t tail = last * step + max_offset(bd, c, d - 1, words - last * below);
  if (last == 0) return tail;
  return std::max(tail, (last - 1) * step + max_offset(bd, c, d - 1, below));
}

template <size_t kBytes>
void copy_fixed(std::byte* to, const std::byte* from) {
  std::memcpy(to, from, kBytes);
}

}  // namespace

uint64_t data_words(const arch::Bd& bd, int dims) {
  uint64_t padded = 1, data = 1;
  bool any = false;
  for (size_t d = 0; d < 3; ++d) {
    const uint64_t wrap = d + 1 < static_cast<size_t>(dims) && bd.wrap[d] ? bd.wrap[d] : 1;
    padded *= wrap + bd.pad_before[d] + bd.pad_after[d];
    data *= wrap;
    any |= bd.pad_before[d] || bd.pad_after[d];
  }
  return any ? bd.length / padded * data : bd.length;
}

uint64_t last_offset(const arch::Bd& bd, int dims, uint64_t words) {
  const Counts c = counts_of(bd, dims, words);
  return uint64_t{bd.iteration_current} * bd.iteration_step +
         max_offset(bd, c, c.used - 1, words);
}

Walk::Walk(std::byte* base, const arch::Bd& bd, int dims) : base_(base) {
  offset_ = static_cast<int64_t>(uint64_t{bd.iteration_current} * bd.iteration_step);
  run_ = 1;
  bool open = true;  // still extending the contiguous run
  for (int d = 0; d < dims; ++d) {
    const size_t i = static_cast<size_t>(d);
    const bool wraps = d < dims - 1 && bd.wrap[i] != 0;
    const uint64_t count = wraps ? bd.wrap[i] : UINT64_MAX;
    if (count == 1) continue;
    if (open && bd.step[i] == run_) {
      if (!wraps) {
        run_ = UINT64_MAX;
        break;
      }
      run_ *= count;
      continue;
    }
    open = false;
    count_[static_cast<size_t>(dims_)] = count;
    stride_[static_cast<size_t>(dims_)] = bd.step[i];
    ++dims_;
    if (!wraps) break;
  }
}

Walk Walk::linear(std::byte* base) {
  Walk walk;
  walk.base_ = base;
  return walk;
}

void Walk::next_run() {
  in_run_ = 0;
  for (size_t d = 0; d < static_cast<size_t>(dims_); ++d) {
    offset_ += stride_[d];
    if (++index_[d] < count_[d]) return;
    offset_ -= static_cast<int64_t>(index_[d]) * stride_[d];
    index_[d] = 0;
  }
}

// Calls move(address, words) for each contiguous piece of the next `words` words.
template <typename Move>
void Walk::visit(uint64_t words, Move move) {
  while (words > 0) {
    const uint64_t n = std::min(words, run_ - in_run_);
    move(base_ + (offset_ + static_cast<int64_t>(in_run_)) * 4, n);
    words -= n;
    in_run_ += n;
    if (in_run_ == run_) next_run();
  }
}

std::byte* Walk::take_contiguous(uint64_t words) {
  if (run_ - in_run_ < words) return nullptr;
  std::byte* address = base_ + (offset_ + static_cast<int64_t>(in_run_)) * 4;
  in_run_ += words;
  if (in_run_ == run_) next_run();
  return address;
}

namespace {

// Inner loop over whole runs of a fixed size along dimension 0 (`rows` of them).
template <bool kGather, size_t kBytes>
void copy_rows(std::byte* memory, int64_t stride_bytes, std::byte* linear, uint64_t rows) {
  for (uint64_t r = 0; r < rows; ++r) {
    if constexpr (kGather) {
      copy_fixed<kBytes>(linear, memory);
    } else {
      copy_fixed<kBytes>(memory, linear);
    }
    memory += stride_bytes;
    linear += kBytes;
  }
}

template <bool kGather>
bool copy_rows_any(uint64_t run_bytes, std::byte* memory, int64_t stride, std::byte* linear,
                   uint64_t rows) {
  switch (run_bytes) {
    case 4: copy_rows<kGather, 4>(memory, stride, linear, rows); return true;
    case 8: copy_rows<kGather, 8>(memory, stride, linear, rows); return true;
    case 16: copy_rows<kGather, 16>(memory, stride, linear, rows); return true;
    case 32: copy_rows<kGather, 32>(memory, stride, linear, rows); return true;
    case 64: copy_rows<kGather, 64>(memory, stride, linear, rows); return true;
    case 128: copy_rows<kGather, 128>(memory, stride, linear, rows); return true;
    default: return false;
  }
}

}  // namespace

void Walk::gather(std::byte* to, uint64_t words) {
  while (words > 0) {
    // Whole runs along the innermost stride at once, when the position allows it.
    if (dims_ > 0 && in_run_ == 0 && words >= run_) {
      const uint64_t rows = std::min(count_[0] - index_[0], words / run_);
      if (copy_rows_any<true>(run_ * 4, base_ + offset_ * 4, stride_[0] * 4, to, rows)) {
        to += rows * run_ * 4;
        words -= rows * run_;
        index_[0] += rows - 1;
        offset_ += static_cast<int64_t>(rows - 1) * stride_[0];
        next_run();
        continue;
      }
    }
    const uint64_t piece = std::min(words, run_ - in_run_);
    visit(piece, [&](std::byte* from, uint64_t n) {
      std::memcpy(to, from, n * 4);
      to += n * 4;
    });
    words -= piece;
  }
}

void Walk::scatter(const std::byte* from, uint64_t words) {
  while (words > 0) {
    if (dims_ > 0 && in_run_ == 0 && words >= run_) {
      const uint64_t rows = std::min(count_[0] - index_[0], words / run_);
      if (copy_rows_any<false>(run_ * 4, base_ + offset_ * 4, stride_[0] * 4,
                               const_cast<std::byte*>(from), rows)) {
        from += rows * run_ * 4;
        words -= rows * run_;
        index_[0] += rows - 1;
        offset_ += static_cast<int64_t>(rows - 1) * stride_[0];
        next_run();
        continue;
      }
    }
    const uint64_t piece = std::min(words, run_ - in_run_);
    visit(piece, [&](std::byte* to, uint64_t n) {
      std::memcpy(to, from, n * 4);
      from += n * 4;
    });
    words -= piece;
  }
}

}  // namespace npu::emulator
