// The emulated NPU: tiles, the command processor and the run loop. This is the register-level
// replay interface; devices/emulator/emulated_device.cpp puts the device contract on top of it.
#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "arch/geometry.h"
#include "devices/emulator/agent.h"
#include "devices/emulator/control_port.h"
#include "devices/emulator/program_core.h"
#include "devices/emulator/tile.h"
#include "devices/emulator/timed_run.h"
#include "runtime/program.h"
#include "runtime/run_report.h"
#include "runtime/timing.h"
#include "stream/txn.h"

namespace npu::emulator {

// Argument i of a submission lies at device address (i + 1) << kArgumentWindowBits: so far apart
// that a transfer that overruns its argument reaches no other.
inline constexpr int kArgumentWindowBits = 38;

// An argument of a stream: host memory that the array's shim tiles reach.
struct Argument {
  std::byte* data = nullptr;  // null in a timed run without data
  size_t bytes = 0;
  bool writable = true;
};

class ActionLog;
class ControlState;
struct CoreDriver;
class JointReplay;
class OwnMemory;
struct Recording;
class Replay;
class Recordings;
struct SteeringWord;

class Array {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  explicit Array(const arch::Geometry& device);
  ~Array();
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  // Resets the array (programs are detached) and executes a configuration stream on it.
  // contents: of memories, where the stream writes nothing.
  RunReport configure(std::span<const std::byte> txn, std::byte contents = std::byte{0});
  // Puts a worker program on a core; functions[i] implements program.functions[i].
  void attach(int col, int row, Program program, std::vector<KernelFunction> functions);
  // Lets a callback say what a core does (driven_core.h).
  void attach(int col, int row, CoreDriver driver);
  // Gives a core programs that streams load (runtime/overlay.h); it runs none until then. Its slot
  // counters become 0.
  void attach(int col, int row, const Overlays& overlays);
  // Gives LOADPDI operations that name `id` a configuration (pdi.cpp). attach_programs runs after
  // it has been loaded and may call attach(), nothing else of the array.
  void add_pdi(uint32_t id, std::span<const std::byte> txn, std::function<void()> attach_programs);
  // Executes a runtime stream. After an error the array must be configured again.
  RunReport submit(std::span<const std::byte> txn, std::span<const Argument> buffers);
  // The same in steps, for runs that are waited for with a timeout: begin() once, resume() until it
  // returns true, that is, the run has ended; then report(). `stream` must outlive the run.
  // With recordings, a run that fits one of them repeats it, and others may be recorded.
  void begin(const stream::Stream& stream, std::span<const Argument> buffers,
             Recordings* recordings = nullptr);
  bool resume(Deadline deadline);
  // Adds a run to those that repeat records and have not gone on yet: they go on beside each other,
  // and end with the first one, whose report() has the time of all. The array is then as that one
  // leaves it. None reads or writes what another one writes. Null, and nothing happens, where the
  // run would have to execute, or has to wait; else its report.
  std::optional<RunReport> join(std::span<const Argument> buffers, Recordings& recordings);
  bool joinable() const;
  // The memories that runs beside others work on: kept for the next ones until drop_copies().
  size_t copy_bytes() const;
  void drop_copies();
  // From here to end_series() nothing but runs changes what their arguments hold, and nobody looks
  // at the array: a replay may put off what it leaves, most of which the next one replaces.
  void begin_series() { series_ = true; }
  void end_series();
  // Leaves what a replay has put off.
  void leave_put_off();
  // Ends a run where it is; the array must be configured again.
  void abort();
  const RunReport& report() const { return report_; }

  // Whether a stream has to wait before it changes what a transfer needs. If not, the array first
  // advances, as it would on hardware while the command processor works; what is in use even then
  // is an error either way (docs/reference/command_stream.md, "When the array advances").
  // Nor does a stream then push before it makes the route, or a task that nothing sends data for.
  void require_waits(bool required) { waits_required_ = required; }
  // Operations of the last submission before which it advanced for that.
  uint64_t unwaited() const { return unwaited_count_; }
  // Channels of the tasks that it left behind, one name for each: nothing sent data for them.
  const std::vector<std::string>& dropped() const { return dropped_; }

  // Register access as the command processor sees it.
  void write_register(uint32_t address, uint32_t value);
  uint32_t read_register(uint32_t address);
  // A transfer of control packets from `sender` to the TileControl ports of these tiles: checked
  // when it begins, executed when it has arrived.
  void begin_control(const Sender& sender, std::span<Tile* const> ports,
                     std::span<const ControlAccess> accesses);
  void control(const Sender& sender, std::span<Tile* const> ports,
               std::span<const ControlAccess> accesses);

