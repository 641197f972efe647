// npu._npu.model: the timing models. simulate() executes a stream on a timed emulated array;
// estimate() evaluates the closed form. python/npu/perf/simulate.py is what users call.
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "arch/timing.h"
#include "bindings.h"
#include "configuration.h"
#include "emulator/timed_trace.h"
#include "error.h"
#include "model/gemm_model.h"
#include "report.h"
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

model::InputKind input_kind(const std::string& type, bool native) {
  if (type == "int8") return model::InputKind::kInt8;
  if (type == "int16") return model::InputKind::kInt16;
  return native ? model::InputKind::kBf16Native : model::InputKind::kBf16;
}

double bytes_of(const std::string& type) {
  return type == "int8" ? 1 : type == "int16" || type == "bfloat16" ? 2 : 4;
}

nb::dict estimate(const std::string& generation, const std::string& a_type,
                  const std::string& c_type, const std::vector<int64_t>& tile,
                  const std::vector<int64_t>& size, int64_t k_mt, bool b_column_major,
                  int c_buffers, bool overlap, bool native, bool pipelined, int64_t a_parts,
                  const Overrides& overrides, bool a_resident, bool wide) {
  if (tile.size() != 3 || size.size() != 3) {
    fail(ErrorKind::kShape, "[estimate] tile and size have three numbers each");
  }
  for (const int64_t value :
       {tile[0], tile[1], tile[2], size[0], size[1], size[2], k_mt, a_parts}) {
    if (value < 1 || value > int64_t{1} << 30) {
      fail(ErrorKind::kShape, "[estimate] %lld is not in 1 .. 2^30", static_cast<long long>(value));
    }
  }
  const arch::DeviceModel& device = arch::device_model(generation);
  model::GemmPoint p;
  p.input = input_kind(a_type, native);
  p.a_bytes = bytes_of(a_type);
  p.c_bytes = bytes_of(c_type);
  p.integer_output = c_type.starts_with("int");
  p.m = tile[0];
  p.k = tile[1];
  p.n = tile[2];
  p.k_mt = k_mt;
  p.b_column_major = b_column_major;
  p.c_buffers = c_buffers;
  p.sum_bytes = wide ? 4 : 0;
  p.overlap_bds = overlap;
  p.pipelined = pipelined;
  p.a_parts = a_parts;
  p.a_resident = a_resident;
  p.rows = arch::kCoreRows;
  p.columns = device.columns;
  p.M = size[0];
  p.K = size[1];
  p.N = size[2];
  const model::GemmEstimate e = model::estimate_gemm(timing_of(device.generation, overrides), p);
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
  return d;
}

// What to record: from and to in cycles, the most events, locks too.
using TraceRequest = std::tuple<double, double, uint64_t, bool>;

// A stream on an emulated device. `sizes` are the bytes of its arguments; with `data` (timed or
// not) it is executed on those arrays, without it nothing is computed. With `trace` a timed run is
// recorded.
nb::dict simulate(const nb::bytes& config, const nb::bytes& stream,
                  const std::vector<size_t>& sizes, const std::vector<HostArray>& data, bool timed,
                  const Overrides& overrides, const std::optional<TraceRequest>& trace) {
  const auto configuration = std::make_shared<const Configuration>(
      Configuration::parse({reinterpret_cast<const std::byte*>(config.c_str()), config.size()}));
  std::vector<uint32_t> words(stream.size() / 4);
  std::memcpy(words.data(), stream.c_str(), words.size() * 4);
  TimingOptions options;
  for (const auto& [name, value] : overrides) options.constants.set(name, value);
  options.data = !data.empty();
  if (trace) {
    const auto& [from, to, limit, locks] = *trace;
    options.trace = TraceOptions{from, to, limit, locks};
  }
  const auto device =
      open_device(std::string("emu:") + arch::device_model(configuration->generation).name, "fast");
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

void init_model(nb::module_& m) {
  nb::module_ sub = m.def_submodule("model", "Timing models.");
  sub.def("constants", &constants);
  // wide: sums of 32 bits whatever C's type is; else sums of C's type.
  sub.def("estimate", &estimate, nb::arg("generation"), nb::arg("a_type"), nb::arg("c_type"),
          nb::arg("tile"), nb::arg("size"), nb::arg("k_mt"), nb::arg("b_column_major"),
          nb::arg("c_buffers"), nb::arg("overlap"), nb::arg("native"), nb::arg("pipelined") = false,
          nb::arg("a_parts") = 1, nb::arg("overrides") = Overrides{}, nb::arg("a_resident") = false,
          nb::arg("wide") = false);
  sub.def("simulate", &simulate, nb::arg("config"), nb::arg("stream"), nb::arg("sizes"),
          nb::arg("data"), nb::arg("timed"), nb::arg("overrides"), nb::arg("trace") = nb::none());
}

}  // namespace npu::python
