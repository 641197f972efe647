// Streams find their way from the switch registers alone (hardware.md section 3): circuits over
// many tiles, broadcast, packets by id with headers kept and dropped, arbiters shared by two
// senders, and every way a route can lead nowhere.
#include "emulator_fixture.h"

using namespace npu;
using namespace npu::test;

namespace {

const At kShim{0, 0}, kMem{0, 1}, kCore{0, 2};

Bd packet(uint32_t length, uint64_t base, uint32_t id, uint32_t type = 0) {
  Bd bd = linear(length, base);
  bd.packet_enable = true;
  bd.packet_id = id;
  bd.packet_type = type;
  return bd;
}

// MM2S 0 of a core sends packets that go by id: 1 -> S2MM 0 here, 2 -> S2MM 0 of the core above.
void two_destinations(Machine& m, bool drop_header) {
  Script& c = m.config;
  c.packet_slave(kCore, cp::kDma, 0, 1, 0x1F, 3, 0).packet_slave(kCore, cp::kDma, 1, 2, 0x1F, 3, 1);
  c.packet_master(kCore, cp::kDma, 3, 1, drop_header);
  c.packet_master(kCore, cp::kNorthMaster, 3, 2, false);
  c.packet_slave({0, 3}, cp::kSouthSlave, 0, 0, 0, 0, 2);  // any id
  c.packet_master({0, 3}, cp::kDma, 0, 1 << 2, drop_header);
  c.memory(kCore, 0, counting(64));
}

}  // namespace

TEST_CASE("a circuit up, across and down again") {
  Machine m;
  Script& c = m.config;
  const At up{1, 3};
  c.shim_dma(0);
  c.connect(kShim, sp::kMm2s0, sp::kNorthMaster);
  c.connect(kMem, mp::kSouthSlave, mp::kNorthMaster + 4);
  c.connect(kCore, cp::kSouthSlave + 4, cp::kEastMaster + 2);
  c.connect({1, 2}, cp::kWestSlave + 2, cp::kNorthMaster + 5);
  c.connect(up, cp::kSouthSlave + 5, cp::kDma + 1);
  c.connect(up, cp::kDma, cp::kSouthMaster + 1);
  c.connect({1, 2}, cp::kNorthSlave + 1, cp::kWestMaster + 3);
  c.connect(kCore, cp::kEastSlave + 3, cp::kSouthMaster);
  c.connect(kMem, mp::kNorthSlave, mp::kSouthMaster + 3);
  c.connect(kShim, sp::kNorthSlave + 3, sp::kS2mm1);
  c.bd(up, 0, releasing(linear(32, 100), 0, 1)).bd(up, 1, acquiring(linear(32, 100), 0, -1));
  c.push(up, kS2MM, 1, 0).push(up, kMM2S, 0, 1);
  m.configure();
  Words in = counting(32, 500), out(32);
  Script s;
  s.host_bd(0, 0, linear(32), 0).host_bd(0, 1, linear(32), 1);
  s.push(kShim, kMM2S, 0, 0).push(kShim, kS2MM, 1, 1, 1, true).sync(kShim, kS2MM, 1);
  const RunReport report = m.run(s, {view(in), view(out)});
  CHECK(out == in);
  CHECK(report.core_write_bytes == 128);
  CHECK(report.memtile_write_bytes == 0);  // the switch only
}

TEST_CASE("the shim's row carries streams sideways; both shim channels") {
  Machine m;
  Script& c = m.config;
  c.shim_dma(2).shim_dma(3);
  c.connect({2, 0}, sp::kMm2s1, sp::kEastMaster + 1)
      .connect({3, 0}, sp::kWestSlave + 1, sp::kS2mm0);
  c.connect({3, 0}, sp::kMm2s0, sp::kWestMaster).connect({2, 0}, sp::kEastSlave, sp::kS2mm1);
  m.configure();
  Words in = counting(8), right(8), left(8);
  Script s;
  s.host_bd(2, 0, linear(8), 0).host_bd(3, 0, linear(8), 1);
  s.host_bd(3, 1, linear(8), 1).host_bd(2, 1, linear(8), 2);
  s.push({3, 0}, kS2MM, 0, 0, 1, true).push({2, 0}, kMM2S, 1, 0).sync({3, 0}, kS2MM, 0);
  s.push({3, 0}, kMM2S, 0, 1).push({2, 0}, kS2MM, 1, 1, 1, true).sync({2, 0}, kS2MM, 1);
  m.run(s, {view(in), view(right), view(left)});
  CHECK(right == in);
  CHECK(left == in);
}

