// The machines that simulations and predictions are of: timing constants that are a machine's and
// not the array's. Two laptops with the same NPU differ in what their memory gives it.
#pragma once

#include <span>
#include <string_view>

#include "arch/geometry.h"
#include "arch/timing.h"

namespace npu::arch {

// A constant of timing.h with the value that it has on a machine.
struct MachineConstant {
  const char* name;
  double value;
  const char* unit;
  Grade grade;
  const char* source;
};

// A profile of `npu validate-model --machines`. Constants that it does not name are the table's.
struct Machine {
  const char* name;
  Generation generation;
  const char* about;  // processor, memory, and the source of its figures
  std::span<const MachineConstant> constants;
};

// The first of a generation is its default.
std::span<const Machine> machines();

// The table on a machine, with a profile of kernels: "published" or "scheduled". Empty words: the
// default of each. Throws Error(kArgument), whose message begins with the caller's name.
TimingTable timing_table(const char* function, Generation generation, std::string_view machine,
                         std::string_view kernels);

}  // namespace npu::arch
