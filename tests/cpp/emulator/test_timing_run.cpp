// Asserts the timed scheduler on small arrays: transfers take words / stream width, channels share
// the memory, time is deterministic, results are those of an untimed run, errors stay errors.
#include <doctest/doctest.h>

#include "devices/emulator/timed_run.h"
#include "emulator_fixture.h"

namespace {

using namespace npu;
using doctest::Approx;
using emulator::Agent;
using emulator::Timeline;

class Probe final : public Agent {
 public:
  Probe() : Agent(0) {}
  void advance() override {}
  std::string name() const override { return "probe"; }
  std::string waiting() const override { return ""; }
};

arch::Timing timing_with(std::initializer_list<std::pair<const char*, double>> values) {
  arch::TimingTable table;
  for (const auto& [name, value] : values) table.set(name, value);
  return {arch::Generation::kNpu1, table};
}

// Runs the queue dry; the time at which each agent's job ended.
std::vector<double> ends(Timeline& timeline, const std::vector<Agent*>& agents) {
  std::vector<double> at(agents.size(), -1);
  while (!timeline.empty()) {
    Agent* agent = timeline.pop();
    for (size_t i = 0; i < agents.size(); ++i) {
      if (agent == agents[i]) at[i] = timeline.now();
    }
  }
  return at;
}

Timeline::Read long_read(double bytes) {
  Timeline::Read read;
  read.bytes = read.task_bytes = bytes;
  read.run = 4096;
  return read;
}

}  // namespace

TEST_CASE("timeline: events in order of time, then of posting") {
  const arch::Timing timing = timing_with({});
  Timeline timeline(timing, false);
  timeline.begin();
  Probe a, b, c;
  timeline.after(&a, 10);
  timeline.after(&b, 5);
  timeline.after(&c, 5);
  CHECK(timeline.pop() == &b);
  CHECK(timeline.pop() == &c);
  CHECK(timeline.now() == 5);
  CHECK(timeline.pop() == &a);
  CHECK(timeline.now() == 10);
  CHECK(timeline.empty());
  CHECK(a.busy() == 10);
}

TEST_CASE("timeline: one reader is limited by its stream port, many by the memory") {
  // A cap of 8 bytes per cycle at 1 GHz; row visits too short to matter.
  const arch::Timing timing =
      timing_with({{"dram_read_npu1", 8}, {"row_visit", 1e-6}, {"shim_cold_start", 1e-9}});
  Probe probes[4];
  std::vector<Agent*> agents;
  for (Probe& probe : probes) agents.push_back(&probe);
  Timeline timeline(timing, false);
  timeline.begin();
  timeline.read(agents[0], long_read(4000));
  CHECK(ends(timeline, agents)[0] == Approx(1000));  // 4 B/cycle

  timeline.begin();
  for (Agent* agent : agents) timeline.read(agent, long_read(4000));
  for (const double end : ends(timeline, agents)) CHECK(end == Approx(2000));  // 16000 B / 8

  // Twice the bytes, twice the share: they end together.
  timeline.begin();
  timeline.read(agents[0], long_read(8000));
  for (int i = 1; i < 4; ++i) timeline.read(agents[static_cast<size_t>(i)], long_read(8000.0 / 3));
  for (const double end : ends(timeline, agents)) CHECK(end == Approx(2000));

  // What a port cannot take of its share is the others': 4 and 4 B/cycle, then 4.
  timeline.begin();
  timeline.read(agents[0], long_read(8000));
  timeline.read(agents[1], long_read(800));
  const std::vector<double> two = ends(timeline, agents);
  CHECK(two[0] == Approx(2000));
  CHECK(two[1] == Approx(200));
  // Three: 4 B/cycle of one port, the rest by weight, 3 to 1.
  timeline.begin();
  timeline.read(agents[0], long_read(80000));
  timeline.read(agents[1], long_read(3000));
  timeline.read(agents[2], long_read(1000));
  const std::vector<double> three = ends(timeline, agents);
  CHECK(three[1] == Approx(1000));
  CHECK(three[2] == Approx(1000));
  CHECK(three[0] == Approx(20000));
}

