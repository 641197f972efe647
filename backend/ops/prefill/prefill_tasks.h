// What the steps of a chunk and of a batch are put together from: sizes in words, BDs, and tasks
// that repeat or follow each other.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "ops/prefill/prefill_plan.h"
#include "rounding.h"
#include "runtime/overlay.h"

namespace npu::ops {

using prefill::Job, prefill::kBBytes, prefill::kRows, prefill::kSlice;

inline constexpr int64_t kBlock = PrefillLayout::kBlock, kBlockWords = kBlock / 4;
inline constexpr int64_t kRecord = prefill::kRecordBytes, kRecordWords = kRecord / 4;
inline constexpr int64_t kPayloadWords = prefill::kAPayload / 4, kBWords = kBBytes / 4;
inline constexpr int64_t kArrayRows = PrefillArray::kRows, kPairs = 2;
inline constexpr int64_t kGroupBlocks = prefill::kGroup / kSlice;
inline constexpr int64_t kMostRepeats = 64;  // of a BD's iteration

// Dimensions from the innermost on; the last needs no size.
struct Dim {
  int64_t step, size = 0;
};

inline arch::Bd bd_of(int64_t length, std::initializer_list<Dim> dims) {
  arch::Bd bd;
  bd.length = static_cast<uint32_t>(length);
  size_t i = 0;
  for (const Dim& dim : dims) {
    bd.step[i] = static_cast<uint32_t>(dim.step);
    if (i < 2) bd.wrap[i] = static_cast<uint32_t>(dim.size);
    ++i;
  }
  return bd;
}

inline int32_t word(int64_t value) { return static_cast<int32_t>(value); }

// One task, or several where a BD cannot repeat so often; `step` words from one repeat to the next.
inline void repeated(std::vector<PrefillTask>& to, PrefillTask task, int64_t repeats,
                     int64_t step) {
  for (int64_t done = 0; done < repeats; done += kMostRepeats) {
    PrefillTask part = task;
    part.repeats = std::min(kMostRepeats, repeats - done);
    part.part = static_cast<double>(done + part.repeats) / static_cast<double>(repeats);
    part.offset += done * step * 4;
    part.bd.iteration_step = static_cast<uint32_t>(step);
    part.bd.iteration_wrap = static_cast<uint32_t>(part.repeats);
    to.push_back(part);
  }
}

// Tasks from number `first` on that end one after the other while their group runs, each when what
// it and those before it move has been moved.
inline void in_order(std::vector<PrefillTask>& tasks, size_t first) {
  const auto words = [](const PrefillTask& task) {
    return static_cast<double>(task.bd.length) * static_cast<double>(task.repeats);
  };
  double all = 0, before = 0;
  for (size_t i = first; i < tasks.size(); ++i) all += words(tasks[i]);
  for (size_t i = first; i < tasks.size(); ++i) {
    before += words(tasks[i]);
    tasks[i].part = before / all;
  }
}

// Tasks from number `first` on that have ended before any key of their group has passed: the
// command processor waits for them first. Waiting for keys, it would not push what cores need
// before those.
inline void before_keys(std::vector<PrefillTask>& tasks, size_t first) {
  for (size_t i = first; i < tasks.size(); ++i) tasks[i].part = 0;
}

inline int64_t objects_of(int64_t bytes) { return divide_up(bytes, int64_t{prefill::kAPayload}); }

inline arch::Bd contiguous(int64_t words) { return bd_of(words, {}); }

// Tasks that load a program with a BD per packet: reset, program memory, enable. Their group ends
// before those of the steps.
inline std::vector<PrefillTask> packet_tasks(const PrefillArray::Program& program) {
  PrefillTask task;
  task.argument = kPrefillHeaders;
  task.group = -1;
  task.program = true;
  std::vector<PrefillTask> out;
  const auto add = [&](int64_t first, int64_t words, int64_t repeats) {
    task.offset = program.offset + first * 4;
    task.bd = contiguous(words);
    repeated(out, task, repeats, words);
  };
  add(0, kSwitchWords, 1);
  add(kSwitchWords, kRoundWords, (program.words - 2 * kSwitchWords) / kRoundWords);
  add(program.words - kSwitchWords, kSwitchWords, 1);
  return out;
}

}  // namespace npu::ops
