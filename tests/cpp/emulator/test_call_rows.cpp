// Calls in rows (devices/emulator/replay/call_rows.h). Asserts of runs, done for real while they
// are recorded, that replays leave the same memories and argument, alone and beside another run;
// that calls of cores that take turns become one action per core, results that are sent on
// included; that they keep their order where a core writes what another one touches, or may in
// another run, and where another one does not make them fewer.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "arch/geometry.h"
#include "devices/emulator/array.h"
#include "devices/emulator/replay/joint_replay.h"

using namespace npu;
using emulator::ActionLog;
using emulator::Argument;
using emulator::Walk;

namespace {

constexpr size_t kBytes = 64;  // of a block, of sums and of a result

consteval kernels::Operand read(const char* name) {
  kernels::Operand operand = kernels::buffer(name, int32_t(kBytes));
  operand.read_only = true;
  return operand;
}
constexpr kernels::Declaration kWeighs = kernels::resolved(
    "weigh", {.operands = {read("block"), kernels::buffer("sums", int32_t(kBytes))}});
constexpr kernels::Declaration kSends = kernels::resolved(
    "send", {.operands = {read("sums"), kernels::buffer("out", int32_t(kBytes)).overwritten()}});

int joined = 0;  // calls that were made beside those of another run

bool weigh(const KernelArgument* a) {
  for (size_t i = 0; i < kBytes; ++i) {
    const int sum = 3 * static_cast<int>(a[1].data[i]) + static_cast<int>(a[0].data[i]);
    a[1].data[i] = static_cast<std::byte>(sum + 1);
  }
  return true;
}
bool weigh_jointly(const KernelArgument* const* calls, int count, uint32_t times, int64_t stride) {
  if (count == 1) return false;
  for (int i = 0; i < count; ++i) {
    std::array<KernelArgument, 2> call = {calls[i][0], calls[i][1]};
    for (uint32_t t = 0; t < times; ++t, call[0].data += stride) weigh(call.data());
  }
  joined += static_cast<int>(times) * (count - 1);
  return true;
}
bool send(const KernelArgument* a) {
  std::memcpy(a[1].data, a[0].data, kBytes);
  return true;
}

// sums = 3 sums + block x + value.
constexpr kernels::Declaration kScales = kernels::resolved(
    "scale", {.operands = {read("block"), read("x"), kernels::buffer("sums", int32_t(kBytes)),
                           kernels::integer("value", 0, 1 << 20)}});
bool scale(const KernelArgument* a) {
  for (size_t i = 0; i < kBytes; ++i) {
    const int product = static_cast<int>(a[0].data[i]) * static_cast<int>(a[1].data[i]);
    const auto sum = 3 * static_cast<int64_t>(a[2].data[i]) + product + a[3].value;
    a[2].data[i] = static_cast<std::byte>(sum);
  }
  return true;
}
const emulator::CallAction::Function kWeigh = HostKernel{&kWeighs, weigh, weigh_jointly},
                                     kSend = HostKernel{&kSends, send, nullptr},
                                     kScale = HostKernel{&kScales, scale, nullptr};

constexpr size_t kCores = 3, kBlocks = 64, kResults = 32;
// Of a core's memory, of 1 KiB.
constexpr size_t kSums = 0, kOut = 128, kStaged = 256, kOwn = 1024;

// Cores with memories in a tile, weights that they read where they lie, and results of each.
struct Cores {
  Cores() : Cores(nullptr) {}
  // For another run of the same cores, with the same weights.
  explicit Cores(const Cores* other)
      : memories(other ? other->memories
                       : std::make_shared<emulator::TileMemories>(arch::device_geometry("npu2"))),
        weights(kBlocks * kBytes),
        results(kCores * kResults * kBytes) {
    std::mt19937 random(3);
    for (std::byte& byte : weights) byte = static_cast<std::byte>(random());
    for (std::byte& byte : memory()) byte = static_cast<std::byte>(random());
    before = {memory().begin(), memory().end()};
    log.emplace(arguments(results), *emulator::argument_shapes(arguments(results)), 1, uses,
                size_t{1} << 20);
  }
  std::span<std::byte> memory() { return memories->of(2).first(kCores * kOwn); }
  std::byte* own(size_t core, size_t at) { return &memory()[core * kOwn + at]; }
  std::vector<Argument> arguments(std::vector<std::byte>& out) {
    return {{weights.data(), weights.size(), false}, {out.data(), out.size(), true}};
  }

