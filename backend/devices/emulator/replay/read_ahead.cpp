// Weights of the next phase, fetched by threads that wait (read_ahead.h).
#include "devices/emulator/replay/read_ahead.h"

#include <algorithm>

namespace npu::emulator {

namespace {

// Of a thread: they stay in its second cache, 512 KiB or more, beside what its lanes use.
constexpr uint64_t kMostBytes = 512 << 10;
constexpr uint64_t kStepBytes = 2 << 10, kLine = 64;

}  // namespace

ReadAhead::ReadAhead(const Replay& run, size_t threads) : run_(run), cursors_(threads) {}

bool ReadAhead::left() const {
  return std::ranges::any_of(cursors_, [&](const Cursor& cursor) {
    return cursor.phase <= run_.phase() || (!cursor.lanes.empty() && cursor.fetched < kMostBytes);
  });
}

// At the next phase that reads weights, with the lanes that a thread pool gives to the thread.
void ReadAhead::begin(Cursor& cursor, size_t thread) const {
  const PackedPhases& phases = run_.recording().phases;
  cursor = {};
  cursor.phase = phases.next_shares(run_.phase());
  if (cursor.phase == phases.size()) return;
  const std::span<const PackedLane> all = phases[cursor.phase];
  const size_t first = thread * all.size() / cursors_.size();
  const size_t end = (thread + 1) * all.size() / cursors_.size();
  cursor.lanes = all.subspan(first, end - first);
}

std::span<const std::byte> ReadAhead::next(size_t thread) {
  Cursor& cursor = cursors_[thread];
  if (cursor.phase <= run_.phase()) begin(cursor, thread);
  while (!cursor.lanes.empty() && cursor.fetched < kMostBytes) {
    const PackedLane& lane = cursor.lanes.front();
    if (cursor.action == lane.actions.size()) {
      cursor.lanes = cursor.lanes.subspan(1);
      cursor.action = 0;
      continue;
    }
    const std::span<const std::byte> weights = run_.weights(lane, cursor.action);
    if (cursor.offset < weights.size()) {
      const uint64_t count = std::min(kStepBytes, weights.size() - cursor.offset);
      const std::span<const std::byte> found = weights.subspan(cursor.offset, count);
      cursor.offset += count;
      cursor.fetched += count;
      return found;
    }
    ++cursor.action;
    cursor.offset = 0;
  }
  return {};
}

bool ReadAhead::step(size_t thread) {
  const std::span<const std::byte> found = next(thread);
  for (uint64_t i = 0; i < found.size(); i += kLine) __builtin_prefetch(found.data() + i, 0, 2);
  return !found.empty();
}

}  // namespace npu::emulator
