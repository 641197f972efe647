// The extension module npu._npu: error translation and the list of topics.
#include <nanobind/nanobind.h>

#include <exception>

#include "bindings.h"
#include "error.h"

namespace nb = nanobind;

namespace {

// npu::Error -> the Python class for its kind (npu/errors.py), with the kind's name attached.
void translate(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const npu::Error& error) {
    nb::object make = nb::module_::import_("npu.errors").attr("make_error");
    nb::object exception = make(npu::kind_name(error.kind()), error.what());
    PyErr_SetObject(exception.type().ptr(), exception.ptr());
  }
}

}  // namespace

NB_MODULE(_npu, m) {
  m.attr("version") = NPU_VERSION;
  nb::register_exception_translator(translate);
  npu::python::init_arch(m);
  npu::python::init_stream(m);
  npu::python::init_emulator(m);
  npu::python::init_device(m);
  npu::python::init_ops(m);
  npu::python::init_gemv(m);
  npu::python::init_dequant(m);
  npu::python::init_decoder(m);
  npu::python::init_prefill(m);
  npu::python::init_operations(m);
  npu::python::init_attention(m);
  npu::python::init_facts(m);
  npu::python::init_host(m);
  npu::python::init_perf(m);
  npu::python::init_tune(m);
  npu::python::init_gemm_choice(m);
  npu::python::init_kernels(m);
  npu::python::init_weights(m);
}
