// What a recorded run's calls become (devices/emulator/replay/action_log.h). Asserts that calls in
// a row that differ in the place of one operand are one action, whose repetition makes the same
// calls; that another integer, a second operand that moves, a move of what the call writes, another
// stride and anything between begin a new one; that calls share lists of operands as far as they
// agree; that a word which steers is written down once for such calls; which bytes of tiles a run
// has touched.
#include <doctest/doctest.h>

#include <set>
#include <vector>

#include "devices/emulator/array.h"
#include "devices/emulator/replay/joint_replay.h"

using namespace npu;
using emulator::Action;
using emulator::ActionLog;
using emulator::Phase;

namespace {

consteval kernels::Declaration declared() {
  kernels::Operand in = kernels::buffer("in", 8, 4), also = kernels::buffer("also", 8, 4);
  in.read_only = also.read_only = true;
  return kernels::resolved("kernel", {.operands = {in, also, kernels::buffer("out", 8, 4),
                                                   kernels::integer("number", 0, 9)}});
}
constexpr kernels::Declaration kKernel = declared();

using Places = std::vector<int64_t>;  // of a call: in, also, out and the number

std::vector<Places> made;
std::byte memory[4096];

const emulator::CallAction::Function kFunction = [](std::span<const KernelArgument> a, CoreState&) {
  made.push_back({a[0].data - memory, a[1].data - memory, a[2].data - memory, a[3].value});
};

struct Log {
  void call(const Places& places) {
    std::vector<KernelArgument> operands;
    for (size_t i = 0; i < 3; ++i) operands.push_back({memory + places[i], 64, 0});
    operands.push_back({nullptr, 0, places[3]});
    log.call(kFunction, kKernel, operands, core);
    calls.push_back(places);
  }
  // Actions of the run, whose repetition has to make the same calls.
  size_t actions() {
    emulator::Recording recording;
    emulator::Patches patches({});
    recording.phases = emulator::PackedPhases(log.take_phases(patches).first);
    size_t count = 0;
    for (size_t i = 0; i < recording.phases.size(); ++i) {
      for (const emulator::PackedLane& lane : recording.phases[i]) count += lane.actions.size();
    }
    made.clear();
    emulator::JointReplay replay(emulator::Replay(
        std::make_shared<const emulator::Recording>(std::move(recording)), {}, {}));
    CHECK(replay.resume([] { return false; }));
    CHECK(made == calls);
    return count;
  }
  ActionLog log{{}, {}, 1, {}, size_t{1} << 20};
  CoreState core;
  std::vector<Places> calls;
};

}  // namespace

TEST_CASE("calls in a row that differ in one operand's place are one action") {
  Log log;
  for (int64_t i = 0; i < 7; ++i) log.call({640 - 64 * i, 128, 2048, 3});
  CHECK(log.actions() == 1);
  Log same;
  for (int i = 0; i < 3; ++i) same.call({64, 128, 2048, 3});
  CHECK(same.actions() == 1);
}

TEST_CASE("other differences begin another action") {
  const Places first = {0, 128, 2048, 3};
  for (const Places& second :
       std::vector<Places>{{0, 128, 2048, 4}, {64, 192, 2048, 3}, {0, 128, 2112, 3}}) {
    Log log;
    log.call(first);
    log.call(second);
    CHECK(log.actions() == 2);
  }
  Log strides;
  for (const int64_t in : {0, 64, 128, 256, 384}) strides.call({in, 128, 2048, 3});
  CHECK(strides.actions() == 2);
  Log others;
  for (const int64_t in : {0, 64}) others.call({in, 128, 2048, 3});
  others.call({64, 192, 2048, 3});
  CHECK(others.actions() == 2);
  Log between;
  between.call(first);
  between.log.word(memory + 1024, 7);
  between.call({64, 128, 2048, 3});
  CHECK(between.actions() == 3);
}

namespace {

size_t lists_of(const emulator::Lane& lane) {
  std::set<const KernelArgument*> lists;
  for (const emulator::CallAction& call : lane.calls) lists.insert(call.operands);
  return lists.size();
}

}  // namespace

TEST_CASE("calls share a list of operands where only places of those that are read differ") {
  const auto lists = [](const std::vector<Places>& places) {
    Log log;
    for (const Places& call : places) {
      log.call(call);
      log.log.word(memory + 1024, 7);  // so that none joins the one before
    }
    const size_t all = lists_of(log.log.phases()[0][0]);
    CHECK(log.actions() == 2 * places.size());
    return all;
  };
  CHECK(lists({{0, 128, 2048, 3}, {64, 128, 2048, 3}, {640, 128, 2048, 3}}) == 1);
  CHECK(lists({{64, 128, 2048, 3}, {64, 128, 2112, 3}, {64, 64, 2048, 3}, {0, 128, 2112, 3}}) == 2);
  CHECK(lists({{0, 128, 2048, 3}, {0, 128, 2048, 4}, {64, 192, 2048, 3}}) == 2);
  Log joined;  // a shared list, whose calls are one action
  joined.call({0, 128, 2048, 3});
  joined.log.word(memory + 1024, 7);
  for (const int64_t in : {64, 96, 128, 192}) joined.call({in, 128, 2048, 3});
  joined.call({0, 160, 2048, 3});
  CHECK(lists_of(joined.log.phases()[0][0]) == 1);
  CHECK(joined.actions() == 5);
}

