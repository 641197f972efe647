// The sending side of DMA channels: routes, packets and moves (sender.h).
#include "devices/emulator/sender.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "arch/control_packet.h"
#include "arch/switch_ports.h"
#include "devices/emulator/array.h"
#include "devices/emulator/replay/action_log.h"
#include "devices/emulator/tile.h"
#include "devices/emulator/timed_run.h"

namespace npu::emulator {

using arch::Direction;
using arch::TileKind;

namespace {

constexpr size_t kKnownRoutes = 32;  // of packets: as many as there are ids

void count_bytes(RunReport& report, TileKind kind, Direction direction, uint64_t bytes) {
  const bool read = direction == Direction::kMM2S;
  switch (kind) {
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

void Sender::reset() {
  if (packet_.open) close_packet();
  BdEngine::reset();
  route_.reset();
  packet_ = {};
  pieces_.clear();
  block_ = source_ = {};
  control_words_.clear();
  control_accesses_.clear();
  if (blocked_.routeless) array_.end_wait_for_route(*this);
  blocked_ = {};
}

std::optional<BdEngine::Rest> Sender::rest() const {
  const bool whole = !packet_.open && control_words_.empty() && !padded_ && !blocked_.routeless;
  return whole || idle() ? BdEngine::rest() : std::nullopt;
}

uint32_t Sender::packet_header() const {
  return arch::packet_header(current_.bd.packet_id, current_.bd.packet_type,
                             static_cast<uint32_t>(tile_.col), static_cast<uint32_t>(tile_.row));
}

// The switch slave port an MM2S channel drives (hardware.md 3.2, 3.3).
int Sender::slave_port() const {
  if (tile_.geometry.kind != TileKind::kShim) {
    return arch::first_port(tile_.geometry.kind, false, arch::PortSide::kDma) + index();
  }
  const arch::ShimDmaPort& port = arch::shim_dma_port(arch::Direction::kMM2S, index());
  if ((tile_.shim_mux >> port.shift & 3) != 1) {
    error(ErrorKind::kNoConsumer,
          strf("sends, but the shim mux (0x1F000 = 0x%08x) does not connect it to the switch; set "
               "bits [%d:%d] to 1",
               tile_.shim_mux, port.shift + 1, port.shift));
  }
  return arch::first_port(TileKind::kShim, false, arch::PortSide::kSouth) + port.lane;
}

void Sender::prepare_transfer(const Memory& memory) {
  constant_ = memory.constant;
  padded_ = tile_.bds[static_cast<size_t>(current_.id)].padded;
  if (!padded_ || !array_.moves_data()) return;
  if (ActionLog* log = ActionLog::current()) log->refuse("padding");
  memory.owner->aliases.flush(memory.offset, current_.span);
  staged_ = padded_stream(current_.bd, memory.data, tile_.pad_value[static_cast<size_t>(index())]);
  current_.walk = Walk::linear(staged_.data());
}

void Sender::end_of_data() {
  if (!control_words_.empty()) {
    if (control_accesses_.empty()) parse_control();
    state_ = State::kBusy;  // a packet that resets this channel does so in the middle of a transfer
    array_.control(*this, route_->controls, control_accesses_);
    control_words_.clear();
    control_accesses_.clear();
  }
  if (packet_.open) close_packet();
}

// To find the receivers, to reach them or to take arbiters.
bool Sender::stream_crosses() const {
  if (packet_.open || !route_stands() || route_->crosses) return true;
  return route_->reaches_memtile &&  // only these reach their neighbours
         std::any_of(route_->sinks.begin(), route_->sinks.end(),
                     [](const Route::Sink& sink) { return sink.receiver->crosses(); });
}

bool Sender::take_arbiters(const Route& route) {
  for (const auto& [tile, arbiter] : route.arbiters) {
    StreamSwitch& sw = tile->stream_switch;
    const size_t a = static_cast<size_t>(arbiter);
    if (!sw.holder[a] || sw.holder[a] == this) continue;
    add_waiter(sw.waiters[a], this);
    blocked_.tile = tile;
    blocked_.arbiter = arbiter;
    return false;
  }
  blocked_.tile = nullptr;
  for (const auto& [tile, arbiter] : route.arbiters) {
    tile->stream_switch.holder[static_cast<size_t>(arbiter)] = this;
  }
  return true;
}

bool Sender::route_stands() const {
  return route_ && !current_.bd.packet_enable && route_->epoch == array_.switch_epoch();
}

std::shared_ptr<const Route> Sender::find_route(uint32_t header) {
  const auto known =
      std::ranges::find(packet_routes_, header, [](const auto& r) { return r.first; });
  if (known != packet_routes_.end() && known->second->epoch == array_.switch_epoch()) {
    return known->second;
  }
  auto route = std::make_shared<const Route>(array_.trace(*this, slave_port(), header));
  if (known != packet_routes_.end()) {
    known->second = route;
  } else if (!route->arbiters.empty() && packet_routes_.size() < kKnownRoutes) {
    packet_routes_.emplace_back(header, route);
  }
  return route;
}

// A packet keeps its route until its TLAST, across BDs that suppress it. All arbiters on the way
// are taken together; the hardware takes them one by one as the header travels.
bool Sender::open_route() {
  if (packet_.open || route_stands()) return true;
  assert(!array_.scheduler().in_columns());
  uint32_t header = packet_header();
  // On a packet-switched route the first word of the data is the header.
  if (!current_.bd.packet_enable && current_.readable) {
    if (current_.owner != nullptr) locate(1);
    Walk peek = current_.walk;
    peek.gather(reinterpret_cast<std::byte*>(&header), 1);
  }
  std::shared_ptr<const Route> route;
  try {
    route = find_route(header);
  } catch (const Error& missing) {
    if (missing.kind() != ErrorKind::kNoConsumer) throw;
    if (!array_.wait_for_route(*this, std::current_exception())) throw;
    blocked_ = {};
    blocked_.routeless = true;
    return false;
  }
  if (std::exchange(blocked_.routeless, false)) array_.end_wait_for_route(*this);
  const bool header_in_data = !current_.bd.packet_enable && !route->arbiters.empty();
  if (header_in_data && !current_.readable) {
    error(ErrorKind::kUnsupported,
          "sends packet headers inside its data, which a run without data cannot follow; time it "
          "with data");
  }
  if (!take_arbiters(*route)) return false;
  route_ = std::move(route);
  if (current_.bd.packet_enable || header_in_data) open_packet(header, header_in_data);
  return true;
}

void Sender::open_packet(uint32_t header, bool header_in_data) {
  packet_ = {true, false, header};
  if (header_in_data) {
    if (ActionLog* log = ActionLog::current()) log->refuse("packet headers in data");
    std::byte skipped[4];
    current_.walk.gather(skipped, 1);
    --current_.left;
    if (is_channel())
      count_bytes(array_.report(tile_.col), tile_.geometry.kind, Direction::kMM2S, 4);
  }
  if (to_control()) control_words_.push_back(header);
  for (const Route::Sink& sink : route_->sinks) packet_.header_pending |= sink.keeps_header;
}

void Sender::close_packet() {
  for (auto& [tile, arbiter] : route_->arbiters) {
    tile->stream_switch.holder[static_cast<size_t>(arbiter)] = nullptr;
    array_.scheduler().wake_all(tile->stream_switch.waiters[static_cast<size_t>(arbiter)], this);
  }
  packet_.open = false;
  route_.reset();
}

bool Sender::receivers_ready(uint64_t* words) {
  uint64_t n = packet_.header_pending ? 1 : current_.left;
  for (const Route::Sink& sink : route_->sinks) {
    if (packet_.header_pending && !sink.keeps_header) continue;
    if (!sink.receiver->ready()) {
      sink.receiver->add_sender(this);
      blocked_.receiver = sink.receiver;
      return false;
    }
    n = std::min(n, sink.receiver->room());
  }
  blocked_.receiver = nullptr;
  *words = n;
  return true;
}

bool Sender::transfer() {
  if (!open_route()) return false;
  if (!has_work_left()) return true;  // the BD held nothing but its packet's header
  if (to_control()) return begin_control();
  uint64_t words = 0;
  if (!receivers_ready(&words) || !begin_move(words)) return false;
  finish_move();
  return true;
}

// Whether the words are whole tiles of cores whose memory may be aliased, in the same places.
bool Sender::fills_whole_tiles(uint64_t words) const {
  if (packet_.header_pending || !array_.moves_data()) return false;
  const Walk& pattern = first_receiver().walk();
  return std::all_of(route_->sinks.begin(), route_->sinks.end(), [&](const Route::Sink& sink) {
    return sink.receiver->takes_tile(words) && sink.receiver->walk().same_pattern(pattern);
  });
}

// Whether one copy of the words serves all receivers.
bool Sender::can_share(uint64_t words) const {
  return route_->sinks.size() > 1 && fills_whole_tiles(words) && first_receiver().fills_range();
}

// Whether the words, which a memtile's channel may hand on, go to a block instead of its memory.
bool Sender::can_keep(uint64_t words) const {
  return tile_.geometry.kind == TileKind::kShim && route_->sinks.size() == 1 &&
         !packet_.header_pending && array_.moves_data() && !array_.timed() &&
         first_receiver().takes_object(words);
}

// Whether the receivers, several cores, may alias the block that the words are all of.
bool Sender::can_hand_on(uint64_t words) const {
  return source_ && whole_ && route_->sinks.size() > 1 && fills_whole_tiles(words) &&
         first_receiver().walk().contiguous() >= words;
}

// Finds out where its next words lie: in the memory that its BD names, or where that aliases them.
void Sender::locate(uint64_t words) {
  if (padded_ || !array_.moves_data()) return;
  AliasTable& aliases = current_.owner->aliases;
  Walk& walk = current_.walk;
  std::byte* base = current_.owner->memory.data() + current_.offset;
  constant_ = whole_ = false;
  source_ = {};
  if (aliases.may_overlap(current_.offset, current_.span)) {
    uint64_t skipped = 0, bytes = current_.span;
    if (walk.contiguous() >= words) {
      skipped = walk.next() * 4;
      bytes = words * 4;
    }
    const uint64_t address = current_.offset + skipped;
    std::byte* data = aliases.in_argument(address, bytes);
    constant_ = data != nullptr;
    if (!constant_ && !array_.timed()) {
      data = aliases.in_block(address, bytes, &source_, &whole_);
      whole_ &= walk.contiguous() >= words;  // else in another order
    }
    if (data != nullptr) {
      base = data - skipped;
    } else if (aliases.flush(address, bytes)) {
      current_.owner->keeps_blocks = false;
    }
  }
  walk.move_to(base);
}

// Words of a constant argument need no copy: they are read where they lie.
bool Sender::alias_argument(uint64_t words) {
  if (!constant_ || packet_.header_pending || !array_.moves_data()) return false;
  Walk& walk = current_.walk;
  const uint64_t run = walk.contiguous() >= words ? words : walk.run();
  for (const Route::Sink& sink : route_->sinks) {
    if (!sink.receiver->can_alias(words, run)) return false;
  }
  for (uint64_t left = words; left > 0;) {
    const uint64_t n = std::min(left, walk.contiguous());
    pieces_.push_back({walk.take_contiguous(n), n});
    left -= n;
  }
  if (route_->sinks.size() > 1 && run >= words && fills_whole_tiles(words)) {
    block_ = BlockRef(array_.blocks(tile_.col).take(0));
  }
  return true;
}

// False when there is a job to do, which is posted.
bool Sender::begin_move(uint64_t words) {
  move_words_ = words;
  state_ = State::kBusy;
  if (current_.owner != nullptr) locate(words);
  const bool from_argument = alias_argument(words);
  const bool handed_on = !from_argument && can_hand_on(words);
  if (handed_on) {
    block_ = source_;
    current_.walk.take_contiguous(words);
  } else if (!from_argument && (can_share(words) || can_keep(words))) {
    block_ = BlockRef(array_.blocks(tile_.col).take(words * 4));
  }
  for (const Route::Sink& sink : route_->sinks) {
    if (packet_.header_pending && !sink.keeps_header) continue;
    sink.receiver->begin_move(from_argument || block_);
  }
  if ((from_argument || handed_on) && !array_.timed()) return true;
  if (array_.scheduler().in_columns()) {
    execute();
    return true;
  }
  array_.scheduler().post(this);
  return false;
}

bool Sender::begin_control() {
  if (!current_.readable) {
    error(ErrorKind::kUnsupported,
          "sends control packets from an argument without memory, which a run without data cannot "
          "follow; give that argument its words");
  }
  move_words_ = current_.left;
  state_ = State::kBusy;
  if (current_.owner != nullptr) locate(move_words_);
  if (ActionLog* log = ActionLog::current()) log_control(*log);
  const size_t before = control_words_.size();
  control_words_.resize(before + move_words_);
  current_.walk.gather(reinterpret_cast<std::byte*>(control_words_.data() + before), move_words_);
  if (!current_.bd.tlast_suppress) parse_control();
  array_.scheduler().post(this);
  return false;
}

void Sender::log_control(ActionLog& log) const {
  const Walk& walk = current_.walk;
  if (current_.owner != nullptr || walk.contiguous() < move_words_) {
    return log.refuse("control packets that no argument holds in a row");
  }
  const std::byte* const words = walk.base() + static_cast<int64_t>(walk.next()) * kWordBytes;
  log.steers(std::span(words, move_words_ * kWordBytes), constant_, current_.patch);
}

void Sender::parse_control() {
  control_accesses_ = parse_control_packets(control_words_, array_.device().generation, *this);
  array_.begin_control(*this, route_->controls, control_accesses_);
}

void Sender::finish_control() {
  array_.scheduler().add_move(move_words_, this);
  if (is_channel()) {
    count_bytes(array_.report(tile_.col), tile_.geometry.kind, Direction::kMM2S, move_words_ * 4);
  }
  state_ = State::kMove;
  current_.left = 0;
  finish_bd();
}

void Sender::execute() {
  if (to_control()) return;
  if (packet_.header_pending) return move_header();
  if (!pieces_.empty()) return;
  // Source and destination may overlap (one host buffer for both): copies are memmoves.
  const uint64_t n = move_words_;
  Walk& first = first_receiver().walk();
  if (block_) {
    Walk block = first.rebased(block_->data.data(), 0);
    if (ActionLog* log = ActionLog::current())
      log->move(current_.walk, block, n, current_.patch, 0);
    copy_words(block);
    return;
  }
  if (ActionLog* log = ActionLog::current()) log_move(*log);
  const std::byte* from = copy_words(first);
  for (size_t i = 1; i < route_->sinks.size(); ++i) {
    Walk& walk = route_->sinks[i].receiver->walk();
    if (std::byte* to = walk.take_contiguous(n)) {
      std::memmove(to, from, n * 4);
    } else {
      walk.scatter(from, n);
    }
  }
}

// A first receiver in one piece has the words in order for the others.
void Sender::log_move(ActionLog& log) const {
  const Walk& first = first_receiver().walk();
  const bool in_order = first.contiguous() >= move_words_;
  log.move(current_.walk, first, move_words_, current_.patch, first_receiver().patch());
  for (size_t i = 1; i < route_->sinks.size(); ++i) {
    const Receiver& to = *route_->sinks[i].receiver;
    log.move(in_order ? first : current_.walk, to.walk(), move_words_,
             in_order ? first_receiver().patch() : current_.patch, to.patch());
  }
}

void Sender::move_header() {
  if (ActionLog* log = ActionLog::current()) log->refuse("a packet whose header is kept");
  for (const Route::Sink& sink : route_->sinks) {
    if (!sink.keeps_header) continue;
    sink.receiver->walk().scatter(reinterpret_cast<const std::byte*>(&packet_.header), 1);
  }
}

// The posted job's words to their places; returns where they lie in stream order.
const std::byte* Sender::copy_words(Walk& to) {
  const uint64_t n = move_words_;
  Walk& source = current_.walk;
  const std::byte* from = source.take_contiguous(n);
  std::byte* linear = to.take_contiguous(n);
  if (from && linear) {
    std::memmove(linear, from, n * 4);
  } else if (from) {
    to.scatter(from, n);
  } else if (linear) {
    source.gather(linear, n);
    from = linear;
  } else {
    if (staged_.size() < n * 4) staged_.resize(n * 4);
    source.gather(staged_.data(), n);
    to.scatter(staged_.data(), n);
    from = staged_.data();
  }
  return from;
}

void Sender::start(Timeline& timeline) {
  const arch::Timing& timing = timeline.timing();
  const bool header = packet_.header_pending;
  const bool fresh = current_.left == current_.total || header;
  const double overhead = fresh && is_channel() ? timing.bd_overhead : 0;
  if (tile_.geometry.kind != TileKind::kShim || header || !is_channel()) {
    const double words = header ? 1 : static_cast<double>(move_words_);
    const bool writes =
        std::any_of(route_->sinks.begin(), route_->sinks.end(), [](const Route::Sink& sink) {
          return sink.receiver->tile().geometry.kind == TileKind::kShim;
        });
    if (writes && !header) return timeline.write(this, overhead, words * 4);
    return timeline.after(this, overhead + words * 4 / timing.stream);
  }
  const Walk& walk = current_.walk;
  Timeline::Read read;
  read.delay = overhead + (fresh ? timing.shim_task_start : 0);
  read.bytes = static_cast<double>(move_words_) * 4;
  read.task_bytes = static_cast<double>(current_.total) * 4;
  read.run = static_cast<double>(std::min<uint64_t>(walk.run(), current_.total)) * 4;
  read.pitch = walk.pitch() * 4;
  read.base = current_.bd.base;
  timeline.read(this, read);
}

void Sender::complete() {
  finish_move();
  array_.scheduler().wake(this, this);
}

void Sender::finish_move() {
  if (to_control()) return finish_control();
  const bool header = packet_.header_pending;
  packet_.header_pending = false;
  const uint64_t n = move_words_;
  RunReport& report = array_.report(tile_.col);
  array_.scheduler().add_move(n, this);
  for (const Route::Sink& sink : route_->sinks) {
    if (header && !sink.keeps_header) continue;
    Receiver& to = *sink.receiver;
    if (to.is_channel()) {
      count_bytes(report, to.tile().geometry.kind, Direction::kS2MM, n * 4);
    }
    for (const Piece& piece : pieces_) to.alias_next(piece.words, piece.data, block_);
    if (pieces_.empty() && block_) to.alias_tile(n, {nullptr, block_});
    to.accept(n);
  }
  pieces_.clear();
  block_ = source_ = {};
  state_ = State::kMove;
  if (header) return;
  current_.left -= n;
  if (is_channel()) count_bytes(report, tile_.geometry.kind, Direction::kMM2S, n * 4);
  if (current_.left == 0) finish_bd();
}

std::string Sender::waiting_for_stream() const {
  std::string what = "is ready";
  if (blocked_.routeless) {
    what = "waits for a route";
  } else if (blocked_.tile) {
    const Agent* holder =
        blocked_.tile->stream_switch.holder[static_cast<size_t>(blocked_.arbiter)];
    what = strf("waits for arbiter %d of %s, held by %s", blocked_.arbiter,
                blocked_.tile->name().c_str(), holder ? holder->name().c_str() : "nobody");
  } else if (blocked_.receiver) {
    what =
        strf("waits for %s to take %s", blocked_.receiver->name().c_str(),
             packet_.header_pending
                 ? "a packet header"
                 : strf("%llu more words", static_cast<unsigned long long>(current_.left)).c_str());
  }
  return strf("%s (%s)", what.c_str(), progress().c_str());
}

}  // namespace npu::emulator
