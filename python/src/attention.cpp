// npu._npu.attention: how a request of attention is cut into jobs (ops/attention/attention.h).
#include "ops/attention/attention.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>

#include "bindings.h"

namespace nb = nanobind;

namespace npu::python {

void init_attention(nb::module_& m) {
  nb::module_ sub = m.def_submodule("attention", "Jobs of attention.");
  sub.def(
      "jobs",
      [](const Request::Values& values) {
        const ops::AttentionJobs jobs(Request(ops::kAttentionType, values));
        const std::vector<int32_t> records = jobs.records();
        nb::dict d;
        d["count"] = jobs.count();
        d["blocks"] = jobs.blocks;
        d["block_tokens"] = jobs.block_tokens;
        d["positions"] = jobs.positions;
        d["chunks"] = jobs.chunks;
        d["parts"] = jobs.parts;
        d["header_parts"] = jobs.header_parts;
        d["y_bytes"] = jobs.y_bytes;
        d["records"] = nb::bytes(records.data(), records.size() * 4);
        return d;
      },
      nb::arg("request"),
      "Sizes of the arguments of a request, and every job's record: what its header begins with.");
}

}  // namespace npu::python
