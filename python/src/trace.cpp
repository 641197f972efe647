// A recorded timeline as Python objects: events as raw records that npu/perf/trace.py views with a
// structured dtype, tracks, kernels and routes as lists.
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <memory>

#include "devices/emulator/timed_trace.h"
#include "report.h"

namespace nb = nanobind;

namespace npu::python {

namespace {

using emulator::TraceEvent;

// npu/perf/trace.py states the same layout.
static_assert(sizeof(TraceEvent) == 48 && offsetof(TraceEvent, memory_wait) == 16 &&
              offsetof(TraceEvent, bytes) == 24 && offsetof(TraceEvent, track) == 32 &&
              offsetof(TraceEvent, other) == 36 && offsetof(TraceEvent, bd) == 40 &&
              offsetof(TraceEvent, kind) == 42);

nb::dict track_dict(const emulator::Recorder::Track& track) {
  nb::dict d;
  d["name"] = track.name;
  d["col"] = track.col;
  d["row"] = track.row;
  nb::list cycles;
  for (const double value : track.cycles) cycles.append(value);
  d["cycles"] = cycles;
  d["memory_wait"] = track.memory_wait;
  return d;
}

}  // namespace

nb::dict trace_dict(std::shared_ptr<emulator::Recorder> recorder) {
  using Keep = std::shared_ptr<emulator::Recorder>;
  nb::dict d;
  nb::list tracks;
  for (const auto& track : recorder->tracks()) tracks.append(track_dict(track));
  d["tracks"] = tracks;
  d["kernels"] = nb::cast(recorder->kernels());
  d["routes"] = nb::cast(recorder->routes());
  d["left_out"] = recorder->left_out();
  d["first_left_out"] = recorder->first_left_out();
  const std::vector<TraceEvent>& events = recorder->events();
  nb::capsule owner(new Keep(recorder), [](void* p) noexcept { delete static_cast<Keep*>(p); });
  d["events"] = nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>>(
      reinterpret_cast<const uint8_t*>(events.data()), {events.size() * sizeof(TraceEvent)}, owner);
  return d;
}

}  // namespace npu::python
