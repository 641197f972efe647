// Tiles that a broadcast delivers to several cores are aliased instead of copied. Asserts that
// kernels that only read see the bytes that were sent, in one place; that every other access - DMA,
// registers, runtime parameters, kernels that may write or declare nothing - finds the core's
// memory as if they had been copied; that packed forms are made once per delivery, and products of
// several threads that share them are those of one thread alone.
#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "emulator_fixture.h"
#include "host/thread_pool.h"
#include "kernel_calls.h"
#include "kernels/host/core_state.h"

extern "C" void* npu_host_pack_begin(uint32_t operand, const void* form, int64_t shape,
                                     uint64_t bytes, int* found);
extern "C" void npu_host_pack_end(uint32_t operand, int good);

using namespace npu;
using namespace npu::test;

namespace {

namespace cp = port::core;
using Arguments = std::span<const KernelArgument>;

const At kSource{0, 2}, kFirst{0, 3}, kSecond{1, 2};  // above and beside the source
constexpr uint32_t kAt = 1000;                        // word address of the delivery
constexpr int kAtByte = 4000;

// Kernels of a buffer and the number of bytes that they access of it.
consteval kernels::Declaration of_bytes(bool read_only) {
  kernels::Operand first = kernels::buffer("first", "bytes", 1);
  first.read_only = read_only;
  return kernels::resolved("f", {.operands = {first, kernels::multiple("bytes", 4)}});
}
constexpr kernels::Declaration reads_first = of_bytes(true), writes_first = of_bytes(false);
// The same with a runtime parameter between them.
constexpr kernels::Declaration reads_first_of_three =
    kernels::resolved("f", {.operands = {reads_first.operands[0], kernels::integer("any", 0, 99),
                                         reads_first.operands[1]}});

// What a kernel found in its first operand.
struct Seen {
  std::vector<uint32_t> words;
  const std::byte* address = nullptr;
  PackedOperand* packed = nullptr;
  int state = PackedOperand::kRefused;  // its state before this call, which leaves it ready
};

// MM2S 0 of the source reaches S2MM 0 of both receivers; their programs wait for lock 0.
class Broadcast {
 public:
  explicit Broadcast(const Bd& sent = linear(16), const Bd& received = linear(16, kAt)) {
    Script& c = m.config;
    c.connect(kSource, cp::kDma, cp::kNorthMaster).connect(kSource, cp::kDma, cp::kEastMaster);
    c.connect(kFirst, cp::kSouthSlave, cp::kDma).connect(kSecond, cp::kWestSlave, cp::kDma);
    c.memory(kSource, 0, counting(64)).bd(kSource, 0, sent);
    for (const At at : {kFirst, kSecond}) {
      c.memory(at, kAt - 8, counting(32, 900));
      c.bd(at, 0, releasing(received, 0, 1));
    }
  }
  void attach(const std::string& text, const kernels::Declaration* uses, uint32_t write = 0) {
    m.configure();
    for (const At at : {kFirst, kSecond}) {
      Program program = parse_program(text, "test");
      std::vector<Seen>& seen = at.col == 0 ? first : second;
      const auto kernel = [&seen, write](Arguments a, CoreState&) {
        Seen s;
        s.words.resize(static_cast<size_t>(a.back().value) / 4);
        std::memcpy(s.words.data(), a[0].data, 4 * s.words.size());
        s.address = a[0].data;
        s.packed = a[0].packed;
        if (s.packed) s.state = s.packed->state.exchange(PackedOperand::kReady);
        if (write) std::memcpy(a[0].data, &write, 4);
        seen.push_back(s);
      };
      std::vector<emulator::KernelFunction> functions;
      for (size_t i = 0; i < program.functions.size(); ++i) {
        functions.push_back({kernel, false, uses});
      }
      m.array.attach(at.col, at.row, std::move(program), std::move(functions));
    }
  }
  void send(Script s = Script()) {
    s.push(kSource, kMM2S, 0, 0).push(kFirst, kS2MM, 0, 0).push(kSecond, kS2MM, 0, 0);
    m.run(s);
  }
  // Whether the kernel read outside the core's memory.
  bool aliased(At at, const Seen& seen) {
    const auto& memory = m.array.tile(at.col, at.row).memory;
    return seen.address < memory.data() || seen.address >= memory.data() + memory.size();
  }