  // Makes submissions timed: with `data`, as functional as before; without, host buffers are only
  // sizes (their data may be null, control packets apart) and kernels do not run. A recorder
  // (timed_trace.h) records every submission and must outlive them; kernels: those that run
  // (TimingOptions). Null ends it.
  void set_timing(const arch::Timing* timing, bool data, Recorder* recorder = nullptr,
                  const std::vector<std::string>& kernels = {});
  // Of the last timed submission.
  const RunTiming& timing_report() const { return timing_report_; }
  bool timed() const { return timeline_ != nullptr; }
  bool moves_data() const { return !timeline_ || timeline_->moves_data(); }

  // The watchdog's budget: work units (Scheduler::work) that may pass without an executed operation
  // or a finished shim BD before a run counts as a livelock. The default is tens of seconds of one.
  static constexpr uint64_t kWatchdogBudget = uint64_t{1} << 29;
  void set_watchdog_budget(uint64_t units) { watchdog_budget_ = units; }
  // Called periodically during a run; an exception it throws ends the run (Ctrl-C).
  void set_interrupt(std::function<void()> check) { interrupt_ = std::move(check); }

  const arch::Geometry& device() const { return device_; }
  std::span<const std::unique_ptr<Tile>> tiles() const { return tiles_; }
  // Changes whenever a configuration is loaded or a core's program attached; no other array of the
  // process has had it.
  uint64_t epoch() const { return epoch_; }
  bool replaying() const { return replay_ != nullptr; }
  // An error has ended a run: it must be configured again.
  bool faulted() const { return faulted_; }
  // As a driver may between two runs, and as happens before every run with recordings: brings the
  // array into the state in which configure() and attach() left it, all but the contents of its
  // data memories. False, and nothing happens, where a run has left locks or tasks behind for the
  // next one, and where cores or channels touch data before any stream runs: they would not again.
  bool return_to_rest();
  // The same, and data memories, as the configuration that is loaded and its programs left them:
  // instead of configure() and attach(). False, and nothing happens, where only those can do it.
  bool reload();
  Tile& tile(int col, int row);             // with its memory up to date
  Tile* find_tile(int col, int row) const;  // null where there is none
  Scheduler& scheduler() { return scheduler_; }
  RunReport& report(int col) { return column_counts_[static_cast<size_t>(col)].report; }
  uint64_t switch_epoch() const { return switch_epoch_; }
  BlockPool& blocks(int col);
  void add_token(int col, int row, arch::Direction direction, int channel);
  // The stream's route from the slave port that `sender` drives (stream_switch.cpp). `header` is
  // the packet's first word.
  Route trace(const Sender& sender, int slave_port, uint32_t header);
  // Whether tasks of this S2MM channel of a shim tile may stay unfilled: no route leads there, or
  // one from a trace unit and none from what sends data (stream_switch.cpp).
  bool receives_no_data(const Tile& shim, int channel) const;
  // A sender without a route waits for one while anything else goes on; then `missing` is the
  // error (advance_policy.cpp). False where it has to have one.
  bool wait_for_route(Sender& sender, std::exception_ptr missing);
  void end_wait_for_route(const Sender& sender);
  // Host memory behind a device address: sets *left to the bytes up to the buffer's end.
  struct HostMemory {
    std::byte* data = nullptr;
    uint64_t bytes = 0;                       // to the end of the argument
    bool writable = false, constant = false;  // constant: nothing writes it during the run
    bool present = false;                     // false: a run without data has only its size
  };
  HostMemory host_memory(uint64_t address) const;
  std::string describe_buffers() const;
  // "submit", "simulate" or "configure", the function that errors name; who() adds the stream
  // operation. Timed runs of a device are submitted.
  const char* function() const { return configuring_ ? "configure" : run_function(); }
  std::string who() const;

 private:
  // One configure, attach or submit at a time. Kernels are called in the middle of a run, and
  // Python may have several threads: a call made while the array is busy gets an error instead of a
  // corrupted run.
  class Entry {
   public:
    // while_attaching: the call is possible in what add_pdi() was given.
    Entry(Array& array, const char* function, bool while_attaching = false);
    ~Entry();
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

