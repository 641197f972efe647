// Programs as other compilers write them replay here as they run on hardware: each case restates
// what one hardware test of mlir-aie (test/npu-xrt) does, under that test's name, with streams and
// data of its own. Cores run before and while the stream does; BDs are used again without a wait;
// a second configuration comes over a live array; traces stay empty.
#include <algorithm>

#include "emulator_fixture.h"

using namespace npu;
using namespace npu::test;

namespace {

using Arguments = std::span<const KernelArgument>;

constexpr uint32_t kCoreControl = 0x32000, kProgramMemory = 0x20000;
const At kShim{0, 0}, kMem{0, 1}, kCore{0, 2};

Words words_of(const KernelArgument& argument, size_t count) {
  Words words(count);
  std::memcpy(words.data(), argument.data, 4 * count);
  return words;
}

void store(const KernelArgument& argument, const Words& words) {
  std::memcpy(argument.data, words.data(), 4 * words.size());
}

// Core (0,2) MM2S 0 -> shim S2MM 0, through the memtile's switch.
void route_core_to_shim(Script& s) {
  s.connect(kCore, cp::kDma, cp::kSouthMaster).connect(kMem, mp::kNorthSlave, mp::kSouthMaster);
  s.connect(kShim, sp::kNorthSlave, sp::kS2mm0).shim_dma(0);
}

// A BD of a FIFO: acquires one of lock `from`, releases one to lock `to`.
Bd passing(const Bd& bd, uint32_t from, uint32_t to) {
  return releasing(acquiring(bd, from, -1), to, 1);
}

}  // namespace

TEST_CASE("add_maskwrite: what the stream writes follows the core's prologue") {
  for (const Generation generation : {Generation::kNpu1, Generation::kNpu2}) {
    Machine m(generation);
    route_core_to_shim(m.config);
    m.config.bd(kCore, 0, followed_by(passing(linear(8, 512), 2, 3), 0)).lock(kCore, 3, 1);
    m.config.push(kCore, kMM2S, 0, 0);
    m.configure();
    m.attach(kCore,
             "loop forever\n call fill @1024\n acquire_ge 0 1\n acquire_ge 3 1\n"
             " call add @1024 @2048\n release 2 1\n release 1 1\nend\n",
             [](Arguments a) {
               if (a.size() == 1) return store(a[0], Words(8, 0x37373737));
               Words sum = words_of(a[0], 8);
               for (uint32_t& word : sum) ++word;
               store(a[1], sum);
             });
    Script s = m.script();
    s.raw.mask_write(kCore.address(1024), 0x12345678, 0xF0F0F0F0);
    s.raw.mask_write(kCore.address(1028), 0x9ABCDEF0, 0x0F0F0F0F);
    s.host_bd(0, 0, linear(8), 0).push(kShim, kS2MM, 0, 0, 1, true);
    s.lock(kCore, 0, 1).sync(kShim, kS2MM, 0);
    Words out(8), expected(8, 0x37373738);
    expected[0] = (0x07070707 | (0x12345678 & 0xF0F0F0F0)) + 1;
    expected[1] = (0x30303030 | (0x9ABCDEF0 & 0x0F0F0F0F)) + 1;
    m.run(s, {view(out)});
    CHECK(out == expected);
    CHECK(m.array.unwaited() == 0);
  }
}

