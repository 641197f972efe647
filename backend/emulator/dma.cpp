// DMA channels: task queue, BD execution, locks, tokens and the data moves (tile.h: Channel).
// Semantics: hardware.md 2.6. An MM2S channel pairs with every S2MM channel its route reaches and
// moves as many words at once as all of them have room for; switch FIFOs are not modelled.
#include <algorithm>
#include <cassert>
#include <cstring>

#include "emulator/array.h"
#include "emulator/tile.h"
#include "error.h"

namespace npu::emulator {

using arch::Direction;
using arch::TileKind;

namespace {

constexpr int kMaxEmptyBds = 256;  // BDs without data in a row before a chain counts as endless

void register_waiter(WaitList& list, Agent* agent) {
  if (std::find(list.begin(), list.end(), agent) == list.end()) list.push_back(agent);
}

// Bit position of the 6-bit iteration counter in a BD's register words.
struct CounterField {
  int word, low;
};
CounterField iteration_field(TileKind kind) {
  switch (kind) {
    case TileKind::kShim: return {6, 26};
    case TileKind::kMem: return {6, 23};
    case TileKind::kCore: break;
  }
  return {4, 19};
}

}  // namespace

Channel::Channel(Array& array, Tile& tile, Direction direction, int index)
    : array_(array), tile_(tile), direction_(direction), index_(index) {}

std::string Channel::name() const {
  return strf("%s %s %d", tile_.name().c_str(), direction_ == Direction::kS2MM ? "S2MM" : "MM2S",
              index_);
}

void Channel::reset() {
  queued_ = 0;
  active_ = false;
  state_ = State::kIdle;
  left_ = total_ = 0;
  route_open_ = in_packet_ = header_pending_ = false;
  senders_.clear();
  blocked_on_.clear();
}

void Channel::push(uint32_t word) {
  if (queue_full()) {
    fail(ErrorKind::kQueueOverrun,
         "[%s] a task was pushed while %d are waiting; the hardware would drop it. Wait for a token "
         "of this channel before pushing more%s%s",
         name().c_str(), queued_, waiting().empty() ? "" : ". The running task ",
         waiting().c_str());
  }
  const uint32_t bd_mask = tile_.model.kind == TileKind::kMem ? 0x3F : 0xF;
  Task task;
  task.bd = static_cast<int>(word & bd_mask);
  task.repeats = static_cast<int>(word >> 16 & 0xFF) + 1;
  task.token = word >> 31;
  queue_[static_cast<size_t>(queued_++)] = task;
  array_.scheduler().wake(this);
}

uint32_t Channel::status() const {
  uint32_t bits = active_ ? 2u : 0u;
  if (active_) bits |= 1u << 19;
  if (state_ == State::kAcquire) bits |= 1u << 2;
  if (state_ == State::kMove) bits |= 1u << 4;
  bits |= static_cast<uint32_t>(queued_) << 20;
  bits |= static_cast<uint32_t>(bd_id_) << 24;
  return bits;
}

bool Channel::chain_contains(int start, int bd) const {
  uint64_t seen = 0;
  for (int id = start; !(seen >> id & 1);) {
    if (id == bd) return true;
    seen |= uint64_t{1} << id;
    const arch::Bd decoded =
        arch::decode_bd(tile_.model.kind, tile_.bds[static_cast<size_t>(id)].words);
    if (!decoded.use_next || static_cast<int>(decoded.next_bd) >= tile_.model.bds) return false;
    id = static_cast<int>(decoded.next_bd);
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
  if (mode) {
    fail(ErrorKind::kUnsupported,
         "[%s] its control register (0x%08x) asks for %s, which the emulator does not model",
         name().c_str(), control, mode);
  }
}

bool Channel::start_task() {
  if (queued_ == 0) return false;
  check_modes();
  task_ = queue_[0];
  std::copy(queue_.begin() + 1, queue_.begin() + queued_, queue_.begin());
  --queued_;
  active_ = true;
  repeats_left_ = task_.repeats - 1;
  start_bd(task_.bd);
  return true;
}

void Channel::start_bd(int id) {
  if (!arch::bd_reachable(tile_.model.kind, index_, id)) {
    fail(ErrorKind::kInvalidBd,
         "[%s] was told to run BD %d, which this channel cannot reach (%d BDs; memtile channels "
         "with an even number use BDs 0-23, odd ones 24-47)",
         name().c_str(), id, tile_.model.bds);
  }
  BdSlot& slot = tile_.bds[static_cast<size_t>(id)];
  if (slot.stale) {
    slot.bd = arch::decode_bd(tile_.model.kind, slot.words);
    slot.stale = false;
  }
  bd_id_ = id;
  bd_ = slot.bd;
  if (!bd_.valid) {
    fail(ErrorKind::kInvalidBd, "[%s] BD %d does not have its valid bit set; write the BD first",
         name().c_str(), id);
  }
  if (bd_.compression) {
    fail(ErrorKind::kUnsupported, "[%s] BD %d enables compression, which is not modelled",
         name().c_str(), id);
  }
  total_ = left_ = bd_.length;
  state_ = State::kAcquire;
}

// The lock a BD names: memtile ids 0-63 are the west neighbour's, 64-127 own, 128-191 the east's.
Lock& Channel::lock_of(uint32_t id, const char* what, std::string* label) const {
  Tile* owner = &tile_;
  uint32_t local = id;
  if (tile_.model.kind == TileKind::kMem) {
    const int side = static_cast<int>(id / 64) - 1;
    local = id % 64;
    const bool allowed = side == 0 || (side <= 1 && index_ < 4);
    owner = allowed ? const_cast<Tile*>(array_.find_tile(tile_.col + side, tile_.row)) : nullptr;
  }
  if (!owner || local >= owner->locks.size()) {
    fail(ErrorKind::kLock, "[%s] BD %d %ss lock %u, which this channel cannot reach",
         name().c_str(), bd_id_, what, id);
  }
  if (label) *label = strf("lock %u of %s", local, owner->name().c_str());
  return owner->locks[local];
}

bool Channel::acquire() {
  if (!bd_.acquire_enable) return true;
  Lock& lock = lock_of(bd_.acquire_id, "acquire", nullptr);
  const bool free = bd_.acquire_value < 0 ? lock.value >= -bd_.acquire_value
                                          : lock.value == bd_.acquire_value;
  if (!free) {
    register_waiter(lock.waiters, this);
    return false;
  }
  if (bd_.acquire_value != 0) {
    lock.value -= std::abs(bd_.acquire_value);
    array_.scheduler().wake_all(lock.waiters);
  }
  return true;
}

void Channel::release_lock() {
  if (bd_.release_value == 0) return;
  std::string label;
  Lock& lock = lock_of(bd_.release_id, "release", nullptr);
  lock.value += bd_.release_value;
  if (lock.value < 0 || lock.value > arch::kMaxLockValue) {
    lock_of(bd_.release_id, "release", &label);
    fail(ErrorKind::kLock, "[%s] BD %d releases %s by %d, which makes it %d; a lock holds 0..%d",
         name().c_str(), bd_id_, label.c_str(), bd_.release_value, lock.value,
         arch::kMaxLockValue);
  }
  array_.scheduler().wake_all(lock.waiters);
}

// The memory a BD's base points at, and the words from there to the memory's end.
std::byte* Channel::resolve(uint64_t* words) {
  Tile* owner = &tile_;
  uint64_t offset = bd_.base * 4;
  switch (tile_.model.kind) {
    case TileKind::kShim: {
      uint64_t left = 0;
      bool writable = false;
      std::byte* data = array_.host_memory(bd_.base, &left, &writable);
      if (!data) {
        fail(ErrorKind::kOutOfRange,
             "[%s] BD %d starts at device address 0x%llx, where no argument lies (%s); was its "
             "address patched?",
             name().c_str(), bd_id_, static_cast<unsigned long long>(bd_.base),
             array_.describe_buffers().c_str());
      }
      if (direction_ == Direction::kS2MM && !writable) {
        fail(ErrorKind::kArgument,
             "[%s] BD %d writes an argument that was given read-only; pass a writable array",
             name().c_str(), bd_id_);
      }
      *words = left / 4;
      return data;
    }
    case TileKind::kMem: {
      const int side = static_cast<int>(offset / tile_.model.memory_bytes) - 1;
      offset %= tile_.model.memory_bytes;
      const bool allowed = side == 0 || (side <= 1 && index_ < 4);
      owner = allowed ? const_cast<Tile*>(array_.find_tile(tile_.col + side, tile_.row)) : nullptr;
      break;
    }
    case TileKind::kCore: break;
  }
  if (!owner || offset >= owner->memory->size()) {
    fail(ErrorKind::kOutOfRange,
         "[%s] BD %d starts at byte 0x%llx of its address space, where there is no memory%s",
         name().c_str(), bd_id_, static_cast<unsigned long long>(bd_.base * 4),
         tile_.model.kind == TileKind::kMem ? " (0x0 west, 0x80000 own, 0x100000 east memtile)" : "");
  }
  *words = (owner->memory->size() - offset) / 4;
  return owner->memory->data() + offset;
}

namespace {

// The stream of a padded memtile BD, built at once (hardware.md 2.4).
std::vector<std::byte> padded_stream(const arch::Bd& bd, const std::byte* base, uint32_t pad) {
  std::array<uint64_t, 3> size{}, padded{};
  for (size_t d = 0; d < 3; ++d) {
    size[d] = bd.wrap[d] ? bd.wrap[d] : 1;
    padded[d] = size[d] + bd.pad_before[d] + bd.pad_after[d];
  }
  std::vector<std::byte> out(uint64_t{bd.length} * 4);
  std::byte* to = out.data();
  const uint64_t outer = bd.length / (padded[0] * padded[1] * padded[2]);
  const uint64_t start = uint64_t{bd.iteration_current} * bd.iteration_step;
  for (uint64_t o = 0; o < outer; ++o) {
    for (uint64_t i2 = 0; i2 < padded[2]; ++i2) {
      for (uint64_t i1 = 0; i1 < padded[1]; ++i1) {
        for (uint64_t i0 = 0; i0 < padded[0]; ++i0, to += 4) {
          const uint64_t c0 = i0 - bd.pad_before[0], c1 = i1 - bd.pad_before[1],
                         c2 = i2 - bd.pad_before[2];  // wraps to huge below the data
          const bool inside = c0 < size[0] && c1 < size[1] && c2 < size[2];
          const uint64_t word = start + o * bd.step[3] + c2 * bd.step[2] + c1 * bd.step[1] +
                                c0 * bd.step[0];
          std::memcpy(to, inside ? base + word * 4 : reinterpret_cast<const std::byte*>(&pad), 4);
        }
      }
    }
  }
  return out;
}

bool has_padding(const arch::Bd& bd) {
  for (size_t d = 0; d < 3; ++d) {
    if (bd.pad_before[d] || bd.pad_after[d]) return true;
  }
  return false;
}

}  // namespace

// After the acquire: checks the whole access against the memory and sets the walk up.
void Channel::begin_transfer() {
  state_ = State::kMove;
  if (total_ == 0) return;
  const int dims = tile_.model.address_dims;
  const bool padded = has_padding(bd_);
  if (padded) {
    uint64_t block = 1;
    for (size_t d = 0; d < 3; ++d) {
      block *= (bd_.wrap[d] ? bd_.wrap[d] : 1) + bd_.pad_before[d] + bd_.pad_after[d];
    }
    if (direction_ == Direction::kS2MM || bd_.length % block != 0) {
      fail(ErrorKind::kInvalidBd,
           "[%s] BD %d has padding, which %s", name().c_str(), bd_id_,
           direction_ == Direction::kS2MM ? "only memtile MM2S channels can do"
                                          : "does not divide its length");
    }
  }
  uint64_t available = 0;
  std::byte* base = resolve(&available);
  const uint64_t last = last_offset(bd_, dims, data_words(bd_, dims));
  if (last >= available) {
    fail(ErrorKind::kOutOfRange,
         "[%s] BD %d (length %llu words) reaches word %llu past its base, but only %llu words are "
         "there%s%s",
         name().c_str(), bd_id_, static_cast<unsigned long long>(total_),
         static_cast<unsigned long long>(last), static_cast<unsigned long long>(available),
         tile_.model.kind == TileKind::kShim ? "; arguments: " : "",
         tile_.model.kind == TileKind::kShim ? array_.describe_buffers().c_str() : "");
  }
  if (padded) {
    staged_ = padded_stream(bd_, base, tile_.pad_value[static_cast<size_t>(index_)]);
    walk_ = Walk::linear(staged_.data());
  } else {
    walk_ = Walk(base, bd_, dims);
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
  if (bd_.use_next) {
    start_bd(static_cast<int>(bd_.next_bd));
  } else if (repeats_left_ > 0) {
    --repeats_left_;
    start_bd(task_.bd);
  } else {
    active_ = false;
    state_ = State::kIdle;
    if (task_.token) array_.add_token(tile_.col, tile_.row, direction_, index_);
  }
}

void Channel::advance() {
  int empty = 0;
  while (true) {
    switch (state_) {
      case State::kBusy: return;
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
            fail(ErrorKind::kInvalidBd, "[%s] runs an endless chain of BDs of length 0 (BD %d)",
                 name().c_str(), bd_id_);
          }
          finish_bd();
          break;
        }
        if (direction_ == Direction::kS2MM) {
          array_.scheduler().wake_all(senders_);
          return;
        }
        uint64_t words = 0;
        if (!open_route() || !sinks_ready(&words)) return;
        move_words_ = words;
        state_ = State::kBusy;
        for (const Route::Sink& sink : route_.sinks) {
          if (!header_pending_ || sink.keeps_header) sink.channel->state_ = State::kBusy;
        }
        array_.scheduler().post(this);
        return;
      }
    }
  }
}

