// The stream side of DMA channels: an MM2S channel pairs with every S2MM channel its route reaches
// and moves as many words at once as all of them have room for. Streams hold no words of their own:
// the FIFOs of switches and DMAs (a few words per hop) are not modelled, so a BD's data leaves its
// memory only when every receiver runs a BD with room for it. A program that needs that slack to
// progress deadlocks here; one that runs here does not need it.
#include <algorithm>
#include <cassert>
#include <cstring>

#include "emulator/array.h"
#include "emulator/core.h"
#include "emulator/tile.h"
#include "emulator/timed_run.h"
#include "error.h"

namespace npu::emulator {

using arch::Direction;
using arch::TileKind;

namespace {

void count_bytes(RunReport& report, const Channel& channel, uint64_t bytes) {
  const bool read = channel.direction() == Direction::kMM2S;
  switch (channel.tile().model.kind) {
    case TileKind::kShim:
      (read ? report.shim_read_bytes : report.shim_write_bytes) += bytes;
      break;
    case TileKind::kMem:
      (read ? report.memtile_read_bytes : report.memtile_write_bytes) += bytes;
      break;
    case TileKind::kCore:
      (read ? report.core_read_bytes : report.core_write_bytes) += bytes;
      break;
  }
}

}  // namespace

uint32_t Channel::packet_header() const {
  uint32_t word = bd_.packet_id | bd_.packet_type << 12 | static_cast<uint32_t>(tile_.row) << 16 |
                  static_cast<uint32_t>(tile_.col) << 21;
  if (__builtin_popcount(word) % 2 == 0) word |= 1u << 31;  // odd parity
  return word;
}

// The switch slave port an MM2S channel drives (hardware.md 3.2, 3.3).
int Channel::slave_port() const {
  if (tile_.model.kind == TileKind::kMem) return index_;
  if (tile_.model.kind == TileKind::kCore) return 1 + index_;
  const int field = index_ == 0 ? 10 : 14;  // mux select of South3 / South7
  if ((tile_.shim_mux >> field & 3) != 1) {
    error(ErrorKind::kNoConsumer,
          strf("sends, but the shim mux (0x1F000 = 0x%08x) does not connect it to the switch; set "
               "bits [%d:%d] to 1",
               tile_.shim_mux, field + 1, field));
  }
  return 2 + (index_ == 0 ? 3 : 7);
}

bool Channel::take_arbiters(const Route& route) {
  for (const auto& [tile, arbiter] : route.arbiters) {
    StreamSwitch& sw = tile->stream_switch;
    const size_t a = static_cast<size_t>(arbiter);
    if (!sw.holder[a] || sw.holder[a] == this) continue;
    add_waiter(sw.waiters[a], this);
    blocked_tile_ = tile;
    blocked_arbiter_ = arbiter;
    return false;
  }
  blocked_tile_ = nullptr;
  for (const auto& [tile, arbiter] : route.arbiters) {
    tile->stream_switch.holder[static_cast<size_t>(arbiter)] = this;
  }
  return true;
}

bool Channel::route_stands() const {
  return route_open_ && !bd_.packet_enable && route_epoch_ == array_.switch_epoch();
}

// A packet keeps its route until its TLAST, across BDs that suppress it. All arbiters on the way
// are taken together; the hardware takes them one by one as the header travels.
bool Channel::open_route() {
  if (in_packet_ || route_stands()) return true;
  assert(!array_.scheduler().in_columns());
  uint32_t header = packet_header();
  if (!bd_.packet_enable) {  // on a packet-switched route the first word of the data is the header
    if (array_.moves_data()) {
      Walk peek = walk_;
      peek.gather(reinterpret_cast<std::byte*>(&header), 1);
    }
  }
  Route route = array_.trace(*this, slave_port(), header);
  const bool header_in_data = !bd_.packet_enable && !route.arbiters.empty();
  if (header_in_data && !array_.moves_data()) {
    error(ErrorKind::kUnsupported,
          "sends packet headers inside its data, which a run without data cannot follow; time it "
          "with data");
  }
  if (!take_arbiters(route)) return false;
  route_ = std::move(route);
  route_open_ = true;
  route_crosses_ = !route_.arbiters.empty();
  for (const Route::Sink& sink : route_.sinks) {
    route_crosses_ |= sink.channel->tile_.col != tile_.col;
  }
  route_epoch_ = array_.switch_epoch();
  in_packet_ = bd_.packet_enable || header_in_data;
  header_pending_ = false;
  if (in_packet_) {
    header_ = header;
    if (header_in_data) {
      std::byte skipped[4];
      walk_.gather(skipped, 1);
      --left_;
      count_bytes(array_.report(tile_.col), *this, 4);
    }
    for (const Route::Sink& sink : route_.sinks) header_pending_ |= sink.keeps_header;
  }
  return true;
}

void Channel::close_packet() {
  for (auto& [tile, arbiter] : route_.arbiters) {
    tile->stream_switch.holder[static_cast<size_t>(arbiter)] = nullptr;
    array_.scheduler().wake_all(tile->stream_switch.waiters[static_cast<size_t>(arbiter)], this);
  }
  in_packet_ = route_open_ = false;
}

bool Channel::sinks_ready(uint64_t* words) {
  uint64_t n = header_pending_ ? 1 : left_;
  for (const Route::Sink& sink : route_.sinks) {
    if (header_pending_ && !sink.keeps_header) continue;
    if (sink.channel->state_ != State::kMove) {
      add_waiter(sink.channel->senders_, this);
      blocked_sink_ = sink.channel;
      return false;
    }
    n = std::min(n, sink.channel->left_);
  }
  blocked_sink_ = nullptr;
  *words = n;
  return true;
}

void Channel::move_header() {
  for (const Route::Sink& sink : route_.sinks) {
    if (!sink.keeps_header) continue;
    sink.channel->walk_.scatter(reinterpret_cast<const std::byte*>(&header_), 1);
  }
}

// Whether the words are whole tiles of cores that leave them as they come, in the same places.
bool Channel::whole_tiles(uint64_t words) const {
  if (header_pending_ || !array_.moves_data()) return false;
  const Channel& first = *route_.sinks[0].channel;
  for (const Route::Sink& sink : route_.sinks) {
    const Channel& to = *sink.channel;
    if (!to.tile_.core || !to.tile_.core->accepts_aliases() || to.total_ != words ||
        to.left_ != words || !to.walk_.same_pattern(first.walk_)) {
      return false;
    }
  }
  return true;
}

// Whether one copy of the words serves all receivers.
bool Channel::can_share(uint64_t words) const {
  if (route_.sinks.size() < 2 || !whole_tiles(words)) return false;
  const Channel& first = *route_.sinks[0].channel;
  return first.tile_.bds[static_cast<size_t>(first.bd_id_)].fills;
}

// Contiguous words of a read-only argument need no copy: the cores read them where they lie.
bool Channel::alias_argument(uint64_t words) {
  if (tile_.model.kind != TileKind::kShim || !read_only_ || !whole_tiles(words)) return false;
  if (route_.sinks[0].channel->walk_.run() < words) return false;
  std::byte* const from = walk_.take_contiguous(words);
  if (!from) return false;
  alias_.argument = from;
  if (route_.sinks.size() > 1) alias_.block = BlockRef(array_.blocks(tile_.col).take(0));
  return true;
}

// False when there is a job to do, which is posted.
bool Channel::begin_move(uint64_t words) {
  move_words_ = words;
  state_ = State::kBusy;
  if (!alias_argument(words) && can_share(words)) {
    alias_.block = BlockRef(array_.blocks(tile_.col).take(words * 4));
  }
  for (const Route::Sink& sink : route_.sinks) {
    if (header_pending_ && !sink.keeps_header) continue;
    Channel& to = *sink.channel;
    assert(within_part(to.tile_) && (!array_.scheduler().in_columns() || !to.crosses()));
    to.state_ = State::kBusy;
    if (!alias_ && to.tile_.model.kind == TileKind::kCore) {
      to.tile_.aliases.flush(to.bd_.base * 4, to.spanned_);
    }
  }
  if (alias_.argument && !array_.timed()) return true;
  if (array_.scheduler().in_columns()) {
    execute();
    return true;
  }
  array_.scheduler().post(this);
  return false;
}

void Channel::execute() {
  if (header_pending_) return move_header();
  if (alias_.argument) return;
  // Source and destination may overlap (one host buffer for both): copies are memmoves.
  const uint64_t n = move_words_;
  Walk& first = route_.sinks[0].channel->walk_;
  if (alias_) {
    Walk block = first.rebased(alias_.data(), 0);
    copy_words(block);
    return;
  }
  const std::byte* from = copy_words(first);
  for (size_t i = 1; i < route_.sinks.size(); ++i) {
    Walk& walk = route_.sinks[i].channel->walk_;
    if (std::byte* to = walk.take_contiguous(n)) {
      std::memmove(to, from, n * 4);
    } else {
      walk.scatter(from, n);
    }
  }
}

// The posted job's words to their places; returns where they lie in stream order.
const std::byte* Channel::copy_words(Walk& to) {
  const uint64_t n = move_words_;
  const std::byte* from = walk_.take_contiguous(n);
  std::byte* linear = to.take_contiguous(n);
  if (from && linear) {
    std::memmove(linear, from, n * 4);
  } else if (from) {
    to.scatter(from, n);
  } else if (linear) {
    walk_.gather(linear, n);
    from = linear;
  } else {
    if (staged_.size() < n * 4) staged_.resize(n * 4);
    walk_.gather(staged_.data(), n);
    to.scatter(staged_.data(), n);
    from = staged_.data();
  }
  return from;
}

void Channel::start(Timeline& timeline) {
  const arch::Timing& timing = timeline.timing();
  const bool fresh = left_ == total_ || header_pending_;
  const double overhead = fresh ? timing.bd_overhead : 0;
  if (tile_.model.kind != TileKind::kShim || header_pending_) {
    const double words = header_pending_ ? 1 : static_cast<double>(move_words_);
    const bool writes = std::any_of(route_.sinks.begin(), route_.sinks.end(), [](const auto& sink) {
      return sink.channel->tile_.model.kind == TileKind::kShim;
    });
    if (writes && !header_pending_) return timeline.write(this, overhead, words * 4);
    return timeline.after(this, overhead + words * 4 / timing.stream);
  }
  Timeline::Read read;
  read.delay = overhead + (fresh ? timing.shim_task_start : 0);
  read.bytes = static_cast<double>(move_words_) * 4;
  read.task_bytes = static_cast<double>(total_) * 4;
  read.run = static_cast<double>(std::min<uint64_t>(walk_.run(), total_)) * 4;
  read.pitch = walk_.pitch() * 4;
  read.base = bd_.base;
  timeline.read(this, read);
}

void Channel::complete() {
  finish_move();
  array_.scheduler().wake(this, this);
}

void Channel::finish_move() {
  const bool header = header_pending_;
  header_pending_ = false;
  const uint64_t n = move_words_;
  RunReport& report = array_.report(tile_.col);
  array_.scheduler().add_move(n, this);
  for (const Route::Sink& sink : route_.sinks) {
    if (header && !sink.keeps_header) continue;
    count_bytes(report, *sink.channel, n * 4);
    if (alias_) {
      const Channel& to = *sink.channel;
      to.tile_.aliases.add((to.bd_.base + to.walk_.start()) * 4, n * 4, alias_);
    }
    sink.channel->accepted(n);
  }
  alias_ = {};
  state_ = State::kMove;
  if (!header) {
    left_ -= n;
    count_bytes(report, *this, n * 4);
    if (left_ == 0) finish_bd();
  }
}

}  // namespace npu::emulator
