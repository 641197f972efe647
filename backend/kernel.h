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

struct KernelArgument {
  std::byte* data = nullptr;  // null for an integer
  uint32_t bytes = 0;         // from data to the end of the core's memory
  int64_t value = 0;
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

// The host build of an aie_kernels/ function for this machine's best instruction set; null if there
// is no kernel of that name.
HostKernel find_host_kernel(std::string_view name, arch::Generation generation,
                            Arithmetic arithmetic);

}  // namespace npu
