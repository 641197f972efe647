// The round-based scheduler (agent.h).
#include "emulator/agent.h"

#include <algorithm>
#include <array>
#include <exception>

#include "emulator/timed_run.h"
#include "emulator/timed_trace.h"
#include "thread_pool.h"

namespace npu::emulator {

namespace {

// Agents that only wake each other (zero-length BDs passing a lock around) must not hold a round up
// for ever; whoever is left advances in the next round, where Array::step sees the work done.
constexpr size_t kMaxAdvances = 1 << 14;

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
  ordered_.clear();
  serial_ = false;
  work_ = 0;
}

void Scheduler::set_columns(int columns) {
  columns_ = std::clamp<size_t>(static_cast<size_t>(columns), 1, JobBoard::kColumns);
  board_.set_columns(columns);
}

void Scheduler::post(Agent* agent) {
  Job job{agent, -1, agent->column(), jobs_.size()};
  if (agent->serial_jobs()) {
    serial_ = true;
  } else if (board_.is_open()) {
    job.place = board_.post(agent, job.column);
  }
  jobs_.push_back(job);
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
  for (const Job& job : jobs_) job.agent->start(*timeline_);
  jobs_.clear();
  serial_ = false;
  if (advanced > 0) return true;
  if (timeline_->empty()) return false;
  if (Agent* agent = timeline_->pop()) {
    if (timeline_->moves_data()) agent->execute();
    agent->complete();
  }
  return true;
}

void Scheduler::order_jobs() {
  // A counting sort, which keeps the jobs of a column in the order in which they were posted.
  // Columns alternate between both ends, from which two threads come.
  std::array<uint32_t, JobBoard::kColumns + 1> begin{};
  const auto rank = [&](const Job& job) {
    const size_t column = static_cast<size_t>(job.column) % columns_;
    const size_t back = columns_ - 1 - column;
    return column <= back ? 2 * column : 2 * back + 1;
  };
  for (const Job& job : jobs_) ++begin[rank(job) + 1];
  for (size_t c = 0; c < JobBoard::kColumns; ++c) begin[c + 1] += begin[c];
  ordered_.resize(jobs_.size());
  for (const Job& job : jobs_) ordered_[begin[rank(job)]++] = job;
}

// Runs a job or waits until another thread has, running others meanwhile; returns what it threw.
std::exception_ptr Scheduler::finish(const Job& job) {
  if (job.place < 0) {
    try {
      job.agent->execute();
    } catch (...) {
      return std::current_exception();
    }
    return nullptr;
  }
  for (int waits = 0; !board_.done(job.place);) {
    if (board_.run_one()) continue;
    board_.no_more();
    ThreadPool::relax(waits++);
  }
  return board_.error(job.place);
}

// Jobs complete in their order as soon as they and those before them are done. If some throw, the
// error is that of the one posted first.
void Scheduler::run_in_order() {
  std::exception_ptr first;
  size_t posted = SIZE_MAX;
  for (const Job& job : ordered_) {
    const std::exception_ptr error = finish(job);
    if (error && job.posted < posted) {
      first = error;
      posted = job.posted;
    }
    if (!first) job.agent->complete();
  }
  if (first) std::rethrow_exception(first);
}

// A round with jobs that must not run beside others: they run after all others, and completions
// last.
void Scheduler::run_deferred() {
  std::vector<std::exception_ptr> errors(jobs_.size());
  for (const Job& job : ordered_) {
    if (!job.agent->serial_jobs()) errors[job.posted] = finish(job);
  }
  board_.close();  // a callback may use the pool itself
  for (const Job& job : jobs_) {
    if (job.agent->serial_jobs()) job.agent->execute();
    if (errors[job.posted]) std::rethrow_exception(errors[job.posted]);
  }
  for (const Job& job : ordered_) job.agent->complete();
}

bool Scheduler::round() {
  if (timeline_) return timed_round();
  if (ready_.empty()) return false;
  struct Closing {
    JobBoard& board;
    ~Closing() { board.close(); }
  } const closing{board_};
  board_.open();
  advance_ready();
  if (jobs_.empty()) return true;
  board_.all_posted();
  order_jobs();
  if (serial_) {
    run_deferred();
  } else {
    run_in_order();
  }
  jobs_.clear();
  serial_ = false;
  return true;
}

}  // namespace npu::emulator
