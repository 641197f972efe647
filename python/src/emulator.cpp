// npu._npu.emulator: the register-level array, wrapped by npu/emulator.py into the public
// interface.
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <map>

#include "arch/timing.h"
#include "bindings.h"
#include "devices/emulator/array.h"
#include "devices/emulator/timed_trace.h"
#include "emulator_views.h"
#include "error.h"
#include "report.h"
#include "runtime/program.h"
#include "runtime/timing.h"

namespace nb = nanobind;

namespace npu::python {

namespace {

using Bytes = nb::bytes;

std::span<const std::byte> span_of(const Bytes& bytes) {
  return {reinterpret_cast<const std::byte*>(bytes.c_str()), bytes.size()};
}

emulator::KernelFunction wrap(const nb::object& callable, std::shared_ptr<void> memory) {
  emulator::KernelFunction function;
  function.serial = true;
  function.call = [kept = hold(callable), memory = std::move(memory)](
                      std::span<const KernelArgument> arguments, CoreState&) {
    nb::gil_scoped_acquire gil;
    nb::list list;
    for (const KernelArgument& argument : arguments) {
      list.append(argument.data ? view_of(argument.data, argument.bytes, memory)
                                : nb::int_(argument.value));
    }
    (*kept)(*list);
  };
  return function;
}

// cycles: of a call of each function in timed runs, where they are known.
void attach(emulator::Array& array, int col, int row, const std::string& text,
            const nb::dict& functions, const std::map<std::string, double>& cycles) {
  const std::string where = strf("attach: core (%d,%d)", col, row);
  Program program = parse_program(text, where);
  link_program(program, where);
  std::vector<emulator::KernelFunction> wrapped;
  for (const std::string& name : program.functions) {
    if (!functions.contains(name.c_str())) {
      fail(ErrorKind::kKernel, "[%s] the program calls \"%s\", which is not among the functions",
           where.c_str(), name.c_str());
    }
    wrapped.push_back(wrap(functions[name.c_str()], array.tile(col, row).memories));
    if (const auto found = cycles.find(name); found != cycles.end()) {
      wrapped.back().cycles = found->second;
    }
  }
  array.attach(col, row, std::move(program), std::move(wrapped));
}

// `attach_programs` is a Python callable or None.
void add_pdi(emulator::Array& array, uint32_t id, const Bytes& txn,
             const nb::object& attach_programs) {
  std::function<void()> hook;
  if (!attach_programs.is_none()) {
    hook = [held = hold(attach_programs)] {
      nb::gil_scoped_acquire gil;
      (*held)();
    };
  }
  array.add_pdi(id, span_of(txn), std::move(hook));
}

using HostArray = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ConstHostArray = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

RunReport run(emulator::Array& array, const Bytes& insts,
              const std::vector<ConstHostArray>& buffers, const std::vector<bool>& writable) {
  std::vector<emulator::Argument> views;
  for (size_t i = 0; i < buffers.size(); ++i) {
    auto* data = const_cast<uint8_t*>(buffers[i].data());
    views.push_back({reinterpret_cast<std::byte*>(data), buffers[i].size(), writable[i]});
  }
  nb::gil_scoped_release release;
  return array.submit(span_of(insts), views);
}

nb::dict submit(emulator::Array& array, const Bytes& insts,
                const std::vector<ConstHostArray>& buffers, const std::vector<bool>& writable) {
  nb::dict report = report_dict(run(array, insts, buffers, writable));
  report["unwaited"] = array.unwaited();
  report["dropped"] = nb::tuple(nb::cast(array.dropped()));
  return report;
}

// The same in simulated time; `constants` replace those of arch/timing.h. events: how many of a
// timeline to keep; 0 records none.
nb::dict simulate(emulator::Array& array, const Bytes& insts,
                  const std::vector<ConstHostArray>& buffers, const std::vector<bool>& writable,
                  const std::map<std::string, double>& constants, uint64_t events) {
  arch::TimingTable table;
  for (const auto& [name, value] : constants) table.set(name, value);
  const arch::Timing timing(array.device().generation, table);
  std::shared_ptr<emulator::Recorder> recorder;
  if (events > 0) {
    TraceOptions options;
    options.limit = events;
    recorder = std::make_shared<emulator::Recorder>(options);
  }
  struct Timed {
    emulator::Array& array;
    ~Timed() { array.set_timing(nullptr, true); }
  };
  nb::dict report;
  {
    array.set_timing(&timing, true, recorder.get());
    const Timed timed{array};
    report = submit(array, insts, buffers, writable);
  }
  report["timing"] = timing_dict(array.timing_report());
  if (recorder) report["trace"] = trace_dict(recorder);
  return report;
}

}  // namespace

nb::dict report_dict(const RunReport& report) {
  nb::dict d;
  d["operations"] = report.operations;
  d["undecoded_writes"] = report.undecoded_writes;
  d["kernel_calls"] = report.kernel_calls;
  nb::dict bytes;
  bytes["shim_read"] = report.shim_read_bytes;
  bytes["shim_write"] = report.shim_write_bytes;
  bytes["memtile_read"] = report.memtile_read_bytes;
  bytes["memtile_write"] = report.memtile_write_bytes;
  bytes["core_read"] = report.core_read_bytes;
  bytes["core_write"] = report.core_write_bytes;
  d["bytes_moved"] = bytes;
  return d;
}

void init_emulator(nb::module_& m) {
  nb::module_ sub = m.def_submodule("emulator", "The emulated array at register level.");
  nb::class_<emulator::Array> array(sub, "Array");
  init_emulator_cores(array);
  array
      .def("__init__",
           [](emulator::Array* self, const std::string& device) {
             new (self) emulator::Array(arch::device_geometry(device));
             self->set_interrupt([] {  // Ctrl-C ends a run
               nb::gil_scoped_acquire gil;
               if (PyErr_CheckSignals() != 0) throw nb::python_error();
             });
           })
      .def("configure",
           [](emulator::Array& self, const Bytes& txn) {
             return report_dict([&] {
               nb::gil_scoped_release release;
               return self.configure(span_of(txn));
             }());
           })
      .def("attach", &attach)
      .def("add_pdi", &add_pdi, nb::arg(), nb::arg(), nb::arg().none())
      .def("submit", &submit)
      .def("simulate", &simulate)
      .def("read_register",
           [](emulator::Array& self, uint32_t address) { return self.read_register(address); })
      .def("read_memory", [](emulator::Array& self, int col, int row, uint32_t offset,
                             uint32_t bytes) {
        const std::span<std::byte> memory = self.tile(col, row).memory;
        if (uint64_t{offset} + bytes > memory.size()) {
          fail(ErrorKind::kOutOfRange,
               "[read_memory] bytes %u..%llu of tile (%d,%d) were requested; it has %zu", offset,
               static_cast<unsigned long long>(uint64_t{offset} + bytes), col, row, memory.size());
        }
        return nb::bytes(reinterpret_cast<const char*>(memory.data()) + offset, bytes);
      });
}

}  // namespace npu::python
