// Register-level runs beside a replay (rehearsal.h).
#include "devices/emulator/replay/rehearsal.h"

#include <algorithm>
#include <cstring>

#include "error.h"

namespace npu::emulator {

namespace {

constexpr size_t kMaxCopy = size_t{64} << 20;  // bytes of the arguments

}  // namespace

Rehearsal::Rehearsal(Array& array, const stream::Stream& stream,
                     std::span<const Argument> arguments, Recordings& recordings) {
  size_t bytes = 0;
  for (const Argument& argument : arguments) bytes += argument.bytes;
  if (bytes > kMaxCopy) return;
  for (size_t i = 0; i < Recordings::kMostStates + 2; ++i) {
    if (recordings.refused() || recordings.find(array, arguments)) return;
    wanted_.assign(arguments.size(), {});
    std::vector<Argument> copies;
    for (size_t a = 0; a < arguments.size(); ++a) {
      if (arguments[a].bytes > 0) {
        wanted_[a].assign(arguments[a].data, arguments[a].data + arguments[a].bytes);
      }
      copies.push_back({wanted_[a].data(), wanted_[a].size(), arguments[a].writable});
    }
    array.begin(stream, copies, &recordings);
    array.resume(Array::Deadline::max());
  }
}

void Rehearsal::compare(std::span<const Argument> arguments) const {
  for (size_t a = 0; a < wanted_.size(); ++a) {
    const std::vector<std::byte>& wanted = wanted_[a];
    const auto differs = std::ranges::mismatch(wanted, std::span(arguments[a].data, wanted.size()));
    if (differs.in1 == wanted.end()) continue;
    fail(ErrorKind::kUnsupported,
         "[submit] argument %zu differs at byte %td after a replay from what the run at register "
         "level gave; please report it, and set NPU_REPLAY=0",
         a, differs.in1 - wanted.begin());
  }
}

}  // namespace npu::emulator
