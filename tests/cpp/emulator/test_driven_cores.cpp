// Cores whose programs are callbacks (driven_core.h): the lock map, that they are woken across
// columns by and wake what they share locks with, stall bits of Core_Status, stream ports and
// cascades under reset, a program that never blocks, timed runs.
#include "devices/emulator/driven_core.h"
#include "emulator_fixture.h"

using namespace npu;
using namespace npu::test;
using emulator::CoreOperation;
using Code = CoreOperation::Code;

namespace {

constexpr uint32_t kStatus = 0x32004, kControl = 0x32000, kCascadeControl = 0x36060;

CoreOperation lock_operation(Code code, int lock, int value) {
  CoreOperation operation;
  operation.code = code;
  operation.lock = lock;
  operation.value = value;
  return operation;
}

CoreOperation acquire(int lock, int value = 1) {
  return lock_operation(Code::kAcquireGe, lock, value);
}

CoreOperation release(int lock, int value = 1) {
  return lock_operation(Code::kRelease, lock, value);
}

CoreOperation sending(Code code, Words words) {
  CoreOperation operation;
  operation.code = code;
  operation.words = std::move(words);
  return operation;
}

CoreOperation taking(Code code, size_t count) {
  CoreOperation operation;
  operation.code = code;
  operation.count = count;
  return operation;
}

// A program of fixed operations, and the results that it got.
struct Listed {
  std::vector<CoreOperation> operations;
  std::vector<Words> results;
  int starts = 0;
  size_t next = 0;
};

void attach(Machine& m, At at, const std::shared_ptr<Listed>& program) {
  emulator::CoreDriver driver;
  driver.next = [program](bool restart, std::span<const uint32_t> result) {
    if (restart) {
      ++program->starts;
      program->next = 0;
    }
    program->results.emplace_back(result.begin(), result.end());
    const size_t now = program->next++;
    return now < program->operations.size() ? program->operations[now] : CoreOperation{};
  };
  m.array.attach(at.col, at.row, std::move(driver));
}

std::shared_ptr<Listed> attach(Machine& m, At at, std::vector<CoreOperation> operations) {
  auto program = std::make_shared<Listed>();
  program->operations = std::move(operations);
  attach(m, at, program);
  return program;
}

}  // namespace

TEST_CASE("driven core: locks 0-63 are the south's, the west's, the north's and its own") {
  Machine m;
  m.configure();
  attach(m, {1, 3}, {release(2, 1), release(16 + 2, 2), release(32 + 2, 3), release(48 + 2, 4)});
  m.run(Script());
  CHECK(m.lock({1, 2}, 2) == 1);
  CHECK(m.lock({0, 3}, 2) == 2);
  CHECK(m.lock({1, 4}, 2) == 3);
  CHECK(m.lock({1, 3}, 2) == 4);
  for (const At at : {At{0, 2}, At{0, 5}}) {
    m.configure();
    const bool south = at.row == 2;
    attach(m, at, {acquire(south ? 0 : 32)});
    check_error(ErrorKind::kLock,
                {south ? "acquires lock 0 of its southern neighbour, where there is no core tile"
                       : "acquires lock 0 of its northern neighbour, where there is no core tile"},
                [&] { m.run(Script()); });
  }
}

TEST_CASE("driven core: locks shared with worker programs and DMAs of another column") {
  Machine m;
  const At west{0, 2}, east{1, 2};
  m.loopback(west).config.memory(west, 0, counting(4));
  m.config.bd(west, 0, releasing(acquiring(linear(4), 0, -1), 1, 1));
  m.config.bd(west, 1, linear(4, 100));
  m.config.push(west, kMM2S, 0, 0).push(west, kS2MM, 0, 1);
  m.configure();
  int calls = 0;
  m.attach(west, "acquire_ge 2 1\ncall f\nrelease 3 1\n", [&](auto) { ++calls; });
  const auto program =
      attach(m, east, {release(16 + 0), acquire(16 + 1), release(16 + 2), acquire(16 + 3)});
  m.run(Script());
  CHECK(m.words(west, 100, 4) == counting(4));
  CHECK(calls == 1);
  CHECK(program->next == 5);
  CHECK(m.array.read_register(east.address(kStatus)) == (1u | 1u << 20));
}

