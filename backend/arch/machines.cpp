// The table behind machines.h. "2512.13282" and "2602.06063" are arXiv papers; "ATB" is "Can
// Asymmetric Tile Buffering Be Beneficial?".
#include "arch/machines.h"

#include <string>

#include "error.h"

namespace npu::arch {

namespace {

constexpr MachineConstant kStrixAtb[] = {
    {"dram_read_npu2", 65, "GB/s", Grade::kDocumented,
     "about 65: Can Asymmetric Tile Buffering Be Beneficial?, section 5 (equation 12)"},
    {"dram_total_npu2", 65, "GB/s", Grade::kDocumented,
     "the same figure, which counts A, B and C: Can Asymmetric Tile Buffering Be Beneficial?, "
     "section 5 (equation 12)"},
};
constexpr MachineConstant kKrackanGemma[] = {
    {"dram_read_npu2", 40, "GB/s", Grade::kDocumented,
     "reads are capped below 40: arXiv 2602.06063, section 5; arXiv 2512.13282 measured about 50 "
     "on the same processor"},
    {"dram_total_npu2", 50.6, "GB/s", Grade::kAssumed,
     "to the read ceiling as in the table; no measurement was found"},
};

// The table's constants were fitted to the figures of the defaults.
constexpr Machine kMachines[] = {
    {"krackan-gemm",
     Generation::kNpu2,
     "Ryzen AI 7 350, DDR5-5600, two channels: arXiv 2512.13282",
     {}},
    {"phoenix-gemm",
     Generation::kNpu1,
     "Ryzen 9 7940HS, DDR5-5600, two channels: arXiv 2512.13282",
     {}},
    {"strix-atb", Generation::kNpu2,
     "Ryzen AI 9 HX 370: Can Asymmetric Tile Buffering Be Beneficial?", kStrixAtb},
    {"krackan-gemma", Generation::kNpu2, "Ryzen AI 7 350 as arXiv 2602.06063 describes it",
     kKrackanGemma},
};

double profile_number(const char* function, std::string_view kernels) {
  if (kernels == "published") return 1;
  if (kernels == "scheduled") return 2;
  fail(ErrorKind::kArgument, "[%s] kernels is \"%.40s\"; use \"published\" or \"scheduled\"",
       function, std::string(kernels).c_str());
}

}  // namespace

std::span<const Machine> machines() { return kMachines; }

TimingTable timing_table(const char* function, Generation generation, std::string_view machine,
                         std::string_view kernels) {
  TimingTable table;
  bool found = machine.empty();
  std::string known;
  for (const Machine& one : kMachines) {
    if (one.generation != generation) continue;
    known += (known.empty() ? "" : ", ") + std::string(one.name);
    if (machine != one.name) continue;
    found = true;
    for (const MachineConstant& constant : one.constants) table.set(constant.name, constant.value);
  }
  if (!found) {
    fail(ErrorKind::kArgument, "[%s] machine is \"%.40s\"; there are, for %s: %s", function,
         std::string(machine).c_str(), device_geometry(generation).name, known.c_str());
  }
  if (!kernels.empty()) table.set("kernels", profile_number(function, kernels));
  return table;
}

}  // namespace npu::arch
