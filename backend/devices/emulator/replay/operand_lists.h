// Lists of operands of recorded calls. A core calls its kernels again and again on the same
// buffers: calls of lanes with the same number share lists for the whole run.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernels/declaration.h"
#include "kernels/kernel.h"

namespace npu::emulator {

inline constexpr int64_t kWordBytes = 4;

// `offset` bytes into an argument, of those that share memory the first one, or an address that is
// the same in every run (of a tile's memory or of a block).
struct Place {
  static constexpr uint32_t kAbsolute = 0;
  int64_t offset = 0;
  uint32_t base = kAbsolute;  // argument + 1
  uint32_t patch = 0;         // the address patch of the stream that it moves with; 0: none
  bool operator==(const Place&) const = default;
};

// What is known of an operand while the run is recorded (steering.h): bytes that the call accesses
// and may write, whether it writes all of them whatever they were, and its words that steer the
// core; if the call reads or makes any, their values before it.
struct OperandTrace {
  uint64_t bytes = 0, written = 0;
  bool filled = false;
  kernels::Steering steering = kernels::Steering::kNone;
  uint32_t first = 0, words = 0;
  const uint32_t* values = nullptr;
};

// Memory for runs of elements that stay where they are.
template <typename T>
class Chunks {
 public:
  std::span<T> add(size_t count) {
    if (left_ < count) {
      left_ = std::max(count, kElements);
      all_.push_back(std::make_unique<T[]>(left_));
      next_ = all_.back().get();
      bytes_ += left_ * sizeof(T);
    }
    const std::span<T> run(next_, count);
    next_ += count;
    left_ -= count;
    return run;
  }
  size_t bytes() const { return bytes_; }

 private:
  static constexpr size_t kElements = 512;
  std::vector<std::unique_ptr<T[]>> all_;
  T* next_ = nullptr;
  size_t left_ = 0, bytes_ = 0;
};

// An operand that lies elsewhere than in the list.
struct Move {
  Place place;
  PackedOperand* packed = nullptr;
  uint32_t operand = 0;
};

// In the order of the operands.
class Moves {
 public:
  std::span<const Move> all() const { return std::span(list_).first(count_); }
  // False if there are too many, which are not worth sharing a list.
  bool add(const Move& move) {
    if (count_ == list_.size()) return false;
    list_[count_++] = move;
    return true;
  }

 private:
  std::array<Move, 4> list_;
  size_t count_ = 0;
};

// A call, or several in a row that differ in the place of one operand; or rows of these, each with
// another call behind it (call_rows.h).
struct CallAction {
  using Function = std::function<void(std::span<const KernelArgument>, CoreState&)>;
  const Function* function = nullptr;
  CoreState* state = nullptr;
  const KernelArgument* operands = nullptr;  // those at absolute places are what kernels get
  const Place* places = nullptr;             // of the same
  uint8_t count = 0;                         // of them
  uint8_t moves = 0;                         // of the lane, from its number `first_move` on
  uint8_t moving = 0;  // lies `stride` bytes further with every call, `row_stride` with every row
  // Operand + 1 that lies in an argument which the run only reads, as other runs do: weights.
  uint8_t shared = 0;
  uint16_t based = 0;  // bit i: operand i has no absolute place
  uint32_t first_move = 0, times = 1;
  int64_t stride = 0;
  uint32_t rows = 1;
  // The lane's call behind each row, + 1, which moves by its own stride; 0: none, and one row.
  uint32_t next = 0;
  int64_t row_stride = 0;

  // An operand as it lies: where the list says, or moved.
  Move operand(uint32_t number, std::span<const Move> own_moves) const {
    for (const Move& move : own_moves) {
      if (move.operand == number) return move;
    }
    return {places[number], operands[number].packed, number};
  }
};
static_assert(kernels::kMaxOperands <= 16);  // bits of `based`

// How a call differs from one before it: in the place of one operand at most, the one that moves
// in either's repeats. Nullopt if it differs otherwise.
struct Step {
  uint8_t operand = 0;
  int64_t distance = 0;
  static std::optional<Step> between(const CallAction& from, std::span<const Move> from_moves,
                                     const CallAction& to, std::span<const Move> to_moves);
};

class OperandLists {
 public:
  // Operands of a call with their places; those of integers mean nothing.
  struct Operands {
    std::span<const KernelArgument> arguments;
    std::span<const Place> places;
  };
  // Gives a call one of the lists that serves it, mostly that of the call before, says which
  // operands lie elsewhere, and returns the list's traces. Null, with call and moves untouched, if
  // there is none, as for calls that read or leave words that steer.
  const OperandTrace* find(CallAction& call, const Operands& operands,
                           const kernels::Declaration& kernel, Moves& moves);
  // Gives it a new one.
  const OperandTrace* add(CallAction& call, const Operands& operands,
                          const kernels::Declaration& kernel);
  // Makes a call, which moves operands as `now`, or what repeats it, more of those that `last`
  // stands for, with its moves. False if it is not the next of them.
  static bool join(CallAction& last, std::span<const Move> before, const CallAction& call,
                   std::span<const Move> now);
  size_t bytes() const {
    constexpr size_t kNode = sizeof(void*) + sizeof(uint64_t);
    return kept_.bytes() + traces_.bytes() + values_.bytes() +
           found_.size() * (sizeof(Entry) + kNode);
  }
  // What replays need.
  struct Kept {
    Chunks<KernelArgument> operands;
    Chunks<Place> places;
    size_t bytes() const { return operands.bytes() + places.bytes(); }
  };
  Kept take() { return std::exchange(kept_, {}); }

 private:
  struct Entry {
    CallAction call;
    const OperandTrace* traces;
  };
  // How the operands of a call differ from those of another one; nullopt if in more than the places
  // of a few that are only read.
  static std::optional<Moves> moved(const CallAction& before, const CallAction& now,
                                    const Operands& operands, const kernels::Declaration& kernel);
  void trace(std::span<OperandTrace> traces, const kernels::Declaration& kernel,
             std::span<const KernelArgument> arguments);

  Kept kept_;
  Chunks<OperandTrace> traces_;
  Chunks<uint32_t> values_;
  std::unordered_map<uint64_t, Entry> found_;  // by hashes of what is not moved
  const Entry* last_ = nullptr;                // of found_
};

}  // namespace npu::emulator
