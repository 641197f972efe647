// Columns of the emulated array run in parallel (agent.h). Asserts, with values known beforehand,
// what crosses columns: broadcasts whose receivers become ready at different times, packets of
// several columns, memtiles that use their neighbours' locks and buffers, tokens, kernels that must
// run alone; that errors and livelocks end the same way, leave nothing behind and heed Ctrl-C;
// and, in processes of their own, that all of it is the same with 1, 2, 4 and 16 threads and in a
// forked child.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <thread>

#include "emulator_fixture.h"

using namespace npu;
using namespace npu::test;

namespace {

using Arguments = std::span<const KernelArgument>;
constexpr int kColumns = 8;
constexpr const char* kCalls = "loop forever\n acquire_eq 9 0\n call f\nend\n";  // never blocks
constexpr const char* kTranscript = "NPU_TEST_TRANSCRIPT";

// What a run gave, for the comparison between processes.
void record(const std::string& text) {
  if (const char* path = std::getenv(kTranscript))
    std::ofstream(path, std::ios::app) << text << '\n';
}

void record(const RunReport& r) {
  record(strf("%llu %llu %llu %llu %llu %llu %llu %llu", (unsigned long long)r.operations,
              (unsigned long long)r.shim_read_bytes, (unsigned long long)r.shim_write_bytes,
              (unsigned long long)r.memtile_read_bytes, (unsigned long long)r.memtile_write_bytes,
              (unsigned long long)r.core_read_bytes, (unsigned long long)r.core_write_bytes,
              (unsigned long long)r.kernel_calls));
}

void record(const Words& words) {
  std::string text;
  for (const uint32_t word : words) text += strf("%x ", word);
  record(text);
}

std::string error_of(Machine& m, const Script& stream, ErrorKind kind) {
  std::string message = "no error";
  try {
    m.run(stream);
  } catch (const Error& error) {
    message = error.what();
    CHECK(error.kind() == kind);
  }
  record(message);
  return message;
}

Bd packet(uint32_t length, uint64_t base, uint32_t id) {
  Bd bd = linear(length, base);
  bd.packet_enable = true;
  bd.packet_id = id;
  return bd;
}

// An argument goes to the lower core of every column, in blocks; column c has c % 4 + 1 buffers for
// them and passes 3 * word + c on to the core above.
struct Broadcast {
  static constexpr uint32_t kBlock = 8, kBlocks = 100;
  using Kernel = std::function<void(int col)>;

  explicit Broadcast(const Kernel& around = {}, const std::vector<int>& serial = {}) {
    for (int col = 0; col < kColumns; ++col) configure_column(col);
    const RunReport configured = m.configure();
    CHECK(configured.kernel_calls == 0);
    for (int col = 0; col < kColumns; ++col) {
      const bool alone = std::count(serial.begin(), serial.end(), col) > 0;
      attach_column(col, around, alone);
    }
  }
  void run() {
    Script s;
    s.host_bd(0, 0, linear(kBlock * kBlocks), 0).push({0, 0}, kMM2S, 0, 0, 1, true);
    s.sync({0, 0}, kMM2S, 0);
    Words in = counting(kBlock * kBlocks, 1000);
    for (Words& words : got) words.clear();
    const RunReport report = m.run(s, {view(in)});
    record(report);
    CHECK(report.kernel_calls == 2 * kColumns * kBlocks);
    CHECK(report.shim_read_bytes == 4 * kBlock * kBlocks);
    CHECK(report.core_write_bytes == 2 * kColumns * 4 * kBlock * kBlocks);
    for (int col = 0; col < kColumns; ++col) {
      Words expected = in;
      for (uint32_t& word : expected) word = 3 * word + static_cast<uint32_t>(col);
      CHECK(got[static_cast<size_t>(col)] == expected);
    }
  }

  Machine m;
  std::array<Words, kColumns> got;

