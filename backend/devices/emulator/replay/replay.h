// Repeating a recorded run (recording.h) on other arguments.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "aligned.h"
#include "devices/emulator/replay/recording.h"
#include "devices/emulator/tile_memories.h"
#include "kernels/kernel.h"

namespace npu::emulator {

struct Argument;

// Memory for a run that goes on beside another one of its array: what a record names by its address
// lies there instead.
class OwnMemory {
 public:
  // The `number`-th of an array with these memories.
  OwnMemory(TileMemories& memories, size_t number);
  // For a run that repeats this record.
  void serve(const Recording& recording);
  size_t bytes() const { return recorded_.size() + blocks_.size(); }
  std::byte* of(std::byte* address) const {
    const size_t offset =
        reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(recorded_.data());
    return offset < recorded_.size() ? copied_ + offset : of_block(address);
  }

 private:
  std::byte* of_block(std::byte* address) const;

  const std::span<std::byte> recorded_;
  TileMemories copy_;
  AlignedBytes blocks_;  // grows only
  std::byte* const copied_;
  std::byte* placed_ = nullptr;  // in blocks_
  const Recording* recording_ = nullptr;
};

// Room for a call's operands, which costs nothing to make.
struct OperandRoom {
  KernelArgument* data() { return reinterpret_cast<KernelArgument*>(raw.data()); }
  alignas(KernelArgument) std::array<std::byte, kernels::kMaxOperands * sizeof(KernelArgument)> raw;
};

class Replay {
 public:
  // moved: what is added to the places of each address patch, from the first on. own: null where
  // the run works on what was recorded; else nobody looks at what it leaves there.
  Replay(std::shared_ptr<const Recording> recording, std::span<const Argument> arguments,
         std::span<const int64_t> moved, const OwnMemory* own = nullptr);
  const Recording& recording() const { return *recording_; }
  std::shared_ptr<const Recording> shared_recording() const { return recording_; }
  std::span<const int64_t> moved() const { return moved_; }

  // A run goes on in steps: the lanes of the phase that comes next, in any order and on any thread;
  // then step(). It ends before its last copies, if these are put off or needless.
  bool ended() const { return next_ == end_; }
  size_t phase() const { return next_; }
  std::span<const PackedLane> lanes() const { return recording_->phases[next_]; }
  // Whether it has calls that read what other runs of the array read, too (CallAction::shared).
  bool shares() const { return recording_->phases.shares(next_); }
  void step() { ++next_; }
  void run(const PackedLane& lane) const;
  void put_off_last_copies() { end_ = recording_->last.phase; }
  // Of a run that has ended: all of those, and those that another one does not make needless.
  void copy_last() const;
  void copy_last_before(const Recording& next) const;
  // From an action on to the next call of that kind, whose number is returned, or to the end.
  size_t run_to_shared(const PackedLane& lane, size_t first) const;
  // Puts the call's operands there (OperandRoom).
  void put_operands(const PackedLane& lane, const CallAction& call, KernelArgument* to) const;
  CoreState& modes(const CallAction& call) const;
  void call(const PackedLane& lane, const CallAction& call) const;
  // What a call, its repeats and its rows, if they follow each other, read that other runs read,
  // too, from its first to its last byte, as far as the argument goes; nothing of other actions.
  std::span<const std::byte> shared_operand(const PackedLane& lane, size_t action) const;
  // Fetches what the calls among the next few actions begin with, up to the first one that shares
  // weights: the call before takes long, and other runs and weights have pushed them out of caches.
  void prefetch(const PackedLane& lane, size_t first) const;

 private:
  void run(const PackedLane& lane, const Action& action) const;
  // ahead: so many bytes further is memory that surely belongs to the place.
  std::byte* at(const Place& place, int64_t ahead = 0) const {
    std::byte* const address = bases_[place.base] + place.offset + moved_[place.patch];
    return place.base != Place::kAbsolute ? address : in_run(address + ahead) - ahead;
  }
  // Where this run has what was recorded at an address.
  std::byte* in_run(std::byte* recorded) const {
    return own_ == nullptr ? recorded : own_->of(recorded);
  }

  std::shared_ptr<const Recording> recording_;
  std::vector<std::byte*> bases_, ends_;  // null, and the arguments with what shares their memory
  std::vector<int64_t> moved_;            // by Place::patch
  const OwnMemory* own_;
  size_t next_ = 0, end_;
};

// A call of a run with its operands, and with the one behind each of its rows.
class PlacedCall {
 public:
  void put(const Replay& run, const PackedLane& lane, const CallAction& call);
  KernelArgument* operands() { return room_.data(); }
  CoreState& modes() const { return run_->modes(*call_); }
  void go_to(uint32_t row);
  void make();
  void make_next();  // if any

 private:
  const Replay* run_;
  const CallAction *call_, *next_;  // next_: null if there is none
  std::byte *first_, *first_next_;  // moving operands of the first row
  OperandRoom room_, next_room_;
};

}  // namespace npu::emulator