TEST_CASE("dmabd_task_queue: a shim BD is used again while its channel has a task before it") {
  Machine m;
  route_core_to_shim(m.config);
  m.config.connect(kShim, sp::kMm2s0, sp::kNorthMaster);
  m.config.connect(kMem, mp::kSouthSlave, mp::kDma).connect(kMem, mp::kDma, mp::kNorthMaster);
  m.config.connect(kCore, cp::kSouthSlave, cp::kDma);
  // Two tasks wait on every channel of the way in: one object of 5 words, eight of 12.
  const uint32_t kFree = kOwnLock + 1, kFull = kOwnLock;
  m.config.lock(kMem, 1, 1).lock(kCore, 3, 1).lock(kCore, 1, 1);
  m.config.bd(kMem, 0, passing(linear(5, kOwnMem), kFree, kFull));
  m.config.bd(kMem, 1, passing(linear(12, kOwnMem + 64), kFree, kFull));
  m.config.bd(kMem, 2, passing(linear(5, kOwnMem), kFull, kFree));
  m.config.bd(kMem, 3, passing(linear(12, kOwnMem + 64), kFull, kFree));
  m.config.bd(kCore, 0, passing(linear(5), 3, 2)).bd(kCore, 1, passing(linear(12, 64), 3, 2));
  m.config.bd(kCore, 2, passing(linear(9, 128), 0, 1));
  m.config.push(kMem, kS2MM, 0, 0).push(kMem, kS2MM, 0, 1, 8);
  m.config.push(kMem, kMM2S, 0, 2).push(kMem, kMM2S, 0, 3, 8);
  m.config.push(kCore, kS2MM, 0, 0).push(kCore, kS2MM, 0, 1, 8).push(kCore, kMM2S, 0, 2);
  m.configure();
  size_t sums = 0;
  m.attach(kCore,
           "acquire_ge 1 1\nacquire_ge 2 1\ncall sum @0 @512 #5\nrelease 3 1\n"
           "loop 8\n acquire_ge 2 1\n call sum @256 @512 #12\n release 3 1\nend\nrelease 0 1\n",
           [&](Arguments a) {
             const Words in = words_of(a[0], static_cast<size_t>(a[2].value));
             const uint32_t sum = std::accumulate(in.begin(), in.end(), 0u);
             std::memcpy(a[1].data + 4 * sums++, &sum, 4);
           });
  Script s;
  s.host_bd(0, 0, linear(5), 0).push(kShim, kMM2S, 0, 0);
  s.host_bd(0, 0, linear(96), 1).push(kShim, kMM2S, 0, 0);
  s.host_bd(0, 1, linear(9), 2).push(kShim, kS2MM, 0, 1, 1, true).sync(kShim, kS2MM, 0);
  Words head = counting(5), rest = counting(96, 1000), out(9), expected{15};
  for (size_t i = 0; i < 8; ++i) {
    expected.push_back(std::accumulate(rest.begin() + static_cast<ptrdiff_t>(12 * i),
                                       rest.begin() + static_cast<ptrdiff_t>(12 * i + 12), 0u));
  }
  m.run(s, {view(head), view(rest), view(out)});
  CHECK(out == expected);
  CHECK(m.array.unwaited() == 1);
}

TEST_CASE("nd_memcpy_transforms: two channels of a shim tile take turns with one BD") {
  for (const Generation generation : {Generation::kNpu1, Generation::kNpu2}) {
    Machine m(generation);
    route_core_to_shim(m.config);
    for (const int i : {0, 1}) {
      m.config.connect(kShim, i ? sp::kMm2s1 : sp::kMm2s0, sp::kNorthMaster + i);
      m.config.connect(kMem, mp::kSouthSlave + i, mp::kNorthMaster + i);
      m.config.connect(kCore, cp::kSouthSlave + i, cp::kDma + i);
    }
    m.config.lock(kCore, 0, 1).lock(kCore, 2, 1).lock(kCore, 4, 1);
    m.config.bd(kCore, 0, followed_by(passing(linear(4, 0), 0, 1), 0));
    m.config.bd(kCore, 1, followed_by(passing(linear(6, 64), 2, 3), 1));
    m.config.bd(kCore, 2, followed_by(passing(linear(10, 128), 5, 4), 2));
    m.config.push(kCore, kS2MM, 0, 0).push(kCore, kS2MM, 1, 1).push(kCore, kMM2S, 0, 2);
    m.configure();
    m.attach(kCore,
             "loop forever\n acquire_ge 4 1\n acquire_ge 1 1\n acquire_ge 3 1\n"
             " call concat @0 @256 @512\n release 0 1\n release 2 1\n release 5 1\nend\n",
             [](Arguments a) {
               Words both = words_of(a[0], 4);
               const Words b = words_of(a[1], 6);
               both.insert(both.end(), b.begin(), b.end());
               store(a[2], both);
             });
    Bd a = linear(4), b = linear(6);
    a.wrap = {1, 2, 0};
    a.step = {1, 2, 1, 1};
    b.wrap = {1, 3, 0};
    b.step = {1, 2, 1, 1};
    Script s = m.script();
    s.host_bd(0, 1, a, 0).push(kShim, kMM2S, 0, 1);
    s.host_bd(0, 1, b, 1).push(kShim, kMM2S, 1, 1);
    s.host_bd(0, 0, linear(10), 2, 4).push(kShim, kS2MM, 0, 0, 1, true).sync(kShim, kS2MM, 0);
    Words in_a = counting(4, 10), in_b = counting(6, 20), out(11);
    m.run(s, {view(in_a), view(in_b), view(out)});
    CHECK(out == Words{0, 10, 12, 11, 13, 20, 22, 24, 21, 23, 25});
    CHECK(m.array.unwaited() == 1);
  }
}

