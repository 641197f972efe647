// Cores and locks: what worker programs do (loops, runtime parameters, rotating buffers,
// constants), lock rules seen from cores, DMAs and the stream, kernel failures, core control, and
// runs that are the same every time although cores work in parallel.
#include <atomic>
#include <stdexcept>

#include "emulator_fixture.h"

using namespace npu;
using namespace npu::test;

namespace {

const At kCore{0, 2};
constexpr uint32_t kLock0 = 0x1F000;

using Arguments = std::span<const KernelArgument>;

// Attaches `text`, runs `stream` and returns the integer arguments of every call, call by call.
using Calls = std::vector<std::vector<int64_t>>;
struct Recorder {
  Calls calls;
  std::byte* memory = nullptr;
  void operator()(Arguments arguments) {
    std::vector<int64_t> call;
    for (const KernelArgument& a : arguments) {
      call.push_back(a.data ? a.data - memory : a.value);
    }
    calls.push_back(call);
  }
};

Calls calls_of(const std::string& text, const Script& stream = Script(), int submissions = 1) {
  Machine m;
  m.config.lock(kCore, 0, 63);
  m.configure();
  Recorder recorder;
  recorder.memory = m.array.tile(0, 2).memory.data();
  m.attach(kCore, text, [&](Arguments a) { recorder(a); });
  for (int i = 0; i < submissions; ++i) m.run(stream);
  return recorder.calls;
}

}  // namespace

TEST_CASE("nested loops, and a program that ends") {
  CHECK(calls_of("call f #1\nloop 2\n call f #2\n loop 3\n  call f #3\n end\nend\ncall f #4\n") ==
        Calls{{1}, {2}, {3}, {3}, {3}, {2}, {3}, {3}, {3}, {4}});
  CHECK(calls_of("loop 0\n call f\nend\nloop 3\n loop 0\n  call f\n end\nend\n").empty());
  CHECK(calls_of("") == Calls{});
  CHECK(calls_of("call f\n", Script(), 3).size() ==
        1);  // it ended; a submission does not restart it
  CHECK(calls_of("loop forever\n acquire_ge 0 21\n call f\nend\n").size() == 3);
}

TEST_CASE("operands: buffers, rotating buffers, constants, runtime parameters") {
  CHECK(calls_of("loop 5\n call f @4096 @0|1024|2048%0 #-7 #4294967295 @512|256%1\n advance 0 3\n"
                 " advance 1 2\nend\n") == Calls{{4096, 0, -7, 4294967295, 512},
                                                 {4096, 1024, -7, 4294967295, 256},
                                                 {4096, 2048, -7, 4294967295, 512},
                                                 {4096, 0, -7, 4294967295, 256},
                                                 {4096, 1024, -7, 4294967295, 512}});
  Script s;
  s.write(kCore, 1024, 12).write(kCore, 65532, static_cast<uint32_t>(-3)).lock(kCore, 5, 1);
  CHECK(calls_of("acquire_ge 5 1\ncall f $1024 $65532\n", s) == Calls{{12, -3}});
}

TEST_CASE("a lock makes the core wait for its runtime parameters") {
  Machine m;
  m.configure();
  std::vector<int64_t> seen;
  m.attach(
      kCore,
      "loop forever\n acquire_ge 7 1\n loop rtp:256\n  loop rtp:260\n   call f $264\n  end\n end\n"
      " release 8 1\nend\n",
      [&](Arguments a) { seen.push_back(a[0].value); });
  const auto run = [&](uint32_t outer, uint32_t inner, uint32_t value) {
    seen.clear();
    Script s;
    s.write(kCore, 256, outer).write(kCore, 260, inner).write(kCore, 264, value).lock(kCore, 7, 1);
    s.raw.mask_poll(kCore.address(kLock0 + 0x80), 1, 0x3F);  // wait for the core
    s.lock(kCore, 8, 0);
    m.run(s);
    return seen;
  };
  CHECK(run(2, 3, 5) == std::vector<int64_t>(6, 5));
  CHECK(run(0, 3, 5).empty());
  CHECK(run(3, 0, 5).empty());
  CHECK(run(1, 1, static_cast<uint32_t>(-2)) == std::vector<int64_t>{-2});
  check_error(
      ErrorKind::kKernel,
      {"[submit] core (0,2) reads a loop bound of -1 at address 260", "runtime parameter >= 0"},
      [&] { run(1, ~0u, 0); });
}

