// Control packets: what a TileControl port takes from circuits and from packet-switched routes, in
// all kinds of tiles, how it answers reads, and everything that it refuses.
#include <random>

#include "overlay_machine.h"

using namespace npu;
using namespace npu::test;

namespace {

Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

void refused(ErrorKind kind, const Words& words, std::initializer_list<const char*> telling,
             Generation generation = Generation::kNpu2) {
  OverlayMachine m(generation);
  m.configure();
  check_error(kind, telling, [&] { m.send(words); });
}

}  // namespace

TEST_CASE("control packet: writes of one to four registers reach all tiles of a broadcast") {
  OverlayMachine m;
  m.configure();
  const RunReport report =
      m.send(packet(400, {1}) + packet(408, {2, 3}) + packet(416, {4, 5, 6, 7}) +
             packet(0x1F010, {9}) + packet(0x23FFC, {8}));
  CHECK(report.shim_read_bytes == 4 * (5 * 2 + 9));
  for (const At core : kCores) {
    CHECK(m.words(core, 100, 8) == Words{1, 0, 2, 3, 4, 5, 6, 7});
    CHECK(m.lock(core, 1) == 9);
    CHECK(m.array.read_register(core.address(0x23FFC)) == 8);
  }
}

TEST_CASE("control packet: all three writes are to consecutive registers") {
  for (const auto operation :
       {arch::ControlOperation::kWriteIncrement, arch::ControlOperation::kBlock}) {
    OverlayMachine m;
    m.configure();
    Words words = packet(400, {1, 2, 3});
    words[1] = arch::encode_control_word({operation, 3, 400});
    m.send(words + packet(412, {4}));
    CHECK(m.words(kCores[1], 100, 4) == Words{1, 2, 3, 4});
  }
}

namespace {

// Reads `count` words, which are to come back as a packet of this id.
Words reading(uint32_t offset, uint32_t count, uint32_t id) {
  return {arch::packet_header(0),
          arch::encode_control_word({arch::ControlOperation::kRead, count, offset, id})};
}

// Packets of `id` from the TileControl port of core (0,2) go to its own S2MM 0.
void answers_to_dma(OverlayMachine& m, uint32_t id, bool drops_header) {
  m.config.packet_slave(kCores[0], kControlMaster, 0, id, 0x1F, 3, 0);
  m.config.packet_master(kCores[0], cp::kDma, 3, 1, drops_header);
}

}  // namespace

TEST_CASE("control packet: reads are answered in order, with what was written before") {
  for (const bool drops : {false, true}) {
    OverlayMachine m;
    // Only (0,2) takes the packets: a read of both would be answered by both.
    m.config.connect(kCores[0], 0, cp::kNorthMaster);
    answers_to_dma(m, 9, drops);
    const uint32_t length = drops ? 7 : 10;
    m.config.memory(kCores[0], 100, counting(8)).bd(kCores[0], 0, linear(length, 1000));
    m.config.push(kCores[0], kS2MM, 0, 0);
    m.configure();
    m.send(reading(400, 4, 9) + packet(404, {50}) + reading(0x1F000, 1, 9 | 3 << 5) +
           reading(404, 2, 9));
    const Words header = drops ? Words{} : Words{arch::packet_header(9, 0, 0, 2)};
    Words expected = header + Words{1, 2, 3, 4} + header + Words{0};
    expected = expected + header + Words{50, 3};
    expected.resize(length);
    CHECK(m.words(kCores[0], 1000, length) == expected);
  }
}

TEST_CASE("control packet: a read of several tiles is answered by each") {
  OverlayMachine m;
  answers_to_dma(m, 2, true);
  m.config.connect(kCores[1], kControlMaster, cp::kDma);  // a circuit keeps the header
  for (const At core : kCores) {
    m.config.memory(core, 100, {static_cast<uint32_t>(70 + core.row)});
    m.config.bd(core, 0, linear(core.row == 2 ? 1 : 2, 1000)).push(core, kS2MM, 0, 0);
  }
  m.configure();
  m.send(reading(400, 1, 2));
  CHECK(m.words(kCores[0], 1000, 1) == Words{72});
  CHECK(m.words(kCores[1], 1000, 2) == Words{arch::packet_header(2, 0, 0, 3), 73});
}

