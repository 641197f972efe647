// The emulator fails loudly: every kind of error it can raise, with the words
// a user needs to find the fault; deadlock reports that name who waits for what; recovery by
// configuring again; and runs that would never end.
#include "emulator_fixture.h"

using namespace npu;
using namespace npu::test;

namespace {

const At kShim{0, 0}, kMem{0, 1}, kCore{0, 2};

// A loop-back machine per tile kind, its runtime stream and two buffers of 64 words.
struct Case {
  Machine m;
  Script s;
  Words in = counting(64), out = Words(64);
  explicit Case(Generation generation = Generation::kNpu2) : m(generation), s(generation) {
    m.loopback(kShim).loopback(kMem).loopback(kCore);
  }
  void run() { m.run(s, {view(in), view(out)}); }
  // Runs and expects the error, then that the array wants a new configuration and works after it.
  void expect(ErrorKind kind, std::initializer_list<const char*> telling) {
    m.configure();
    check_error(kind, telling, [&] { run(); });
    check_error(ErrorKind::kArgument, {"[submit]", "configure it again"}, [&] { m.run(Script()); });
    Machine& machine = m;
    machine.configure();
    Script copy;
    copy.host_bd(0, 0, linear(64), 0).host_bd(0, 1, linear(64), 1);
    copy.push(kShim, kMM2S, 0, 0).push(kShim, kS2MM, 0, 1, 1, true).sync(kShim, kS2MM, 0);
    out.assign(64, 0);
    Words source = counting(64);
    machine.run(copy, {view(source), view(out)});
    CHECK(out == source);
  }
};

}  // namespace

TEST_CASE("unknown_operation: decodable operations that need firmware") {
  Case c;
  c.s.raw.noop();
  c.s.raw.load_pdi(1, 64, 0x123456780);
  c.expect(ErrorKind::kUnknownOperation,
           {"[submit: operation 1 LOAD", "opcode 0x08 at byte 20", "firmware"});
}

TEST_CASE("operations without an effect are executed as such") {
  Case c;
  c.m.configure();
  c.s.raw.noop();
  c.s.raw.preempt(1);
  CHECK(c.m.run(c.s).operations == 2);
}

TEST_CASE("unknown_register: no tile, no register, none on this generation") {
  const struct {
    uint32_t address;
    std::initializer_list<const char*> telling;
  } cases[] = {
      {arch::tile_address(8, 2, 0), {"tile (8,2)", "npu2 has columns 0..7 and rows 0..5"}},
      {arch::tile_address(0, 6, 0), {"tile (0,6)"}},
      {kCore.address(0x10000), {"0x00210000", "core (0,2)", "no register at offset 0x10000"}},
      {kShim.address(0), {"shim (0,0)"}},
      {kMem.address(0x80000), {"memtile (0,1)", "0x80000"}},
      {kMem.address(0xA06F8), {"no register"}},
      {kCore.address(0x1D018), {"word 6 of BD 0 of core (0,2)", "6 words"}},
      {kCore.address(0x1F004), {"no lock register", "lock i is at 0x1f000 + 0x10 * i, i < 16"}},
      {kCore.address(0x3F000 + 4 * 23), {"no stream-switch register", "23 master and 25 slave"}},
      {kMem.address(0xB0100 + 4 * 18), {"17 master and 18 slave"}},
      {kShim.address(0x3F200 + 0x10 * 23), {"22 master and 23 slave"}},
  };
  for (const auto& each : cases) {
    Case c;
    c.s.raw.write(each.address, 1);
    CAPTURE(each.address);
    c.expect(ErrorKind::kUnknownRegister, each.telling);
  }
  Case masked, polled, four_columns(Generation::kNpu1), pad(Generation::kNpu1), block;
  masked.s.raw.mask_write(kCore.address(0x10000), 1, 1);
  masked.expect(ErrorKind::kUnknownRegister, {"MASKWRITE", "reads address 0x00210000"});
  polled.s.raw.mask_poll(kShim.address(0), 0, 0);
  polled.expect(ErrorKind::kUnknownRegister, {"MASKPOLL"});
  block.s.memory(kCore, 0x3FFF, {1, 2});  // runs over the end of the memory
  block.expect(ErrorKind::kUnknownRegister, {"BLOCKWRITE", "offset 0x10000"});
  for (Case* c : {&four_columns, &pad}) c->m.configure();
  four_columns.s.raw.write(arch::tile_address(4, 0, 0x1D000), 0);
  check_error(ErrorKind::kUnknownRegister, {"npu1 has columns 0..3"}, [&] { four_columns.run(); });
  pad.s.write(kMem, 0xA06E0, 5);
  check_error(ErrorKind::kUnknownRegister, {"npu1 has no register at offset 0xa06e0"},
              [&] { pad.run(); });
}

