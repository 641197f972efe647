// The recorder behind timed_trace.h. An agent's state is sampled whenever it has advanced: time
// stands still while agents advance, so the last state of an instant is the one that lasts.
#include "devices/emulator/timed_trace.h"

#include <algorithm>
#include <utility>

#include "devices/emulator/array.h"
#include "devices/emulator/driven_core.h"
#include "devices/emulator/ports.h"
#include "devices/emulator/receiver.h"
#include "devices/emulator/sender.h"

namespace npu::emulator {

using arch::TileKind;
using Kind = TraceEvent::Kind;

void Recorder::begin(const Array& array) {
  array_ = &array;
  events_.clear();
  tracks_.clear();
  index_.clear();
  cores_.clear();
  kernels_.clear();
  routes_.clear();
  left_out_ = 0;
  first_left_out_ = std::numeric_limits<double>::infinity();
  operation_ = TraceEvent::kNobody;
  const int columns = array.device().columns;
  locks_.assign(static_cast<size_t>(columns * arch::kRows) * TraceEvent::kLocks, {});
  tracks_.push_back({});
  tracks_.back().name = "command processor";
  for (int col = 0; col < columns; ++col) {
    for (int row = 0; row < arch::kRows; ++row) {
      const Tile& tile = *array.find_tile(col, row);
      const size_t first = static_cast<size_t>(col * arch::kRows + row) * TraceEvent::kLocks;
      for (size_t i = 0; i < tile.locks.size(); ++i) locks_[first + i].value = tile.locks[i].value;
      if (tile.core) add_core(tile);
      for (const auto& receiver : tile.receivers) {
        add_agent(receiver.get(), tile).channel = receiver.get();
      }
      for (const auto& sender : tile.senders) {
        Track& track = add_agent(sender.get(), tile);
        track.channel = track.sender = sender.get();
      }
    }
  }
}

Recorder::Track& Recorder::add_agent(const Agent* agent, const Tile& tile) {
  index_[agent] = static_cast<uint32_t>(tracks_.size());
  Track& track = tracks_.emplace_back();
  track.name = agent->name();
  track.col = tile.col;
  track.row = tile.row;
  return track;
}

void Recorder::add_core(const Tile& tile) {
  const Core* core = tile.core.get();
  const auto known = cores_.find(&tile);
  if (known == cores_.end()) {
    cores_[&tile] = static_cast<uint32_t>(tracks_.size());
    add_agent(core, tile);
  } else {
    index_[core] = known->second;
  }
  Track& track = tracks_[cores_[&tile]];
  track.core = dynamic_cast<const ProgramCore*>(core);
  track.driven = dynamic_cast<const DrivenCore*>(core);
  if (track.core) name_functions(track);
  if (track.driven) add_ports(tile);
}

// Only these have stream ports that move anything.
void Recorder::add_ports(const Tile& tile) {
  if (index_.contains(&tile.ports->core_in)) return;
  add_agent(&tile.ports->core_in, tile).channel = &tile.ports->core_in;
  Track& out = add_agent(&tile.ports->core_out, tile);
  out.channel = out.sender = &tile.ports->core_out;
}

void Recorder::find_cores() {
  std::erase_if(index_, [this](const auto& entry) {
    return !tracks_[entry.second].channel;  // what was a core
  });
  for (const auto& [tile, index] : cores_) {
    tracks_[index].core = nullptr;
    tracks_[index].driven = nullptr;
  }
  for (int col = 0; col < array_->device().columns; ++col) {
    for (int row = 0; row < arch::kRows; ++row) {
      const Tile& tile = *array_->find_tile(col, row);
      if (tile.core) add_core(tile);
    }
  }
}

uint32_t Recorder::kernel_of(const std::string& name) {
  const auto found = std::ranges::find(kernels_, name);
  const auto index = static_cast<uint32_t>(found - kernels_.begin());
  if (found == kernels_.end()) kernels_.push_back(name);
  return index;
}

// Those of the program that the core runs now: "zero_i32", or "zero_i32 (norm)" in an overlay.
void Recorder::name_functions(Track& track) {
  track.program = track.core->current_;
  track.functions.clear();
  const std::string overlay = track.core->overlay();
  for (const std::string& function : track.program->program.functions) {
    const std::string name = overlay.empty() ? function : function + " (" + overlay + ")";
    track.functions.push_back(kernel_of(name));
  }
}

uint32_t Recorder::track_of(const Agent* agent) const {
  const auto found = index_.find(agent);
  return found == index_.end() ? TraceEvent::kNobody : found->second;
}

// False when the event is not among those kept.
bool Recorder::record(const TraceEvent& event) {
  if (event.kind != Kind::kLock) {
    if (event.end <= event.start) return false;
    const double inside = std::min(event.end, options_.to) - std::max(event.start, options_.from);
    if (inside <= 0) return false;
    Track& track = tracks_[event.track];
    track.cycles[static_cast<size_t>(event.kind)] += inside;
    track.memory_wait += event.memory_wait * inside / (event.end - event.start);
  }
  if (events_.size() < options_.limit) {
    events_.push_back(event);
    return true;
  }
  ++left_out_;
  first_left_out_ = std::min(first_left_out_, event.end);
  return false;
}

void Recorder::await(uint32_t index, Kind kind, uint32_t other, double now) {
  Track& track = tracks_[index];
  if (track.wait == kind && track.wait_other == other) return;
  if (track.wait != kNone) {
    TraceEvent event;
    event.start = track.since;
    event.end = now;
    event.track = index;
    event.other = track.wait_other;
    event.kind = track.wait;
    if (track.channel) event.bd = static_cast<int16_t>(track.channel->current_.id);
    record(event);
  }
  track.wait = kind;
  track.wait_other = other;
  track.since = now;
}

void Recorder::advanced(const Agent* agent, double now) {
  const uint32_t index = track_of(agent);
  if (index == TraceEvent::kNobody) return;
  const Track& track = tracks_[index];
  if (options_.locks) watch(track.col, track.row, now);
  const auto lock_id = [](const Tile& tile, uint32_t lock) {
    return static_cast<uint32_t>(tile.col * arch::kRows + tile.row) * TraceEvent::kLocks + lock;
  };
  if (const ProgramCore* core = track.core) {
    if (core->calling_) return;  // job() ends its wait
    if (!core->blocked_) return stop_waiting(index, now);
    const auto lock = static_cast<uint32_t>(core->blocked_->lock);
    return await(index, Kind::kWaitLock, lock_id(core->tile_, lock), now);
  }
  if (const DrivenCore* core = track.driven) {
    if (core->working_) return;  // job() ends its wait
    const bool acquires = core->operation_.code == CoreOperation::Code::kAcquireGe ||
                          core->operation_.code == CoreOperation::Code::kAcquireEq;
    if (!core->blocked_ || !acquires) return stop_waiting(index, now);
    const auto lock = static_cast<uint32_t>(core->operation_.lock) % 16;
    return await(index, Kind::kWaitLock, lock_id(core->lock_owner(), lock), now);
  }
  const BdEngine& channel = *track.channel;
  switch (channel.state_) {
    case BdEngine::State::kBusy:
      return;  // job() or read() end its wait
    case BdEngine::State::kIdle:
    case BdEngine::State::kStray:
      return stop_waiting(index, now);
    case BdEngine::State::kAcquire: {
      const arch::Bd& bd = channel.current_.bd;
      uint32_t local = 0;
      const Tile* owner = bd.acquire_enable ? channel.lock_owner(bd.acquire_id, &local) : nullptr;
      if (!owner) return stop_waiting(index, now);
      return await(index, Kind::kWaitLock, lock_id(*owner, local), now);
    }
    case BdEngine::State::kMove:
      break;
  }
  if (!track.sender) return await(index, Kind::kWaitSender, TraceEvent::kNobody, now);
  const Sender::Blocked& blocked = track.sender->blocked_;
  if (blocked.routeless) return stop_waiting(index, now);
  if (blocked.tile) return await(index, Kind::kWaitArbiter, TraceEvent::kNobody, now);
  await(index, Kind::kWaitReceiver, track_of(blocked.receiver), now);
}

// Control packets go to cores; those that other tiles take have no track.
uint32_t Recorder::route_of(Track& track) {
  const Route& taken = *track.sender->route_;
  std::vector<uint32_t> route;
  for (const Route::Sink& sink : taken.sinks) route.push_back(track_of(sink.receiver));
  for (const Tile* tile : taken.controls) {
    if (tile->core) route.push_back(track_of(tile->core.get()));
  }
  if (track.route == TraceEvent::kNobody || routes_[track.route] != route) {
    track.route = static_cast<uint32_t>(routes_.size());
    routes_.push_back(std::move(route));
  }
  return track.route;
}

// A sender's words on the way, seen by itself and by all receivers.
void Recorder::move(uint32_t index, double start, double end, double memory_wait) {
  Track& track = tracks_[index];
  const Sender& sender = *track.sender;
  TraceEvent event;
  event.start = start;
  event.end = end;
  event.memory_wait = memory_wait;
  event.bytes = sender.packet_.header_pending ? 4 : sender.move_words_ * 4;
  event.track = index;
  event.other = route_of(track);
  event.bd = static_cast<int16_t>(sender.current_.id);
  event.kind = Kind::kSend;
  stop_waiting(index, start);
  record(event);
  event.other = index;
  event.kind = Kind::kReceive;
  for (const Route::Sink& sink : sender.route_->sinks) {
    if (sender.packet_.header_pending && !sink.keeps_header) continue;
    event.track = track_of(sink.receiver);
    event.bd = static_cast<int16_t>(sink.receiver->current_.id);
    stop_waiting(event.track, start);
    record(event);
  }
}

void Recorder::job(const Agent* agent, double now, double end) {
  const uint32_t index = track_of(agent);
  if (index == TraceEvent::kNobody) return;
  if (tracks_[index].channel) return move(index, now, end, 0);
  TraceEvent event;
  event.start = now;
  event.end = end;
  event.track = index;
  if (const DrivenCore* driven = tracks_[index].driven) {
    event.other = kernel_of(driven->operation_.name);
  } else {
    const ProgramCore& core = *tracks_[index].core;
    if (tracks_[index].program != core.current_) name_functions(tracks_[index]);
    event.other =
        tracks_[index].functions[static_cast<size_t>(core.program().code[core.pc_].function)];
  }
  stop_waiting(index, now);
  record(event);
}

void Recorder::read(const Agent* agent, double now, double delay) {
  const uint32_t index = track_of(agent);
  if (index == TraceEvent::kNobody) return;
  Track& track = tracks_[index];
  stop_waiting(index, now);
  track.move_begins = now + delay;
  TraceEvent event;
  event.start = now;
  event.end = now + delay;
  event.track = index;
  event.bd = static_cast<int16_t>(track.channel->current_.id);
  event.kind = Kind::kTaskStart;
  record(event);
}

void Recorder::read_done(const Agent* agent, double now, double needed) {
  const uint32_t index = track_of(agent);
  if (index == TraceEvent::kNobody) return;
  const double start = tracks_[index].move_begins;
  move(index, start, now, std::max(0.0, now - start - needed));
}

void Recorder::write_done(const Agent* agent, double began, double now, double needed) {
  const uint32_t index = track_of(agent);
  if (index == TraceEvent::kNobody) return;
  move(index, began, now, std::max(0.0, now - began - needed));
}

void Recorder::close_operation(double now) {
  if (operation_ == TraceEvent::kNobody) return;
  TraceEvent event;
  event.start = operation_waits_;
  event.end = now;
  event.track = 0;
  event.other = operation_;
  event.kind = Kind::kOperationWaits;
  record(event);
  operation_ = TraceEvent::kNobody;
  // Locks that the operation wrote and no agent waits for.
  if (options_.locks) {
    watch_locks(arch::address_col(operation_address_), arch::address_row(operation_address_), now);
  }
}

void Recorder::operation(const stream::Operation& operation, double now, double cycles) {
  close_operation(now);
  TraceEvent event;
  event.start = now;
  event.end = now + cycles;
  event.track = 0;
  event.other = operation.index;
  event.kind = Kind::kOperation;
  record(event);
  operation_ = operation.index;
  operation_waits_ = event.end;
  operation_address_ = static_cast<uint32_t>(operation.address);
}

void Recorder::stream_done(double now) { close_operation(now); }

void Recorder::finish(double now) {
  close_operation(now);
  for (uint32_t index = 1; index < tracks_.size(); ++index) stop_waiting(index, now);
}

// Memtile channels and driven cores reach their neighbours' locks.
void Recorder::watch(int col, int row, double now) {
  const int reach = arch::tile_kind(row) == TileKind::kMem ? 1 : 0;
  for (int c = col - reach; c <= col + reach; ++c) watch_locks(c, row, now);
  const Tile* tile = array_->find_tile(col, row);
  if (!dynamic_cast<const DrivenCore*>(tile->core.get())) return;
  watch_locks(col - 1, row, now);
  watch_locks(col, row - 1, now);
  watch_locks(col, row + 1, now);
}

void Recorder::watch_locks(int col, int row, double now) {
  const Tile* tile = array_->find_tile(col, row);
  if (!tile) return;
  const size_t first = static_cast<size_t>(col * arch::kRows + row) * TraceEvent::kLocks;
  for (size_t i = 0; i < tile->locks.size(); ++i) {
    LockState& state = locks_[first + i];
    const int value = tile->locks[i].value;
    if (value == state.value) continue;
    const uint32_t id = static_cast<uint32_t>(first + i);
    if (now >= options_.from && now <= options_.to) {
      // The value before its first change is shown from the window's beginning.
      if (!state.shown) add_lock(state, id, state.value, std::max(0.0, options_.from));
      add_lock(state, id, value, now);
    }
    state.value = value;
  }
}

void Recorder::add_lock(LockState& state, uint32_t id, int value, double time) {
  state.shown = true;
  if (state.last != TraceEvent::kNobody && events_[state.last].start == time) {
    events_[state.last].bytes = static_cast<uint64_t>(value);  // the last of an instant counts
    return;
  }
  TraceEvent event;
  event.start = event.end = time;
  event.bytes = static_cast<uint64_t>(value);
  event.other = id;
  event.kind = Kind::kLock;
  const auto index = static_cast<uint32_t>(events_.size());
  state.last = record(event) ? index : TraceEvent::kNobody;
}

}  // namespace npu::emulator
