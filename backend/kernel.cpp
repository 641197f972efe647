// Finds the host build of a kernel: by name, NPU generation, arithmetic and this machine's CPU.
#include "kernel.h"

#include <cstdlib>
#include <string_view>
#include <utility>

#include "aie_host/thunks.h"
#include "aie_host/variants.h"
#include "error.h"

namespace npu {

namespace aie_host {

namespace {

constexpr CpuLevel kCpuLevels[] = {CpuLevel::kV2, CpuLevel::kV3, CpuLevel::kV4, CpuLevel::kV4Bf16};

bool cpu_has(CpuLevel level) {
  switch (level) {
    case CpuLevel::kV2:
      return true;  // what the whole library is compiled for
    case CpuLevel::kV3:
      return __builtin_cpu_supports("x86-64-v3") != 0;
    case CpuLevel::kV4:
      return __builtin_cpu_supports("x86-64-v4") != 0;
    case CpuLevel::kV4Bf16:
      return __builtin_cpu_supports("x86-64-v4") != 0 &&
             __builtin_cpu_supports("avx512bf16") != 0 && __builtin_cpu_supports("avx512vnni") != 0;
  }
  return false;
}

// A HostKernel carries no data, so every function of every table gets its own caller.
template <const KernelTable& kTable, size_t kIndex>
void call_function(Arguments arguments, CoreState& core) {
  call(kTable.functions[kIndex], arguments, core);
}

template <const KernelTable& kTable, size_t kIndex>
OperandUse function_use(Arguments arguments, size_t i) {
  return operand_use(kTable.functions[kIndex], arguments, i);
}

struct Entry {
  HostKernel kernel = nullptr;
  OperandUses uses = nullptr;
};

template <const KernelTable& kTable, size_t... kIndex>
Entry find_entry(std::string_view name, std::index_sequence<kIndex...>) {
  static constexpr Entry kEntries[] = {
      {&call_function<kTable, kIndex>, &function_use<kTable, kIndex>}...};
  for (size_t i = 0; i < kMaxFunctions; ++i) {
    const char* entry = kTable.functions[i].name;
    if (entry != nullptr && name == entry) return kEntries[i];
  }
  return {};
}

template <const KernelTable& kTable>
Entry find_in(std::string_view name) {
  return find_entry<kTable>(name, std::make_index_sequence<kMaxFunctions>());
}

template <const KernelTable& kV2, const KernelTable& kV3, const KernelTable& kV4,
          const KernelTable& kV4Bf16>
Entry find_fast(std::string_view name) {
  switch (cpu_level()) {
    case CpuLevel::kV2:
      return find_in<kV2>(name);
    case CpuLevel::kV3:
      return find_in<kV3>(name);
    case CpuLevel::kV4:
      return find_in<kV4>(name);
    case CpuLevel::kV4Bf16:
      return find_in<kV4Bf16>(name);
  }
  return {};
}

Entry find(std::string_view name, arch::Generation generation, Arithmetic arithmetic) {
  const bool npu1 = generation == arch::Generation::kNpu1;
  if (arithmetic == Arithmetic::kSilicon) {
    return npu1 ? find_in<npu1_silicon>(name) : find_in<npu2_silicon>(name);
  }
  return npu1 ? find_fast<npu1_fast_v2, npu1_fast_v3, npu1_fast_v4, npu1_fast_v4bf16>(name)
              : find_fast<npu2_fast_v2, npu2_fast_v3, npu2_fast_v4, npu2_fast_v4bf16>(name);
}

}  // namespace

const char* cpu_level_name(CpuLevel level) {
  switch (level) {
    case CpuLevel::kV2:
      return "v2";
    case CpuLevel::kV3:
      return "v3";
    case CpuLevel::kV4:
      return "v4";
    case CpuLevel::kV4Bf16:
      return "v4bf16";
  }
  return "unknown";
}

CpuLevel best_cpu_level() {
  CpuLevel best = CpuLevel::kV2;
  for (const CpuLevel level : kCpuLevels) {
    if (cpu_has(level)) best = level;
  }
  return best;
}

CpuLevel cpu_level() {
  const char* wanted = std::getenv("NPU_CPU");
  if (wanted == nullptr || *wanted == '\0') return best_cpu_level();
  for (const CpuLevel level : kCpuLevels) {
    if (std::string_view(wanted) != cpu_level_name(level)) continue;
    if (!cpu_has(level)) {
      fail(ErrorKind::kUnavailable,
           "[find_host_kernel] NPU_CPU=%s asks for instructions this CPU lacks; its best level is "
           "%s",
           wanted, cpu_level_name(best_cpu_level()));
    }
    return level;
  }
  fail(ErrorKind::kArgument, "[find_host_kernel] NPU_CPU=%s, must be v2, v3, v4 or v4bf16", wanted);
}

}  // namespace aie_host

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
  return aie_host::find(name, generation, arithmetic).kernel;
}

OperandUses find_operand_uses(std::string_view name, arch::Generation generation,
                              Arithmetic arithmetic) {
  return aie_host::find(name, generation, arithmetic).uses;
}

}  // namespace npu
