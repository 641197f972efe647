// The locks and the memory that a channel's running BD names (bd_engine.h).
#include <cassert>
#include <cstdlib>

#include "devices/emulator/array.h"
#include "devices/emulator/bd_engine.h"
#include "devices/emulator/replay/action_log.h"
#include "devices/emulator/tile.h"

namespace npu::emulator {

using arch::Direction;
using arch::TileKind;

// Memtile channels 4 and 5 reach only their own tile (hardware.md 2.6).
Tile* BdEngine::tile_beside(int side) const {
  if (side == 0) return &tile_;
  return side <= 1 && index_ < 4 ? array_.find_tile(tile_.col + side, tile_.row) : nullptr;
}

// Memtile ids 0-63 are the west neighbour's, 64-127 own, 128-191 the east's.
Tile* BdEngine::lock_owner(uint32_t id, uint32_t* local) const {
  const bool memtile = tile_.geometry.kind == TileKind::kMem;
  *local = memtile ? id % 64 : id;
  Tile* owner = memtile ? tile_beside(static_cast<int>(id / 64) - 1) : &tile_;
  return owner && *local < owner->locks.size() ? owner : nullptr;
}

Lock& BdEngine::lock_of(uint32_t id, const char* what) const {
  uint32_t local = 0;
  if (Tile* owner = lock_owner(id, &local)) {
    assert(within_part(*owner));
    return owner->locks[local];
  }
  error(ErrorKind::kLock,
        strf("cannot %s lock %u, as BD %d asks%s; use a lock this channel reaches", what, id,
             current_.id,
             tile_.geometry.kind == TileKind::kMem
                 ? " (0-63 west, 64-127 own, 128-191 east memtile; channels 4 and 5 only own)"
                 : ""));
}

std::string BdEngine::lock_name(uint32_t id) const {
  uint32_t local = 0;
  const Tile* owner = lock_owner(id, &local);
  return owner ? strf("lock %u of %s", local, owner->name().c_str()) : strf("lock %u", id);
}

bool BdEngine::acquire() {
  const arch::Bd& bd = current_.bd;
  if (!bd.acquire_enable) return true;
  Lock& lock = lock_of(bd.acquire_id, "acquire");
  const bool free =
      bd.acquire_value < 0 ? lock.value >= -bd.acquire_value : lock.value == bd.acquire_value;
  if (!free) {
    add_waiter(lock.waiters, this);
    return false;
  }
  current_.lock_written = lock.written;
  if (bd.acquire_value != 0) {
    lock.value -= std::abs(bd.acquire_value);
    array_.scheduler().wake_all(lock.waiters, this);
  }
  return true;
}

void BdEngine::rearm(int bd) {
  if (state_ != State::kMove || current_.id != bd || has_moved()) return;
  const arch::Bd& held = current_.bd;
  if (!held.acquire_enable) return;
  if (lock_of(held.acquire_id, "acquire").written == current_.lock_written) return;
  state_ = State::kAcquire;
  array_.scheduler().wake(this, this);
}

void BdEngine::release_lock() {
  const arch::Bd& bd = current_.bd;
  if (bd.release_value == 0) return;
  Lock& lock = lock_of(bd.release_id, "release");
  const int value = lock.value + bd.release_value;
  if (value < 0 || value > arch::kMaxLockValue) {
    error(
        ErrorKind::kLock,
        strf("releases %s by %d after BD %d, which makes it %d; a lock holds 0..%d, so balance its "
             "acquires and releases",
             lock_name(bd.release_id).c_str(), bd.release_value, current_.id, value,
             arch::kMaxLockValue));
  }
  lock.value = value;
  array_.scheduler().wake_all(lock.waiters, this);
}

BdEngine::Memory BdEngine::resolve_host() const {
  const Array::HostMemory host = array_.host_memory(current_.bd.base);
  if (!host.data) {
    error(ErrorKind::kOutOfRange,
          strf("runs BD %d at device address 0x%llx, where no argument lies (%s); patch its "
               "address",
               current_.id, static_cast<unsigned long long>(current_.bd.base),
               array_.describe_buffers().c_str()));
  }
  if (direction_ == Direction::kS2MM && !host.writable) {
    error(ErrorKind::kArgument,
          strf("writes, with BD %d, an argument that was given read-only; pass a writable array",
               current_.id));
  }
  return {host.data, host.bytes / 4, host.constant, host.present};
}

// A trace unit's buffer, which programs of others leave at an address that nothing has patched.
bool BdEngine::is_stray() const {
  return tile_.geometry.kind == TileKind::kShim && direction_ == Direction::kS2MM &&
         array_.host_memory(current_.bd.base).data == nullptr &&
         array_.receives_no_data(tile_, index_);
}

BdEngine::Memory BdEngine::resolve() const {
  if (tile_.geometry.kind == TileKind::kShim) return resolve_host();
  const bool memtile = tile_.geometry.kind == TileKind::kMem;
  const uint64_t address = current_.bd.base * 4, bytes = tile_.geometry.memory_bytes;
  const bool beside =
      memtile && !(address < bytes && tile_.bds[static_cast<size_t>(current_.id)].addresses_own);
  Tile* owner = beside ? tile_beside(static_cast<int>(address / bytes) - 1) : &tile_;
  const uint64_t offset = memtile ? address % bytes : address;
  if (!owner || offset >= bytes) {
    error(
        ErrorKind::kOutOfRange,
        strf("runs BD %d at byte 0x%llx of its address space, where it reaches no memory%s; "
             "correct the BD's base",
             current_.id, static_cast<unsigned long long>(address),
             memtile ? " (0x0 west, 0x80000 own, 0x100000 east memtile; channels 4 and 5 only own)"
                     : ""));
  }
  assert(within_part(*owner));
  return {owner->memory.data() + offset,
          (bytes - offset) / 4,
          false,
          array_.moves_data(),
          owner,
          offset};
}

void BdEngine::check_padding() const {
  if (direction_ == Direction::kS2MM || tile_.geometry.kind != TileKind::kMem) {
    error(ErrorKind::kInvalidBd,
          strf("runs BD %d, which has padding; only memtile MM2S channels can pad", current_.id));
  }
  if (const char* problem = padding_problem(current_.bd)) {
    error(ErrorKind::kInvalidBd, strf("runs BD %d, whose padding %s", current_.id, problem));
  }
}

// After the acquire: checks the whole access against the memory and sets the walk up.
void BdEngine::begin_transfer() {
  state_ = State::kMove;
  if (current_.total == 0) return;
  // A BD in use is not rewritten, so the slot still is that of the latched BD.
  const BdSlot& slot = tile_.bds[static_cast<size_t>(current_.id)];
  const uint64_t begin = uint64_t{current_.bd.iteration_current} * current_.bd.iteration_step;
  if (slot.padded) check_padding();
  const Memory memory = resolve();
  const uint64_t last = begin + slot.last;
  if (last >= memory.words) {
    const bool shim = tile_.geometry.kind == TileKind::kShim;
    error(ErrorKind::kOutOfRange,
          strf("runs BD %d (length %llu words), which reaches word %llu past its base, but only "
               "%llu words are there%s%s; correct its base, length or strides",
               current_.id, static_cast<unsigned long long>(current_.total),
               static_cast<unsigned long long>(last), static_cast<unsigned long long>(memory.words),
               shim ? "; arguments: " : "", shim ? array_.describe_buffers().c_str() : ""));
  }
  current_.owner = memory.owner;
  current_.offset = memory.offset;
  current_.span = (last + 1) * 4;
  current_.readable = memory.readable;
  current_.patch = memory.owner ? 0 : slot.patch;
  ActionLog* const log = memory.owner ? nullptr : ActionLog::current();
  if (log && current_.patch) log->uses_patch(current_.patch, current_.span, memory.constant);
  current_.walk = slot.pattern;
  current_.walk.rebase(memory.readable ? memory.data : nullptr, begin);
  prepare_transfer(memory);
}

}  // namespace npu::emulator