TEST_CASE("undecoded writes are counted, not refused") {
  Machine m;
  m.config.write(kCore, 0x34000, 1).write(kMem, 0x94000, 2).write(kShim, 0x34000, 3);
  CHECK(m.configure().undecoded_writes == 3);
  CHECK(m.array.read_register(kMem.address(0x94000)) == 2);
  Script s;
  CHECK(m.run(s).undecoded_writes == 3);
  CHECK(m.run(s.write(kCore, 0x34000, 0)).undecoded_writes == 4);
  CHECK(m.configure().undecoded_writes == 3);
}

TEST_CASE("invalid_bd: not written, out of reach, in a chain, livelock, packets or padding wrong") {
  {
    Case c;
    c.s.push(kCore, kMM2S, 0, 5);
    c.expect(ErrorKind::kInvalidBd, {"core (0,2) MM2S 0", "BD 5", "valid bit"});
  }
  for (const auto& [channel, bd] : {std::pair{0, 24}, std::pair{1, 23}, std::pair{2, 63}}) {
    Case c;
    c.s.push(kMem, kMM2S, channel, bd);
    c.expect(ErrorKind::kInvalidBd,
             {"operation 0 WRITE", "pushes BD", "even channels 0-23, odd ones 24-47"});
  }
  {
    Case c;
    c.s.bd(kMem, 3, followed_by(linear(0, kOwnMem), 30)).push(kMem, kMM2S, 0, 3);
    c.s.sync(kMem, kMM2S, 0);
    c.expect(ErrorKind::kInvalidBd, {"memtile (0,1) MM2S 0", "reaches BD 30 in its chain"});
  }
  {
    Case c;
    c.s.bd(kCore, 3, followed_by(linear(0), 3)).push(kCore, kMM2S, 0, 3).sync(kCore, kMM2S, 0);
    c.expect(ErrorKind::kInvalidBd, {"livelock", "chain of BDs of length 0", "BD 3"});
  }
  {
    Case c;
    Bd bd = linear(0);
    bd.packet_enable = true;
    c.s.bd(kCore, 3, bd).push(kCore, kMM2S, 0, 3);
    c.expect(ErrorKind::kInvalidBd, {"packets enabled but length 0"});
  }
  Bd pad = linear(8, kOwnMem);
  pad.wrap[0] = 4;
  pad.pad_before[0] = 1;
  {
    Case c;
    c.s.bd(kMem, 0, pad).push(kMem, kMM2S, 0, 0).sync(kMem, kMM2S, 0);
    c.expect(ErrorKind::kInvalidBd, {"BD 0, whose padding does not divide its length"});
  }
  {
    Case c;
    pad.length = 5;
    c.s.bd(kMem, 0, pad).push(kMem, kS2MM, 0, 0).sync(kMem, kS2MM, 0);
    c.expect(ErrorKind::kInvalidBd, {"S2MM 0", "only memtile MM2S channels can pad"});
  }
}

