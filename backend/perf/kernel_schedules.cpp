// The table of schedules and its reader (kernel_schedules.h).
#include "perf/kernel_schedules.h"

#include <algorithm>
#include <tuple>

namespace npu::perf {

namespace {

constexpr KernelSchedule kSchedules[] = {
#define NPU_SCHEDULE(generation, kernel, depth, m, n, interval, outside, bytes) \
  {arch::Generation::k##generation, #kernel, depth, m, n, interval, outside, bytes},
#include "perf/kernel_schedules.inc"
#undef NPU_SCHEDULE
};

constexpr auto key(const KernelSchedule& s) { return std::tuple(s.generation, s.kernel, s.k); }

constexpr bool in_order(const KernelSchedule& a, const KernelSchedule& b) {
  return key(a) < key(b) || (key(a) == key(b) && a.block_n > b.block_n);
}
static_assert(std::ranges::is_sorted(kSchedules, in_order), "write kernel_schedules.inc again");

}  // namespace

std::span<const KernelSchedule> kernel_schedules() { return kSchedules; }

std::optional<double> scheduled_cycles(const arch::Timing& timing, std::string_view kernel,
                                       int64_t m, int64_t k, int64_t n) {
  const std::tuple wanted(timing.generation, kernel, static_cast<int32_t>(k));
  const auto lines = std::ranges::equal_range(kSchedules, wanted, {}, key);
  if (lines.empty()) return std::nullopt;
  double cycles = timing.schedule_call;
  for (const KernelSchedule& s : lines) {
    if (m % s.block_m != 0) return std::nullopt;
    const int64_t across = n / s.block_n, blocks = m / s.block_m * across;
    n -= across * s.block_n;
    if (blocks > 0) cycles += static_cast<double>(blocks) * s.interval + s.outside;
  }
  if (n > 0) return std::nullopt;
  return cycles;
}

bool wants_schedule(const arch::Timing& timing, bool published) {
  switch (timing.kernels) {
    case arch::KernelProfile::kPublished:
      return false;
    case arch::KernelProfile::kScheduled:
      return true;
    case arch::KernelProfile::kOwn:
      break;
  }
  return !published;
}

}  // namespace npu::perf
