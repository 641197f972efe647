// What a DMA task does, observed in memory (hardware.md 2.6): address patterns of every tile kind,
// iteration, repeats, chains, queues, tokens, transfers whose BDs do not coincide, zero-length BDs,
// neighbour memtiles, padding and its registers.
#include <random>

#include "emulator_fixture.h"

using namespace npu;
using namespace npu::test;

namespace {

const At kShim{0, 0}, kMem{0, 1}, kCore{0, 2};

// Word k of a BD (the formula of hardware.md 2.6), in words from the base.
uint64_t offset_of(const Bd& bd, int dims, uint64_t k) {
  uint64_t offset = 0;
  for (size_t d = 0; d < static_cast<size_t>(dims); ++d) {
    const uint64_t wrap = d + 1 < static_cast<size_t>(dims) ? bd.wrap[d] : 0;
    offset += (wrap ? k % wrap : k) * bd.step[d];
    k = wrap ? k / wrap : 0;
  }
  return offset;
}

Bd random_pattern(std::mt19937& random, int dims, uint32_t length) {
  const auto up_to = [&](uint32_t n) { return 1 + static_cast<uint32_t>(random() % n); };
  Bd bd = linear(length);
  for (size_t d = 0; d < static_cast<size_t>(dims); ++d) {
    bd.step[d] = up_to(8);
    if (d + 1 < static_cast<size_t>(dims)) bd.wrap[d] = random() % 9;
  }
  return bd;
}

// A pattern that writes every word to a place of its own.
Bd random_permutation(std::mt19937& random, int dims, uint32_t length) {
  Bd bd = linear(length);
  uint32_t size = 1;
  for (size_t d = 0; d < static_cast<size_t>(dims); ++d) {
    bd.step[d] = size;
    if (d + 1 == static_cast<size_t>(dims)) break;
    bd.wrap[d] = 1 + static_cast<uint32_t>(random() % 5);
    size *= bd.wrap[d];
  }
  return bd;
}

}  // namespace

TEST_CASE("3-D patterns of shim and core, 4-D patterns of memtiles") {
  std::mt19937 random(11);
  for (const At at : {kMem, kCore}) {
    const int dims = at.model().address_dims;
    for (int round = 0; round < 60; ++round) {
      const uint32_t length = 1 + static_cast<uint32_t>(random() % 200);
      Bd source = random_pattern(random, dims, length);
      Bd target = random_permutation(random, dims, length);
      const bool memtile = at.row == 1;
      source.base = memtile ? kOwnMem : 0;
      target.base = source.base + 8192;
      Machine m;
      m.loopback(at);
      m.config.memory(at, 0, counting(2048));
      m.configure();
      Script s;
      s.bd(at, 0, source).bd(at, 1, target);
      s.push(at, kMM2S, 0, 0).push(at, kS2MM, 0, 1, 1, true).sync(at, kS2MM, 0);
      const RunReport report = m.run(s);
      uint64_t& read = memtile ? const_cast<RunReport&>(report).memtile_read_bytes
                               : const_cast<RunReport&>(report).core_read_bytes;
      CHECK(read == 4 * length);
      CAPTURE(round);
      bool same = true;
      for (uint32_t k = 0; k < length; ++k) {
        const auto to = static_cast<uint32_t>(offset_of(target, dims, k));
        same &= m.word(at, 8192 + to) == offset_of(source, dims, k) + 1;
      }
      REQUIRE(same);
    }
  }
  for (int round = 0; round < 60; ++round) {
    const uint32_t length = 1 + static_cast<uint32_t>(random() % 200);
    const Bd source = random_pattern(random, 3, length);
    const Bd target = random_permutation(random, 3, length);
    Machine m;
    m.loopback(kShim).configure();
    Words in = counting(2048), out(512, 0);
    Script s;
    s.host_bd(0, 0, source, 0).host_bd(0, 1, target, 1, 8);
    s.push(kShim, kMM2S, 0, 0).push(kShim, kS2MM, 0, 1, 1, true).sync(kShim, kS2MM, 0);
    const RunReport report = m.run(s, {view(in), view(out)});
    CHECK(report.shim_read_bytes == 4 * length);
    CHECK(report.shim_write_bytes == 4 * length);
    for (uint32_t k = 0; k < length; ++k) {
      REQUIRE(out[2 + offset_of(target, 3, k)] == offset_of(source, 3, k) + 1);
    }
  }
}

