// The round-based scheduler (agent.h).
#include "emulator/agent.h"

#include <algorithm>
#include <array>

#include "emulator/timed_run.h"
#include "emulator/timed_trace.h"
#include "thread_pool.h"

namespace npu::emulator {

namespace {

// Agents that only wake each other (zero-length BDs passing a lock around) must not hold a round up
// for ever; whoever is left advances in the next round, where Array::step sees the work done.
constexpr size_t kMaxAdvances = 1 << 14;

constexpr size_t kMostColumns = 16;  // power of two; more columns share

}  // namespace

void add_waiter(WaitList& list, Agent* agent) {
  if (std::find(list.begin(), list.end(), agent) == list.end()) list.push_back(agent);
}

void Scheduler::wake(Agent* agent) {
  if (agent->queued_) return;
  agent->queued_ = true;
  ready_.push_back(agent);
}

void Scheduler::wake_all(WaitList& list) {
  for (Agent* agent : list) wake(agent);
  list.clear();
}

void Scheduler::reset() {
  for (Agent* agent : ready_) agent->queued_ = false;
  ready_.clear();
  jobs_.clear();
  running_.clear();
  errors_.clear();
  work_ = 0;
}

void Agent::start(Timeline& timeline) { timeline.after(this, 0); }

size_t Scheduler::advance_ready() {
  // The list grows while it is walked: advancing an agent may wake others.
  Recorder* recorder = timeline_ ? timeline_->recorder() : nullptr;
  size_t done = 0;
  for (; done < ready_.size() && done < kMaxAdvances; ++done) {
    Agent* agent = ready_[done];
    agent->queued_ = false;
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
  if (advanced > 0) return true;
  if (timeline_->empty()) return false;
  if (Agent* agent = timeline_->pop()) {
    if (timeline_->moves_data()) agent->execute();
    agent->complete();
  }
  return true;
}

void Scheduler::order_by_column() {
  // A counting sort, which keeps the jobs of a column in the order in which they were posted.
  std::array<uint32_t, kMostColumns + 1> begin{};
  const auto column = [&](size_t i) {
    return static_cast<size_t>(running_[i]->column()) % kMostColumns;
  };
  for (size_t i = 0; i < running_.size(); ++i) ++begin[column(i) + 1];
  for (size_t c = 0; c < kMostColumns; ++c) begin[c + 1] += begin[c];
  order_.resize(running_.size());
  for (size_t i = 0; i < running_.size(); ++i) {
    order_[begin[column(i)]++] = static_cast<uint32_t>(i);
  }
}

bool Scheduler::round() {
  if (timeline_) return timed_round();
  if (ready_.empty()) return false;
  advance_ready();
  if (jobs_.empty()) return true;

  running_.swap(jobs_);
  errors_.assign(running_.size(), nullptr);
  auto run = [&](size_t i) {
    try {
      running_[i]->execute();
    } catch (...) {
      errors_[i] = std::current_exception();
    }
  };
  order_by_column();
  ThreadPool::shared().parallel_for(running_.size(), [&](size_t i) {
    if (!running_[order_[i]]->serial_jobs()) run(order_[i]);
  });
  for (size_t i = 0; i < running_.size(); ++i) {
    if (running_[i]->serial_jobs()) run(i);
    if (errors_[i]) {
      const std::exception_ptr first = errors_[i];
      errors_.clear();
      std::rethrow_exception(first);
    }
  }
  for (Agent* agent : running_) agent->complete();
  running_.clear();
  return true;
}

}  // namespace npu::emulator
