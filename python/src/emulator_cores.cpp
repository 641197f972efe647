// Cores of npu._npu.emulator whose programs are Python callables: npu/emulator_cores.py says what
// they do, one operation at a time.
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <cstring>
#include <utility>

#include "bindings.h"
#include "devices/emulator/array.h"
#include "devices/emulator/driven_core.h"
#include "emulator_views.h"
#include "error.h"

namespace nb = nanobind;

namespace npu::python {

namespace {

using emulator::CoreOperation;

// (code, lock, value, words or None, count, tlast) as emulator_cores.py makes it, or (work's code,
// cycles, name); None: the end.
CoreOperation operation_of(const nb::object& made) {
  CoreOperation operation;
  if (made.is_none()) return operation;
  const auto fields = nb::cast<nb::tuple>(made);
  operation.code = static_cast<CoreOperation::Code>(nb::cast<int>(fields[0]));
  if (operation.code == CoreOperation::Code::kWork) {
    operation.cycles = nb::cast<double>(fields[1]);
    operation.name = nb::cast<std::string>(fields[2]);
    return operation;
  }
  operation.lock = nb::cast<int>(fields[1]);
  operation.value = nb::cast<int>(fields[2]);
  if (!fields[3].is_none()) {
    const auto words = nb::cast<nb::bytes>(fields[3]);
    operation.words.resize(words.size() / 4);
    std::memcpy(operation.words.data(), words.c_str(), operation.words.size() * 4);
  }
  operation.count = nb::cast<size_t>(fields[4]);
  operation.tlast = nb::cast<bool>(fields[5]);
  return operation;
}

void attach_driver(emulator::Array& array, int col, int row, const nb::object& next,
                   const nb::object& place) {
  const std::shared_ptr<nb::object> step = hold(next), where = hold(place);
  emulator::CoreDriver driver;
  driver.next = [step](bool restart, std::span<const uint32_t> result) {
    nb::gil_scoped_acquire gil;
    return operation_of((*step)(
        restart, nb::bytes(reinterpret_cast<const char*>(result.data()), result.size_bytes())));
  };
  driver.place = [where] {
    nb::gil_scoped_acquire gil;
    return nb::cast<std::string>((*where)());
  };
  array.attach(col, row, std::move(driver));
}

// The memory that core (col, row) reaches on a side; None where there is none.
nb::object core_memory(emulator::Array& array, int col, int row, int side) {
  const emulator::Tile* tile =
      emulator::reached_by_core(array, col, row, static_cast<emulator::CoreSide>(side));
  if (tile == nullptr) return nb::none();
  return view_of(tile->memory.data(), tile->memory.size(), tile->memories);
}

void write_memory(emulator::Array& array, int col, int row, uint32_t offset,
                  const nb::bytes& bytes) {
  const std::span<std::byte> memory = array.tile(col, row).memory;
  if (uint64_t{offset} + bytes.size() > memory.size()) {
    fail(ErrorKind::kOutOfRange,
         "[write_memory] bytes %u..%llu of tile (%d,%d) were given; it has %zu", offset,
         static_cast<unsigned long long>(uint64_t{offset} + bytes.size()), col, row, memory.size());
  }
  std::memcpy(memory.data() + offset, bytes.c_str(), bytes.size());
}

}  // namespace

void init_emulator_cores(nb::class_<emulator::Array>& array) {
  array.def("attach_driver", &attach_driver)
      .def("core_memory", &core_memory)
      .def("write_memory", &write_memory);
}

}  // namespace npu::python