  Machine m;
  std::vector<Seen> first, second;
};

const std::string kProgram = strf("acquire_ge 0 1\ncall f @%d #64\n", kAtByte);

}  // namespace

TEST_CASE("kernels that only read share one copy; every other access finds the memory up to date") {
  Broadcast b;
  b.attach(kProgram, &reads_first);
  b.send();
  CHECK(b.m.word(kFirst, kAt + 3) == 4);  // a register read, before Array::tile() flushes
  REQUIRE(b.first.size() == 1);
  REQUIRE(b.second.size() == 1);
  CHECK(b.first[0].words == counting(16));
  CHECK(b.second[0].words == counting(16));
  CHECK(b.first[0].address == b.second[0].address);
  CHECK(b.first[0].packed != nullptr);
  CHECK(b.first[0].packed == b.second[0].packed);
  CHECK(b.aliased(kFirst, b.first[0]));
  CHECK(b.m.words(kSecond, kAt, 16) == counting(16));  // and the tile itself
  CHECK(b.m.words(kSecond, kAt - 8, 8) == counting(8, 900));
  CHECK(b.m.words(kSecond, kAt + 16, 8) == counting(8, 924));
}

TEST_CASE("a delivery in another order than its own arrives in that order") {
  Bd placed = linear(16, kAt);  // words 0, 4, 8, 12, 1, 5, ...
  placed.wrap[0] = 4;
  placed.step[0] = 4;
  placed.step[1] = 1;
  Words expected(16);
  for (uint32_t i = 0; i < 16; ++i) expected[i % 4 * 4 + i / 4] = i + 1;
  Broadcast b(linear(16), placed);
  b.attach(kProgram, &reads_first);
  b.send();
  CHECK(b.aliased(kFirst, b.first.at(0)));
  CHECK(b.first[0].words == expected);
  CHECK(b.m.words(kSecond, kAt, 16) == expected);
}

TEST_CASE("deliveries with gaps are copied") {
  Bd gaps = linear(16, kAt);
  gaps.wrap[0] = 4;
  gaps.step[1] = 5;
  Broadcast b(linear(16), gaps);
  b.attach(kProgram, &reads_first);
  b.send();
  CHECK_FALSE(b.aliased(kFirst, b.first.at(0)));
  CHECK(b.m.words(kFirst, kAt, 6) == Words{1, 2, 3, 4, 912, 5});
}

TEST_CASE("kernels that may write, read more, or declare nothing get the core's own memory") {
  const auto check = [](const kernels::Declaration* uses, int bytes, uint32_t write) {
    Broadcast b;
    b.attach(strf("acquire_ge 0 1\ncall f @%d #%d\n", kAtByte, bytes), uses, write);
    b.send();
    REQUIRE(b.first.size() == 1);
    CHECK_FALSE(b.aliased(kFirst, b.first[0]));
    Words expected = counting(16);
    CHECK(Words(b.second[0].words.begin(), b.second[0].words.begin() + 16) == expected);
    if (write) expected[0] = write;
    CHECK(b.m.words(kFirst, kAt, 16) == expected);
    CHECK(b.m.words(kSecond, kAt, 16) == expected);
  };
  check(&writes_first, 64, 77);
  check(&reads_first, 68, 0);
  check(&reads_first_of_three, 64, 0);  // called with another number of operands
  check(nullptr, 64, 78);
}