TEST_CASE("acquire_ge takes what it asks, acquire_eq wants the exact value") {
  Machine m;
  m.config.lock(kCore, 0, 5).lock(kCore, 1, 3).lock(kCore, 2, 1);
  m.configure();
  m.attach(kCore,
           "acquire_ge 0 2\nacquire_eq 1 3\nacquire_eq 3 0\nrelease 4 9\nacquire_eq 2 2\n"
           "release 5 1\n");
  m.run(Script());
  CHECK(m.lock(kCore, 0) == 3);  // ge subtracts
  CHECK(m.lock(kCore, 1) == 0);  // eq empties
  CHECK(m.lock(kCore, 3) == 0);  // eq 0 changes nothing
  CHECK(m.lock(kCore, 4) == 9);
  CHECK(m.lock(kCore, 2) == 1);  // 1 is not 2: still waiting
  CHECK(m.lock(kCore, 5) == 0);
  Script three, two;
  m.run(three.lock(kCore, 2, 3));
  CHECK(m.lock(kCore, 5) == 0);  // 3 is not 2 either
  m.run(two.lock(kCore, 2, 2));
  CHECK(m.lock(kCore, 5) == 1);
}

TEST_CASE("DMA locks: ge, eq, eq 0, release of either sign") {
  Machine m;
  m.loopback(kCore).config.memory(kCore, 0, counting(8));
  Script& c = m.config;
  c.lock(kCore, 0, 5).lock(kCore, 1, 3).lock(kCore, 3, 9);
  c.bd(kCore, 0, followed_by(releasing(acquiring(linear(1), 0, -2), 3, -4), 1));
  c.bd(kCore, 1, followed_by(acquiring(linear(1), 1, 3), 2));
  c.bd(kCore, 2, followed_by(releasing(acquiring(linear(1), 2, 0), 2, 7), 3));
  c.bd(kCore, 3, acquiring(linear(1), 2, 0));  // 7 is not 0
  c.bd(kCore, 4, linear(4, 100));
  m.configure();
  Script s;
  s.push(kCore, kMM2S, 0, 0).push(kCore, kS2MM, 0, 4, 1, true);
  s.raw.mask_poll(kCore.address(kLock0 + 0x20), 7, 0x3F);
  Script stuck = s;
  s.lock(kCore, 2, 0).sync(kCore, kS2MM, 0);
  m.run(s);
  CHECK(m.lock(kCore, 0) == 3);
  CHECK(m.lock(kCore, 1) == 0);
  CHECK(m.lock(kCore, 2) == 0);
  CHECK(m.lock(kCore, 3) == 5);
  m.configure();
  stuck.sync(kCore, kS2MM, 0);
  check_error(ErrorKind::kDeadlock,
              {"core (0,2) MM2S 0 waits for lock 2 of core (0,2) to be == 0 (it is 7) before BD 3"},
              [&] { m.run(stuck); });
}

TEST_CASE("lock registers are six bits wide and waits on them see changes") {
  Machine m;
  m.config.lock(kCore, 0, static_cast<uint32_t>(-2)).lock({0, 1}, 63, 64 + 7);
  m.configure();
  CHECK(m.lock(kCore, 0) == 62);
  CHECK(m.lock({0, 1}, 63) == 7);
  CHECK(m.array.read_register(kCore.address(kLock0)) == 62);
}

TEST_CASE("a lock register written by the stream wakes a core and a DMA that wait") {
  Machine m;
  m.loopback(kCore, 1, 1).loopback({1, 2});
  m.config.memory(kCore, 0, counting(4)).bd(kCore, 2, acquiring(linear(4), 2, -1));
  m.config.bd(kCore, 3, linear(4, 100)).push(kCore, kMM2S, 1, 2).push(kCore, kS2MM, 1, 3, 1, true);
  m.config.bd({1, 2}, 0, linear(4)).bd({1, 2}, 1, linear(4, 100));
  m.configure();
  m.attach(kCore, "acquire_ge 0 1\nrelease 1 1\n");
  Script s;
  // The other column keeps the array running until both wait.
  s.push({1, 2}, kMM2S, 0, 0, 3).push({1, 2}, kS2MM, 0, 1, 3, true).sync({1, 2}, kS2MM, 0);
  s.lock(kCore, 0, 1);
  s.raw.mask_poll(kCore.address(kLock0 + 0x10), 1, 0x3F);
  s.lock(kCore, 2, 1).sync(kCore, kS2MM, 1);
  m.run(s);
  CHECK(m.words(kCore, 100, 4) == counting(4));
}

