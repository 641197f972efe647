// The stream of a chunk of a prompt.
#pragma once

#include "ops/prefill/prefill_plan.h"
#include "stream/txn.h"

namespace npu::ops {

// Steps [first, last) of the plan. Afterwards its headers are known.
void append_prefill(stream::Builder& builder, const Configuration& configuration,
                    const PrefillArray& array, PrefillPlan& plan, size_t first, size_t last);

}  // namespace npu::ops
