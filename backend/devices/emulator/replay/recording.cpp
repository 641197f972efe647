// Repeating recorded runs (recording.h).
#include "devices/emulator/replay/recording.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <span>

#include "devices/emulator/array.h"
#include "host/thread_pool.h"

namespace npu::emulator {

size_t Recording::bytes() const {
  size_t sum = sizeof *this + end.bytes() + steering.size() * sizeof steering[0] +
               data.size() * sizeof data[0] + patches.size() * sizeof patches[0] + phases.bytes();
  for (const auto& range : steering_bytes) sum += sizeof range + range.second.size();
  for (const OperandLists::Kept& list : operands) sum += list.bytes();
  for (const auto& pool : blocks) sum += pool->bytes();
  return sum;
}

Replay::Replay(std::shared_ptr<const Recording> recording, std::span<const Argument> arguments,
               std::span<const int64_t> moved)
    : recording_(std::move(recording)), bases_{nullptr}, moved_{0} {
  for (const Argument& argument : arguments) bases_.push_back(argument.data);
  moved_.insert(moved_.end(), moved.begin(), moved.end());
}

void Replay::call(const CallAction& call, std::span<const Move> moves) const {
  const auto* const kernel = call.function->target<HostKernel>();
  if (call.based == 0 && call.times == 1 && moves.empty()) {
    const std::span operands(call.operands, call.count);
    return kernel ? (*kernel)(operands, *call.state) : (*call.function)(operands, *call.state);
  }
  alignas(KernelArgument) std::array<std::byte, kernels::kMaxOperands * sizeof(KernelArgument)> raw;
  auto* const arguments = reinterpret_cast<KernelArgument*>(raw.data());
  std::uninitialized_copy_n(call.operands, call.count, arguments);
  for (uint32_t left = call.based; left != 0; left &= left - 1) {
    const auto i = static_cast<size_t>(std::countr_zero(left));
    arguments[i].data = at(call.places[i]);
  }
  for (const Move& move : moves) {
    arguments[move.operand].data = at(move.place);
    arguments[move.operand].packed = move.packed;
  }
  const std::span operands(arguments, call.count);
  if (kernel != nullptr) {
    return kernel->repeat(operands, *call.state, call.times, call.moving, call.stride);
  }
  for (uint32_t i = 0; i < call.times; ++i) {
    (*call.function)(operands, *call.state);
    arguments[call.moving].data += call.stride;
  }
}

void Replay::run(const PackedLane& lane) const {
  thread_local AlignedBytes staged;  // grows only
  for (const Action& action : lane.actions) {
    const auto walk = [&](size_t number, const Place& from) {
      Walk copy = lane.walks[action.index + number];
      copy.move_to(at(from));
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
        lane.blocks[action.index]->packed.clear();
        break;
      case Action::Kind::kCall:
        call(lane.calls[action.index],
             {lane.moves + lane.calls[action.index].first_move, lane.calls[action.index].moves});
        break;
      case Action::Kind::kSteer:
        break;
    }
  }
}

bool Replay::resume(const std::function<bool()>& pause) {
  for (; next_ < recording_->phases.size(); ++next_) {
    if (pause()) return false;
    const std::span<const PackedLane> phase = recording_->phases[next_];
    if (phase.size() == 1) {
      run(phase[0]);
      continue;
    }
    std::vector<std::exception_ptr> errors(phase.size());
    ThreadPool::shared().parallel_for(phase.size(), [&](size_t i) {
      try {
        run(phase[i]);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    });
    for (const std::exception_ptr& error : errors) {
      if (error) std::rethrow_exception(error);
    }
  }
  return true;
}

}  // namespace npu::emulator