TEST_CASE("a buffer operand reaches to the end of the core's memory") {
  Machine m;
  m.configure();
  m.attach(kCore, "call f @0 @65535 @4096|8192%0 #5\n", [&](Arguments a) {
    CHECK(a[0].bytes == 65536);
    CHECK(a[1].bytes == 1);
    CHECK(a[2].bytes == 65536 - 4096);
    CHECK(a[3].data == nullptr);
  });
  CHECK(m.run(Script()).kernel_calls == 1);
}

TEST_CASE("producer and consumer over one double buffer keep the order") {
  // core (0,2) fills two buffers alternately, DMA sends them up, core (0,3) checks them in order.
  Machine m;
  Script& c = m.config;
  const At up{0, 3};
  c.connect(kCore, port::core::kDma, port::core::kNorthMaster);
  c.connect(up, port::core::kSouthSlave, port::core::kDma);
  c.lock(kCore, 0, 2).lock(up, 0, 2);
  for (int i = 0; i < 2; ++i) {
    const auto base = static_cast<uint64_t>(256 * i);
    const auto next = static_cast<uint32_t>(1 - i);
    c.bd(kCore, i, followed_by(releasing(acquiring(linear(16, base), 1, -1), 0, 1), next));
    c.bd(up, i, followed_by(releasing(acquiring(linear(16, base), 0, -1), 1, 1), next));
  }
  c.push(kCore, kMM2S, 0, 0).push(up, kS2MM, 0, 0);
  m.configure();
  uint32_t produced = 0, consumed = 0, wrong = 0;
  m.attach(kCore, "loop 200\n acquire_ge 0 1\n call f @0|1024%0\n advance 0 2\n release 1 1\nend\n",
           [&](Arguments a) {
             ++produced;
             for (uint32_t i = 0; i < 16; ++i) std::memcpy(a[0].data + 4 * i, &produced, 4);
           });
  m.attach(up,
           "loop forever\n acquire_ge 1 1\n call f @0|1024%0\n advance 0 2\n release 0 1\nend\n",
           [&](Arguments a) {
             ++consumed;
             for (uint32_t i = 0; i < 16; ++i)
               wrong += std::memcmp(a[0].data + 4 * i, &consumed, 4) != 0;
           });
  const RunReport report = m.run(Script());
  CHECK(produced == 200);
  CHECK(consumed == 200);
  CHECK(wrong == 0);
  CHECK(report.kernel_calls == 400);
}

TEST_CASE("core control: reset starts the program again, disabling stops it") {
  Machine m;
  m.configure();
  int calls = 0;
  m.attach(kCore, "call f\nloop forever\n acquire_ge 0 1\n call f\nend\n",
           [&](Arguments) { ++calls; });
  m.run(Script());
  CHECK(calls == 1);
  CHECK(m.array.read_register(kCore.address(0x32004)) == (1u | 1u << 9));  // enabled, lock stall
  Script restart;
  restart.write(kCore, 0x32000, 2).write(kCore, 0x32000, 1);
  m.run(restart);
  CHECK(calls == 2);
  Script disabled;
  disabled.write(kCore, 0x32000, 0).lock(kCore, 0, 3);
  m.run(disabled);
  CHECK(calls == 2);
  CHECK(m.array.read_register(kCore.address(0x32004)) == 0);
  Script waits;
  waits.raw.mask_poll(kCore.address(kLock0), 0, 0x3F);
  Script enabled;
  enabled.write(kCore, 0x32000, 1);
  m.run(enabled);
  CHECK(calls == 5);
  Script stop;
  stop.write(kCore, 0x32000, 2).lock(kCore, 0, 1);
  m.run(stop);
  check_error(ErrorKind::kDeadlock, {"core (0,2) is disabled (Core_Control, 0x32000)"},
              [&] { m.run(waits); });
}

TEST_CASE("a new program replaces one that waits") {
  Machine m;
  m.configure();
  int first = 0, second = 0;
  m.attach(kCore, "acquire_ge 0 1\ncall f\n", [&](Arguments) { ++first; });
  m.run(Script());
  m.attach(kCore, "acquire_ge 0 1\ncall f\n", [&](Arguments) { ++second; });
  Script s;
  m.run(s.lock(kCore, 0, 2));
  CHECK(first == 0);
  CHECK(second == 1);
  CHECK(m.lock(kCore, 0) == 1);
}

TEST_CASE("exceptions of kernels come out of submit as they are") {
  Machine m;
  m.config.lock(kCore, 0, 1);
  for (const bool serial : {false, true}) {
    m.configure();
    m.attach(
        kCore, "acquire_ge 0 1\ncall f\n",
        [](Arguments) { throw std::domain_error("from the kernel"); }, serial);
    CHECK_THROWS_WITH_AS(m.run(Script()), "from the kernel", std::domain_error);
    check_error(ErrorKind::kArgument, {"configure it again"}, [&] { m.run(Script()); });
    m.configure();
    m.attach(
        kCore, "acquire_ge 0 1\ncall f\n",
        [](Arguments) { fail(ErrorKind::kShape, "[f] wrong shape"); }, serial);
    check_error(ErrorKind::kShape, {"wrong shape"}, [&] { m.run(Script()); });
  }
}

