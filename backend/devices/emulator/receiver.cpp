// The receiving side of DMA channels (receiver.h).
#include "devices/emulator/receiver.h"

#include <cassert>

#include "devices/emulator/array.h"
#include "devices/emulator/core.h"
#include "devices/emulator/tile.h"

namespace npu::emulator {

using arch::TileKind;

bool Receiver::can_alias(uint64_t words) const {
  return tile_.core && tile_.core->accepts_aliases() && current_.total == words &&
         current_.left == words;
}

bool Receiver::fills_range() const { return tile_.bds[static_cast<size_t>(current_.id)].fills; }

void Receiver::begin_move(bool aliased) {
  assert(within_part(tile_) && (!array_.scheduler().in_columns() || !crosses()));
  state_ = State::kBusy;
  if (!aliased && tile_.geometry.kind == TileKind::kCore) {
    tile_.aliases.flush(current_.bd.base * 4, current_.span);
  }
}

void Receiver::alias(uint64_t words, const AliasSource& source) {
  tile_.aliases.add((current_.bd.base + current_.walk.start()) * 4, words * 4, source);
}

void Receiver::accept(uint64_t words) {
  current_.left -= words;
  state_ = State::kMove;
  if (current_.left == 0) finish_bd();
  // Untimed, a BD that can begin does so at once: its sender, which looks next, need not be woken.
  if (state_ == State::kAcquire && current_.total > 0 && !array_.timed() && !crosses()) {
    if (!acquire()) return;
    begin_transfer();
    array_.scheduler().wake_all(senders_, this);
    return;
  }
  array_.scheduler().wake(this, this);
}

bool Receiver::transfer() {
  array_.scheduler().wake_all(senders_, this);
  return false;
}

std::string Receiver::waiting_for_stream() const {
  return strf("waits for data (%s)", progress().c_str());
}

}  // namespace npu::emulator
