// Where memtile BDs of programs of other compilers find their memory: restated from mlir-aie's
// tests memtile_dmas and adjacent_memtile_access (test/npu-xrt). Which of the two ways of counting
// a stream or a configuration means: hardware.md 1.4.
#include "emulator_fixture.h"

using namespace npu;
using namespace npu::test;

namespace {

// A BD of a FIFO: acquires one of lock `from`, releases one to lock `to`.
Bd passing(const Bd& bd, uint32_t from, uint32_t to) {
  return releasing(acquiring(bd, from, -1), to, 1);
}

}  // namespace

TEST_CASE("memtile_dmas: on npu1 BDs that a stream writes address the tile's own memory from 0") {
  for (const Generation generation : {Generation::kNpu1, Generation::kNpu2}) {
    const bool npu1 = generation == Generation::kNpu1;
    for (const int col : {0, 1}) {
      if (!npu1 && col == 0) continue;  // there is no memory at 0: test_emulator_errors.cpp
      const At shim{col, 0}, mem{col, 1};
      Machine m(generation);
      m.config.connect(shim, sp::kMm2s0, sp::kNorthMaster).shim_dma(col);
      m.config.connect(mem, mp::kSouthSlave, mp::kDma).connect(mem, mp::kDma, mp::kSouthMaster);
      m.config.connect(shim, sp::kNorthSlave, sp::kS2mm0);
      m.config.lock(mem, 0, 1);
      m.configure();
      Script s = m.script();
      s.host_bd(col, 0, linear(64), 0).push(shim, kMM2S, 0, 0);
      s.bd(mem, 0, passing(linear(64, 16), kOwnLock, kOwnLock + 1)).push(mem, kS2MM, 0, 0);
      s.bd(mem, 1, passing(linear(64, 16), kOwnLock + 1, kOwnLock)).push(mem, kMM2S, 0, 1);
      s.host_bd(col, 1, linear(64), 1).push(shim, kS2MM, 0, 1, 1, true).sync(shim, kS2MM, 0);
      Words in = counting(64), out(64);
      m.run(s, {view(in), view(out)});
      CHECK(out == in);
      const At used = npu1 ? mem : At{col - 1, 1};
      CHECK(m.words(used, 16, 64) == in);
      if (col == 1) CHECK(m.words(npu1 ? At{0, 1} : mem, 16, 64) == Words(64));
    }
  }
}

TEST_CASE("memtile_dmas: the base alone may come later, and 0x80000 is the own memory too") {
  Machine m(Generation::kNpu1);
  const At mem{1, 1};
  m.loopback(mem);
  m.config.memory(mem, 0, counting(8));
  m.configure();
  Script s = m.script();
  s.bd(mem, 0, linear(8, kOwnMem)).bd(mem, 1, linear(8, kOwnMem));
  s.raw.mask_write(mem.address(0xA0004), 0, 0x7FFFF);  // BD 0: from 0
  s.raw.mask_write(mem.address(0xA0024), kOwnMem + 100, 0x7FFFF);
  s.push(mem, kMM2S, 0, 0).push(mem, kS2MM, 0, 1, 1, true).sync(mem, kS2MM, 0);
  m.run(s);
  CHECK(m.words(mem, 100, 8) == counting(8));
}

TEST_CASE("adjacent_memtile_access: in a configuration npu1 has the window of three memtiles") {
  Machine m(Generation::kNpu1);
  const At west{0, 1}, mem{1, 1}, east{2, 1};
  m.loopback(mem);
  m.config.memory(west, 0, {1}).memory(mem, 0, {2}).memory(east, 0, {3});
  m.config.bd(mem, 0, followed_by(linear(1, 0), 1)).bd(mem, 1, followed_by(linear(1, kOwnMem), 2));
  m.config.bd(mem, 2, linear(1, 2 * kOwnMem)).bd(mem, 3, linear(3, kOwnMem + 8));
  m.configure();
  Script s = m.script();
  s.push(mem, kMM2S, 0, 0).push(mem, kS2MM, 0, 3, 1, true).sync(mem, kS2MM, 0);
  m.run(s);
  CHECK(m.words(mem, 8, 3) == Words{1, 2, 3});
}

TEST_CASE("a configuration as a stream: with the west's locks, npu1 means the west's memory") {
  // As adjacent_memtile_access and add_one_two_txn together: locks and buffer are the west's.
  for (const Generation generation : {Generation::kNpu1, Generation::kNpu2}) {
    Machine m(generation);
    const At west{0, 1}, mem{1, 1};
    m.loopback(mem);
    m.config.memory(west, 16, counting(4)).memory(mem, 16, Words(4, 9)).lock(west, 3, 1);
    m.configure();
    Script s = m.script();
    s.bd(mem, 0, passing(linear(4, 16), 3, 5)).bd(mem, 1, linear(4, kOwnMem + 64));
    s.push(mem, kMM2S, 0, 0).push(mem, kS2MM, 0, 1, 1, true).sync(mem, kS2MM, 0);
    m.run(s);
    CHECK(m.words(mem, 64, 4) == counting(4));
    CHECK(m.lock(west, 5) == 1);
  }
}