 private:
  static int depth(int col) { return col % 4 + 1; }
  void configure_column(int col) {
    Script& c = m.config;
    const At shim{col, 0}, mem{col, 1}, core{col, 2}, above{col, 3};
    const int from = col == 0 ? sp::kMm2s0 : sp::kWestSlave;
    if (col == 0) c.shim_dma(0);
    c.connect(shim, from, sp::kNorthMaster).connect(mem, mp::kSouthSlave, mp::kNorthMaster);
    if (col + 1 < kColumns) c.connect(shim, from, sp::kEastMaster);
    c.connect(core, cp::kSouthSlave, cp::kDma).connect(core, cp::kDma, cp::kNorthMaster);
    c.connect(above, cp::kSouthSlave, cp::kDma);
    c.lock(core, 0, static_cast<uint32_t>(depth(col))).lock(core, 2, 1).lock(above, 0, 1);
    for (int i = 0; i < depth(col); ++i) {
      const auto next = static_cast<uint32_t>((i + 1) % depth(col));
      const Bd in = acquiring(linear(kBlock, kBlock * static_cast<uint32_t>(i)), 0, -1);
      c.bd(core, i, followed_by(releasing(in, 1, 1), next));
    }
    c.bd(core, 8, followed_by(releasing(acquiring(linear(kBlock, 1024), 3, -1), 2, 1), 8));
    c.bd(above, 0, followed_by(releasing(acquiring(linear(kBlock, 0), 0, -1), 1, 1), 0));
    c.push(core, kS2MM, 0, 0).push(core, kMM2S, 0, 8).push(above, kS2MM, 0, 0);
  }
  void attach_column(int col, const Kernel& around, bool alone) {
    std::string buffers = "@0";
    for (int i = 1; i < depth(col); ++i) buffers += strf("|%d", i * 32);
    const std::string step = strf(" advance 0 %d\n", depth(col));
    m.attach(
        {col, 2},
        "loop forever\n acquire_ge 1 1\n acquire_ge 2 1\n call f " + buffers +
            (depth(col) > 1 ? "%0 @4096\n" + step : std::string(" @4096\n")) +
            " release 0 1\n release 3 1\nend\n",
        [=](Arguments a) {
          if (around) around(col);
          uint32_t words[kBlock];
          std::memcpy(words, a[0].data, sizeof words);
          for (uint32_t& word : words) word = 3 * word + static_cast<uint32_t>(col);
          std::memcpy(a[1].data, words, sizeof words);
        },
        alone);
    Words* const out = &got[static_cast<size_t>(col)];
    m.attach({col, 3}, "loop forever\n acquire_ge 1 1\n call f @0\n release 0 1\nend\n",
             [=](Arguments a) {
               uint32_t words[kBlock];
               std::memcpy(words, a[0].data, sizeof words);
               out->insert(out->end(), words, words + kBlock);
             });
  }
};

// Blocks go from memtile to memtile: c's own channels fill its buffers A; c + 1 reads these and
// sends to itself, into buffers B of c + 2, with the neighbours' locks; c + 2 empties them.
struct Memtiles {
  static constexpr uint32_t kWords = 960, kBlock = 16, kA = 4000, kB = 5000, kResult = 8000;

  // `overflow`: a column whose lock the emptying makes too large.
  void configure(int overflow = -1) {
    m.config = m.script();
    for (int col = 0; col < kColumns; ++col) configure_column({col, 1}, col == overflow);
    m.configure();
  }
  Script stream() const {
    Script s;
    for (int col = 0; col < kColumns; ++col) {
      const At at{col, 1};
      if (col + 2 < kColumns) s.push(at, kS2MM, 2, 1).push(at, kMM2S, 2, 0);
      if (col >= 1 && col + 1 < kColumns) s.push(at, kS2MM, 0, 5).push(at, kMM2S, 0, 3);
      if (col >= 2) s.push(at, kMM2S, 4, 7).push(at, kS2MM, 4, 9, 1, true);
    }
    for (int col = 2; col < kColumns; ++col) s.sync({col, 1}, kS2MM, 4);
    return s;
  }
  void run() {
    record(m.run(stream()));
    for (int col = 2; col < kColumns; ++col) {
      const Words got = m.words({col, 1}, kResult, kWords);
      CHECK(got == counting(kWords, 10000 * static_cast<uint32_t>(col - 2)));
      CHECK(m.lock({col, 1}, 2) == 1);  // the next BD has taken the other
      record(got);
    }
  }

