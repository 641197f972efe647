// What a run does to memory, written down while it happens: moves of words, calls of kernels, words
// that the stream writes. A later run with the same control words does the same to other data
// (recording.h). The scheduler's order is kept: phases follow each other, the lanes of one phase
// run beside each other, as agents of different columns do.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "devices/emulator/aliasing.h"
#include "devices/emulator/replay/argument_shape.h"
#include "devices/emulator/replay/byte_ranges.h"
#include "devices/emulator/replay/operand_lists.h"
#include "devices/emulator/walk.h"
#include "kernels/declaration.h"
#include "kernels/kernel.h"

namespace npu::emulator {

struct Argument;

// What runs do with the address that an ADDRESS_PATCH gives a BD.
struct PatchUse {
  uint64_t offset = 0;  // into `argument`, in the recorded run
  uint32_t argument = 0;
  uint64_t reach = 0;  // bytes from there on that its BD touches; 0: none ran
  bool fixed = false;  // other addresses make other runs
};

struct Action {
  enum class Kind : uint8_t {
    kCopy,     // `bytes` from `from` to `to`
    kGather,   // words of walk `index`, which begins at `from`, to `to`
    kScatter,  // the other way round
    kReorder,  // words of walk `index`, from `from` on, to those of walk `index + 1`, from `to` on
    kWord,     // `bytes` is a word for `to`
    kUnpack,   // block `index` holds other bytes: its packed form is void
    kCall,     // number `index`
    kSteer,    // the word at `from`, which is `bytes`, decided what a core does; not repeated
  };
  Kind kind;
  uint32_t index = 0;
  uint64_t bytes = 0;
  Place to, from;
};

// Bytes of arguments that steer a run, by Place::base and Place::offset.
using SteeringBytes = std::map<std::pair<uint32_t, int64_t>, std::vector<std::byte>>;

// Which address patches stay where they are, by Place::patch, and which have to.
class Patches {
 public:
  // moving: of those, in the stream's order, whether other runs have them elsewhere.
  explicit Patches(std::vector<bool> moving) : moving_(std::move(moving)), fixed_(moving_.size()) {}
  bool moves(uint32_t patch) const { return patch != 0 && moving_[patch - 1]; }
  // May be called by every thread.
  void fix(uint32_t patch) {
    if (patch != 0) fixed_[patch - 1].store(true, std::memory_order_relaxed);
  }
  std::set<uint32_t> fixed() const {
    std::set<uint32_t> all;
    for (uint32_t i = 0; i < fixed_.size(); ++i) {
      if (fixed_[i]) all.insert(i + 1);
    }
    return all;
  }

 private:
  const std::vector<bool> moving_;
  std::vector<std::atomic<bool>> fixed_;
};

// What one thread does in a phase.
struct Lane {
  std::vector<Action> actions;
  std::vector<Walk> walks;
  std::vector<CallAction> calls;
  std::vector<Move> moves;
  std::vector<SharedBlock*> blocks;
  // Only while it is recorded: where calls find operands; of each call what is known of them, and
  // the number of its first copied words.
  OperandLists* lists = nullptr;
  ByteRanges* touched = nullptr;  // of tiles' memories
  std::vector<const OperandTrace*> traces;
  std::vector<size_t> first_copies;
  std::vector<kernels::WordCopy> copies;
  struct Known {
    Place place;
    uint32_t value;
  };
  std::vector<Known> known;  // words that steer and are still what they were said to be

  std::span<const Move> moves_of(const CallAction& call) const {
    return std::span(moves).subspan(call.first_move, call.moves);
  }
  // body(place, trace, bytes) for each buffer of a call and its repeats, with the bytes from the
  // first to behind the last one that they touch.
  template <typename Body>
  void each_buffer(size_t number, const Body& body) const {
    const CallAction& call = calls[number];
    for (uint32_t i = 0; i < call.count; ++i) {
      if (call.operands[i].data == nullptr) continue;
      const OperandTrace& trace = traces[number][i];
      const int64_t moved = i == call.moving ? call.stride * (call.times - 1) : 0;
      Place place = call.operand(i, moves_of(call)).place;
      place.offset += std::min<int64_t>(moved, 0);
      body(place, trace, trace.bytes + static_cast<uint64_t>(std::abs(moved)));
    }
  }
  size_t bytes() const;
  void append(Lane&& other);
};

// All lanes but those of the last phase end before the next begins.
using Phase = std::vector<Lane>;

class ActionLog {
 public:
  ActionLog(std::span<const Argument> arguments, std::span<const ArgumentShape> shapes,
            size_t columns, std::span<PatchUse> patches, size_t most_bytes);
  // So many bytes from an address on are part of the state that runs begin and end with: a run that
  // moves anything there, or from there, is refused.
  void reserve(const std::byte* begin, uint64_t bytes);

