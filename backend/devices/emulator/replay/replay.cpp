// Repeating recorded runs (replay.h).
#include "devices/emulator/replay/replay.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>
#include <iterator>

#include "devices/emulator/array.h"
#include "host/thread_pool.h"

namespace npu::emulator {

OwnMemory::OwnMemory(TileMemories& memories, size_t number)
    : recorded_(memories.all()), copy_(memories, number), copied_(copy_.all().data()) {}

void OwnMemory::serve(const Recording& recording) {
  recording_ = &recording;
  if (recording.block_places.empty()) return;
  const Recording::BlockPlace& last = recording.block_places.back();
  if (blocks_.size() < last.offset + last.bytes) blocks_.resize(last.offset + last.bytes);
  placed_ = blocks_.data();
}

std::byte* OwnMemory::of_block(std::byte* address) const {
  const std::vector<Recording::BlockPlace>& places = recording_->block_places;
  const auto behind = std::ranges::upper_bound(places, address, {}, &Recording::BlockPlace::begin);
  if (behind == places.begin()) return address;
  const Recording::BlockPlace& place = *std::prev(behind);
  const size_t offset =
      reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(place.begin);
  return offset < place.bytes ? placed_ + place.offset + offset : address;
}

Replay::Replay(std::shared_ptr<const Recording> recording, std::span<const Argument> arguments,
               std::span<const int64_t> moved, const OwnMemory* own)
    : recording_(std::move(recording)),
      bases_{nullptr},
      ends_{nullptr},
      moved_{0},
      own_(own),
      end_(own == nullptr ? recording_->phases.size() : recording_->last.phase) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    bases_.push_back(arguments[i].data);
    ends_.push_back(arguments[i].data + shared_bytes(recording_->arguments, i));
  }
  moved_.insert(moved_.end(), moved.begin(), moved.end());
}

// Packed forms belong to blocks where they were recorded.
void Replay::put_operands(const PackedLane& lane, const CallAction& call,
                          KernelArgument* to) const {
  for (uint8_t i = 0; i < call.count; ++i) {
    KernelArgument operand = call.operands[i];
    if (own_ != nullptr) operand.packed = nullptr;
    if (operand.data != nullptr && (call.based >> i & 1) == 0) operand.data = in_run(operand.data);
    std::construct_at(to + i, operand);
  }
  for (uint32_t left = call.based; left != 0; left &= left - 1) {
    const auto i = static_cast<size_t>(std::countr_zero(left));
    to[i].data = at(call.places[i]);
  }
  for (const Move& move : lane.moves_of(call)) {
    to[move.operand].data = at(move.place);
    to[move.operand].packed = own_ ? nullptr : move.packed;
  }
}

CoreState& Replay::modes(const CallAction& call) const {
  return *reinterpret_cast<CoreState*>(in_run(reinterpret_cast<std::byte*>(call.state)));
}

void PlacedCall::put(const Replay& run, const PackedLane& lane, const CallAction& call) {
  run_ = &run;
  call_ = &call;
  run.put_operands(lane, call, room_.data());
  const auto moving = [](const CallAction& placed, OperandRoom& room) {
    return placed.count > 0 ? room.data()[placed.moving].data : nullptr;
  };
  first_ = moving(call, room_);
  next_ = nullptr;
  if (call.next == 0) return;
  next_ = &lane.calls[call.next - 1];
  run.put_operands(lane, *next_, next_room_.data());
  first_next_ = moving(*next_, next_room_);
}

// Repeats may have left the operand elsewhere.
void PlacedCall::go_to(uint32_t row) {
  if (first_ != nullptr) room_.data()[call_->moving].data = first_ + row * call_->row_stride;
  if (next_ == nullptr || first_next_ == nullptr) return;
  next_room_.data()[next_->moving].data = first_next_ + row * next_->stride;
}

void PlacedCall::make() {
  const std::span operands(room_.data(), call_->count);
  if (const auto* const kernel = call_->function->target<HostKernel>()) {
    return kernel->repeat(operands, modes(), call_->times, call_->moving, call_->stride);
  }
  for (uint32_t i = 0; i < call_->times; ++i) {
    (*call_->function)(operands, modes());
    operands[call_->moving].data += call_->stride;
  }
}

void PlacedCall::make_next() {
  if (next_ == nullptr) return;
  const std::span operands(next_room_.data(), next_->count);
  CoreState& core = run_->modes(*next_);
  const auto* const kernel = next_->function->target<HostKernel>();
  kernel ? (*kernel)(operands, core) : (*next_->function)(operands, core);
}

