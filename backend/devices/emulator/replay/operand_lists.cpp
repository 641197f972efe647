// Sharing lists of operands (operand_lists.h).
#include "devices/emulator/replay/operand_lists.h"

#include <algorithm>
#include <cstring>

#include "kernels/call.h"

namespace npu::emulator {

using kernels::Steering;

namespace {

constexpr uint64_t kMostBytes = uint64_t{1} << 32;  // where it is not known: more than a tile has

// Whether calls read or leave words that steer.
bool steers(const kernels::Declaration& kernel) {
  return kernel.copies != nullptr ||
         std::any_of(kernel.operands, kernel.operands + kernel.count, [](const auto& operand) {
           return operand.steering != Steering::kNone && operand.steering != Steering::kKeeps;
         });
}

// A finalizer of MurmurHash3.
uint64_t mixed(uint64_t value) {
  value = (value ^ value >> 33) * 0xff51afd7ed558ccdull;
  value = (value ^ value >> 33) * 0xc4ceb9fe1a85ec53ull;
  return value ^ value >> 33;
}

// Of what a call is, wherever operands lie that it only reads.
uint64_t key_of(const CallAction& call, const OperandLists::Operands& operands,
                const kernels::Declaration& kernel) {
  uint64_t all =
      reinterpret_cast<uintptr_t>(call.function) * 31 + reinterpret_cast<uintptr_t>(call.state);
  for (size_t i = 0; i < call.count; ++i) {
    const Place& place = operands.places[i];
    uint64_t own = place.base ^ static_cast<uint64_t>(operands.arguments[i].value) << 20;
    if (!kernel.operands[i].read_only) own = mixed(own) ^ static_cast<uint64_t>(place.offset);
    all = mixed(all ^ own) + i;
  }
  return all;
}

}  // namespace

std::optional<Moves> OperandLists::moved(const CallAction& before, const CallAction& now,
                                         const Operands& operands,
                                         const kernels::Declaration& kernel) {
  if (before.function != now.function || before.state != now.state || before.count != now.count) {
    return std::nullopt;
  }
  Moves moves;
  for (uint8_t i = 0; i < now.count; ++i) {
    const KernelArgument &old = before.operands[i], &operand = operands.arguments[i];
    const Place &was = before.places[i], &is = operands.places[i];
    if (old.value != operand.value || was.base != is.base ||
        (old.data == nullptr) != (operand.data == nullptr)) {
      return std::nullopt;
    }
    if (was.offset == is.offset && old.packed == operand.packed) continue;
    if (!kernel.operands[i].read_only || !moves.add({is, operand.packed, i})) return std::nullopt;
  }
  return moves;
}

const OperandTrace* OperandLists::find(CallAction& call, const Operands& operands,
                                       const kernels::Declaration& kernel, Moves& moves) {
  if (steers(kernel)) return nullptr;
  std::optional<Moves> to;
  if (last_ != nullptr) to = moved(last_->call, call, operands, kernel);
  if (!to) {
    const auto known = found_.find(key_of(call, operands, kernel));
    if (known == found_.end()) return nullptr;
    to = moved(known->second.call, call, operands, kernel);
    if (!to) return nullptr;
    last_ = &known->second;
  }
  call.operands = last_->call.operands;
  call.places = last_->call.places;
  call.based = last_->call.based;
  moves = *to;
  return last_->traces;
}

std::optional<Step> Step::between(const CallAction& from, std::span<const Move> from_moves,
                                  const CallAction& to, std::span<const Move> to_moves) {
  const bool repeated = from.times > 1 || to.times > 1;
  const uint8_t moving = from.times > 1 ? from.moving : to.moving;
  Step found{moving, 0};
  for (uint8_t i = 0; i < from.count; ++i) {
    const KernelArgument &was = from.operands[i], &is = to.operands[i];
    if ((was.data == nullptr) != (is.data == nullptr) || was.value != is.value) return std::nullopt;
    if (was.data == nullptr) continue;
    const Move before = from.operand(i, from_moves), now = to.operand(i, to_moves);
    if (before.packed != now.packed) return std::nullopt;
    if (before.place == now.place) continue;
    if (found.distance != 0 || (repeated && i != moving) || before.place.base != now.place.base) {
      return std::nullopt;
    }
    found = {i, now.place.offset - before.place.offset};
  }
  return found;
}

bool OperandLists::join(CallAction& last, std::span<const Move> before, const CallAction& call,
                        std::span<const Move> now) {
  if (last.operands != call.operands) return false;
  const std::optional<Step> step = Step::between(last, before, call, now);
  if (!step) return false;
  const int64_t one = call.times > 1 ? call.stride : step->distance;
  const int64_t stride = last.times > 1 ? last.stride : one;
  if (step->distance != stride * last.times) return false;
  if (call.times > 1 && (call.stride != stride || call.moving != step->operand)) return false;
  last.moving = step->operand;
  last.stride = stride;
  last.times += call.times;
  return true;
}

const OperandTrace* OperandLists::add(CallAction& call, const Operands& operands,
                                      const kernels::Declaration& kernel) {
  const std::span<KernelArgument> list = kept_.operands.add(call.count);
  const std::span<Place> places = kept_.places.add(call.count);
  std::ranges::copy(operands.arguments, list.begin());
  std::ranges::copy(operands.places, places.begin());
  call.operands = list.data();
  call.places = places.data();
  for (size_t i = 0; i < call.count; ++i) {
    if (places[i].base != Place::kAbsolute) call.based |= static_cast<uint16_t>(1u << i);
  }
  const std::span<OperandTrace> traces = traces_.add(call.count);
  trace(traces, kernel, operands.arguments);
  if (!steers(kernel)) {
    const Entry entry{call, traces.data()};
    last_ = &found_.insert_or_assign(key_of(call, operands, kernel), entry).first->second;
  }
  return traces.data();
}

void OperandLists::trace(std::span<OperandTrace> traces, const kernels::Declaration& kernel,
                         std::span<const KernelArgument> arguments) {
  const kernels::OperandUses uses = kernels::operand_uses(kernel, arguments);
  const kernels::SteeringFirsts firsts = kernels::steering_firsts(kernel, arguments);
  for (size_t i = 0; i < arguments.size(); ++i) {
    OperandTrace& trace = traces[i];
    const KernelArgument& argument = arguments[i];
    const kernels::Operand& operand = kernel.operands[i];
    if (argument.data == nullptr) continue;
    trace.bytes = std::min(uses[i].bytes, kMostBytes);
    if (!uses[i].read_only) trace.written = trace.bytes;
    trace.filled = operand.filled && trace.bytes < kMostBytes;
    const uint64_t end = (uint64_t{firsts[i]} + static_cast<uint64_t>(operand.steering_words)) * 4;
    // A call with such operands fails.
    if (operand.steering == Steering::kNone || end > argument.bytes) continue;
    trace.steering = operand.steering;
    trace.first = firsts[i];
    trace.words = static_cast<uint32_t>(operand.steering_words);
    if (operand.steering == Steering::kKeeps) continue;
    const std::span<uint32_t> values = values_.add(trace.words);
    std::memcpy(values.data(), argument.data + 4 * uint64_t{trace.first}, values.size_bytes());
    trace.values = values.data();
  }
}

}  // namespace npu::emulator
