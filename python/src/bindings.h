// One init function per topic, each in its own file; module.cpp calls them.
#pragma once

#include <nanobind/nanobind.h>

namespace npu::python {

void init_arch(nanobind::module_& m);         // geometry, registers, BD encoding
void init_stream(nanobind::module_& m);       // TXN builder, reader, disassembler, checker
void init_emulator(nanobind::module_& m);     // the public replay interface
void init_device(nanobind::module_& m);       // devices, configurations
void init_ops(nanobind::module_& m);          // gemm
void init_gemv(nanobind::module_& m);         // gemv, added to ops
void init_dequant(nanobind::module_& m);      // dequantisation, added to ops
void init_decoder(nanobind::module_& m);      // a token of a decoder, added to ops
void init_prefill(nanobind::module_& m);      // a chunk of a prompt, added to ops
void init_operations(nanobind::module_& m);   // the registry
void init_attention(nanobind::module_& m);    // jobs of attention
void init_facts(nanobind::module_& m);        // numbers that C++ and Python share
void init_host(nanobind::module_& m);         // host: float32 operations
void init_perf(nanobind::module_& m);         // cost and timing
void init_tune(nanobind::module_& m);         // closed form, many points at a time
void init_gemm_choice(nanobind::module_& m);  // which GEMM configuration runs
void init_kernels(nanobind::module_& m);      // declarations of kernels
void init_weights(nanobind::module_& m);      // stored rows to weight blocks

}  // namespace npu::python
