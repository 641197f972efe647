// A core that interprets a worker program and calls kernels on its data memory. It has one program
// for as long as a configuration is loaded, or overlays: programs of which it runs the one that its
// program memory holds when it is enabled after a reset.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "devices/emulator/core.h"
#include "kernels/declaration.h"
#include "kernels/kernel.h"
#include "runtime/overlay.h"
#include "runtime/program.h"

namespace npu::emulator {

class ActionLog;

struct KernelFunction {
  std::function<void(std::span<const KernelArgument>, CoreState&)> call;
  bool serial = false;  // must not run beside other jobs (Python callbacks)
  // Null: may access all of the core's memory, and takes `cycles` in simulated time.
  const kernels::Declaration* declaration = nullptr;
  std::optional<double> cycles = std::nullopt;
};

// A program and its kernels: functions[i] implements program.functions[i].
struct CoreProgram {
  Program program;
  std::vector<KernelFunction> functions;
};

// One that streams load; the same for all cores that run overlays.
struct OverlayProgram : CoreProgram {
  std::string name;
  std::vector<uint32_t> image;  // of program memory, from its begin on; a mark at least
  uint32_t counters = 0;        // address of the slot counters in data memory
};
using Overlays = std::shared_ptr<const std::vector<OverlayProgram>>;

class ProgramCore final : public Core {
 public:
  ProgramCore(Array& array, Tile& tile, CoreProgram program);
  ProgramCore(Array& array, Tile& tile, Overlays overlays);  // none of them is loaded

  void control(uint32_t value) override;
  void check_reset() const override;
  std::string unfinished() const override;
  bool has_overlays() const override { return overlays_ != nullptr; }
  std::string overlay() const { return loaded_ ? loaded_->name : ""; }  // that is loaded
  bool unloaded() const override { return overlays_ && !loaded_; }
  uint32_t status() const override;
  bool calling() const override { return calling_; }
  void advance() override;
  void execute() override;
  void complete() override;
  void start(Timeline& timeline) override;
  std::string waiting() const override;
  // Where it is between two runs.
  struct Rest;
  Rest rest() const;
  void put(const Rest& rest);
  void reserve_state(ActionLog& log) const override;
  // Whether its program, or any of its overlays, contains a release of this lock.
  bool releases(const Tile& owner, int lock) const override;

 private:
  friend class Recorder;
  struct Frame {
    int loop;      // index of the loop instruction
    int64_t left;  // iterations still to run after this one; -1 = forever
  };

  void restart();  // program counter, counters and modes to their reset state
  void use(const CoreProgram& program);
  void load_overlay();  // the one that program memory holds
  [[noreturn]] void refuse_overlay() const;
  std::string place() const;  // "instruction 3 of its program"
  const Program& program() const { return current_->program; }
  // The slot that a counter chooses among so many.
  size_t slot(int counter, size_t slots) const;
  void advance_slot(const Instruction& instruction);
  bool acquire(const Instruction& instruction);
  void release(const Instruction& instruction);
  int64_t loop_count(const Instruction& instruction) const;
  void enter_loop(const Instruction& instruction);
  void prepare_call(const Instruction& instruction);
  void post_call();
  void log_call(ActionLog& log);
  int32_t load_word(uint32_t address) const;
  // Not written down in a record: slot counters of overlays are state of the core.
  int32_t word_at(uint32_t address) const;
  void set_counter(uint32_t address, int32_t value);

  CoreProgram own_;                          // without overlays
  Overlays overlays_;                        // or null
  std::vector<uint32_t> counter_addresses_;  // of theirs, each once: they may share them
  const OverlayProgram* loaded_ = nullptr;
  const CoreProgram* current_;  // own_, the loaded overlay, or one of no instructions
  int lock_operations_ = 0;     // of timed runs, since the last call
  CoreState& modes_;            // in the tile's memories
  size_t pc_ = 0;
  bool done_ = false, calling_ = false, halted_ = false;
  bool idles_ = false;  // a call that only takes its time
  std::vector<Frame> frames_;
  std::vector<int> counters_;  // of own_; those of overlays lie in data memory
  std::vector<KernelArgument> arguments_;
  const Instruction* blocked_ = nullptr;
};

struct ProgramCore::Rest {
  size_t pc;
  bool done, halted;
  CoreState state;
  std::vector<Frame> frames;
  std::vector<int> counters;  // of overlays one after the other
  const Instruction* blocked;
  const OverlayProgram* loaded;
};

}  // namespace npu::emulator
