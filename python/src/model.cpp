// npu._npu.model: the timing models. simulate() executes a stream on a timed emulated array;
// estimate() evaluates the closed form. python/npu/perf/simulate.py is what users call.
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>

#include "arch/timing.h"
#include "bindings.h"
#include "configuration.h"
#include "emulator/array.h"
#include "error.h"
#include "gemm_point.h"
#include "kernel.h"
#include "model/gemm_model.h"
#include "report.h"

namespace nb = nanobind;

namespace npu::python {

namespace {

using Overrides = std::map<std::string, double>;

arch::Timing timing_of(arch::Generation generation, const Overrides& overrides) {
  arch::TimingTable table;
  for (const auto& [name, value] : overrides) table.set(name, value);
  return {generation, table};
}

nb::list constants() {
  nb::list list;
  for (const arch::TimingConstant& c : arch::timing_constants()) {
    nb::dict d;
    d["name"] = c.name;
    d["value"] = c.value;
    d["unit"] = c.unit;
    d["grade"] = arch::grade_name(c.grade);
    d["source"] = c.source;
    d["fitted_on"] = c.fitted_on;
    list.append(d);
  }
  return list;
}

nb::dict estimate(const nb::object& design, const std::array<int64_t, 3>& size, bool overlap,
                  const Overrides& overrides) {
  model::GemmPoint p = gemm_point(design);
  p.overlap_bds = overlap;
  set_size(p, size[0], size[1], size[2]);
  const model::GemmEstimate e =
      model::estimate_gemm(timing_of(generation_of(design), overrides), p);
  nb::dict d;
  d["seconds"] = e.seconds;
  d["dispatch"] = e.dispatch;
  d["cycles_per_call"] = e.cycles_per_call;
  d["convert_cycles"] = e.convert_cycles;
  d["rounds"] = e.rounds;
  d["compute"] = e.compute;
  d["stream"] = e.stream;
  d["read"] = e.read;
  d["write"] = e.write;
  d["memory"] = e.memory;
  d["command"] = e.command;
  d["fill"] = e.fill;
  d["tail"] = e.tail;
  d["bound"] = model::bound_name(e.bound);
  d["dram_read_bytes"] = e.dram_read_bytes;
  d["dram_write_bytes"] = e.dram_write_bytes;
  d["l2_read_bytes"] = e.l2_read_bytes;
  return d;
}

using HostArray = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// One core per line of the report would be long: totals only.
nb::dict timing_dict(const emulator::TimingReport& t) {
  nb::dict d;
  d["seconds"] = t.seconds;
  d["dispatch"] = t.dispatch;
  d["cycles"] = t.cycles;
  d["compute_share"] = t.compute_share;
  d["stream_share"] = t.stream_share;
  d["dram_share"] = t.dram_share;
  d["command_share"] = t.command_share;
  d["core_busy"] = t.core_busy;
  d["core_blocked"] = t.core_blocked;
  d["matmul_cycles"] = t.matmul_cycles;
  d["matmul_calls"] = t.matmul_calls;
  d["uncosted_calls"] = t.uncosted_calls;
  d["events"] = t.events;
  nb::dict agents;
  for (const auto& [name, busy] : t.agents) agents[name.c_str()] = busy;
  d["agents"] = agents;
  return d;
}

std::vector<emulator::KernelFunction> kernels_of(const Program& program, arch::Generation device,
                                                 bool data) {
  std::vector<emulator::KernelFunction> functions;
  for (const std::string& name : program.functions) {
    const HostKernel kernel =
        data ? find_host_kernel(name, device, Arithmetic::kFast) : HostKernel{};
    if (data && !kernel) {
      fail(ErrorKind::kKernel, "[simulate] kernel \"%s\" has no host build", name.c_str());
    }
    functions.push_back({kernel, false});
  }
  return functions;
}

// What to record: from and to in cycles, the most events, locks too.
using TraceRequest = std::tuple<double, double, uint64_t, bool>;

// A stream on a timed array. `sizes` are the bytes of its arguments; with `data` (timed or not) it
// is executed on those arrays, without it nothing is computed. With `trace` a timed run is
// recorded.
nb::dict simulate(const nb::bytes& config, const nb::bytes& stream,
                  const std::vector<size_t>& sizes, const std::vector<HostArray>& data, bool timed,
                  const Overrides& overrides, const std::optional<TraceRequest>& trace) {
  const Configuration configuration =
      Configuration::parse({reinterpret_cast<const std::byte*>(config.c_str()), config.size()});
  const arch::Timing timing = timing_of(configuration.generation, overrides);
  const std::span<const std::byte> words{reinterpret_cast<const std::byte*>(stream.c_str()),
                                         stream.size()};
  std::vector<BufferView> buffers;
  for (const size_t size : sizes) buffers.push_back({nullptr, size, true});
  for (const HostArray& array : data) {
    buffers.push_back({reinterpret_cast<std::byte*>(array.data()), array.size(), true});
  }
  std::shared_ptr<emulator::Recorder> recorder;
  if (trace) {
    const auto& [from, to, limit, locks] = *trace;
    recorder =
        std::make_shared<emulator::Recorder>(emulator::Recorder::Options{from, to, limit, locks});
  }
  RunReport report;
  emulator::TimingReport times;
  {
    nb::gil_scoped_release release;
    emulator::Array array(arch::device_model(configuration.generation));
    array.set_patience(uint64_t{1} << 36);  // a design of ours ends; K may be 2^24
    array.set_interrupt([] {
      nb::gil_scoped_acquire acquire;
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
    });
    array.configure(configuration.txn);
    for (const Configuration::Core& core : configuration.cores) {
      array.attach(core.col, core.row, core.program,
                   kernels_of(core.program, configuration.generation, !data.empty()));
    }
    if (timed) array.set_timing(&timing, !data.empty(), recorder.get());
    report = array.submit(words, buffers);
    times = array.timing_report();
  }
  nb::dict d = report_dict(report);
  d["timing"] = timing_dict(times);
  if (recorder) d["trace"] = trace_dict(std::move(recorder));
  return d;
}

}  // namespace

void init_model(nb::module_& m) {
  nb::module_ sub = m.def_submodule("model", "Timing models.");
  sub.def("constants", &constants);
  sub.def("estimate", &estimate, nb::arg("design"), nb::arg("size"), nb::arg("overlap") = true,
          nb::arg("overrides") = Overrides{});
  sub.def("simulate", &simulate, nb::arg("config"), nb::arg("stream"), nb::arg("sizes"),
          nb::arg("data"), nb::arg("timed"), nb::arg("overrides"), nb::arg("trace") = nb::none());
}

}  // namespace npu::python