// mlir-aie's hardware test bd_iteration: one self-chained S2MM BD, iteration size 4, puts chunk k
// in slot (start + k) mod 4; with size 1 every chunk overwrites slot 0.
TEST_CASE("iteration is per BD execution and wraps") {
  for (const uint32_t start : {0u, 1u}) {
    Machine m;
    m.loopback(kCore);
    Bd send = linear(6 * 8), receive = followed_by(linear(8, 1000), 1);
    receive.iteration_wrap = 4;
    receive.iteration_step = 10;
    receive.iteration_current = start;
    m.config.memory(kCore, 0, counting(48)).bd(kCore, 0, send).bd(kCore, 1, receive);
    m.config.push(kCore, kS2MM, 0, 1).push(kCore, kMM2S, 0, 0);
    m.configure();
    m.run(m.script());
    for (uint32_t k = 2; k < 6; ++k) {  // the first two slots were written twice
      CHECK(m.words(kCore, 1000 + 10 * ((start + k) % 4), 8) == counting(8, 8 * k + 1));
    }
    CHECK(m.word(kCore, 1008) == 0);  // between the slots
  }
  Machine m;
  m.loopback(kCore);
  m.config.memory(kCore, 0, counting(16)).bd(kCore, 0, linear(16));
  m.config.bd(kCore, 1, followed_by(linear(8, 1000), 1));
  m.config.push(kCore, kS2MM, 0, 1).push(kCore, kMM2S, 0, 0);
  m.configure();
  m.run(m.script());
  CHECK(m.words(kCore, 1000, 16) == Words{9, 10, 11, 12, 13, 14, 15, 16, 0, 0, 0, 0, 0, 0, 0, 0});
}

TEST_CASE("the iteration counter lives in the BD: it survives tasks, rewriting the BD sets it") {
  for (const At at : {kMem, kCore}) {
    const uint32_t base = at.row == 1 ? kOwnMem : 0;
    Machine m;
    m.loopback(at);
    m.config.memory(at, 0, counting(64));
    m.configure();
    Bd send = linear(4, base);
    send.iteration_wrap = 4;
    send.iteration_step = 16;
    const auto transfer = [&](bool rewrite, uint32_t current, int repeats) {
      Script s;
      send.iteration_current = current;
      if (rewrite) s.bd(at, 0, send);
      s.bd(at, 1, linear(4u * static_cast<uint32_t>(repeats), base + 1000));
      s.push(at, kMM2S, 0, 0, repeats).push(at, kS2MM, 0, 1, 1, true).sync(at, kS2MM, 0);
      m.run(s);
      Words first;  // the first word of each chunk names its slot
      for (int i = 0; i < repeats; ++i) {
        first.push_back(m.word(at, 1000 + 4 * static_cast<uint32_t>(i)) / 16);
      }
      return first;
    };
    CHECK(transfer(true, 0, 3) == Words{0, 1, 2});
    CHECK(transfer(false, 0, 3) == Words{3, 0, 1});  // goes on where it was
    CHECK(transfer(true, 0, 2) == Words{0, 1});
    CHECK(transfer(true, 3, 2) == Words{3, 0});
    // The counter is in the BD's register: 6 bits from bit 23 (memtile word 6) or 19 (core word 4).
    const uint32_t word = at.row == 1 ? 6 : 4, low = at.row == 1 ? 23 : 19;
    CHECK((m.array.read_register(at.address(at.model().bd_base + 4 * word)) >> low & 0x3F) == 1);
  }
}