   private:
    Array& array_;
    const bool nested_;
  };
  void write_bd(Tile& tile, uint32_t offset, uint32_t value);
  void write_switch(Tile& tile, uint32_t offset, uint32_t value);
  void write_channel(Tile& tile, uint32_t offset, uint32_t value);
  void write_lock(Tile& tile, uint32_t offset, uint32_t value);
  void write_core_control(Tile& tile, uint32_t value);
  void write_program(Tile& tile, uint32_t offset, std::span<const uint32_t> words);
  void write_registers(Tile& tile, uint32_t offset, std::span<const uint32_t> words);
  void respond(Tile& tile, const ControlAccess& access);
  Tile& tile_for_program(int col, int row);
  void put_core(Tile& tile, std::unique_ptr<Core> core);
  uint32_t read_switch(const Tile& tile, uint32_t relative) const;
  uint32_t read_stored(const Tile& tile, uint32_t offset) const;
  bool starts_at_own(const Tile& tile, uint32_t base_word) const;
  // Whether a register is part of a configuration: routes, programs, core control.
  bool configures(arch::TileKind kind, uint32_t offset) const;
  const BdEngine* user_of(const Tile& tile, int bd) const;
  void check_bd_free(const Tile& tile, int bd) const;
  void check_at_rest(bool busy, const std::string& name) const;
  // Of the stream's operations, and then of what the array still does: false when paused_.
  bool execute();
  bool run_operation(const stream::Operation& operation);
  // advance_policy.cpp
  bool settle();  // until nothing can progress
  bool settle_before(const stream::Operation& operation);
  bool must_settle(const stream::Operation& operation);
  bool wait_until_free(const stream::Operation& operation);
  // What an operation writes: words from an offset of a tile on. No words: not known beforehand.
  struct Written {
    Tile* tile = nullptr;
    uint32_t offset = 0, value = 0;
    std::span<const uint32_t> words;
  };
  Written written_by(const stream::Operation& operation) const;
  bool finds_stirred(const Written& written);
  bool finds_busy(const Written& written);
  bool finds_in_use(Tile& tile, uint32_t offset, std::span<const uint32_t> words);
  void stir(Tile& tile);
  bool stirred(Tile& tile);
  void switches_changed();
  void check_routes() const;
  const char* run_function() const { return timed() && !waits_required_ ? "simulate" : "submit"; }
  // pdi.cpp
  void load_pdi(const stream::Operation& operation);
  void execute_pdi(const stream::Stream& configuration);
  void reset_tiles(std::optional<std::byte> contents);
  bool sync(const stream::Operation& operation);
  bool poll(const stream::Operation& operation);
  bool advance();
  void check_generation(const char* function, const stream::Stream& stream) const;
  void start_stream(const stream::Stream& stream);
  void patch(const stream::Operation& operation);
  void log_in_use(uint32_t address, const BdSlot& bd);
  BdSlot* find_bd(uint32_t address);  // null: a register that is none of a BD
  // replayed_run.cpp
  void begin_epoch();
  bool find_rest();
  void keep_loaded();
  bool settles_untouched();
  void check_begin(const char* name, std::span<const Argument> buffers) const;
  void check_arguments(const char* name, std::span<const Argument> buffers) const;
  void start(const stream::Stream& stream, std::span<const Argument> buffers,
             Recordings* recordings);
  bool begin_replay(Recordings& recordings);
  void begin_recording(const stream::Stream& stream, Recordings& recordings);
  bool comparable(const SteeringWord& word, const Recording& run) const;
  bool has_tokens() const;  // that no stream has waited for
  void flush_recorded();
  void end_recording();
  bool resume_replay(std::chrono::steady_clock::time_point begin);
  void leave_state_of(const Replay& run);
  void take_buffers(std::span<const Argument> buffers);
  void drop_buffers();
  RunReport whole_report();
  bool step();  // one round; false when no agent can make progress
  enum class Awaited : uint8_t { kToken, kRegister };
  [[noreturn]] void deadlock(Awaited awaited, const std::string& what);
  [[noreturn]] void livelock();
  std::string blocked_agents() const;
  std::string likely_cause(Awaited awaited) const;
  void check_finished(const char* when);
  // timed_array.cpp
  void spend(const stream::Operation& operation);
  void spend_load(std::span<const double> core_cycles);
  std::vector<double> core_cycles() const;  // in which the core of each tile worked in this run
  void begin_timing();
  void stream_done();
  void end_timing();
  void start_cores();