  // The lane of the calling thread: that of the serial part, unless a LaneScope says otherwise.
  static ActionLog* current();
  class Scope;  // makes a log the calling thread's, and its serial lane
  class LaneScope;

  // Lanes that run beside each other: begin(), a LaneScope on every thread, end().
  void begin_lanes(size_t count);
  void end_lanes();

  // Before the words move: so many of one walk to another's places, which move with address patches
  // of the stream (Place::patch).
  void move(const Walk& from, const Walk& to, uint64_t words, uint32_t from_patch,
            uint32_t to_patch);
  void copy(std::byte* to, const std::byte* from, uint64_t bytes);
  void word(std::byte* to, uint32_t value);
  void block_taken(SharedBlock* block);
  // A BD begins whose address comes from this address patch; a constant argument may be aliased,
  // wherever it is used then.
  void uses_patch(uint32_t patch, uint64_t bytes, bool constant);
  void fixes_patch(uint32_t patch) { patches_[patch - 1].fixed = true; }
  // Before the call, of a kernel with this declaration.
  void call(const CallAction::Function& function, const kernels::Declaration& kernel,
            std::span<const KernelArgument> arguments, CoreState& state);
  void steers(const std::byte* word, uint32_t value);
  // A BD that begins has these bytes of an argument, which tell what cores do. The run is refused
  // if others than its caller may write them, or if they lie elsewhere.
  void steers(std::span<const std::byte> bytes, bool constant, uint32_t patch);
  SteeringBytes take_steering() { return std::move(steering_); }
  // The run does what only the register level can do. May be called by every thread.
  void refuse(const char* why);
  const char* refused() const { return refused_.load(std::memory_order_relaxed); }
  bool full() const { return full_; }  // it had more actions than fit, and lacks the rest

  // Blocks of this log's own, as many as the columns have: nothing else uses them.
  BlockPool& blocks(int column) { return *pools_[static_cast<size_t>(column)]; }

  // The run has ended: what follows are its last copies.
  void end_run();

  // The phases so far, as they were.
  std::span<const Phase> phases();
  // The phases in as few as do the same, with results on shorter ways (forwarding.h), and the first
  // one with last copies. The log is empty then.
  std::pair<std::vector<Phase>, size_t> take_phases(Patches& patches);
  // Of tiles' memories, before the last copies.
  ByteRanges take_touched();
  std::vector<std::unique_ptr<BlockPool>> take_blocks() { return std::move(pools_); }
  // What calls refer to.
  std::vector<OperandLists::Kept> take_operands();

 private:
  Place place(const std::byte* address) const;
  static void copy_words(Lane& lane, const kernels::Declaration& kernel,
                         std::span<const KernelArgument> arguments);
  // So many bytes from a place on are written: what was known of their words is void.
  static void forget(Lane& lane, const Place& place, uint64_t bytes);
  void touch(const Place& place, uint64_t bytes);
  void touch(Walk walk, uint64_t words);
  void check_reserved(const ByteRanges::Range& range);
  static void forget_written(Lane& lane, const CallAction& call, const OperandTrace* traces);
  static bool joins(Lane& lane, const CallAction& call, const Moves& moves);
  void find_shared(Lane& lane) const;
  void shorten(Phase& phase, Patches& patches) const;
  Lane& lane();
  void put(Action action);
  void close_serial();
  void count(size_t bytes);

  struct Range {
    const std::byte *begin, *end;
    uint32_t base;
    bool writable;
  };
  std::vector<Range> arguments_;                       // by address
  std::vector<std::pair<int64_t, int64_t>> reserved_;  // by address: first and end
  std::mutex steering_mutex_;                          // of senders in different columns
  SteeringBytes steering_;
  const std::span<PatchUse> patches_;
  const size_t most_bytes_;
  std::vector<std::unique_ptr<BlockPool>> pools_;
  std::vector<Phase> phases_;
  std::vector<std::unique_ptr<OperandLists>> lists_;  // of the serial lane, then of the others
  size_t lists_bytes_ = 0;
  std::vector<std::unique_ptr<ByteRanges>> touched_;  // of the same lanes
  size_t end_ = SIZE_MAX;                             // the first phase after the run
  Lane serial_;
  Phase lanes_;
  size_t bytes_ = 0;
  bool full_ = false;
  std::atomic<const char*> refused_{nullptr};
};

class ActionLog::Scope {
 public:
  explicit Scope(ActionLog* log);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  ActionLog* const before_;
};

class ActionLog::LaneScope {
 public:
  LaneScope(ActionLog* log, size_t lane);
  ~LaneScope();
  LaneScope(const LaneScope&) = delete;
  LaneScope& operator=(const LaneScope&) = delete;

 private:
  ActionLog* const before_;
  Lane* const lane_before_;
};

}  // namespace npu::emulator
