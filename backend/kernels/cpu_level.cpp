// Instruction sets of this machine (cpu_level.h).
#include "kernels/cpu_level.h"

#include <cstdlib>
#include <string_view>

#include "error.h"

namespace npu::kernels {

namespace {

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
             __builtin_cpu_supports("avx512bf16") != 0 &&
             __builtin_cpu_supports("avx512vnni") != 0 && __builtin_cpu_supports("avx512vbmi") != 0;
  }
  return false;
}

// NPU_CPU; empty: not set.
std::string_view wanted_level() {
  const char* wanted = std::getenv("NPU_CPU");
  return wanted != nullptr ? wanted : "";
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
  const std::string_view wanted = wanted_level();
  if (wanted.empty()) return best_cpu_level();
  for (const CpuLevel level : kCpuLevels) {
    if (wanted != cpu_level_name(level)) continue;
    if (!cpu_has(level)) {
      fail(ErrorKind::kUnavailable,
           "[find_host_kernel] NPU_CPU=%s asks for instructions this CPU lacks; its best level is "
           "%s",
           wanted.data(), cpu_level_name(best_cpu_level()));
    }
    return level;
  }
  fail(ErrorKind::kArgument, "[find_host_kernel] NPU_CPU=%s, must be v2, v3, v4 or v4bf16",
       wanted.data());
}

CpuLevel product_cpu_level(CpuLevel level) {
  // Measured on Sapphire Rapids: one vdpbf16ps of 512 bits per two cycles, two FMAs per cycle; the
  // same is reported of Emerald Rapids (libxsmm/tpp-mlir, pull request 1025), the opposite of Zen 4
  // (iree-org/iree, pull request 15089).
  const bool slow = level == CpuLevel::kV4Bf16 && __builtin_cpu_is("intel") != 0;
  return slow && wanted_level().empty() ? CpuLevel::kV4 : level;
}

}  // namespace npu::kernels