  Machine m;

 private:
  // Two alternating buffers; `id` is the first of two BDs.
  void ring(At at, int id, uint32_t base, uint32_t acquired, uint32_t released, int by = 1) {
    for (int i = 0; i < 2; ++i) {
      const Bd bd =
          acquiring(linear(kBlock, base + kBlock * static_cast<uint32_t>(i)), acquired, -1);
      m.config.bd(at, id + i,
                  followed_by(releasing(bd, released, by), static_cast<uint32_t>(id + 1 - i)));
    }
  }
  void configure_column(At at, bool overflows) {
    for (const int channel : {0, 2, 4}) m.loopback(at, channel, channel);
    Script& c = m.config;
    c.memory(at, 0, counting(kWords, 10000 * static_cast<uint32_t>(at.col)));
    c.lock(at, 0, 2).lock(at, 2, 2);
    c.bd(at, 0, linear(kWords, kOwnMem));
    ring(at, 1, kOwnMem + kA, kOwnLock + 0, kOwnLock + 1);
    ring(at, 3, kA, 1, 0);  // of the west
    ring(at, 5, 2 * kOwnMem + kB, kEastLock + 2, kEastLock + 3);
    ring(at, 7, kOwnMem + kB, kOwnLock + 3, kOwnLock + 2, overflows ? 62 : 1);
    c.bd(at, 9, linear(kWords, kOwnMem + kResult));
  }
};

// Cores (0..2, 2) send packets to S2MM 0 of the middle one, each when its program lets it.
constexpr uint32_t kPackets = 20, kPayload = 5;
Words packets_of_three_columns() {
  Machine m;
  Script& c = m.config;
  const At west{0, 2}, middle{1, 2}, east{2, 2};
  c.packet_slave(west, cp::kDma, 0, 0, 0x1F, 0, 0)
      .packet_master(west, cp::kEastMaster, 0, 1, false);
  c.packet_slave(east, cp::kDma, 0, 2, 0x1F, 0, 0)
      .packet_master(east, cp::kWestMaster, 0, 1, false);
  c.packet_slave(middle, cp::kWestSlave, 0, 0, 0x1F, 4, 1);
  c.packet_slave(middle, cp::kDma, 0, 1, 0x1F, 4, 1);
  c.packet_slave(middle, cp::kEastSlave, 0, 2, 0x1F, 4, 1);
  c.packet_master(middle, cp::kDma, 4, 1 << 1, false);
  for (uint32_t col = 0; col < 3; ++col) {
    const At at{static_cast<int>(col), 2};
    c.memory(at, 0, counting(kPackets * kPayload, 1000 * col));
    Bd bd = acquiring(packet(kPayload, 0, col), 0, -1);
    bd.iteration_step = kPayload;
    bd.iteration_wrap = kPackets;
    c.bd(at, 0, bd);
  }
  const uint32_t words = 3 * kPackets * (kPayload + 1);
  c.bd(middle, 1, linear(words, 2000));
  m.configure();
  for (int col = 0; col < 3; ++col) {
    m.attach({col, 2},
             strf("loop %u\n loop %d\n  call f\n end\n release 0 1\nend\n", kPackets, 3 * col + 1),
             [](Arguments) {});
  }
  Script s;
  for (int col = 0; col < 3; ++col) s.push({col, 2}, kMM2S, 0, 0, kPackets);
  s.push(middle, kS2MM, 0, 1, 1, true).sync(middle, kS2MM, 0);
  record(m.run(s));
  return m.words(middle, 2000, words);
}

void check_packets(const Words& got) {
  std::array<uint32_t, 3> seen{};
  for (size_t i = 0; i < got.size(); i += kPayload + 1) {
    const uint32_t col = got[i] & 0x1F;
    REQUIRE(col < 3);
    const Words payload(got.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                        got.begin() + static_cast<std::ptrdiff_t>(i + 1 + kPayload));
    CHECK(payload == counting(kPayload, 1000 * col + kPayload * seen[col]++));
  }
  CHECK(seen == std::array<uint32_t, 3>{kPackets, kPackets, kPackets});
}

// The run is ended; the array is configured again and used afterwards.
void check_livelock(Machine& m, const Script& stream) {
  m.array.set_watchdog_budget(1 << 20);
  const std::string message = error_of(m, stream, ErrorKind::kUnfinished);
  CHECK(message.find("livelock") != std::string::npos);
  uint64_t words = 0;  // at most 64 for each unit of work
  for (int col = 0; col < kColumns; ++col) words += m.array.report(col).memtile_read_bytes / 4;
  CHECK(words < uint64_t{64} << 21);
  m.config = m.script();
  const At at{3, 1};
  m.loopback(at, 2, 2).config.memory(at, 0, counting(9));
  m.config.bd(at, 0, linear(9, kOwnMem)).bd(at, 1, linear(9, kOwnMem + 100));
  m.configure();
  Script s;
  s.push(at, kMM2S, 2, 0).push(at, kS2MM, 2, 1, 1, true).sync(at, kS2MM, 2);
  m.run(s);
  CHECK(m.words(at, 100, 9) == counting(9));
}

}  // namespace