TEST_CASE("bd_in_use: a BD is rewritten without waiting for its task") {
  for (const int how : {0, 1, 2, 3}) {  // running, queued, patched, next in the chain
    Case c;
    c.s.host_bd(0, 0, linear(8), 0);
    if (how == 3) c.s.host_bd(0, 0, followed_by(linear(8), 1), 0).host_bd(0, 1, linear(8), 0);
    c.s.push(kShim, kMM2S, 0, 0);
    if (how == 1) c.s.host_bd(0, 1, linear(8), 0).push(kShim, kMM2S, 0, 1);
    if (how == 2) {
      c.s.raw.address_patch(kShim.address(0x1D004), 0, 4);
    } else {
      c.s.bd(kShim, how == 0 ? 0 : 1, linear(4));
    }
    c.expect(ErrorKind::kBdInUse,
             {"rewrites BD", "of shim (0,0) while shim (0,0) MM2S 0 still needs it",
              "wait for that transfer's token"});
  }
  {
    Case c;  // in the second BD of a pass, with another pass to come
    c.s.bd(kCore, 0, followed_by(linear(4), 1)).bd(kCore, 1, linear(4)).bd(kCore, 2, linear(5, 99));
    c.s.push(kCore, kMM2S, 0, 0, 2).push(kCore, kS2MM, 0, 2, 1, true).sync(kCore, kS2MM, 0);
    c.s.bd(kCore, 0, linear(4));
    c.expect(ErrorKind::kBdInUse, {"rewrites BD 0", "moved 1 of 4 words of BD 1"});
  }
  // A wait that implies the end of the task is enough, whatever channel it names.
  Case c;
  c.m.configure();
  for (int i = 0; i < 3; ++i) {
    c.s.host_bd(0, 0, linear(8), 0).host_bd(0, 1, linear(8), 1);
    c.s.push(kShim, kMM2S, 0, 0).push(kShim, kS2MM, 0, 1, 1, true).sync(kShim, kS2MM, 0);
  }
  c.run();
}

TEST_CASE("queue_overrun: more than one running and four waiting") {
  for (const bool in_configuration : {false, true}) {
    Case c;
    Script& s = in_configuration ? c.m.config : c.s;
    s.bd(kCore, 0, acquiring(linear(1), 3, -1));
    for (int i = 0; i < 6; ++i) s.push(kCore, kMM2S, 0, 0);
    if (in_configuration) {
      check_error(ErrorKind::kQueueOverrun, {"[configure: operation", "core (0,2) MM2S 0"},
                  [&] { c.m.configure(); });
      check_error(ErrorKind::kArgument, {"configure it again"}, [&] { c.run(); });
    } else {
      c.expect(ErrorKind::kQueueOverrun,
               {"[submit: operation 6 WRITE]", "core (0,2) MM2S 0", "4 tasks wait",
                "waits for lock 3 of core (0,2) to be >= 1", "Wait for a token"});
    }
  }
}

TEST_CASE("misaligned: registers and patches") {
  Case odd, patch;
  odd.s.write(kCore, 0x102, 1);
  odd.expect(ErrorKind::kMisaligned, {"0x00200102", "multiples of 4"});
  patch.s.host_bd(0, 0, linear(1), 0, 6);
  patch.expect(ErrorKind::kMisaligned, {"ADDRESS_PATCH", "byte offset 6 of argument 0"});
}

