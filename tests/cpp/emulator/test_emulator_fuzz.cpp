// Damaged streams end: a small pipeline (shim, memtile, two cores, broadcast, packets, padding)
// with random words of its configuration and runtime streams changed must either succeed or raise
// npu::Error in bounded time, and the array must work again after the next configure. Worth its
// time under ASan and UBSan; under ThreadSanitizer only with NPU_THREADS=1, because damage to lock
// values makes programs whose kernels and DMAs touch the same bytes at the same time (agent.h).
// NPU_FUZZ_ROUNDS sets the number of rounds.
#include <cstdlib>
#include <random>

#include "emulator_fixture.h"

using namespace npu;
using namespace npu::test;

namespace {

const At kShim{0, 0}, kMem{0, 1}, kLow{0, 2}, kHigh{0, 3};
constexpr uint32_t kTile = 16, kTiles = 4;

// The host's words go by way of the memtile to both cores (broadcast); each adds its number and
// sends packets back that share a link; the memtile joins them behind two pad words.
Script pipeline_configuration() {
  Script c;
  c.shim_dma(0).connect(kShim, sp::kMm2s0, sp::kNorthMaster);
  c.connect(kMem, mp::kSouthSlave, mp::kDma).connect(kMem, mp::kDma + 2, mp::kNorthMaster + 1);
  c.connect(kLow, cp::kSouthSlave + 1, cp::kDma)
      .connect(kLow, cp::kSouthSlave + 1, cp::kNorthMaster);
  c.connect(kHigh, cp::kSouthSlave, cp::kDma);
  c.packet_slave(kHigh, cp::kDma, 0, 2, 0x1F, 0, 0)
      .packet_master(kHigh, cp::kSouthMaster, 0, 1, false);
  c.packet_slave(kLow, cp::kNorthSlave, 0, 2, 0x1F, 1, 0);
  c.packet_slave(kLow, cp::kDma, 0, 1, 0x1F, 1, 0)
      .packet_master(kLow, cp::kSouthMaster, 1, 1, false);
  c.packet_slave(kMem, mp::kNorthSlave, 0, 1, 0x1F, 0, 0)
      .packet_slave(kMem, mp::kNorthSlave, 1, 2, 0x1F, 0, 1);
  c.packet_master(kMem, mp::kDma + 1, 0, 1, true).packet_master(kMem, mp::kDma + 3, 0, 2, true);
  c.connect(kMem, mp::kDma + 4, mp::kSouthMaster + 2)
      .connect(kShim, sp::kNorthSlave + 2, sp::kS2mm0);
  for (const At core : {kLow, kHigh}) {
    c.lock(core, 0, 2).lock(core, 2, 1);
    for (uint32_t i = 0; i < 2; ++i) {
      c.bd(core, static_cast<int>(i),
           followed_by(releasing(acquiring(linear(kTile, 512 * i), 0, -1), 1, 1), 1 - i));
    }
    Bd send = followed_by(releasing(acquiring(linear(kTile, 2048), 3, -1), 2, 1), 4);
    send.packet_enable = true;
    send.packet_id = core.row == 2 ? 1 : 2;
    c.bd(core, 4, send).push(core, kS2MM, 0, 0).push(core, kMM2S, 0, 4);
  }
  const auto mem = [](uint32_t lock) { return kOwnLock + lock; };
  c.lock(kMem, 0, 1).lock(kMem, 2, 2);
  Bd in = followed_by(releasing(acquiring(linear(kTile, kOwnMem), mem(0), -1), mem(1), 1), 0);
  Bd out = followed_by(releasing(acquiring(linear(kTile, kOwnMem), mem(1), -1), mem(0), 1), 1);
  out.step = {4, 1, 1, 1};
  out.wrap = {4, 4, 0};
  c.bd(kMem, 0, in).bd(kMem, 1, out).push(kMem, kS2MM, 0, 0).push(kMem, kMM2S, 2, 1);
  Bd low =
      followed_by(releasing(acquiring(linear(kTile, kOwnMem + 1024), mem(2), -1), mem(3), 1), 24);
  Bd high = low;
  high.base += kTile;
  high.next_bd = 25;
  c.bd(kMem, 24, low).bd(kMem, 25, high).push(kMem, kS2MM, 1, 24).push(kMem, kS2MM, 3, 25);
  Bd join = followed_by(
      releasing(acquiring(linear(2 * kTile + 2, kOwnMem + 1024), mem(3), -2), mem(2), 2), 2);
  join.wrap[0] = 2 * kTile;
  join.pad_before[0] = 2;
  c.bd(kMem, 2, join).write(kMem, 0xA06E0 + 4 * 4, 99).push(kMem, kMM2S, 4, 2);
  return c;
}

Script pipeline_stream() {
  Script s;
  Bd in = linear(kTile), out = linear(2 * kTile + 2);
  in.iteration_wrap = out.iteration_wrap = kTiles;
  in.iteration_step = kTile;
  out.iteration_step = 2 * kTile + 2;
  s.host_bd(0, 0, in, 0).host_bd(0, 1, out, 1);
  s.push(kShim, kS2MM, 0, 1, kTiles, true).push(kShim, kMM2S, 0, 0, kTiles);
  s.sync(kShim, kS2MM, 0);
  return s;
}

void attach_cores(Array& array) {
  for (const At core : {kLow, kHigh}) {
    Program program = parse_program(
        "loop forever\n acquire_ge 1 1\n acquire_ge 2 1\n call f @0|2048%0 @8192 #64\n advance 0 "
        "2\n"
        " release 0 1\n release 3 1\nend\n",
        "fuzz");
    emulator::KernelFunction add;
    add.call = [row = static_cast<uint32_t>(core.row)](std::span<const KernelArgument> a,
                                                       CoreState&) {
      for (int64_t at = 0; at < a[2].value; at += 4) {
        uint32_t word;
        std::memcpy(&word, a[0].data + at, 4);
        word += 1000 * row;
        std::memcpy(a[1].data + at, &word, 4);
      }
    };
    array.attach(core.col, core.row, std::move(program), {add});
  }
}

void run_pipeline(Array& array, const Words& configuration, const Words& stream) {
  Words in = counting(kTile * kTiles), out((2 * kTile + 2) * kTiles);
  array.configure(std::as_bytes(std::span(configuration)));
  attach_cores(array);
  const emulator::Argument views[] = {view(in), view(out)};
  array.submit(std::as_bytes(std::span(stream)), views);
}

void check_pipeline(Array& array) {
  Words in = counting(kTile * kTiles), out((2 * kTile + 2) * kTiles), expected;
  for (uint32_t t = 0; t < kTiles; ++t) {
    expected.insert(expected.end(), {99, 99});
    for (const uint32_t row : {2u, 3u}) {
      for (uint32_t k = 0; k < kTile; ++k) {  // the memtile transposes 4 x 4
        expected.push_back(t * kTile + 4 * (k % 4) + k / 4 + 1 + 1000 * row);
      }
    }
  }
  const Words configuration = pipeline_configuration().words(), stream = pipeline_stream().words();
  array.configure(std::as_bytes(std::span(configuration)));
  attach_cores(array);
  const emulator::Argument views[] = {view(in), view(out)};
  for (int round = 0; round < 2; ++round) {
    std::fill(out.begin(), out.end(), 0);
    array.submit(std::as_bytes(std::span(stream)), views);
    REQUIRE(out == expected);
  }
}

uint32_t damaged_word(uint32_t word, std::mt19937& random) {
  constexpr uint32_t kExtreme[] = {0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFC, 0xFFFFFFFF};
  switch (random() % 4) {
    case 0:
      return word ^ 1u << random() % 32;
    case 1:
      return static_cast<uint32_t>(random());
    case 2:
      return kExtreme[random() % 6];
    default:
      return word + static_cast<uint32_t>(random() % 9) - 4;
  }
}

int rounds() {
  const char* text = std::getenv("NPU_FUZZ_ROUNDS");
  return text ? std::atoi(text) : 250;
}

}  // namespace

