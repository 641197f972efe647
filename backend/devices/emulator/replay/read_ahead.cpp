// What the next phase reads, fetched by threads that wait (read_ahead.h).
#include "devices/emulator/replay/read_ahead.h"

#include <algorithm>
#include <cassert>

#include "host/thread_pool.h"

namespace npu::emulator {

namespace {

// Of a thread: half a second cache of 1 MiB; the third one is for what smaller ones do not hold.
constexpr uint64_t kMostBytes = 512 << 10;
constexpr uint64_t kStepBytes = 2 << 10, kLine = 64;

// Not a prefetch: a core drops those for which it has no room, which is most of so many in a row.
// It may wait for a page of a mapped file, as the phase itself would.
void load(const std::byte* line) { asm volatile("" : : "r"(*line)); }

}  // namespace

ReadAhead::ReadAhead(const Replay& run, size_t threads) : run_(run), cursors_(threads) {}

bool ReadAhead::left() const {
  const PackedPhases& phases = run_.recording().phases;
  if (cursors_.size() == 1 || phases.next_shares(run_.phase()) == phases.size()) return false;
  return std::ranges::any_of(cursors_, [&](const Cursor& cursor) {
    return cursor.phase <= run_.phase() || (!cursor.lanes.empty() && cursor.fetched < kMostBytes);
  });
}

// At the next phase of that kind, with the lanes that a thread pool gives to the thread.
void ReadAhead::begin(Cursor& cursor, size_t thread) const {
  const PackedPhases& phases = run_.recording().phases;
  cursor = {};
  cursor.phase = phases.next_shares(run_.phase());
  if (cursor.phase == phases.size()) return;
  const std::span<const PackedLane> all = phases[cursor.phase];
  const size_t first = ThreadPool::share(thread, cursors_.size(), all.size());
  const size_t end = ThreadPool::share(thread + 1, cursors_.size(), all.size());
  cursor.lanes = all.subspan(first, end - first);
}

std::span<const std::byte> ReadAhead::next(size_t thread) {
  assert(thread < cursors_.size());
  Cursor& cursor = cursors_[thread];
  if (cursor.phase <= run_.phase()) begin(cursor, thread);
  while (!cursor.lanes.empty() && cursor.fetched < kMostBytes) {
    const PackedLane& lane = cursor.lanes.front();
    if (cursor.action == lane.actions.size()) {
      cursor.lanes = cursor.lanes.subspan(1);
      cursor.action = 0;
      continue;
    }
    const std::span<const std::byte> all = run_.shared_operand(lane, cursor.action);
    if (cursor.offset < all.size()) {
      const uint64_t count = std::min(kStepBytes, all.size() - cursor.offset);
      const std::span<const std::byte> found = all.subspan(cursor.offset, count);
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
  for (uint64_t i = 0; i < found.size(); i += kLine) load(found.data() + i);
  return !found.empty();
}

}  // namespace npu::emulator