uint32_t Channel::packet_header() const {
  uint32_t word = bd_.packet_id | bd_.packet_type << 12 | static_cast<uint32_t>(tile_.row) << 16 |
                  static_cast<uint32_t>(tile_.col) << 21;
  if (__builtin_popcount(word) % 2 == 0) word |= 1u << 31;  // odd parity
  return word;
}

// The switch slave port an MM2S channel drives (hardware.md 3.2, 3.3).
static int slave_port(const Tile& tile, int channel, const std::string& who) {
  if (tile.model.kind == TileKind::kMem) return channel;
  if (tile.model.kind == TileKind::kCore) return 1 + channel;
  const int field = channel == 0 ? 10 : 14;  // mux select of South3 / South7
  if ((tile.shim_mux >> field & 3) != 1) {
    fail(ErrorKind::kNoConsumer,
         "[%s] sends, but the shim mux (0x1F000 = 0x%08x) does not connect it to the switch",
         who.c_str(), tile.shim_mux);
  }
  return 2 + (channel == 0 ? 3 : 7);
}

bool Channel::open_route() {
  if (route_open_ && (in_packet_ || route_epoch_ == array_.switch_epoch())) return true;
  const int port = slave_port(tile_, index_, name());
  const bool packet_port =
      tile_.stream_switch.slave[static_cast<size_t>(port)] >> 30 & 1;
  uint32_t header = packet_header();
  const bool header_in_data = packet_port && !bd_.packet_enable;
  if (header_in_data) {
    Walk peek = walk_;
    peek.gather(reinterpret_cast<std::byte*>(&header), 1);
  }
  Route route = array_.trace(tile_, port, header, name());
  for (auto& [tile, arbiter] : route.arbiters) {
    StreamSwitch& sw = tile->stream_switch;
    const size_t a = static_cast<size_t>(arbiter);
    if (sw.holder[a] && sw.holder[a] != this) {
      register_waiter(sw.waiters[a], this);
      blocked_on_ = strf("waits for arbiter %d of %s, held by %s", arbiter, tile->name().c_str(),
                         sw.holder[a]->name().c_str());
      return false;
    }
  }
  for (auto& [tile, arbiter] : route.arbiters) {
    tile->stream_switch.holder[static_cast<size_t>(arbiter)] = this;
  }
  route_ = std::move(route);
  route_open_ = true;
  route_epoch_ = array_.switch_epoch();
  in_packet_ = packet_port || bd_.packet_enable;
  header_pending_ = false;
  if (in_packet_) {
    header_ = header;
    if (header_in_data) {
      std::byte skipped[4];
      walk_.gather(skipped, 1);
      --left_;
    }
    for (const Route::Sink& sink : route_.sinks) header_pending_ |= sink.keeps_header;
  }
  return true;
}