TEST_SUITE_BEGIN("columns");

TEST_CASE("a broadcast to columns that are ready at different times") {
  Broadcast b;
  for (int i = 0; i < 3; ++i) b.run();
}

TEST_CASE("kernels that must run alone do, beside columns of others") {
  const auto caller = std::this_thread::get_id();
  std::atomic<int> running{0}, together{0}, elsewhere{0};
  const std::vector<int> serial{0, 2, 3, 7};
  const auto around = [&](int col) {
    const bool alone = std::count(serial.begin(), serial.end(), col) > 0;
    const int others = running.fetch_add(alone ? 1000 : 1);
    if (alone ? others != 0 : others >= 1000) ++together;
    if (alone && std::this_thread::get_id() != caller) ++elsewhere;
    for (int i = 0; i < 200; ++i) std::atomic_signal_fence(std::memory_order_seq_cst);
    running.fetch_sub(alone ? 1000 : 1);
  };
  Broadcast b(around, serial);
  b.run();
  CHECK(together == 0);
  CHECK(elsewhere == 0);
}

TEST_CASE("memtiles use their neighbours' locks and buffers while these run") {
  Memtiles t;
  for (int i = 0; i < 5; ++i) {
    t.configure();
    t.run();
  }
}

TEST_CASE("a memtile's receiver fills its own memory and its neighbour's alternately") {
  constexpr uint32_t kBlock = 16, kBlocks = 60, kB = 5000, kResult = 8000;
  Machine m;
  Script& c = m.config;
  Script s;
  Words odd;  // blocks
  for (uint32_t i = 0; i < kBlocks * kBlock; ++i) {
    if (i / kBlock % 2 == 1) odd.push_back(i);
  }
  for (const int col : {1, 4}) {
    const At at{col, 1}, east{col + 1, 1};
    m.loopback(at).loopback(east, 4, 4).config.memory(at, 0, counting(kBlocks * kBlock, 0));
    c.lock(east, 2, 2).bd(at, 0, linear(kBlocks * kBlock, kOwnMem));
    for (uint32_t i = 0; i < 2; ++i) {
      const int id = static_cast<int>(2 * i);
      const Bd there = acquiring(linear(kBlock, 2 * kOwnMem + kB + kBlock * i), kEastLock + 2, -1);
      c.bd(at, id + 1, followed_by(linear(kBlock, kOwnMem + 9000), 2 * i + 2));
      c.bd(at, id + 2, followed_by(releasing(there, kEastLock + 3, 1), i == 0 ? 3 : 1));
      const Bd from = acquiring(linear(kBlock, kOwnMem + kB + kBlock * i), kOwnLock + 3, -1);
      c.bd(east, static_cast<int>(i), followed_by(releasing(from, kOwnLock + 2, 1), 1 - i));
    }
    c.bd(east, 2, linear(kBlocks / 2 * kBlock, kOwnMem + kResult));
    s.push(at, kS2MM, 0, 1).push(at, kMM2S, 0, 0);
    s.push(east, kMM2S, 4, 0).push(east, kS2MM, 4, 2, 1, true);
  }
  s.sync({2, 1}, kS2MM, 4).sync({5, 1}, kS2MM, 4);
  for (int i = 0; i < 3; ++i) {
    m.configure();
    record(m.run(s));
    for (const int col : {2, 5}) CHECK(m.words({col, 1}, kResult, kBlocks / 2 * kBlock) == odd);
  }
}