TEST_CASE("repeats run the whole chain again; the token follows the last repeat") {
  Machine m;
  m.loopback(kCore);
  m.config.memory(kCore, 0, counting(8));
  m.config.bd(kCore, 0, followed_by(linear(2, 0), 3)).bd(kCore, 3, followed_by(linear(1, 4), 2));
  m.config.bd(kCore, 2, linear(1, 7));
  m.configure();
  Script s;
  s.bd(kCore, 1, linear(12, 1000)).bd(kCore, 4, linear(12, 2000));
  s.push(kCore, kS2MM, 0, 1, 1, true).push(kCore, kS2MM, 0, 4, 1, true);
  s.push(kCore, kMM2S, 0, 0, 6, true);
  s.sync(kCore, kMM2S, 0).sync(kCore, kS2MM, 0).sync(kCore, kS2MM, 0);
  m.run(s);
  const Words expected{1, 2, 5, 8, 1, 2, 5, 8, 1, 2, 5, 8};
  CHECK(m.words(kCore, 1000, 12) == expected);
  CHECK(m.words(kCore, 2000, 12) == expected);

  // Five of six repeats done: the token is not there yet.
  Script short_one;
  short_one.bd(kCore, 1, linear(20, 1000)).push(kCore, kS2MM, 0, 1, 1, true);
  short_one.push(kCore, kMM2S, 0, 0, 6, true).sync(kCore, kS2MM, 0).sync(kCore, kMM2S, 0);
  check_error(ErrorKind::kDeadlock, {"task-complete token of core (0,2) MM2S 0"},
              [&] { m.run(short_one); });
}

TEST_CASE("a task has up to 256 repeats") {
  Machine m;
  m.loopback(kCore);
  m.config.memory(kCore, 0, {7});
  m.configure();
  Script s;
  s.bd(kCore, 0, linear(1)).bd(kCore, 1, linear(256, 1000));
  s.push(kCore, kMM2S, 0, 0, 256).push(kCore, kS2MM, 0, 1, 1, true).sync(kCore, kS2MM, 0);
  const RunReport report = m.run(s);
  CHECK(report.core_read_bytes == 1024);
  CHECK(m.words(kCore, 1000, 256) == Words(256, 7));
}

TEST_CASE("one task runs and four wait, in order") {
  for (const bool in_configuration : {false, true}) {
    Machine m;
    m.loopback(kCore);
    m.config.memory(kCore, 0, counting(5));
    Script s;
    Script& pushes = in_configuration ? m.config : s;
    for (int i = 0; i < 5; ++i) pushes.bd(kCore, i, linear(1, static_cast<uint64_t>(i)));
    for (int i = 0; i < 5; ++i) pushes.push(kCore, kMM2S, 0, 4 - i);
    m.configure();
    s.bd(kCore, 5, linear(5, 1000)).push(kCore, kS2MM, 0, 5, 1, true).sync(kCore, kS2MM, 0);
    m.run(s);
    CHECK(m.words(kCore, 1000, 5) == Words{5, 4, 3, 2, 1});
  }
}

TEST_CASE("a token frees a place in the queue") {
  Machine m;
  m.loopback(kCore);
  m.config.memory(kCore, 0, counting(16)).bd(kCore, 0, linear(1));
  m.config.bd(kCore, 1, followed_by(linear(1, 1000), 1)).push(kCore, kS2MM, 0, 1);
  m.configure();
  Script s;
  for (int i = 0; i < 5; ++i) s.push(kCore, kMM2S, 0, 0, 1, true);
  for (int i = 0; i < 20; ++i) s.sync(kCore, kMM2S, 0).push(kCore, kMM2S, 0, 0, 1, true);
  CHECK(m.run(s).core_read_bytes == 25 * 4);
}

TEST_CASE("leftover tokens satisfy later waits, also of the next stream") {
  Machine m;
  m.loopback(kCore);
  m.config.memory(kCore, 0, counting(16)).bd(kCore, 0, linear(4)).bd(kCore, 1, linear(4, 1000));
  m.configure();
  Script first, second;
  for (int i = 0; i < 3; ++i) first.push(kCore, kMM2S, 0, 0).push(kCore, kS2MM, 0, 1, 1, true);
  first.sync(kCore, kS2MM, 0);
  m.run(first);
  second.sync(kCore, kS2MM, 0).sync(kCore, kS2MM, 0);
  m.run(second);
  Script third;
  third.sync(kCore, kS2MM, 0);
  check_error(ErrorKind::kDeadlock, {"token"}, [&] { m.run(third); });
}