TEST_CASE("the pipeline itself works") {
  Array array(arch::device_geometry(Generation::kNpu2));
  CHECK(array.configure(std::as_bytes(std::span<const uint32_t>(pipeline_configuration().words())))
            .undecoded_writes == 0);
  check_pipeline(array);
}

TEST_CASE("damaged streams end with success or an error") {
  const Words configuration = pipeline_configuration().words(), stream = pipeline_stream().words();
  Array array(arch::device_geometry(Generation::kNpu2));
  array.set_watchdog_budget(1 << 17);
  std::mt19937 random(20241120);
  int succeeded = 0;
  std::map<std::string, int> kinds;
  for (int round = 0; round < rounds(); ++round) {
    Words c = configuration, s = stream;
    Words& target = round % 2 ? s : c;
    for (size_t hits = 1 + random() % 3; hits > 0; --hits) {
      uint32_t& word = target[4 + random() % (target.size() - 4)];  // the header stays
      word = damaged_word(word, random);
    }
    try {
      run_pipeline(array, c, s);
      ++succeeded;
    } catch (const Error& error) {
      const std::string message = error.what();
      CAPTURE(message);
      REQUIRE(message.rfind("[", 0) == 0);
      ++kinds[kind_name(error.kind())];
    }
    if (round % 50 == 0) check_pipeline(array);
  }
  check_pipeline(array);
  CHECK(succeeded > 0);
  CHECK(kinds.size() >= 6);  // the damage reaches far into the array
}

TEST_CASE("random register writes between the operations of the pipeline") {
  Array array(arch::device_geometry(Generation::kNpu2));
  array.set_watchdog_budget(1 << 17);
  std::mt19937 random(99);
  const auto anywhere = [&]() -> uint32_t {
    const At at{static_cast<int>(random() % 2), static_cast<int>(random() % 4)};
    const arch::TileGeometry& model = at.model();
    const uint32_t bases[] = {model.lock_base,
                              model.bd_base,
                              model.s2mm_base,
                              model.mm2s_base,
                              model.switch_base,
                              model.switch_base + 0x100,
                              model.switch_base + 0x200,
                              0x32000,
                              0x1F000,
                              0};
    return at.address(bases[random() % 10] + 4 * static_cast<uint32_t>(random() % 40));
  };
  for (int round = 0; round < rounds() / 2; ++round) {
    Script c = pipeline_configuration(), s = pipeline_stream();
    for (size_t n = random() % 4; n > 0; --n) {
      c.raw.write(anywhere(), damaged_word(static_cast<uint32_t>(random() % 64), random));
    }
    for (size_t n = 1 + random() % 12; n > 0; --n) {
      s.raw.write(anywhere(), damaged_word(static_cast<uint32_t>(random() % 64), random));
    }
    const uint32_t column = static_cast<uint32_t>(random() % 2);
    s.sync({static_cast<int>(column), 0}, kS2MM, 0);
    try {
      run_pipeline(array, c.words(), s.words());
    } catch (const Error& error) {
      REQUIRE(std::string(error.what()).rfind("[", 0) == 0);
    }
  }
  check_pipeline(array);
}
