// What the scheduler runs: an agent advances serially until it blocks or posts a job; jobs (data
// moves, kernel calls) of one round run in parallel; then each agent completes serially. Other
// threads run the first jobs while agents still advance, and the last while agents complete.
// Because all state changes are serial, in an order that does not depend on who was faster, and
// jobs of one round touch disjoint data in a lock-correct program, a run is deterministic whatever
// the number of threads. A program whose locks do not separate a
// buffer's writer from its reader races on those bytes, here as on the hardware: its data (never
// the emulator's own state, nor memory outside its buffers) then depends on the threads.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include "emulator/job_board.h"

namespace npu::emulator {

class Array;
class Timeline;

class Agent {
 public:
  virtual ~Agent() = default;
  // Serial: progress until blocked (registered with what it waits for) or until a job is posted.
  // Agents may be woken for nothing; they look again and block again.
  virtual void advance() = 0;
  // Parallel, also to advances and completions of others: the posted job. What it reads of its
  // agent, and of the receivers of a move, nobody else changes before it is done.
  virtual void execute() {}
  // Serial: consequences of the job (releases, tokens).
  virtual void complete() {}
  // Jobs that must not run beside others (Python callbacks) run on the calling thread.
  bool serial_jobs() const { return serial_jobs_; }
  // Jobs of one column work on the same memories: those of a round are grouped by it, so that a
  // column's data stays in one CPU's cache.
  virtual int column() const { return 0; }
  // Timed runs: puts the end of the posted job on the timeline; by default it takes no time.
  virtual void start(Timeline& timeline);
  // "core (0,2)", "memtile (1,1) MM2S 0", ...
  virtual std::string name() const = 0;
  // What it waits for, for deadlock reports; empty when it is idle or not blocked.
  virtual std::string waiting() const = 0;

  // Cycles of this timed run in which it worked.
  double busy() const { return busy_; }
  void add_busy(double cycles) { busy_ += cycles; }
  void clear_busy() { busy_ = 0; }

 protected:
  void run_serially() { serial_jobs_ = true; }

 private:
  friend class Scheduler;
  bool queued_ = false, serial_jobs_ = false;
  double busy_ = 0;
};

// Agents that wait for one thing and are all woken when it changes.
using WaitList = std::vector<Agent*>;
// Adds an agent to a list that does not hold it yet.
void add_waiter(WaitList& list, Agent* agent);

class Scheduler {
 public:
  void wake(Agent* agent);
  void wake_all(WaitList& list);
  void post(Agent* agent);
  void set_columns(int columns);  // of the array
  // Runs one round, timed: one event; false when nobody can progress.
  bool round();
  // Makes the runs timed (null: untimed again).
  void set_timeline(Timeline* timeline) { timeline_ = timeline; }
  bool has_ready() const { return !ready_.empty(); }
  void reset();
  void forget(const Agent* agent) { std::erase(ready_, agent); }  // it is about to be destroyed
  // Work done since the last visible progress (Array::step bounds it): one unit is an advance of an
  // agent or kWordsPerUnit words moved, a job costs kJobUnits.
  static constexpr uint64_t kJobUnits = 64, kWordsPerUnit = 64;
  uint64_t work() const { return work_; }
  void add_words(uint64_t words) { work_ += words / kWordsPerUnit; }
  void progressed() { work_ = 0; }

 private:
  size_t advance_ready();
  bool timed_round();
  struct Job {
    Agent* agent;
    int place;  // on the board; -1: on none, the scheduler's thread runs it
    int column;
    size_t posted;  // index in jobs_
  };
  void order_jobs();
  std::exception_ptr finish(const Job& job);
  void run_in_order();
  void run_deferred();
  Timeline* timeline_ = nullptr;
  std::vector<Agent*> ready_;
  std::vector<Job> jobs_;     // of this round, as they were posted
  std::vector<Job> ordered_;  // in the order in which they complete; kept for its capacity
  size_t columns_ = JobBoard::kColumns;
  bool serial_ = false;  // some must not run beside others
  JobBoard board_;
  uint64_t work_ = 0;
};

}  // namespace npu::emulator
