// The worker-program interpreter (core.h).
#include "devices/emulator/core.h"

#include <cassert>
#include <cstring>

#include "devices/emulator/array.h"
#include "devices/emulator/timed_run.h"
#include "error.h"
#include "kernels/call.h"

namespace npu::emulator {

namespace {

// Instructions in a row without a call or a wait: far more than any worker between two of them, a
// fraction of a second of the interpreter.
constexpr int kMaxStraight = 1 << 24;
// Calls in a row while others of the column wait.
constexpr int kMaxCalls = 256;

}  // namespace

Core::Core(Array& array, Tile& tile, Program program, std::vector<KernelFunction> functions)
    : Agent(tile.col),
      array_(array),
      tile_(tile),
      program_(std::move(program)),
      functions_(std::move(functions)) {
  for (const KernelFunction& function : functions_) {
    accepts_aliases_ &= function.declaration != nullptr;
    if (function.serial) run_serially();
  }
  restart();
}

void Core::restart() {
  pc_ = 0;
  done_ = program_.code.empty();
  calling_ = idles_ = false;
  tile_.aliases.unpin();
  blocked_ = nullptr;
  frames_.clear();
  counters_.assign(static_cast<size_t>(program_.counters), 0);
  state_ = CoreState{};
}

std::string Core::name() const { return tile_.name(); }

void Core::error(ErrorKind kind, const std::string& text) const {
  fail(kind, "[%s] %s %s", array_.function(), name().c_str(), text.c_str());
}

uint32_t Core::status() const {
  return halted_ ? 0u : 1u | (blocked_ ? 1u << 9 : 0u) | (done_ ? 1u << 20 : 0u);
}

int32_t Core::load_word(uint32_t address) const {
  int32_t value;
  tile_.aliases.flush(address, sizeof value);
  std::memcpy(&value, tile_.memory->data() + address, sizeof value);
  return value;
}

int64_t Core::loop_count(const Instruction& instruction) const {
  switch (instruction.code) {
    case Instruction::Code::kLoopForever:
      return -1;
    case Instruction::Code::kLoopCount:
      return instruction.value;
    default:
      break;
  }
  const int32_t count = load_word(static_cast<uint32_t>(instruction.value));
  if (count < 0) {
    error(
        ErrorKind::kKernel,
        strf("reads a loop bound of %d at address %lld; the stream must write a runtime parameter "
             ">= 0 before the core reads it",
             count, static_cast<long long>(instruction.value)));
  }
  return count;
}

void Core::enter_loop(const Instruction& instruction) {
  const int64_t count = loop_count(instruction);
  if (count == 0) {
    pc_ = static_cast<size_t>(instruction.target) + 1;
    return;
  }
  frames_.push_back({static_cast<int>(pc_), count < 0 ? -1 : count - 1});
  ++pc_;
}

// False while the lock does not have the value asked for.
bool Core::acquire(const Instruction& instruction) {
  Lock& lock = tile_.locks[static_cast<size_t>(instruction.lock)];
  const int wanted = static_cast<int>(instruction.value);
  const bool equal = instruction.code == Instruction::Code::kAcquireEq;
  if (equal ? lock.value != wanted : lock.value < wanted) {
    add_waiter(lock.waiters, this);
    blocked_ = &instruction;
    return false;
  }
  blocked_ = nullptr;
  ++lock_operations_;
  lock.value -= wanted;
  if (wanted != 0) array_.scheduler().wake_all(lock.waiters, this);
  return true;
}

void Core::release(const Instruction& instruction) {
  Lock& lock = tile_.locks[static_cast<size_t>(instruction.lock)];
  const int value = lock.value + static_cast<int>(instruction.value);
  if (value > arch::kMaxLockValue || value < 0) {
    error(
        ErrorKind::kLock,
        strf("releases its lock %d by %lld, which makes it %d; a lock holds 0..%d, so balance its "
             "acquires and releases",
             instruction.lock, static_cast<long long>(instruction.value), value,
             arch::kMaxLockValue));
  }
  lock.value = value;
  ++lock_operations_;
  array_.scheduler().wake_all(lock.waiters, this);
}

void Core::prepare_call(const Instruction& instruction) {
  arguments_.clear();
  const uint32_t size = static_cast<uint32_t>(tile_.memory->size());
  for (const Operand& operand : instruction.operands) {
    KernelArgument argument;
    uint32_t address = 0;
    switch (operand.kind) {
      case Operand::Kind::kConstant:
        argument.value = operand.value;
        break;
      case Operand::Kind::kRtp:
        argument.value = load_word(static_cast<uint32_t>(operand.value));
        break;
      case Operand::Kind::kBuffer:
      case Operand::Kind::kRotating:
        address = operand.kind == Operand::Kind::kBuffer
                      ? static_cast<uint32_t>(operand.value)
                      : operand.addresses[static_cast<size_t>(
                            counters_[static_cast<size_t>(operand.counter)])];
        argument.data = tile_.memory->data() + address;
        argument.bytes = size - address;
        break;
    }
    arguments_.push_back(argument);
  }
  tile_.aliases.redirect(arguments_,
                         functions_[static_cast<size_t>(instruction.function)].declaration);
}

// The call becomes a job. In a program with wrong locks its operands' aliases may be replaced
// before it runs.
void Core::post_call() {
  tile_.aliases.pin();
  calling_ = true;
  array_.scheduler().post(this);
}

void Core::advance() {
  if (done_ || calling_ || halted_) return;
  int calls = 0;
  for (int straight = 0; pc_ < program_.code.size(); ++straight) {
    if (straight == kMaxStraight) {
      error(
          ErrorKind::kKernel,
          strf("ran %d instructions of its program without a call or a wait, near instruction %zu; "
               "check its loop bounds and locks",
               kMaxStraight, pc_));
    }
    const Instruction& instruction = program_.code[pc_];
    switch (instruction.code) {
      case Instruction::Code::kLoopForever:
      case Instruction::Code::kLoopCount:
      case Instruction::Code::kLoopRtp:
        enter_loop(instruction);
        continue;
      case Instruction::Code::kEnd: {
        Frame& frame = frames_.back();
        if (frame.left == 0) {
          frames_.pop_back();
          ++pc_;
        } else {
          if (frame.left > 0) --frame.left;
          pc_ = static_cast<size_t>(frame.loop) + 1;
        }
        continue;
      }
      case Instruction::Code::kAcquireGe:
      case Instruction::Code::kAcquireEq:
        if (!acquire(instruction)) return;
        break;
      case Instruction::Code::kRelease:
        release(instruction);
        break;
      case Instruction::Code::kAdvance: {
        int& counter = counters_[static_cast<size_t>(instruction.lock)];
        counter = (counter + 1) % static_cast<int>(instruction.value);
        break;
      }
      case Instruction::Code::kCall:
        prepare_call(instruction);
        if (!array_.scheduler().in_columns()) {
          post_call();
          return;
        }
        execute();
        ++array_.report(tile_.col).kernel_calls;
        array_.scheduler().add_job(this);
        straight = 0;
        if (++calls == kMaxCalls) {  // lets others and the watchdog run
          ++pc_;
          return array_.scheduler().wake(this, this);
        }
        break;
    }
    ++pc_;
  }
  done_ = true;
}

void Core::execute() {
  if (idles_) return;
  functions_[static_cast<size_t>(program_.code[pc_].function)].call(arguments_, state_);
}

void Core::start(Timeline& timeline) {
  const auto function = static_cast<size_t>(program_.code[pc_].function);
  const kernels::Declaration* kernel = functions_[function].declaration;
  if (kernel == nullptr) {
    error(ErrorKind::kKernel,
          strf("calls \"%s\", whose cost is not known: a timed run needs kernels that declare "
               "theirs (NPU_DECLARE, aie_kernels/README.md)",
               program_.functions[function].c_str()));
  }
  idles_ = !timeline.computes(program_.functions[function]);
  const double cycles = kernels::call_cycles(*kernel, timeline.timing(), arguments_);
  if (kernel->product) timeline.count_matmul(cycles);
  timeline.after(this, cycles + lock_operations_ * timeline.timing().lock_operation);
  lock_operations_ = 0;
}

void Core::complete() {
  ++array_.report(tile_.col).kernel_calls;
  tile_.aliases.unpin();
  calling_ = idles_ = false;
  ++pc_;
  array_.scheduler().wake(this, this);
}

std::string Core::waiting() const {
  if (halted_) return "is disabled (Core_Control, 0x32000)";
  if (!blocked_) return "";
  const Lock& lock = tile_.locks[static_cast<size_t>(blocked_->lock)];
  const bool equal = blocked_->code == Instruction::Code::kAcquireEq;
  return strf("waits for its lock %d to be %s %lld (it is %d), at instruction %zu of its program",
              blocked_->lock, equal ? "==" : ">=", static_cast<long long>(blocked_->value),
              lock.value, pc_);
}

bool Core::releases(int lock) const {
  for (const Instruction& instruction : program_.code) {
    if (instruction.code == Instruction::Code::kRelease && instruction.lock == lock) return true;
  }
  return false;
}

}  // namespace npu::emulator
