// Claims of jobs (job_board.h). Every thread begins at columns of its own, so that a column's tiles
// stay in one CPU's cache, and goes on where work is left.
#include "emulator/job_board.h"

#include <algorithm>
#include <bit>

#include "emulator/agent.h"
#include "thread_pool.h"

namespace npu::emulator {

void JobBoard::set_columns(int columns) {
  used_ = std::clamp<size_t>(static_cast<size_t>(columns), 1, kColumns);
}

bool JobBoard::open() {
  ThreadPool& pool = ThreadPool::shared();
  if (pool.threads() < 2) return false;
  closed_.store(false, std::memory_order_relaxed);
  posted_.store(false, std::memory_order_relaxed);
  threads_ = static_cast<size_t>(pool.threads());
  open_ = pool.begin_help(helper_);
  return open_;
}

int JobBoard::post(Agent* agent, int column) {
  const size_t c = static_cast<size_t>(column) % used_;
  Column& jobs = columns_[c];
  if (jobs.posted == kSlots) return -1;
  const size_t slot = jobs.posted++;
  jobs.jobs[slot] = agent;
  jobs.states[slot].store(kPosted, std::memory_order_relaxed);
  waiting_[c].fetch_or(uint64_t{1} << slot, std::memory_order_release);
  return static_cast<int>(c * kSlots + slot);
}

bool JobBoard::done(int place) const {
  const size_t p = static_cast<size_t>(place);
  return columns_[p / kSlots].states[p % kSlots].load(std::memory_order_acquire) != kPosted;
}

std::exception_ptr JobBoard::error(int place) {
  const size_t p = static_cast<size_t>(place);
  if (columns_[p / kSlots].states[p % kSlots].load(std::memory_order_acquire) != kFailed) {
    return nullptr;
  }
  const std::lock_guard<std::mutex> guard(mutex_);
  for (const Failure& failure : failures_) {
    if (failure.place == p) return failure.error;
  }
  return nullptr;
}

void JobBoard::run(size_t column, size_t slot) {
  State state = kDone;
  try {
    columns_[column].jobs[slot]->execute();
  } catch (...) {
    const std::lock_guard<std::mutex> guard(mutex_);
    failures_.push_back({column * kSlots + slot, std::current_exception()});
    state = kFailed;
  }
  columns_[column].states[slot].store(state, std::memory_order_release);
}

bool JobBoard::run_one(size_t thread) {
  // The opening thread goes up from the first column and takes jobs as they were posted, the others
  // go down from the ends of their parts, last job first: two threads hardly ever begin with cores
  // of the same row, whose operand the first of them packs.
  const bool first = thread == 0;
  const size_t start = first ? 0 : used_ - 1 - (thread - 1) * used_ / threads_ % used_;
  // While jobs are still being posted, a column is left to the thread whose cache has it.
  const size_t own =
      posted_.load(std::memory_order_acquire) ? used_ : std::max<size_t>(1, used_ / threads_);
  for (size_t i = 0; i < own; ++i) {
    const size_t column = (first ? i : start + used_ - i) % used_;
    std::atomic<uint64_t>& waiting = waiting_[column];
    uint64_t seen = waiting.load(std::memory_order_acquire);
    while (seen != 0) {
      const int slot = first ? std::countr_zero(seen) : 63 - std::countl_zero(seen);
      const uint64_t bit = uint64_t{1} << slot;
      const uint64_t before = waiting.fetch_and(~bit, std::memory_order_acq_rel);
      if (before & bit) {
        run(column, static_cast<size_t>(slot));
        return true;
      }
      seen = before & ~bit;
    }
  }
  return false;
}

void JobBoard::help(size_t thread) {
  for (int waits = 0; !closed_.load(std::memory_order_acquire);) {
    if (run_one(thread)) {
      waits = 0;
    } else {
      ThreadPool::relax(waits++);
    }
  }
}

void JobBoard::close() {
  if (!open_) return;
  for (auto& waiting : waiting_) waiting.exchange(0, std::memory_order_acq_rel);
  no_more();
  ThreadPool::shared().end_help();
  open_ = false;
  for (size_t c = 0; c < kColumns; ++c) columns_[c].posted = 0;
  failures_.clear();
}

}  // namespace npu::emulator