namespace {

// Objects of 16 words from the shim to the memtile, of 8 from there to the core, and back: the
// writes of a configuration as aie-rt orders them. `image`: words of the core's program.
void write_configuration(Script& s, const Words& image) {
  s.raw.mask_write(kCore.address(kCoreControl), 0, 1);
  for (const uint32_t reset : {2u, 0u}) {
    for (const int channel : {0, 1}) {
      s.control(kCore, kS2MM, channel, reset).control(kCore, kMM2S, channel, reset);
    }
    if (reset) s.raw.block_write(kCore.address(kProgramMemory), image);
  }
  s.raw.mask_write(kCore.address(kCoreControl), 2, 2);
  s.raw.mask_write(kCore.address(kCoreControl), 0, 2);
  for (int lock = 0; lock < 16; ++lock) s.lock(kCore, lock, 0);
  s.lock(kMem, 0, 2).lock(kMem, 1, 0).lock(kMem, 2, 2).lock(kMem, 3, 0);
  s.lock(kCore, 0, 2).lock(kCore, 2, 2);
  const auto ring = [&](At at, int first, uint32_t size, uint32_t base, uint32_t from,
                        uint32_t to) {
    for (int i = 0; i < 2; ++i) {
      const Bd object = linear(size, base + size * static_cast<uint32_t>(i));
      s.bd(at, first + i,
           followed_by(passing(object, from, to), static_cast<uint32_t>(first + 1 - i)));
    }
  };
  ring(kMem, 0, 16, kOwnMem, kOwnLock, kOwnLock + 1);
  ring(kMem, 2, 16, kOwnMem, kOwnLock + 1, kOwnLock);
  ring(kMem, 24, 16, kOwnMem + 256, kOwnLock + 2, kOwnLock + 3);
  ring(kMem, 26, 16, kOwnMem + 256, kOwnLock + 3, kOwnLock + 2);
  ring(kCore, 0, 8, 0, 0, 1);
  ring(kCore, 2, 8, 64, 3, 2);
  s.push(kMem, kS2MM, 0, 0).push(kMem, kMM2S, 0, 2).push(kMem, kS2MM, 1, 24);
  s.push(kMem, kMM2S, 1, 26).push(kCore, kS2MM, 0, 0).push(kCore, kMM2S, 0, 2);
  s.connect(kShim, sp::kMm2s0, sp::kNorthMaster).connect(kMem, mp::kSouthSlave, mp::kDma);
  s.connect(kMem, mp::kDma, mp::kNorthMaster).connect(kCore, cp::kSouthSlave, cp::kDma);
  s.connect(kCore, cp::kDma, cp::kSouthMaster).connect(kMem, mp::kNorthSlave, mp::kDma + 1);
  s.connect(kMem, mp::kDma + 1, mp::kSouthMaster);
  s.connect(kShim, sp::kNorthSlave, sp::kS2mm0).shim_dma(0);
  s.raw.mask_write(kCore.address(kCoreControl), 1, 1);
}

// Eight objects of 8 words, and the program ends.
void attach_adder(Machine& m, uint32_t addend) {
  m.attach(kCore,
           "loop 8\n acquire_ge 1 1\n acquire_ge 2 1\n call add @0|32%0 @256|288%1\n"
           " release 0 1\n release 3 1\n advance 0 2\n advance 1 2\nend\n",
           [addend](Arguments a) {
             Words sum = words_of(a[0], 8);
             for (uint32_t& word : sum) word += addend;
             store(a[1], sum);
           });
}

Script add_64(Generation generation) {
  Script s(generation);
  s.host_bd(0, 1, linear(64), 1).push(kShim, kS2MM, 0, 1, 1, true);
  s.host_bd(0, 0, linear(64), 0).push(kShim, kMM2S, 0, 0).sync(kShim, kS2MM, 0);
  return s;
}

Words added(Words words, uint32_t addend) {
  for (uint32_t& word : words) word += addend;
  return words;
}

}  // namespace

