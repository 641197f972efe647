// Tasks and BDs of a DMA channel (bd_engine.h).
#include "devices/emulator/bd_engine.h"

#include <cstdlib>

#include "devices/emulator/array.h"
#include "devices/emulator/tile.h"

namespace npu::emulator {

using arch::Direction;
using arch::TileKind;

namespace {

// BDs without data in a row before a chain counts as a livelock; a finite task has at most
// 256 repeats x 48 BDs of them.
constexpr int kMaxEmptyBds = 1 << 16;
// Moves in a row while others of the column wait.
constexpr int kMaxMoves = 256;

const char* reach_text(TileKind kind) {
  return kind == TileKind::kMem ? "; even channels 0-23, odd ones 24-47" : "";
}

}  // namespace

BdEngine::BdEngine(Array& array, Tile& tile, Direction direction, int index)
    : Agent(tile.col), array_(array), tile_(tile), direction_(direction), index_(index) {
  queue_.reserve(arch::kTaskQueueDepth);
}

BdEngine::BdEngine(Array& array, Tile& tile, Direction direction, NoBds)
    : Agent(tile.col), array_(array), tile_(tile), direction_(direction), index_(-1) {}

void BdEngine::run_words(std::span<uint32_t> words, bool tlast) {
  task_ = Task{};
  current_ = Current{};
  current_.bd.tlast_suppress = !tlast;
  current_.total = current_.left = words.size();
  current_.walk = Walk::linear(reinterpret_cast<std::byte*>(words.data()));
  state_ = State::kMove;
}

std::string BdEngine::name() const {
  return strf("%s %s %d", tile_.name().c_str(), direction_ == Direction::kS2MM ? "S2MM" : "MM2S",
              index_);
}

void BdEngine::error(ErrorKind kind, const std::string& text) const {
  fail(kind, "[%s] %s %s", array_.function(), name().c_str(), text.c_str());
}

void BdEngine::reset() {
  queue_.clear();
  task_.reset();
  state_ = State::kIdle;
  current_.left = current_.total = 0;
}

void BdEngine::push(uint32_t word) {
  const uint32_t bd_mask = tile_.geometry.kind == TileKind::kMem ? 0x3F : 0xF;
  Task task;
  task.bd = static_cast<int>(word & bd_mask);
  task.repeats_left = static_cast<int>(word >> 16 & 0xFF);
  task.token = word >> 31;
  if (!task_) start_task();  // the queue's first may not have moved up yet
  if (queue_.size() == arch::kTaskQueueDepth) {
    const std::string why = waiting();
    fail(ErrorKind::kQueueOverrun,
         "[%s] pushes a task on %s while %zu tasks wait behind the running one%s%s; the hardware "
         "drops it. Wait for a token of this channel before pushing more",
         array_.who().c_str(), name().c_str(), queue_.size(), why.empty() ? "" : ", which ",
         why.c_str());
  }
  if (!arch::bd_reachable(tile_.geometry.kind, index_, task.bd)) {
    fail(ErrorKind::kInvalidBd,
         "[%s] pushes BD %d on %s, which cannot reach it (%d BDs%s); use a BD the channel reaches",
         array_.who().c_str(), task.bd, name().c_str(), tile_.geometry.bds,
         reach_text(tile_.geometry.kind));
  }
  queue_.push_back(task);
  if (!task_) start_task();
  array_.scheduler().wake(this, this);
}

uint32_t BdEngine::status() const {
  uint32_t bits = task_ ? 2u | 1u << 19 : 0u;
  if (state_ == State::kAcquire && current_.bd.acquire_enable) bits |= 1u << 2;
  if (state_ == State::kMove) bits |= 1u << 4;
  bits |= static_cast<uint32_t>(queue_.size()) << 20;
  bits |= static_cast<uint32_t>(current_.id) << 24;
  return bits;
}

BdSlot& BdEngine::slot(int bd) const {
  return tile_.bds[static_cast<size_t>(bd)].decode(tile_.geometry);
}

bool BdEngine::chain_contains(int start, int bd) const {
  uint64_t seen = 0;
  for (int id = start; id < tile_.geometry.bds && !(seen >> id & 1);) {
    if (id == bd) return true;
    seen |= uint64_t{1} << id;
    const arch::Bd& at = slot(id).bd;
    if (!at.use_next) return false;
    id = static_cast<int>(at.next_bd);
  }
  return false;
}

bool BdEngine::uses_bd(int bd) const {
  if (task_) {
    if (chain_contains(current_.id, bd)) return true;
    if (task_->repeats_left > 0 && chain_contains(task_->bd, bd)) return true;
  }
  for (const Task& task : queue_) {
    if (chain_contains(task.bd, bd)) return true;
  }
  return false;
}

void BdEngine::check_modes() const {
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

bool BdEngine::start_task() {
  if (queue_.empty()) return false;
  check_modes();
  task_ = queue_.front();
  queue_.erase(queue_.begin());
  start_bd(task_->bd);
  return true;
}

void BdEngine::start_bd(int id) {
  if (!arch::bd_reachable(tile_.geometry.kind, index_, id)) {
    error(ErrorKind::kInvalidBd,
          strf("reaches BD %d in its chain, which it cannot use (%d BDs%s); correct the next BD",
               id, tile_.geometry.bds, reach_text(tile_.geometry.kind)));
  }
  const arch::Bd& bd = slot(id).bd;
  current_.id = id;
  current_.bd = bd;
  if (!bd.valid) {
    error(ErrorKind::kInvalidBd,
          strf("runs BD %d, whose valid bit is not set; write the BD before pushing it", id));
  }
  if (bd.compression) {
    error(ErrorKind::kUnsupported,
          strf("runs BD %d, which enables compression; the emulator does not model it", id));
  }
  if (direction_ == Direction::kMM2S && bd.packet_enable && bd.length == 0) {
    error(
        ErrorKind::kInvalidBd,
        strf("runs BD %d, which has packets enabled but length 0; give it data or disable packets",
             id));
  }
  current_.total = current_.left = bd.length;
  state_ = State::kAcquire;
}

void BdEngine::finish_bd() {
  release_lock();
  const arch::Bd& bd = current_.bd;
  if (bd.iteration_wrap > 1) {
    slot(current_.id).set_iteration(tile_.geometry, (bd.iteration_current + 1) % bd.iteration_wrap);
  }
  if (!bd.tlast_suppress) end_of_data();
  // Finished shim BDs are progress, but not those of a circular chain: no submission waits for it.
  if (tile_.geometry.kind == TileKind::kShim && ++task_->bds_in_pass <= tile_.geometry.bds) {
    array_.scheduler().progressed(this);
  }
  if (bd.use_next) {
    start_bd(static_cast<int>(bd.next_bd));
  } else if (task_->repeats_left > 0) {
    --task_->repeats_left;
    task_->bds_in_pass = 0;
    start_bd(task_->bd);
  } else {
    const bool token = task_->token;
    task_.reset();
    state_ = State::kIdle;
    if (token) array_.add_token(tile_.col, tile_.row, direction_, index_);
    task_ended();
  }
}

// What the next step does not look at becomes the same for all: before the acquire the places of
// the BD before, and where an alias had the data, which is looked up before they move.
void BdEngine::Current::rest(State state) {
  if (state != State::kMove) {
    walk = {};
    owner = nullptr;
    offset = span = 0;
    readable = true;
  } else if (owner != nullptr) {
    walk.move_to(owner->memory.data() + offset);
  }
}

std::optional<BdEngine::Rest> BdEngine::rest() const {
  if (state_ == State::kBusy || state_ == State::kStray) return std::nullopt;
  Rest rest{control, state_, current_, queue_, task_};
  rest.current.rest(state_);
  return rest;
}

void BdEngine::put(const Rest& rest) {
  control = rest.control;
  state_ = rest.state;
  current_ = rest.current;
  queue_ = rest.queue;
  task_ = rest.task;
}

bool BdEngine::crosses() const {
  if (!task_) return false;
  return tile_.bds[static_cast<size_t>(current_.id)].reaches_neighbour || stream_crosses();
}

bool BdEngine::within_part(const Tile& other) const {
  return other.col == tile_.col || !array_.scheduler().in_columns();
}

// Untimed, a channel advances in the part of a round where its next step belongs.
bool BdEngine::defer_to_other_part() {
  if (array_.timed()) return false;
  const bool here = array_.scheduler().in_columns();
  const bool there = crosses();
  set_crosses(there);
  if (there != here) return false;
  array_.scheduler().wake(this, this);
  return true;
}

void BdEngine::advance() {
  int empty = 0, moves = 0;
  while (true) {
    if (defer_to_other_part()) return;
    switch (state_) {
      case State::kBusy:
      case State::kStray:
        return;
      case State::kIdle:
        if (!start_task()) return;
        break;
      case State::kAcquire:
        if (!acquire()) return;
        if (is_stray()) {
          state_ = State::kStray;
        } else {
          begin_transfer();
        }
        break;
      case State::kMove:
        if (has_work_left()) {
          if (!transfer()) return;
          if (++moves == kMaxMoves) return array_.scheduler().wake(this, this);
          break;
        }
        if (++empty > kMaxEmptyBds) {
          error(ErrorKind::kInvalidBd,
                strf("is in a livelock: a circular chain of BDs of length 0 (BD %d); end the "
                     "chain, give it data or a lock that can block",
                     current_.id));
        }
        finish_bd();
        break;
    }
  }
}

std::string BdEngine::progress() const {
  if (!task_) return "";
  const std::string words = strf("moved %llu of %llu words",
                                 static_cast<unsigned long long>(current_.total - current_.left),
                                 static_cast<unsigned long long>(current_.total));
  return is_channel() ? strf("%s of BD %d", words.c_str(), current_.id) : words;
}

std::string BdEngine::waiting() const {
  if (!task_) return "";
  if (state_ == State::kStray) {
    return strf("has BD %d at an address where no argument lies", current_.id);
  }
  if (state_ != State::kAcquire) return waiting_for_stream();
  const arch::Bd& bd = current_.bd;
  if (!bd.acquire_enable) return strf("has BD %d to run", current_.id);
  uint32_t local = 0;
  const Tile* owner = lock_owner(bd.acquire_id, &local);
  return strf("waits for %s to be %s %d (it is %d) before BD %d", lock_name(bd.acquire_id).c_str(),
              bd.acquire_value < 0 ? ">=" : "==", std::abs(bd.acquire_value),
              owner ? owner->locks[local].value : 0, current_.id);
}

}  // namespace npu::emulator
