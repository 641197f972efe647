// Objects that memtiles hand on: what a shim reads from memory that the run may write is copied
// once, into a block, to which the memtile and the cores of a broadcast refer. Asserts that all of
// them find the bytes as they were when the shim read them, however the objects are divided.
#include <cstring>
#include <string>
#include <vector>

#include "emulator_fixture.h"

using namespace npu;
using namespace npu::test;

namespace {

namespace cp = port::core;
using Arguments = std::span<const KernelArgument>;

const At kShim{0, 0}, kMem{0, 1}, kLower{0, 2}, kUpper{0, 3};
constexpr uint32_t kObject = 1024;        // words
constexpr uint32_t kFree = 0, kFull = 1;  // locks of a core
constexpr int kToCores = 2, kBack = 4;    // the memtile's MM2S channels

consteval kernels::Declaration of_bytes() {
  kernels::Operand first = kernels::buffer("first", "bytes", 1);
  first.read_only = true;
  return kernels::resolved("f", {.operands = {first, kernels::multiple("bytes", 4)}});
}
constexpr kernels::Declaration kReads = of_bytes();

struct Seen {
  Words words;
  const std::byte* address;
  const PackedOperand* packed;
};

// The memtile's channel broadcasts to both cores, which take objects of `words` words.
class Broadcast {
 public:
  explicit Broadcast(uint32_t words) : words_(words) {
    Script& c = m.config;
    c.shim_dma(0).connect(kShim, sp::kMm2s0, sp::kNorthMaster);
    c.connect(kMem, mp::kSouthSlave, mp::kDma);
    c.connect(kMem, mp::kDma + kToCores, mp::kNorthMaster);
    c.connect(kMem, mp::kDma + kBack, mp::kSouthMaster + 2);
    c.connect(kShim, sp::kNorthSlave + 2, sp::kS2mm0);
    c.connect(kLower, cp::kSouthSlave, cp::kDma).connect(kLower, cp::kSouthSlave, cp::kNorthMaster);
    c.connect(kUpper, cp::kSouthSlave, cp::kDma);
    for (const At at : {kLower, kUpper}) c.lock(at, kFree, 1);
    m.configure();
    for (const At at : {kLower, kUpper}) {
      std::vector<Seen>& list = at.row == kLower.row ? lower : upper;
      const auto kernel = [&list](Arguments a, CoreState&) {
        Words seen(static_cast<size_t>(a[1].value) / 4);
        std::memcpy(seen.data(), a[0].data, 4 * seen.size());
        list.push_back({std::move(seen), a[0].data, a[0].packed});
      };
      m.array.attach(at.col, at.row,
                     parse_program(strf("loop forever\n acquire_ge 1 1\n call f @0 #%u\n release 0 "
                                        "1\nend\n",
                                        4 * words),
                                   "test"),
                     {{kernel, false, &kReads}});
    }
  }
  static void load(Script& s, uint32_t words, uint32_t at) {
    s.host_bd(0, 0, linear(words), 0, 4 * at).bd(kMem, 0, linear(words, kOwnMem + at));
    s.push(kMem, kS2MM, 0, 0, 1, true).push(kShim, kMM2S, 0, 0).sync(kMem, kS2MM, 0);
  }
  void deliver(Script& s, uint32_t words) const { deliver(s, linear(words, kOwnMem)); }
  void deliver(Script& s, const Bd& sent) const {
    s.bd(kMem, 8, sent);
    for (const At at : {kLower, kUpper}) {
      s.bd(at, 0, releasing(acquiring(linear(words_), kFree, -1), kFull, 1));
      s.push(at, kS2MM, 0, 0, static_cast<int>(sent.length / words_), true);
    }
    s.push(kMem, kMM2S, kToCores, 8);
    for (const At at : {kLower, kUpper}) s.sync(at, kS2MM, 0);
  }
  bool own(At at, const std::byte* address) {
    const auto& memory = m.array.tile(at.col, at.row).memory;
    return address >= memory.data() && address < memory.data() + memory.size();
  }

  Machine m;
  std::vector<Seen> lower, upper;

 private:
  uint32_t words_;
};

Words slice(const Words& words, size_t begin, size_t count) {
  const auto first = words.begin() + static_cast<std::ptrdiff_t>(begin);
  return Words(first, first + static_cast<std::ptrdiff_t>(count));
}

}  // namespace

TEST_CASE("cores share the block of a memtile's object, which what is written later leaves alone") {
  Words w = counting(kObject);
  const Words before = w;
  Broadcast b(kObject);
  Script s;
  Broadcast::load(s, kObject, 0);
  // Zeros over the argument, before the cores get the object.
  s.host_bd(0, 1, linear(kObject), 0).bd(kMem, 9, linear(kObject, kOwnMem + 8192));
  s.push(kShim, kS2MM, 0, 1, 1, true).push(kMem, kMM2S, kBack, 9).sync(kShim, kS2MM, 0);
  b.deliver(s, kObject);
  b.m.run(s, {view(w, true)});
  REQUIRE(b.lower.size() == 1);
  REQUIRE(b.upper.size() == 1);
  CHECK(w == Words(kObject));
  CHECK(b.lower[0].words == before);
  CHECK(b.upper[0].words == before);
  CHECK(b.lower[0].address == b.upper[0].address);
  CHECK(b.lower[0].packed != nullptr);
  CHECK(b.lower[0].packed == b.upper[0].packed);
  CHECK_FALSE(b.own(kMem, b.lower[0].address));
  CHECK_FALSE(b.own(kLower, b.lower[0].address));
  CHECK(b.m.words(kMem, 0, kObject) == before);
  CHECK(b.m.words(kUpper, 0, kObject) == before);
}

TEST_CASE("objects of other sizes than those the memtile got arrive whole") {
  Words w = counting(2 * kObject);
  for (const bool divided : {false, true}) {
    const uint32_t got = divided ? 2 * kObject : kObject / 2;
    Broadcast b(kObject);
    for (int round = 0; round < 2; ++round) {  // after the first it may keep no blocks
      Script s;
      for (uint32_t at = 0; at < 2 * kObject; at += got) Broadcast::load(s, got, at);
      b.deliver(s, 2 * kObject);
      b.m.run(s, {view(w, true)});
    }
    REQUIRE(b.lower.size() == 4);
    REQUIRE(b.upper.size() == 4);
    for (size_t i = 0; i < 4; ++i) {
      CHECK(b.lower[i].words == slice(w, i % 2 * kObject, kObject));
      CHECK(b.upper[i].words == b.lower[i].words);
    }
    CHECK(b.m.words(kMem, 0, 2 * kObject) == w);
  }
}

TEST_CASE("an object that the memtile sends in another order arrives in that order") {
  Words w = counting(kObject);
  Broadcast b(kObject);
  Bd transposed = linear(kObject, kOwnMem);
  transposed.wrap[0] = kObject / 32;
  transposed.step[0] = 32;
  transposed.step[1] = 1;
  Script s;
  Broadcast::load(s, kObject, 0);
  b.deliver(s, transposed);
  b.m.run(s, {view(w, true)});
  Words expected(kObject);
  for (size_t i = 0; i < kObject; ++i) expected[i] = w[i % 32 * 32 + i / 32];
  REQUIRE(b.lower.size() == 1);
  REQUIRE(b.upper.size() == 1);
  CHECK(b.lower[0].words == expected);
  CHECK(b.upper[0].words == expected);
  CHECK(b.m.words(kMem, 0, kObject) == w);
}
