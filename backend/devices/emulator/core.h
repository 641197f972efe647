// A core as an agent: it interprets a worker program and calls kernels on its data memory.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "devices/emulator/agent.h"
#include "devices/emulator/tile.h"
#include "error.h"
#include "kernels/declaration.h"
#include "kernels/kernel.h"
#include "runtime/program.h"

namespace npu::emulator {

struct KernelFunction {
  std::function<void(std::span<const KernelArgument>, CoreState&)> call;
  bool serial = false;  // must not run beside other jobs (Python callbacks)
  // Null: may access all of the core's memory, and cannot run in simulated time.
  const kernels::Declaration* declaration = nullptr;
};

class Core final : public Agent {
 public:
  Core(Array& array, Tile& tile, Program program, std::vector<KernelFunction> functions);

  void restart();  // program counter, counters and modes to their reset state
  void halt(bool halted) { halted_ = halted; }
  uint32_t status() const;  // the Core_Status register
  bool calling() const { return calling_; }
  void advance() override;
  void execute() override;
  void complete() override;
  void start(Timeline& timeline) override;
  std::string name() const override;
  std::string waiting() const override;
  // Whether its memory may be aliased: all its kernels declare what they access.
  bool accepts_aliases() const { return accepts_aliases_; }
  // Whether the program contains a release of this lock.
  bool releases(int lock) const;

 private:
  friend class Recorder;
  struct Frame {
    int loop;      // index of the loop instruction
    int64_t left;  // iterations still to run after this one; -1 = forever
  };

  [[noreturn]] void error(ErrorKind kind, const std::string& text) const;
  bool acquire(const Instruction& instruction);
  void release(const Instruction& instruction);
  int64_t loop_count(const Instruction& instruction) const;
  void enter_loop(const Instruction& instruction);
  void prepare_call(const Instruction& instruction);
  void post_call();
  int32_t load_word(uint32_t address) const;

  Array& array_;
  Tile& tile_;
  Program program_;
  std::vector<KernelFunction> functions_;
  int lock_operations_ = 0;  // since the last call
  CoreState state_;
  size_t pc_ = 0;
  bool done_ = false, calling_ = false, halted_ = false;
  bool idles_ = false;  // a call that only takes its time
  std::vector<Frame> frames_;
  std::vector<int> counters_;
  std::vector<KernelArgument> arguments_;
  bool accepts_aliases_ = true;
  const Instruction* blocked_ = nullptr;
};

}  // namespace npu::emulator