  const arch::Geometry& device_;
  // One per column, for its senders; they outlive the tiles, which refer to their blocks.
  std::vector<BlockPool> blocks_;
  // Of a run that is recorded; after an error it stays until the next configuration, as channels
  // and aliases may refer to its blocks.
  std::unique_ptr<ActionLog> log_;
  const std::shared_ptr<TileMemories> memories_;  // of tiles_
  std::vector<std::unique_ptr<Tile>> tiles_;
  Scheduler scheduler_;
  RunReport report_;
  // Of one column, whose agents run beside others; the array's after a round or a submission.
  struct alignas(64) ColumnCounts {
    RunReport report;
    std::vector<uint32_t> tokens;
  };
  std::vector<ColumnCounts> column_counts_;
  uint64_t undecoded_since_configure_ = 0;
  uint64_t switch_epoch_ = 1;
  bool configuring_ = false, configured_ = false, faulted_ = false;
  std::atomic<bool> busy_{false};
  const stream::Operation* operation_ = nullptr;  // the one being executed, for errors
  const Sender* control_sender_ = nullptr;        // of the control packets being executed
  // Progress of the stream: the operation, whether it has begun, tiles of its SYNC that are done.
  const stream::Stream* stream_ = nullptr;
  size_t next_operation_ = 0;
  uint32_t address_patches_ = 0;  // executed
  bool operation_begun_ = false, drained_ = false;
  // advance_policy.cpp. Nothing can progress; the tiles where the stream has changed that; whether
  // the array settles before the next operation, whatever it is.
  bool settled_ = false, fresh_ = false;
  bool waited_for_ = false;  // it settles for what a transfer needs
  struct Routeless {
    Sender* sender;
    std::exception_ptr missing;
  };
  std::vector<Routeless> routeless_;
  std::vector<std::string> dropped_;
  uint64_t unwaited_count_ = 0;
  std::vector<Tile*> stirred_;
  bool waits_required_ = false;
  uint64_t runs_ = 0;  // begun
  struct Pdi {
    stream::Stream configuration;
    std::function<void()> attach_programs;
  };
  std::map<uint32_t, Pdi> pdis_;
  uint64_t loaded_pdi_ = kNoPdi;  // what the firmware's cache holds: id and address
  static constexpr uint64_t kNoPdi = UINT64_MAX;
  std::atomic<std::thread::id> attaching_;  // the thread of a running attach_programs
  int synced_ = 0;
  std::chrono::nanoseconds array_time_{};  // of the run, so far
  Deadline deadline_ = Deadline::max();
  bool paused_ = false;  // the deadline has passed
  uint64_t watchdog_budget_ = kWatchdogBudget;
  std::chrono::steady_clock::time_point next_check_{};
  std::function<void()> interrupt_;
  std::vector<Argument> buffers_;
  std::vector<bool> constant_;  // arguments that share no memory with a writable one
  // Tokens not yet consumed, by (col, row, direction, channel).
  std::map<uint32_t, int> tokens_;
  std::unique_ptr<Recording> recorded_;  // the beginning of the run that is being recorded
  Recordings* recordings_ = nullptr;
  std::shared_ptr<const ControlState> rest_;  // where recorded runs begin; of that epoch
  uint64_t rest_epoch_ = 0, epoch_runs_ = 0;  // runs before it
  // What else reload() puts back: of each tile its read-back registers and data memory, up to
  // where nothing but zeros follows.
  struct Loaded {
    std::map<uint32_t, uint32_t> registers;
    std::vector<std::byte> memory;
  };
  std::vector<Loaded> loaded_;  // of that epoch
  uint64_t loaded_undecoded_ = 0;
  // The replay that has left the array as it is, if nothing else has since, the distances of its
  // address patches, and whether it is known to leave nothing for the next run: the same one again
  // has no state to compare, and to put only addresses.
  std::weak_ptr<const Recording> left_by_;
  std::vector<int64_t> left_moved_;
  bool left_nothing_ = false;
  bool series_ = false;
  std::unique_ptr<const Replay> put_off_;  // the last run, if it has not left what it leaves
  // Streams or control packets have changed routes, pad values, or what cores run for good.
  bool reconfigured_ = false;
  std::unique_ptr<JointReplay> replay_;
  std::vector<std::unique_ptr<OwnMemory>> beside_;  // for all of its runs but the first
  uint64_t epoch_ = 0;
  std::unique_ptr<Timeline> timeline_;
  RunTiming timing_report_;
  double command_busy_ = 0;
};

}  // namespace npu::emulator