TEST_CASE("a word that steers several such calls is one action before them") {
  Log log;
  for (int64_t i = 0; i < 4; ++i) {
    log.log.steers(memory + 1024, 5);
    log.call({64 * i, 128, 2048, 3});
  }
  CHECK(log.log.phases()[0][0].actions.size() == 2);
  Log writes;  // the word, in the result
  for (int64_t i = 0; i < 4; ++i) {
    writes.log.steers(memory + 2052, 5);
    writes.call({64 * i, 128, 2048, 3});
  }
  CHECK(writes.log.phases()[0][0].actions.size() == 8);
}

TEST_CASE("a word that steers is written down again once something may have changed it") {
  const std::byte* word = memory + 1024;
  const auto actions = [&](const auto& write) {
    Log log;
    log.log.steers(word, 5);
    log.call({0, 128, 2048, 3});
    write(log.log);
    log.call({64, 192, 2048, 3});
    log.log.steers(word, 5);
    return log.log.phases()[0][0].actions.size();
  };
  CHECK(actions([](ActionLog& log) { log.word(memory + 1028, 5); }) == 4);  // the next word
  CHECK(actions([](ActionLog& log) { log.word(memory + 1024, 5); }) == 5);
  CHECK(actions([](ActionLog& log) { log.copy(memory + 1020, memory, 8); }) == 5);
  CHECK(actions([](ActionLog& log) { log.copy(memory + 1016, memory, 8); }) == 4);
}

TEST_CASE("a run touches what it moves, between the words of a walk too, and what calls access") {
  std::vector<std::byte> host(1024);
  const emulator::Argument argument{host.data(), host.size(), true};
  const emulator::ArgumentShape shape{host.size(), true, 0, 0};
  Log log;
  ActionLog& run = log.log;
  ActionLog with_argument({&argument, 1}, {&shape, 1}, 1, {}, size_t{1} << 20);
  arch::Bd bd;  // words 0, 4, 8
  bd.wrap[0] = 1;
  bd.step[1] = 4;
  bd.length = 3;
  log.call({64, 128, 2048, 3});
  log.call({256, 128, 2048, 3});
  run.word(memory + 512, 1);
  run.copy(memory + 600, memory + 700, 20);
  run.move(emulator::Walk::linear(memory + 800), emulator::Walk(memory + 900, bd, 3), 3, 0, 0);
  run.end_run();
  run.copy(memory + 1000, memory + 1100, 20);
  const emulator::ByteRanges touched = run.take_touched();
  const auto base = int64_t(reinterpret_cast<intptr_t>(memory));
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (int64_t at = 0; at < int64_t(sizeof memory); ++at) {
    if (!touched.meets({base + at, base + at + 1})) continue;
    if (ranges.empty() || ranges.back().second != at) ranges.emplace_back(at, at);
    ranges.back().second = at + 1;
  }
  CHECK(ranges == std::vector<std::pair<int64_t, int64_t>>{{64, 72},
                                                           {128, 136},
                                                           {256, 264},
                                                           {512, 516},
                                                           {600, 620},
                                                           {700, 720},
                                                           {800, 812},
                                                           {900, 936},
                                                           {2048, 2056}});
  // Nothing of arguments.
  with_argument.copy(host.data() + 4, memory + 8, 4);
  with_argument.end_run();
  const emulator::ByteRanges few = with_argument.take_touched();
  CHECK(few.meets({base + 8, base + 12}));
  const auto in_host = int64_t(reinterpret_cast<intptr_t>(host.data()));
  CHECK(!few.meets({in_host, in_host + 1024}));
}

// The lists of a lane shrink when they are closed; what came while the log was full is not there.
TEST_CASE("a log that was full stays so") {
  std::vector<std::byte> tile(1 << 16);
  ActionLog log({}, {}, 1, {}, 150000);
  size_t copies = 0;
  const auto round = [&](size_t count) {
    log.begin_lanes(1);
    for (const size_t end = copies + count; copies < end; ++copies) {
      const ActionLog::LaneScope scope(&log, 0);
      log.copy(tile.data() + 4 * copies, tile.data() + (1 << 15) + 4 * copies, 4);
    }
    log.end_lanes();
  };
  round(100);
  CHECK(!log.full());
  round(1940);
  CHECK(log.full());
  for (int i = 0; i < 3; ++i) {
    round(100);
    CHECK(log.full());
  }
}
