// npu._npu.perf: simulated time. simulate() executes a stream on a timed emulated array;
// estimate() evaluates the closed form. python/npu/perf/simulate.py is what users call.
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "arch/machines.h"
#include "arch/timing.h"
#include "bindings.h"
#include "devices/emulator/timed_trace.h"
#include "error.h"
#include "gemm_point.h"
#include "perf/gemm_cost.h"
#include "perf/kernel_schedules.h"
#include "report.h"
#include "runtime/configuration.h"
#include "runtime/interrupt.h"
#include "runtime/timing.h"

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

nb::list machines() {
  nb::list list;
  for (const arch::Machine& machine : arch::machines()) {
    nb::list constants;
    for (const arch::MachineConstant& c : machine.constants) {
      constants.append(
          nb::make_tuple(c.name, c.value, c.unit, arch::grade_name(c.grade), c.source));
    }
    list.append(nb::make_tuple(machine.name, arch::device_geometry(machine.generation).name,
                               machine.about, constants));
  }
  return list;
}

nb::list schedules() {
  nb::list list;
  for (const perf::KernelSchedule& s : perf::kernel_schedules()) {
    nb::dict d;
    d["device"] = arch::device_geometry(s.generation).name;
    d["kernel"] = std::string(s.kernel);
    d["k"] = s.k;
    d["block"] = std::pair(s.block_m, s.block_n);
    d["interval"] = s.interval;
    d["outside"] = s.outside;
    d["code_bytes"] = s.code_bytes;
    list.append(d);
  }
  return list;
}

nb::dict estimate(const nb::object& design, const std::array<int64_t, 3>& size, bool overlap,
                  const Overrides& overrides) {
  perf::GemmPoint p = gemm_point(design);
  p.overlap_bds = overlap;
  set_size(p, size[0], size[1], size[2]);
  const perf::GemmEstimate e = perf::estimate_gemm(timing_of(generation_of(design), overrides), p);
  nb::dict d;
  d["seconds"] = e.seconds;
  d["dispatch"] = e.dispatch;
  d["cycles_per_call"] = e.cycles_per_call;
  d["convert_cycles"] = e.convert_cycles;
  d["scheduled"] = e.scheduled;
  d["convert_scheduled"] = e.convert_scheduled;
  d["kernel"] = perf::product_kernel(generation_of(design), p);
  d["rounds"] = e.rounds;
  d["compute"] = e.compute;
  d["stream"] = e.stream;
  d["read"] = e.read;
  d["write"] = e.write;
  d["memory"] = e.memory;
  d["command"] = e.command;
  d["fill"] = e.fill;
  d["tail"] = e.tail;
  d["bound"] = perf::bound_name(e.bound);
  d["dram_read_bytes"] = e.dram_read_bytes;
  d["dram_write_bytes"] = e.dram_write_bytes;
  d["l2_read_bytes"] = e.l2_read_bytes;
  return d;
}

using HostArray = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// What to record: from and to in cycles, the largest number of events, locks too.
using TraceRequest = std::tuple<double, double, uint64_t, bool>;

// A stream on an emulated device. `sizes` are the bytes of its arguments; with `data` (timed or
// not) it is executed on those arrays, without it nothing is computed; `kernels`: with data, those
// that run (none: all), TimingOptions. With `trace` a timed run is recorded.
nb::dict simulate(const nb::bytes& config, const nb::bytes& stream,
                  const std::vector<size_t>& sizes, const std::vector<HostArray>& data, bool timed,
                  const Overrides& overrides, const std::optional<TraceRequest>& trace,
                  std::vector<std::string> kernels) {
  const auto configuration = std::make_shared<const Configuration>(
      Configuration::parse({reinterpret_cast<const std::byte*>(config.c_str()), config.size()}));
  std::vector<uint32_t> words(stream.size() / 4);
  std::memcpy(words.data(), stream.c_str(), words.size() * 4);
  TimingOptions options;
  for (const auto& [name, value] : overrides) options.constants.set(name, value);
  options.data = !data.empty();
  options.kernels = std::move(kernels);
  if (trace) {
    const auto& [from, to, limit, locks] = *trace;
    options.trace = TraceOptions{from, to, limit, locks};
  }
  const auto device = open_device(
      std::string("emu:") + arch::device_geometry(configuration->generation).name, "fast");
  DeviceTiming& timing = *device->timing();
  RunReport report;
  {
    nb::gil_scoped_release release;
    if (timed) timing.start(options);
    std::vector<std::unique_ptr<Buffer>> buffers;
    std::vector<BufferRef> refs;
    for (const size_t size : sizes) buffers.push_back(timing.placeholder(size));
    for (const HostArray& array : data) {
      buffers.push_back(device->wrap(reinterpret_cast<std::byte*>(array.data()), array.size(),
                                     Access::kReadWrite));
    }
    for (const auto& buffer : buffers) {
      refs.push_back({buffer.get(), 0, buffer->bytes(), Access::kReadWrite});
    }
    device->load(configuration);
    report = finish(*device->submit(device->prepare(std::move(words)), refs));
  }
  nb::dict d = report_dict(report);
  d["timing"] = timing_dict(timed ? timing.last() : RunTiming{});
  if (trace) {
    d["trace"] = trace_dict(std::static_pointer_cast<emulator::Recorder>(timing.trace()));
  }
  return d;
}

}  // namespace

// One core per line of the report would be long: totals only.
nb::dict timing_dict(const RunTiming& t) {
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
  d["events"] = t.events;
  nb::dict agents;
  for (const auto& [name, busy] : t.agents) agents[name.c_str()] = busy;
  d["agents"] = agents;
  nb::dict kernels;
  for (const auto& [name, source] : t.kernels) kernels[name.c_str()] = source;
  d["kernels"] = kernels;
  return d;
}

void init_perf(nb::module_& m) {
  nb::module_ sub = m.def_submodule("perf", "Cost and timing");
  sub.def("constants", &constants);
  sub.def("machines", &machines, "(name, generation, about, constants) of arch/machines.h.");
  sub.def("schedules", &schedules);
  sub.def("estimate", &estimate, nb::arg("design"), nb::arg("size"), nb::arg("overlap") = true,
          nb::arg("overrides") = Overrides{});
  sub.def("simulate", &simulate, nb::arg("config"), nb::arg("stream"), nb::arg("sizes"),
          nb::arg("data"), nb::arg("timed"), nb::arg("overrides"), nb::arg("trace") = nb::none(),
          nb::arg("kernels") = std::vector<std::string>{});
}

}  // namespace npu::python
