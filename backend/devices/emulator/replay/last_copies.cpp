// Which of a run's last copies another run makes needless (last_copies.h).
#include "devices/emulator/replay/last_copies.h"

#include <cassert>
#include <utility>

namespace npu::emulator {

namespace {

using Range = ByteRanges::Range;

// Of a tile's memory, or of a block; of an argument none.
Range range_of(const Place& place, uint64_t bytes) {
  if (place.base != Place::kAbsolute) return {};
  return {place.offset, place.offset + static_cast<int64_t>(bytes)};
}

}  // namespace

LastCopies::LastCopies(const PackedPhases& phases, size_t first, ByteRanges touched_before)
    : phase(first), touched(std::move(touched_before)) {
  for (size_t p = first; p < phases.size(); ++p) {
    for (const PackedLane& lane : phases[p]) {
      for (const Action& copy : lane.actions) {
        assert(copy.kind == Action::Kind::kCopy);  // AliasTable::flush_all()
        read.add(range_of(copy.from, copy.bytes));
        written.add(range_of(copy.to, copy.bytes));
      }
    }
  }
  read.close();
  written.close();
}

// Needless is what the next run leaves alone until it writes all of it at its end, unless a copy of
// either run reads it.
CopyNumbers copies_left(const PackedPhases& phases, const LastCopies& copies,
                        const LastCopies& next) {
  CopyNumbers left;
  for (size_t p = copies.phase; p < phases.size(); ++p) {
    for (const PackedLane& lane : phases[p]) {
      for (size_t i = 0; i < lane.actions.size(); ++i) {
        const Range written = range_of(lane.actions[i].to, lane.actions[i].bytes);
        const bool needless = next.written.holds(written) && !next.touched.meets(written) &&
                              !next.read.meets(written) && !copies.read.meets(written);
        if (!needless) left.emplace_back(&lane, i);
      }
    }
  }
  return left;
}

}  // namespace npu::emulator