TEST_CASE("packets of several columns to one receiver") {
  const Words first = packets_of_three_columns();
  check_packets(first);
  record(first);
  for (int i = 0; i < 3; ++i) CHECK(packets_of_three_columns() == first);
}

TEST_CASE("tokens of all columns are counted, also those for a later stream") {
  Machine m;
  for (int col = 0; col < kColumns; ++col) m.loopback({col, 0});
  m.configure();
  std::vector<Words> in, out(kColumns, Words(64));
  std::vector<emulator::Argument> buffers;
  Script s, rest, more;
  for (int col = 0; col < kColumns; ++col)
    in.push_back(counting(64, 100 * static_cast<uint32_t>(col)));
  for (int col = 0; col < kColumns; ++col) {
    const auto i = static_cast<uint32_t>(col);
    buffers.push_back(view(in[i]));
    buffers.push_back(view(out[i]));
    s.host_bd(col, 0, linear(16), 2 * i).host_bd(col, 1, linear(16), 2 * i + 1);
    s.push({col, 0}, kMM2S, 0, 0, 3, true).push({col, 0}, kS2MM, 0, 1, 1, true);
    s.push({col, 0}, kS2MM, 0, 1, 1, true).push({col, 0}, kS2MM, 0, 1, 1, true);
  }
  for (int col = kColumns - 1; col >= 0; --col) s.sync({col, 0}, kS2MM, 0).sync({col, 0}, kS2MM, 0);
  for (int col = 0; col < kColumns; ++col) rest.sync({col, 0}, kS2MM, 0).sync({col, 0}, kMM2S, 0);
  record(m.run(s, buffers));
  for (size_t i = 0; i < in.size(); ++i) {
    in[i].resize(16), out[i].resize(16);
    CHECK(out[i] == in[i]);
  }
  m.run(rest);
  more.sync({5, 0}, kS2MM, 0);
  CHECK(error_of(m, more, ErrorKind::kDeadlock).find("shim (5,0) S2MM 0") != std::string::npos);
}

TEST_CASE("of errors in several columns that of the first is reported") {
  Machine m;
  for (int i = 0; i < 10; ++i) {
    m.configure();
    for (const int col : {7, 5, 2}) {  // the later the column, the sooner its error
      m.attach({col, 2},
               strf("loop %d\n call f\nend\nloop 64\n release 3 1\nend\n", 1 << (8 - col)),
               [](Arguments) {});
    }
    const std::string message = error_of(m, Script(), ErrorKind::kLock);
    CHECK(message.find("[submit] core (2,2) releases its lock 3") == 0);
  }
  m.configure();
  for (const int col : {7, 5, 2}) m.attach({col, 2}, "call f\n", [](Arguments) {});
  CHECK(m.run(Script()).kernel_calls == 3);  // nothing of the other columns' errors is left
}

TEST_CASE("nothing of a run that failed is left after configure") {
  Memtiles t;
  for (const int col : {4, 7, 2}) {
    t.configure(col);
    const std::string message = error_of(t.m, t.stream(), ErrorKind::kLock);
    CHECK(message.find(strf("releases lock 2 of memtile (%d,1)", col)) != std::string::npos);
    t.configure();
    t.run();
  }
}

TEST_CASE("a configuration that runs the array reports what moved") {
  Machine m;
  const At at{6, 1};
  m.loopback(at, 2, 2).config.bd(at, 0, linear(9, kOwnMem)).bd(at, 1, linear(9, kOwnMem + 100));
  m.config.push(at, kMM2S, 2, 0).push(at, kS2MM, 2, 1, 1, true).sync(at, kS2MM, 2);
  const RunReport report = m.configure();
  CHECK(report.memtile_read_bytes == 36);
  CHECK(report.memtile_write_bytes == 36);
  CHECK(m.run(Script()).memtile_read_bytes == 0);
}

