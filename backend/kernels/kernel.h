// How a worker calls a kernel: the operands in call order, buffers as pointers into the core's data
// memory, constants and RTPs as integers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "arch/geometry.h"
#include "kernels/declaration.h"

namespace npu {

struct PackedOperand;  // kernels/host/packed_operand.h

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
  bool operator==(const CoreState&) const = default;
};

// `silicon` follows the known bit-level rules of the hardware, `fast` accumulates in fp32.
enum class Arithmetic : uint8_t { kFast, kSilicon };
const char* arithmetic_name(Arithmetic arithmetic);

// The host build of a kernel of aie_kernels/. A call checks the operands first: Error(kKernel) with
// the kernel's name.
struct HostKernel {
  const kernels::Declaration* declaration = nullptr;
  bool (*run)(const KernelArgument* operands) = nullptr;  // host_build.h
  kernels::JointCalls run_joint = nullptr;                // or null

  explicit operator bool() const { return run != nullptr; }
  bool operator==(const HostKernel&) const = default;
  void operator()(std::span<const KernelArgument> arguments, CoreState& core) const;
  // So many calls, with operand `moving` `stride` bytes further each time, wherever that leaves it.
  // Of kernels with a joint function only the first is checked.
  void repeat(std::span<KernelArgument> arguments, CoreState& core, uint32_t times, uint32_t moving,
              int64_t stride) const;
  // The same for several cores, up to kMostJointCalls: each round is made for all of them before
  // the next. calls: `count` operands each.
  void repeat_joint(std::span<KernelArgument* const> calls, std::span<CoreState* const> cores,
                    size_t count, uint32_t times, uint32_t moving, int64_t stride) const;
};

// The build for this machine's best instruction set; an empty one if there is no kernel of that
// name.
HostKernel find_host_kernel(std::string_view name, arch::Generation generation,
                            Arithmetic arithmetic);

}  // namespace npu
