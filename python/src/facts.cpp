// npu._npu.facts: numbers that C++ states and Python needs: the geometry of Q4NX blocks, the limits
// of a GEMV pass and the shim BDs that its configuration writes.
#include <nanobind/nanobind.h>

#include "bindings.h"
#include "formats/q4nx.h"
#include "ops/gemv/gemv.h"

namespace nb = nanobind;

namespace npu::python {

void init_facts(nb::module_& m) {
  nb::module_ sub = m.def_submodule("facts", "Numbers that C++ and Python share.");
  sub.attr("Q4NX_ROWS") = q4nx::kRows;
  sub.attr("Q4NX_COLUMNS") = q4nx::kColumns;
  sub.attr("Q4NX_GROUP") = q4nx::kGroup;
  sub.attr("Q4NX_BLOCK_BYTES") = q4nx::kBlockBytes;
  sub.attr("GEMV_BATCH") = ops::kGemvBatch;
  sub.attr("GEMV_TOP") = ops::kMaxGemvTop;
  sub.attr("GEMV_WEIGHT_BD") = ops::kGemvWeightBd;
  sub.attr("GEMV_X_BD") = ops::kGemvXBd;
  sub.attr("GEMV_Y_BD") = ops::kGemvYBd;
}

}  // namespace npu::python