void Replay::call(const PackedLane& lane, const CallAction& call) const {
  if (own_ == nullptr && call.based == 0 && call.times == 1 && call.moves == 0 && call.rows == 1) {
    const auto* const kernel = call.function->target<HostKernel>();
    const std::span operands(call.operands, call.count);
    return kernel ? (*kernel)(operands, modes(call)) : (*call.function)(operands, modes(call));
  }
  PlacedCall placed;
  placed.put(*this, lane, call);
  for (uint32_t row = 0; row < call.rows; ++row) {
    placed.go_to(row);
    placed.make();
    placed.make_next();
  }
}

void Replay::run(const PackedLane& lane, const Action& action) const {
  thread_local AlignedBytes staged;  // grows only
  const auto walk = [&](size_t number, const Place& from) {
    Walk copy = lane.walks[action.index + number];
    copy.move_to(at(from, static_cast<int64_t>(copy.next()) * kWordBytes));
    return copy;
  };
  switch (action.kind) {
    case Action::Kind::kCopy:
      std::memmove(at(action.to), at(action.from), action.bytes);
      break;
    case Action::Kind::kGather:
      walk(0, action.from).gather(at(action.to), action.bytes / 4);
      break;
    case Action::Kind::kScatter:
      walk(0, action.to).scatter(at(action.from), action.bytes / 4);
      break;
    case Action::Kind::kReorder:
      if (staged.size() < action.bytes) staged.resize(action.bytes);
      walk(0, action.from).gather(staged.data(), action.bytes / 4);
      walk(1, action.to).scatter(staged.data(), action.bytes / 4);
      break;
    case Action::Kind::kWord: {
      const auto value = static_cast<uint32_t>(action.bytes);
      std::memcpy(at(action.to), &value, sizeof value);
      break;
    }
    case Action::Kind::kUnpack:
      if (own_ == nullptr) lane.blocks[action.index]->packed.clear();
      break;
    case Action::Kind::kCall:
      call(lane, lane.calls[action.index]);
      break;
    case Action::Kind::kSteer:
      break;
  }
}

void Replay::prefetch(const PackedLane& lane, size_t first) const {
  constexpr size_t kActions = 4;
  const size_t end = std::min(first + kActions, lane.actions.size());
  for (size_t number = first; number < end; ++number) {
    const Action& action = lane.actions[number];
    if (action.kind != Action::Kind::kCall) continue;
    const CallAction& call = lane.calls[action.index];
    uint32_t elsewhere = call.based;
    for (const Move& move : lane.moves_of(call)) {
      elsewhere |= 1u << move.operand;
      if (move.operand + 1 != call.shared) __builtin_prefetch(at(move.place));
    }
    for (uint32_t i = 0; i < call.count; ++i) {
      std::byte* const data = call.operands[i].data;
      if ((elsewhere >> i & 1) == 0 && data != nullptr) __builtin_prefetch(in_run(data));
    }
    __builtin_prefetch(&modes(call));
    if (call.shared != 0) return;
  }
}

void Replay::run(const PackedLane& lane) const {
  for (const Action& action : lane.actions) run(lane, action);
}

void Replay::copy_last() const {
  const PackedPhases& phases = recording_->phases;
  for (size_t phase = end_; phase < phases.size(); ++phase) {
    const std::span<const PackedLane> lanes = phases[phase];
    for_all(ThreadPool::shared(), lanes.size(), [&](size_t i) { run(lanes[i]); });
  }
}

void Replay::copy_last_before(const Recording& next) const {
  for (const auto& [lane, action] : recording_->copies_left_before(next)) {
    run(*lane, lane->actions[action]);
  }
}

size_t Replay::run_to_shared(const PackedLane& lane, size_t first) const {
  for (; first < lane.actions.size(); ++first) {
    const Action& action = lane.actions[first];
    if (action.kind == Action::Kind::kCall && lane.calls[action.index].shared != 0) break;
    run(lane, action);
  }
  return first;
}

std::span<const std::byte> Replay::shared_operand(const PackedLane& lane, size_t action) const {
  if (lane.actions[action].kind != Action::Kind::kCall) return {};
  const CallAction& call = lane.calls[lane.actions[action].index];
  if (call.shared == 0) return {};
  const size_t operand = call.shared - size_t{1};
  const Place place = call.operand(static_cast<uint32_t>(operand), lane.moves_of(call)).place;
  if (place.base == Place::kAbsolute) return {};
  int64_t stride = call.moving == operand ? call.stride : 0, calls = call.times;
  if (call.moving == operand && call.rows > 1) {
    if (call.times == 1) stride = call.row_stride;
    if (call.row_stride == call.times * stride) calls *= call.rows;
  }
  const int64_t repeats = stride > 0 ? (calls - 1) * stride : 0;
  const std::byte *const first = at(place), *const end = ends_[place.base];
  assert(first <= end);
  // An operand says how much there is, which is more than the last one may have.
  const int64_t bytes = repeats + static_cast<int64_t>(call.operands[operand].bytes);
  return {first, static_cast<size_t>(std::min<int64_t>(bytes, end - first))};
}

}  // namespace npu::emulator
