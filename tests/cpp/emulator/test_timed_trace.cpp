// Asserts what a recorder of timed runs (devices/emulator/timed_trace.h) keeps on small arrays:
// jobs with their bytes and partners, waits with what they wait for, operations, lock values,
// windows, the limit; and that recording changes neither results nor times.
#include <doctest/doctest.h>

#include "devices/emulator/timed_trace.h"
#include "emulator_fixture.h"

namespace {

using namespace npu;
using doctest::Approx;
using emulator::Recorder;
using emulator::TraceEvent;
using Kind = TraceEvent::Kind;

constexpr test::At kCore{0, 2}, kShim{0, 0};

arch::Timing timing() { return {arch::Generation::kNpu1, arch::TimingTable()}; }

std::vector<TraceEvent> of(const Recorder& recorder, std::initializer_list<Kind> kinds,
                           const std::string& track = "") {
  std::vector<TraceEvent> found;
  for (const TraceEvent& event : recorder.events()) {
    for (const Kind kind : kinds) {
      if (event.kind != kind) continue;
      const bool named = event.track < recorder.tracks().size();
      if (track.empty() || (named && recorder.tracks()[event.track].name == track)) {
        found.push_back(event);
      }
    }
  }
  return found;
}

constexpr uint32_t kWords = 10000;

// Copies kWords of host memory through the shim tile's own stream switch.
struct HostCopy {
  HostCopy() : stream(machine.script()) {
    machine.loopback(kShim);
    machine.configure();
    stream.host_bd(0, 0, test::linear(kWords), 0).host_bd(0, 1, test::linear(kWords), 1);
    stream.push(kShim, test::kMM2S, 0, 0).push(kShim, test::kS2MM, 0, 1, 1, true);
    stream.sync(kShim, test::kS2MM, 0);
  }
  double run(Recorder* recorder) {
    test::Words from = test::counting(kWords), to(kWords);
    machine.array.set_timing(&time, true, recorder);
    machine.run(stream, {test::view(from, false), test::view(to)});
    CHECK(to == from);
    return machine.array.timing_report().cycles;
  }
  arch::Timing time = timing();
  test::Machine machine{arch::Generation::kNpu1};
  test::Script stream;
};

}  // namespace

TEST_CASE("recorder: a copy's transfers, operations and waits, at the times of the run") {
  HostCopy copy;
  const double cycles = copy.run(nullptr);
  Recorder recorder({});
  CHECK(copy.run(&recorder) == cycles);
  CHECK(recorder.left_out() == 0);

  const auto sends = of(recorder, {Kind::kSend}, "shim (0,0) MM2S 0");
  const auto receives = of(recorder, {Kind::kReceive}, "shim (0,0) S2MM 0");
  REQUIRE(sends.size() == receives.size());
  REQUIRE(sends.size() == 1);
  CHECK(sends[0].bytes == 4 * kWords);
  CHECK(sends[0].bd == 0);
  CHECK(receives[0].bd == 1);
  CHECK(receives[0].start == sends[0].start);
  CHECK(receives[0].end == sends[0].end);
  CHECK(recorder.tracks()[receives[0].other].name == "shim (0,0) MM2S 0");
  const std::vector<uint32_t>& route = recorder.routes()[sends[0].other];
  REQUIRE(route.size() == 1);
  CHECK(route[0] == receives[0].track);
  // One channel alone has the memory for itself: four bytes a cycle after the start of the task.
  CHECK(sends[0].end - sends[0].start == Approx(kWords));
  CHECK(sends[0].memory_wait == Approx(0));
  const auto starts = of(recorder, {Kind::kTaskStart});
  REQUIRE(starts.size() == 1);
  const arch::Timing& t = copy.time;
  CHECK(starts[0].end - starts[0].start ==
        Approx(t.bd_overhead + t.shim_task_start + t.shim_cold_start));
  CHECK(starts[0].end == sends[0].start);
  // The sender was pushed first and waited for its receiver until that was pushed, too.
  const auto waits = of(recorder, {Kind::kWaitReceiver});
  REQUIRE(waits.size() <= 1);
  // The receiver waits while the task of the sender starts.
  const auto data = of(recorder, {Kind::kWaitSender});
  REQUIRE(data.size() == 1);
  CHECK(data[0].end == sends[0].start);

  // One slice per operation, without a gap; then the SYNC waits for the token.
  const auto operations = of(recorder, {Kind::kOperation, Kind::kOperationWaits});
  REQUIRE(operations.size() == 8);
  CHECK(operations[0].start == 0);
  for (size_t i = 1; i < operations.size(); ++i) {
    CHECK(operations[i].start == operations[i - 1].end);
  }
  CHECK(operations[7].kind == Kind::kOperationWaits);
  CHECK(operations[7].other == operations[6].other);
  CHECK(operations[7].end == Approx(sends[0].end + t.token));
  CHECK(operations[7].end == cycles);
}

