// npu._npu.device: the device contract (runtime/device.h) in Python: opening devices,
// configurations, buffers, prepared streams, runs, counters, and devices written in Python.
#include "runtime/device.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "arch/geometry.h"
#include "arrays.h"
#include "bindings.h"
#include "devices/xrt/connection.h"
#include "devices/xrt/module.h"
#include "error.h"
#include "python_device.h"
#include "report.h"
#include "runtime/interrupt.h"
#include "runtime/shared_device.h"

namespace nb = nanobind;

namespace npu::python {

namespace {

using SharedConfiguration = std::shared_ptr<const Configuration>;

// A configuration as plain Python values, for `npu inspect`.
nb::dict configuration_dict(const Configuration& configuration) {
  nb::dict d, params;
  d["name"] = configuration.name;
  d["generation"] = arch::device_geometry(configuration.generation).name;
  d["source"] = configuration.source;
  d["artefact"] = configuration.artefact();
  for (const auto& [key, value] : configuration.params) params[key.c_str()] = value;
  d["params"] = params;
  nb::list ports, rtps, resources, overlays, cores;
  for (const auto& port : configuration.ports) {
    const nb::object packet = port.packet ? nb::object(nb::int_(*port.packet)) : nb::none();
    ports.append(nb::make_tuple(port.name, port.col,
                                port.direction == arch::Direction::kS2MM ? "s2mm" : "mm2s",
                                port.channel, packet));
  }
  for (const auto& rtp : configuration.rtps) {
    rtps.append(nb::make_tuple(rtp.name, rtp.col, rtp.row, rtp.address));
  }
  for (const auto& use : configuration.resources) {
    resources.append(nb::make_tuple(use.col, use.row, use.kind, use.used, use.limit));
  }
  for (const auto& overlay : configuration.overlays) {
    overlays.append(nb::make_tuple(overlay.name, overlay.bytes, overlay.counters,
                                   print_program(overlay.program)));
  }
  for (const auto& core : configuration.cores) {
    cores.append(nb::make_tuple(core.col, core.row, print_program(core.program)));
  }
  d["ports"] = ports;
  d["rtps"] = rtps;
  d["resources"] = resources;
  d["overlays"] = overlays;
  d["cores"] = cores;
  d["txn"] = nb::bytes(configuration.txn.data(), configuration.txn.size());
  return d;
}

nb::dict info_dict(const DeviceInfo& info) {
  nb::dict d;
  d["name"] = info.name;
  d["generation"] = arch::device_geometry(info.generation).name;
  d["columns"] = info.columns;
  d["clock_hz"] = info.clock_hz;
  d["emulated"] = info.emulated;
  d["computes"] = info.computes;
  d["arithmetic"] = info.arithmetic;
  d["max_arguments"] = info.max_arguments;
  return d;
}

// Calls of one device are not concurrent: every one from Python takes its lock, without the GIL.
template <typename Call>
auto locked(SharedDevice& self, const Call& call) {
  nb::gil_scoped_release release;
  const std::lock_guard<std::mutex> guard(self.mutex);
  return call(*self.device);
}

// A buffer with what it needs alive: its device and, if it wraps memory, the array.
struct PyBuffer {
  std::shared_ptr<SharedDevice> device;
  nb::object owner;
  std::unique_ptr<Buffer> buffer;
};

struct PyRun {
  std::shared_ptr<SharedDevice> device;
  nb::object keep;  // the buffers
  std::unique_ptr<Run> run;
};

Access access_of(const std::string& name) {
  if (name == "read") return Access::kRead;
  if (name == "write") return Access::kWrite;
  if (name == "readwrite") return Access::kReadWrite;
  fail(ErrorKind::kArgument, "[device] access is \"%s\"; use read, write or readwrite",
       name.c_str());
}

const char* state_name(Run::State state) {
  switch (state) {
    case Run::State::kRunning:
      return "running";
    case Run::State::kDone:
      return "done";
    case Run::State::kFailed:
      return "failed";
    case Run::State::kCancelled:
      break;
  }
  return "cancelled";
}

std::chrono::nanoseconds timeout_of(nb::object seconds) {
  if (seconds.is_none()) return Run::kForever;
  const double value = nb::cast<double>(seconds);
  if (!(value >= 0)) fail(ErrorKind::kArgument, "[wait] timeout is %g; use seconds >= 0", value);
  return value > 1e9 ? Run::kForever : std::chrono::nanoseconds(static_cast<int64_t>(value * 1e9));
}

void init_buffers(nb::module_& sub) {
  nb::class_<PyBuffer>(sub, "Buffer", "Memory that a device reaches.")
      .def_prop_ro("nbytes", [](const PyBuffer& self) { return self.buffer->bytes(); })
      .def_prop_ro(
          "array",
          [](nb::handle self) {
            auto& buffer = *nb::cast<PyBuffer&>(self).buffer;
            return nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(
                reinterpret_cast<uint8_t*>(buffer.host()), {buffer.bytes()}, self);
          },
          "The memory as uint8, shared with the device after synchronisation.")
      .def("sync_to_device",
           [](PyBuffer& self, size_t offset, size_t bytes) {
             locked(*self.device, [&](Device&) { self.buffer->sync_to_device(offset, bytes); });
           })
      .def("sync_from_device", [](PyBuffer& self, size_t offset, size_t bytes) {
        locked(*self.device, [&](Device&) { self.buffer->sync_from_device(offset, bytes); });
      });
  nb::class_<PreparedStream>(sub, "PreparedStream", "A stream in the form a device runs.");
  nb::class_<PyRun>(sub, "Run", "One execution of a stream; destroying it cancels it.")
      .def_prop_ro("state", [](const PyRun& self) { return state_name(self.run->state()); })
      .def(
          "wait",
          [](PyRun& self, nb::object timeout) {
            const std::chrono::nanoseconds limit = timeout_of(timeout);
            return locked(*self.device, [&](Device&) { return self.run->wait(limit); });
          },
          nb::arg("timeout") = nb::none(), "Whether the run has ended within `timeout` seconds.")
      .def(
          "finish",
          [](PyRun& self) {
            return report_dict(
                locked(*self.device, [&](Device&) -> RunReport { return finish(*self.run); }));
          },
          "Waits until the end, interrupted by Ctrl-C; returns the report.")
      .def("cancel",
           [](PyRun& self) { locked(*self.device, [&](Device&) { self.run->cancel(); }); })
      .def("report", [](const PyRun& self) {
        if (self.run->state() != Run::State::kDone) {
          fail(ErrorKind::kArgument, "[report] the run is %s; only one that is done has a report",
               state_name(self.run->state()));
        }
        return report_dict(self.run->report());
      });
}

std::unique_ptr<PyRun> submit(const std::shared_ptr<SharedDevice>& self,
                              std::shared_ptr<PreparedStream> stream, const nb::list& arguments) {
  std::vector<BufferRef> refs;
  for (nb::handle item : arguments) {
    if (item.is_none()) {
      refs.push_back({});
      continue;
    }
    const auto [buffer, offset, bytes, access] =
        nb::cast<std::tuple<nb::handle, size_t, size_t, std::string>>(item);
    refs.push_back({nb::cast<PyBuffer&>(buffer).buffer.get(), offset, bytes, access_of(access)});
  }
  auto run = std::make_unique<PyRun>();
  run->device = self;
  run->keep = nb::list(arguments);
  run->run = locked(*self, [&](Device& device) { return device.submit(std::move(stream), refs); });
  return run;
}

std::shared_ptr<Configuration> parse_with_images(const nb::bytes& data, const nb::dict& images) {
  auto out = std::make_shared<Configuration>(Configuration::parse(bytes_of(data)));
  for (Configuration::Overlay& overlay : out->overlays) {
    if (!images.contains(overlay.name.c_str())) continue;
    const auto image = nb::cast<nb::bytes>(images[overlay.name.c_str()]);
    if (image.size() != overlay.bytes) {
      fail(ErrorKind::kArgument,
           "[Configuration] overlay \"%s\" has %u bytes, an image of %zu was given; pass all of it",
           overlay.name.c_str(), overlay.bytes, image.size());
    }
    overlay.image.resize(image.size() / 4);
    std::memcpy(overlay.image.data(), image.data(), image.size());
  }
  return out;
}

// What a device has of the overlay of that name.
nb::bytes image_of(SharedDevice& self, const Configuration& configuration,
                   const std::string& name) {
  size_t at = 0;
  while (at < configuration.overlays.size() && configuration.overlays[at].name != name) ++at;
  if (at == configuration.overlays.size()) {
    fail(ErrorKind::kArgument,
         "[overlay_image] configuration \"%s\" has no overlay \"%s\"; use a name of its overlays",
         configuration.name.c_str(), name.c_str());
  }
  const std::vector<uint32_t> image =
      locked(self, [&](Device& device) { return device.overlay_image(configuration, at); });
  return nb::bytes(image.data(), 4 * image.size());
}

bool patch(SharedDevice& self, const std::shared_ptr<PreparedStream>& stream,
           const std::vector<std::pair<size_t, uint32_t>>& pairs) {
  std::vector<StreamPatch> patches;
  for (const auto& [word, value] : pairs) patches.push_back({word, value});
  return locked(self, [&](Device& device) { return device.patch(stream, patches); });
}

void init_contract(nb::module_& sub) {
  nb::class_<Configuration>(sub, "Configuration", "A lowered design.")
      .def_static("parse", &parse_with_images, nb::arg("data"), nb::arg("images") = nb::dict(),
                  "images: what program memory holds of overlays, by name; else a stand-in.")
      .def_ro("name", &Configuration::name)
      .def_ro("source", &Configuration::source)
      .def_prop_ro("generation",
                   [](const Configuration& self) {
                     return std::string(arch::device_geometry(self.generation).name);
                   })
      .def_prop_ro("artefact", &Configuration::artefact)
      .def("as_dict", &configuration_dict);
  nb::class_<SharedDevice>(sub, "Device", "An open device.")
      .def("info",
           [](SharedDevice& self) {
             return info_dict(locked(self, [](Device& device) { return device.info(); }));
           })
      .def("counters",
           [](SharedDevice& self) {
             const DeviceCounters counters =
                 locked(self, [](Device& device) { return device.counters(); });
             nb::dict d;
             d["configuration_loads"] = counters.configuration_loads;
             d["submissions"] = counters.submissions;
             d["replays"] = counters.replays;
             d["replay_bytes"] = counters.replay_bytes;
             return d;
           })
      .def("load",
           [](SharedDevice& self, std::shared_ptr<Configuration> configuration) {
             locked(self, [&](Device& device) { device.load(std::move(configuration)); });
           })
      .def("allocate",
           [](std::shared_ptr<SharedDevice> self, size_t bytes) {
             auto buffer = locked(*self, [&](Device& device) { return device.allocate(bytes); });
             return PyBuffer{std::move(self), nb::none(), std::move(buffer)};
           })
      .def(
          "wrap",
          [](std::shared_ptr<SharedDevice> self, nb::object array,
             const std::string& access) -> nb::object {
            const Access wanted = access_of(access);
            std::byte* data = nullptr;
            size_t bytes = 0;
            if (writes(wanted)) {
              const Output view = output_of(array, "wrap", "the array");
              data = reinterpret_cast<std::byte*>(view.data());
              bytes = view.size();
            } else {
              const Input view = input_of(array, "wrap", "the array");
              data = reinterpret_cast<std::byte*>(const_cast<uint8_t*>(view.data()));
              bytes = view.size();
            }
            auto buffer =
                locked(*self, [&](Device& device) { return device.wrap(data, bytes, wanted); });
            if (!buffer) return nb::none();
            return nb::cast(PyBuffer{std::move(self), array, std::move(buffer)});
          },
          nb::arg("array"), nb::arg("access") = "read",
          "The array's memory as a buffer, or None where it must be copied.")
      .def("prepare",
           [](SharedDevice& self, const nb::bytes& stream) {
             const std::span<const std::byte> data = bytes_of(stream);
             std::vector<uint32_t> words(data.size() / 4);
             if (data.size() % 4 != 0) {
               fail(ErrorKind::kFormat, "[prepare] the stream has %zu bytes, not a multiple of 4",
                    data.size());
             }
             std::copy_n(data.data(), data.size(), reinterpret_cast<std::byte*>(words.data()));
             return std::const_pointer_cast<PreparedStream>(
                 locked(self, [&](Device& device) { return device.prepare(std::move(words)); }));
           })
      .def("overlay_image", &image_of, nb::arg("configuration"), nb::arg("overlay"),
           "What program memory holds of an overlay, by its name.")
      .def("patch", &patch, nb::arg("stream"), nb::arg("patches"),
           "Changes words of a prepared stream: (number, value) each. False: it cannot.")
      .def("submit", &submit, nb::arg("stream"), nb::arg("arguments"),
           "Starts a run. arguments: (buffer, offset, bytes, access) each, or None.");
}

}  // namespace

void init_device(nb::module_& m) {
  nb::module_ sub = m.def_submodule("device", "Devices: what executes streams.");
  set_interrupt_check([] {
    nb::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  });
  init_buffers(sub);
  init_contract(sub);
  sub.def("parse_configuration", [](const nb::bytes& bytes) {
    return configuration_dict(Configuration::parse(bytes_of(bytes)));
  });
  sub.def("open", [](const std::string& name, const std::string& arithmetic) {
    return std::make_shared<SharedDevice>(open_device(name, arithmetic));
  });
  sub.def(
      "xrt_module",
      []() -> nb::object {
        const auto found = xrt::find_module();
        return found ? nb::object(nb::str(found->c_str())) : nb::none();
      },
      "The file that calls XRT for the C++ device xrt (docs/cpp.md); None where there is none.");
  sub.def(
      "xrt_identity",
      [] {
        const auto identity = [] {
          nb::gil_scoped_release release;
          return xrt::open_first_npu()->identity();
        }();
        nb::dict d;
        d["generation"] = arch::device_geometry(identity.generation).name;
        d["name"] = identity.name;
        d["bdf"] = identity.bdf;
        d["pci_id"] = identity.pci_id;
        return d;
      },
      "Which NPU the C++ device xrt opens.");
  sub.def(
      "open_python",
      [](nb::object backend) {
        return std::make_shared<SharedDevice>(open_python_device(std::move(backend)));
      },
      nb::arg("backend"), "A device that is implemented in Python (npu/device_contract.py).");
}

}  // namespace npu::python