TEST_CASE("the watchdog ends livelocks in columns and across them") {
  Machine m;
  Script s;
  SUBCASE("cores that never stop calling") {
    m.configure();
    for (const int col : {0, 3, 7}) {
      m.attach({col, 2}, kCalls, [](Arguments) {});
    }
    check_livelock(m, s);
  }
  SUBCASE("a core that never stops calling and must run alone") {
    m.configure();
    m.attach({1, 2}, kCalls, [](Arguments) {}, true);
    check_livelock(m, s);
  }
  SUBCASE("circular BD chains within columns") {
    for (const int col : {0, 3, 7}) {
      const At at{col, 1};
      m.loopback(at, 2, 2).config.bd(at, 0, followed_by(linear(64, kOwnMem), 0));
      m.config.bd(at, 1, followed_by(linear(48, kOwnMem + 100), 1));
      s.push(at, kMM2S, 2, 0).push(at, kS2MM, 2, 1);
    }
    m.configure();
    check_livelock(m, s);
  }
  SUBCASE("circular BD chains from column to column") {
    const At west{0, 2}, east{1, 2};
    m.config.connect(west, cp::kDma, cp::kEastMaster).connect(east, cp::kWestSlave, cp::kDma);
    m.config.connect(east, cp::kDma, cp::kWestMaster).connect(west, cp::kEastSlave, cp::kDma);
    for (const At at : {west, east}) {
      m.config.bd(at, 0, followed_by(linear(64), 0)).bd(at, 1, followed_by(linear(48, 100), 1));
      s.push(at, kMM2S, 0, 0).push(at, kS2MM, 0, 1);
    }
    m.configure();
    check_livelock(m, s);
  }
  SUBCASE("from the west's memory to the east's") {
    const At at{4, 1};
    m.loopback(at).config.bd(at, 0, followed_by(linear(64), 0));
    m.config.bd(at, 1, followed_by(linear(48, 2 * kOwnMem), 1));
    const At other{0, 1};  // whose column is scheduled, too
    m.loopback(other, 2, 2).config.bd(other, 0, linear(9, kOwnMem));
    m.config.bd(other, 1, linear(9, kOwnMem + 100));
    s.push(at, kMM2S, 0, 0).push(at, kS2MM, 0, 1);
    for (int i = 0; i < 2; ++i) {
      s.push(other, kMM2S, 2, 0).push(other, kS2MM, 2, 1, 1, true).sync(other, kS2MM, 2);
    }
    m.configure();
    check_livelock(m, s);
  }
  SUBCASE("the own memory and the west's alternately") {
    const At at{4, 1};
    m.loopback(at).config.bd(at, 0, followed_by(linear(64), 1));
    m.config.bd(at, 1, followed_by(linear(64, kOwnMem), 0));
    m.config.bd(at, 2, followed_by(linear(48, kOwnMem + 100), 2));
    s.push(at, kMM2S, 0, 0).push(at, kS2MM, 0, 2);
    m.configure();
    check_livelock(m, s);
  }
  SUBCASE("packets of two columns") {
    const At west{0, 2}, east{1, 2};
    m.config.packet_slave(west, cp::kDma, 0, 0, 0, 0, 0);
    m.config.packet_master(west, cp::kEastMaster, 0, 1, false);
    m.config.packet_slave(east, cp::kWestSlave, 0, 0, 0, 4, 1);
    m.config.packet_slave(east, cp::kDma, 0, 0, 0, 4, 1);
    m.config.packet_master(east, cp::kDma, 4, 1 << 1, true);
    for (const At at : {west, east}) {
      m.config.bd(at, 0, followed_by(packet(8, 0, 1), 0));
      s.push(at, kMM2S, 0, 0);
    }
    m.config.bd(east, 1, followed_by(linear(48, 100), 1));
    s.push(east, kS2MM, 0, 1);
    m.configure();
    check_livelock(m, s);
  }
  SUBCASE("a lock passed between neighbours by BDs without data") {
    const At west{3, 1}, east{4, 1};
    m.config.bd(west, 0,
                followed_by(releasing(acquiring(linear(0), kOwnLock, -1), kEastLock, 1), 0));
    m.config.bd(east, 0, followed_by(releasing(acquiring(linear(0), kOwnLock, -1), 0, 1), 0));
    m.config.lock(west, 0, 1);
    s.push(west, kMM2S, 0, 0).push(east, kMM2S, 0, 0);
    m.configure();
    check_livelock(m, s);
  }
  SUBCASE("BDs without data or locks") {
    m.config.bd({4, 1}, 0, followed_by(linear(0), 1));           // of the west
    m.config.bd({4, 1}, 1, followed_by(linear(0, kOwnMem), 0));  // its own
    m.config.bd({4, 1}, 2, followed_by(linear(0, kOwnMem), 2));
    m.configure();
    SUBCASE("of one column") { s.push({4, 1}, kS2MM, 0, 2); }
    SUBCASE("of two") { s.push({4, 1}, kS2MM, 0, 0); }
    m.array.set_watchdog_budget(1 << 20);
    CHECK_THROWS_AS(m.run(s), Error);
  }
}

