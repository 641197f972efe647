// What tests of operations share: the words that an append function makes, and the devices that
// tests of the contract run on.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "ops/gemm/gemm_schedule.h"
#include "ops/gemv/gemv_schedule.h"
#include "runtime/configuration.h"
#include "stream/txn.h"

namespace npu::test {

template <typename Append>
std::vector<uint32_t> words_of(const Configuration& configuration, const Append& append) {
  stream::Builder builder(configuration.generation,
                          arch::device_geometry(configuration.generation).columns);
  append(builder);
  return builder.finish();
}

inline std::vector<uint32_t> gemm_words(const Configuration& configuration,
                                        const ops::GemmProblem& problem) {
  return words_of(configuration, [&](stream::Builder& builder) {
    ops::append_gemm(builder, configuration, problem);
  });
}

inline std::vector<uint32_t> gemv_words(const Configuration& configuration,
                                        const ops::GemvProblem& problem,
                                        const ops::GemvSchedule& schedule) {
  return words_of(configuration, [&](stream::Builder& builder) {
    ops::append_gemv(builder, configuration, problem, schedule);
  });
}

// Names from NPU_TEST_DEVICES, separated by commas, else all emulated devices and one with a
// residency test mode.
inline std::vector<std::string> test_devices() {
  const char* chosen = std::getenv("NPU_TEST_DEVICES");
  std::istringstream names(chosen && *chosen ? chosen : "emu:npu1,emu:npu2,emu:npu2+reload");
  std::vector<std::string> out;
  for (std::string name; std::getline(names, name, ',');) out.push_back(name);
  return out;
}

}  // namespace npu::test
