// The round-based scheduler (agent.h).
#include "devices/emulator/agent.h"

#include <algorithm>
#include <cassert>
#include <exception>
#include <utility>

#include "devices/emulator/replay/action_log.h"
#include "devices/emulator/timed_run.h"
#include "devices/emulator/timed_trace.h"
#include "host/thread_pool.h"

namespace npu::emulator {

namespace {

// Agents that only wake each other (zero-length BDs that pass a lock around) must not keep a part
// of a round from ending; those left advance in the next round, where Array::step checks the work
// done.
constexpr size_t kMaxAdvances = 1 << 10;
// A column's work in one part of a round, in units: long calls must not delay Ctrl-C.
constexpr uint64_t kMaxWork = 1 << 17;
// Serial parts in a row.
constexpr unsigned kMaxSerialParts = 16;

}  // namespace

void add_waiter(WaitList& list, Agent* agent) {
  if (std::find(list.begin(), list.end(), agent) == list.end()) list.push_back(agent);
}

void Scheduler::wake(Agent* agent, const Agent* from) {
  if (in_columns_ && agent->column_ != from->column_) {  // its state is another thread's
    columns_[from->column_].outside.push_back(agent);
    return;
  }
  if (agent->queued_) return;
  agent->queued_ = true;
  const bool serial = timeline_ || (agent->crosses_ && !in_columns_);
  (serial ? ready_ : columns_[agent->column_].ready).push_back(agent);
}

void Scheduler::wake_listed(WaitList& list, const Agent* from) {
  for (Agent* agent : list) wake(agent, from);
  list.clear();
}

void Scheduler::post(Agent* agent) {
  assert(!in_columns_);
  jobs_.push_back(agent);
}

void Agent::start(Timeline& timeline) { timeline.after(this, 0); }

void Scheduler::reset() {
  const auto drop = [](std::vector<Agent*>& list) {
    for (Agent* agent : list) agent->queued_ = false;
    list.clear();
  };
  drop(ready_);
  jobs_.clear();
  for (Column& column : columns_) {
    drop(column.ready);
    column = {};
  }
  in_columns_ = false;
  rounds_ = 0;
  work_ = 0;
}

void Scheduler::forget(const Agent* agent) {
  std::erase(ready_, agent);
  for (Column& column : columns_) std::erase(column.ready, agent);
}

void Scheduler::set_columns(int columns) { columns_.resize(static_cast<size_t>(columns)); }

void Scheduler::set_timeline(Timeline* timeline) {
  timeline_ = timeline;
  for (Column& column : columns_) {  // an untimed round returns them to their columns
    ready_.insert(ready_.end(), column.ready.begin(), column.ready.end());
    column.ready.clear();
  }
}

// Adds what the columns counted to the array's counts.
void Scheduler::account() {
  bool progress = false;
  for (Column& column : columns_) {
    work_ += std::exchange(column.work, 0);
    progress |= std::exchange(column.progressed, false);
  }
  if (progress) work_ = 0;
}

size_t Scheduler::advance_ready() {
  // The list grows while it is walked: advancing an agent may wake others.
  Recorder* recorder = timeline_ ? timeline_->recorder() : nullptr;
  size_t done = 0;
  for (; done < ready_.size() && done < kMaxAdvances; ++done) {
    Agent* agent = ready_[done];
    agent->queued_ = false;
    if (!timeline_ && !agent->crosses_) {
      wake(agent, nullptr);
      continue;
    }
    agent->advance();
    if (recorder) recorder->advanced(agent, timeline_->now());
  }
  work_ += done + kJobUnits * jobs_.size();
  ready_.erase(ready_.begin(), ready_.begin() + static_cast<std::ptrdiff_t>(done));
  return done;
}

bool Scheduler::timed_round() {
  const size_t advanced = advance_ready();
  for (Agent* agent : jobs_) agent->start(*timeline_);
  jobs_.clear();
  account();
  if (advanced > 0) return true;
  if (timeline_->empty()) return false;
  if (Agent* agent = timeline_->pop()) {
    if (timeline_->moves_data()) agent->execute();
    agent->complete();
  }
  return true;
}

// Jobs of the serial part; if several throw, the first one posted wins.
void Scheduler::run_jobs() {
  if (jobs_.empty()) return;
  std::vector<std::exception_ptr> errors(jobs_.size());
  const auto run = [&](size_t i) {
    try {
      jobs_[i]->execute();
    } catch (...) {
      errors[i] = std::current_exception();
    }
  };
  if (log_) log_->begin_lanes(jobs_.size());
  ThreadPool::shared().parallel_for(jobs_.size(), [&](size_t i) {
    const ActionLog::LaneScope scope(log_, i);
    if (!jobs_[i]->serial_jobs()) run(i);
  });
  if (log_) log_->end_lanes();
  for (size_t i = 0; i < jobs_.size(); ++i) {  // callbacks may use the pool themselves
    if (jobs_[i]->serial_jobs()) run(i);
    if (errors[i]) std::rethrow_exception(errors[i]);
  }
  for (Agent* agent : jobs_) agent->complete();
  jobs_.clear();
}

// Until all agents of the column are blocked.
void Scheduler::run_column(Column& column) {
  size_t done = 0;
  const uint64_t max_work = column.work + kMaxWork;
  try {
    while (done < column.ready.size() && done < kMaxAdvances && column.work < max_work) {
      Agent* agent = column.ready[done++];
      agent->queued_ = false;
      if (agent->crosses_) {
        column.outside.push_back(agent);
      } else {
        agent->advance();
      }
    }
  } catch (...) {
    column.error = std::current_exception();
  }
  column.work += done;
  column.ready.erase(column.ready.begin(),
                     column.ready.begin() + static_cast<std::ptrdiff_t>(done));
}

bool Scheduler::run_columns() {
  active_.clear();
  for (size_t c = 0; c < columns_.size(); ++c) {
    if (columns_[c].ready.empty()) continue;
    active_.push_back(&columns_[c]);
    // Cores of a row share an operand, which the first of them packs. Threads begin with columns of
    // different halves, so in opposite orders they rarely begin with the same row.
    if (c >= columns_.size() / 2) std::reverse(columns_[c].ready.begin(), columns_[c].ready.end());
  }
  if (active_.empty()) return false;
  ThreadPool& pool = ThreadPool::shared();  // may throw
  in_columns_ = true;
  if (log_) log_->begin_lanes(active_.size());
  pool.parallel_for(active_.size(), [&](size_t i) {
    const ActionLog::LaneScope scope(log_, i);
    run_column(*active_[i]);
  });
  if (log_) log_->end_lanes();
  in_columns_ = false;
  for (Column* column : active_) {
    if (column->error) std::rethrow_exception(std::exchange(column->error, nullptr));
    for (Agent* agent : column->outside) wake(agent, nullptr);
    column->outside.clear();
  }
  return true;
}

bool Scheduler::round() {
  if (timeline_) return timed_round();
  const bool advanced = advance_ready() > 0;
  run_jobs();
  // Another serial part at once if there is one to do: columns have more to do after it.
  const bool ran = (ready_.empty() || ++rounds_ % kMaxSerialParts == 0) && run_columns();
  account();
  return advanced || ran;
}

}  // namespace npu::emulator
