// npu._npu.device: opening devices and reading their identity and counters.
#include "device.h"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "arch/device_model.h"
#include "bindings.h"
#include "ops/gemm.h"

namespace nb = nanobind;

namespace npu::python {

namespace {

// A configuration as plain Python values, for `npu inspect`.
nb::dict configuration_dict(const Configuration& configuration) {
  nb::dict d, params;
  d["name"] = configuration.name;
  d["generation"] = arch::device_model(configuration.generation).name;
  d["source"] = configuration.source;
  for (const auto& [key, value] : configuration.params) params[key.c_str()] = value;
  d["params"] = params;
  nb::list ports, rtps, resources, cores;
  for (const auto& port : configuration.ports) {
    ports.append(nb::make_tuple(port.name, port.col,
                                port.direction == arch::Direction::kS2MM ? "s2mm" : "mm2s",
                                port.channel));
  }
  for (const auto& rtp : configuration.rtps) {
    rtps.append(nb::make_tuple(rtp.name, rtp.col, rtp.row, rtp.address));
  }
  for (const auto& use : configuration.resources) {
    resources.append(nb::make_tuple(use.col, use.row, use.kind, use.used, use.limit));
  }
  for (const auto& core : configuration.cores) {
    cores.append(nb::make_tuple(core.col, core.row, print_program(core.program)));
  }
  d["ports"] = ports;
  d["rtps"] = rtps;
  d["resources"] = resources;
  d["cores"] = cores;
  d["txn"] = nb::bytes(configuration.txn.data(), configuration.txn.size());
  return d;
}

}  // namespace

void init_device(nb::module_& m) {
  nb::module_ sub = m.def_submodule("device", "Devices: what executes streams.");
  nb::class_<ops::SharedDevice>(sub, "Device")
      .def("info",
           [](ops::SharedDevice& self) {
             const DeviceInfo info = self.device->info();
             nb::dict d;
             d["name"] = info.name;
             d["generation"] = arch::device_model(info.generation).name;
             d["columns"] = info.columns;
             d["clock_hz"] = info.clock_hz;
             d["emulated"] = info.emulated;
             d["arithmetic"] = info.arithmetic;
             return d;
           })
      .def("counters", [](ops::SharedDevice& self) {
        DeviceCounters counters;
        {
          // Locked without the GIL, and unlocked before it is taken again: runs hold the mutex.
          nb::gil_scoped_release release;
          const std::lock_guard<std::mutex> guard(self.mutex);
          counters = self.device->counters();
        }
        nb::dict d;
        d["configuration_loads"] = counters.configuration_loads;
        d["submissions"] = counters.submissions;
        return d;
      });
  sub.def("parse_configuration", [](const nb::bytes& bytes) {
    const std::span<const std::byte> view{reinterpret_cast<const std::byte*>(bytes.c_str()),
                                          bytes.size()};
    return configuration_dict(Configuration::parse(view));
  });
  sub.def("open", [](const std::string& name, const std::string& arithmetic) {
    return std::make_shared<ops::SharedDevice>(open_device(name, arithmetic));
  });
}

}  // namespace npu::python