TEST_CASE("a write to an aliased tile lasts, and so does the rest of the tile") {
  SUBCASE("by a register write, before the kernel runs") {
    Broadcast b;
    b.attach("acquire_ge 0 1\nacquire_ge 1 1\n" + strf("call f @%d #64\n", kAtByte), &reads_first);
    b.send();
    Script s;
    s.write(kFirst, 4 * (kAt + 2), 55).lock(kFirst, 1, 1).lock(kSecond, 1, 1);
    b.m.run(s);
    Words expected = counting(16);
    CHECK(b.second.at(0).words == expected);
    expected[2] = 55;
    CHECK(b.first.at(0).words == expected);
    CHECK(b.m.words(kFirst, kAt, 16) == expected);
  }
  SUBCASE("by a transfer from outside the tile into it") {
    Broadcast b;
    b.m.config.bd(kFirst, 1, linear(4, kAt + 6)).bd(kFirst, 2, linear(4, kAt - 8));
    b.m.config.connect(kFirst, cp::kDma, cp::kDma + 1);
    b.attach(kProgram, &reads_first);
    b.send();
    Script s;
    s.push(kFirst, kMM2S, 0, 2).push(kFirst, kS2MM, 1, 1);
    b.m.run(s);
    CHECK(b.m.words(kFirst, kAt + 4, 8) == Words{5, 6, 900, 901, 902, 903, 11, 12});
  }
  SUBCASE("by the next delivery, half a tile further") {
    Broadcast b;
    for (const At at : {kFirst, kSecond}) b.m.config.bd(at, 1, linear(16, kAt + 8));
    b.attach(kProgram, &reads_first);
    b.send();
    Script s;
    s.push(kSource, kMM2S, 0, 0).push(kFirst, kS2MM, 0, 1).push(kSecond, kS2MM, 0, 1);
    b.m.run(s);
    CHECK(b.m.words(kFirst, kAt, 8) == counting(8));
    CHECK(b.m.words(kFirst, kAt + 8, 16) == counting(16));
  }
}

TEST_CASE("a transfer out of an aliased tile sends what was delivered") {
  Broadcast b;
  b.m.config.bd(kFirst, 1, linear(4, kAt + 20)).bd(kFirst, 2, linear(4, kAt - 2));
  b.m.config.connect(kFirst, cp::kDma, cp::kDma + 1);
  b.attach(kProgram, &reads_first);
  b.send();
  Script s;  // words -2 ... 1 of the tile to places behind it
  s.push(kFirst, kMM2S, 0, 2).push(kFirst, kS2MM, 1, 1);
  b.m.run(s);
  CHECK(b.m.words(kFirst, kAt + 20, 4) == Words{906, 907, 1, 2});
}

TEST_CASE("a delivery that an error interrupts is not aliased after the next configuration") {
  Broadcast b;
  b.attach(kProgram, &reads_first);
  const auto fails = [](Arguments, CoreState&) { fail(ErrorKind::kKernel, "[f] fails"); };
  b.m.array.attach(kFirst.col, kFirst.row, parse_program("call f @0 #4\n", "test"),
                   {{fails, false, &reads_first}});
  check_error(ErrorKind::kKernel, {"fails"}, [&] { b.send(); });  // while the data moves
  Bd gaps = linear(16, kAt);
  gaps.wrap[0] = 4;
  gaps.step[1] = 5;
  for (const At at : {kFirst, kSecond}) b.m.config.bd(at, 0, releasing(gaps, 0, 1));
  b.attach(kProgram, &reads_first);
  b.send();
  CHECK_FALSE(b.aliased(kFirst, b.first.at(0)));
  CHECK(b.m.words(kFirst, kAt, 6) == Words{1, 2, 3, 4, 912, 5});
}

TEST_CASE("runtime parameters may be broadcast") {
  Broadcast b;
  b.attach(strf("acquire_ge 0 1\nloop rtp:%d\n call f @%d $%d #64\nend\n", kAtByte + 8, kAtByte,
                kAtByte + 4),
           &reads_first_of_three);
  b.send();
  CHECK(b.first.size() == 3);  // word 2 of the tile
  CHECK(b.second.size() == 3);
}

