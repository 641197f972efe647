// Packing the lanes of a recorded run (packed_phases.h).
#include "devices/emulator/replay/packed_phases.h"

#include <algorithm>
#include <utility>

namespace npu::emulator {

namespace {

template <typename T>
size_t bytes_of(const T& list) {
  return list.capacity() * sizeof list[0];
}

template <typename T>
size_t count(const std::vector<Phase>& phases, std::vector<T> Lane::*list) {
  size_t all = 0;
  for (const Phase& phase : phases) {
    for (const Lane& lane : phase) all += (lane.*list).size();
  }
  return all;
}

// Room for the lists of all lanes and, as the next recording is mostly of a token that attends to
// more keys, for a few more.
template <typename T>
void make_room(AlignedVector<T>& to, const std::vector<Phase>& phases, std::vector<T> Lane::*list) {
  to.clear();
  const size_t needed = count(phases, list);
  if (needed > to.capacity()) to.reserve(needed + needed / 16);
}

// Where they lie now; there is room for them.
template <typename T>
const T* append(AlignedVector<T>& to, std::vector<T>& list) {
  const T* const first = to.data() + to.size();
  to.insert(to.end(), list.begin(), list.end());
  std::exchange(list, {});
  return first;
}

}  // namespace

PackedPhases::PackedPhases(std::vector<Phase> phases, PackedPhases spare)
    : actions_(std::move(spare.actions_)),
      walks_(std::move(spare.walks_)),
      calls_(std::move(spare.calls_)),
      moves_(std::move(spare.moves_)),
      blocks_(std::move(spare.blocks_)) {
  make_room(actions_, phases, &Lane::actions);
  make_room(walks_, phases, &Lane::walks);
  make_room(calls_, phases, &Lane::calls);
  make_room(moves_, phases, &Lane::moves);
  make_room(blocks_, phases, &Lane::blocks);
  for (Phase& phase : phases) {
    for (Lane& lane : phase) {
      const size_t actions = lane.actions.size();
      lanes_.push_back({{append(actions_, lane.actions), actions},
                        append(walks_, lane.walks),
                        append(calls_, lane.calls),
                        append(moves_, lane.moves),
                        append(blocks_, lane.blocks)});
    }
    ends_.push_back(lanes_.size());
    shares_.push_back(std::ranges::any_of((*this)[ends_.size() - 1], [](const PackedLane& lane) {
      return std::ranges::any_of(lane.actions, [&](const Action& action) {
        return action.kind == Action::Kind::kCall && lane.calls[action.index].shared != 0;
      });
    }));
  }
}

size_t PackedPhases::needed(const std::vector<Phase>& phases) {
  return count(phases, &Lane::actions) * sizeof(Action) +
         count(phases, &Lane::walks) * sizeof(Walk) +
         count(phases, &Lane::calls) * sizeof(CallAction) +
         count(phases, &Lane::moves) * sizeof(Move) +
         count(phases, &Lane::blocks) * sizeof(SharedBlock*);
}

size_t PackedPhases::next_shares(size_t phase) const {
  for (++phase; phase < size(); ++phase) {
    if (shares_[phase]) break;
  }
  return phase;
}

size_t PackedPhases::bytes() const {
  return bytes_of(actions_) + bytes_of(walks_) + bytes_of(calls_) + bytes_of(moves_) +
         bytes_of(blocks_) + bytes_of(lanes_) + bytes_of(ends_) + shares_.size() / 8;
}

}  // namespace npu::emulator
