// Asserts of machines (arch/machines.h): defaults are the table, others change their constants and
// nothing else, and wrong words are refused with those that there are.
#include <doctest/doctest.h>

#include <string>

#include "arch/machines.h"
#include "error.h"

using namespace npu;
using arch::Generation;
using arch::KernelProfile;
using arch::Timing;
using arch::timing_table;
using arch::TimingTable;

TEST_CASE("machines: defaults are the table, others change what they name") {
  const Timing plain(Generation::kNpu2, TimingTable{});
  for (const arch::Machine& machine : arch::machines()) {
    const TimingTable table = timing_table("test", machine.generation, machine.name, "");
    const Timing timing(machine.generation, table);
    CHECK(timing.kernels == KernelProfile::kOwn);
    if (machine.generation == Generation::kNpu1) continue;
    CHECK((timing.dram_read == plain.dram_read) == machine.constants.empty());
    CHECK(timing.stream == plain.stream);
  }
  const auto strix =
      Timing(Generation::kNpu2, timing_table("test", Generation::kNpu2, "strix-atb", ""));
  CHECK(strix.dram_read == doctest::Approx(65e9 / strix.clock_hz));
  CHECK(strix.dram_total == doctest::Approx(65e9 / strix.clock_hz));
  CHECK(timing_table("test", Generation::kNpu1, "", "published").kernels() ==
        KernelProfile::kPublished);
  CHECK(timing_table("test", Generation::kNpu1, "", "scheduled").kernels() ==
        KernelProfile::kScheduled);
}

TEST_CASE("machines: unknown words are refused") {
  const auto message = [](Generation generation, const char* machine, const char* kernels) {
    try {
      timing_table("open", generation, machine, kernels);
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::kArgument);
      return std::string(error.what());
    }
    return std::string("nothing thrown");
  };
  CHECK(message(Generation::kNpu2, "strix", "") ==
        "[open] machine is \"strix\"; there are, for npu2: krackan-gemm, strix-atb, krackan-gemma");
  CHECK(message(Generation::kNpu1, "strix-atb", "") ==
        "[open] machine is \"strix-atb\"; there are, for npu1: phoenix-gemm");
  CHECK(message(Generation::kNpu2, "", "fast") ==
        "[open] kernels is \"fast\"; use \"published\" or \"scheduled\"");
}