TEST_CASE("a delivery in memory that is used again is not packed yet") {
  Broadcast b;
  b.attach("loop 4\n" + kProgram + "end\n", &reads_first);
  for (int i = 0; i < 4; ++i) b.send();
  REQUIRE(b.first.size() == 4);
  CHECK(b.first[0].packed == b.first[2].packed);
  for (size_t i = 0; i < 4; ++i) {
    const int states[] = {b.first[i].state, b.second[i].state};  // either core may be first
    CHECK(std::min(states[0], states[1]) == PackedOperand::kEmpty);
    CHECK(std::max(states[0], states[1]) == PackedOperand::kReady);
  }
}

TEST_CASE("every delivery is packed once, under its form and shape") {
  PackedOperand shared;
  const int form = 0, other = 0;
  int found = 2;
  KernelArgument operands[2];
  operands[0].packed = &shared;
  aie_host::set_packed_operands(operands);
  void* const place = npu_host_pack_begin(0, &form, 5, 256, &found);
  CHECK(found == 0);
  int mine = 2;  // while it is being packed, others pack for themselves
  CHECK(npu_host_pack_begin(0, &form, 5, 256, &mine) != place);
  CHECK(mine == 0);
  CHECK(npu_host_pack_begin(1, &form, 5, 256, &mine) != place);
  CHECK(mine == 0);
  shared.state = PackedOperand::kEmpty;
  CHECK(npu_host_pack_begin(0, &form, 5, 256, &found) == place);
  npu_host_pack_end(0, 1);
  CHECK(npu_host_pack_begin(0, &form, 5, 256, &found) == place);
  CHECK(found == 1);
  CHECK(npu_host_pack_begin(0, &form, 6, 256, &found) != place);
  CHECK(found == 0);
  CHECK(npu_host_pack_begin(0, &other, 5, 256, &found) != place);
  CHECK(found == 0);
  shared.clear();
  CHECK(npu_host_pack_begin(0, &form, 6, 256, &found) == place);
  CHECK(found == 0);
  npu_host_pack_end(0, 0);  // the form cannot hold it
  npu_host_pack_begin(0, &form, 6, 256, &found);
  CHECK(found == -1);
  aie_host::set_packed_operands({});
}

TEST_CASE("threads that share packed operands compute what one computes alone") {
  using namespace kernel_test;
  constexpr int32_t kM = 32, kK = 64, kN = 48;
  constexpr size_t kCalls = 24;
  ThreadPool pool(4);
  std::mt19937 random(5);
  const auto compare = [&](const Build& build, const std::string& name, float scale) {
    CAPTURE(build.name());
    CAPTURE(name);
    CAPTURE(scale);
    const HostKernel kernel = build.find(name.c_str());
    REQUIRE(bool(kernel));
    std::vector<uint16_t> a(kM * kK), b(kK * kN);  // twice the bytes that int8 needs
    for (auto* v : {&a, &b}) {
      for (uint16_t& x : *v) {
        x = bf16_word(scale * (static_cast<float>(random() % 2001) / 1000 - 1));
      }
    }
    PackedOperand packed_a, packed_b;
    const auto run = [&](std::vector<uint32_t>& c, bool shared) {
      std::vector<KernelArgument> arguments = {buffer(a),   buffer(b),   buffer(c),
                                               integer(kM), integer(kK), integer(kN)};
      if (shared) {
        arguments[0].packed = &packed_a;
        arguments[1].packed = &packed_b;
      }
      CoreState core;
      kernel(arguments, core);
    };
    std::vector<uint32_t> alone(kM * kN);
    run(alone, false);
    std::vector<std::vector<uint32_t>> results(kCalls, std::vector<uint32_t>(kM * kN));
    pool.parallel_for(kCalls, [&](size_t i) { run(results[i], true); });
    for (const auto& result : results) REQUIRE(result == alone);
  };
  for (const Build& build : builds()) {
    for (const char* layout : {"", "_bcol"}) {
      const std::string end = layout;
      compare(build, "matmul_bf16_f32" + end, 1);
      compare(build, "matmul_i8_i32" + end, 1);
      if (build.generation == Generation::kNpu1) continue;
      compare(build, "matmul_bf16bfp16_f32" + end, 1);
      compare(build, "matmul_bf16bfp16_f32" + end, 1e-25f);  // not exact in floating point: refused
    }
  }
}
