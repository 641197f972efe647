// The arguments by which Python describes a model that the array runs whole: to
// npu._npu.ops.Decoder and npu._npu.ops.Prefill.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "arrays.h"
#include "bindings.h"
#include "block_format.h"
#include "error.h"
#include "ops/decoder/decoder_workspace.h"

namespace npu::python {

using Floats =
    nanobind::ndarray<const float, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
using Pages =
    nanobind::ndarray<const int64_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
// Region, byte, rows, columns, format.
using ModelSegment = std::tuple<int, int64_t, int64_t, int64_t, std::string>;
// Window (0: none), then the segments of q k v, output, gate and up, down.
using ModelLayer = std::tuple<int64_t, std::vector<ModelSegment>, std::vector<ModelSegment>,
                              std::vector<ModelSegment>, std::vector<ModelSegment>>;

inline std::span<const float> span_of(const Floats& array) { return {array.data(), array.size()}; }

// A model in the terms of ops, and what it points to.
struct ModelArguments {
  ops::DecoderModel model;
  ops::DecoderNorms pointers;
  std::vector<std::span<const std::byte>> memory;
  std::vector<Input> regions;
  std::vector<Floats> norms;

  ModelArguments(const nanobind::dict& shape, const std::vector<ModelLayer>& layers,
                 const std::vector<ModelSegment>& head, std::vector<Input> regions,
                 std::vector<Floats> norms);
};

// What an operation of the array keeps alive.
template <typename Native>
struct HeldModel {
  std::unique_ptr<ModelArguments> arguments;
  std::unique_ptr<Native> native;

  static std::unique_ptr<HeldModel> make(std::shared_ptr<SharedDevice> device,
                                         const nanobind::bytes& config, const nanobind::dict& shape,
                                         const std::vector<ModelLayer>& layers,
                                         const std::vector<ModelSegment>& head,
                                         std::vector<Input> regions, std::vector<Floats> norms) {
    auto held = std::make_unique<HeldModel>();
    held->arguments =
        std::make_unique<ModelArguments>(shape, layers, head, std::move(regions), std::move(norms));
    const ModelArguments& of = *held->arguments;
    Configuration configuration = Configuration::parse(bytes_of(config));
    const nanobind::gil_scoped_release nogil;  // who holds the device may wait for the GIL
    held->native = std::make_unique<Native>(std::move(device), std::move(configuration), of.model,
                                            of.memory, of.pointers);
    return held;
  }
};

}  // namespace npu::python
