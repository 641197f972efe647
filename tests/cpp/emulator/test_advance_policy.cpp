// When the array advances between stream operations: before what depends on it, not otherwise. A BD
// or a queue that is in use even then is an error, and one that is not is an error if streams have
// to wait (require_waits), as those of devices do.
#include "devices/emulator/driven_core.h"
#include "devices/emulator/emulated_device.h"
#include "emulator_fixture.h"
#include "runtime/configuration.h"

using namespace npu;
using namespace npu::test;

namespace {

using Arguments = std::span<const KernelArgument>;

const At kShim{0, 0}, kMem{0, 1}, kCore{0, 2};

// Shim MM2S 0 fills memtile words 0.. by a task of as many words as a test configures.
struct Sink : Machine {
  explicit Sink(uint32_t words) {
    config.connect(kShim, sp::kMm2s0, sp::kNorthMaster).shim_dma(0);
    config.connect(kMem, mp::kSouthSlave, mp::kDma);
    config.bd(kMem, 0, linear(words, kOwnMem)).push(kMem, kS2MM, 0, 0);
    configure();
  }
  Words data = counting(64);
};

}  // namespace

TEST_CASE("a BD may change once the array has finished its transfer, unless streams have to wait") {
  for (const bool required : {false, true}) {
    for (const int how : {0, 1, 2, 3}) {  // BLOCKWRITE, WRITE, MASKWRITE, ADDRESS_PATCH
      Sink m(12);
      m.array.require_waits(required);
      Script s;
      s.host_bd(0, 0, linear(8), 0).push(kShim, kMM2S, 0, 0);
      const uint32_t length = kShim.address(0x1D000);
      if (how == 0) s.bd(kShim, 0, linear(4, arch::kDdrAperture)).host_bd(0, 0, linear(4), 0, 64);
      if (how == 1) s.raw.write(length, 4);
      if (how == 2) s.raw.mask_write(length, 4, 0xF);
      if (how >= 1) s.raw.address_patch(length + 4, 0, 64);
      if (how == 3) s.raw.write(length, 4);
      s.push(kShim, kMM2S, 0, 0, 1, true).sync(kShim, kMM2S, 0);
      if (required) {
        check_error(ErrorKind::kBdInUse, {"rewrites BD 0", "wait for that transfer's token first"},
                    [&] { m.run(s, {view(m.data)}); });
        continue;
      }
      m.run(s, {view(m.data)});
      Words expected = counting(8);
      for (uint32_t i = 0; i < 4; ++i) expected.push_back(17 + i);
      CHECK(m.words(kMem, 0, 12) == expected);
      CHECK(m.array.unwaited() == 1);
    }
  }
}

TEST_CASE("a BD that is in use when nothing can progress is an error, whoever waits") {
  for (const bool required : {false, true}) {
    Sink m(7);  // one word less than is sent
    m.array.require_waits(required);
    Script s;
    s.host_bd(0, 0, linear(8), 0).push(kShim, kMM2S, 0, 0).bd(kShim, 0, linear(4));
    check_error(ErrorKind::kBdInUse,
                {"rewrites BD 0", required ? "moved 0 of 8 words" : "moved 7 of 8 words"},
                [&] { m.run(s, {view(m.data)}); });
  }
}

TEST_CASE("a BD in use may be written with the words that it has") {
  Sink m(8);
  m.array.require_waits(true);
  Script s;
  s.host_bd(0, 0, linear(8), 0).push(kShim, kMM2S, 0, 0, 1, true);
  s.raw.write(kShim.address(0x1D000), 8);
  s.sync(kShim, kMM2S, 0);
  m.run(s, {view(m.data)});
  CHECK(m.words(kMem, 0, 8) == counting(8));
}

