// The receiving side of DMA channels (receiver.h).
#include "devices/emulator/receiver.h"

#include <algorithm>
#include <cassert>

#include "devices/emulator/array.h"
#include "devices/emulator/core.h"
#include "devices/emulator/tile.h"

namespace npu::emulator {

using arch::TileKind;

namespace {

constexpr uint64_t kMaxObjectBytes = 16384;  // that memtiles keep in a block: blocks never shrink

}  // namespace

bool Receiver::takes_tile(uint64_t words) const {
  return tile_.core && tile_.core->accepts_aliases() && current_.total == words &&
         current_.left == words;
}

bool Receiver::takes_object(uint64_t words) const {
  const uint64_t bytes = words * 4;
  return tile_.geometry.kind == TileKind::kMem && current_.owner->keeps_blocks &&
         current_.total == words && current_.left == words && current_.walk.contiguous() >= words &&
         bytes >= AliasTable::kMinBytes && bytes <= kMaxObjectBytes;
}

bool Receiver::fills_range() const { return tile_.bds[static_cast<size_t>(current_.id)].fills; }

bool Receiver::can_alias(uint64_t words, uint64_t run) const {
  const Walk& walk = current_.walk;
  if (takes_tile(words) && run >= words && walk.contiguous() >= words) return true;
  // In simulated time others may use the memory before this move ends.
  if (array_.timed()) return false;
  const bool memory =
      tile_.core ? tile_.core->accepts_aliases() : tile_.geometry.kind == TileKind::kMem;
  const uint64_t mine = walk.contiguous() >= words ? words : walk.run();
  return memory && std::min(run, mine) * 4 >= AliasTable::kMinBytes;
}

void Receiver::begin_move(bool aliased) {
  assert(within_part(tile_) && (!array_.scheduler().in_columns() || !crosses()));
  state_ = State::kBusy;
  if (!aliased && current_.owner != nullptr) {
    current_.owner->aliases.flush(current_.offset, current_.span);
  }
}

void Receiver::alias_tile(uint64_t words, const AliasSource& source) {
  current_.owner->aliases.add(current_.offset + current_.walk.start() * 4, words * 4, source);
}

void Receiver::alias_next(uint64_t words, std::byte* argument, const BlockRef& packing) {
  Walk& walk = current_.walk;
  while (words > 0) {
    const uint64_t n = std::min(words, walk.contiguous());
    current_.owner->aliases.add(current_.offset + walk.next() * 4, n * 4, {argument, packing});
    walk.take_contiguous(n);
    argument += n * 4;
    words -= n;
  }
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
