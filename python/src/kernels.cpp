// npu._npu.kernels: the kernels of aie_kernels/ as they declare themselves, for designs
// (designs/kernel.py), and calls of their host builds, with which generated ones are compared.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "bindings.h"
#include "error.h"
#include "kernels/call.h"
#include "kernels/kernel.h"
#include "kernels/registry.h"

namespace nb = nanobind;

namespace npu::python {

namespace {

using kernels::Declaration;
using kernels::Element;
using kernels::Operand;

// The type of a buffer's elements in a design. BFP16 blocks are bytes there.
const char* dtype_of(Element element) {
  switch (element) {
    case Element::kInt8:
      return "int8";
    case Element::kUint8:
    case Element::kBfp16:
      return "uint8";
    case Element::kInt16:
      return "int16";
    case Element::kInt32:
      return "int32";
    case Element::kFloat32:
      return "float32";
    case Element::kBfloat16:
      return "bfloat16";
  }
  return "";
}

const Declaration& find(const std::string& name, const std::string& generation) {
  const arch::Geometry& device = arch::device_geometry(generation);
  const Declaration* found = kernels::find_declaration(name, device.generation);
  if (found == nullptr) {
    fail(ErrorKind::kKernel, "[kernels] %s has no kernel \"%s\"; kernels.list(\"%s\") names all",
         device.name, name.c_str(), device.name);
  }
  return *found;
}

std::vector<std::string> list(const std::string& generation) {
  std::vector<std::string> names;
  for (const Declaration* d : kernels::declarations(arch::device_geometry(generation).generation)) {
    names.emplace_back(d->name);
  }
  return names;
}

nb::dict operand_dict(const Operand& operand) {
  nb::dict d;
  d["name"] = operand.name;
  d["buffer"] = operand.buffer;
  if (operand.buffer) {
    d["dtype"] = dtype_of(operand.element);
    d["block_float"] = operand.element == Element::kBfp16;
    d["read_only"] = operand.read_only;
    d["alignment"] = int{operand.alignment};
    d["count"] = operand.size.text ? std::string(operand.size.text)
                                   : std::to_string(operand.size.terms[0].constant);
  } else {
    d["dtype"] = "int32";
    d["min"] = operand.min;
    d["max"] = operand.max;
    d["step"] = operand.step;
  }
  return d;
}

nb::dict describe(const std::string& name, const std::string& generation) {
  const Declaration& kernel = find(name, generation);
  nb::list operands;
  for (int i = 0; i < kernel.count; ++i) operands.append(operand_dict(kernel.operands[i]));
  nb::dict d;
  d["name"] = kernel.name;
  d["operands"] = operands;
  d["product"] = kernel.product != kernels::Product::kNone;
  d["in_place"] = kernel.in_place;
  d["costed"] = kernel.cycles != nullptr;
  return d;
}

// Whether every integer that a size depends on is known.
bool known(const kernels::Size& size, const std::vector<std::optional<int64_t>>& integers) {
  for (int i = 0; i < size.used; ++i) {
    for (const int8_t factor : size.terms[i].factors) {
      if (factor >= 0 && !integers[static_cast<size_t>(factor)]) return false;
    }
  }
  return true;
}

// Elements of each buffer of a call with these integers; None: an integer is not known before it.
std::vector<std::optional<int64_t>> counts(const std::string& name, const std::string& generation,
                                           const std::vector<std::optional<int64_t>>& integers) {
  const Declaration& kernel = find(name, generation);
  if (integers.size() != static_cast<size_t>(kernel.integers)) {
    fail(ErrorKind::kKernel, "[%s] has %d integer operands, %zu were given", kernel.name,
         kernel.integers, integers.size());
  }
  kernels::Integers values{};
  for (size_t i = 0; i < integers.size(); ++i) values[i] = integers[i].value_or(0);
  std::vector<std::optional<int64_t>> all;
  size_t integer = 0;
  for (int i = 0; i < kernel.count; ++i) {
    const Operand& operand = kernel.operands[i];
    if (!operand.buffer) {
      if (integers[integer]) kernels::check_integer(kernel, operand, values[integer]);
      ++integer;
    } else if (known(operand.size, integers)) {
      const int64_t count = operand.size.value(values.data());
      all.push_back(operand.element == Element::kBfp16 ? kernels::bytes_of(operand.element, count)
                                                       : count);
    } else {
      all.push_back(std::nullopt);
    }
  }
  for (const auto& value : integers) {
    if (!value) return all;
  }
  kernels::check_multiples(kernel, values);
  return all;
}

// As much alignment as any operand needs.
struct alignas(64) Line {
  std::byte bytes[64];
};

// Calls the host build in `silicon` on a core in its reset state; what it leaves in each buffer.
nb::list call(const std::string& name, const std::string& generation,
              const nb::sequence& arguments) {
  const Declaration& kernel = find(name, generation);
  const HostKernel build = find_host_kernel(
      kernel.name, arch::device_geometry(generation).generation, Arithmetic::kSilicon);
  std::vector<std::vector<Line>> buffers;
  std::vector<KernelArgument> operands;
  for (const nb::handle argument : arguments) {
    if (nb::isinstance<nb::int_>(argument)) {
      operands.push_back({.value = nb::cast<int64_t>(argument)});
      continue;
    }
    const auto given = nb::cast<nb::bytes>(argument);
    std::vector<Line>& lines = buffers.emplace_back(given.size() / sizeof(Line) + 1);
    std::memcpy(lines.data(), given.c_str(), given.size());
    operands.push_back({.data = lines.data()->bytes, .bytes = static_cast<uint32_t>(given.size())});
  }
  CoreState core;
  build(operands, core);
  nb::list left;
  for (const KernelArgument& operand : operands) {
    if (operand.data != nullptr) left.append(nb::bytes(operand.data, operand.bytes));
  }
  return left;
}

}  // namespace

void init_kernels(nb::module_& m) {
  nb::module_ sub = m.def_submodule("kernels", "The kernels of aie_kernels/.");
  // Signatures are spelled out because `list` hides the type of that name in the stub.
  sub.def("list", &list, nb::arg("generation"),
          nb::sig("def list(generation: str) -> collections.abc.Sequence[str]"));
  sub.attr("SOURCE_HASH") = NPU_KERNEL_HASH;  // of all sources in aie_kernels/
  sub.def("call", &call, nb::arg("name"), nb::arg("generation"), nb::arg("arguments"),
          nb::sig("def call(name: str, generation: str, arguments: "
                  "collections.abc.Sequence[bytes | int]) -> collections.abc.Sequence[bytes]"));
  sub.def("describe", &describe, nb::arg("name"), nb::arg("generation"));
  sub.def("counts", &counts, nb::arg("name"), nb::arg("generation"), nb::arg("integers"),
          nb::sig("def counts(name: str, generation: str, integers: "
                  "collections.abc.Sequence[int | None]) -> collections.abc.Sequence[int | None]"));
}

}  // namespace npu::python