TEST_CASE("a push on a full queue finds room once the array has advanced") {
  for (const bool required : {false, true}) {
    Sink m(8);
    m.array.require_waits(required);
    Script s;
    s.host_bd(0, 0, linear(1), 0);
    for (int i = 0; i < 8; ++i) s.push(kShim, kMM2S, 0, 0, 1, i == 7);
    s.sync(kShim, kMM2S, 0);
    if (required) {
      check_error(ErrorKind::kQueueOverrun, {"shim (0,0) MM2S 0", "4 tasks wait"},
                  [&] { m.run(s, {view(m.data)}); });
      continue;
    }
    m.run(s, {view(m.data)});
    CHECK(m.words(kMem, 0, 8) == Words(8, 1));
    CHECK(m.array.unwaited() == 1);
    check_error(ErrorKind::kQueueOverrun, {"operation 7", "moved 0 of 1 words"},  // no receiver
                [&] { m.run(s, {view(m.data)}); });
  }
}

TEST_CASE("cores act on one write to their tile before the next") {
  // Locks that are written twice, memory that follows a lock, a BD that follows a push.
  Machine m;
  m.configure();
  std::vector<uint32_t> seen;
  m.attach(kCore, "loop forever\n acquire_ge 0 1\n call f @0\nend\n", [&](Arguments a) {
    uint32_t word = 0;
    std::memcpy(&word, a[0].data, 4);
    seen.push_back(word);
  });
  Script s;
  for (uint32_t i = 1; i <= 3; ++i) s.memory(kCore, 0, {i}).lock(kCore, 0, 1);
  s.lock(kCore, 0, 1);
  m.run(s);
  CHECK(seen == Words{1, 2, 3, 3});
}

TEST_CASE("a core that reaches its neighbours acts on one write to any of them before the next") {
  // The lock is in one tile, the word that it announces in another: north, west and own.
  const At core{1, 3};
  const std::pair<int, At> sides[] = {{16, {0, 3}}, {32, {1, 4}}, {48, core}};
  for (const auto& [locks, lock_at] : sides) {
    for (const auto& [unused, word_at] : sides) {
      Machine m;
      m.configure();
      Words seen;
      emulator::CoreDriver driver;
      driver.next = [&, first = locks, at = word_at](bool restart, std::span<const uint32_t>) {
        if (!restart) seen.push_back(m.word(at, 0));
        emulator::CoreOperation operation;
        operation.code = emulator::CoreOperation::Code::kAcquireGe;
        operation.lock = first;
        operation.value = 1;
        return operation;
      };
      m.array.attach(core.col, core.row, std::move(driver));
      Script s;
      for (uint32_t i = 1; i <= 3; ++i) s.memory(word_at, 0, {i}).lock(lock_at, 0, 1);
      m.run(s);
      CHECK(seen == Words{1, 2, 3});
    }
  }
}

TEST_CASE("a memtile's channel acts on a lock or a push before its neighbour's memory changes") {
  // MM2S 0 of the middle memtile sends one word of a neighbour's memory for each lock or push.
  const At middle{1, 1};
  for (const int side : {-1, 1}) {
    for (const bool by_lock : {false, true}) {
      Machine m;
      const At beside{1 + side, 1};
      const uint32_t words = kOwnMem * static_cast<uint32_t>(1 + side);
      m.loopback(middle);
      const uint32_t lock = static_cast<uint32_t>(64 * (1 + side));
      m.config.bd(middle, 0, by_lock ? acquiring(linear(1, words), lock, -1) : linear(1, words));
      m.config.bd(middle, 1, linear(3, kOwnMem)).push(middle, kS2MM, 0, 1);
      if (by_lock) m.config.push(middle, kMM2S, 0, 0, 3);
      m.configure();
      Script s;
      for (uint32_t i = 1; i <= 3; ++i) {
        s.memory(beside, 0, {i});
        by_lock ? s.lock(beside, 0, 1) : s.push(middle, kMM2S, 0, 0);
      }
      m.run(s);
      CHECK(m.words(middle, 0, 3) == Words{1, 2, 3});
    }
  }
}