TEST_CASE("of several failing kernels the same one is reported every time") {
  for (int round = 0; round < 20; ++round) {
    Machine m;
    m.configure();
    for (int col = 0; col < 8; ++col) {
      m.attach({col, 2}, "call f\n", [col](Arguments) {
        if (col >= 3) throw std::runtime_error("column " + std::to_string(col));
      });
    }
    CHECK_THROWS_WITH(m.run(Script()), "column 3");
  }
}

TEST_CASE("32 cores in parallel give the same memories and reports every time") {
  struct Result {
    std::vector<Words> memories;
    RunReport report;
  };
  const auto run = [] {
    Machine m;
    Script& c = m.config;
    std::atomic<int> calls{0};
    for (int col = 0; col < 8; ++col) {
      for (int row = 2; row < 6; ++row) {  // rings of one tile: buffer -> stream -> buffer
        const At at{col, row};
        m.loopback(at);
        c.lock(at, 0, 1).memory(at, 0, counting(64, static_cast<uint32_t>(100 * col + row)));
        c.bd(at, 0, followed_by(releasing(acquiring(linear(64), 1, -1), 3, 1), 0));
        c.bd(at, 1, followed_by(releasing(acquiring(linear(64, 1000), 2, -1), 0, 1), 1));
        c.lock(at, 2, 40).push(at, kMM2S, 0, 0).push(at, kS2MM, 0, 1);
      }
    }
    m.configure();
    for (int col = 0; col < 8; ++col) {
      for (int row = 2; row < 6; ++row) {
        m.attach(
            {col, row},
            "acquire_ge 4 1\nloop rtp:32768\n acquire_ge 0 1\n call f @0 @4000 #64\n release 1 1\n"
            " acquire_ge 3 1\nend\n",
            [&calls](Arguments a) {
              ++calls;
              for (int64_t i = 0; i < a[2].value; ++i) {
                uint32_t x, y;
                std::memcpy(&x, a[0].data + 4 * i, 4);
                std::memcpy(&y, a[1].data + 4 * i, 4);
                x = x * 1664525 + y + 1013904223;
                std::memcpy(a[0].data + 4 * i, &x, 4);
              }
            });
      }
    }
    Script s;
    for (int col = 0; col < 8; ++col) {
      for (int row = 2; row < 6; ++row) {
        s.write({col, row}, 32768, 7 + static_cast<uint32_t>(col)).lock({col, row}, 4, 1);
      }
    }
    Result result;
    result.report = m.run(s);
    CHECK(calls == 4 * (7 + 8 + 9 + 10 + 11 + 12 + 13 + 14));
    for (int col = 0; col < 8; ++col) {
      for (int row = 2; row < 6; ++row) result.memories.push_back(m.words({col, row}, 0, 16384));
    }
    return result;
  };
  const Result first = run(), second = run();
  CHECK(first.memories == second.memories);
  CHECK(first.report.kernel_calls == second.report.kernel_calls);
  CHECK(first.report.core_read_bytes == second.report.core_read_bytes);
  CHECK(first.report.core_read_bytes == first.report.kernel_calls * 256);
}

TEST_CASE("programs are checked when they are attached") {
  Machine m;
  check_error(ErrorKind::kArgument, {"[attach]", "configure the array before"},
              [&] { m.attach(kCore, "call f\n"); });
  m.configure();
  check_error(ErrorKind::kArgument, {"[attach] memtile (0,1) has no core", "rows 2..5"},
              [&] { m.attach({0, 1}, "call f\n"); });
  check_error(ErrorKind::kArgument, {"tile (8,2)", "columns 0..7"},
              [&] { m.attach({8, 2}, "call f\n"); });
  check_error(ErrorKind::kKernel, {"[attach]", "core (0,2)", "names 2 functions, 0 were given"},
              [&] { m.array.attach(0, 2, parse_program("call f\ncall g\n", "test"), {}); });
  // A program that was not linked is linked.
  Program bare;
  bare.code.resize(1);
  bare.code[0].code = Instruction::Code::kLoopForever;
  check_error(ErrorKind::kFormat, {"core (0,2)"}, [&] { m.array.attach(0, 2, bare, {}); });
}