TEST_CASE("add_one_two_txn: a stream brings a second configuration over a live array") {
  // The program of the second is attached before or after the stream that loads it.
  for (const Generation generation : {Generation::kNpu1, Generation::kNpu2}) {
    for (const bool before : {false, true}) {
      Machine m(generation);
      write_configuration(m.config, {1, 1});
      m.configure();
      attach_adder(m, 1);
      Words in = counting(64), out(64);
      m.run(add_64(generation), {view(in), view(out)});
      CHECK(out == added(in, 1));
      Script second(generation);
      write_configuration(second, {2, 2});
      if (before) attach_adder(m, 102);
      m.run(second);
      if (!before) attach_adder(m, 102);
      m.run(add_64(generation), {view(in), view(out)});
      CHECK(out == added(in, 102));
      CHECK(m.array.unwaited() == 0);
    }
  }
}

TEST_CASE("add_one_two_txn: without a new program the core has none") {
  Machine m;
  write_configuration(m.config, {1, 1});
  m.configure();
  attach_adder(m, 1);
  Words in = counting(64), out(64);
  m.run(add_64(Generation::kNpu2), {view(in), view(out)});
  Script second;
  write_configuration(second, {2, 2});
  m.run(second);
  check_error(ErrorKind::kDeadlock, {"this core has no program, attach one"},
              [&] { m.run(add_64(Generation::kNpu2), {view(in), view(out)}); });
}

namespace {

// Gives the array of `m` a PDI with the configuration above and a core that adds.
void add_adder_pdi(Machine& m, uint32_t id, uint32_t addend) {
  Script s = m.script();
  write_configuration(s, {addend});
  const Words txn = s.words();
  m.array.add_pdi(id, std::as_bytes(std::span(txn)), [&m, addend] { attach_adder(m, addend); });
}

void append_add_64(Script& s, uint64_t bytes) {
  s.host_bd(0, 1, linear(64), 0, bytes).push(kShim, kS2MM, 0, 1, 1, true);
  s.host_bd(0, 0, linear(64), 0, bytes).push(kShim, kMM2S, 0, 0).sync(kShim, kS2MM, 0);
}

}  // namespace

TEST_CASE("loadpdi: a stream begins with the load of its own configuration") {
  Machine m;
  m.configure();
  add_adder_pdi(m, 1, 2);
  Script s;
  s.raw.load_pdi(1, 0, 0);
  append_add_64(s, 0);
  Words data = counting(64);
  m.run(s, {view(data)});
  CHECK(data == added(counting(64), 2));
}

TEST_CASE("reconfigure_loadpdi: two designs in one stream, one of them again") {
  Machine m;
  m.configure();
  add_adder_pdi(m, 1, 2);
  add_adder_pdi(m, 2, 3);
  Script s;
  s.raw.load_pdi(1, 64, 0x10000);
  append_add_64(s, 0);
  s.raw.load_pdi(2, 64, 0x20000);
  append_add_64(s, 0);
  s.raw.load_pdi(1, 64, 0x10000);
  append_add_64(s, 256);
  Words data = counting(128);
  m.run(s, {view(data)});
  Words expected = added(counting(128), 5);
  for (size_t i = 64; i < 128; ++i) expected[i] -= 3;
  CHECK(data == expected);
}

TEST_CASE("loadpdi: the firmware skips the PDI that it loaded last") {
  Machine m;
  Script empty = m.script();
  const Words nothing = empty.words();
  int loads = 0;
  m.configure();
  for (const uint32_t id : {1u, 2u}) {
    m.array.add_pdi(id, std::as_bytes(std::span(nothing)), [&] { ++loads; });
  }
  const auto load = [&](uint32_t id, uint64_t address) {
    Script s;
    s.lock(kCore, 5, 7);
    s.raw.load_pdi(id, 0, address);
    m.run(s);
    return m.lock(kCore, 5) == 0;  // it was reset
  };
  CHECK(load(1, 0));
  CHECK_FALSE(load(1, 0));
  CHECK(load(2, 0));
  CHECK(load(1, 0));
  CHECK(load(1, 0x4000));  // another address
  CHECK_FALSE(load(2, 0x4000));
  CHECK(loads == 4);
  m.configure();
  CHECK(load(1, 0x4000));
}