TEST_CASE("a broadcast waits for its slowest receiver, and all get the same") {
  for (const bool slow : {false, true}) {
    Machine m;
    Script& c = m.config;
    c.connect(kCore, cp::kDma, cp::kDma).connect(kCore, cp::kDma, cp::kNorthMaster);
    c.connect(kCore, cp::kDma, cp::kEastMaster).connect({0, 3}, cp::kSouthSlave, cp::kDma);
    c.connect({1, 2}, cp::kWestSlave, cp::kDma + 1);
    c.memory(kCore, 0, counting(24)).bd(kCore, 0, linear(24));
    c.bd(kCore, 1, linear(24, 1000)).bd({0, 3}, 1, followed_by(linear(5, 1000), 2));
    c.bd({0, 3}, 2, linear(19, 2000));
    for (int i = 0; i < 3; ++i) {  // 8 words for each release of lock 4
      Bd part = acquiring(linear(8, 1000 + 8 * static_cast<uint64_t>(i)), 4, -1);
      c.bd({1, 2}, i, i < 2 ? followed_by(part, static_cast<uint32_t>(i + 1)) : part);
    }
    c.lock({1, 2}, 4, slow ? 1 : 3);
    m.configure();
    Script s;
    s.push(kCore, kMM2S, 0, 0, 1, true).push(kCore, kS2MM, 0, 1, 1, true);
    s.push({0, 3}, kS2MM, 0, 1, 1, true).push({1, 2}, kS2MM, 1, 0, 1, true);
    if (slow) {
      s.raw.mask_poll(At{1, 2}.address(0x1F040), 0, 0x3F);  // taken once
      s.lock({1, 2}, 4, 2);
    }
    s.sync(kCore, kMM2S, 0).sync(kCore, kS2MM, 0).sync({0, 3}, kS2MM, 0).sync({1, 2}, kS2MM, 1);
    m.run(s);
    CHECK(m.words(kCore, 1000, 24) == counting(24));
    CHECK(m.words({0, 3}, 1000, 6) == Words{1, 2, 3, 4, 5, 0});
    CHECK(m.words({0, 3}, 2000, 19) == counting(19, 6));
    CHECK(m.words({1, 2}, 1000, 24) == counting(24));
  }
}

TEST_CASE("packets go by id; headers are dropped or kept at the end") {
  // id, type 5 << 12, row 2 << 16, column 0 << 21; bit 31 makes the number of ones odd.
  constexpr uint32_t kHeader1 = 0x80020001, kHeader2 = 0x80025002;
  static_assert(__builtin_popcount(kHeader1) == 3 && __builtin_popcount(kHeader2) == 5);
  for (const bool drop : {true, false}) {
    Machine m;
    two_destinations(m, drop);
    Script& c = m.config;
    c.bd(kCore, 0, followed_by(packet(3, 0, 1), 1))
        .bd(kCore, 1, followed_by(packet(2, 10, 2, 5), 2));
    c.bd(kCore, 2, packet(1, 20, 1));
    const uint32_t here = drop ? 4 : 6, above = drop ? 2 : 3;
    c.bd(kCore, 3, linear(here, 1000)).bd({0, 3}, 3, linear(above, 1000));
    m.configure();
    Script s;
    s.push(kCore, kMM2S, 0, 0).push(kCore, kS2MM, 0, 3, 1, true);
    s.push({0, 3}, kS2MM, 0, 3, 1, true).sync(kCore, kS2MM, 0).sync({0, 3}, kS2MM, 0);
    m.run(s);
    if (drop) {
      CHECK(m.words(kCore, 1000, 4) == Words{1, 2, 3, 21});
      CHECK(m.words({0, 3}, 1000, 2) == Words{11, 12});
    } else {
      CHECK(m.words(kCore, 1000, 6) == Words{kHeader1, 1, 2, 3, kHeader1, 21});
      CHECK(m.words({0, 3}, 1000, 3) == Words{kHeader2, 11, 12});
    }
  }
}

