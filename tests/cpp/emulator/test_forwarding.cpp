// Results on shorter ways (devices/emulator/replay/forwarding.h). Asserts of random runs, done for
// real while they are recorded, that replays leave the same memory and argument; that a kernel
// writes at once what copies take from memory to memory to an argument, but for the last results in
// each memory; that nothing is written earlier than what reads or writes there, or may do so when
// address patches have moved, and that patches that must not move are said.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "devices/emulator/array.h"
#include "devices/emulator/replay/joint_replay.h"

using namespace npu;
using emulator::ActionLog;
using emulator::Argument;
using emulator::PatchUse;
using emulator::Walk;

namespace {

consteval kernels::Operand bytes_of(const char* name, bool result) {
  kernels::Operand operand = kernels::buffer(name, 64);
  operand.read_only = !result;
  return result ? operand.overwritten() : operand;
}
consteval kernels::Declaration declared(bool filled) {
  kernels::Operand out = bytes_of("out", true);
  out.filled = filled;
  return kernels::resolved("mix", {.operands = {bytes_of("in", false), out}});
}
constexpr kernels::Declaration kMix = declared(true), kPartly = declared(false);

// The result's first bytes follow from the other operand.
template <size_t kBytes>
const emulator::CallAction::Function kFunction = [](std::span<const KernelArgument> a, CoreState&) {
  std::array<uint8_t, 64> in;
  std::memcpy(in.data(), a[0].data, in.size());
  for (size_t i = 0; i < kBytes; ++i) {
    a[1].data[i] = static_cast<std::byte>(3 * in[i] + 7 * in[63 - i] + 1);
  }
};

constexpr size_t kSize = 1024;

// A tile's memory and an argument; what is recorded is done at once.
struct Recorded {
  explicit Recorded(std::vector<bool> moving = std::vector<bool>(3))
      : patches(std::move(moving)), log(arguments(), shapes(), 1, uses, size_t{1} << 20) {
    for (size_t i = 0; i < kSize; ++i) {
      memory[i] = static_cast<std::byte>(5 * i + 11);
      argument[i] = static_cast<std::byte>(13 * i + 1);
    }
    before = {memory, argument};
  }

  std::vector<Argument> arguments() { return {{argument.data(), kSize, true}}; }
  std::vector<emulator::ArgumentShape> shapes() { return *emulator::argument_shapes(arguments()); }

  void call(size_t in, size_t out, const kernels::Declaration& kernel = kMix) {
    const std::vector<KernelArgument> operands = {{&memory[in], 64, 0}, {&memory[out], 64, 0}};
    const auto& function = kernel.operands[1].filled ? kFunction<64> : kFunction<32>;
    log.call(function, kernel, operands, core);
    function(operands, core);
  }
  void copy(std::byte* to, const std::byte* from, size_t bytes = 64, uint32_t to_patch = 0) {
    Walk source = Walk::linear(const_cast<std::byte*>(from)), target = Walk::linear(to);
    log.move(source, target, bytes / 4, 0, to_patch);
    std::memmove(to, from, bytes);
  }
  void read(std::byte* to, const std::byte* from, uint32_t patch) {
    log.move(Walk::linear(const_cast<std::byte*>(from)), Walk::linear(to), 16, patch, 0);
    std::memmove(to, from, 64);
  }
  void word(size_t at, uint32_t value) {
    log.word(&memory[at], value);
    std::memcpy(&memory[at], &value, sizeof value);
  }

  // The actions of a replay, which has to leave what the run has left.
  size_t actions() {
    emulator::Recording recording;
    recording.phases = emulator::PackedPhases(log.take_phases(patches).first);
    recording.operands = log.take_operands();
    size_t count = 0;
    for (size_t i = 0; i < recording.phases.size(); ++i) {
      for (const emulator::PackedLane& lane : recording.phases[i]) count += lane.actions.size();
    }
    const std::vector left = {memory, argument};
    std::ranges::copy(before[0], memory.begin());
    std::ranges::copy(before[1], argument.begin());
    emulator::JointReplay replay(
        emulator::Replay(std::make_shared<const emulator::Recording>(std::move(recording)),
                         arguments(), std::vector<int64_t>(uses.size())));
    CHECK(replay.resume([] { return false; }));
    CHECK((memory == left[0]));
    CHECK((argument == left[1]));
    return count;
  }

  std::vector<std::byte> memory = std::vector<std::byte>(kSize), argument = memory;
  std::vector<std::vector<std::byte>> before;
  std::vector<PatchUse> uses = std::vector<PatchUse>(3);
  emulator::Patches patches;
  CoreState core;
  ActionLog log;
};

// A result by way of two places.
void send(Recorded& run, size_t to, size_t first = 512, size_t second = 640, uint32_t patch = 0) {
  run.call(64 * (to / 64 % 4), first);
  run.copy(&run.memory[second], &run.memory[first]);
  run.copy(&run.argument[to], &run.memory[second], 64, patch);
}

}  // namespace