TEST_CASE("a wait over a rectangle takes one token of every tile") {
  Machine m;
  Script s;
  for (int col = 0; col < 3; ++col) {
    for (int row = 2; row < 4; ++row) {
      const At at{col, row};
      m.loopback(at, 1, 1);
      m.config.bd(at, 0, linear(2)).bd(at, 1, linear(2, 100));
      s.push(at, kMM2S, 1, 0).push(at, kS2MM, 1, 1, 1, true);
    }
  }
  m.configure();
  Script missing = s;
  s.raw.sync(0, 2, kS2MM, 1, 3, 2);
  m.run(s);
  missing.raw.sync(0, 2, kS2MM, 1, 3, 3);
  check_error(ErrorKind::kDeadlock, {"core (0,4) S2MM 1"}, [&] { m.run(missing); });
}

TEST_CASE("sender and receiver cut the stream differently") {
  Machine m;
  m.loopback(kMem, 2, 2);
  m.config.memory(kMem, 0, counting(64));
  const uint32_t sends[] = {5, 7, 1, 4}, takes[] = {3, 6, 6, 2};
  uint32_t from = 0, to = 1000;
  for (int i = 0; i < 4; ++i) {
    Bd send = linear(sends[i], kOwnMem + from), take = linear(takes[i], kOwnMem + to);
    m.config.bd(kMem, i, i < 3 ? followed_by(send, static_cast<uint32_t>(i + 1)) : send);
    m.config.bd(kMem, 10 + i, i < 3 ? followed_by(take, static_cast<uint32_t>(11 + i)) : take);
    from += sends[i];
    to += takes[i] + 1;  // a gap after each
  }
  m.configure();
  Script s;
  s.push(kMem, kS2MM, 2, 10, 1, true).push(kMem, kMM2S, 2, 0).sync(kMem, kS2MM, 2);
  m.run(s);
  CHECK(m.words(kMem, 1000, 20) ==
        Words{1, 2, 3, 0, 4, 5, 6, 7, 8, 9, 0, 10, 11, 12, 13, 14, 15, 0, 16, 17});
}

TEST_CASE("BDs without data only work locks") {
  Machine m;
  m.loopback(kCore);
  m.config.memory(kCore, 0, counting(8)).lock(kCore, 0, 2);
  Bd empty = linear(0);
  m.config.bd(kCore, 0, followed_by(releasing(acquiring(empty, 0, -1), 1, 3), 2));
  m.config.bd(kCore, 2, followed_by(linear(4), 3)).bd(kCore, 3, releasing(empty, 2, 1));
  m.config.bd(kCore, 1, linear(8, 1000));
  m.configure();
  Script s;
  s.push(kCore, kMM2S, 0, 0, 2).push(kCore, kS2MM, 0, 1, 1, true).sync(kCore, kS2MM, 0);
  m.run(s);
  CHECK(m.words(kCore, 1000, 8) == Words{1, 2, 3, 4, 1, 2, 3, 4});
  CHECK(m.lock(kCore, 0) == 0);
  CHECK(m.lock(kCore, 1) == 6);
  CHECK(m.lock(kCore, 2) == 2);
}

TEST_CASE("memtile channels 0-3 reach both neighbours' memory and locks") {
  const At west{2, 1}, own{3, 1}, east{4, 1};
  for (const int channel : {0, 3}) {
    Machine m;
    m.loopback(own, channel, channel);
    m.config.memory(west, 10, counting(4, 100)).memory(own, 10, counting(4, 200));
    m.config.lock(west, 63, 1).lock(own, 5, 1);
    const int first = channel % 2 ? 24 : 0;
    const auto next = [&](int i) { return static_cast<uint32_t>(first + i); };
    Bd a = releasing(acquiring(linear(4, 10), 63, -1), kEastLock + 7, 5);
    Bd b = releasing(acquiring(linear(4, kOwnMem + 10), kOwnLock + 5, 1), 0, 2);
    m.config.bd(own, first, followed_by(a, next(1))).bd(own, first + 1, b);
    m.config.bd(own, first + 2, linear(8, 0x40000 + 0x1FFF8));  // the last 8 words of the east
    m.configure();
    Script s;
    s.push(own, kMM2S, channel, first).push(own, kS2MM, channel, first + 2, 1, true);
    s.sync(own, kS2MM, channel);
    m.run(s);
    CHECK(m.words(east, 0x1FFF8, 8) == Words{100, 101, 102, 103, 200, 201, 202, 203});
    CHECK(m.lock(west, 63) == 0);
    CHECK(m.lock(own, 5) == 0);
    CHECK(m.lock(east, 7) == 5);
    CHECK(m.lock(west, 0) == 2);
  }
}

