// Reading, checking and costing the operands of a call (call.h).
//
// A kernel trusts its operands as it would on the NPU; here a wrong size becomes an error instead
// of a write past the core's memory.
#include "kernels/call.h"

#include <array>
#include <cassert>
#include <cstring>

#include "error.h"
#include "perf/kernel_schedules.h"

namespace npu::kernels {

namespace {

void check_count(const Declaration& kernel, Arguments arguments) {
  if (arguments.size() != static_cast<size_t>(kernel.count)) {
    fail(ErrorKind::kKernel, "[%s] takes %d operands, the worker passes %zu", kernel.name,
         kernel.count, arguments.size());
  }
}

int64_t integer_argument(const Declaration& kernel, size_t i, const KernelArgument& argument) {
  if (argument.data != nullptr) {
    fail(ErrorKind::kKernel, "[%s] operand %zu (%s) is an integer, the worker passes a buffer",
         kernel.name, i, kernel.operands[i].name);
  }
  return argument.value;
}

// The integer operands, each within its own limits.
Integers checked_integers(const Declaration& kernel, Arguments arguments) {
  Integers integers;
  size_t count = 0;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const Operand& operand = kernel.operands[i];
    if (operand.buffer) continue;
    integers[count] = integer_argument(kernel, i, arguments[i]);
    check_integer(kernel, operand, integers[count++]);
  }
  check_multiples(kernel, integers);
  return integers;
}

// A buffer of a call: the bytes that the kernel accesses.
struct Extent {
  const Operand* operand;
  uintptr_t begin, end;
};

Extent checked_buffer(const Declaration& kernel, size_t i, const KernelArgument& argument,
                      const Integers& integers) {
  const Operand& operand = kernel.operands[i];
  if (argument.data == nullptr) {
    fail(ErrorKind::kKernel,
         "[%s] operand %zu (%s) is a buffer, the worker passes the integer %lld", kernel.name, i,
         operand.name, static_cast<long long>(argument.value));
  }
  const int64_t bytes = bytes_of(operand.element, operand.size.value(integers.data()));
  if (bytes > argument.bytes) {
    fail(ErrorKind::kKernel,
         "[%s] operand %zu (%s) needs %lld bytes, the core's memory ends after %u; check the tile "
         "sizes and the buffer's address",
         kernel.name, i, operand.name, static_cast<long long>(bytes), argument.bytes);
  }
  const auto begin = reinterpret_cast<uintptr_t>(argument.data);
  if (begin % operand.alignment != 0) {
    fail(ErrorKind::kKernel, "[%s] operand %zu (%s) is not aligned to its %d-byte elements",
         kernel.name, i, operand.name, operand.alignment);
  }
  return {&operand, begin, begin + static_cast<uintptr_t>(bytes)};
}

// The word that keeps a call inside its buffers.
void check_word(const Declaration& kernel, const Operand& operand, const KernelArgument& argument) {
  if (operand.word < 0) return;
  int32_t value;
  std::memcpy(&value, argument.data + 4 * operand.word, sizeof value);
  if (operand.allows(value)) return;
  fail(ErrorKind::kKernel,
       "[%s] word %d of %s is %d, must be a multiple of %d from %d to %d; write it first",
       kernel.name, operand.word, operand.name, value, operand.step, operand.min, operand.max);
}

// What a kernel writes may not share bytes with another operand: kernels load and store in any
// order.
void check_apart(const Declaration& kernel, const Extent& a, const Extent& b) {
  if (a.operand->read_only && b.operand->read_only) return;
  if (a.begin >= b.end || b.begin >= a.end) return;
  if (kernel.in_place && a.begin == b.begin) return;
  const bool b_is_result = !b.operand->read_only;
  fail(ErrorKind::kKernel, "[%s] %s and %s overlap in the core's memory", kernel.name,
       (b_is_result ? a : b).operand->name, (b_is_result ? b : a).operand->name);
}

}  // namespace

int64_t Size::value(const int64_t* integers) const {
  int64_t sum = 0;
  for (int i = 0; i < used; ++i) {
    int64_t product = terms[i].constant;
    for (const int8_t factor : terms[i].factors) {
      if (factor >= 0) product *= integers[factor];
    }
    sum += product;
  }
  return sum;
}

void check_integer(const Declaration& kernel, const Operand& operand, int64_t value) {
  if (operand.allows(value)) return;
  const auto number = static_cast<long long>(value);
  if (operand.min == operand.step && operand.max == kMaxSize) {
    fail(ErrorKind::kKernel, "[%s] %s = %lld, must be a positive multiple of %d up to %d",
         kernel.name, operand.name, number, operand.step, operand.max);
  }
  if (operand.step == 1) {
    fail(ErrorKind::kKernel, "[%s] %s = %lld, must be %d to %d", kernel.name, operand.name, number,
         operand.min, operand.max);
  }
  fail(ErrorKind::kKernel, "[%s] %s = %lld, must be a multiple of %d from %d to %d", kernel.name,
       operand.name, number, operand.step, operand.min, operand.max);
}