TEST_CASE("control packet: reads in a timed run") {
  OverlayMachine m;
  m.config.connect(kCores[0], 0, cp::kNorthMaster);
  answers_to_dma(m, 9, true);
  m.config.memory(kCores[0], 100, counting(4)).bd(kCores[0], 0, linear(4, 1000));
  m.config.push(kCores[0], kS2MM, 0, 0);
  // A shim tile's port answers, too: its own channel takes the packet back.
  m.config.connect(kShim0, 0, sp::kS2mm0);
  m.config.connect(kShim0, sp::kMm2s1, 0);
  m.configure();
  const arch::Timing timing{Generation::kNpu2, arch::TimingTable()};
  m.array.set_timing(&timing, true);
  m.send(reading(400, 4, 9));
  CHECK(m.words(kCores[0], 1000, 4) == counting(4));
  CHECK(m.array.timing_report().cycles > 0);
  Script s = m.script();
  Words in = reading(0x14000, 1, 3), out(2);
  s.lock(kShim0, 0, 7).host_bd(0, 2, linear(2), 0).host_bd(0, 3, linear(2), 1);
  s.push(kShim0, kS2MM, 0, 3, 1, true).push(kShim0, kMM2S, 1, 2).sync(kShim0, kS2MM, 0);
  m.run(s, {view(in, false), view(out)});
  CHECK(out == Words{arch::packet_header(3), 7});
}

TEST_CASE("control packet: an answer without a route, and reads of what is no register") {
  refused(ErrorKind::kNoConsumer, reading(400, 1, 2),
          {"core (0,2) TileControl sends on a route that ends in core (0,2)"});
  refused(ErrorKind::kMisaligned, reading(0xFFFFC, 2, 2), {"for 2 words at offset 0xffffc"});
  refused(ErrorKind::kUnknownRegister, reading(0x50000, 1, 2), {"reads address 0x00250000"});
  refused(ErrorKind::kUnsupported, reading(400, 1, 2) + reading(400, 1, 2), {"a second packet"},
          Generation::kNpu1);
}

TEST_CASE("control packet: one per transfer on npu1") {
  OverlayMachine m(Generation::kNpu1);
  m.configure();
  m.send(packet(400, {1, 2}));
  m.send(packet(408, {3}));
  CHECK(m.words(kCores[1], 100, 3) == Words{1, 2, 3});
  refused(ErrorKind::kUnsupported, packet(400, {1, 2}) + packet(408, {3}),
          {"shim (0,0) MM2S 0", "at word 4 of 7", "a second packet", "npu1 takes one packet"},
          Generation::kNpu1);
}

TEST_CASE("control packet: what is not one is refused with what was found") {
  const Words good = packet(400, {1, 2});
  Words words = good;
  words[0] ^= 1u << 31;
  refused(ErrorKind::kFormat, words,
          {"at word 0 of 4", "0x00000000 where a packet header should be, whose parity is even"});
  words = good;
  words[1] ^= 1u << 31;
  refused(ErrorKind::kFormat, words,
          {"at word 1 of 4", "where a control word should be, whose par"});
  for (const uint32_t reserved : {1u << 5, 1u << 11, 1u << 15, 1u << 28, 1u << 30}) {
    words = good;
    words[0] = reserved;
    refused(ErrorKind::kFormat, good + words, {"at word 4 of 8", "with reserved bits 0x"});
  }
  for (uint32_t cut = 1; cut < 4; ++cut) {
    words = good;
    words.resize(cut);
    refused(ErrorKind::kFormat, words,
            {cut == 1   ? "the end of the transfer where a control word"
             : cut == 2 ? "0 of the 2 data words"
                        : "1 of the 2 data words"});
  }
  refused(ErrorKind::kMisaligned, packet(402, {1}), {"at offset 0x00192"});
  refused(ErrorKind::kMisaligned, packet(0xFFFFC, {1, 2}), {"for 2 words at offset 0xffffc"});
  refused(ErrorKind::kUnknownRegister, packet(0x50000, {1}),
          {"control packet of shim (0,0) MM2S 0]", "core (0,2)", "offset 0x50000"});
}

TEST_CASE("control packet: a transfer may take several BDs, up to TLAST") {
  OverlayMachine m;
  m.configure();
  const Words packets = packet(400, {1, 2, 3}) + packet(412, {4});
  Words in = packets;
  for (const uint32_t first : {1u, 2u, 4u, 5u, 7u}) {
    Script s = m.script();
    s.memory(kCores[1], 100, {0, 0, 0, 0});
    Bd head = followed_by(linear(first), 1);
    head.tlast_suppress = true;
    s.host_bd(0, 0, head, 0).host_bd(0, 1, linear(8 - first), 0, 4 * first);
    s.push(kShim0, kMM2S, 0, 0, 1, true).sync(kShim0, kMM2S, 0);
    m.run(s, {view(in, false)});
    CHECK(m.words(kCores[1], 100, 4) == Words{1, 2, 3, 4});
  }
  Script open = m.script();
  Bd head = linear(5);
  head.tlast_suppress = true;
  open.host_bd(0, 0, head, 0).push(kShim0, kMM2S, 0, 0, 1, true).sync(kShim0, kMM2S, 0);
  check_error(ErrorKind::kUnfinished, {"inside a transfer of control packets", "shim (0,0) MM2S 0"},
              [&] { m.run(open, {view(in, false)}); });
}