TEST_CASE("without packets in the BD the first word of the data is the header") {
  for (const bool drop : {true, false}) {
    Machine m;
    two_destinations(m, drop);
    Script& c = m.config;
    c.memory(kCore, 0, {2, 50, 51, 1, 60});
    c.bd(kCore, 0, followed_by(linear(3, 0), 1)).bd(kCore, 1, linear(2, 3));
    c.bd(kCore, 3, linear(drop ? 1 : 2, 1000)).bd({0, 3}, 3, linear(drop ? 2 : 3, 1000));
    m.configure();
    Script s;
    s.push(kCore, kMM2S, 0, 0).push(kCore, kS2MM, 0, 3, 1, true);
    s.push({0, 3}, kS2MM, 0, 3, 1, true).sync(kCore, kS2MM, 0).sync({0, 3}, kS2MM, 0);
    const RunReport report = m.run(s);
    CHECK(m.words(kCore, 1000, 2) == (drop ? Words{60, 0} : Words{1, 60}));
    CHECK(m.words({0, 3}, 1000, 3) == (drop ? Words{50, 51, 0} : Words{2, 50, 51}));
    CHECK(report.core_read_bytes == 20);  // header words leave the memory, too
  }
}

TEST_CASE("a header in the data may meet its first packet switch behind a circuit") {
  Machine m;
  Script& c = m.config;
  c.connect(kCore, cp::kDma, cp::kNorthMaster);
  c.packet_slave({0, 3}, cp::kSouthSlave, 0, 6, 0x1F, 1, 0);
  c.packet_master({0, 3}, cp::kDma, 1, 1, true);
  c.memory(kCore, 0, {6, 70, 71}).bd(kCore, 0, linear(3)).bd({0, 3}, 0, linear(2, 1000));
  m.configure();
  Script s;
  s.push(kCore, kMM2S, 0, 0).push({0, 3}, kS2MM, 0, 0, 1, true).sync({0, 3}, kS2MM, 0);
  m.run(s);
  CHECK(m.words({0, 3}, 1000, 2) == Words{70, 71});
}

TEST_CASE("a packet that is only its header, from data") {
  Machine m;
  two_destinations(m, true);
  m.config.memory(kCore, 0, {1, 2, 77});
  m.config.bd(kCore, 0, followed_by(linear(1, 0), 1)).bd(kCore, 1, linear(2, 1));
  m.config.bd({0, 3}, 3, linear(1, 1000));
  m.configure();
  Script s;
  s.push(kCore, kMM2S, 0, 0, 1, true).push({0, 3}, kS2MM, 0, 3, 1, true);
  s.sync({0, 3}, kS2MM, 0).sync(kCore, kMM2S, 0);
  m.run(s);
  CHECK(m.word({0, 3}, 1000) == 77);
}

TEST_CASE("packets over a circuit: the header travels as a word") {
  Machine m;
  m.loopback(kCore);
  m.config.memory(kCore, 0, counting(4));
  m.config.bd(kCore, 0, followed_by(linear(2), 1)).bd(kCore, 1, packet(2, 2, 9));
  m.config.bd(kCore, 2, linear(5, 1000));
  m.configure();
  Script s;
  s.push(kCore, kMM2S, 0, 0).push(kCore, kS2MM, 0, 2, 1, true).sync(kCore, kS2MM, 0);
  m.run(s);
  CHECK(m.words(kCore, 1000, 5) == Words{1, 2, 0x00020009, 3, 4});  // three ones: bit 31 clear
}

TEST_CASE("one packet for several receivers by msel") {
  Machine m;
  Script& c = m.config;
  c.packet_slave(kCore, cp::kDma, 0, 4, 0x1F, 5, 2);
  c.packet_master(kCore, cp::kDma, 5, 1 << 2, true);               // here
  c.packet_master(kCore, cp::kDma + 1, 5, 1 << 1, true);           // another msel: not addressed
  c.packet_master(kCore, cp::kNorthMaster, 5, 1 << 2 | 1, false);  // above
  c.packet_slave({0, 3}, cp::kSouthSlave, 0, 4, 0x1F, 0, 0);
  c.packet_master({0, 3}, cp::kDma, 0, 1, false);  // keeps the header, unlike the first
  c.memory(kCore, 0, counting(4)).bd(kCore, 0, packet(4, 0, 4));
  c.bd(kCore, 1, linear(4, 1000)).bd({0, 3}, 1, linear(5, 1000));
  m.configure();
  Script s;
  s.push(kCore, kMM2S, 0, 0).push(kCore, kS2MM, 0, 1, 1, true).push({0, 3}, kS2MM, 0, 1, 1, true);
  s.sync(kCore, kS2MM, 0).sync({0, 3}, kS2MM, 0);
  m.run(s);
  CHECK(m.words(kCore, 1000, 4) == counting(4));
  CHECK(m.words({0, 3}, 1001, 4) == counting(4));
  CHECK((m.word({0, 3}, 1000) & 0x1F) == 4);
}

