// Implementation of the DMA address generator (walk.h). Semantics: hardware.md 2.0 and 2.6 — the
// innermost counter runs fastest, a wrap of 0 never wraps, the outermost dimension has no wrap.
#include "devices/emulator/walk.h"

#include <emmintrin.h>

#include <algorithm>
#include <cassert>
#include <cstring>

namespace npu::emulator {

namespace {

// Counts per dimension for a pattern of `words` words; the first unwrapped dimension takes the
// rest.
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

}  // namespace

uint64_t last_offset(const arch::Bd& bd, int dims, uint64_t words) {
  const Counts c = counts_of(bd, dims, words);
  return uint64_t{bd.iteration_current} * bd.iteration_step + max_offset(bd, c, c.used - 1, words);
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

bool Walk::fills(uint64_t words) const {
  // Dimensions in the order of their strides must nest without gaps.
  uint64_t dense = run_;
  std::array<bool, 4> used{};
  for (int step = 0; step < dims_ && dense < words; ++step) {
    size_t next = 0;
    while (next < static_cast<size_t>(dims_) &&
           (used[next] || stride_[next] != static_cast<int64_t>(dense))) {
      ++next;
    }
    if (next == static_cast<size_t>(dims_)) return false;
    used[next] = true;
    uint64_t count = count_[next];
    if (next + 1 == static_cast<size_t>(dims_)) {  // the outermost goes as far as the words do
      uint64_t inner = run_;
      for (size_t d = 0; d < next; ++d) inner *= count_[d];
      if (words % inner != 0) return false;
      count = std::min(count, words / inner);
    }
    dense *= count;
  }
  if (run_ >= words) return true;
  // Every dimension that the walk reaches has been used, and they hold just these words.
  return dense == words &&
         std::find(used.begin(), used.begin() + dims_, false) == used.begin() + dims_;
}

bool Walk::same_pattern(const Walk& other) const {
  if (run_ != other.run_ || dims_ != other.dims_) return false;
  const size_t dims = static_cast<size_t>(dims_);
  return std::equal(count_.begin(), count_.begin() + dims, other.count_.begin()) &&
         std::equal(stride_.begin(), stride_.begin() + dims, other.stride_.begin());
}

Walk Walk::rebased(std::byte* base, uint64_t offset) const {
  Walk walk = *this;
  walk.rebase(base, offset);
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

namespace {

// Moves a fixed number of bytes, all of them loaded before the first is stored: memory and linear
// side overlap when one host buffer is both source and destination.
template <size_t kBytes>
inline void move_fixed(std::byte* to, const std::byte* from) {
  if constexpr (kBytes < 16) {
    std::memmove(to, from, kBytes);
  } else {
    __m128i x[kBytes / 16];
#pragma GCC unroll 8
    for (size_t i = 0; i < kBytes / 16; ++i) {
      x[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from) + i);
    }
#pragma GCC unroll 8
    for (size_t i = 0; i < kBytes / 16; ++i) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to) + i, x[i]);
    }
  }
}

// Rows of a matrix are pages apart; CPUs do not prefetch across pages.
constexpr uint64_t kRowsAhead = 12;
constexpr size_t kLine = 64;

// Inner loop over whole runs of a fixed size along dimension 0 (`rows` of them).
template <bool kGather, size_t kBytes>
void copy_rows(std::byte* memory, int64_t stride_bytes, std::byte* linear, uint64_t rows) {
  constexpr bool kFar = kGather && kBytes >= kLine;
  for (uint64_t r = 0; r < rows; ++r) {
    if constexpr (kFar) {
      if (rows - r > kRowsAhead) {
        const std::byte* ahead = memory + static_cast<int64_t>(kRowsAhead) * stride_bytes;
        for (size_t i = 0; i < kBytes; i += kLine) __builtin_prefetch(ahead + i);
      }
    }
    move_fixed<kBytes>(kGather ? linear : memory, kGather ? memory : linear);
    memory += stride_bytes;
    linear += kBytes;
  }
}

// Sweeps over `rows` runs along dimension 0, `next` bytes apart.
template <bool kGather, size_t kBytes>
void copy_sweeps(std::byte* memory, int64_t stride_bytes, std::byte* linear, uint64_t rows,
                 int64_t next, uint64_t sweeps) {
  for (uint64_t s = 0; s < sweeps; ++s, memory += next, linear += rows * kBytes) {
    copy_rows<kGather, kBytes>(memory, stride_bytes, linear, rows);
  }
}

