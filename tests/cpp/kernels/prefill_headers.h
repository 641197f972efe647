// Headers of jobs (aie_kernels/prefill_job.h) that a kernel refuses for one of their words.
#pragma once

#include <doctest/doctest.h>

#include <vector>

#include "aie_kernels/prefill_job.h"
#include "kernel_calls.h"

namespace npu::prefill_header_test {

// A word, and values that it may not have.
struct Wrong {
  int32_t prefill::Job::*word;
  std::vector<int32_t> values;
};

// The kernel takes `job` and none with one wrong word. is_refused(build, job): whether it refuses.
template <typename IsRefused>
void check_refused(const kernel_test::Build& build, const prefill::Job& job,
                   const std::vector<Wrong>& cases, const IsRefused& is_refused) {
  CHECK_FALSE(is_refused(build, job));
  for (size_t i = 0; i < cases.size(); ++i) {
    for (const int32_t value : cases[i].values) {
      prefill::Job other = job;
      other.*cases[i].word = value;
      INFO(build.name() << " kind " << job.kind << " case " << i << " value " << value);
      CHECK(is_refused(build, other));
    }
  }
}

}  // namespace npu::prefill_header_test