TEST_CASE("out_of_range: memories, neighbours, buffers, patches") {
  {
    Case c;
    c.s.bd(kCore, 0, linear(100, 0x4000 - 99)).push(kCore, kMM2S, 0, 0).sync(kCore, kMM2S, 0);
    c.expect(ErrorKind::kOutOfRange, {"core (0,2) MM2S 0", "BD 0 (length 100 words)", "word 99",
                                      "only 99 words are there"});
  }
  {
    Case c;  // by its strides only
    Bd bd = linear(3, 0);
    bd.step[0] = 8192;
    c.s.bd(kCore, 0, bd).push(kCore, kS2MM, 0, 0).sync(kCore, kS2MM, 0);
    c.expect(ErrorKind::kOutOfRange, {"core (0,2) S2MM 0", "word 16384", "only 16384"});
  }
  {
    Case c;  // by its iteration only, in the third execution
    Bd bd = linear(16, 0x4000 - 48);
    bd.iteration_wrap = 4;
    bd.iteration_step = 17;
    c.s.bd(kCore, 0, bd).bd(kCore, 1, linear(48)).push(kCore, kMM2S, 0, 0, 3);
    c.s.push(kCore, kS2MM, 0, 1, 1, true).sync(kCore, kS2MM, 0);
    c.expect(ErrorKind::kOutOfRange, {"word 49"});
  }
  const struct {
    int channel;
    uint64_t base;
  } neighbours[] = {{4, 0}, {4, 0x40000}, {0, 0}, {0, 0x60000}};  // column 0 has no west
  for (const auto& each : neighbours) {
    Case c;
    c.s.bd(kMem, 0, linear(1, each.base)).push(kMem, kS2MM, each.channel, 0);
    c.s.sync(kMem, kS2MM, each.channel);
    c.expect(ErrorKind::kOutOfRange, {"memtile (0,1) S2MM", "0x80000 own", "only own"});
  }
  {
    Case c;  // nothing patched
    c.s.bd(kShim, 0, linear(4)).push(kShim, kMM2S, 0, 0).sync(kShim, kMM2S, 0);
    c.expect(ErrorKind::kOutOfRange, {"device address 0x0", "argument 0 at 0x4000000000, 256 bytes",
                                      "argument 1 at 0x8000000000", "patch its address"});
  }
  {
    Case c;
    c.s.host_bd(0, 0, linear(64), 1, 4).push(kShim, kS2MM, 0, 0).sync(kShim, kS2MM, 0);
    c.expect(ErrorKind::kOutOfRange, {"shim (0,0) S2MM 0", "word 63", "only 63 words"});
  }
  {
    Case c;
    c.s.host_bd(0, 0, linear(1), 0, 256);
    c.expect(ErrorKind::kOutOfRange, {"byte offset 256 of argument 0, which has 256 bytes"});
  }
}

TEST_CASE("no_consumer and unsupported in a stream") {
  Case c;
  c.s.bd(kCore, 0, linear(1)).push(kCore, kMM2S, 1, 0).sync(kCore, kMM2S, 1);
  c.expect(ErrorKind::kNoConsumer, {"core (0,2) MM2S 1", "slave port DMA 1 is not enabled"});
  const struct {
    Direction direction;
    uint32_t control;
    const char* telling;
  } modes[] = {{kS2MM, 1u << 16, "finish-on-TLAST"},
               {kS2MM, 3u << 16, "finish-on-TLAST"},
               {kS2MM, 1u << 3, "out-of-order"},
               {kS2MM, 1u << 4, "decompression"},
               {kMM2S, 1u << 4, "compression"}};
  for (const auto& mode : modes) {
    Case each;
    each.s.bd(kCore, 0, linear(1)).control(kCore, mode.direction, 0, mode.control);
    each.s.push(kCore, mode.direction, 0, 0);
    each.expect(ErrorKind::kUnsupported, {"core (0,2)", mode.telling});
  }
  Case compressed;
  Bd bd = linear(1);
  bd.compression = true;
  compressed.s.bd(kCore, 0, bd).push(kCore, kMM2S, 0, 0);
  compressed.expect(ErrorKind::kUnsupported, {"BD 0", "compression"});
}

TEST_CASE("lock: over- and underflow, ids out of reach") {
  for (const int value : {63, -3}) {
    Case c;
    c.s.lock(kCore, 2, 2).bd(kCore, 0, releasing(linear(0), 2, value)).push(kCore, kMM2S, 0, 0);
    c.s.sync(kCore, kMM2S, 0);
    c.expect(ErrorKind::kLock, {"core (0,2) MM2S 0 releases lock 2 of core (0,2)", "BD 0",
                                value > 0 ? "makes it 65" : "makes it -1", "0..63"});
  }
  {
    Case c;
    c.m.config.lock(kCore, 1, 63);
    c.m.configure();
    c.m.attach(kCore, "release 1 1\n");
    check_error(ErrorKind::kLock, {"core (0,2) releases its lock 1 by 1", "makes it 64"},
                [&] { c.run(); });
  }
  for (const uint32_t id : {0u, 63u, 192u, 255u}) {  // no west neighbour; no such side
    Case c;
    c.s.bd(kMem, 0, acquiring(linear(0, kOwnMem), id, -1)).push(kMem, kMM2S, 0, 0);
    c.s.sync(kMem, kMM2S, 0);
    c.expect(ErrorKind::kLock, {"memtile (0,1) MM2S 0 cannot acquire lock", "64-127 own"});
  }
  Case five;
  five.s.bd(kMem, 24, releasing(linear(0, kOwnMem), kEastLock, 1)).push(kMem, kS2MM, 5, 24);
  five.s.sync(kMem, kS2MM, 5);
  five.expect(ErrorKind::kLock, {"memtile (0,1) S2MM 5 cannot release lock 128", "only own"});
}