TEST_CASE("timeline: writes take what reads leave of the memory") {
  const arch::Timing timing = timing_with({{"dram_read_npu1", 8},
                                           {"dram_total_npu1", 10},
                                           {"row_visit", 1e-6},
                                           {"shim_cold_start", 1e-9}});
  Probe probes[5];
  std::vector<Agent*> agents;
  for (Probe& probe : probes) agents.push_back(&probe);
  Timeline timeline(timing, false);
  timeline.begin();
  timeline.write(agents[0], 13, 4000);
  CHECK(ends(timeline, agents)[0] == Approx(13 + 1000));  // its port: 4 B/cycle
  CHECK(probes[0].busy() == Approx(13 + 1000));
  timeline.begin();
  for (Agent* agent : agents) timeline.write(agent, 0, 4000);
  for (const double end : ends(timeline, agents)) CHECK(end == Approx(2000));  // 20000 B / 10
  // Two reads at 4 B/cycle for 1000 cycles, then the write has its port to itself.
  timeline.begin();
  timeline.read(agents[0], long_read(4000));
  timeline.read(agents[1], long_read(4000));
  timeline.write(agents[2], 0, 4000);
  const std::vector<double> mixed = ends(timeline, agents);
  CHECK(mixed[0] == Approx(1000));
  CHECK(mixed[1] == Approx(1000));
  CHECK(mixed[2] == Approx(1000 + 2000 / 4));
  RunTiming report;
  timeline.report(&report);
  CHECK(report.dram_share == Approx(12000.0 / 10 / 1500));
}

TEST_CASE("timeline: short runs cost a row visit each, less when neighbours share the row") {
  const arch::Timing timing = timing_with({{"dram_read_npu1", 1000},
                                           {"row_visit", 128},
                                           {"row_sharing", 0.5},
                                           {"shim_cold_start", 1e-9}});
  Timeline timeline(timing, false);
  timeline.begin();
  Probe a, b;
  const std::vector<Agent*> agents{&a, &b};
  Timeline::Read read = long_read(64 * 100);
  read.run = 64;
  read.pitch = 4096;
  timeline.read(&a, read);
  CHECK(ends(timeline, agents)[0] == Approx(100 * 128));
  timeline.begin();
  timeline.read(&a, read);
  read.base = 64;  // in the same rows
  timeline.read(&b, read);
  // The first was posted before its neighbour was known.
  const std::vector<double> both = ends(timeline, agents);
  CHECK(both[1] < 100 * 128);
  timeline.begin();
  read.base = 1 << 20;
  timeline.read(&a, read);
  read.base = 0;
  timeline.read(&b, read);
  CHECK(ends(timeline, agents)[1] == Approx(100 * 128));
}

namespace {

constexpr test::At kCore{0, 2}, kShim{0, 0};

// Copies `words` words of host memory through the shim tile's own stream switch.
struct HostCopy {
  explicit HostCopy(uint32_t count) : stream(machine.script()), words(count) {
    machine.loopback(kShim);
    machine.configure();
    stream.host_bd(0, 0, test::linear(count), 0).host_bd(0, 1, test::linear(count), 1);
    stream.push(kShim, test::kMM2S, 0, 0).push(kShim, test::kS2MM, 0, 1, 1, true);
    stream.sync(kShim, test::kS2MM, 0);
  }
  test::Machine machine{arch::Generation::kNpu1};
  test::Script stream;
  uint32_t words;
};

}  // namespace

TEST_CASE("timed run: the copy of a timed run is that of an untimed one; its time is the words'") {
  constexpr uint32_t kWords = 10000;
  test::Words from = test::counting(kWords), to(kWords);
  const arch::Timing timing = timing_with({});
  HostCopy copy(kWords);
  copy.machine.array.set_timing(&timing, true);
  const RunReport report = copy.machine.run(copy.stream, {test::view(from, false), test::view(to)});
  CHECK(to == from);
  CHECK(report.shim_read_bytes == 4 * kWords);
  const RunTiming& timed = copy.machine.array.timing_report();
  // One word per cycle, the start of the task, the command processor and the token around it.
  CHECK(timed.cycles > kWords + timing.shim_cold_start + timing.token);
  CHECK(timed.cycles < kWords + timing.shim_cold_start + timing.token + 3000);
  CHECK(timed.seconds == Approx(timed.cycles / 1e9 + timing.dispatch));

  // Without data: the same time, and the host's memory is not there at all.
  const double with_data = timed.cycles;
  copy.machine.array.set_timing(&timing, false);
  copy.machine.run(copy.stream, {{nullptr, 4 * kWords, false}, {nullptr, 4 * kWords, true}});
  // The channel is cold again: a timed run begins at rest.
  CHECK(timed.cycles == with_data);
  copy.machine.array.set_timing(nullptr, true);
  std::fill(to.begin(), to.end(), 0);
  copy.machine.run(copy.stream, {test::view(from, false), test::view(to)});
  CHECK(to == from);
}

