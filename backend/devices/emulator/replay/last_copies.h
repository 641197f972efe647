// What a run copies when it has ended. Blocks that stay where the host has them while a run lasts
// come into the tiles' memories then, which are part of what it leaves. In a series of runs most of
// that is replaced by the next one's, and need not be done.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "devices/emulator/replay/byte_ranges.h"
#include "devices/emulator/replay/packed_phases.h"

namespace npu::emulator {

struct LastCopies {
  // Of the phases with these copies and nothing else, which are the last ones, the first.
  size_t phase = 0;
  // Of tiles' memories: what the run touches before, what these copies read, and what they write.
  ByteRanges touched, read, written;

  LastCopies() = default;
  // touched: closed.
  LastCopies(const PackedPhases& phases, size_t first, ByteRanges touched);
  size_t bytes() const { return touched.bytes() + read.bytes() + written.bytes(); }
};

// By lane and action: those of a run's last copies that have to be done although the next one does
// its own.
using CopyNumbers = std::vector<std::pair<const PackedLane*, size_t>>;
CopyNumbers copies_left(const PackedPhases& phases, const LastCopies& copies,
                        const LastCopies& next);

}  // namespace npu::emulator
