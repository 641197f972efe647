// A timed run as a timeline: what every core, DMA channel and the command processor did or waited
// for, and the values of locks. The Timeline calls a Recorder when there is one; without one a run
// does nothing for it. Memory is bounded: after `limit` events the rest is only counted.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <unordered_map>
#include <vector>

#include "devices/emulator/tile.h"
#include "runtime/timing.h"
#include "stream/txn.h"

namespace npu::emulator {

class Array;
class DrivenCore;
class ProgramCore;
struct CoreProgram;

// One slice of a track, or one value of a lock. Read by npu/perf/trace.py as a NumPy record.
struct TraceEvent {
  enum class Kind : uint8_t {
    kKernel,          // other: index into kernels(); the core's lock operations are in it
    kSend,            // MM2S moves; other: index into routes()
    kReceive,         // S2MM takes; other: the sender's track
    kTaskStart,       // shim MM2S until its first word
    kWaitLock,        // other: tile * kLocks + lock
    kWaitSender,      // S2MM ready, no data arrives
    kWaitReceiver,    // MM2S ready; other: the track that has no room
    kWaitArbiter,     // MM2S: another packet holds the route
    kOperation,       // other: index of the stream's operation
    kOperationWaits,  // a SYNC or poll, until it is satisfied
    kLock,            // a lock's new value in `bytes`; other as kWaitLock; no track
  };
  static constexpr size_t kKinds = 11;
  static constexpr uint32_t kLocks = 64, kNobody = UINT32_MAX;
  double start = 0, end = 0;  // cycles since the run began
  double memory_wait = 0;     // cycles of a read from DRAM beyond what its stream port needs
  uint64_t bytes = 0;
  uint32_t track = kNobody, other = kNobody;
  int16_t bd = -1;
  Kind kind = Kind::kKernel;
};

class Recorder final : public RunTrace {
 public:
  using Options = TraceOptions;
  struct Track {
    std::string name;  // as Agent::name()
    int col = -1, row = -1;
    // Cycles per TraceEvent::Kind inside the window, whatever the limit; the memory's part of
    // kSend and kReceive.
    std::array<double, TraceEvent::kKinds> cycles{};
    double memory_wait = 0;
    // The agent and what it waits for.
    const ProgramCore* core = nullptr;
    const DrivenCore* driven = nullptr;
    const BdEngine* channel = nullptr;                  // or a core's stream port
    const Sender* sender = nullptr;                     // the channel, if it is one
    TraceEvent::Kind wait = TraceEvent::Kind::kKernel;  // kKernel: for nothing
    uint32_t wait_other = TraceEvent::kNobody;
    double since = 0;
    double move_begins = 0;                // of a shim read
    const CoreProgram* program = nullptr;  // of a core
    std::vector<uint32_t> functions;       // of that program: indices into kernels()
    uint32_t route = TraceEvent::kNobody;  // the last one
  };

  explicit Recorder(const Options& options) : options_(options) {}

  // What the Timeline and the Array report; times in cycles.
  void begin(const Array& array);
  void find_cores();  // others have been put in their places
  void operation(const stream::Operation& operation, double now, double cycles);
  void stream_done(double now);
  void advanced(const Agent* agent, double now);
  void job(const Agent* agent, double now, double end);
  void read(const Agent* agent, double now, double delay);
  void read_done(const Agent* agent, double now, double needed);
  void write_done(const Agent* agent, double began, double now, double needed);
  void finish(double now);

  const std::vector<TraceEvent>& events() const { return events_; }
  // Track 0 is the command processor.
  const std::vector<Track>& tracks() const { return tracks_; }
  const std::vector<std::string>& kernels() const { return kernels_; }
  const std::vector<std::vector<uint32_t>>& routes() const { return routes_; }  // tracks
  uint64_t left_out() const { return left_out_; }
  // All events that end before this time are among those kept; infinity if none is left out.
  double first_left_out() const { return first_left_out_; }

 private:
  struct LockState {
    int value = 0;
    bool shown = false;
    uint32_t last = TraceEvent::kNobody;  // its newest event
  };

  uint32_t track_of(const Agent* agent) const;
  Track& add_agent(const Agent* agent, const Tile& tile);
  void add_core(const Tile& tile);
  void add_ports(const Tile& tile);
  uint32_t kernel_of(const std::string& name);
  void name_functions(Track& track);
  bool record(const TraceEvent& event);
  void await(uint32_t track, TraceEvent::Kind kind, uint32_t other, double now);
  void stop_waiting(uint32_t track, double now) { await(track, kNone, TraceEvent::kNobody, now); }
  void move(uint32_t track, double start, double end, double memory_wait);
  uint32_t route_of(Track& track);
  void watch_locks(int col, int row, double now);
  void watch(int col, int row, double now);
  void add_lock(LockState& state, uint32_t id, int value, double time);
  void close_operation(double now);

  static constexpr TraceEvent::Kind kNone = TraceEvent::Kind::kKernel;
  Options options_;
  const Array* array_ = nullptr;
  std::vector<TraceEvent> events_;
  std::vector<Track> tracks_;
  std::unordered_map<const Agent*, uint32_t> index_;
  std::unordered_map<const Tile*, uint32_t> cores_;  // their tracks
  std::vector<std::string> kernels_;
  std::vector<std::vector<uint32_t>> routes_;
  std::vector<LockState> locks_;
  uint64_t left_out_ = 0;
  double first_left_out_ = std::numeric_limits<double>::infinity();
  // The operation being executed.
  uint32_t operation_ = TraceEvent::kNobody;
  double operation_waits_ = 0;  // since
  uint32_t operation_address_ = 0;
};

}  // namespace npu::emulator
