// Weights in blocks bound to a device, shared by the operations that read them (gemv.cpp,
// dequant.cpp).
#pragma once

#include <nanobind/ndarray.h>

#include <memory>

#include "ops/block_weights.h"

namespace npu::python {

using Blocks = nanobind::ndarray<uint8_t, nanobind::ndim<1>, nanobind::ro, nanobind::c_contig,
                                 nanobind::device::cpu>;

// Weights and the array they may be read from.
struct BoundWeights {
  Blocks owner;
  std::shared_ptr<const ops::BlockWeights> weights;
};

}  // namespace npu::python