void Channel::close_packet() {
  for (auto& [tile, arbiter] : route_.arbiters) {
    tile->stream_switch.holder[static_cast<size_t>(arbiter)] = nullptr;
    array_.scheduler().wake_all(tile->stream_switch.waiters[static_cast<size_t>(arbiter)]);
  }
  in_packet_ = route_open_ = false;
}

bool Channel::sinks_ready(uint64_t* words) {
  uint64_t n = header_pending_ ? 1 : left_;
  for (const Route::Sink& sink : route_.sinks) {
    if (header_pending_ && !sink.keeps_header) continue;
    if (sink.channel->state_ != State::kMove) {
      register_waiter(sink.channel->senders_, this);
      blocked_on_ = strf("waits for %s to take %llu more words", sink.channel->name().c_str(),
                         static_cast<unsigned long long>(left_));
      return false;
    }
    n = std::min(n, sink.channel->left_);
  }
  blocked_on_.clear();
  *words = n;
  return true;
}

void Channel::execute() {
  if (header_pending_) {
    for (const Route::Sink& sink : route_.sinks) {
      if (sink.keeps_header) {
        sink.channel->walk_.scatter(reinterpret_cast<const std::byte*>(&header_), 1);
      }
    }
    return;
  }
  const uint64_t n = move_words_;
  const std::byte* from = walk_.take_contiguous(n);
  size_t first = 0;
  if (!from) {
    // Gather straight into the first receiver when it is linear, and copy on from there.
    std::byte* to = route_.sinks[0].channel->walk_.take_contiguous(n);
    if (to) {
      first = 1;
    } else {
      if (staged_.size() < n * 4) staged_.resize(n * 4);
      to = staged_.data();
    }
    walk_.gather(to, n);
    from = to;
  }
  for (size_t i = first; i < route_.sinks.size(); ++i) {
    Walk& walk = route_.sinks[i].channel->walk_;
    if (std::byte* to = walk.take_contiguous(n)) {
      std::memcpy(to, from, n * 4);
    } else {
      walk.scatter(from, n);
    }
  }
}