TEST_CASE("control packet: packet-switched, its header in the data or from the BD") {
  for (const bool from_bd : {false, true}) {
    OverlayMachine m;
    Script& c = m.config;
    c.packet_slave(kCores[0], cp::kSouthSlave, 0, 0, 0x1F, 2, 1);
    c.packet_master(kCores[0], cp::kNorthMaster, 0, 0, false);
    c.packet_master(kCores[0], kControlMaster, 2, 2, false);
    m.configure();
    Words in = packet(400, {1, 2}) + packet(408, {3});
    if (from_bd) in.erase(in.begin());
    Script s = m.script();
    Bd bd = linear(static_cast<uint32_t>(in.size()));
    bd.packet_enable = from_bd;
    s.host_bd(0, 0, bd, 0).push(kShim0, kMM2S, 0, 0, 2, true).sync(kShim0, kMM2S, 0);
    m.run(s, {view(in, false)});
    CHECK(m.words(kCores[0], 100, 3) == Words{1, 2, 3});
    CHECK(m.words(kCores[1], 100, 3) == Words(3));
  }
}

TEST_CASE("control packet: routes that a control port cannot be part of") {
  OverlayMachine drops;
  drops.config.packet_slave(kCores[0], cp::kSouthSlave, 0, 0, 0x1F, 2, 1);
  drops.config.packet_master(kCores[0], kControlMaster, 2, 2, true);
  drops.configure();
  check_error(ErrorKind::kUnsupported, {"drops packet headers", "TileControl port of core (0,2)"},
              [&] { drops.send(packet(400, {1})); });
  OverlayMachine both;
  both.config.connect(kCores[1], cp::kSouthSlave, cp::kDma);
  both.configure();
  check_error(ErrorKind::kUnsupported,
              {"reaches both core (0,3) S2MM 0 and the TileControl port of core (0,2)"},
              [&] { both.send(packet(400, {1})); });
}

TEST_CASE("control packet: memtiles and shim tiles have a port, too; a core can send") {
  Machine m;
  const At mem{0, 1}, core{0, 2};
  m.config.connect(core, cp::kDma, cp::kSouthMaster).connect(mem, mp::kNorthSlave, 6);
  m.config.connect(mem, mp::kNorthSlave, mp::kSouthMaster).connect(kShim0, sp::kNorthSlave, 0);
  m.config.memory(core, 50, packet(0x1D000, {11, 12}));
  m.configure();
  Script s = m.script();
  s.bd(core, 0, releasing(linear(4, 50), 0, 1)).push(core, kMM2S, 0, 0);
  s.raw.mask_poll(core.address(0x1F000), 1, 0x3F);
  const RunReport report = m.run(s);
  CHECK(report.core_read_bytes == 16);
  CHECK(m.words(mem, 0x1D000 / 4, 2) == Words{11, 12});         // its data memory
  CHECK(m.array.read_register(kShim0.address(0x1D000)) == 11);  // its BD 0
  // A packet must not reset the channel that sends it.
  Machine self;
  self.config.connect(core, cp::kDma, kControlMaster).memory(core, 50, packet(0x1DE10, {2}));
  self.configure();
  Script resets = self.script();
  resets.bd(core, 0, linear(3, 50)).push(core, kMM2S, 0, 0);
  check_error(ErrorKind::kUnsupported, {"resets core (0,2) MM2S 0 in the middle of a transfer"},
              [&] { self.run(resets); });
}

TEST_CASE("control packet: damaged transfers are refused or executed") {
  // Random words with a packet's form most of the time: nothing but typed errors.
  std::mt19937 random(7);
  int accepted = 0;
  for (int i = 0; i < 300; ++i) {
    OverlayMachine m;
    m.configure();
    Words words =
        packet(4 * (random() % 64), {1, 2}) + packet(0x20000 + 16 * (random() % 8), {1, 2, 3});
    words[random() % words.size()] ^= 1u << random() % 32;
    try {
      m.send(words);
      ++accepted;
    } catch (const Error& error) {
      REQUIRE(error.what()[0] == '[');
    }
  }
  CHECK(accepted > 50);
  CHECK(accepted < 250);
}