TEST_CASE("reconfigure_loadpdi_persistent_memtile: memories outlive a load") {
  Machine m;
  const auto design = [&](bool initial) {
    Script s = m.script();
    if (initial) s.memory(kMem, 0, {11, 22, 33, 44});
    s.bd(kMem, 0, followed_by(linear(4, kOwnMem), 0)).push(kMem, kMM2S, 0, 0);
    s.connect(kMem, mp::kDma, mp::kSouthMaster).connect(kShim, sp::kNorthSlave, sp::kS2mm0);
    return s.shim_dma(0).words();
  };
  m.configure();
  const Words first = design(true), second = design(false);
  m.array.add_pdi(1, std::as_bytes(std::span(first)), {});
  m.array.add_pdi(2, std::as_bytes(std::span(second)), {});
  Script s;
  for (const uint32_t id : {1u, 2u}) {
    s.raw.load_pdi(id, 0, 0);
    s.host_bd(0, 0, linear(4), 0, 16 * (id - 1)).push(kShim, kS2MM, 0, 0, 1, true);
    s.sync(kShim, kS2MM, 0);
  }
  Words out(8);
  m.run(s, {view(out)});
  CHECK(out == Words{11, 22, 33, 44, 11, 22, 33, 44});
}

TEST_CASE("loadpdi: what cannot be loaded") {
  Machine m;
  m.configure();
  const auto add = [&](const Words& txn, uint32_t id = 1) {
    m.array.add_pdi(id, std::as_bytes(std::span(txn)), {});
  };
  check_error(ErrorKind::kArgument, {"[add_pdi] PDI 65536"}, [&] { add(Script().words(), 65536); });
  check_error(ErrorKind::kFormat, {"[add_pdi]", "generation 3"},
              [&] { add(Script(Generation::kNpu1).words()); });
  Script waits;
  waits.write(kCore, 0, 1).sync(kShim, kS2MM, 0);
  check_error(ErrorKind::kFormat, {"[add_pdi] PDI 1: operation 1 is a SYNC"},
              [&] { add(waits.words()); });
  Words truncated = waits.words();
  truncated.pop_back();
  check_error(ErrorKind::kFormat, {"truncated"}, [&] { add(truncated); });
  Script unknown;
  unknown.raw.load_pdi(3, 0, 0);
  check_error(ErrorKind::kUnknownOperation, {"LOADPDI", "loads PDI 3", "add_pdi"},
              [&] { m.run(unknown); });
  Script nested;
  nested.raw.load_pdi(1, 0, 0);
  m.config.raw.load_pdi(1, 0, 0);
  check_error(ErrorKind::kUnknownOperation, {"a configuration cannot load another"},
              [&] { m.configure(); });
  // A transfer under way would be lost, and only attach() is possible in the middle of a run.
  Machine busy;
  busy.loopback(kShim);
  busy.configure();
  const Words nothing = Script().words();
  busy.array.add_pdi(1, std::as_bytes(std::span(nothing)), [&] { busy.configure(); });
  Script sends;
  sends.host_bd(0, 0, linear(4), 0).push(kShim, kMM2S, 0, 0);
  sends.raw.load_pdi(1, 0, 0);
  Words data(4);
  check_error(ErrorKind::kUnfinished, {"the stream loads PDI 1 while shim (0,0) MM2S 0"},
              [&] { busy.run(sends, {view(data)}); });
  busy.configure();
  check_error(ErrorKind::kArgument, {"[configure] called while"}, [&] { busy.run(nested); });
}