TEST_CASE("an interrupt ends columns that never block after few calls") {
  Machine m;
  m.configure();
  std::atomic<int> calls{0};
  for (const int col : {1, 6}) {
    m.attach({col, 2}, kCalls, [&](Arguments) { ++calls; });
  }
  int checks = 0;
  m.array.set_interrupt([&] {
    if (++checks > 1) throw std::range_error("Ctrl-C");
    std::this_thread::sleep_for(std::chrono::milliseconds(25));  // the next round asks again
  });
  CHECK_THROWS_AS(m.run(Script()), std::range_error);
  CHECK(calls > 0);
  CHECK(calls <= 2 * 2048);
}

TEST_SUITE_END();

#if !defined(__SANITIZE_THREAD__)  // which knows no threads in a child of several threads
TEST_CASE("a forked child runs columns with threads of its own") {
  Broadcast b;
  b.run();
  const pid_t child = fork();
  if (child == 0) {
    alarm(600);
    try {
      Script s;
      s.host_bd(0, 0, linear(Broadcast::kBlock * Broadcast::kBlocks), 0);
      s.push({0, 0}, kMM2S, 0, 0, 1, true).sync({0, 0}, kMM2S, 0);
      Words in = counting(Broadcast::kBlock * Broadcast::kBlocks);
      const RunReport report = b.m.run(s, {view(in)});
      _exit(report.kernel_calls == 2 * kColumns * Broadcast::kBlocks ? 0 : 1);
    } catch (...) {
      _exit(2);
    }
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  b.run();
}
#endif

TEST_CASE("columns do the same with any number of threads") {
  if (std::getenv(kTranscript)) return;
  char program[4096];
  const ssize_t length = readlink("/proc/self/exe", program, sizeof program);
  REQUIRE(length > 0);
  const std::string self(program, static_cast<size_t>(length));
  std::string expected;
  for (const int threads : {1, 2, 4, 16}) {
    CAPTURE(threads);
    char path[] = "/tmp/npu-columns-XXXXXX";
    const int file = mkstemp(path);
    REQUIRE(file >= 0);
    close(file);
    const std::string command =
        strf("NPU_THREADS=%d %s=%s timeout 1800 '%s' -ts=columns -m >%s.log 2>&1", threads,
             kTranscript, path, self.c_str(), path);
    const int status = std::system(command.c_str());
    std::ifstream log(strf("%s.log", path));
    INFO(std::string(std::istreambuf_iterator<char>(log), {}));
    CHECK(status == 0);
    std::ifstream in(path);
    const std::string transcript(std::istreambuf_iterator<char>(in), {});
    unlink(path);
    unlink(strf("%s.log", path).c_str());
    CHECK(transcript.size() > 10000);
    if (threads == 1) expected = transcript;
    CHECK((transcript == expected));
  }
}