TEST_CASE("slots are tried in order, by masked id") {
  Machine m;
  Script& c = m.config;
  c.packet_slave(kCore, cp::kDma, 0, 8, 0x18, 0, 0);  // ids 8-15
  c.packet_slave(kCore, cp::kDma, 1, 0, 0, 1, 0);     // everything else
  c.packet_master(kCore, cp::kDma, 0, 1, true).packet_master(kCore, cp::kDma + 1, 1, 1, true);
  c.memory(kCore, 0, counting(8));
  const uint32_t ids[] = {15, 16, 7, 8};
  for (uint32_t i = 0; i < 4; ++i) {
    const Bd bd = packet(1, i, ids[i]);
    c.bd(kCore, static_cast<int>(i), i < 3 ? followed_by(bd, i + 1) : bd);
  }
  c.bd(kCore, 4, linear(2, 1000)).bd(kCore, 5, linear(2, 2000));
  m.configure();
  Script s;
  s.push(kCore, kMM2S, 0, 0, 1, true).push(kCore, kS2MM, 0, 4).push(kCore, kS2MM, 1, 5);
  s.sync(kCore, kMM2S, 0);
  m.run(s);
  CHECK(m.words(kCore, 1000, 2) == Words{1, 4});
  CHECK(m.words(kCore, 2000, 2) == Words{2, 3});
}

namespace {

// MM2S 0 and 1 of a core share arbiter 0 into S2MM 0.
void shared_arbiter(Machine& m) {
  Script& c = m.config;
  c.packet_slave(kCore, cp::kDma, 0, 1, 0x1F, 0, 0)
      .packet_slave(kCore, cp::kDma + 1, 0, 2, 0x1F, 0, 0);
  c.packet_master(kCore, cp::kDma, 0, 1, true).memory(kCore, 0, counting(64));
  c.bd(kCore, 8, linear(8, 1000));
}

}  // namespace

TEST_CASE("an arbiter belongs to one packet until its TLAST") {
  Machine m;
  shared_arbiter(m);
  m.config.bd(kCore, 0, packet(4, 0, 1)).bd(kCore, 1, packet(4, 10, 2));
  m.configure();
  Script s;
  s.push(kCore, kMM2S, 1, 1).push(kCore, kMM2S, 0, 0).push(kCore, kS2MM, 0, 8, 1, true);
  s.sync(kCore, kS2MM, 0);
  m.run(s);
  const Words got = m.words(kCore, 1000, 8);
  const bool first = got == Words{1, 2, 3, 4, 11, 12, 13, 14};
  const bool second = got == Words{11, 12, 13, 14, 1, 2, 3, 4};
  CHECK((first || second));
}

TEST_CASE("suppressed TLAST keeps the packet open across BDs") {
  Machine m;
  shared_arbiter(m);
  Bd half = followed_by(packet(2, 0, 1), 2);
  half.tlast_suppress = true;
  // The second half waits for the stream, long after the other sender was ready.
  m.config.bd(kCore, 0, half).bd(kCore, 2, acquiring(packet(2, 2, 1), 3, -1));
  m.config.bd(kCore, 1, packet(4, 10, 2));
  m.configure();
  Script s;
  s.push(kCore, kMM2S, 0, 0).push(kCore, kMM2S, 1, 1).push(kCore, kS2MM, 0, 8, 1, true);
  Script stuck = s;
  stuck.sync(kCore, kS2MM, 0);
  s.raw.mask_poll(kCore.address(0x1DF10), 1u << 2, 1u << 2);  // the second half waits for its lock
  s.lock(kCore, 3, 1).sync(kCore, kS2MM, 0);
  m.run(s);
  CHECK(m.words(kCore, 1000, 8) == Words{1, 2, 3, 4, 11, 12, 13, 14});

  m.configure();
  check_error(ErrorKind::kDeadlock,
              {"core (0,2) MM2S 1 waits for arbiter 0 of core (0,2), held by core (0,2) MM2S 0",
               "core (0,2) MM2S 0 waits for lock 3 of core (0,2)"},
              [&] { m.run(stuck); });
}

