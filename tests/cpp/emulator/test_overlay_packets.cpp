// Overlays of npu1: shim channel MM2S 0 sends data to a memtile and programs to two cores, told
// apart by packet ids; the DMA inserts the header of every control packet.
#include "devices/emulator/timed_trace.h"
#include "overlay_machine.h"

using namespace npu;
using namespace npu::test;

namespace {

constexpr uint32_t kData = 1, kPrograms = 2;  // ids; in all switches also slots and arbiters
constexpr At kMem{0, 1};
constexpr uint32_t kObject = 8;  // words that the memtile takes at a time, while its lock 0 allows

// Packets of programs go by lane 1, those of data by lane 0.
struct PacketMachine : OverlayMachine {
  PacketMachine() : OverlayMachine(Generation::kNpu1) {
    route(kShim0, sp::kMm2s0, kData, sp::kNorthMaster);
    route(kShim0, sp::kMm2s0, kPrograms, sp::kNorthMaster + 1);
    config.write(kMem, Script::master_register(kMem, mp::kNorthMaster), 0);  // a circuit's
    route(kMem, mp::kSouthSlave, kData, mp::kDma, true);
    route(kMem, mp::kSouthSlave + 1, kPrograms, mp::kNorthMaster + 1);
    for (const At core : kCores) {
      config.write(core, Script::master_register(core, cp::kNorthMaster), 0);
      route(core, cp::kSouthSlave + 1, kPrograms, kControlMaster);
    }
    route(kCores[0], cp::kSouthSlave + 1, kPrograms, cp::kNorthMaster + 1);
    // The memtile's objects follow each other in a ring of two.
    for (uint32_t i = 0; i < 2; ++i) {
      const Bd object = linear(kObject, kOwnMem + i * kObject);
      config.bd(kMem, static_cast<int>(i), followed_by(acquiring(object, kOwnLock, -1), 1 - i));
    }
    config.lock(kMem, 0, 2).push(kMem, kS2MM, 0, 0);
  }
  void route(At at, int slave, uint32_t id, int master, bool drop_header = false) {
    config.packet_slave(at, slave, static_cast<int>(id), id, 0x1F, id, 0);
    config.packet_master(at, master, id, 1, drop_header);
  }

  static Bd packets_of(Bd bd, uint32_t id) {
    bd.packet_enable = true;
    bd.packet_id = id;
    return bd;
  }
  // A load as prefill's streams have it: reset, rounds, enable; words: of an image.
  static Words program(size_t overlay, size_t words = 16) {
    return control_packets(image(overlay, words), false);
  }
  static Script& send_program(Script& s, size_t words, uint32_t argument) {
    const auto last = static_cast<uint32_t>(words - kSwitchWords);
    Bd rounds = packets_of(linear(kRoundWords), kPrograms);
    rounds.iteration_step = kRoundWords;
    rounds.iteration_wrap = (last - kSwitchWords) / kRoundWords;
    s.host_bd(0, 0, packets_of(linear(kSwitchWords), kPrograms), argument);
    s.host_bd(0, 1, rounds, argument, 4 * kSwitchWords);
    s.host_bd(0, 2, packets_of(linear(kSwitchWords), kPrograms), argument, 4 * last);
    s.push(kShim0, kMM2S, 0, 0).push(kShim0, kMM2S, 0, 1, static_cast<int>(rounds.iteration_wrap));
    return s.push(kShim0, kMM2S, 0, 2, 1, true).sync(kShim0, kMM2S, 0);
  }
  static Script& data(Script& s, uint32_t words, uint32_t argument, uint32_t first = 0) {
    s.host_bd(0, 3, packets_of(linear(words), kData), argument, 4 * first);
    return s.push(kShim0, kMM2S, 0, 3, 1, true);
  }
};

const std::string kCall = "call zero_i32 @0 #16\nrelease 1 1\n";

// Objects of data before, between and behind the loads of overlays 0 and 1; argument 2 has the
// data.
Script two_loads(const PacketMachine& m, size_t words) {
  Script s = m.script();
  for (uint32_t i = 0; i < 2; ++i) {
    m.data(s, kObject, 2, i * kObject).sync(kShim0, kMM2S, 0);
    m.send_program(s, words, i);
    m.await_cores(s);
  }
  s.lock(kMem, 0, 2);
  return m.data(s, kObject, 2, 2 * kObject).sync(kShim0, kMM2S, 0);
}

}  // namespace

TEST_CASE("overlay packets: data and programs share a channel, each to its own ends") {
  PacketMachine m;
  m.load({kCall, "call g @8\n"});
  Words first = m.program(0), second = m.program(1), in = counting(3 * kObject, 100);
  const RunReport report =
      m.run(two_loads(m, first.size()), {view(first, false), view(second, false), view(in, false)});
  for (size_t i = 0; i < 2; ++i) {
    CHECK(m.calls[i] == OverlayMachine::Calls{{"zero_i32", 0}, {"g", 8}});
    CHECK(m.lock(kCores[i], 1) == 1);
    CHECK(m.array.read_register(kCores[i].address(0x20004)) == 1);  // of the second image
  }
  Words expected = counting(kObject, 100 + 2 * kObject);  // the third object, over the first
  const Words middle = counting(kObject, 100 + kObject);
  expected.insert(expected.end(), middle.begin(), middle.end());
  CHECK(m.words(kMem, 0, 2 * kObject) == expected);  // no header among them
  CHECK(report.shim_read_bytes == 4 * (first.size() + second.size() + in.size()));
}

