// Cycles of generated kernels: what `npu kernel` schedules, as the cost estimates use it. The
// figures are in kernel_schedules.inc, which aie_kernels/counting/kernel_schedules.py writes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "arch/timing.h"

namespace npu::perf {

// A product's kernel for one k. Blocks of C follow each other every `interval` cycles.
struct KernelSchedule {
  arch::Generation generation;
  std::string_view kernel;  // as declared in aie_kernels/
  int32_t k;
  int32_t block_m, block_n;  // elements of C
  int32_t interval;          // cycles
  int32_t outside;           // cycles from the first bundle to the last beside the intervals
  int32_t code_bytes;        // of the whole function
};

// Sorted by generation, kernel and k; of one k the widest block first.
std::span<const KernelSchedule> kernel_schedules();

// Cycles of a call of an m x k x n product by its schedule, `schedule_call` included; nothing if no
// schedule covers these sizes. What a block's width leaves over of n takes the blocks of the next
// line, in a loop of its own.
std::optional<double> scheduled_cycles(const arch::Timing& timing, std::string_view kernel,
                                       int64_t m, int64_t k, int64_t n);

// Whether the profile of `timing` asks for schedules. published: the kernel stands for one whose
// speed others have published.
bool wants_schedule(const arch::Timing& timing, bool published);

}  // namespace npu::perf
