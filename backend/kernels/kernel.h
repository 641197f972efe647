// How a worker calls a kernel: the operands in call order, buffers as pointers into the core's data
// memory, constants and RTPs as integers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "arch/geometry.h"

namespace npu {

struct PackedOperand;  // kernels/host/packed_operand.h
namespace kernels {
struct Declaration;
}

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

// `silicon` follows the known bit-level rules of the hardware, `fast` accumulates in fp32.
enum class Arithmetic : uint8_t { kFast, kSilicon };
const char* arithmetic_name(Arithmetic arithmetic);

// The host build of a kernel of aie_kernels/. A call checks the operands first: Error(kKernel) with
// the kernel's name.
struct HostKernel {
  const kernels::Declaration* declaration = nullptr;
  bool (*run)(const KernelArgument* operands) = nullptr;  // host_build.h

  explicit operator bool() const { return run != nullptr; }
  bool operator==(const HostKernel&) const = default;
  void operator()(std::span<const KernelArgument> arguments, CoreState& core) const;
  // So many calls, with operand `moving` `stride` bytes further each time.
  void repeat(std::span<KernelArgument> arguments, CoreState& core, uint32_t times, uint32_t moving,
              int64_t stride) const;
};

// The build for this machine's best instruction set; an empty one if there is no kernel of that
// name.
HostKernel find_host_kernel(std::string_view name, arch::Generation generation,
                            Arithmetic arithmetic);

}  // namespace npu
