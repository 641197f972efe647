// Time of a run: the event queue of the timed scheduler, and the memory that the shim channels
// share. The run is the functional one; only the order in which jobs end comes from here. With
// data switched off nothing is moved or computed and host buffers are never touched.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "arch/timing.h"
#include "devices/emulator/agent.h"
#include "runtime/timing.h"

namespace npu::emulator {

class Recorder;

class Timeline {
 public:
  // A recorder (timed_trace.h), if any, is told of all jobs.
  Timeline(const arch::Timing& timing, bool data, Recorder* recorder = nullptr,
           std::vector<std::string> kernels = {})
      : timing_(timing), data_(data), recorder_(recorder), kernels_(std::move(kernels)) {}

  const arch::Timing& timing() const { return timing_; }
  bool moves_data() const { return data_; }
  // Whether calls of this kernel do more than take their time (TimingOptions::kernels).
  bool computes(const std::string& kernel) const {
    return kernels_.empty() || std::ranges::find(kernels_, kernel) != kernels_.end();
  }
  Recorder* recorder() const { return recorder_; }
  double now() const { return now_; }
  bool empty() const { return heap_.empty(); }
  double next() const;  // time of the next event, infinity if there is none
  void set_now(double time) { now_ = time > now_ ? time : now_; }
  void begin();  // a new run, time 0

  // A job of `agent` ends `cycles` from now.
  void after(Agent* agent, double cycles);
  // A read of a shim MM2S channel: `delay` cycles from now it begins to share the memory. Shares go
  // by the length of the transfers, so that transfers posted together end together: with equal
  // shares tiles with m != n would be slower than published (docs/timing.md).
  struct Read {
    double delay = 0, bytes = 0;
    double task_bytes = 0;  // of the whole BD: its weight in the sharing
    double run = 0;         // contiguous bytes
    int64_t pitch = 0;      // bytes between runs
    uint64_t base = 0;      // address of the BD
  };
  void read(Agent* agent, const Read& read);
  // The transfer of `bytes` to a shim S2MM channel, which takes a share of what reads leave of the
  // memory's bandwidth.
  void write(Agent* agent, double delay, double bytes);
  // A task-complete token reaches the command processor `cycles` from now.
  void token(uint32_t key, double cycles);
  std::function<void(uint32_t)> on_token;

  // Takes the next event: moves the time and returns the agent whose job has ended, or null when
  // the event was an internal one. There must be one.
  Agent* pop();

  void count_matmul(double cycles) {
    matmul_cycles_ += cycles;
    ++matmul_calls_;
  }
  // A call of a kernel and what its cycles are (kernels/call.h); both texts are constants.
  void count_kernel(const char* name, const char* source) {
    const std::pair<const char*, const char*> called(name, source);
    if (std::ranges::find(called_, called) == called_.end()) called_.push_back(called);
  }
  // Fills in what is known here.
  void report(RunTiming* report) const;

 private:
  enum class Kind : uint8_t { kJob, kReadBegins, kMemory, kToken };
  struct Event {
    double time;
    uint64_t sequence;
    Agent* agent;
    uint32_t key;  // token, reader or version of the memory's schedule
    Kind kind;
    bool operator>(const Event& other) const {
      return time != other.time ? time > other.time : sequence > other.sequence;
    }
  };
  // One shim channel that reads, or a channel that sends to one that writes.
  struct Reader {
    Agent* agent = nullptr;
    bool writes = false;
    double run = 0, visits = 0, memory_bytes = 0;  // visits: bytes per cycle that run and row allow
    double limit = 0;                              // of the stream, memory bytes per cycle
    int64_t pitch = 0;
    uint64_t base = 0;
    bool active = false;
    double left = 0, rate = 0, weight = 0;  // memory bytes
    double bandwidth = 0;                   // of the memory, were all reads like this one
    double total = 0;                       // served so far
    double began = 0, overhead = 0;         // of a write
  };

  void push(double time, Agent* agent, uint32_t key, Kind kind);
  void update_transfers();  // accounts for the time since the last change of rates
  size_t index_of(Agent* agent, bool* found);
  void set_rates();
  void set_write_rates(double bandwidth);
  void reschedule();  // new rates, new next completion
  Agent* finish_read();

  arch::Timing timing_;
  bool data_;
  Recorder* recorder_;
  std::vector<std::string> kernels_;
  double now_ = 0, updated_ = 0;
  uint64_t sequence_ = 0;
  std::vector<Event> heap_;
  std::vector<Reader> readers_;
  uint32_t version_ = 0;
  double matmul_cycles_ = 0;
  uint64_t matmul_calls_ = 0, events_ = 0;
  std::vector<std::pair<const char*, const char*>> called_;  // kernels, with their costs' sources
};

}  // namespace npu::emulator
