// What NPU_DECLARE (aie_kernels/kernel.h) makes of a kernel in one host build: its declaration with
// the types of its function, and that function behind untyped operands and their checks.
//
// Unnamed: host builds for several instruction sets are linked together and must not be merged.
#pragma once

#include <aie_api/aie.hpp>
#include <type_traits>
#include <utility>

#include "arch/timing.h"
#include "error.h"
#include "kernels/host_build.h"
#include "kernels/kernel.h"
#include "perf/kernel_cost.h"

#define NPU_DECLARE_AS(number, function, ...)                                  \
  namespace {                                                                  \
  template <>                                                                  \
  struct Declared<number> : Function<&function> {                              \
    static constexpr bool kExists = true;                                      \
    static constexpr Declaration kDeclaration = typed(#function, __VA_ARGS__); \
  };                                                                           \
  }                                                                            \
  static_assert(true)

namespace {

using npu::KernelArgument;
using npu::arch::Timing;
using npu::kernels::buffer;
using npu::kernels::Declaration;
using npu::kernels::Element;
using npu::kernels::Generated;
using npu::kernels::integer;
using npu::kernels::multiple;
using npu::kernels::Operand;
using npu::kernels::Parts;
using npu::kernels::Product;
using npu::kernels::Steering;
using npu::kernels::WordCopies;

// The declarations, numbered as the preprocessor meets them.
template <int kNumber>
struct Declared {
  static constexpr bool kExists = false;
};

template <typename T>
constexpr int kElement = -1;
template <>
constexpr int kElement<int8_t> = int(Element::kInt8);
template <>
constexpr int kElement<uint8_t> = int(Element::kUint8);
template <>
constexpr int kElement<int16_t> = int(Element::kInt16);
template <>
constexpr int kElement<int32_t> = int(Element::kInt32);
template <>
constexpr int kElement<float> = int(Element::kFloat32);
template <>
constexpr int kElement<bfloat16> = int(Element::kBfloat16);
template <>
constexpr int kElement<bfp16ebs8> = int(Element::kBfp16);

// A parameter of a kernel: how a call's operand becomes it, and what it says about the operand.
template <typename T>
struct Parameter {
  static_assert(std::is_same_v<T, int32_t>, "parameters are pointers and int32_t");
  static T of(const KernelArgument& argument) { return static_cast<T>(argument.value); }
  static consteval Operand typed(Operand operand) {
    if (operand.buffer) throw "an int32_t parameter is declared as a buffer";
    return operand;
  }
};
template <typename T>
struct Parameter<T*> {
  using Value = std::remove_const_t<T>;
  static_assert(kElement<Value> >= 0, "no element type of a buffer");
  static T* of(const KernelArgument& argument) { return reinterpret_cast<T*>(argument.data); }
  static consteval Operand typed(Operand operand) {
    if (!operand.buffer) throw "a pointer parameter is declared as an integer";
    operand.element = Element(kElement<Value>);
    operand.read_only = std::is_const_v<T>;
    if (operand.alignment == 0) operand.alignment = sizeof(Value);
    const bool reads = operand.steering == Steering::kNone || operand.steering == Steering::kReads;
    if (std::is_const_v<T> && !reads) throw "a read-only buffer gets words that steer the core";
    if (std::is_const_v<T> && operand.filled) throw "a read-only buffer is overwritten";
    if (operand.word >= 0 && !std::is_same_v<Value, int32_t>) throw "only int32 words have limits";
    return operand;
  }
};

template <auto kFunction>
struct Function;
template <typename... T, void (*kFunction)(T...)>
struct Function<kFunction> {
  static void run(const KernelArgument* operands) {
    [operands]<size_t... i>(std::index_sequence<i...>) {
      kFunction(Parameter<T>::of(operands[i])...);
    }(std::index_sequence_for<T...>());
  }
  static consteval Declaration typed(const char* name, Declaration declaration) {
    declaration = npu::kernels::resolved(name, declaration);
    if (declaration.count != sizeof...(T)) throw "a declaration has another number of operands";
    int i = 0;
    ((declaration.operands[i] = Parameter<T>::typed(declaration.operands[i]), ++i), ...);
    return declaration;
  }
};

// npu::kernels::check_call() without its messages, for one kernel: whatever it compares with is
// constant here, so that a check costs little beside a small kernel.
template <typename Kernel>
class Checked {
 public:
  // Whether the operands were as declared; only then the kernel ran.
  static bool run(const KernelArgument* operands) {
    if (!fits(operands, std::make_integer_sequence<int, kKernel.count>())) return false;
    if (kKernel.check != nullptr) kKernel.check(kKernel.name, operands);
    Kernel::run(operands);
    return true;
  }
  // The calls of several cores (Declaration::joint), the first of each of which is checked.
  static bool run_joint(const KernelArgument* const* calls, int count, uint32_t times,
                        int64_t stride) {
    for (int i = 0; i < count; ++i) {
      if (!fits(calls[i], std::make_integer_sequence<int, kKernel.count>())) return false;
      if (kKernel.check != nullptr) kKernel.check(kKernel.name, calls[i]);
    }
    return kKernel.joint(calls, count, times, stride);
  }

 private:
  static constexpr const Declaration& kKernel = Kernel::kDeclaration;

  template <int kOperand, int kTerm>
  static int64_t term(const KernelArgument* operands) {
    constexpr auto kIs = kKernel.operands[kOperand].size.terms[kTerm];
    int64_t product = kIs.constant;
    if constexpr (kIs.factors[0] >= 0) product *= operands[place_of(kIs.factors[0])].value;
    if constexpr (kIs.factors[1] >= 0) product *= operands[place_of(kIs.factors[1])].value;
    return product;
  }
  template <int kOperand>
  static int64_t size(const KernelArgument* operands) {
    static_assert(npu::kernels::Size::kTerms == 2 && npu::kernels::Size::kFactors == 2);
    return term<kOperand, 0>(operands) + term<kOperand, 1>(operands);
  }
  // Of the integer operand that has this number among them.
  static consteval int place_of(int number) {
    int place = 0;
    for (; kKernel.operands[place].buffer || number-- > 0; ++place) {
    }
    return place;
  }

  // An integer within its limits.
  template <int kOperand>
  static bool integer_fits(const KernelArgument* operands) {
    constexpr Operand kIs = kKernel.operands[kOperand];
    if constexpr (kIs.buffer) return true;
    const KernelArgument& argument = operands[kOperand];
    return (argument.data == nullptr) & (argument.value >= kIs.min) & (argument.value <= kIs.max) &
           (argument.value % kIs.step == 0);
  }
  // A buffer that is aligned and large enough; an integer that is a multiple of what it must be.
  template <int kOperand>
  static bool size_fits(const KernelArgument* operands) {
    constexpr Operand kIs = kKernel.operands[kOperand];
    const KernelArgument& argument = operands[kOperand];
    if constexpr (kIs.buffer) {
      return (argument.data != nullptr) & (bytes<kOperand>(operands) <= argument.bytes) &
             (reinterpret_cast<uintptr_t>(argument.data) % kIs.alignment == 0);
    } else if constexpr (kIs.size.used != 0) {
      return argument.value % size<kOperand>(operands) == 0;
    } else {
      return true;
    }
  }
  // A word with limits that is within them; the buffer is there.
  template <int kOperand>
  static bool word_fits(const KernelArgument* operands) {
    constexpr Operand kIs = kKernel.operands[kOperand];
    if constexpr (kIs.word < 0) return true;
    return kIs.allows(reinterpret_cast<const int32_t*>(operands[kOperand].data)[kIs.word]);
  }
  template <int kOperand>
  static int64_t bytes(const KernelArgument* operands) {
    return npu::kernels::bytes_of(kKernel.operands[kOperand].element, size<kOperand>(operands));
  }
  // Two buffers that share no byte, are only read, or begin together where the kernel allows that.
  template <int kFirst, int kSecond>
  static bool apart(const KernelArgument* operands) {
    constexpr Operand kA = kKernel.operands[kFirst], kB = kKernel.operands[kSecond];
    if constexpr (kFirst < kSecond && kA.buffer && kB.buffer && !(kA.read_only && kB.read_only)) {
      const std::byte *a = operands[kFirst].data, *b = operands[kSecond].data;
      if (kKernel.in_place && a == b) return true;
      return (a + bytes<kFirst>(operands) <= b) | (b + bytes<kSecond>(operands) <= a);
    } else {
      return true;
    }
  }
  template <int kFirst, int... i>
  static bool apart_from_later(const KernelArgument* operands) {
    return (apart<kFirst, i>(operands) & ...);
  }
  template <int... i>
  static bool fits(const KernelArgument* operands, std::integer_sequence<int, i...>) {
    return (integer_fits<i>(operands) & ...) && (size_fits<i>(operands) & ...) &&
           (apart_from_later<i, i...>(operands) & ...) && (word_fits<i>(operands) & ...);
  }
};

// A cost that depends on nothing.
template <int kCycles>
double fixed(const Timing&, const int64_t*) {
  return kCycles;
}

// Generated code does all of a call, whose size is always the same.
inline Parts one_call(const Timing&, const int64_t*) { return {{{Generated::kOwn}}}; }

// The same of a product whose first integers are m, k and n.
inline Parts one_product(const Timing&, const int64_t* sizes) {
  return {{{Generated::kOwn, {sizes[0], sizes[1], sizes[2]}}}};
}

// The slots of an instruction work side by side: the one with most to do takes the time.
constexpr double longest(double a, double b) { return a > b ? a : b; }

}  // namespace
