// The stream of a chunk of a prompt.
#pragma once

#include <span>

#include "ops/prefill/prefill_plan.h"
#include "stream/txn.h"

namespace npu::ops {

// Steps [first, last) of the plan. Afterwards it has their headers. origins: of the arguments with
// weights, how many bytes into each region they begin; none: all with the region.
void append_prefill(stream::Builder& builder, const Configuration& configuration,
                    const PrefillArray& array, PrefillPlan& plan, size_t first, size_t last,
                    std::span<const int64_t> origins = {});

}  // namespace npu::ops