  void call(const emulator::CallAction::Function& function, size_t core, std::byte* in,
            std::byte* out) {
    call(function, core, {{in, kBytes, 0}, {out, kBytes, 0}});
  }
  void call(const emulator::CallAction::Function& function, size_t core,
            const std::vector<KernelArgument>& operands) {
    const HostKernel& kernel = *function.target<HostKernel>();
    log->call(function, *kernel.declaration, operands, modes[core]);
    kernel.run(operands.data());
  }
  void weigh(size_t core, size_t block) {
    call(kWeigh, core, &weights[block * kBytes], own(core, kSums));
  }
  // By places of the weights; packed: their form that calls share, if any.
  void scale(size_t block, size_t x, int64_t value = 0, PackedOperand* packed = nullptr) {
    const auto at = [&](size_t i) { return &weights[i * kBytes]; };
    call(kScale, 0,
         {{at(block), kBytes, 0, packed},
          {at(x), kBytes, 0},
          {own(0, kSums), kBytes, 0},
          {nullptr, 0, value}});
  }
  void send(size_t core, size_t result, uint32_t patch = 0) {
    call(kSend, core, own(core, kSums), own(core, kOut));
    move(own(core, kStaged), own(core, kOut));
    move(&results[(core * kResults + result) * kBytes], own(core, kStaged), patch);
  }
  void move(std::byte* to, std::byte* from, uint32_t patch = 0) {
    log->move(Walk::linear(from), Walk::linear(to), kBytes / 4, 0, patch);
    std::memmove(to, from, kBytes);
  }

  size_t count() {
    size_t all = 0;
    for (const emulator::Phase& phase : log->phases()) {
      for (const emulator::Lane& lane : phase) all += lane.actions.size();
    }
    return all;
  }
  // The actions of a replay, which has to leave what the run has left.
  size_t replay() {
    auto made = std::make_shared<emulator::Recording>();
    auto [phases, end] = log->take_phases(patches);
    made->phases = emulator::PackedPhases(std::move(phases));
    made->operands = log->take_operands();
    made->arguments = *argument_shapes(arguments(results));
    made->last.phase = end;
    recording = made;
    const std::vector left(memory().begin(), memory().end());
    std::vector<std::byte> out(results.size());
    std::ranges::copy(before, memory().begin());
    run({{recording, &out, nullptr}});
    CHECK(std::ranges::equal(memory(), left));
    CHECK(out == results);
    size_t all = 0;
    for (size_t i = 0; i < made->phases.size(); ++i) {
      for (const emulator::PackedLane& lane : made->phases[i]) all += lane.actions.size();
    }
    return all;
  }
  struct Beside {
    std::shared_ptr<const emulator::Recording> recording;
    std::vector<std::byte>* results;
    const emulator::OwnMemory* memory;
  };
  // Beside each other, each with results and memory of its own.
  void run(const std::vector<Beside>& runs) {
    std::optional<emulator::JointReplay> all;
    for (const Beside& one : runs) {
      emulator::Replay next(one.recording, arguments(*one.results),
                            std::vector<int64_t>(uses.size()), one.memory);
      all ? all->add(std::move(next)) : void(all.emplace(std::move(next)));
    }
    CHECK(all->resume([] { return false; }));
  }

  std::shared_ptr<emulator::TileMemories> memories;
  std::vector<std::byte> weights, results, before;
  std::array<CoreState, kCores> modes;
  std::vector<emulator::PatchUse> uses = std::vector<emulator::PatchUse>(2);
  emulator::Patches patches{{false, false}};
  std::optional<ActionLog> log;
  std::shared_ptr<const emulator::Recording> recording;
};

// Two cores in turns of two blocks, of four or five for each result.
void take_turns(Cores& run, size_t count, size_t of_one, uint32_t patch, uint32_t other_patch) {
  std::array<size_t, 2> next = {0, 0};
  const auto turn = [&](size_t core) {
    for (size_t i = 0; i < 2 && next[core] < count * of_one; ++i) {
      run.weigh(core, 20 * core + next[core]);
      if (++next[core] % of_one == 0) {
        run.send(core, next[core] / of_one - 1, core == 0 ? patch : other_patch);
      }
    }
  };
  while (next[1] < count * of_one) {
    turn(0);
    turn(1);
  }
}

}  // namespace