TEST_CASE("padding values: zero on npu1, a register per channel on npu2") {
  for (const Generation generation : {Generation::kNpu1, Generation::kNpu2}) {
    const bool npu2 = generation == Generation::kNpu2;
    Machine m(generation);
    m.loopback(kMem, 4, 4);
    m.config.memory(kMem, 0, counting(4));
    Bd padded = linear(7, kOwnMem);
    padded.wrap[0] = 4;
    padded.pad_before[0] = 1;
    padded.pad_after[0] = 2;
    m.config.bd(kMem, 0, padded).bd(kMem, 1, linear(7, kOwnMem + 100));
    if (npu2) m.config.write(kMem, 0xA06E0 + 4 * 4, 0xABCD).write(kMem, 0xA06E0, 1);
    CHECK(m.configure().undecoded_writes == 0);
    Script s = m.script();
    s.push(kMem, kMM2S, 4, 0).push(kMem, kS2MM, 4, 1, 1, true).sync(kMem, kS2MM, 4);
    const RunReport report = m.run(s);
    const uint32_t pad = npu2 ? 0xABCD : 0;
    CHECK(m.words(kMem, 100, 7) == Words{pad, 1, 2, 3, 4, pad, pad});
    CHECK(report.memtile_read_bytes == 28);  // what crosses the channel, padding included
  }
}

TEST_CASE("a channel reset drops queue and task; a waiting sender finds the next task") {
  Machine m;
  m.loopback(kCore);
  m.config.memory(kCore, 0, counting(8)).bd(kCore, 0, linear(8)).bd(kCore, 1, linear(3, 1000));
  m.config.bd(kCore, 2, linear(5, 2000)).bd(kCore, 3, acquiring(linear(1, 3000), 5, -1));
  m.config.push(kCore, kMM2S, 0, 0, 1, true).push(kCore, kS2MM, 0, 1, 1, true);
  m.configure();
  Script s;
  s.sync(kCore, kS2MM, 0);                              // three words moved
  s.push(kCore, kS2MM, 0, 3).push(kCore, kS2MM, 0, 3);  // never to run:
  s.control(kCore, kS2MM, 0, 2).control(kCore, kS2MM, 0, 0);
  s.push(kCore, kS2MM, 0, 2, 1, true).sync(kCore, kS2MM, 0).sync(kCore, kMM2S, 0);
  m.run(s);
  CHECK(m.words(kCore, 2000, 5) == counting(5, 4));
  CHECK(m.word(kCore, 3000) == 0);
}

TEST_CASE("status registers: running, queue size, waiting for a lock, current BD") {
  Machine m;
  m.loopback(kCore);
  const uint32_t status = kCore.address(0x1DF10);
  m.config.bd(kCore, 3, acquiring(linear(1), 2, -1)).bd(kCore, 1, linear(3, 100));
  m.configure();
  CHECK(m.array.read_register(status) == 0);
  Script s;
  for (int i = 0; i < 3; ++i) s.push(kCore, kMM2S, 0, 3);
  m.run(s);
  const uint32_t busy = m.array.read_register(status);
  CHECK((busy & 3) == 2);
  CHECK((busy >> 2 & 1) == 1);
  CHECK((busy >> 20 & 7) == 2);
  CHECK((busy >> 24 & 15) == 3);
  Script release;
  release.lock(kCore, 2, 3).push(kCore, kS2MM, 0, 1);
  release.raw.mask_poll(status, 0, 0x00700003);  // idle with an empty queue
  m.run(release);
  CHECK(m.lock(kCore, 2) == 0);
}
