// Sharing lists of operands (operand_lists.h).
#include "devices/emulator/replay/operand_lists.h"

#include <algorithm>
#include <array>
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

uint64_t hash(uint64_t number, const KernelArgument& argument, const Place& place) {
  const uint64_t offset = static_cast<uint64_t>(place.offset) + (number << 56);
  return mixed(offset ^ mixed(place.base ^ static_cast<uint64_t>(argument.value) << 20));
}

}  // namespace

std::optional<OperandLists::Moved> OperandLists::moved(const CallAction& before,
                                                       const CallAction& now,
                                                       const Operands& operands,
                                                       const kernels::Declaration& kernel) {
  if (before.function != now.function || before.state != now.state || before.count != now.count ||
      now.count == 0 || steers(kernel)) {
    return std::nullopt;
  }
  std::optional<Moved> moved;
  for (uint8_t i = 0; i < now.count; ++i) {
    const KernelArgument &old = before.operands[i], &operand = operands.arguments[i];
    const Place &was = before.places[i], &is = operands.places[i];
    if (old.value != operand.value || was.base != is.base || old.packed != operand.packed ||
        (old.data == nullptr) != (operand.data == nullptr)) {
      return std::nullopt;
    }
    if (was.offset == is.offset) continue;
    if (moved || !kernel.operands[i].read_only) return std::nullopt;
    moved = {i, is.offset - was.offset};
  }
  return moved.value_or(Moved{});
}

namespace {

// Of a call without each of the operands that may move, in turn; or of all of it.
template <typename Visit>
void each_key(const CallAction& call, const OperandLists::Operands& operands,
              const kernels::Declaration& kernel, const Visit& visit) {
  uint64_t all =
      reinterpret_cast<uintptr_t>(call.function) * 31 + reinterpret_cast<uintptr_t>(call.state);
  std::array<uint64_t, kernels::kMaxOperands> hashes;
  for (size_t i = 0; i < call.count; ++i) {
    all += hashes[i] = hash(i, operands.arguments[i], operands.places[i]);
  }
  bool any = false;
  for (size_t i = 0; i < call.count; ++i) {
    if (!kernel.operands[i].buffer || !kernel.operands[i].read_only) continue;
    any = true;
    if (visit(all - hashes[i] + i)) return;
  }
  if (!any) visit(all);
}

}  // namespace

const OperandTrace* OperandLists::find(CallAction& call, const Operands& operands,
                                       const kernels::Declaration& kernel) const {
  if (steers(kernel)) return nullptr;
  const OperandTrace* traces = nullptr;
  each_key(call, operands, kernel, [&](uint64_t key) {
    const auto known = found_.find(key);
    if (known == found_.end()) return false;
    const Entry& entry = known->second;
    const std::optional<Moved> to = moved(entry.call, call, operands, kernel);
    if (!to) return false;
    call.operands = entry.call.operands;
    call.places = entry.call.places;
    call.based = entry.call.based;
    call.moving = to->operand;
    call.start = to->bytes;
    traces = entry.traces;
    return true;
  });
  return traces;
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
    each_key(call, operands, kernel, [&](uint64_t key) {
      found_.insert_or_assign(key, Entry{call, traces.data()});
      return false;
    });
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
