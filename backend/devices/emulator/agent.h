// What the scheduler runs: DMA channels and cores, as agents of array columns. A round has two
// parts. Agents whose next step crosses columns (a broadcast, a neighbour's lock) advance in the
// serial part; then all columns run in parallel, each until all its agents are blocked. The order
// of steps therefore depends neither on the number of threads nor on their speed, and a run of a
// lock-correct program is deterministic. Where locks do not separate a buffer's writer from its
// reader, the two race on those bytes, here as on the hardware: the data in them (never the
// emulator's own state, nor memory outside the program's buffers) may depend on the threads. Timed
// runs have one list of agents and process one event at a time.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <vector>

namespace npu::emulator {

class ActionLog;
class Array;
class Timeline;

class Agent {
 public:
  explicit Agent(int column) : column_(static_cast<size_t>(column)) {}
  virtual ~Agent() = default;
  // Makes progress until it is blocked (and registered with what it waits for), has posted a job,
  // or the next step belongs to the round's other part (Scheduler::in_columns). Wake-ups may be
  // spurious: the agent checks again and blocks again.
  virtual void advance() = 0;
  // The posted job. Jobs of a serial part run in parallel: while one runs, nothing else changes
  // what it reads of its agent and of the receivers of a move.
  virtual void execute() {}
  // Consequences of the job (releases, tokens); run serially.
  virtual void complete() {}
  // Jobs that must not run beside others (Python callbacks) run on the calling thread.
  bool serial_jobs() const { return serial_jobs_; }
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
  void run_serially() { serial_jobs_ = crosses_ = true; }
  // Whether its next step touches more than its column.
  void set_crosses(bool crosses) { crosses_ = crosses; }

 private:
  friend class Scheduler;
  const size_t column_;
  bool queued_ = false, serial_jobs_ = false, crosses_ = false;
  double busy_ = 0;
};

// Agents that wait for one thing and are all woken when it changes.
using WaitList = std::vector<Agent*>;
// Adds an agent to a list that does not hold it yet.
void add_waiter(WaitList& list, Agent* agent);

class Scheduler {
 public:
  // `from`: the agent that wakes; may be null while no columns run.
  void wake(Agent* agent, const Agent* from);
  void wake_all(WaitList& list, const Agent* from) {
    if (!list.empty()) wake_listed(list, from);
  }
  // Queues the agent's job, in the serial part and in timed runs. In columns an agent runs its jobs
  // itself.
  void post(Agent* agent);
  bool in_columns() const { return in_columns_; }
  void set_columns(int columns);  // of the array
  // Runs one round (timed: one event); false when no agent can make progress.
  bool round();
  // Makes the runs timed (null: untimed again).
  void set_timeline(Timeline* timeline);
  // What runs is written down (replay/action_log.h); null: no longer.
  void set_log(ActionLog* log) { log_ = log; }
  bool has_ready() const { return !ready_.empty(); }
  void reset();
  void forget(const Agent* agent);  // it is about to be destroyed
  // Work done since the last visible progress, which the watchdog bounds (Array::step): one unit is
  // an advance of an agent, a move or kWordsPerUnit of its words; a job costs kJobUnits.
  static constexpr uint64_t kJobUnits = 64, kWordsPerUnit = 64;
  uint64_t work() const { return work_; }
  void add_job(const Agent* from) { columns_[from->column_].work += kJobUnits; }
  void add_move(uint64_t words, const Agent* from) {
    columns_[from->column_].work += 1 + words / kWordsPerUnit;
  }
  void progressed() { work_ = 0; }
  void progressed(const Agent* from) { columns_[from->column_].progressed = true; }

 private:
  // What one thread changes while columns run.
  struct alignas(64) Column {
    std::vector<Agent*> ready;
    std::vector<Agent*> outside;  // woken, to advance in the serial part or in another column
    uint64_t work = 0;
    bool progressed = false;
    std::exception_ptr error;
  };
  void wake_listed(WaitList& list, const Agent* from);
  size_t advance_ready();
  bool timed_round();
  void run_jobs();
  void run_column(Column& column);
  bool run_columns();
  void account();

  Timeline* timeline_ = nullptr;
  ActionLog* log_ = nullptr;
  std::vector<Agent*> ready_;  // of the serial part
  std::vector<Agent*> jobs_;   // as they were posted
  std::vector<Column> columns_;
  std::vector<Column*> active_;  // kept for its capacity
  bool in_columns_ = false;
  unsigned rounds_ = 0;
  uint64_t work_ = 0;
};

}  // namespace npu::emulator