TEST_CASE("deadlock: a lock that nothing releases") {
  Case c;
  c.s.bd(kCore, 0, acquiring(linear(4), 6, -1)).bd(kCore, 1, linear(4, 100));
  c.s.push(kCore, kMM2S, 0, 0).push(kCore, kS2MM, 0, 1, 1, true).sync(kCore, kS2MM, 0);
  c.expect(
      ErrorKind::kDeadlock,
      {"[submit: operation 4", "a task-complete token of core (0,2) S2MM 0",
       "core (0,2) MM2S 0 waits for lock 6 of core (0,2) to be >= 1 (it is 0) before BD 0",
       "core (0,2) S2MM 0 waits for data (moved 0 of 4 words of BD 1)",
       "likely cause: core (0,2) MM2S 0 waits for lock 6 of core (0,2), which no core program and "
       "no BD releases; this core has no program"});
}

TEST_CASE("deadlock: a core that waits, with its lock") {
  Case c;
  c.m.configure();
  c.m.attach(kCore, "loop forever\n acquire_ge 3 2\n release 4 1\nend\n");
  c.s.lock(kCore, 3, 1);
  c.s.bd(kCore, 0, acquiring(linear(4), 4, 1)).bd(kCore, 1, linear(4, 100));
  c.s.push(kCore, kMM2S, 0, 0).push(kCore, kS2MM, 0, 1, 1, true).sync(kCore, kS2MM, 0);
  check_error(ErrorKind::kDeadlock,
              {"core (0,2) waits for its lock 3 to be >= 2 (it is 1), at instruction 1",
               "core (0,2) MM2S 0 waits for lock 4 of core (0,2) to be == 1",
               "likely cause: core (0,2) waits for lock 3 of core (0,2), which no core program"},
              [&] { c.run(); });
}

TEST_CASE("deadlock: too little input") {
  Case c;
  c.s.host_bd(0, 0, linear(60), 0).host_bd(0, 1, linear(64), 1);
  c.s.push(kShim, kMM2S, 0, 0).push(kShim, kS2MM, 0, 1, 1, true).sync(kShim, kS2MM, 0);
  c.expect(ErrorKind::kDeadlock, {"shim (0,0) S2MM 0 waits for data (moved 60 of 64 words of BD 1)",
                                  "pushed too little input"});
}

TEST_CASE("deadlock: no receiver takes the data") {
  Case c;
  c.s.host_bd(0, 0, linear(64), 0).host_bd(0, 1, linear(60), 1);
  c.s.push(kShim, kMM2S, 0, 0, 1, true).push(kShim, kS2MM, 0, 1).sync(kShim, kMM2S, 0);
  c.expect(ErrorKind::kDeadlock,
           {"shim (0,0) MM2S 0 waits for shim (0,0) S2MM 0 to take 4 more words (moved 60 of 64",
            "no receiver takes the rest", "streams buffer no words between DMAs"});
}

TEST_CASE("deadlock: a token that no task issues, a register that nothing changes") {
  Case token, poll;
  token.s.host_bd(0, 0, linear(64), 0).host_bd(0, 1, linear(64), 1);
  token.s.push(kShim, kMM2S, 0, 0).push(kShim, kS2MM, 0, 1).sync(kShim, kS2MM, 0);
  token.expect(ErrorKind::kDeadlock, {"token of shim (0,0) S2MM 0", "no other agent is waiting",
                                      "check the token bit of the queue push"});
  poll.s.lock(kCore, 1, 5);
  poll.s.raw.mask_poll(kCore.address(0x1F010), 7, 0xF);
  poll.expect(ErrorKind::kDeadlock,
              {"[submit: operation 1 MASKPOLL]",
               "register 0x0021f010 & 0x0000000f to be 0x00000007 (it "
               "is 0x00000005)",
               "likely cause: nothing that is still running changes this register"});
}