TEST_CASE("the channels of a tile act on a push before locks and BDs of that tile change") {
  Machine m;
  m.loopback(kCore);
  m.config.memory(kCore, 0, counting(8)).bd(kCore, 1, linear(4, 100));
  m.config.push(kCore, kS2MM, 0, 1);
  m.configure();
  Script s;
  s.lock(kCore, 1, 1).bd(kCore, 0, acquiring(linear(2), 1, -1)).push(kCore, kMM2S, 0, 0);
  s.lock(kCore, 1, 1).bd(kCore, 0, acquiring(linear(2, 4), 1, -1)).push(kCore, kMM2S, 0, 0);
  m.run(s);
  CHECK(m.words(kCore, 100, 4) == Words{1, 2, 5, 6});
  CHECK(m.lock(kCore, 1) == 0);
}

TEST_CASE("cores start before the stream, and anew where it enables them") {
  Machine m;
  m.configure();
  m.attach(kCore, "call f @0\n", [](Arguments a) { std::memset(a[0].data, 0xFF, 4); });
  Script s;
  s.memory(kCore, 0, {5});
  m.run(s);
  CHECK(m.word(kCore, 0) == 5);
  s.write(kCore, 0x32000, 2).write(kCore, 0x32000, 1);
  m.run(s);
  CHECK(m.word(kCore, 0) == 0xFFFFFFFF);
  s.memory(kCore, 0, {6});
  m.run(s);
  CHECK(m.word(kCore, 0) == 6);
}

TEST_CASE("a stream that needs nothing of the array does not make it advance") {
  // Parameters and a lock for each of four cores: the first to run finds the last lock written.
  Machine m;
  m.configure();
  int calls = 0, early = 0;
  for (int row = 2; row < 6; ++row) {
    m.attach({0, row}, "acquire_ge 0 1\nacquire_ge 0 1\ncall f @0\n", [&](Arguments) {
      if (++calls == 1) early = m.array.find_tile(0, 5)->locks[0].value == 0;
    });
  }
  Script s;
  for (int row = 2; row < 6; ++row) s.memory({0, row}, 0, {1, 2}).lock({0, row}, 0, 2);
  s.write(kMem, 0x94000, 0).host_bd(0, 0, linear(1), 0);
  Words data(1);
  m.run(s, {view(data)});
  CHECK(calls == 4);
  CHECK(early == 0);
}

TEST_CASE("a route changes when the words before it have passed") {
  Sink m(4);
  Script s;
  s.host_bd(0, 0, linear(4), 0).push(kShim, kMM2S, 0, 0);
  s.write(kMem, Script::master_register(kMem, mp::kDma), 0);
  m.run(s, {view(m.data)});
  CHECK(m.words(kMem, 0, 4) == counting(4));
}

TEST_CASE("streams of devices have to wait") {
  const auto device = emulator::open_emulated_device(Generation::kNpu2, Arithmetic::kFast);
  const auto configuration = std::make_shared<Configuration>();
  const Words txn = Sink(12).config.words();
  const auto bytes = std::as_bytes(std::span(txn));
  configuration->id = 1;
  configuration->txn.assign(bytes.begin(), bytes.end());
  device->load(configuration);
  Script s;
  s.host_bd(0, 0, linear(8), 0).push(kShim, kMM2S, 0, 0).host_bd(0, 0, linear(4), 0);
  s.push(kShim, kMM2S, 0, 0, 1, true).sync(kShim, kMM2S, 0);
  const auto buffer = device->allocate(64);
  const BufferRef ref{buffer.get(), 0, 64, Access::kRead};
  const auto run = device->submit(device->prepare(s.words()), {&ref, 1});
  check_error(ErrorKind::kBdInUse, {"rewrites BD 0 of shim (0,0)"},
              [&] { run->wait(std::chrono::seconds(60)); });
}
