// How a worker calls a kernel: the operands in call order, buffers as pointers into the core's data
// memory, constants and RTPs as integers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "arch/device_model.h"

namespace npu {

struct PackedOperand;  // aie_host/packed_operand.h

struct KernelArgument {
  std::byte* data = nullptr;  // null for an integer
  uint32_t bytes = 0;         // from data to the end of the core's memory
  int64_t value = 0;
  PackedOperand* packed = nullptr;  // set where several cores read the same bytes
};

// Per-core state that kernels see through aie_api (rounding and saturation modes).
struct CoreState {
  uint8_t rounding = 0;    // 0 = floor, the reset default
  uint8_t saturation = 0;  // 0 = none
};

using HostKernel = void (*)(std::span<const KernelArgument> arguments, CoreState& core);

// `silicon` follows the known bit-level rules of the hardware, `fast` accumulates in fp32.
enum class Arithmetic : uint8_t { kFast, kSilicon };
const char* arithmetic_name(Arithmetic arithmetic);

// The bytes from its address on that a call accesses through one buffer operand.
struct OperandUse {
  uint64_t bytes = UINT64_MAX;  // UINT64_MAX: unknown
  bool read_only = false;
};
// What a call with these operands does to operand i, a buffer. Operands are not checked yet.
using OperandUses = OperandUse (*)(std::span<const KernelArgument> arguments, size_t i);

// The host build of an aie_kernels/ function for this machine's best instruction set; null if there
// is no kernel of that name.
HostKernel find_host_kernel(std::string_view name, arch::Generation generation,
                            Arithmetic arithmetic);
// The operand uses of the same kernel; null if there is none of that name.
OperandUses find_operand_uses(std::string_view name, arch::Generation generation,
                              Arithmetic arithmetic);

}  // namespace npu
