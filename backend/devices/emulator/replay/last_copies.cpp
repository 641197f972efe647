// Which of a run's last copies another run makes needless (last_copies.h).
#include "devices/emulator/replay/last_copies.h"

#include <algorithm>
#include <optional>

namespace npu::emulator {

namespace {

using Range = ByteRanges::Range;

// From the first to the last byte of so many words of a walk that begins at `base`.
Range span_of(Walk walk, int64_t base, uint64_t words) {
  Range all{INT64_MAX, INT64_MIN};
  while (words > 0) {
    const uint64_t run = std::min(words, walk.contiguous());
    const int64_t begin = base + static_cast<int64_t>(walk.next()) * kWordBytes;
    all.begin = std::min(all.begin, begin);
    all.end = std::max(all.end, begin + static_cast<int64_t>(run) * kWordBytes);
    walk.skip(run);
    words -= run;
  }
  return all;
}

// What an action reads and writes; of arguments nothing.
struct Accesses {
  Range read, written;
  bool whole = true;  // all bytes of the latter
};

// None of an action that is no copy.
std::optional<Accesses> accesses(const PackedLane& lane, const Action& action) {
  const auto bytes = static_cast<int64_t>(action.bytes);
  const auto linear = [&](const Place& place) { return Range{place.offset, place.offset + bytes}; };
  const auto walked = [&](const Place& place, size_t number) {
    return span_of(lane.walks[action.index + number], place.offset, action.bytes / kWordBytes);
  };
  Accesses out;
  switch (action.kind) {
    case Action::Kind::kCopy:
      out = {linear(action.from), linear(action.to)};
      break;
    case Action::Kind::kGather:
      out = {walked(action.from, 0), linear(action.to)};
      break;
    case Action::Kind::kScatter:
      out = {linear(action.from), walked(action.to, 0), false};
      break;
    case Action::Kind::kReorder:
      out = {walked(action.from, 0), walked(action.to, 1), false};
      break;
    case Action::Kind::kWord:
    case Action::Kind::kUnpack:
    case Action::Kind::kCall:
    case Action::Kind::kSteer:
      return std::nullopt;
  }
  if (action.from.base != Place::kAbsolute) out.read = {};
  if (action.to.base != Place::kAbsolute) out.written = {};
  return out;
}

}  // namespace

LastCopies::LastCopies(const PackedPhases& phases, size_t first, ByteRanges touched_before)
    : phase(first), touched(std::move(touched_before)) {
  for (size_t p = first; p < phases.size(); ++p) {
    for (const PackedLane& lane : phases[p]) {
      for (const Action& action : lane.actions) {
        const std::optional<Accesses> one = accesses(lane, action);
        if (!one) continue;
        read.add(one->read);
        if (one->whole) written.add(one->written);
      }
    }
  }
  read.close();
  written.close();
}

// Needless is what the next run leaves alone until it writes all of it at its end, unless another
// one of these copies reads it.
CopyNumbers copies_left(const PackedPhases& phases, const LastCopies& copies,
                        const LastCopies& next) {
  CopyNumbers left;
  for (size_t p = copies.phase; p < phases.size(); ++p) {
    for (const PackedLane& lane : phases[p]) {
      for (size_t i = 0; i < lane.actions.size(); ++i) {
        const std::optional<Accesses> one = accesses(lane, lane.actions[i]);
        if (one && next.written.holds(one->written) && !next.touched.meets(one->written) &&
            !copies.read.meets(one->written)) {
          continue;
        }
        left.emplace_back(&lane, i);
      }
    }
  }
  return left;
}

}  // namespace npu::emulator