// Whether sweeps over runs of 8 bytes read and write the same, in whatever order: rows that lie
// beside each other from sweep to sweep, apart from the other rows and from the linear side.
bool may_turn(const std::byte* memory, int64_t stride_bytes, const std::byte* linear, uint64_t rows,
              int64_t next, uint64_t sweeps) {
  const auto width = static_cast<int64_t>(sweeps * 8);
  const std::byte* const end = memory + static_cast<int64_t>(rows - 1) * stride_bytes + width;
  const bool apart = end <= linear || linear + rows * sweeps * 8 <= memory;
  return next == 8 && rows % 2 == 0 && sweeps % 2 == 0 && stride_bytes >= width && apart;
}

// Such sweeps, two rows and two sweeps at a time.
template <bool kGather>
void turn_eights(std::byte* memory, int64_t stride_bytes, std::byte* linear, uint64_t rows,
                 uint64_t sweeps) {
  const auto load = [](const std::byte* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  };
  const auto store = [](std::byte* p, __m128i x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), x);
  };
  const uint64_t sweep = rows * 8;
  for (uint64_t s = 0; s < sweeps; s += 2, memory += 16, linear += 2 * sweep) {
    std::byte *in_memory = memory, *in_line = linear;
    for (uint64_t r = 0; r < rows; r += 2, in_memory += 2 * stride_bytes, in_line += 16) {
      std::byte* const m[2] = {in_memory, in_memory + stride_bytes};
      std::byte* const l[2] = {in_line, in_line + sweep};
      std::byte* const* const from = kGather ? m : l;
      std::byte* const* const to = kGather ? l : m;
      const __m128i x = load(from[0]), y = load(from[1]);
      store(to[0], _mm_unpacklo_epi64(x, y));
      store(to[1], _mm_unpackhi_epi64(x, y));
    }
  }
}

// Whole sweeps of runs of a size that there is code for; false for others.
template <bool kGather>
bool copy_sweeps_any(uint64_t run_bytes, std::byte* memory, int64_t stride, std::byte* linear,
                     uint64_t rows, int64_t next, uint64_t sweeps) {
  switch (run_bytes) {
    case 4:
      copy_sweeps<kGather, 4>(memory, stride, linear, rows, next, sweeps);
      return true;
    case 8:
      if (may_turn(memory, stride, linear, rows, next, sweeps)) {
        turn_eights<kGather>(memory, stride, linear, rows, sweeps);
      } else {
        copy_sweeps<kGather, 8>(memory, stride, linear, rows, next, sweeps);
      }
      return true;
    case 16:
      copy_sweeps<kGather, 16>(memory, stride, linear, rows, next, sweeps);
      return true;
    case 32:
      copy_sweeps<kGather, 32>(memory, stride, linear, rows, next, sweeps);
      return true;
    case 64:
      copy_sweeps<kGather, 64>(memory, stride, linear, rows, next, sweeps);
      return true;
    case 128:
      copy_sweeps<kGather, 128>(memory, stride, linear, rows, next, sweeps);
      return true;
    case 256:
      copy_sweeps<kGather, 256>(memory, stride, linear, rows, next, sweeps);
      return true;
    default:
      return false;
  }
}

}  // namespace

// What the sweeps after these will read, if they gather short runs side by side: rows pages apart.
void Walk::prefetch_next_sweeps() const {
  constexpr uint64_t kMostRows = 16;
  if (dims_ < 3 || index_[2] + 1 >= count_[2] || count_[0] > kMostRows) return;
  const uint64_t width = count_[1] * run_ * 4;
  if (run_ * 4 >= kLine || stride_[1] != static_cast<int64_t>(run_) || width > 8 * kLine) return;
  const std::byte* row = base_ + (offset_ + stride_[2]) * 4;
  for (uint64_t r = 0; r < count_[0]; ++r, row += stride_[0] * 4) {
    for (uint64_t i = 0; i < width; i += kLine) __builtin_prefetch(row + i);
  }
}