TEST_CASE("deadlock reports stay readable with many agents") {
  Machine m;
  for (int col = 0; col < 8; ++col) {
    for (int row = 2; row < 6; ++row) {
      m.config.bd({col, row}, 0, acquiring(linear(1), 0, -1)).push({col, row}, kS2MM, 0, 0);
      m.config.push({col, row}, kS2MM, 1, 0);
    }
  }
  m.configure();
  Script s;
  s.sync({0, 2}, kS2MM, 0);
  check_error(ErrorKind::kDeadlock, {"... and 40 more"}, [&] { m.run(s); });
}

TEST_CASE("a wait on a channel that does not exist") {
  Case column, channel;
  column.s.raw.sync(7, 0, kS2MM, 0, 2, 1);
  column.s.lock(kCore, 0, 1);
  column.m.configure();
  check_error(ErrorKind::kDeadlock, {"token of shim (7,0)"}, [&] { column.run(); });
  channel.s.raw.sync(0, 0, kS2MM, 2);
  channel.expect(ErrorKind::kArgument, {"tile (0,0) channel 2", "check the rectangle"});
}

TEST_CASE("unfinished: the stream ends before its transfers") {
  Case c, silent;
  c.s.host_bd(0, 1, linear(64), 1).push(kShim, kS2MM, 0, 1);
  c.expect(ErrorKind::kUnfinished,
           {"[submit]", "the stream ended while shim (0,0) S2MM 0 has tasks pending",
            "moved 0 of 64 words of BD 1", "Wait for its token"});
  // Transfers that do finish need no wait.
  silent.m.configure();
  silent.s.host_bd(0, 0, linear(64), 0).host_bd(0, 1, linear(64), 1);
  silent.s.push(kShim, kMM2S, 0, 0).push(kShim, kS2MM, 0, 1);
  silent.run();
  CHECK(silent.out == silent.in);
}

TEST_CASE("arguments: read-only, too few; format: another generation") {
  Case c, few;
  c.m.configure();
  c.s.host_bd(0, 0, linear(4), 0).host_bd(0, 1, linear(4), 1);
  c.s.push(kShim, kMM2S, 0, 0).push(kShim, kS2MM, 0, 1, 1, true).sync(kShim, kS2MM, 0);
  check_error(ErrorKind::kArgument, {"shim (0,0) S2MM 0 writes", "BD 1", "read-only"},
              [&] { c.m.run(c.s, {view(c.in, false), view(c.out, false)}); });
  c.m.configure();
  c.m.run(c.s, {view(c.in, false), view(c.out)});
  few.s.host_bd(0, 0, linear(4), 2);
  few.expect(ErrorKind::kArgument, {"patches argument 2", "2 arguments were given"});

  Case npu1(Generation::kNpu1);
  npu1.m.configure();
  check_error(ErrorKind::kFormat, {"[submit] the stream is for device generation 4", "npu1"},
              [&] { npu1.m.run(Script(Generation::kNpu2)); });
  Machine wrong(Generation::kNpu2);
  wrong.config = Script(Generation::kNpu1);
  check_error(ErrorKind::kFormat, {"[configure] the stream is for device generation 3"},
              [&] { wrong.configure(); });
}

