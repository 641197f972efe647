// How a kernel is stated: its function and, for the hosts that call it, its declaration.
//
//   NPU_KERNEL void zero_f32(float* c, int32_t count) { ... }
//   NPU_DECLARE(zero_f32, {.operands = {buffer("c", "count"), multiple("count", 16)},
//                          .cycles = ...});
//
// For the NPU a kernel is a C function and the declaration nothing. In a host build it belongs to
// that build alone, and the declaration enters it in the build's table (backend/kernels).
// Parameters are `const T*` (read), `T*` (written, perhaps read) and int32_t; declared are their
// names, the elements that a call accesses as formulas of the integers, the integers' limits, and
// the cost.
#pragma once

#ifdef AIE_HOST_VARIANT

#define NPU_KERNEL static
#define NPU_DECLARATIONS 1  // whether what only declarations need is to be compiled

#include <aie_api/aie.hpp>
#include <type_traits>
#include <utility>

#include "arch/timing.h"
#include "error.h"
#include "kernels/host_build.h"
#include "model/kernel_cost.h"

#define NPU_DECLARE(function, ...) NPU_DECLARE_AS(__COUNTER__, function, __VA_ARGS__)
#define NPU_DECLARE_AS(number, function, ...)                                  \
  namespace {                                                                  \
  template <>                                                                  \
  struct Declared<number> : Function<&function> {                              \
    static constexpr bool kExists = true;                                      \
    static constexpr Declaration kDeclaration = typed(#function, __VA_ARGS__); \
  };                                                                           \
  }                                                                            \
  static_assert(true)

// Unnamed: host builds for several instruction sets are linked together and must not be merged.
namespace {

using npu::KernelArgument;
using npu::arch::Timing;
using npu::kernels::buffer;
using npu::kernels::Declaration;
using npu::kernels::Element;
using npu::kernels::integer;
using npu::kernels::multiple;
using npu::kernels::Operand;

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

// The slots of an instruction work side by side: the one with most to do takes the time.
constexpr double longest(double a, double b) { return a > b ? a : b; }

}  // namespace

#else  // the NPU

#define NPU_KERNEL extern "C"
#define NPU_DECLARATIONS 0
#define NPU_DECLARE(...) static_assert(true)

#endif
