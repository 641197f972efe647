// The host builds of aie_kernels/: one per generation, arithmetic mode and instruction set, each
// made from the declarations in one translation unit (kernels/host/variant.cpp).
#pragma once

#include <span>

#include "kernels/declaration.h"
#include "kernels/kernel.h"

namespace npu::kernels {

// A kernel of one build. `run` takes as many operands as are declared; it does nothing and returns
// false unless they fit; so does `run_joint` (Declaration::joint), or it is null. The declaration
// is there in the silicon builds, which every processor executes; null in the others.
struct HostFunction {
  const char* name = nullptr;
  bool (*run)(const KernelArgument* operands) = nullptr;
  const Declaration* declaration = nullptr;
  JointCalls run_joint = nullptr;
};

struct HostBuild {
  std::span<const HostFunction> functions;
};

extern const HostBuild npu1_fast_v2, npu1_fast_v3, npu1_fast_v4, npu1_fast_v4bf16;
extern const HostBuild npu2_fast_v2, npu2_fast_v3, npu2_fast_v4, npu2_fast_v4bf16;
extern const HostBuild npu1_silicon, npu2_silicon;

}  // namespace npu::kernels