TEST_CASE("results go to an argument at once, but for the last ones") {
  for (const size_t results : {1, 2, 5, 12}) {
    Recorded run;
    for (size_t i = 0; i < results; ++i) send(run, 64 * i);
    CHECK(run.actions() == 3 + (results - 1));
  }
  Recorded partly;  // the place may keep a part of what it was
  for (size_t i = 0; i < 4; ++i) {
    partly.call(64 * i, 512, kPartly);
    partly.copy(&partly.memory[640], &partly.memory[512]);
    partly.copy(&partly.argument[64 * i], &partly.memory[640]);
  }
  CHECK(partly.actions() == 3 + 2 * 3);  // the copy in between goes there
}

TEST_CASE("results stay where something else reads them or changes them") {
  const auto actions = [](const auto& between) {
    Recorded run;
    run.call(0, 512);
    run.copy(&run.memory[640], &run.memory[512]);
    between(run);
    run.copy(&run.argument[0], &run.memory[640]);
    send(run, 64);
    return run.actions();
  };
  CHECK(actions([](Recorded&) {}) == 4);
  CHECK(actions([](Recorded& run) { run.word(0, 7); }) == 5);
  CHECK(actions([](Recorded& run) { run.word(644, 7); }) == 7);  // another value
  CHECK(actions([](Recorded& run) { run.copy(&run.memory[0], &run.memory[640]); }) == 7);
  CHECK(actions([](Recorded& run) { run.copy(&run.memory[0], &run.memory[516], 8); }) == 6);
  CHECK(actions([](Recorded& run) { run.call(640, 0); }) == 7);
}

TEST_CASE("nothing is written before what reads or writes there") {
  const auto actions = [](size_t from, size_t to, uint32_t patch, bool moves) {
    Recorded run({moves, moves, moves});
    run.call(0, 512);
    run.copy(&run.memory[640], &run.memory[512]);
    run.read(&run.memory[to], &run.argument[from], patch);
    run.copy(&run.argument[128], &run.memory[640], 64, moves ? 0 : 1);
    send(run, 256);
    const size_t count = run.actions();
    return std::pair(count, run.patches.fixed());
  };
  using Fixed = std::set<uint32_t>;
  CHECK(actions(0, 0, 2, false) == std::pair(size_t{5}, Fixed{1, 2}));
  CHECK(actions(192, 0, 0, false) == std::pair(size_t{5}, Fixed{1}));
  CHECK(actions(100, 0, 1, false).first == 7);  // the same bytes
  CHECK(actions(188, 0, 2, false).first == 7);
  CHECK(actions(0, 0, 2, true).first == 7);  // they may be the same in another run
  Recorded moving({true, false, false});
  for (size_t i = 0; i < 3; ++i) send(moving, 64 * i, 512, 640, 1);
  CHECK(moving.actions() == 9);
  CHECK(moving.patches.fixed().empty());
}

TEST_CASE("replays of random runs leave what the runs have left") {
  std::mt19937 random(7);
  const auto up_to = [&](size_t most) {
    return std::uniform_int_distribution<size_t>(0, most)(random);
  };
  size_t shorter = 0;
  for (int round = 0; round < 2000; ++round) {
    // Few places, some of which overlap, so that results pass often.
    const auto place = [&] { return 64 * up_to(8) + 32 * (up_to(9) == 0); };
    Recorded run;
    const size_t count = 4 + up_to(40);
    for (size_t i = 0; i < count; ++i) {
      switch (up_to(6)) {
        case 0:
        case 1: {
          const size_t in = place(), out = place();
          if (std::max(in, out) - std::min(in, out) >= 64)
            run.call(in, out, up_to(2) == 0 ? kPartly : kMix);
          break;
        }
        case 2:
        case 3:
          run.copy(&run.memory[place()], &run.memory[place()], up_to(5) == 0 ? 32 : 64);
          break;
        case 4:
          run.copy(&run.argument[place()], &run.memory[place()], 64, uint32_t(up_to(3)));
          break;
        case 5:
          send(run, place());
          break;
        case 6:
          if (up_to(1) == 0) {
            run.read(&run.memory[place()], &run.argument[place()], uint32_t(up_to(3)));
          } else {
            run.word(4 * up_to(160), uint32_t(random()));
          }
          break;
      }
    }
    size_t made = 0;
    for (const emulator::Phase& phase : run.log.phases()) {
      for (const emulator::Lane& lane : phase) made += lane.actions.size();
    }
    shorter += run.actions() < made;
  }
  CHECK(shorter > 400);
}
