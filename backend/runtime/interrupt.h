// Ctrl-C for every device: a thread that waits for a run checks periodically whether to go on.
#pragma once

#include <functional>

#include "runtime/device.h"

namespace npu {

// Called every few dozen milliseconds by the thread that waits for a run; an exception that it
// throws cancels the run. The Python extension checks signals in it. Set once, before threads run.
void set_interrupt_check(std::function<void()> check);

// Waits until `run` has ended and returns its report. Throws what the run or the check throws.
const RunReport& finish(Run& run);

}  // namespace npu