template <bool kGather>
void Walk::copy(std::byte* linear, uint64_t words) {
  while (words > 0) {
    // Whole runs along the innermost stride at once, and whole sweeps of these, when the position
    // allows it.
    if (dims_ > 0 && in_run_ == 0 && words >= run_) {
      const uint64_t left = words / run_;  // runs
      uint64_t rows = std::min(count_[0] - index_[0], left), sweeps = 1;
      int64_t next = 0;
      if (dims_ > 1 && index_[0] == 0 && rows == count_[0]) {
        sweeps = std::min(count_[1] - index_[1], left / rows);
        next = stride_[1];
        if (kGather && index_[1] == 0) prefetch_next_sweeps();
      }
      if (copy_sweeps_any<kGather>(run_ * 4, base_ + offset_ * 4, stride_[0] * 4, linear, rows,
                                   next * 4, sweeps)) {
        linear += sweeps * rows * run_ * 4;
        words -= sweeps * rows * run_;
        index_[0] += rows - 1;
        offset_ += static_cast<int64_t>(rows - 1) * stride_[0];
        if (sweeps > 1) {
          index_[1] += sweeps - 1;
          offset_ += static_cast<int64_t>(sweeps - 1) * next;
        }
        next_run();
        continue;
      }
    }
    const uint64_t n = std::min(words, run_ - in_run_);
    std::byte* memory = base_ + (offset_ + static_cast<int64_t>(in_run_)) * 4;
    std::memmove(kGather ? linear : memory, kGather ? memory : linear, n * 4);
    linear += n * 4;
    words -= n;
    in_run_ += n;
    if (in_run_ == run_) next_run();
  }
}

void Walk::gather(std::byte* to, uint64_t words) { copy<true>(to, words); }

void Walk::scatter(const std::byte* from, uint64_t words) {
  copy<false>(const_cast<std::byte*>(from), words);
}

namespace {

// The dimensions of a padded BD: those below `outer` wrap and may be padded, `outer` never wraps.
struct Padded {
  size_t outer = 3;
  std::array<uint64_t, 3> size{1, 1, 1}, total{1, 1, 1};  // words, rows, planes; without/with pad
  uint64_t block = 1, data = 1;                           // words per step of `outer`
};

Padded padded_dims(const arch::Bd& bd) {
  Padded p;
  for (size_t d = 0; d < 3; ++d) {
    if (bd.wrap[d] == 0) {
      p.outer = d;
      break;
    }
    p.size[d] = bd.wrap[d];
    p.total[d] = p.size[d] + bd.pad_before[d] + bd.pad_after[d];
    p.data *= p.size[d];
    p.block *= p.total[d];
  }
  return p;
}

}  // namespace

bool has_padding(const arch::Bd& bd) {
  for (size_t d = 0; d < 3; ++d) {
    if (bd.pad_before[d] || bd.pad_after[d]) return true;
  }
  return false;
}

const char* padding_problem(const arch::Bd& bd) {
  const Padded p = padded_dims(bd);
  for (size_t d = p.outer; d < 3; ++d) {
    if (bd.pad_before[d] || bd.pad_after[d]) {
      return "is in or above a dimension that never wraps; give every padded dimension a wrap";
    }
  }
  if (bd.length % p.block != 0) {
    return "does not divide its length; the length counts data and pad words of whole blocks";
  }
  return nullptr;
}

uint64_t data_words(const arch::Bd& bd) {
  if (!has_padding(bd)) return bd.length;
  const Padded p = padded_dims(bd);
  return bd.length / p.block * p.data;
}

std::vector<std::byte> padded_stream(const arch::Bd& bd, const std::byte* base, uint32_t pad) {
  const Padded p = padded_dims(bd);
  std::vector<std::byte> out(uint64_t{bd.length} * 4);
  std::byte* to = out.data();
  const uint64_t start = uint64_t{bd.iteration_current} * bd.iteration_step;
  for (uint64_t o = 0; o < bd.length / p.block; ++o) {
    for (uint64_t i2 = 0; i2 < p.total[2]; ++i2) {
      for (uint64_t i1 = 0; i1 < p.total[1]; ++i1) {
        for (uint64_t i0 = 0; i0 < p.total[0]; ++i0, to += 4) {
          // Wraps to huge in the pad before the data.
          const uint64_t c0 = i0 - bd.pad_before[0], c1 = i1 - bd.pad_before[1],
                         c2 = i2 - bd.pad_before[2];
          const bool inside = c0 < p.size[0] && c1 < p.size[1] && c2 < p.size[2];
          const uint64_t word =
              start + o * bd.step[p.outer] + c2 * bd.step[2] + c1 * bd.step[1] + c0 * bd.step[0];
          std::memcpy(to, inside ? base + word * 4 : reinterpret_cast<const std::byte*>(&pad), 4);
        }
      }
    }
  }
  return out;
}

}  // namespace npu::emulator