TEST_CASE("calls of cores that take turns become rows") {
  for (const size_t of_one : {4, 5}) {
    for (const size_t count : {3, 4}) {
      CAPTURE(of_one);
      CAPTURE(count);
      Cores run;
      take_turns(run, count, of_one, 1, 1);
      // Of each core its rows, the last of which stays in the core; and that one's two copies.
      CHECK(run.replay() <= 2 * 3 + 2 * 2 + 1);
      CHECK(run.patches.fixed() == std::set<uint32_t>{1});
    }
  }
  Cores other;
  take_turns(other, 4, 4, 1, 2);
  CHECK(other.replay() <= 2 * 3 + 2 * 2 + 1);
  CHECK(other.patches.fixed() == std::set<uint32_t>{1, 2});
}

TEST_CASE("calls that differ in more than one place make no rows") {
  const auto actions = [](const auto& turn) {
    Cores run;
    for (size_t i = 0; i < 8; ++i) {
      turn(run, i);
      run.call(kSend, 0, run.own(0, kSums), run.own(0, kOut));
    }
    return run.replay();
  };
  std::array<std::byte, 16> forms;
  const auto form = [&](size_t i) { return reinterpret_cast<PackedOperand*>(&forms[i]); };
  CHECK(actions([&](Cores& run, size_t i) { run.scale(i, 9, 7, form(0)); }) == 1);
  CHECK(actions([&](Cores& run, size_t i) { run.scale(9, i, 7, form(0)); }) == 1);
  CHECK(actions([&](Cores& run, size_t i) { run.scale(i, 9, 7, form(i)); }) == 16);
  CHECK(actions([&](Cores& run, size_t i) { run.scale(i, 9, int64_t(i)); }) == 16);
  CHECK(actions([&](Cores& run, size_t i) { run.scale(i, i + 20); }) == 16);
  CHECK(actions([&](Cores& run, size_t i) {  // two blocks, then another x for the same two
          run.scale(0, i);
          run.scale(1, i);
        }) == 16);
  CHECK(actions([&](Cores& run, size_t i) {  // which lies as far away as a third block
          run.scale(0, 2 * i);
          run.scale(1, 2 * i);
          run.scale(0, 2 * i + 2);
        }) > 16);
}

TEST_CASE("rows of phases that are joined keep what follows them") {
  Cores run;
  for (const size_t core : {0, 1}) {
    run.log->begin_lanes(1);
    {
      const ActionLog::LaneScope lane(&*run.log, 0);
      for (size_t i = 0; i < 6; ++i) {
        run.weigh(core, i);
        run.call(kSend, core, run.own(core, kSums), run.own(core, kOut));
      }
    }
    run.log->end_lanes();
  }
  CHECK(run.replay() == 2);
  CHECK(run.recording->phases.size() == 1);
}

TEST_CASE("lanes of few actions that stand for many calls keep a thread each") {
  const auto lanes = [](size_t count) {
    Cores run;
    run.log->begin_lanes(2);
    for (const size_t core : {0, 1}) {
      const ActionLog::LaneScope lane(&*run.log, core);
      for (size_t i = 0; i < count; ++i) run.weigh(core, i);
    }
    run.log->end_lanes();
    CHECK(run.replay() == 2);
    return run.recording->phases[0].size();
  };
  CHECK(lanes(1) == 1);
  CHECK(lanes(20) == 2);
}

