// y = gelu(gate) * up for a chunk of bfloat16, tanh form (gelu.h).
#include <stdint.h>

#include <aie_api/aie.hpp>

#include "gelu.h"
#include "kernel.h"

NPU_KERNEL void geglu(const bfloat16* gate, const bfloat16* up, bfloat16* y, int32_t count) {
  npu::gelu::geglu(gate, up, y, count);
}

NPU_DECLARE(geglu,
            {.operands = {buffer("gate", "count"), buffer("up", "count"), buffer("y", "count"),
                          multiple("count", npu::fp32::kLanes)},
             .cycles = [](const Timing&,
                          const int64_t* count) { return npu::gelu::geglu_cycles(count[0]) + 24; },
             .parts = [](const Timing&, const int64_t* count) -> Parts {
               return {{{Generated::kOwn, {1, 1, count[0]}}}};
             }});
