// The device's test mode "+replay": before a submission its stream runs on copies of its arguments,
// at register level, until the array can repeat it, and once more. Data memories then are put back;
// the submission is a replay, and its results must be those of that last run.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "devices/emulator/array.h"
#include "devices/emulator/replay/recordings.h"

namespace npu::emulator {

class Rehearsal {
 public:
  // Runs the stream. Large arguments are left alone: nothing is compared then.
  Rehearsal(Array& array, const stream::Stream& stream, std::span<const Argument> arguments,
            Recordings& recordings);
  // After the submission: throws Error(kUnsupported) for an argument that differs.
  void compare(std::span<const Argument> arguments) const;

 private:
  using Contents = std::vector<std::vector<std::byte>>;
  static Contents memories(Array& array);  // of all tiles

  Contents wanted_;  // empty: nothing to compare
};

}  // namespace npu::emulator