TEST_CASE("the watchdog ends livelocks") {
  const auto setup = [](Case& c) {
    c.m.configure();
    c.m.array.set_watchdog_budget(1 << 20);
  };
  SUBCASE("circular BD chains, after the stream") {
    Case c;
    c.m.config.bd(kCore, 0, followed_by(linear(64), 0))
        .bd(kCore, 1, followed_by(linear(64, 100), 1));
    c.m.config.push(kCore, kMM2S, 0, 0).push(kCore, kS2MM, 0, 1);
    setup(c);
    check_error(ErrorKind::kUnfinished, {"[submit]", "livelock", "core (0,2) MM2S 0 moved"},
                [&] { c.run(); });
  }
  SUBCASE("circular BD chains, while the stream waits") {
    Case c;
    c.m.config.bd(kCore, 0, followed_by(linear(64), 0))
        .bd(kCore, 1, followed_by(linear(64, 100), 1));
    c.m.config.push(kCore, kMM2S, 0, 0).push(kCore, kS2MM, 0, 1);
    setup(c);
    c.s.sync(kCore, kS2MM, 0);
    check_error(ErrorKind::kDeadlock, {"[submit: operation 0", "livelock"}, [&] { c.run(); });
  }
  SUBCASE("circular BD chains over host data") {
    Case c;
    setup(c);
    c.s.host_bd(0, 0, followed_by(linear(64), 0), 0).host_bd(0, 1, followed_by(linear(64), 1), 1);
    c.s.push(kShim, kMM2S, 0, 0).push(kShim, kS2MM, 0, 1);
    check_error(ErrorKind::kUnfinished, {"livelock"}, [&] { c.run(); });
  }
  SUBCASE("a lock passed around by BDs without data") {
    Case c;
    c.m.config.bd(kCore, 0, followed_by(releasing(acquiring(linear(0), 0, -1), 1, 1), 0));
    c.m.config.bd(kCore, 1, followed_by(releasing(acquiring(linear(0), 1, -1), 0, 1), 1));
    c.m.config.lock(kCore, 0, 1).push(kCore, kMM2S, 0, 0).push(kCore, kS2MM, 0, 1);
    setup(c);
    check_error(ErrorKind::kUnfinished, {"livelock"}, [&] { c.run(); });
  }
  SUBCASE("a core that never stops calling") {
    Case c;
    c.m.config.lock(kCore, 0, 1);
    setup(c);
    c.m.attach(kCore, "loop forever\n acquire_ge 0 1\n call f\n release 0 1\nend\n",
               [](std::span<const KernelArgument>) {});
    check_error(ErrorKind::kUnfinished, {"livelock", "core (0,2)"}, [&] { c.run(); });
  }
  SUBCASE("a core that neither calls nor waits") {
    Case c;
    c.m.config.lock(kCore, 0, 1);
    setup(c);
    c.m.attach(kCore, "loop forever\n acquire_ge 0 1\n release 0 1\nend\n");
    check_error(ErrorKind::kKernel, {"core (0,2) ran", "without a call or a wait"},
                [&] { c.run(); });
  }
  SUBCASE("a loop bound that is out of all proportion") {
    Case c;
    setup(c);
    c.m.attach(kCore, "acquire_ge 0 1\nloop rtp:64\n loop rtp:64\n end\nend\n");
    c.s.write(kCore, 64, 0x7FFFFFFF).lock(kCore, 0, 1);
    check_error(ErrorKind::kKernel, {"without a call or a wait", "check its loop bounds"},
                [&] { c.run(); });
  }
  SUBCASE("long work that makes progress is not a livelock") {
    Case c;
    setup(c);
    c.m.array.set_watchdog_budget(1 << 17);  // a fifth of one task
    Words big(1 << 16), target(1 << 16);
    c.s.host_bd(0, 0, linear(1 << 16), 0).host_bd(0, 1, linear(1 << 16), 1);
    for (int i = 0; i < 4; ++i) c.s.push(kShim, kMM2S, 0, 0, 256).push(kShim, kS2MM, 0, 1, 256);
    c.m.run(c.s, {view(big), view(target)});
  }
  SUBCASE("an interrupt") {
    Case c;
    c.m.config.bd(kCore, 0, followed_by(linear(64), 0))
        .bd(kCore, 1, followed_by(linear(64, 100), 1));
    c.m.config.push(kCore, kMM2S, 0, 0).push(kCore, kS2MM, 0, 1);
    c.m.configure();
    c.m.array.set_interrupt([] { throw std::range_error("Ctrl-C"); });
    CHECK_THROWS_AS(c.run(), std::range_error);
    check_error(ErrorKind::kArgument, {"configure it again"}, [&] { c.run(); });
  }
}
