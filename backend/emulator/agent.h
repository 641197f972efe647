// What the scheduler runs: an agent advances serially until it blocks or posts a job; jobs (data
// moves, kernel calls) of one round run in parallel; then each agent completes serially. Because all
// state changes are serial and jobs of one round touch disjoint data in a lock-correct program, a run
// is deterministic whatever the number of threads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace npu::emulator {

class Array;

class Agent {
 public:
  virtual ~Agent() = default;
  // Serial: progress until blocked (registered with what it waits for) or until a job is posted.
  virtual void advance() = 0;
  // Parallel: the posted job.
  virtual void execute() {}
  // Serial: consequences of the job (releases, tokens).
  virtual void complete() {}
  // Jobs that must not run beside others (Python callbacks) run on the calling thread.
  virtual bool serial_job() const { return false; }
  // "core (0,2)", "mem (1,1) MM2S 0", ...
  virtual std::string name() const = 0;
  // What it waits for, for deadlock reports; empty when it is idle or not blocked.
  virtual std::string waiting() const = 0;

 private:
  friend class Scheduler;
  bool queued_ = false;
};

// Agents that wait for one thing and are all woken when it changes.
using WaitList = std::vector<Agent*>;

class Scheduler {
 public:
  void wake(Agent* agent);
  void wake_all(WaitList& list);
  void post(Agent* agent) { jobs_.push_back(agent); }
  // Runs one round; false when nobody can progress.
  bool round();
  // Runs until nobody can progress.
  void drain() {
    while (round()) {
    }
  }
  void reset();

 private:
  std::vector<Agent*> ready_, jobs_;
};

}  // namespace npu::emulator
