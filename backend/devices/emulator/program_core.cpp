// The worker-program interpreter (program_core.h).
#include "devices/emulator/program_core.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <set>

#include "devices/emulator/array.h"
#include "devices/emulator/replay/action_log.h"
#include "devices/emulator/timed_run.h"
#include "error.h"
#include "kernels/call.h"

namespace npu::emulator {

namespace {

constexpr int kMarkWords = std::tuple_size_v<OverlayMark>;

// Instructions in a row without a call or a wait: far more than any worker between two of them, a
// fraction of a second of the interpreter.
constexpr int kMaxStraight = 1 << 24;
// Calls in a row while others of the column wait.
constexpr int kMaxCalls = 256;

}  // namespace

ProgramCore::ProgramCore(Array& array, Tile& tile, CoreProgram program)
    : Core(array, tile), own_(std::move(program)), modes_(tile.memories->modes(tile.number())) {
  use(own_);
  restart();
}

ProgramCore::ProgramCore(Array& array, Tile& tile, Overlays overlays)
    : Core(array, tile),
      overlays_(std::move(overlays)),
      modes_(tile.memories->modes(tile.number())) {
  std::set<uint32_t> counters;
  for (const OverlayProgram& overlay : *overlays_) {
    use(overlay);
    for (uint32_t i = 0; i < static_cast<uint32_t>(overlay.program.counters); ++i) {
      counters.insert(overlay.counters + 4 * i);
    }
  }
  counter_addresses_.assign(counters.begin(), counters.end());
  current_ = &own_;
  restart();
}

// Memory is aliased only if all programs that may run declare what they access.
void ProgramCore::use(const CoreProgram& program) {
  current_ = &program;
  for (const KernelFunction& function : program.functions) {
    accepts_aliases_ &= function.declaration != nullptr;
    if (function.serial) run_serially();
  }
}

void ProgramCore::restart() {
  pc_ = 0;
  done_ = program().code.empty();
  calling_ = idles_ = false;
  tile_.aliases.unpin();
  blocked_ = nullptr;
  frames_.clear();
  if (!overlays_) counters_.assign(static_cast<size_t>(program().counters), 0);
  modes_ = CoreState{};
}

void ProgramCore::control(uint32_t value) {
  const bool reset = value & kCoreReset,
             enable = (value & (kCoreReset | kCoreEnable)) == kCoreEnable;
  if (reset) {
    check_reset();
    if (overlays_) {
      loaded_ = nullptr;
      current_ = &own_;
    }
    restart();
  }
  if (enable && unloaded()) load_overlay();
  halted_ = !enable;
}

void ProgramCore::check_reset() const {
  const std::string why = unfinished();
  if (why.empty()) return;
  fail(ErrorKind::kKernel,
       "[%s] resets %s, %s; let the stream wait until all cores have ended their programs",
       array_.who().c_str(), name().c_str(), why.c_str());
}

std::string ProgramCore::unfinished() const {
  if (!overlays_ || done_) return "";
  return "which " + (blocked_ && !halted_ ? waiting() : "is at " + place());
}

void ProgramCore::load_overlay() {
  const std::vector<uint32_t>& memory = tile_.program_memory;
  for (const OverlayProgram& overlay : *overlays_) {
    if (!std::equal(overlay.image.begin(), overlay.image.end(), memory.begin())) continue;
    loaded_ = &overlay;
    current_ = &overlay;
    lock_operations_ = 0;
    return restart();
  }
  refuse_overlay();
}

// Program memory has no whole image: one in which words are wrong, or something else.
void ProgramCore::refuse_overlay() const {
  const std::vector<uint32_t>& memory = tile_.program_memory;
  std::string names;
  for (const OverlayProgram& overlay : *overlays_) {
    names += (names.empty() ? "" : ", ") + overlay.name;
    if (!std::equal(memory.begin(), memory.begin() + kMarkWords, overlay.image.begin())) continue;
    const auto wrong = std::ranges::mismatch(overlay.image, memory);
    fail(ErrorKind::kKernel,
         "[%s] %s is enabled with program memory that begins as overlay \"%s\", but word %td is "
         "0x%08x instead of 0x%08x; write all of its image there",
         array_.who().c_str(), name().c_str(), overlay.name.c_str(),
         wrong.in1 - overlay.image.begin(), *wrong.in2, *wrong.in1);
  }
  fail(ErrorKind::kKernel,
       "[%s] %s is enabled with program memory that holds no program of this configuration: it "
       "begins with 0x%08x 0x%08x 0x%08x; write the image of one of its overlays there (%s)",
       array_.who().c_str(), name().c_str(), memory[0], memory[1], memory[2], names.c_str());
}

std::string ProgramCore::place() const {
  return loaded_ ? strf("instruction %zu of overlay \"%s\"", pc_, loaded_->name.c_str())
                 : strf("instruction %zu of its program", pc_);
}

uint32_t ProgramCore::status() const {
  if (unloaded()) return kCoreReset;
  return halted_ ? 0u : 1u | (blocked_ ? 1u << 9 : 0u) | (done_ ? 1u << 20 : 0u);
}

int32_t ProgramCore::word_at(uint32_t address) const {
  int32_t value;
  tile_.aliases.flush(address, sizeof value);
  std::memcpy(&value, tile_.memory.data() + address, sizeof value);
  return value;
}

int32_t ProgramCore::load_word(uint32_t address) const {
  const int32_t value = word_at(address);
  if (ActionLog* log = ActionLog::current()) {
    log->steers(tile_.memory.data() + address, static_cast<uint32_t>(value));
  }
  return value;
}

void ProgramCore::set_counter(uint32_t address, int32_t value) {
  tile_.aliases.flush(address, sizeof value);
  std::memcpy(tile_.memory.data() + address, &value, sizeof value);
}

size_t ProgramCore::slot(int counter, size_t slots) const {
  if (!loaded_) return static_cast<size_t>(counters_[static_cast<size_t>(counter)]);
  const uint32_t address = loaded_->counters + 4 * static_cast<uint32_t>(counter);
  const int32_t value = word_at(address);
  if (value >= 0 && static_cast<size_t>(value) < slots) return static_cast<size_t>(value);
  error(ErrorKind::kKernel,
        strf("finds %d in slot counter %d (address %u), which chooses among %zu slots, at %s; "
             "nothing else may write slot counters",
             value, counter, address, slots, place().c_str()));
}

void ProgramCore::advance_slot(const Instruction& instruction) {
  const size_t slots = static_cast<size_t>(instruction.value);
  const int next = static_cast<int>((slot(instruction.lock, slots) + 1) % slots);
  if (loaded_) {
    set_counter(loaded_->counters + 4 * static_cast<uint32_t>(instruction.lock), next);
  } else {
    counters_[static_cast<size_t>(instruction.lock)] = next;
  }
}

int64_t ProgramCore::loop_count(const Instruction& instruction) const {
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

void ProgramCore::enter_loop(const Instruction& instruction) {
  const int64_t count = loop_count(instruction);
  if (count == 0) {
    pc_ = static_cast<size_t>(instruction.target) + 1;
    return;
  }
  frames_.push_back({static_cast<int>(pc_), count < 0 ? -1 : count - 1});
  ++pc_;
}

// False while the lock does not have the value asked for.
bool ProgramCore::acquire(const Instruction& instruction) {
  Lock& lock = tile_.locks[static_cast<size_t>(instruction.lock)];
  const int wanted = static_cast<int>(instruction.value);
  const bool equal = instruction.code == Instruction::Code::kAcquireEq;
  if (equal ? lock.value != wanted : lock.value < wanted) {
    add_waiter(lock.waiters, this);
    blocked_ = &instruction;
    return false;
  }
  blocked_ = nullptr;
  lock_operations_ += array_.timed();
  lock.value -= wanted;
  if (wanted != 0) array_.scheduler().wake_all(lock.waiters, this);
  return true;
}

void ProgramCore::release(const Instruction& instruction) {
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
  lock_operations_ += array_.timed();
  array_.scheduler().wake_all(lock.waiters, this);
}

void ProgramCore::prepare_call(const Instruction& instruction) {
  if (!array_.timed()) lock_operations_ = 0;
  arguments_.clear();
  const uint32_t size = static_cast<uint32_t>(tile_.memory.size());
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
                      : operand.addresses[slot(operand.counter, operand.addresses.size())];
        argument.data = tile_.memory.data() + address;
        argument.bytes = size - address;
        break;
    }
    arguments_.push_back(argument);
  }
  tile_.aliases.redirect(
      arguments_, current_->functions[static_cast<size_t>(instruction.function)].declaration);
}