TEST_CASE("packet_flow_fanin: packets of two ids share a link and a receiver") {
  for (const Generation generation : {Generation::kNpu1, Generation::kNpu2}) {
    Machine m(generation);
    route_core_to_shim(m.config);
    m.config.packet_slave(kShim, sp::kMm2s0, 0, 3, 0x1F, 0, 0);
    m.config.packet_slave(kShim, sp::kMm2s1, 0, 7, 0x1F, 0, 0);
    m.config.packet_master(kShim, sp::kNorthMaster, 0, 1, false);
    m.config.packet_slave(kMem, mp::kSouthSlave, 0, 3, 0x1B, 0, 0);  // 3 and 7
    m.config.packet_master(kMem, mp::kNorthMaster, 0, 1, false);
    m.config.packet_slave(kCore, cp::kSouthSlave, 0, 3, 0x1B, 0, 0);
    m.config.packet_master(kCore, cp::kDma, 0, 1, true);
    m.config.lock(kCore, 0, 2).lock(kCore, 2, 1);
    m.config.bd(kCore, 0, followed_by(passing(linear(16, 0), 0, 1), 1));
    m.config.bd(kCore, 1, followed_by(passing(linear(16, 16), 0, 1), 0));
    m.config.bd(kCore, 2, followed_by(passing(linear(16, 64), 3, 2), 2));
    m.config.push(kCore, kS2MM, 0, 0).push(kCore, kMM2S, 0, 2);
    m.configure();
    m.attach(kCore,
             "acquire_ge 2 1\nacquire_ge 1 1\ncall add @0 @256 #12\nrelease 0 1\nrelease 3 1\n"
             "acquire_ge 2 1\nacquire_ge 1 1\ncall add @64 @256 #7\nrelease 0 1\nrelease 3 1\n",
             [](Arguments a) {
               store(a[1], added(words_of(a[0], 16), static_cast<uint32_t>(a[2].value)));
             });
    Bd first = linear(16), second = linear(16);
    first.packet_enable = second.packet_enable = true;
    first.packet_id = 3;
    second.packet_id = 7;
    Script s = m.script();
    s.host_bd(0, 0, first, 0).push(kShim, kMM2S, 0, 0);
    s.host_bd(0, 1, second, 0, 64).push(kShim, kMM2S, 1, 1);
    s.host_bd(0, 2, linear(32), 1).push(kShim, kS2MM, 0, 2, 1, true).sync(kShim, kS2MM, 0);
    Words in = counting(32), out(32), expected = added(counting(16), 12);
    const Words rest = added(counting(16, 17), 7);
    expected.insert(expected.end(), rest.begin(), rest.end());
    m.run(s, {view(in), view(out)});
    CHECK(out == expected);
  }
}

TEST_CASE("vec_mul_event_trace: its registers are stored, an empty trace buffer is no error") {
  for (const Generation generation : {Generation::kNpu1, Generation::kNpu2}) {
    Machine m(generation);
    route_core_to_shim(m.config);
    // The core's trace unit, slave port 23, as packets over South 1 to shim S2MM 1.
    m.config.packet_slave(kCore, 23, 0, 1, 0x1F, 0, 0);
    m.config.packet_master(kCore, cp::kSouthMaster + 1, 0, 1, false);
    m.config.packet_slave(kMem, mp::kNorthSlave + 1, 0, 1, 0x1F, 0, 0);
    m.config.packet_master(kMem, mp::kSouthMaster + 1, 0, 1, false);
    m.config.packet_slave(kShim, sp::kNorthSlave + 1, 0, 1, 0x1F, 0, 0);
    m.config.packet_master(kShim, sp::kS2mm1, 0, 1, true);
    m.config.memory(kCore, 0, counting(4)).bd(kCore, 0, linear(4));
    m.configure();
    Script s = m.script();
    Words stored;
    for (uint32_t offset = 0x3FF00; offset <= 0x3FF38; offset += 4) {
      stored.push_back(kCore.address(offset));
      stored.push_back(kShim.address(offset));
      stored.push_back(kMem.address(offset - 0x3F000 + 0xB0000));
    }
    for (uint32_t offset = 0xC0400; offset <= 0xC041C; offset += 4) {
      stored.push_back(kMem.address(offset));
    }
    for (const uint32_t offset : {0x340D0u, 0x340D4u, 0x340E0u, 0x340E4u, 0x140D0u, 0x140E0u}) {
      stored.push_back(kCore.address(offset));
    }
    for (const uint32_t address : stored) s.raw.write(address, address ^ 0x5A5A5A5A);
    s.host_bd(0, 15, linear(64), 1).push(kShim, kS2MM, 1, 15);
    s.host_bd(0, 0, linear(4), 0).push(kShim, kS2MM, 0, 0, 1, true).push(kCore, kMM2S, 0, 0);
    s.sync(kShim, kS2MM, 0);
    for (int run = 0; run < 7; ++run) {  // more than a queue holds
      Words out(4), trace(64, 0xEEEEEEEE);
      const RunReport report = m.run(s, {view(out), view(trace)});
      CHECK(out == counting(4));
      CHECK(trace == Words(64, 0xEEEEEEEE));
      CHECK(report.undecoded_writes == stored.size() * static_cast<size_t>(run + 1));
    }
    for (const uint32_t address : stored) {
      CHECK(m.array.read_register(address) == (address ^ 0x5A5A5A5A));
    }
    // One that only data reach is waited for.
    Script lost = m.script();
    lost.connect(kShim, sp::kNorthSlave, sp::kS2mm1);
    lost.host_bd(0, 15, linear(64), 0).push(kShim, kS2MM, 1, 15);
    Words data(64);
    check_error(ErrorKind::kUnfinished, {"the stream ended while shim (0,0) S2MM 1"},
                [&] { m.run(lost, {view(data)}); });
  }
}

