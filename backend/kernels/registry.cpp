// Finds kernels by name, NPU generation, arithmetic and this machine's CPU (registry.h, kernel.h).
#include "kernels/registry.h"

#include <algorithm>
#include <cassert>

#include "error.h"
#include "kernels/call.h"
#include "kernels/cpu_level.h"
#include "kernels/host/core_state.h"
#include "kernels/host_build.h"
#include "kernels/kernel.h"

namespace npu {

namespace kernels {

namespace {

const HostBuild& silicon_build(arch::Generation generation) {
  return generation == arch::Generation::kNpu1 ? npu1_silicon : npu2_silicon;
}

const HostBuild& fast_build(arch::Generation generation, CpuLevel level) {
  const bool npu1 = generation == arch::Generation::kNpu1;
  switch (level) {
    case CpuLevel::kV2:
      break;
    case CpuLevel::kV3:
      return npu1 ? npu1_fast_v3 : npu2_fast_v3;
    case CpuLevel::kV4:
      return npu1 ? npu1_fast_v4 : npu2_fast_v4;
    case CpuLevel::kV4Bf16:
      return npu1 ? npu1_fast_v4bf16 : npu2_fast_v4bf16;
  }
  return npu1 ? npu1_fast_v2 : npu2_fast_v2;
}

const HostFunction* find_in(const HostBuild& build, std::string_view name) {
  for (const HostFunction& function : build.functions) {
    if (name == function.name) return &function;
  }
  return nullptr;
}

}  // namespace

const Declaration* find_declaration(std::string_view name, arch::Generation generation) {
  const HostFunction* function = find_in(silicon_build(generation), name);
  return function != nullptr ? function->declaration : nullptr;
}

std::vector<const Declaration*> declarations(arch::Generation generation) {
  std::vector<const Declaration*> all;
  for (const HostFunction& function : silicon_build(generation).functions) {
    all.push_back(function.declaration);
  }
  return all;
}

}  // namespace kernels

const char* arithmetic_name(Arithmetic arithmetic) {
  switch (arithmetic) {
    case Arithmetic::kFast:
      return "fast";
    case Arithmetic::kSilicon:
      return "silicon";
  }
  return "unknown";
}

HostKernel find_host_kernel(std::string_view name, arch::Generation generation,
                            Arithmetic arithmetic) {
  using namespace kernels;
  const Declaration* declaration = find_declaration(name, generation);
  const bool fast = arithmetic == Arithmetic::kFast;
  const CpuLevel level = fast ? cpu_level() : CpuLevel::kV2;
  if (declaration == nullptr) return {};
  const bool floats = declaration->product == Product::kFloats;
  const HostBuild& build = fast ? fast_build(generation, floats ? product_cpu_level(level) : level)
                                : silicon_build(generation);
  const HostFunction* function = find_in(build, name);
  if (function == nullptr) return {};
  return {declaration, function->run, function->run_joint};
}

void HostKernel::operator()(std::span<const KernelArgument> arguments, CoreState& core) const {
  if (arguments.size() == static_cast<size_t>(declaration->count)) {
    const aie_host::CoreScope scope(core);
    if (declaration->product != kernels::Product::kNone) aie_host::set_packed_operands(arguments);
    if (run(arguments.data())) return;
  }
  kernels::check_call(*declaration, arguments);  // says what is wrong
  fail(ErrorKind::kKernel, "[%s] rejects operands that its declaration allows", declaration->name);
}

void HostKernel::repeat(std::span<KernelArgument> arguments, CoreState& core, uint32_t times,
                        uint32_t moving, int64_t stride) const {
  if (run_joint != nullptr) {
    KernelArgument* const call = arguments.data();
    CoreState* const state = &core;
    return repeat_joint({&call, 1}, {&state, 1}, arguments.size(), times, moving, stride);
  }
  const bool plain = arguments.size() == static_cast<size_t>(declaration->count) &&
                     declaration->product == kernels::Product::kNone;
  uint32_t done = 0;
  if (plain) {
    const aie_host::CoreScope scope(core);
    for (; done < times && run(arguments.data()); ++done) arguments[moving].data += stride;
  }
  for (; done < times; ++done) {  // with the errors of single calls
    (*this)(arguments, core);
    arguments[moving].data += stride;
  }
}

void HostKernel::repeat_joint(std::span<KernelArgument* const> calls,
                              std::span<CoreState* const> cores, size_t count, uint32_t times,
                              uint32_t moving, int64_t stride) const {
  assert(calls.size() <= kernels::kMostJointCalls);
  const auto same = [&](const CoreState* core) { return *core == *cores.front(); };
  const auto reads_same = [&](const KernelArgument* call) {
    return call[0].data == calls.front()[0].data;
  };
  if (run_joint != nullptr && (times == 1 || moving == 0) &&
      std::ranges::all_of(calls, reads_same) && count == static_cast<size_t>(declaration->count) &&
      std::ranges::all_of(cores, same)) {
    const aie_host::CoreScope scope(*cores.front());
    if (run_joint(calls.data(), static_cast<int>(calls.size()), times, stride)) return;
  }
  for (uint32_t done = 0; done < times; ++done) {
    for (size_t i = 0; i < calls.size(); ++i) {
      (*this)({calls[i], count}, *cores[i]);
      calls[i][moving].data += stride;
    }
  }
}

}  // namespace npu
