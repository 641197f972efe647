// What threads of a replay do while they wait for others: they bring to their caches what their
// lanes of the next phase read first of arguments which runs only read (CallAction::shared), such
// as weights. Memory would have nothing to do meanwhile, and reading them is what a token takes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "devices/emulator/replay/replay.h"

namespace npu::emulator {

class ReadAhead {
 public:
  ReadAhead(const Replay& run, size_t threads);
  // Fetches some lines for a thread. False if it has what it should have, until that phase has
  // begun. Threads may call it at the same time, for themselves.
  bool step(size_t thread);
  // What step() fetches; empty where that is nothing.
  std::span<const std::byte> next(size_t thread);
  // Whether a thread may have something to fetch during the phase that comes next.
  bool left() const;

 private:
  // Where a thread is; on a line of its own.
  struct alignas(64) Cursor {
    size_t phase = 0;  // that is prepared
    std::span<const PackedLane> lanes;
    size_t action = 0;  // of the first of these lanes
    uint64_t offset = 0;
    uint64_t fetched = 0;
  };
  void begin(Cursor& cursor, size_t thread) const;

  const Replay& run_;
  std::vector<Cursor> cursors_;
};

}  // namespace npu::emulator