// The call becomes a job. In a program with wrong locks its operands' aliases may be replaced
// before it runs.
void ProgramCore::post_call() {
  tile_.aliases.pin();
  calling_ = true;
  array_.scheduler().post(this);
}

void ProgramCore::advance() {
  if (done_ || calling_ || halted_) return;
  int calls = 0;
  for (int straight = 0; pc_ < program().code.size(); ++straight) {
    if (straight == kMaxStraight) {
      error(
          ErrorKind::kKernel,
          strf("ran %d instructions of its program without a call or a wait, near instruction %zu; "
               "check its loop bounds and locks",
               kMaxStraight, pc_));
    }
    const Instruction& instruction = program().code[pc_];
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
      case Instruction::Code::kAdvance:
        advance_slot(instruction);
        break;
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

void ProgramCore::execute() {
  if (idles_) return;
  if (ActionLog* log = ActionLog::current()) log_call(*log);
  current_->functions[static_cast<size_t>(program().code[pc_].function)].call(arguments_, modes_);
}

void ProgramCore::log_call(ActionLog& log) {
  const KernelFunction& called =
      current_->functions[static_cast<size_t>(program().code[pc_].function)];
  if (called.declaration == nullptr ||
      arguments_.size() != static_cast<size_t>(called.declaration->count)) {
    return log.refuse("a kernel that may access all memory");
  }
  log.call(called.call, *called.declaration, arguments_, modes_);
}

void ProgramCore::start(Timeline& timeline) {
  const auto function = static_cast<size_t>(program().code[pc_].function);
  const KernelFunction& called = current_->functions[function];
  const kernels::Declaration* kernel = called.declaration;
  if (kernel == nullptr && !called.cycles) {
    error(ErrorKind::kKernel,
          strf("calls \"%s\", whose cost is not known: a timed run needs the cycles of a call, "
               "from attach() or the kernel's declaration (NPU_DECLARE, aie_kernels/README.md)",
               program().functions[function].c_str()));
  }
  idles_ = !timeline.computes(program().functions[function]);
  double cycles = called.cycles.value_or(0);
  if (kernel) {
    const kernels::Cost cost = kernels::call_cost(*kernel, timeline.timing(), arguments_);
    cycles = cost.cycles;
    timeline.count_kernel(kernel->name, cost.source);
    if (kernel->product != kernels::Product::kNone) timeline.count_matmul(cycles);
  }
  timeline.after(this, cycles + lock_operations_ * timeline.timing().lock_operation);
  lock_operations_ = 0;
}

void ProgramCore::complete() {
  ++array_.report(tile_.col).kernel_calls;
  tile_.aliases.unpin();
  calling_ = idles_ = false;
  ++pc_;
  array_.scheduler().wake(this, this);
}

std::string ProgramCore::waiting() const {
  if (unloaded()) return "has no overlay loaded";
  if (halted_) return "is disabled (Core_Control, 0x32000)";
  if (!blocked_) return "";
  const Lock& lock = tile_.locks[static_cast<size_t>(blocked_->lock)];
  const bool equal = blocked_->code == Instruction::Code::kAcquireEq;
  return strf("waits for its lock %d to be %s %lld (it is %d), at %s", blocked_->lock,
              equal ? "==" : ">=", static_cast<long long>(blocked_->value), lock.value,
              place().c_str());
}

ProgramCore::Rest ProgramCore::rest() const {
  Rest rest{pc_, done_, halted_, modes_, frames_, counters_, blocked_, loaded_};
  for (const uint32_t address : counter_addresses_) rest.counters.push_back(word_at(address));
  return rest;
}

void ProgramCore::put(const Rest& rest) {
  pc_ = rest.pc;
  done_ = rest.done;
  halted_ = rest.halted;
  modes_ = rest.state;
  frames_ = rest.frames;
  blocked_ = rest.blocked;
  if (!overlays_) {
    counters_ = rest.counters;
    return;
  }
  loaded_ = rest.loaded;
  current_ = loaded_ ? static_cast<const CoreProgram*>(loaded_) : &own_;
  auto next = rest.counters.begin();
  for (const uint32_t address : counter_addresses_) set_counter(address, *next++);
}

void ProgramCore::reserve_state(ActionLog& log) const {
  for (const uint32_t address : counter_addresses_) {
    log.reserve(tile_.memory.data() + address, sizeof(int32_t));
  }
}

bool ProgramCore::releases(const Tile& owner, int lock) const {
  if (&owner != &tile_) return false;
  const auto in = [lock](const CoreProgram& program) {
    return std::ranges::any_of(program.program.code, [lock](const Instruction& instruction) {
      return instruction.code == Instruction::Code::kRelease && instruction.lock == lock;
    });
  };
  return overlays_ ? std::ranges::any_of(*overlays_, in) : in(own_);
}

}  // namespace npu::emulator
