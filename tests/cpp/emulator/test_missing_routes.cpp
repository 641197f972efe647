// Streams that push before they make a route, or push tasks that no data comes for. On Array
// senders wait for the route, and tasks that nothing sends to, or only a trace unit, are dropped at
// the end and reported; what is still missing then is an error. Streams of devices (require_waits)
// are excused nothing.
#include "arch/timing.h"
#include "emulator_fixture.h"

using namespace npu;
using namespace npu::test;

namespace {

const At kShim{0, 0}, kMem{0, 1}, kCore{0, 2};
constexpr int kCoreTrace = 23;

// Words of core (0,2) to shim S2MM 0.
void send_to_shim(Machine& m) {
  m.config.connect(kCore, cp::kDma, cp::kSouthMaster);
  m.config.connect(kMem, mp::kNorthSlave, mp::kSouthMaster);
  m.config.connect(kShim, sp::kNorthSlave, sp::kS2mm0).shim_dma(0);
  m.config.memory(kCore, 0, counting(4)).bd(kCore, 0, linear(4)).push(kCore, kMM2S, 0, 0);
}

// Packets of these ids from a slave port of the core to shim S2MM 1.
void route_packets(Script& s, int slave, int slot, uint32_t id) {
  s.packet_slave(kCore, slave, 0, id, 0x1F, 0, 0);
  s.packet_master(kCore, cp::kSouthMaster + 1, 0, 1, false);
  s.packet_slave(kMem, mp::kNorthSlave + 1, slot, id, 0x1F, 0, 0);
  s.packet_master(kMem, mp::kSouthMaster + 1, 0, 1, false);
  s.packet_slave(kShim, sp::kNorthSlave + 1, slot, id, 0x1F, 0, 0);
  s.packet_master(kShim, sp::kS2mm1, 0, 1, true).shim_dma(0);
}

Script push_on_s2mm1() {
  Script s;
  s.host_bd(0, 0, linear(4), 0).push(kShim, kS2MM, 1, 0);
  return s;
}

// A memory tile sends as soon as its queue is written; the switches come after. `last`: as well.
Script routes_after_the_push(bool last = true) {
  Script s;
  s.memory(kMem, 0, counting(4)).bd(kMem, 0, linear(4, kOwnMem)).push(kMem, kMM2S, 0, 0);
  s.connect(kShim, sp::kNorthSlave, sp::kS2mm0).shim_dma(0);
  if (last) s.connect(kMem, mp::kDma, mp::kSouthMaster);
  s.host_bd(0, 0, linear(4), 0).push(kShim, kS2MM, 0, 0, 1, true).sync(kShim, kS2MM, 0);
  return s;
}

}  // namespace

TEST_CASE("a task on the wrong shim channel is dropped, or an error where waits are required") {
  for (const bool required : {false, true}) {
    Machine m;
    send_to_shim(m);
    m.configure();
    m.array.require_waits(required);
    Words out(4, 7);
    if (required) {
      check_error(ErrorKind::kUnfinished, {"[submit]", "shim (0,0) S2MM 1 has tasks pending"},
                  [&] { m.run(push_on_s2mm1(), {view(out)}); });
      continue;
    }
    m.run(push_on_s2mm1(), {view(out)});
    CHECK(m.array.dropped() == std::vector<std::string>{"shim (0,0) S2MM 1"});
    CHECK(out == Words(4, 7));
    Script both = push_on_s2mm1();
    both.push(kShim, kS2MM, 1, 0).host_bd(0, 1, linear(4), 0).push(kShim, kS2MM, 0, 1);
    m.run(both, {view(out)});
    CHECK(m.array.dropped() == std::vector<std::string>(2, "shim (0,0) S2MM 1"));
    CHECK(out == counting(4));
    m.run(Script());
    CHECK(m.array.dropped().empty());
  }
}

TEST_CASE("an address that nothing patches is an error where waits are required") {
  Machine m;
  m.configure();
  m.array.require_waits(true);
  Script s;
  s.bd(kShim, 0, linear(4, 0x400)).push(kShim, kS2MM, 1, 0);
  check_error(ErrorKind::kOutOfRange, {"shim (0,0) S2MM 1", "where no argument lies"},
              [&] { m.run(s); });
}