TEST_CASE("a channel reset gives its arbiters back") {
  Machine m;
  shared_arbiter(m);
  Bd half = followed_by(packet(2, 0, 1), 2);
  half.tlast_suppress = true;
  m.config.bd(kCore, 0, half).bd(kCore, 2, acquiring(packet(2, 2, 1), 3, -1));
  m.config.bd(kCore, 1, packet(6, 10, 2));
  m.configure();
  Script s;
  s.push(kCore, kMM2S, 0, 0).push(kCore, kMM2S, 1, 1).push(kCore, kS2MM, 0, 8, 1, true);
  s.raw.mask_poll(kCore.address(0x1DF10), 1u << 2, 1u << 2);
  s.control(kCore, kMM2S, 0, 2).control(kCore, kMM2S, 0, 0).sync(kCore, kS2MM, 0);
  m.run(s);
  CHECK(m.words(kCore, 1000, 8) == Words{1, 2, 11, 12, 13, 14, 15, 16});
}

TEST_CASE("a route that is rewritten is found afresh") {
  Machine m;
  m.loopback(kCore);
  m.config.memory(kCore, 0, counting(4)).bd(kCore, 0, linear(4)).bd(kCore, 1, linear(4, 1000));
  m.config.bd(kCore, 2, linear(4, 2000));
  m.configure();
  Script s;
  s.push(kCore, kMM2S, 0, 0).push(kCore, kS2MM, 0, 1, 1, true).sync(kCore, kS2MM, 0);
  s.write(kCore, Script::master_register(kCore, cp::kDma), 0)
      .connect(kCore, cp::kDma, cp::kDma + 1);
  s.push(kCore, kMM2S, 0, 0).push(kCore, kS2MM, 1, 2, 1, true).sync(kCore, kS2MM, 1);
  m.run(s);
  CHECK(m.words(kCore, 1000, 4) == counting(4));
  CHECK(m.words(kCore, 2000, 4) == counting(4));
}

TEST_CASE("packets of one id go where their slot says when they set out") {
  Machine m;
  two_destinations(m, true);
  m.config.bd(kCore, 0, packet(4, 0, 1)).bd(kCore, 1, packet(4, 8, 2));
  m.config.bd(kCore, 3, linear(4, 1000)).bd({0, 3}, 3, linear(4, 1000));
  m.configure();
  Script s;
  const auto send = [&](int bd, At to) {
    s.push(kCore, kMM2S, 0, bd).push(to, kS2MM, 0, 3, 1, true).sync(to, kS2MM, 0);
  };
  send(0, kCore);
  send(1, {0, 3});
  s.packet_slave(kCore, cp::kDma, 0, 1, 0x1F, 3, 1);  // id 1 goes up now
  send(0, {0, 3});
  s.packet_slave(kCore, cp::kDma, 1, 2, 0x1F, 3, 0);  // and id 2 stays
  send(1, kCore);
  m.run(s);
  CHECK(m.words({0, 3}, 1000, 4) == counting(4));
  CHECK(m.words(kCore, 1000, 4) == counting(4, 9));
}

namespace {

// Sends one word from a core (or the shim) over the routes of `setup`.
void no_consumer(const std::function<void(Script&)>& setup,
                 std::initializer_list<const char*> telling, At from = kCore,
                 const Bd& bd = linear(1)) {
  Machine m;
  setup(m.config);
  m.configure();
  Script s;
  Words data(4);
  if (from.row == 0) {
    s.host_bd(0, 0, bd, 0);
  } else {
    s.bd(from, 0, bd);
  }
  s.push(from, kMM2S, 0, 0, 1, true).sync(from, kMM2S, 0);
  check_error(ErrorKind::kNoConsumer, telling, [&] { m.run(s, {view(data)}); });
}

}  // namespace