static void count_bytes(RunReport& report, const Tile& tile, Direction direction, uint64_t bytes) {
  const bool read = direction == Direction::kMM2S;
  switch (tile.model.kind) {
    case TileKind::kShim: (read ? report.shim_read_bytes : report.shim_write_bytes) += bytes; break;
    case TileKind::kMem:
      (read ? report.memtile_read_bytes : report.memtile_write_bytes) += bytes;
      break;
    case TileKind::kCore: (read ? report.core_read_bytes : report.core_write_bytes) += bytes; break;
  }
}

void Channel::complete() {
  const bool header = header_pending_;
  header_pending_ = false;
  const uint64_t n = move_words_;
  for (const Route::Sink& sink : route_.sinks) {
    if (!header || sink.keeps_header) sink.channel->accepted(n);
  }
  state_ = State::kMove;
  if (!header) {
    left_ -= n;
    count_bytes(array_.report(), tile_, direction_, n * 4);
    if (left_ == 0) finish_bd();
  }
  array_.scheduler().wake(this);
}

void Channel::accepted(uint64_t words) {
  left_ -= words;
  state_ = State::kMove;
  count_bytes(array_.report(), tile_, direction_, words * 4);
  if (left_ == 0) finish_bd();
  array_.scheduler().wake(this);
}

std::string Channel::progress() const {
  if (!active_) return "";
  return strf("moved %llu of %llu words of BD %d",
              static_cast<unsigned long long>(total_ - left_),
              static_cast<unsigned long long>(total_), bd_id_);
}

std::string Channel::waiting() const {
  if (!active_) return "";
  if (state_ == State::kAcquire) {
    std::string label;
    const Lock& lock = lock_of(bd_.acquire_id, "acquire", &label);
    return strf("waits for %s to be %s %d (it is %d) before BD %d", label.c_str(),
                bd_.acquire_value < 0 ? ">=" : "==", std::abs(bd_.acquire_value), lock.value,
                bd_id_);
  }
  if (direction_ == Direction::kS2MM) {
    return strf("waits for data (%s)", progress().c_str());
  }
  return strf("%s (%s)", blocked_on_.empty() ? "is ready" : blocked_on_.c_str(),
              progress().c_str());
}

}  // namespace npu::emulator