TEST_CASE("a channel where a trace leads is waited for if data leads there, too") {
  // The core's DMA sends to it as packets of the trace's id or of another; or not to it at all,
  // over the same wire.
  for (const int data : {0, 1, 2}) {
    Machine m;
    route_packets(m.config, kCoreTrace, 0, 1);
    if (data) route_packets(m.config, cp::kDma, data - 1, static_cast<uint32_t>(data));
    if (data == 0) {
      m.config.packet_slave(kCore, cp::kDma, 0, 2, 0x1F, 0, 0);
      m.config.packet_slave(kMem, mp::kNorthSlave + 1, 1, 2, 0x1F, 1, 0);
      m.config.packet_master(kMem, mp::kDma, 1, 1, true);
    }
    m.configure();
    Words out(4, 7);
    if (data) {
      check_error(ErrorKind::kUnfinished, {"shim (0,0) S2MM 1 has tasks pending"},
                  [&] { m.run(push_on_s2mm1(), {view(out)}); });
      continue;
    }
    m.run(push_on_s2mm1(), {view(out)});
    CHECK(m.array.dropped() == std::vector<std::string>{"shim (0,0) S2MM 1"});
  }
}

TEST_CASE("routes made after the push are waited for, in timed runs, too") {
  const arch::Timing timing{Generation::kNpu2, arch::TimingTable()};
  for (const bool timed : {false, true}) {
    for (const bool last : {true, false}) {
      Machine m;
      m.configure();
      if (timed) m.array.set_timing(&timing, true);
      Words out(4);
      if (last) {
        m.run(routes_after_the_push(), {view(out)});
        CHECK(out == counting(4));
        continue;
      }
      check_error(ErrorKind::kNoConsumer,
                  {timed ? "[simulate]" : "[submit]", "memtile (0,1) MM2S 0", "route"},
                  [&] { m.run(routes_after_the_push(false), {view(out)}); });
    }
  }
  Machine m;
  m.configure();
  m.array.require_waits(true);
  Words out(4);
  check_error(ErrorKind::kNoConsumer, {"memtile (0,1) MM2S 0", "route"},
              [&] { m.run(routes_after_the_push(), {view(out)}); });
}

TEST_CASE("a shim channel waits for its multiplexer") {
  Machine m;
  m.config.connect(kShim, sp::kMm2s0, sp::kNorthMaster).connect(kMem, mp::kSouthSlave, mp::kDma);
  m.config.bd(kMem, 0, linear(4, kOwnMem)).push(kMem, kS2MM, 0, 0);
  m.configure();
  Script s;
  s.host_bd(0, 0, linear(4), 0).push(kShim, kMM2S, 0, 0, 1, true).shim_dma(0);
  s.sync(kShim, kMM2S, 0);
  Words in = counting(4);
  m.run(s, {view(in)});
  CHECK(m.words(kMem, 0, 4) == in);
}

TEST_CASE("what a sender lacks when a stream loads a configuration is an error") {
  const arch::Timing timing{Generation::kNpu2, arch::TimingTable()};
  for (const bool timed : {false, true}) {
    Machine m;
    m.configure();
    const Words nothing = Script().words();
    m.array.add_pdi(1, std::as_bytes(std::span(nothing)), {});
    if (timed) m.array.set_timing(&timing, true);
    Script s;
    s.bd(kMem, 0, linear(4, kOwnMem)).push(kMem, kMM2S, 0, 0);
    s.raw.load_pdi(1, 0, 0);
    check_error(ErrorKind::kNoConsumer, {"memtile (0,1) MM2S 0", "route"}, [&] { m.run(s); });
  }
}

TEST_CASE("a reset of the channel ends its wait for a route") {
  Machine m;
  m.configure();
  Script s;
  s.bd(kMem, 0, linear(4, kOwnMem)).push(kMem, kMM2S, 0, 0);
  s.connect(kMem, mp::kNorthSlave, mp::kSouthMaster);  // settles: it has no route
  s.control(kMem, kMM2S, 0, 2).control(kMem, kMM2S, 0, 0);
  m.run(s);
  CHECK(m.array.find_tile(0, 1)->channel(kMM2S, 0).idle());
}

TEST_CASE("what a stream does after the route waits for what the sender then does") {
  // Its BD waits for the route; then the stream writes the memory that it reads.
  Machine m;
  m.loopback(kMem, 1, 1);
  m.configure();
  Script s;
  s.memory(kMem, 0, counting(4)).bd(kMem, 1, linear(4, kOwnMem + 64)).push(kMem, kS2MM, 0, 1);
  s.bd(kMem, 0, linear(4, kOwnMem)).push(kMem, kMM2S, 0, 0).connect(kMem, mp::kDma, mp::kDma);
  s.memory(kMem, 0, Words(4, 9));
  m.run(s);
  CHECK(m.words(kMem, 64, 4) == counting(4));
}