TEST_CASE("recorder: calls by name, locks that a core waits for and their values") {
  test::Machine machine(arch::Generation::kNpu1);
  machine.configure();
  machine.attach(
      kCore,
      "loop 3\nacquire_ge 5 2\ncall zero_i32 @0 #64\ncall narrow_i32_i8 @0 @1024 #64 #0\n"
      "release 6 1\nend",
      [](std::span<const KernelArgument>) {});
  const arch::Timing time = timing();
  Recorder recorder({});
  machine.array.set_timing(&time, true, &recorder);
  test::Script stream = machine.script();
  stream.lock(kCore, 5, 4).lock(kCore, 7, 9).lock(kCore, 5, 4);
  machine.run(stream);
  const auto calls = of(recorder, {Kind::kKernel}, "core (0,2)");
  REQUIRE(calls.size() == 6);
  for (size_t i = 0; i < calls.size(); ++i) {
    CHECK(recorder.kernels()[calls[i].other] == (i % 2 ? "narrow_i32_i8" : "zero_i32"));
  }
  const uint32_t first_lock = 2 * TraceEvent::kLocks;  // of the third tile of column 0
  const auto waits = of(recorder, {Kind::kWaitLock});
  REQUIRE(waits.size() >= 1);
  for (const TraceEvent& wait : waits) CHECK(wait.other == first_lock + 5);
  CHECK(waits[0].start == 0);
  CHECK(waits[0].end == Approx(time.cp_write));
  double worked = 0;
  for (const TraceEvent& call : calls) worked += call.end - call.start;
  CHECK(worked == Approx(machine.array.timing_report().core_busy));
  CHECK(recorder.tracks()[calls[0].track].cycles[0] == Approx(worked));
  // Lock 7, which no agent waits for, has its value from the time its write took effect.
  std::vector<TraceEvent> seventh;
  for (const TraceEvent& event : of(recorder, {Kind::kLock})) {
    CHECK(event.track == TraceEvent::kNobody);
    if (event.other == first_lock + 7) seventh.push_back(event);
  }
  REQUIRE(seventh.size() == 2);
  CHECK(seventh[0].start == 0);
  CHECK(seventh[0].bytes == 0);
  CHECK(seventh[1].start == Approx(2 * time.cp_write));
  CHECK(seventh[1].bytes == 9);
  const auto values = of(recorder, {Kind::kLock});
  CHECK(values.back().bytes == static_cast<uint64_t>(machine.lock(kCore, 6)));
}

TEST_CASE("recorder: a packet's header, and who waits for its arbiter") {
  test::Machine m(arch::Generation::kNpu1);
  // MM2S 0 and 1 of a core share arbiter 0 into S2MM 0, which keeps the headers.
  for (const int channel : {0, 1}) {
    m.config.packet_slave(kCore, test::port::core::kDma + channel, 0, 3, 31, 0, 0);
  }
  m.config.packet_master(kCore, test::port::core::kDma, 0, 1, false);
  m.configure();
  const arch::Timing time = timing();
  Recorder recorder({});
  m.array.set_timing(&time, true, &recorder);
  test::Script s = m.script();
  for (const int id : {0, 1}) {
    test::Bd bd = test::linear(2000, 2000 * static_cast<uint64_t>(id));
    bd.packet_enable = true;
    bd.packet_id = 3;
    s.bd(kCore, id, bd).push(kCore, test::kMM2S, id, id);
  }
  s.bd(kCore, 2, test::linear(4002, 8000)).push(kCore, test::kS2MM, 0, 2, 1, true);
  s.sync(kCore, test::kS2MM, 0);
  m.run(s);
  const auto waits = of(recorder, {Kind::kWaitArbiter});
  REQUIRE(waits.size() == 1);
  CHECK(recorder.tracks()[waits[0].track].name == "core (0,2) MM2S 1");
  const auto sends = of(recorder, {Kind::kSend});
  REQUIRE(sends.size() == 4);
  for (size_t i = 0; i < 4; ++i) CHECK(sends[i].bytes == (i % 2 ? 8000 : 4));
  CHECK(waits[0].end == sends[1].end);
  CHECK(of(recorder, {Kind::kReceive}).size() == 4);
}

TEST_CASE("recorder: windows and limits") {
  HostCopy copy;
  Recorder all({});
  const double cycles = copy.run(&all);
  Recorder few({0, 1e300, 4, true});
  copy.run(&few);
  CHECK(few.events().size() == 4);
  CHECK(few.left_out() == all.events().size() - 4);
  size_t early = 0;
  for (const TraceEvent& event : all.events()) early += event.end < few.first_left_out() ? 1 : 0;
  CHECK(early <= 4);
  for (size_t i = 0; i < all.tracks().size(); ++i) {
    CHECK(few.tracks()[i].cycles == all.tracks()[i].cycles);
  }
  const double from = cycles / 2, to = from + 100;
  Recorder window({from, to, 1000, true});
  copy.run(&window);
  // The transfer and the SYNC.
  CHECK(window.events().size() == 3);
  for (const TraceEvent& event : window.events()) {
    CHECK(event.start < from);
    CHECK(event.end > to);
  }
  CHECK(window.tracks()[0].cycles[static_cast<size_t>(Kind::kOperationWaits)] == Approx(100));
  // A recorder begins anew with every run.
  copy.run(&window);
  CHECK(window.events().size() == 3);
}
