// The phases of a recorded run as replays read them, from end to end: lanes of columns that one
// thread runs lie one behind the other, in as few pages as there are.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "aligned.h"
#include "devices/emulator/replay/action_log.h"

namespace npu::emulator {

struct PackedLane {
  std::span<const Action> actions;
  const Walk* walks;
  const CallAction* calls;
  const Move* moves;
  SharedBlock* const* blocks;

  std::span<const Move> moves_of(const CallAction& call) const {
    return {moves + call.first_move, call.moves};
  }
};

class PackedPhases {
 public:
  PackedPhases() = default;
  // spare: of a recording that has left, whose memory is used again: new pages take longer to get
  // than to fill.
  explicit PackedPhases(std::vector<Phase> phases, PackedPhases spare = {});
  PackedPhases(PackedPhases&&) = default;  // lanes refer to the lists below, which stay in place
  PackedPhases& operator=(PackedPhases&&) = default;
  size_t size() const { return ends_.size(); }
  std::span<const PackedLane> operator[](size_t phase) const {
    const size_t begin = phase == 0 ? 0 : ends_[phase - 1];
    return std::span(lanes_).subspan(begin, ends_[phase] - begin);
  }
  // Whether a phase has calls that read what other runs read, too (CallAction::shared), and the
  // first one behind it that has; size() if there is none.
  bool shares(size_t phase) const { return shares_[phase]; }
  size_t next_shares(size_t phase) const;
  size_t bytes() const;
  static size_t needed(const std::vector<Phase>& phases);  // bytes for their lists

 private:
  AlignedVector<Action> actions_;
  AlignedVector<Walk> walks_;
  AlignedVector<CallAction> calls_;
  AlignedVector<Move> moves_;
  AlignedVector<SharedBlock*> blocks_;
  std::vector<PackedLane> lanes_;
  std::vector<size_t> ends_;  // of phases, in lanes_
  std::vector<bool> shares_;
};

}  // namespace npu::emulator