TEST_CASE("overlay packets: 64 rounds of a task, and the last word of program memory") {
  PacketMachine m;
  m.load({"", ""});
  Words packets = m.program(1, 4096);
  packets[packets.size() - kSwitchWords - 1] = 99;
  Script s = m.script();
  s.host_bd(0, 0, PacketMachine::packets_of(linear(kSwitchWords), kPrograms), 0);
  s.push(kShim0, kMM2S, 0, 0, 1, true).sync(kShim0, kMM2S, 0);
  for (uint32_t task = 0; task < 1024 / 64; ++task) {
    Bd rounds = PacketMachine::packets_of(linear(kRoundWords), kPrograms);
    rounds.iteration_step = kRoundWords;
    rounds.iteration_wrap = 64;
    s.host_bd(0, 1, rounds, 0, 4 * (kSwitchWords + task * 64 * kRoundWords));
    s.push(kShim0, kMM2S, 0, 1, 64, true).sync(kShim0, kMM2S, 0);
  }
  s.host_bd(0, 0, PacketMachine::packets_of(linear(kSwitchWords), kPrograms), 0,
            4 * (packets.size() - kSwitchWords));
  m.await_cores(s.push(kShim0, kMM2S, 0, 0, 1, true).sync(kShim0, kMM2S, 0));
  m.run(s, {view(packets, false)});
  for (const At core : kCores) {
    CHECK(m.array.read_register(core.address(0x20004)) == 1);
    CHECK(m.array.read_register(core.address(0x23FFC)) == 99);
  }
}

TEST_CASE("overlay packets: what npu1 refuses") {
  const auto refused = [](ErrorKind kind, const Words& words, const Bd& bd,
                          std::initializer_list<const char*> telling) {
    PacketMachine m;
    m.load({"call f @0\nacquire_ge 3 2\n", ""});
    Words loaded = m.program(0), sent = words;
    Script begin = m.script(), s = m.script();
    m.run(m.send_program(begin, loaded.size(), 0), {view(loaded, false)});
    s.host_bd(0, 0, bd, 0).push(kShim0, kMM2S, 0, 0, 1, true).sync(kShim0, kMM2S, 0);
    check_error(kind, telling, [&] { m.run(s, {view(sent, false)}); });
  };
  const Words reset = control_packets(Words(4), false);
  // Two packets in one transfer, of which the second would begin with a header.
  refused(ErrorKind::kUnsupported, reset, PacketMachine::packets_of(linear(7), kPrograms),
          {"shim (0,0) MM2S 0", "a second packet", "npu1 takes one packet per transfer"});
  // The words of npu2: a header behind that of the DMA.
  refused(ErrorKind::kUnsupported, control_packets(Words(4)),
          PacketMachine::packets_of(linear(3), kPrograms), {"at word 3 of 4", "a second packet"});
  refused(ErrorKind::kNoConsumer, reset, PacketMachine::packets_of(linear(2), 3),
          {"no slot of slave port South 3 matches packet id 3", "shim (0,0)"});
  refused(ErrorKind::kKernel, reset, PacketMachine::packets_of(linear(2), kPrograms),
          {"control packet of shim (0,0) MM2S 0] resets core (0,2)", "waits for its lock 3",
           "overlay \"o0\""});
}

TEST_CASE("overlay packets: a load waits behind data that nobody takes") {
  PacketMachine m;
  m.load({kCall, ""});
  Words program = m.program(0), in(3 * kObject);
  Script s = m.script();
  m.data(s, 3 * kObject, 1);
  m.send_program(s, program.size(), 0);
  check_error(ErrorKind::kDeadlock,
              {"shim (0,0) MM2S 0 waits for memtile (0,1) S2MM 0 to take 8 more words",
               "core (0,2) has no overlay loaded"},
              [&] { m.run(s, {view(program, false), view(in, false)}); });
}

TEST_CASE("overlay packets: simulated time is that of each packet; results are the same") {
  const arch::Timing timing{Generation::kNpu1, {}};
  const auto run = [&](bool timed) {
    PacketMachine m;
    m.load({kCall, kCall});
    emulator::Recorder recorder({});
    if (timed) m.array.set_timing(&timing, true, &recorder);
    Words first = m.program(0, 64), second = m.program(1, 64), in = counting(3 * kObject);
    const Script s = two_loads(m, first.size());
    m.run(s, {view(first, false), view(second, false), view(in, false)});
    CHECK(m.calls[0].size() == 2);
    CHECK(m.calls[1] == m.calls[0]);
    if (timed) {
      const double packets = 2 * (64 / 4 + 2), cycles = m.array.timing_report().cycles;
      CHECK(cycles >= packets * (timing.bd_overhead + timing.shim_task_start + 2));
      size_t to_cores = 0, to_memtile = 0;
      for (const emulator::TraceEvent& event : recorder.events()) {
        if (event.kind != emulator::TraceEvent::Kind::kSend) continue;
        const auto& ends = recorder.routes()[event.other];
        (ends.size() == 2 ? to_cores : to_memtile) += 1;
        for (const uint32_t end : ends) {
          const bool core = recorder.tracks()[end].name.starts_with("core (0,");
          CHECK(core == (ends.size() == 2));
        }
      }
      CHECK(to_cores == static_cast<size_t>(packets));
      CHECK(to_memtile == 3);
    }
    return m.words(kMem, 0, 2 * kObject);
  };
  CHECK(run(true) == run(false));
}