TEST_CASE("streams that end nowhere say where") {
  no_consumer([](Script&) {}, {"[submit] core (0,2) MM2S 0", "slave port DMA 0 is not enabled"});
  no_consumer([](Script& c) { c.write(kCore, Script::slave_register(kCore, cp::kDma), 1u << 31); },
              {"no master port takes slave port DMA 0"});
  no_consumer([](Script& c) { c.connect(kCore, cp::kDma, cp::kNorthMaster); },
              {"ends in core (0,3)", "slave port South 0 is not enabled"});
  no_consumer([](Script& c) { c.connect(kCore, cp::kDma, cp::kWestMaster); },
              {"ends in core (0,2)", "West 0 leads out of the array"});
  no_consumer(  // one branch of two
      [](Script& c) {
        c.connect(kCore, cp::kDma, cp::kDma).connect(kCore, cp::kDma, cp::kEastMaster + 3);
      },
      {"ends in core (1,2)", "every branch"});
  no_consumer([](Script& c) { c.connect(kShim, sp::kMm2s0, sp::kS2mm0); },
              {"shim (0,0) MM2S 0", "shim mux (0x1F000 = 0x00000000)"}, kShim);
  no_consumer(
      [](Script& c) { c.connect(kShim, sp::kMm2s0, sp::kS2mm0).write(kShim, 0x1F000, 1u << 10); },
      {"South 2 is not connected to the DMA (demux 0x1F004 = 0x00000000)"}, kShim);
  no_consumer([](Script& c) { c.shim_dma(0).connect(kShim, sp::kMm2s0, sp::kSouthMaster + 5); },
              {"South 5 is not connected to the DMA"}, kShim);
}

TEST_CASE("packets that match nothing, loops and branches that meet") {
  const Bd id9 = packet(1, 0, 9);
  no_consumer([](Script& c) { c.packet_slave(kCore, cp::kDma, 0, 8, 0x1F, 0, 0); },
              {"no slot of slave port DMA 0 matches packet id 9"}, kCore, id9);
  no_consumer(
      [](Script& c) {
        c.packet_slave(kCore, cp::kDma, 0, 9, 0x1F, 0, 1)
            .packet_master(kCore, cp::kDma, 0, 1, true);
      },
      {"no master port takes slave port DMA 0"}, kCore, id9);
  no_consumer(  // north and back, to the arbiter it came from
      [](Script& c) {
        c.packet_slave(kCore, cp::kDma, 0, 9, 0x1F, 0, 0);
        c.packet_master(kCore, cp::kNorthMaster, 0, 1, false);
        c.connect({0, 3}, cp::kSouthSlave, cp::kSouthMaster);
        c.packet_slave(kCore, cp::kNorthSlave, 0, 9, 0x1F, 0, 0);
      },
      {"meets itself at arbiter 0 of core (0,2)", "loop"}, kCore, id9);
  no_consumer(  // two copies of a packet at one receiver: North and East meet in the north-east
      [](Script& c) {
        c.packet_slave(kCore, cp::kDma, 0, 9, 0x1F, 0, 0);
        c.packet_master(kCore, cp::kNorthMaster, 0, 1, false);
        c.packet_master(kCore, cp::kEastMaster, 0, 1, false);
        c.connect({0, 3}, cp::kSouthSlave, cp::kEastMaster);
        c.connect({1, 2}, cp::kWestSlave, cp::kNorthMaster);
        c.packet_slave({1, 3}, cp::kWestSlave, 0, 9, 0x1F, 0, 0);
        c.packet_slave({1, 3}, cp::kSouthSlave, 0, 9, 0x1F, 0, 0);
        c.packet_master({1, 3}, cp::kDma, 0, 1, true);
      },
      {"meets itself at arbiter 0 of core (1,3)"}, kCore, id9);
}

TEST_CASE("consumers that are neither DMA channels, cores nor control ports are not modelled") {
  Machine m;
  m.config.connect(kCore, cp::kDma, 4).bd(kCore, 0, linear(1)).push(kCore, kMM2S, 0, 0);
  m.configure();
  check_error(ErrorKind::kUnsupported,
              {"core (0,2) MM2S 0", "the FIFO 0 port of core (0,2); only DMA channels"},
              [&] { m.run(Script()); });
}
