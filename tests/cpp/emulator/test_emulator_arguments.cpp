// Read-only arguments that a shim sends straight to cores are read where they lie: a kernel that
// only reads sees the caller's memory itself, everybody else the same bytes, and after the run,
// even one that failed, the core's memory has them and refers to the caller's no more.
#include <memory>
#include <string>
#include <vector>

#include "emulator_fixture.h"

using namespace npu;
using namespace npu::test;

namespace {

using Arguments = std::span<const KernelArgument>;

const At kShim{0, 0}, kMem{0, 1}, kCore{0, 2};
constexpr uint32_t kAt = 1000;  // word address of the delivery

constexpr kernels::Declaration reads_first = kernels::resolved(
    "f", {.operands = {{.name = "first", .buffer = true, .read_only = true, .size = 64},
                       kernels::integer("any", 0, 99)}});

// Words of argument 0 go by way of the memtile's switch to the core, whose program calls a kernel.
struct Delivery {
  explicit Delivery(const std::string& program = "acquire_ge 0 1\ncall f @4000 #64\n") {
    Script& c = m.config;
    c.shim_dma(0).connect(kShim, port::shim::kMm2s0, port::shim::kNorthMaster);
    c.connect(kMem, port::mem::kSouthSlave, port::mem::kNorthMaster);
    c.connect(kCore, port::core::kSouthSlave, port::core::kDma);
    c.bd(kCore, 0, releasing(linear(16, kAt), 0, 1));
    m.configure();
    const auto kernel = [this](Arguments a, CoreState&) {
      address = a[0].data;
      seen.resize(16);
      std::memcpy(seen.data(), a[0].data, 64);
    };
    m.array.attach(0, 2, parse_program(program, "test"), {{kernel, false, &reads_first}});
  }
  void send(Words& argument, bool writable, const Bd& from = linear(16), uint64_t byte = 0,
            bool wait = false) {
    Script s;
    s.host_bd(0, 0, from, 0, byte).push(kShim, kMM2S, 0, 0).push(kCore, kS2MM, 0, 0);
    if (wait) s.sync(kShim, kS2MM, 0);  // a token that nobody sends
    m.run(s, {view(argument, writable)});
  }
  bool in_core() {
    const auto& memory = m.array.tile(0, 2).memory;
    return address >= memory.data() && address < memory.data() + memory.size();
  }

  Machine m;
  std::byte* address = nullptr;
  Words seen;
};

}  // namespace

TEST_CASE("a read-only argument is read in place and belongs to the caller after the run") {
  Delivery d;
  auto argument = std::make_unique<Words>(counting(40, 5));
  d.send(*argument, false, linear(16), 32);
  CHECK(d.address == reinterpret_cast<std::byte*>(argument->data() + 8));
  CHECK(d.seen == counting(16, 13));
  argument->assign(40, 0);
  argument.reset();
  CHECK(d.m.words(kCore, kAt, 16) == counting(16, 13));
  CHECK(d.m.word(kCore, kAt + 16) == 0);
}

TEST_CASE("writable arguments, and words with gaps between them, are copied") {
  Words argument = counting(64);
  Delivery writable;
  writable.send(argument, true);
  CHECK(writable.in_core());
  CHECK(writable.seen == counting(16));
  Bd gaps = linear(16);
  gaps.wrap[0] = 8;
  gaps.step[1] = 20;
  Delivery apart;
  apart.send(argument, false, gaps);
  CHECK(apart.in_core());
  CHECK(apart.seen[7] == 8);
  CHECK(apart.seen[8] == 21);
}

TEST_CASE("an argument is let go when the run fails, and when no kernel reads it") {
  for (const bool calls : {true, false}) {
    Delivery d(calls ? "acquire_ge 0 1\ncall f @4000 #64\n" : "acquire_ge 1 1\ncall f @4000 #64\n");
    auto argument = std::make_unique<Words>(counting(16));
    CHECK_THROWS_AS(d.send(*argument, false, linear(16), 0, true), Error);
    argument.reset();
    CHECK(d.m.words(kCore, kAt, 16) == counting(16));
  }
}
