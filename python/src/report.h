// RunReport and recorded timelines as Python dicts; npu/emulator.py and npu/perf/trace.py wrap
// them.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "devices/emulator/timed_trace.h"
#include "runtime/run_report.h"
#include "runtime/timing.h"

namespace npu::python {

nanobind::dict report_dict(const RunReport& report);
nanobind::dict timing_dict(const RunTiming& timing);
nanobind::dict trace_dict(std::shared_ptr<emulator::Recorder> recorder);

}  // namespace npu::python