TEST_CASE("add_one_ctrl_packet_4_cores: a task of a channel that nothing leads to is no error") {
  for (const bool demultiplexed : {false, true}) {
    Machine m;
    if (demultiplexed) m.config.shim_dma(0);
    m.configure();
    Words data(64, 7);
    for (int run = 0; run < 7; ++run) {  // more than a queue holds
      Script s;
      s.host_bd(0, 1, linear(8), 0).push(kShim, kS2MM, 1, 1, 1, true);
      m.run(s, {view(data)});
    }
    CHECK(data == Words(64, 7));
    Script waits;
    waits.host_bd(0, 1, linear(8), 0).push(kShim, kS2MM, 1, 1, 1, true).sync(kShim, kS2MM, 1);
    check_error(ErrorKind::kDeadlock, {"shim (0,0) S2MM 1"}, [&] { m.run(waits, {view(data)}); });
  }
}

TEST_CASE(
    "reconfigure_loadpdi_persistent_memtile as writes: routes made after the push are waited for") {
  // A memory tile that sends as soon as its queue is written, then the switches, one after the
  // other.
  Machine m;
  m.configure();
  Script s = m.script();
  s.memory(kMem, 0, counting(4)).bd(kMem, 0, linear(4, kOwnMem)).push(kMem, kMM2S, 0, 0);
  s.connect(kMem, mp::kDma, mp::kSouthMaster).connect(kShim, sp::kNorthSlave, sp::kS2mm0);
  s.shim_dma(0).host_bd(0, 0, linear(4), 0).push(kShim, kS2MM, 0, 0, 1, true);
  s.sync(kShim, kS2MM, 0);
  Words out(4);
  m.run(s, {view(out)});
  CHECK(out == counting(4));
  // Without one of them it is the error of a missing route when the stream waits.
  Machine lost;
  lost.configure();
  Script without = lost.script();
  without.bd(kMem, 0, linear(4, kOwnMem)).push(kMem, kMM2S, 0, 0);
  without.connect(kShim, sp::kNorthSlave, sp::kS2mm0).shim_dma(0);
  without.host_bd(0, 0, linear(4), 0).push(kShim, kS2MM, 0, 0, 1, true).sync(kShim, kS2MM, 0);
  check_error(ErrorKind::kNoConsumer, {"memtile (0,1) MM2S 0", "route"},
              [&] { lost.run(without, {view(out)}); });
}

TEST_CASE(
    "matrix_multiplication_using_cascade: a trace buffer at an address that nothing patches") {
  Machine m;
  route_core_to_shim(m.config);
  m.config.memory(kCore, 0, counting(4)).bd(kCore, 0, linear(4));
  m.configure();
  Words out(4);
  for (int run = 0; run < 7; ++run) {  // more than a queue holds
    Script s = m.script();
    s.bd(kShim, 12, linear(64, 0x400)).push(kShim, kS2MM, 1, 12);
    s.host_bd(0, 0, linear(4), 0).push(kShim, kS2MM, 0, 0, 1, true).push(kCore, kMM2S, 0, 0);
    m.run(s.sync(kShim, kS2MM, 0), {view(out)});
    CHECK(out == counting(4));
  }
  // One that data may reach needs memory.
  Script s = m.script();
  s.bd(kShim, 12, linear(64, 0x400)).push(kShim, kS2MM, 0, 12);
  check_error(ErrorKind::kOutOfRange, {"shim (0,0) S2MM 0", "where no argument lies"},
              [&] { m.run(s, {view(out)}); });
}
