// The round-based scheduler (agent.h).
#include "emulator/agent.h"

#include <exception>

#include "thread_pool.h"

namespace npu::emulator {

void Scheduler::wake(Agent* agent) {
  if (agent->queued_) return;
  agent->queued_ = true;
  ready_.push_back(agent);
}

void Scheduler::wake_all(WaitList& list) {
  WaitList woken;
  woken.swap(list);
  for (Agent* agent : woken) wake(agent);
  if (list.empty()) {  // keep the capacity
    woken.clear();
    list.swap(woken);
  }
}

void Scheduler::reset() {
  for (Agent* agent : ready_) agent->queued_ = false;
  ready_.clear();
  jobs_.clear();
}

bool Scheduler::round() {
  if (ready_.empty() && jobs_.empty()) return false;
  // The list grows while it is walked: advancing an agent may wake others.
  for (size_t i = 0; i < ready_.size(); ++i) {
    Agent* agent = ready_[i];
    agent->queued_ = false;
    agent->advance();
  }
  ready_.clear();
  if (jobs_.empty()) return true;

  std::vector<Agent*> jobs;
  jobs.swap(jobs_);
  std::vector<std::exception_ptr> errors(jobs.size());
  auto run = [&](size_t i) {
    try {
      jobs[i]->execute();
    } catch (...) {
      errors[i] = std::current_exception();
    }
  };
  ThreadPool::shared().parallel_for(jobs.size(), [&](size_t i) {
    if (!jobs[i]->serial_job()) run(i);
  });
  for (size_t i = 0; i < jobs.size(); ++i) {
    if (jobs[i]->serial_job()) run(i);
    if (errors[i]) std::rethrow_exception(errors[i]);
  }
  for (Agent* agent : jobs) agent->complete();
  return true;
}

}  // namespace npu::emulator
