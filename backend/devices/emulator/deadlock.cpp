// Reports for runs that deadlock or livelock: who waits for which lock, stream or token, and the
// likely cause.
#include <algorithm>

#include "devices/emulator/array.h"
#include "devices/emulator/ports.h"
#include "devices/emulator/sender.h"
#include "error.h"

namespace npu::emulator {

using arch::Direction;
using arch::TileKind;

namespace {

constexpr size_t kMaxLines = 24;

}  // namespace

// Blocked agents, the most informative first: cores, shim channels, transfers under way.
std::string Array::blocked_agents() const {
  std::vector<std::string> first, rest;
  for (const auto& t : tiles_) {
    if (t->core && !t->core->waiting().empty()) {
      (t->core->unloaded() ? rest : first).push_back(t->core->name() + " " + t->core->waiting());
    }
    for (const auto& side : t->channels) {
      for (const auto& channel : side) {
        const std::string why = channel->waiting();
        if (why.empty()) continue;
        const bool informative = t->geometry.kind == TileKind::kShim ||
                                 channel->direction() == Direction::kMM2S || channel->has_moved();
        (informative ? first : rest).push_back(channel->name() + " " + why);
      }
    }
    if (const std::string why = t->ports->control.waiting(); !why.empty()) {
      first.push_back(t->ports->control.name() + " " + why);
    }
  }
  first.insert(first.end(), rest.begin(), rest.end());
  std::string text;
  for (size_t i = 0; i < first.size(); ++i) {
    if (i == kMaxLines) {
      text += strf("\n  ... and %zu more", first.size() - i);
      break;
    }
    text += "\n  " + first[i];
  }
  return text.empty() ? "\n  no other agent is waiting" : text;
}

namespace {

// Whether any BD of a tile (or a neighbouring memtile) or a core that reaches it could release lock
// `id`.
bool can_be_released(const Array& array, const Tile& owner, int id) {
  // A core's locks are reached by its neighbours' cores, too.
  for (const auto& [col, row] : {std::pair(0, 0), {0, 1}, {0, -1}, {1, 0}}) {
    const Tile* t = array.find_tile(owner.col + col, owner.row + row);
    if (t && t->core && t->core->releases(owner, id)) return true;
  }
  for (int side = -1; side <= 1; ++side) {
    if (side != 0 && owner.geometry.kind != TileKind::kMem) continue;
    const Tile* t = array.find_tile(owner.col + side, owner.row);
    if (!t) continue;
    const uint32_t named =
        static_cast<uint32_t>(owner.geometry.kind == TileKind::kMem ? id + 64 * (1 - side) : id);
    for (const BdSlot& slot : t->bds) {
      const arch::Bd bd = arch::decode_bd(t->geometry.kind, slot.words);
      if (bd.valid && bd.release_value > 0 && bd.release_id == named) return true;
    }
  }
  return false;
}

}  // namespace

// The commonest cause is a lock that an agent waits for and nothing releases.
std::string Array::likely_cause(Awaited awaited) const {
  for (const auto& t : tiles_) {
    if (t->program_lost) {
      return strf(
          "\nlikely cause: the stream has overwritten the program of %s; this core has no "
          "program, attach one",
          t->name().c_str());
    }
    for (size_t id = 0; id < t->locks.size(); ++id) {
      if (t->locks[id].waiters.empty() || can_be_released(*this, *t, static_cast<int>(id))) {
        continue;
      }
      const bool no_program = t->geometry.kind == TileKind::kCore && !t->core;
      return strf(
          "\nlikely cause: %s waits for lock %zu of %s, which no core program and no BD releases%s",
          t->locks[id].waiters.front()->name().c_str(), id, t->name().c_str(),
          no_program ? "; this core has no program, attach one" : "");
    }
  }
  for (const Direction direction : {Direction::kS2MM, Direction::kMM2S}) {
    for (const auto& t : tiles_) {
      if (t->geometry.kind != TileKind::kShim) continue;
      for (const auto& channel : t->channels[static_cast<size_t>(direction)]) {
        if (channel->idle() || channel->waiting().empty()) continue;
        if (direction == Direction::kS2MM) {
          return strf(
              "\nlikely cause: %s has not received all its data: the stream pushed too little "
              "input, its length does not match what the array produces, or a core has no program",
              channel->name().c_str());
        }
        return strf(
            "\nlikely cause: no receiver takes the rest of what %s sends: the receiver's tasks are "
            "too short or missing, or a core that should consume the data has no program (the "
            "emulator's streams buffer no words between DMAs)",
            channel->name().c_str());
      }
    }
  }
  if (awaited == Awaited::kRegister) {
    return "\nlikely cause: nothing that is still running changes this register to that value; "
           "check the address, the mask, and that the value has no bits outside the mask";
  }
  return "\nlikely cause: no task that issues this token is pending; check the token bit of the "
         "queue push and the channel the stream waits on";
}

void Array::deadlock(Awaited awaited, const std::string& what) {
  check_routes();
  fail(ErrorKind::kDeadlock, "[%s] deadlock: it waits for %s, and no agent can make progress:%s%s",
       who().c_str(), what.c_str(), blocked_agents().c_str(), likely_cause(awaited).c_str());
}

// Agents that keep each other busy forever, as they would on the hardware.
void Array::livelock() {
  check_routes();
  std::string busy;
  int count = 0;
  for (const auto& t : tiles_) {
    if (t->core && t->core->waiting().empty() && count++ < 8) busy += "\n  " + t->core->name();
    for (const auto& side : t->channels) {
      for (const auto& channel : side) {
        if (!channel->idle() && count++ < 8) {
          busy += "\n  " + channel->name() + " " + channel->progress();
        }
      }
    }
  }
  fail(operation_ ? ErrorKind::kDeadlock : ErrorKind::kUnfinished,
       "[%s] livelock: the array keeps working, but nothing the stream waits for happened within "
       "the "
       "watchdog budget of %llu work units. Give its loops a lock that another agent releases:%s%s",
       who().c_str(), static_cast<unsigned long long>(watchdog_budget_), busy.c_str(),
       count > 8 ? strf("\n  ... and %d more", count - 8).c_str() : "");
}

// A shim transfer that is not complete when the stream ends would outlive its host buffers. One
// that no data comes for (receives_no_data) leaves its buffer as it is, and is reported.
void Array::check_finished(const char* when) {
  check_routes();
  for (const auto& t : tiles_) {
    if (t->geometry.kind != TileKind::kShim) continue;
    for (const auto& sender : t->senders) {
      if (!sender->idle() || !sender->within_control()) continue;
      fail(ErrorKind::kUnfinished,
           "[%s] %s inside a transfer of control packets: the last BD of %s suppresses TLAST; "
           "clear that bit",
           run_function(), when, sender->name().c_str());
    }
    for (const auto& side : t->channels) {
      for (const auto& channel : side) {
        if (channel->idle()) continue;
        if (channel->direction() == Direction::kS2MM && receives_no_data(*t, channel->index())) {
          dropped_.insert(dropped_.end(), channel->tasks(), channel->name());
          channel->reset();
          continue;
        }
        const std::string why = channel->waiting();
        fail(ErrorKind::kUnfinished,
             "[%s] %s while %s has tasks pending (%s); its host buffer would be "
             "released under it. Wait for its token, and check that the array produces or takes "
             "all its data:%s",
             run_function(), when, channel->name().c_str(), why.empty() ? "queued" : why.c_str(),
             blocked_agents().c_str());
      }
    }
  }
}

}  // namespace npu::emulator
