// Words of data memories that decide what cores do: they bound loops or are integers of kernels.
// Which words they were before a recorded run is found out in its actions, from the last one to the
// first: what a copy brought was a word elsewhere, what the stream wrote is the same in every run.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "devices/emulator/replay/action_log.h"
#include "devices/emulator/replay/word_map.h"

namespace npu::emulator {

// Such words, side by side where they follow each other: they are compared before every replay,
// when none of them is in a cache.
class SteeringRuns {
 public:
  SteeringRuns() = default;
  explicit SteeringRuns(std::span<const SteeringWord> words);  // in the order of their places
  // Whether they have their values, in arguments that are there now (by Place::base - 1).
  bool hold(std::span<std::byte* const> arguments) const;
  bool in_memory() const;  // one of them, at an absolute place
  size_t bytes() const;

 private:
  struct Run {
    Place place;
    size_t words;
  };
  std::vector<Run> runs_;
  std::vector<uint32_t> values_;  // of one run after the other
};

// Of a run's phases, as they were recorded. Nothing if a kernel computed one of them. *arguments:
// bases (Place) of those that such words lie in or pass through.
std::optional<std::vector<SteeringWord>> steering_words(std::span<const Phase> phases,
                                                        std::vector<uint32_t>* arguments = nullptr);

}  // namespace npu::emulator