void check_multiples(const Declaration& kernel, const Integers& integers) {
  size_t count = 0;
  for (int i = 0; i < kernel.count; ++i) {
    const Operand& operand = kernel.operands[i];
    if (operand.buffer) continue;
    const int64_t value = integers[count++];
    if (operand.size.used == 0) continue;
    const int64_t step = operand.size.value(integers.data());
    if (value % step != 0) {
      fail(ErrorKind::kKernel, "[%s] %s = %lld, must be a multiple of %s = %lld", kernel.name,
           operand.name, static_cast<long long>(value), operand.size.text,
           static_cast<long long>(step));
    }
  }
}

void check_call(const Declaration& kernel, Arguments arguments) {
  check_count(kernel, arguments);
  const Integers integers = checked_integers(kernel, arguments);
  std::array<Extent, kMaxOperands> extents;
  size_t count = 0;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!kernel.operands[i].buffer) continue;
    extents[count++] = checked_buffer(kernel, i, arguments[i], integers);
  }
  for (size_t b = 1; b < count; ++b) {
    for (size_t a = 0; a < b; ++a) check_apart(kernel, extents[a], extents[b]);
  }
  for (size_t i = 0; i < arguments.size(); ++i) {
    check_word(kernel, kernel.operands[i], arguments[i]);
  }
  if (kernel.check != nullptr) kernel.check(kernel.name, arguments.data());
}

OperandUses operand_uses(const Declaration& kernel, Arguments arguments) {
  assert(arguments.size() == static_cast<size_t>(kernel.count));
  OperandUses uses;
  Integers integers;
  size_t count = 0;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (kernel.operands[i].buffer) continue;
    const int64_t value = arguments[i].value;
    if (arguments[i].data != nullptr || value < 0 || value > kMaxSize) return uses;
    integers[count++] = value;
  }
  for (size_t i = 0; i < arguments.size(); ++i) {
    const Operand& operand = kernel.operands[i];
    if (!operand.buffer) continue;
    const int64_t bytes = bytes_of(operand.element, operand.size.value(integers.data()));
    if (bytes > 0) uses[i] = {static_cast<uint64_t>(bytes), operand.read_only};
  }
  return uses;
}

SteeringFirsts steering_firsts(const Declaration& kernel, Arguments arguments) {
  SteeringFirsts firsts{};
  Integers integers{};
  size_t count = 0;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!kernel.operands[i].buffer) integers[count++] = arguments[i].value;
  }
  for (size_t i = 0; i < arguments.size(); ++i) {
    const Operand& operand = kernel.operands[i];
    if (operand.steering == Steering::kNone) continue;
    firsts[i] = static_cast<uint32_t>(operand.steering_first.value(integers.data()));
  }
  return firsts;
}

Cost call_cost(const Declaration& kernel, const arch::Timing& timing, Arguments arguments) {
  check_count(kernel, arguments);
  Integers integers{};
  size_t count = 0;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (kernel.operands[i].buffer) continue;
    integers[count++] = integer_argument(kernel, i, arguments[i]);
  }
  return call_cost(kernel, timing, integers);
}

namespace {

// `cost` as declared, with generated parts where there are lines for them.
Cost with_parts(const char* kernel, const Parts& parts, const arch::Timing& timing, Cost cost) {
  for (const Generated& part : parts) {
    if (part.name == nullptr) break;
    const auto [m, k, n] = part.size;
    const auto cycles =
        perf::scheduled_cycles(timing, *part.name == '\0' ? kernel : part.name, m, k, n);
    if (!cycles) continue;
    if (part.counted == Generated::kCall) return {part.times * *cycles, "scheduled"};
    cost = {cost.cycles + part.times * *cycles - part.counted, "scheduled in part"};
  }
  return cost;
}

}  // namespace

Cost call_cost(const Declaration& kernel, const arch::Timing& timing, const Integers& integers) {
  if (kernel.cycles == nullptr) {
    fail(ErrorKind::kKernel,
         "[%s] declares no cost, so it cannot run in simulated time; state its cycles in its "
         "NPU_DECLARE",
         kernel.name);
  }
  const Cost cost{kernel.cycles(timing, integers.data()),
                  kernel.published ? "published" : "counted"};
  if (kernel.parts == nullptr || !perf::wants_schedule(timing, kernel.published)) return cost;
  return with_parts(kernel.name, kernel.parts(timing, integers.data()), timing, cost);
}

}  // namespace npu::kernels