TEST_CASE("driven core: Core_Status says what it waits for") {
  const std::vector<std::pair<CoreOperation, int>> waits = {
      {acquire(3), 6},
      {acquire(16 + 3), 7},
      {acquire(32 + 3), 8},
      {acquire(48 + 3), 9},
      {taking(Code::kGet, 1), 10},
      {sending(Code::kPut, {1}), 12},
      {taking(Code::kGetCascade, 16), 14},
      {sending(Code::kPutCascade, Words(5 * 16)), 15},
  };
  for (const auto& [operation, bit] : waits) {
    Machine m;
    const At at{1, 3};
    m.config.connect(at, 0, cp::kEastMaster).connect({2, 3}, cp::kWestSlave, cp::kDma);
    m.config.connect(at, cp::kWestSlave, 0);
    m.configure();
    attach(m, at, {operation});
    m.run(Script());
    CHECK(m.array.read_register(at.address(kStatus)) == (1u | 1u << bit));
  }
}

TEST_CASE("driven core: a reset drops what its stream ports were doing and starts afresh") {
  Machine m;
  const At from{0, 2}, to{0, 3};
  m.config.connect(from, 0, cp::kNorthMaster).connect(to, cp::kSouthSlave, 0);
  m.configure();
  const auto sender = attach(m, from, {acquire(48), sending(Code::kPut, {1, 2, 3})});
  const auto taker = attach(m, to, {taking(Code::kGet, 5)});
  Script first = m.script();
  m.run(first.lock(from, 0, 1));
  CHECK(taker->results.size() == 1);  // three of five words
  Script reset = m.script();
  reset.write(to, kControl, 2).write(to, kControl, 1).write(from, kControl, 2);
  reset.write(from, kControl, 1).lock(from, 0, 1);
  taker->operations[0].count = 3;
  m.run(reset);
  CHECK(taker->starts == 2);
  CHECK(sender->starts == 2);
  CHECK(taker->results.back() == Words{1, 2, 3});
  // A new program in its place does not get what the old one was sent.
  m.run(m.script().lock(from, 0, 0));
  const auto second = attach(m, to, {taking(Code::kGet, 2)});
  attach(m, from, {sending(Code::kPut, {8, 9})});
  m.run(Script());
  CHECK(second->results.back() == Words{8, 9});
}

TEST_CASE("driven core: a cascade holds four values and keeps their order") {
  Machine m;
  const At from{0, 2}, to{1, 2};
  m.config.write(from, kCascadeControl, 2).write(to, kCascadeControl, 1);
  m.configure();
  const auto sender = attach(m, from, {sending(Code::kPutCascade, counting(6 * 16))});
  const auto taker =
      attach(m, to, {acquire(48), taking(Code::kGetCascade, 32), taking(Code::kGetCascade, 64)});
  m.run(Script());
  CHECK(sender->next == 1);
  CHECK(m.array.read_register(from.address(kStatus)) == (1u | 1u << 15));
  Script go;
  m.run(go.lock(to, 0, 1));
  CHECK(sender->next == 2);
  REQUIRE(taker->results.size() == 4);
  CHECK(taker->results[2] == counting(32));
  CHECK(taker->results[3] == counting(64, 33));
}

TEST_CASE("driven core: one that never blocks is a livelock, others run beside it") {
  Machine m;
  m.configure();
  m.array.set_watchdog_budget(1 << 20);
  emulator::CoreDriver driver;
  bool turn = false;
  driver.next = [&](bool, std::span<const uint32_t>) {
    return (turn = !turn) ? release(48) : acquire(48);
  };
  m.array.attach(0, 2, std::move(driver));
  attach(m, {0, 3}, {release(48 + 5, 2)});
  check_error(ErrorKind::kUnfinished, {"livelock", "core (0,2)"}, [&] { m.run(Script()); });
  CHECK(m.lock({0, 3}, 5) == 2);
}

TEST_CASE("driven core: work takes its cycles in timed runs, which need data") {
  const arch::Timing timing{Generation::kNpu2, arch::TimingTable()};
  CoreOperation work;
  work.code = Code::kWork;
  work.cycles = 1234;
  for (const bool data : {true, false}) {
    Machine m;
    m.configure();
    const auto program = attach(m, {0, 2}, {release(48), work, release(48)});
    m.array.set_timing(&timing, data);
    if (!data) {
      check_error(ErrorKind::kUnsupported, {"core (0,2) runs a callback", "time it with data"},
                  [&] { m.run(Script()); });
      continue;
    }
    m.run(Script());
    CHECK(program->next == 4);
    CHECK(m.array.timing_report().cycles == 1234 + timing.lock_operation);
    CHECK(m.array.find_tile(0, 2)->core->busy() == 1234 + timing.lock_operation);
  }
}
