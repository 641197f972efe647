// Calls of a lane in rows: fewer actions that do the same. The scheduler takes cores in turns of a
// few objects; a replay makes a core's calls one after the other where no other core has to do
// with what they touch, so that more of them are repeats of one (CallAction::times), and what
// follows each group of repeats, such as sending a result on, becomes part of that action
// (CallAction::next).
#pragma once

#include "devices/emulator/replay/action_log.h"

namespace npu::emulator {

// After forward_results(): calls whose results go to arguments differ in where alone. Traces of
// calls are void then.
void put_calls_in_rows(Lane& lane);

}  // namespace npu::emulator
