// The event queue and the shared memory (timed_run.h).
#include "devices/emulator/timed_run.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>

#include "devices/emulator/timed_trace.h"

namespace npu::emulator {

namespace {

// A transfer with fewer bytes left is done: rounding of rates must not keep it open forever.
constexpr double kDone = 1e-3;

}  // namespace

double Timeline::next() const {
  return heap_.empty() ? std::numeric_limits<double>::infinity() : heap_.front().time;
}

void Timeline::begin() {
  now_ = updated_ = 0;
  sequence_ = 0;
  heap_.clear();
  readers_.clear();
  matmul_cycles_ = 0;
  matmul_calls_ = events_ = 0;
  called_.clear();
}

void Timeline::push(double time, Agent* agent, uint32_t key, Kind kind) {
  heap_.push_back({time, sequence_++, agent, key, kind});
  std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
}

void Timeline::after(Agent* agent, double cycles) {
  agent->add_busy(cycles);
  if (recorder_) recorder_->job(agent, now_, now_ + cycles);
  push(now_ + cycles, agent, 0, Kind::kJob);
}

void Timeline::token(uint32_t key, double cycles) {
  push(now_ + cycles, nullptr, key, Kind::kToken);
}

size_t Timeline::index_of(Agent* agent, bool* found) {
  size_t index = 0;
  while (index < readers_.size() && readers_[index].agent != agent) ++index;
  *found = index < readers_.size();
  if (!*found) {
    readers_.push_back({});
    readers_.back().agent = agent;
  }
  return index;
}

void Timeline::write(Agent* agent, double delay, double bytes) {
  bool found = false;
  const size_t index = index_of(agent, &found);
  Reader& writer = readers_[index];
  writer.writes = true;
  writer.limit = timing_.stream;
  writer.left = writer.memory_bytes = bytes;
  writer.began = now_;
  writer.overhead = delay;
  push(now_ + delay, agent, static_cast<uint32_t>(index), Kind::kReadBegins);
}

void Timeline::read(Agent* agent, const Read& read) {
  bool found = false;
  const size_t index = index_of(agent, &found);
  // Neighbours that read other parts of the same memory rows open them once between them.
  bool shared = false;
  for (const Reader& other : readers_) {
    if (other.agent == agent || other.writes || read.pitch == 0) continue;
    const uint64_t apart = other.base > read.base ? other.base - read.base : read.base - other.base;
    shared |= other.pitch == read.pitch && apart < static_cast<uint64_t>(std::abs(read.pitch));
  }
  Reader& reader = readers_[index];
  reader.writes = false;
  reader.run = read.run;
  reader.pitch = read.pitch;
  reader.base = read.base;
  const double fetched = shared ? arch::line_overfetch(read.run, timing_.memory_line) : 1;
  reader.visits = fetched * read.run / (timing_.row_visit * (shared ? timing_.row_sharing : 1));
  reader.limit = fetched * timing_.stream;
  reader.left = reader.memory_bytes = fetched * read.bytes;
  reader.weight = fetched * read.task_bytes;
  const double delay = read.delay + (found ? 0 : timing_.shim_cold_start);
  if (recorder_) recorder_->read(agent, now_, delay);
  push(now_ + delay, agent, static_cast<uint32_t>(index), Kind::kReadBegins);
}

void Timeline::update_transfers() {
  const double elapsed = now_ - updated_;
  updated_ = now_;
  if (elapsed <= 0) return;
  for (Reader& reader : readers_) {
    if (reader.active) reader.left -= reader.rate * elapsed;
  }
}

// The memory's time is shared by weight; what a channel's port cannot take goes to the others.
void Timeline::set_rates() {
  int open = 0;
  for (const Reader& reader : readers_) open += reader.active && !reader.writes;
  double visits = 0, bandwidth = 0, cost = 0, time = 1;
  const double channels = open;
  for (Reader& reader : readers_) {
    if (!reader.active || reader.writes) continue;
    if (reader.visits != visits) {
      visits = reader.visits;
      bandwidth = arch::dram_bandwidth(timing_.dram_read, channels * visits);
    }
    reader.bandwidth = bandwidth;
    reader.rate = 0;
    cost += reader.weight / bandwidth;
  }
  for (bool again = true; again && open > 0;) {
    again = false;
    const double level = time / cost;  // bytes per cycle of a weight of 1
    for (Reader& reader : readers_) {
      if (!reader.active || reader.writes || reader.rate > 0 ||
          reader.weight * level <= reader.limit)
        continue;
      reader.rate = reader.limit;
      time -= reader.limit / reader.bandwidth;
      cost -= reader.weight / reader.bandwidth;
      --open;
      again = true;
    }
    if (again) continue;
    for (Reader& reader : readers_) {
      if (!reader.active || reader.writes || reader.rate > 0) continue;
      reader.rate = reader.weight * level;
    }
  }
  double reads = 0;
  for (const Reader& reader : readers_) reads += reader.active && !reader.writes ? reader.rate : 0;
  // Reads have priority: the memory controller queues writes.
  set_write_rates(std::max(timing_.dram_total - reads, 1e-3 * timing_.dram_total));
}

// Equal shares: the channels' ports are equally fast.
void Timeline::set_write_rates(double bandwidth) {
  int writers = 0;
  for (const Reader& reader : readers_) writers += reader.active && reader.writes;
  for (Reader& reader : readers_) {
    if (reader.active && reader.writes) reader.rate = std::min(reader.limit, bandwidth / writers);
  }
}

void Timeline::reschedule() {
  ++version_;
  set_rates();
  double first = std::numeric_limits<double>::infinity();
  for (const Reader& reader : readers_) {
    if (reader.active) first = std::min(first, std::max(0.0, reader.left) / reader.rate);
  }
  if (first == std::numeric_limits<double>::infinity()) return;
  push(now_ + first, nullptr, version_, Kind::kMemory);
}

// Ends one transfer that is done; others follow in events of their own.
Agent* Timeline::finish_read() {
  update_transfers();
  Agent* done = nullptr;
  for (Reader& reader : readers_) {
    if (!reader.active || reader.left > kDone) continue;
    reader.active = false;
    reader.total += reader.memory_bytes;
    const double needed = reader.overhead + reader.memory_bytes / reader.limit;
    reader.agent->add_busy(needed);
    done = reader.agent;
    if (recorder_ && reader.writes) recorder_->write_done(done, reader.began, now_, needed);
    if (recorder_ && !reader.writes) recorder_->read_done(done, now_, needed);
    break;
  }
  reschedule();
  return done;
}

Agent* Timeline::pop() {
  assert(!heap_.empty());
  std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
  const Event event = heap_.back();
  heap_.pop_back();
  ++events_;
  switch (event.kind) {
    case Kind::kJob:
      set_now(event.time);
      return event.agent;
    case Kind::kReadBegins:
      set_now(event.time);
      update_transfers();
      readers_[event.key].active = true;
      reschedule();
      return nullptr;
    case Kind::kMemory:
      if (event.key != version_) return nullptr;  // rates have changed since
      set_now(event.time);
      return finish_read();
    case Kind::kToken:
      set_now(event.time);
      on_token(event.key);
      break;
  }
  return nullptr;
}

void Timeline::report(RunTiming* report) const {
  report->cycles = now_;
  report->dispatch = timing_.dispatch;
  report->seconds = now_ / timing_.clock_hz + timing_.dispatch;
  report->matmul_cycles = matmul_cycles_;
  report->matmul_calls = matmul_calls_;
  report->events = events_;
  report->kernels.assign(called_.begin(), called_.end());
  double channels = 0, bytes = 0;
  for (const Reader& reader : readers_) {
    channels += !reader.writes;
    bytes += reader.total;
  }
  double busy = 0;  // cycles the reads would take alone, at the rate all channels reach together
  for (const Reader& reader : readers_) {
    if (reader.writes) continue;
    busy += reader.total / arch::dram_bandwidth(timing_.dram_read, channels * reader.visits);
  }
  busy = std::max(busy, bytes / timing_.dram_total);
  report->dram_share = now_ > 0 ? busy / now_ : 0;
}

}  // namespace npu::emulator
