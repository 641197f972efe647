// npu._npu.device: opening devices and reading their identity and counters.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include "arch/device_model.h"
#include "bindings.h"
#include "device.h"
#include "ops/gemm.h"

namespace nb = nanobind;

namespace npu::python {

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
        nb::gil_scoped_release release;
        const std::lock_guard<std::mutex> guard(self.mutex);
        const DeviceCounters counters = self.device->counters();
        nb::gil_scoped_acquire acquire;
        nb::dict d;
        d["configuration_loads"] = counters.configuration_loads;
        d["submissions"] = counters.submissions;
        return d;
      });
  sub.def("open", [](const std::string& name, const std::string& arithmetic) {
    return std::make_shared<ops::SharedDevice>(open_device(name, arithmetic));
  });
}

}  // namespace npu::python
