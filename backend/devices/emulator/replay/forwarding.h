// Results on their way out. A core's result goes from its memory to the memtile and from there to
// an argument; a replay has the kernel write it there at once, where nothing else reads it on its
// way and the next result takes its place in both memories. What the run leaves is the same.
#pragma once

#include "devices/emulator/replay/action_log.h"

namespace npu::emulator {

// Shortens the ways of a lane's results, within its phase. Results are written earlier only where
// nothing else of their argument is read or written meanwhile, for which its patches have to stay.
void forward_results(Lane& lane, Patches& patches);

}  // namespace npu::emulator