TEST_CASE("calls keep their order where a core writes what another one touches") {
  const auto actions = [](const auto& turn) {
    Cores run;
    for (size_t i = 0; i < 12; ++i) turn(run, i);
    return run.replay();
  };
  const auto alone = [](Cores& run, size_t i) {
    run.weigh(0, 2 * i);
    run.weigh(1, 2 * i + 1);
  };
  CHECK(actions(alone) == 2);
  CHECK(actions([](Cores& run, size_t i) {  // a row, in this order
          run.weigh(0, i);
          run.call(kWeigh, 1, run.own(0, kSums), run.own(1, kSums));
        }) == 1);
  CHECK(actions([](Cores& run, size_t i) {
          run.weigh(0, i);
          run.call(kWeigh, 1, &run.weights[i * kBytes], run.own(0, kSums + kBytes - 1));
        }) == 24);
  CHECK(actions([](Cores& run, size_t i) {
          run.call(kWeigh, 0, run.own(1, kSums), run.own(0, kSums));
          run.weigh(1, i);
        }) > 1);
  // Where another order saves less than half of the actions.
  Cores few;
  for (const size_t i : {0, 1}) {
    few.weigh(0, i);
    few.call(kSend, 1, few.own(1, kSums), few.own(1, kOut + 4 * i));
  }
  CHECK(few.replay() == 4);
}

TEST_CASE("what follows each row is one call that other runs do not share") {
  Cores twice, shared;
  for (size_t i = 0; i < 12; ++i) {
    twice.weigh(0, i);
    for (const int n : {0, 1}) {
      CAPTURE(n);
      twice.call(kWeigh, 0, twice.own(0, kOut), twice.own(0, kSums));
    }
    shared.weigh(0, i);
    shared.call(kWeigh, 0, &shared.weights[i * kBytes], shared.own(0, kOut));
  }
  CHECK(twice.replay() == 24);
  CHECK(shared.replay() == 24);
}

TEST_CASE("rows of runs beside each other are made row by row, if they are as many") {
  for (const size_t count : {3, 4}) {  // of the run beside one with 4
    CAPTURE(count);
    Cores one, other(&one);
    take_turns(one, 4, 5, 0, 0);
    one.replay();
    std::ranges::copy(other.before, other.memory().begin());
    for (size_t i = 0; i < kOwn; ++i) *other.own(1, i) ^= std::byte{0x55};
    other.before = {other.memory().begin(), other.memory().end()};
    emulator::OwnMemory own(*one.memories, 1);
    take_turns(other, count, 5, 0, 0);
    other.replay();
    own.serve(*other.recording);
    std::ranges::copy(one.before, one.memory().begin());
    std::vector<std::byte> first(one.results.size()), second = first;
    joined = 0;
    one.run({{one.recording, &first, nullptr}, {other.recording, &second, &own}});
    CHECK(joined == (count == 4 ? 40 : 0));
    CHECK(first == one.results);
    CHECK(second == other.results);
  }
}

TEST_CASE("replays of random runs of several cores leave what the runs have left") {
  std::mt19937 random(11);
  const auto up_to = [&](size_t most) {
    return std::uniform_int_distribution<size_t>(0, most)(random);
  };
  size_t rows = 0;
  for (int round = 0; round < 1500; ++round) {
    Cores run;
    std::array<size_t, kCores> block{}, result{};
    for (size_t& first : block) first = up_to(20);
    const size_t turns = 4 + up_to(30), of_one = 1 + up_to(3), disturbs = up_to(3) * up_to(20);
    const uint32_t patch = uint32_t(up_to(2));
    for (size_t i = 0; i < turns; ++i) {
      const size_t core = up_to(round % 2 == 0 ? 1 : kCores - 1), other = up_to(kCores - 1);
      if (disturbs > 0 && up_to(disturbs) == 0) {
        switch (up_to(3)) {
          case 0:
            run.call(kWeigh, core, run.own(other, kOut), run.own(core, kSums));
            break;
          case 1:
            run.call(kSend, core, run.own(core, kSums), run.own(other, kOut + 4 * up_to(8)));
            break;
          case 2:
            run.move(run.own(core, 4 * up_to(90)), run.own(other, 4 * up_to(90)));
            break;
          case 3:
            block[core] = up_to(kBlocks - 1);
            break;
        }
        continue;
      }
      for (size_t n = 0; n < of_one; ++n) run.weigh(core, block[core]++ % kBlocks);
      if (up_to(9) > 0) run.send(core, result[core]++ % kResults, patch);
    }
    const size_t made = run.count();
    rows += 2 * run.replay() < made;
  }
  CHECK(rows > 150);
}
