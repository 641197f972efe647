// npu._npu.operations: the registry of array operations (runtime/operation_type.h).
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <vector>

#include "arrays.h"
#include "bindings.h"
#include "runtime/operation_type.h"
#include "runtime/overlay.h"
#include "runtime/plain_operation.h"

namespace nb = nanobind;

namespace npu::python {

namespace {

// An argument of an operation, where it lies if that is possible. A strided one is copied, and
// cannot be a result.
HostArray host_array(nb::handle array, const char* function, std::vector<Input>& keep) {
  Output out;
  if (nb::try_cast(array, out, false)) {
    keep.emplace_back(out);
    return {reinterpret_cast<std::byte*>(out.data()), out.size()};
  }
  nb::ndarray<uint8_t, nb::ndim<1>, nb::ro, nb::device::cpu> strided;
  Input in;
  if (!nb::try_cast(array, strided, false) || !nb::try_cast(array, in)) {
    fail(ErrorKind::kArgument, "[%s] an argument is %s; pass uint8 arrays of one dimension",
         function, described(array).c_str());
  }
  keep.push_back(in);
  auto* data = reinterpret_cast<std::byte*>(const_cast<uint8_t*>(in.data()));
  return {data, in.size(), false};
}

nb::dict type_dict(const OperationType& type) {
  nb::dict d;
  d["name"] = type.name;
  d["summary"] = type.summary;
  nb::list fields;
  for (const RequestField& field : type.fields) {
    nb::dict f;
    f["name"] = field.name;
    f["meaning"] = field.meaning;
    f["default"] = field.fallback == RequestField::kRequired ? nb::none()
                                                             : nb::object(nb::int_(field.fallback));
    fields.append(f);
  }
  d["fields"] = fields;
  nb::dict examples;
  for (const auto& [name, values] : type.examples) {
    nb::dict request;
    for (const RequestField& field : type.fields) {
      if (const auto found = values.find(field.name); found != values.end()) {
        request[field.name] = found->second;
      }
    }
    examples[name] = request;
  }
  d["examples"] = examples;
  return d;
}

nb::dict submission_dict(const Submission& submission) {
  nb::dict d;
  d["stream"] = nb::bytes(submission.words.data(), submission.words.size() * 4);
  d["count"] = submission.count;
  nb::list arguments;
  for (const ArgumentLayout& argument : submission.arguments) {
    nb::dict a;
    a["name"] = argument.name;
    a["bytes"] = argument.bytes;
    a["written"] = writes(argument.access);
    a["contents"] = nb::bytes(argument.contents.data(), argument.contents.size());
    arguments.append(a);
  }
  d["arguments"] = arguments;
  return d;
}

}  // namespace

void init_operations(nb::module_& m) {
  nb::module_ sub = m.def_submodule("operations", "The registry of array operations.");
  nb::class_<PlainOperation>(sub, "PlainOperation", "An operation whose arguments are arrays.")
      .def("__init__",
           [](PlainOperation* self, std::shared_ptr<SharedDevice> device, const nb::bytes& config,
              const std::string& name) {
             Configuration configuration = Configuration::parse(bytes_of(config));
             const OperationType& type = operation_type(name);
             const nb::gil_scoped_release nogil;  // who holds the device may wait for the GIL
             new (self) PlainOperation(std::move(device), std::move(configuration), type);
           })
      .def(
          "run",
          [](PlainOperation& self, const Request::Values& values, const nb::sequence& arrays) {
            const Request request(self.type(), values);
            std::vector<HostArray> memory;
            std::vector<Input> keep;
            for (nb::handle array : arrays) {
              memory.push_back(host_array(array, self.type().name, keep));
            }
            return run_report([&] { return self.run(request, memory); });
          },
          nb::arg("request"), nb::arg("arrays"),
          "arrays: uint8 views in the order of the operation's arguments; results must be "
          "writable and C-contiguous, and share no memory with another argument.")
      .def("counters", [](const PlainOperation& self) { return counters_dict(self); });
  sub.def("types", [] {
    nb::list list;
    for (const OperationType* type : operation_types()) list.append(type_dict(*type));
    return list;
  });
  sub.def(
      "submissions",
      [](const std::string& name, const nb::bytes& config, const Request::Values& request,
         SharedDevice* device) {
        const OperationType& type = operation_type(name);
        Configuration configuration = Configuration::parse(bytes_of(config));
        if (device != nullptr) {
          const nb::gil_scoped_release nogil;
          const std::unique_lock guard(device->mutex);
          configuration = with_images(*device->device, std::move(configuration));
        }
        nb::list list;
        for (const Submission& one : type.submissions(configuration, Request(type, request))) {
          list.append(submission_dict(one));
        }
        return list;
      },
      nb::arg("name"), nb::arg("config"), nb::arg("request"), nb::arg("device") = nb::none(),
      "The streams that an operation submits for a request, each with its arguments and how "
      "often. device: whose programs they load; None: stand-ins for them.");
}

}  // namespace npu::python
