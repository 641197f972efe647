// DMA channels: task queue, BD execution, locks, tokens and memories (tile.h: Channel). Semantics:
// hardware.md 2.6.
#include <algorithm>
#include <cassert>
#include <cstdlib>

#include "emulator/array.h"
#include "emulator/tile.h"
#include "error.h"

namespace npu::emulator {

using arch::Direction;
using arch::TileKind;

namespace {

// BDs without data in a row before a chain counts as endless; a finite task has at most
// 256 repeats x 48 BDs of them.
constexpr int kMaxEmptyBds = 1 << 16;
// Moves in a row while others of the column wait.
constexpr int kMaxMoves = 256;

// Whether a memtile's BD names locks or memory of the tiles beside it (ids 64-127 and addresses
// from 0x80000 on are its own).
bool reaches_neighbours(const arch::TileModel& model, const arch::Bd& bd) {
  if (model.kind != TileKind::kMem) return false;
  return (bd.acquire_enable && bd.acquire_id / 64 != 1) ||
         (bd.release_value != 0 && bd.release_id / 64 != 1) ||
         bd.base * 4 / model.memory_bytes != 1;
}

// Bit position of the 6-bit iteration counter in a BD's register words.
struct CounterField {
  int word, low;
};
CounterField iteration_field(TileKind kind) {
  switch (kind) {
    case TileKind::kShim:
      return {6, 26};
    case TileKind::kMem:
      return {6, 23};
    case TileKind::kCore:
      break;
  }
  return {4, 19};
}

}  // namespace

Channel::Channel(Array& array, Tile& tile, Direction direction, int index)
    : Agent(tile.col), array_(array), tile_(tile), direction_(direction), index_(index) {}

std::string Channel::name() const {
  return strf("%s %s %d", tile_.name().c_str(), direction_ == Direction::kS2MM ? "S2MM" : "MM2S",
              index_);
}

void Channel::error(ErrorKind kind, const std::string& text) const {
  fail(kind, "[%s] %s %s", array_.function(), name().c_str(), text.c_str());
}

void Channel::reset() {
  if (in_packet_) close_packet();
  queued_ = 0;
  active_ = false;
  state_ = State::kIdle;
  left_ = total_ = 0;
  alias_ = {};
  route_open_ = header_pending_ = false;
  blocked_sink_ = nullptr;
  blocked_tile_ = nullptr;
  // senders_ stay: they wait for the next task.
}

void Channel::push(uint32_t word) {
  const uint32_t bd_mask = tile_.model.kind == TileKind::kMem ? 0x3F : 0xF;
  Task task;
  task.bd = static_cast<int>(word & bd_mask);
  task.repeats = static_cast<int>(word >> 16 & 0xFF) + 1;
  task.token = word >> 31;
  if (!active_) start_task();  // the queue's first may not have moved up yet
  if (queued_ == arch::kTaskQueueDepth) {
    const std::string why = waiting();
    fail(ErrorKind::kQueueOverrun,
         "[%s] pushes a task on %s while %d tasks wait behind the running one%s%s; the hardware "
         "drops "
         "it. Wait for a token of this channel before pushing more",
         array_.who().c_str(), name().c_str(), queued_, why.empty() ? "" : ", which ", why.c_str());
  }
  if (!arch::bd_reachable(tile_.model.kind, index_, task.bd)) {
    fail(ErrorKind::kInvalidBd,
         "[%s] pushes BD %d on %s, which cannot reach it (%d BDs%s); use a BD the channel reaches",
         array_.who().c_str(), task.bd, name().c_str(), tile_.model.bds,
         tile_.model.kind == TileKind::kMem ? "; even channels 0-23, odd ones 24-47" : "");
  }
  queue_[static_cast<size_t>(queued_++)] = task;
  if (!active_) start_task();
  array_.scheduler().wake(this, this);
}

uint32_t Channel::status() const {
  uint32_t bits = active_ ? 2u | 1u << 19 : 0u;
  if (state_ == State::kAcquire && bd_.acquire_enable) bits |= 1u << 2;
  if (state_ == State::kMove) bits |= 1u << 4;
  bits |= static_cast<uint32_t>(queued_) << 20;
  bits |= static_cast<uint32_t>(bd_id_) << 24;
  return bits;
}

bool Channel::chain_contains(int start, int bd) const {
  uint64_t seen = 0;
  for (int id = start; id < tile_.model.bds && !(seen >> id & 1);) {
    if (id == bd) return true;
    seen |= uint64_t{1} << id;
    const arch::Bd& at = decoded(id).bd;
    if (!at.use_next) return false;
    id = static_cast<int>(at.next_bd);
  }
  return false;
}

bool Channel::uses_bd(int bd) const {
  if (active_) {
    if (chain_contains(bd_id_, bd)) return true;
    if (repeats_left_ > 0 && chain_contains(task_.bd, bd)) return true;
  }
  for (int i = 0; i < queued_; ++i) {
    if (chain_contains(queue_[static_cast<size_t>(i)].bd, bd)) return true;
  }
  return false;
}

void Channel::check_modes() const {
  const bool s2mm = direction_ == Direction::kS2MM;
  const char* mode = nullptr;
  if (s2mm && (control >> 16 & 3)) mode = "finish-on-TLAST";
  if (s2mm && (control >> 3 & 1)) mode = "out-of-order BDs";
  if (control >> 4 & 1) mode = s2mm ? "decompression" : "compression";
  if (!mode) return;
  error(ErrorKind::kUnsupported,
        strf("is told by its control register (0x%08x) to use %s, which the emulator does not "
             "model; clear that bit",
             control, mode));
}

bool Channel::start_task() {
  if (queued_ == 0) return false;
  check_modes();
  task_ = queue_[0];
  std::copy(queue_.begin() + 1, queue_.begin() + queued_, queue_.begin());
  --queued_;
  active_ = true;
  repeats_left_ = task_.repeats - 1;
  bds_in_pass_ = 0;
  start_bd(task_.bd);
  return true;
}

BdSlot& Channel::decoded(int bd) const {
  BdSlot& slot = tile_.bds[static_cast<size_t>(bd)];
  if (!slot.stale) return slot;
  slot.bd = arch::decode_bd(tile_.model.kind, slot.words);
  arch::Bd first = slot.bd;
  first.iteration_current = 0;
  const int dims = tile_.model.address_dims;
  slot.pattern = Walk(nullptr, first, dims);
  slot.last = last_offset(first, dims, data_words(first));
  slot.fills = slot.pattern.fills(first.length);
  slot.neighbours = reaches_neighbours(tile_.model, slot.bd);
  slot.stale = false;
  return slot;
}

void Channel::start_bd(int id) {
  if (!arch::bd_reachable(tile_.model.kind, index_, id)) {
    error(ErrorKind::kInvalidBd,
          strf("reaches BD %d in its chain, which it cannot use (%d BDs%s); correct the next BD",
               id, tile_.model.bds,
               tile_.model.kind == TileKind::kMem ? "; even channels 0-23, odd ones 24-47" : ""));
  }
  bd_id_ = id;
  bd_ = decoded(id).bd;
  if (!bd_.valid) {
    error(ErrorKind::kInvalidBd,
          strf("runs BD %d, whose valid bit is not set; write the BD before pushing it", id));
  }
  if (bd_.compression) {
    error(ErrorKind::kUnsupported,
          strf("runs BD %d, which enables compression; the emulator does not model it", id));
  }
  if (direction_ == Direction::kMM2S && bd_.packet_enable && bd_.length == 0) {
    error(
        ErrorKind::kInvalidBd,
        strf("runs BD %d, which has packets enabled but length 0; give it data or disable packets",
             id));
  }
  total_ = left_ = bd_.length;
  state_ = State::kAcquire;
}

// The tile whose lock a BD names: memtile ids 0-63 are the west neighbour's, 64-127 own, 128-191
// the east's.
Tile* Channel::lock_owner(uint32_t id, uint32_t* local) const {
  Tile* owner = &tile_;
  *local = id;
  if (tile_.model.kind == TileKind::kMem) {
    const int side = static_cast<int>(id / 64) - 1;
    *local = id % 64;
    const bool allowed = side == 0 || (side <= 1 && index_ < 4);
    owner = allowed ? array_.find_tile(tile_.col + side, tile_.row) : nullptr;
  }
  return owner && *local < owner->locks.size() ? owner : nullptr;
}

Lock& Channel::lock_of(uint32_t id, const char* what) const {
  uint32_t local = 0;
  if (Tile* owner = lock_owner(id, &local)) {
    assert(within_part(*owner));
    return owner->locks[local];
  }
  error(
      ErrorKind::kLock,
      strf("cannot %s lock %u, as BD %d asks%s; use a lock this channel reaches", what, id, bd_id_,
           tile_.model.kind == TileKind::kMem
               ? " (0-63 west, 64-127 own, 128-191 east memtile; channels 4 and 5 only own)"
               : ""));
}

std::string Channel::lock_name(uint32_t id) const {
  uint32_t local = 0;
  const Tile* owner = lock_owner(id, &local);
  return owner ? strf("lock %u of %s", local, owner->name().c_str()) : strf("lock %u", id);
}

bool Channel::acquire() {
  if (!bd_.acquire_enable) return true;
  Lock& lock = lock_of(bd_.acquire_id, "acquire");
  const bool free =
      bd_.acquire_value < 0 ? lock.value >= -bd_.acquire_value : lock.value == bd_.acquire_value;
  if (!free) {
    add_waiter(lock.waiters, this);
    return false;
  }
  if (bd_.acquire_value != 0) {
    lock.value -= std::abs(bd_.acquire_value);
    array_.scheduler().wake_all(lock.waiters, this);
  }
  return true;
}

void Channel::release_lock() {
  if (bd_.release_value == 0) return;
  Lock& lock = lock_of(bd_.release_id, "release");
  const int value = lock.value + bd_.release_value;
  if (value < 0 || value > arch::kMaxLockValue) {
    error(
        ErrorKind::kLock,
        strf("releases %s by %d after BD %d, which makes it %d; a lock holds 0..%d, so balance its "
             "acquires and releases",
             lock_name(bd_.release_id).c_str(), bd_.release_value, bd_id_, value,
             arch::kMaxLockValue));
  }
  lock.value = value;
  array_.scheduler().wake_all(lock.waiters, this);
}

std::byte* Channel::resolve_host(uint64_t* words) {
  uint64_t left = 0;
  bool writable = false;
  std::byte* data = array_.host_memory(bd_.base, &left, &writable);
  if (!data) {
    error(
        ErrorKind::kOutOfRange,
        strf("runs BD %d at device address 0x%llx, where no argument lies (%s); patch its address",
             bd_id_, static_cast<unsigned long long>(bd_.base), array_.describe_buffers().c_str()));
  }
  if (direction_ == Direction::kS2MM && !writable) {
    error(ErrorKind::kArgument,
          strf("writes, with BD %d, an argument that was given read-only; pass a writable array",
               bd_id_));
  }
  *words = left / 4;
  read_only_ = !writable;
  return data;
}

// The memory a BD's base points at, and the words from there to the memory's end.
std::byte* Channel::resolve(uint64_t* words) {
  if (tile_.model.kind == TileKind::kShim) return resolve_host(words);
  Tile* owner = &tile_;
  uint64_t offset = bd_.base * 4;
  const bool memtile = tile_.model.kind == TileKind::kMem;
  if (memtile) {
    const int side = static_cast<int>(offset / tile_.model.memory_bytes) - 1;
    offset %= tile_.model.memory_bytes;
    const bool allowed = side == 0 || (side <= 1 && index_ < 4);
    owner = allowed ? array_.find_tile(tile_.col + side, tile_.row) : nullptr;
  }
  if (!owner || offset >= owner->memory->size()) {
    error(
        ErrorKind::kOutOfRange,
        strf("runs BD %d at byte 0x%llx of its address space, where it reaches no memory%s; "
             "correct the BD's base",
             bd_id_, static_cast<unsigned long long>(bd_.base * 4),
             memtile ? " (0x0 west, 0x80000 own, 0x100000 east memtile; channels 4 and 5 only own)"
                     : ""));
  }
  assert(within_part(*owner));
  *words = (owner->memory->size() - offset) / 4;
  return owner->memory->data() + offset;
}

void Channel::check_padding() const {
  if (direction_ == Direction::kS2MM || tile_.model.kind != TileKind::kMem) {
    error(ErrorKind::kInvalidBd,
          strf("runs BD %d, which has padding; only memtile MM2S channels can pad", bd_id_));
  }
  if (const char* problem = padding_problem(bd_)) {
    error(ErrorKind::kInvalidBd, strf("runs BD %d, whose padding %s", bd_id_, problem));
  }
}

// After the acquire: checks the whole access against the memory and sets the walk up.
void Channel::begin_transfer() {
  state_ = State::kMove;
  if (total_ == 0) return;
  // A BD in use is not rewritten, so the slot still is that of bd_.
  const BdSlot& slot = tile_.bds[static_cast<size_t>(bd_id_)];
  const uint64_t begin = uint64_t{bd_.iteration_current} * bd_.iteration_step;
  const bool padded = has_padding(bd_);
  if (padded) check_padding();
  uint64_t available = 0;
  std::byte* base = resolve(&available);
  const uint64_t last = begin + slot.last;
  if (last >= available) {
    const bool shim = tile_.model.kind == TileKind::kShim;
    error(
        ErrorKind::kOutOfRange,
        strf("runs BD %d (length %llu words), which reaches word %llu past its base, but only %llu "
             "words are there%s%s; correct its base, length or strides",
             bd_id_, static_cast<unsigned long long>(total_), static_cast<unsigned long long>(last),
             static_cast<unsigned long long>(available), shim ? "; arguments: " : "",
             shim ? array_.describe_buffers().c_str() : ""));
  }
  spanned_ = (last + 1) * 4;
  if (direction_ == Direction::kMM2S && tile_.model.kind == TileKind::kCore) {
    tile_.aliases.flush(bd_.base * 4, spanned_);
  }
  if (!array_.moves_data()) {
    walk_ = slot.pattern.rebased(nullptr, begin);
  } else if (padded) {
    staged_ = padded_stream(bd_, base, tile_.pad_value[static_cast<size_t>(index_)]);
    walk_ = Walk::linear(staged_.data());
  } else {
    walk_ = slot.pattern.rebased(base, begin);
  }
}

void Channel::finish_bd() {
  release_lock();
  BdSlot& slot = tile_.bds[static_cast<size_t>(bd_id_)];
  if (bd_.iteration_wrap > 1) {
    slot.bd.iteration_current = (bd_.iteration_current + 1) % bd_.iteration_wrap;
    const CounterField field = iteration_field(tile_.model.kind);
    uint32_t& word = slot.words[static_cast<size_t>(field.word)];
    word = (word & ~(0x3Fu << field.low)) | slot.bd.iteration_current << field.low;
  }
  if (in_packet_ && !bd_.tlast_suppress) close_packet();
  // A shim task that is no endless chain is what a submission waits for.
  if (tile_.model.kind == TileKind::kShim && ++bds_in_pass_ <= tile_.model.bds) {
    array_.scheduler().progressed(this);
  }
  if (bd_.use_next) {
    start_bd(static_cast<int>(bd_.next_bd));
  } else if (repeats_left_ > 0) {
    --repeats_left_;
    bds_in_pass_ = 0;
    start_bd(task_.bd);
  } else {
    active_ = false;
    state_ = State::kIdle;
    if (task_.token) array_.add_token(tile_.col, tile_.row, direction_, index_);
  }
}

// Whether the next step of the running BD may touch other columns: to find the receivers, to reach
// them or to take arbiters, or a lock or memory of a neighbour.
bool Channel::crosses() const {
  if (!active_) return false;
  if (tile_.bds[static_cast<size_t>(bd_id_)].neighbours) return true;
  if (direction_ == Direction::kS2MM) return false;
  if (in_packet_ || !route_stands() || route_crosses_) return true;
  // Only memtiles reach their neighbours.
  return std::any_of(route_.sinks.begin(), route_.sinks.end(), [](const Route::Sink& sink) {
    return sink.channel->tile_.model.kind == TileKind::kMem && sink.channel->crosses();
  });
}

// Whether this part of the round may touch a tile.
bool Channel::within_part(const Tile& other) const {
  return other.col == tile_.col || !array_.scheduler().in_columns();
}

// Untimed, a channel advances in the part of a round where its next step belongs.
bool Channel::belongs_elsewhere() {
  if (array_.timed()) return false;
  const bool here = array_.scheduler().in_columns();
  const bool there = crosses();
  set_crosses(there);
  if (there != here) return false;
  array_.scheduler().wake(this, this);
  return true;
}

void Channel::advance() {
  int empty = 0, moves = 0;
  while (true) {
    if (belongs_elsewhere()) return;
    switch (state_) {
      case State::kBusy:
        return;
      case State::kIdle:
        if (!start_task()) return;
        break;
      case State::kAcquire:
        if (!acquire()) return;
        begin_transfer();
        break;
      case State::kMove: {
        if (left_ == 0 && !header_pending_) {
          if (++empty > kMaxEmptyBds) {
            error(
                ErrorKind::kInvalidBd,
                strf(
                    "runs an endless chain of BDs of length 0 (BD %d); give the chain an end, data "
                    "or a lock that is not always free",
                    bd_id_));
          }
          finish_bd();
          break;
        }
        if (direction_ == Direction::kS2MM) {
          array_.scheduler().wake_all(senders_, this);
          return;
        }
        if (!open_route()) return;
        if (left_ == 0 && !header_pending_) break;  // the BD held nothing but its packet's header
        uint64_t words = 0;
        if (!sinks_ready(&words)) return;
        if (!begin_move(words)) return;
        finish_move();
        if (++moves == kMaxMoves) return array_.scheduler().wake(this, this);
        break;
      }
    }
  }
}

void Channel::accepted(uint64_t words) {
  left_ -= words;
  state_ = State::kMove;
  if (left_ == 0) finish_bd();
  // Untimed, a BD that can begin does so at once: its sender, which looks next, need not be woken.
  if (state_ == State::kAcquire && total_ > 0 && !array_.timed() && !crosses()) {
    if (!acquire()) return;
    begin_transfer();
    array_.scheduler().wake_all(senders_, this);
    return;
  }
  array_.scheduler().wake(this, this);
}

std::string Channel::progress() const {
  if (!active_) return "";
  return strf("moved %llu of %llu words of BD %d", static_cast<unsigned long long>(total_ - left_),
              static_cast<unsigned long long>(total_), bd_id_);
}

std::string Channel::waiting() const {
  if (!active_) return "";
  if (state_ == State::kAcquire && bd_.acquire_enable) {
    uint32_t local = 0;
    const Tile* owner = lock_owner(bd_.acquire_id, &local);
    return strf("waits for %s to be %s %d (it is %d) before BD %d",
                lock_name(bd_.acquire_id).c_str(),
                bd_.acquire_value < 0 ? ">=" : "==", std::abs(bd_.acquire_value),
                owner ? owner->locks[local].value : 0, bd_id_);
  }
  if (state_ == State::kAcquire) return strf("has BD %d to run", bd_id_);
  if (direction_ == Direction::kS2MM) return strf("waits for data (%s)", progress().c_str());
  std::string what = "is ready";
  if (blocked_tile_) {
    const Agent* holder =
        blocked_tile_->stream_switch.holder[static_cast<size_t>(blocked_arbiter_)];
    what = strf("waits for arbiter %d of %s, held by %s", blocked_arbiter_,
                blocked_tile_->name().c_str(), holder ? holder->name().c_str() : "nobody");
  } else if (blocked_sink_) {
    what = strf("waits for %s to take %s", blocked_sink_->name().c_str(),
                header_pending_
                    ? "a packet header"
                    : strf("%llu more words", static_cast<unsigned long long>(left_)).c_str());
  }
  return strf("%s (%s)", what.c_str(), progress().c_str());
}

}  // namespace npu::emulator