TEST_CASE("timed run: errors are those of an untimed run") {
  constexpr uint32_t kWords = 100;
  const arch::Timing timing = timing_with({});
  HostCopy copy(kWords);
  copy.machine.array.set_timing(&timing, false);
  // An argument that is too small, then a read-only output.
  test::check_error(ErrorKind::kOutOfRange, {"BD 0"}, [&] {
    copy.machine.run(copy.stream, {{nullptr, 4 * kWords - 4, false}, {nullptr, 4 * kWords, true}});
  });
  copy.machine.configure();
  test::check_error(ErrorKind::kArgument, {"read-only"}, [&] {
    copy.machine.run(copy.stream, {{nullptr, 4 * kWords, false}, {nullptr, 4 * kWords, false}});
  });
  copy.machine.configure();
  test::Script waits = copy.machine.script();
  waits.sync(kShim, test::kS2MM, 0);
  test::check_error(ErrorKind::kDeadlock, {"token"}, [&] { copy.machine.run(waits); });
}

TEST_CASE("timed run: a core or a channel is not reset in the middle of its work") {
  const arch::Timing timing = timing_with({});
  const arch::TileGeometry& model = arch::tile_geometry(arch::TileKind::kCore);
  test::Machine machine(arch::Generation::kNpu1);
  machine.loopback(kCore);
  machine.config.bd(kCore, 0, test::linear(4000)).bd(kCore, 1, test::linear(4000, 8000));
  machine.array.set_timing(&timing, true);
  const auto refused = [&](const test::Script& stream) {
    machine.configure();
    machine.attach(kCore, "acquire_ge 0 1\ncall zero_i32 @0 #100000",
                   [](std::span<const KernelArgument>) {});
    test::check_error(ErrorKind::kUnsupported, {"resets", "core (0,2)"},
                      [&] { machine.run(stream); });
  };
  test::Script call = machine.script();
  refused(call.lock(kCore, 0, 1).write(kCore, 0x32000, 3));
  for (const uint32_t channel : {model.mm2s_base, model.s2mm_base}) {
    test::Script copy = machine.script();
    copy.push(kCore, test::kMM2S, 0, 0).push(kCore, test::kS2MM, 0, 1);
    refused(copy.write(kCore, channel, 2));
  }
  test::Script early = machine.script();  // at rest it is a reset
  early.write(kCore, 0x32000, 3).write(kCore, model.mm2s_base, 2);
  machine.configure();
  machine.run(early);
}

TEST_CASE("timed run: a core's kernels and lock operations add up") {
  test::Machine machine(arch::Generation::kNpu1);
  machine.configure();
  const char* program =
      "loop 10\nacquire_ge 0 1\ncall matmul_i8_i32 @0 @1024 @2048 #8 #16 #8\nrelease 1 1\nend\n"
      "call narrow_i32_i8 @0 @4096 #1000 #0";
  machine.attach(kCore, program, [](std::span<const KernelArgument>) {});
  const arch::Timing timing = timing_with({});
  machine.array.set_timing(&timing, true);
  test::Script stream = machine.script();
  stream.lock(kCore, 0, 10);
  machine.run(stream);
  const RunTiming& report = machine.array.timing_report();
  const double call = 64 * (16 / timing.mac_int8 + timing.integer_move + 8 / timing.l1_port);
  CHECK(report.matmul_calls == 10);
  CHECK(report.matmul_cycles == Approx(10 * call));
  CHECK(report.core_busy == Approx(10 * call + 20 * timing.lock_operation + 5000 / timing.l1_port));
}

TEST_CASE("timed run: a kernel whose cost is not known is an error that names it") {
  const arch::Timing timing = timing_with({});
  test::Machine machine(arch::Generation::kNpu1);
  constexpr kernels::Declaration kUncosted = kernels::resolved("uncosted", kernels::Declaration{});
  const auto run = [&](const char* name, const kernels::Declaration* declaration) {
    machine.configure();
    const auto nothing = [](std::span<const KernelArgument>, CoreState&) {};
    machine.array.attach(kCore.col, kCore.row, parse_program(strf("call %s", name), "test"),
                         {{nothing, false, declaration}});
    machine.run(machine.script());
  };
  run("mystery", nullptr);  // nobody asks for the time
  machine.array.set_timing(&timing, true);
  test::check_error(ErrorKind::kKernel, {"core (0,2)", "\"mystery\"", "NPU_DECLARE"},
                    [&] { run("mystery", nullptr); });
  test::check_error(ErrorKind::kKernel, {"[uncosted]", "NPU_DECLARE"},
                    [&] { run("uncosted", &kUncosted); });
}

TEST_CASE("timed run: a call with too few operands has no cost") {
  const arch::Timing timing = timing_with({});
  test::Machine machine(arch::Generation::kNpu1);
  machine.array.set_timing(&timing, true);
  for (const char* call : {"call zero_i32 @0", "call zero_i32 @0 @64"}) {
    machine.configure();
    machine.attach(kCore, call, [](std::span<const KernelArgument>) {});
    test::check_error(ErrorKind::kKernel, {"[zero_i32]"}, [&] { machine.run(machine.script()); });
  }
}
