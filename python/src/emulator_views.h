// What the bindings of the emulated array share: Python's views of tile memory, and references that
// C++ holds to Python's objects.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>

#include "devices/emulator/array.h"

namespace npu::python {

// A writable view of tile memory that keeps the memory alive as long as Python holds it.
inline nanobind::object view_of(std::byte* data, size_t bytes,
                                const std::shared_ptr<void>& memory) {
  using Keep = std::shared_ptr<void>;
  nanobind::capsule owner(new Keep(memory), [](void* p) noexcept { delete static_cast<Keep*>(p); });
  nanobind::ndarray<nanobind::numpy, uint8_t, nanobind::ndim<1>> array(
      reinterpret_cast<uint8_t*>(data), {bytes}, owner);
  nanobind::object numpy_array = nanobind::cast(array);
  return nanobind::steal(PyMemoryView_FromObject(numpy_array.ptr()));
}

// A reference that is dropped with the GIL held, wherever its owner dies.
inline std::shared_ptr<nanobind::object> hold(const nanobind::object& object) {
  return {new nanobind::object(object), [](nanobind::object* reference) {
            nanobind::gil_scoped_acquire gil;
            delete reference;
          }};
}

void init_emulator_cores(nanobind::class_<emulator::Array>& array);  // emulator_cores.cpp

}  // namespace npu::python
