// Words of a read-only argument that pass a memtile on their way to a core are not copied. Asserts
// that cores then read the argument itself, also where an object is a part of what the memtile
// holds or arrives in pieces; that every other access finds the memories as if the words had been
// copied (random transfers, compared with a word-by-word model); and where nothing may be aliased:
// arguments that something may write, runs in simulated time, memory after the end of a run.
#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "arch/timing.h"
#include "emulator_fixture.h"

using namespace npu;
using namespace npu::test;

namespace {

using Arguments = std::span<const KernelArgument>;

const At kShim{0, 0}, kMem{0, 1}, kCore{0, 2};
constexpr uint32_t kObject = 1280;        // words, 5120 bytes
constexpr uint32_t kFree = 0, kFull = 1;  // locks of the core
constexpr int kToCore = 2, kBack = 4;     // the memtile's MM2S channels

consteval kernels::Declaration of_bytes() {
  kernels::Operand first = kernels::buffer("first", "bytes", 1);
  first.read_only = true;
  return kernels::resolved("f", {.operands = {first, kernels::multiple("bytes", 4)}});
}
constexpr kernels::Declaration kReads = of_bytes();

// Shim MM2S 0 feeds the memtile's S2MM 0; its MM2S 2 feeds the core, MM2S 4 shim S2MM 0, MM2S 1 its
// own S2MM 1. The core takes objects at address 0, one at a time.
class Pipeline {
 public:
  struct Seen {
    Words words;
    const std::byte* address;
  };

  Pipeline() {
    Script& c = m.config;
    c.shim_dma(0).connect(kShim, sp::kMm2s0, sp::kNorthMaster);
    c.connect(kMem, mp::kSouthSlave, mp::kDma).connect(kMem, mp::kDma + 1, mp::kDma + 1);
    c.connect(kMem, mp::kDma + kToCore, mp::kNorthMaster);
    c.connect(kMem, mp::kDma + kBack, mp::kSouthMaster + 2);
    c.connect(kShim, sp::kNorthSlave + 2, sp::kS2mm0);
    c.connect(kCore, cp::kSouthSlave, cp::kDma).lock(kCore, kFree, 1);
  }
  void attach(uint32_t words = kObject) {
    m.configure();
    const auto kernel = [this](Arguments a, CoreState&) {
      Words seen(static_cast<size_t>(a[1].value) / 4);
      std::memcpy(seen.data(), a[0].data, 4 * seen.size());
      objects.push_back({std::move(seen), a[0].data});
      if (on_call) on_call();
    };
    m.array.attach(kCore.col, kCore.row,
                   parse_program(strf("loop forever\n acquire_ge 1 1\n call f @0 #%u\n release 0 "
                                      "1\nend\n",
                                      4 * words),
                                 "test"),
                   {{kernel, false, &kReads}});
  }
  // `received` comes from the argument and fills the memtile.
  static void load(Script& s, const Bd& sent, uint64_t byte, const Bd& received,
                   uint32_t argument = 0) {
    s.host_bd(0, 0, sent, argument, byte).bd(kMem, 0, received);
    s.push(kMem, kS2MM, 0, 0, 1, true).push(kShim, kMM2S, 0, 0).sync(kMem, kS2MM, 0);
  }
  // What `sent` reads goes to the core, in objects of `received`.
  static void deliver(Script& s, const Bd& sent, const Bd& received = linear(kObject)) {
    s.bd(kMem, 8, sent);
    const int objects = static_cast<int>(sent.length / received.length);
    s.bd(kCore, 0, releasing(acquiring(received, kFree, -1), kFull, 1));
    s.push(kCore, kS2MM, 0, 0, objects, true).push(kMem, kMM2S, kToCore, 8);
    s.sync(kCore, kS2MM, 0);
  }
  static bool within(const std::byte* address, const Words& words) {
    const auto* const begin = reinterpret_cast<const std::byte*>(words.data());
    return address >= begin && address < begin + 4 * words.size();
  }
  bool in_core(const Seen& seen) {
    const auto& memory = m.array.tile(kCore.col, kCore.row).memory;
    return seen.address >= memory.data() && seen.address < memory.data() + memory.size();
  }

  Machine m;
  std::vector<Seen> objects;
  std::function<void()> on_call;
};

Words slice(const Words& words, size_t begin, size_t count) {
  const auto first = words.begin() + static_cast<std::ptrdiff_t>(begin);
  return Words(first, first + static_cast<std::ptrdiff_t>(count));
}

Bd rows(uint32_t length, uint64_t base, uint32_t run, uint32_t pitch) {
  Bd bd = linear(length, base);
  bd.wrap[0] = run;
  bd.step[1] = pitch;
  return bd;
}

}  // namespace

TEST_CASE("a core reads the argument itself, three objects of one part of the memtile") {
  for (const bool writable : {false, true}) {
    Words w = counting(3 * kObject + 10);
    Pipeline p;
    p.attach();
    Script s;
    Pipeline::load(s, linear(3 * kObject), 40, linear(3 * kObject, kOwnMem + 100));
    Pipeline::deliver(s, linear(3 * kObject, kOwnMem + 100));
    p.m.run(s, {view(w, writable)});
    REQUIRE(p.objects.size() == 3);
    for (size_t i = 0; i < 3; ++i) {
      CHECK(p.objects[i].words == slice(w, 10 + i * kObject, kObject));
      CHECK(Pipeline::within(p.objects[i].address, w) == !writable);
      if (!writable) {
        CHECK(p.objects[i].address == reinterpret_cast<std::byte*>(&w[10 + i * kObject]));
      }
    }
    CHECK(p.m.words(kMem, 100, 3 * kObject) == slice(w, 10, 3 * kObject));
    CHECK(p.m.words(kCore, 0, kObject) == slice(w, 10 + 2 * kObject, kObject));
  }
}

TEST_CASE("pieces that are neighbours in the argument and in the memory are one") {
  Words w = counting(4 * kObject);
  const uint32_t half = kObject / 2;
  Pipeline p;
  p.attach();
  Script s;
  SUBCASE("each from a BD of its own") {
    for (uint32_t i = 0; i < 2; ++i) {
      Pipeline::load(s, linear(half), 4 * half * i, linear(half, kOwnMem + half * i));
    }
    Pipeline::deliver(s, linear(kObject, kOwnMem));
  }
  SUBCASE("rows of one BD, which the memory takes in another order") {
    Pipeline::load(s, rows(2 * kObject, 0, half, kObject), 0,
                   rows(2 * kObject, kOwnMem, half, kObject));
    Pipeline::load(s, rows(2 * kObject, 0, half, kObject), 4 * half,
                   rows(2 * kObject, kOwnMem + half, half, kObject));
    Pipeline::deliver(s, linear(kObject, kOwnMem));
  }
  SUBCASE("from the memtile to the core") {
    Pipeline::load(s, linear(kObject), 0, linear(kObject, kOwnMem));
    s.bd(kMem, 8, followed_by(linear(half, kOwnMem), 9)).bd(kMem, 9, linear(half, kOwnMem + half));
    s.bd(kCore, 0, releasing(acquiring(linear(kObject), kFree, -1), kFull, 1));
    s.push(kCore, kS2MM, 0, 0, 1, true).push(kMem, kMM2S, kToCore, 8).sync(kCore, kS2MM, 0);
  }
  p.m.run(s, {view(w, false)});
  REQUIRE(p.objects.size() == 1);
  CHECK(p.objects[0].words == slice(w, 0, kObject));
  CHECK(p.objects[0].address == reinterpret_cast<std::byte*>(w.data()));
}

TEST_CASE("pieces from different places are copied") {
  Words w = counting(4 * kObject);
  Pipeline p;
  p.attach();
  Script s;
  Pipeline::load(s, rows(kObject, 0, kObject / 2, 2 * kObject), 0, linear(kObject, kOwnMem));
  Pipeline::deliver(s, linear(kObject, kOwnMem));
  p.m.run(s, {view(w, false)});
  Words expected = slice(w, 0, kObject / 2), second = slice(w, 2 * kObject, kObject / 2);
  expected.insert(expected.end(), second.begin(), second.end());
  REQUIRE(p.objects.size() == 1);
  CHECK(p.objects[0].words == expected);
  CHECK(p.in_core(p.objects[0]));
}

TEST_CASE("nothing is aliased that something else may write") {
  Words w = counting(2 * kObject);
  Pipeline p;
  p.attach();
  Script s;
  Pipeline::load(s, linear(kObject), 0, linear(kObject, kOwnMem));
  // The same memory is also a writable argument, which is written before the core gets the object.
  s.host_bd(0, 1, linear(kObject), 1).bd(kMem, 9, linear(kObject, kOwnMem + 8192));
  s.push(kShim, kS2MM, 0, 1, 1, true).push(kMem, kMM2S, kBack, 9).sync(kShim, kS2MM, 0);
  Pipeline::deliver(s, linear(kObject, kOwnMem));
  const Words before = slice(w, 0, kObject);
  std::vector<emulator::Argument> views{view(w, false), view(w, true)};
  p.m.run(s, views);
  REQUIRE(p.objects.size() == 1);
  CHECK(p.objects[0].words == before);
  CHECK(p.in_core(p.objects[0]));
  CHECK(w[0] == 0);
}

TEST_CASE("registers read and write an aliased memtile") {
  Words w = counting(2 * kObject);
  Pipeline p;
  p.attach();
  uint32_t read = 0;
  p.on_call = [&] { read = p.m.word(kMem, 20); };  // while the second object is aliased
  Script s;
  Pipeline::load(s, linear(2 * kObject), 0, linear(2 * kObject, kOwnMem));
  Pipeline::deliver(s, linear(kObject, kOwnMem));
  s.write(kMem, 4 * (kObject + 7), 55);
  Pipeline::deliver(s, linear(kObject, kOwnMem + kObject));
  p.m.run(s, {view(w, false)});
  REQUIRE(p.objects.size() == 2);
  CHECK(read == 21);
  CHECK(Pipeline::within(p.objects[0].address, w));
  CHECK_FALSE(Pipeline::within(p.objects[1].address, w));
  Words expected = slice(w, kObject, kObject);
  expected[7] = 55;
  CHECK(p.objects[1].words == expected);
  CHECK(w[kObject + 7] == kObject + 8);
}

TEST_CASE("what a run leaves in the memtile is there in the next one") {
  Words w = counting(2 * kObject), other = counting(kObject, 70000);
  Pipeline p;
  p.attach();
  Script first, second;
  Pipeline::load(first, linear(2 * kObject), 0, linear(2 * kObject, kOwnMem));
  // A transfer to the core is half done when the run ends.
  first.bd(kMem, 8, linear(2 * kObject, kOwnMem)).push(kMem, kMM2S, kToCore, 8);
  first.bd(kCore, 0, releasing(acquiring(linear(kObject), kFree, -1), kFull, 1));
  first.push(kCore, kS2MM, 0, 0);
  p.m.run(first, {view(w, false)});
  REQUIRE(p.objects.size() == 1);
  CHECK(Pipeline::within(p.objects[0].address, w));
  const Words sent = w;
  std::fill(w.begin(), w.end(), 0xDEAD);
  Pipeline::load(second, linear(kObject), 0, linear(kObject, kOwnMem + 4 * kObject));
  second.push(kCore, kS2MM, 0, 0, 1, true).sync(kCore, kS2MM, 0);
  p.m.run(second, {view(other, false)});
  REQUIRE(p.objects.size() == 2);
  CHECK(p.objects[0].words == slice(sent, 0, kObject));
  CHECK(p.objects[1].words == slice(sent, kObject, kObject));
  CHECK(p.m.words(kMem, 4 * kObject, kObject) == other);
}

TEST_CASE("a run that fails gives its arguments back") {
  auto w = std::make_unique<Words>(counting(kObject));
  Pipeline p;
  p.attach();
  p.on_call = [] { fail(ErrorKind::kKernel, "[f] fails"); };
  Script s;
  Pipeline::load(s, linear(kObject), 0, linear(kObject, kOwnMem));
  Pipeline::deliver(s, linear(kObject, kOwnMem));
  check_error(ErrorKind::kKernel, {"fails"}, [&] { p.m.run(s, {view(*w, false)}); });
  std::fill(w->begin(), w->end(), 0xDEAD);
  w.reset();
  CHECK(p.m.words(kMem, 0, kObject) == counting(kObject));
}

TEST_CASE("the memtile beside may hold the words") {
  Words w = counting(2 * kObject);
  Pipeline p;
  p.attach();
  Script s;
  constexpr uint32_t kEastMem = 0x40000;
  Pipeline::load(s, linear(2 * kObject), 0, linear(2 * kObject, kEastMem + 64));
  Pipeline::deliver(s, linear(kObject, kEastMem + 64 + kObject));
  p.m.run(s, {view(w, false)});
  REQUIRE(p.objects.size() == 1);
  CHECK(p.objects[0].words == slice(w, kObject, kObject));
  CHECK(p.objects[0].address == reinterpret_cast<std::byte*>(&w[kObject]));
  CHECK(p.m.words({1, 1}, 64, 2 * kObject) == w);
  CHECK(p.m.words(kMem, 64, 4) == Words(4));
}

TEST_CASE("padding and packet headers come from aliased memory too") {
  constexpr uint32_t kRow = kObject / 2, kPad = 8;
  Words w = counting(kObject), expected = w;
  Pipeline p;
  Bd sent = linear(kObject, kOwnMem);
  SUBCASE("padding") {
    sent = rows(kObject + 2 * kPad, kOwnMem, kRow, kRow);
    sent.pad_before[0] = kPad;
    expected.insert(expected.begin() + kRow, kPad, 0);
    expected.insert(expected.begin(), kPad, 0);
  }
  SUBCASE("the first word is the header of a packet to the shim") {
    p.m.config.packet_slave(kMem, mp::kDma + kBack, 0, 1, 0x1F, 0, 0);
    p.m.config.packet_master(kMem, mp::kSouthMaster + 2, 0, 1, false);
  }
  p.attach();
  Words out(expected.size());
  Script s;
  Pipeline::load(s, linear(kObject), 0, linear(kObject, kOwnMem));
  s.host_bd(0, 1, linear(static_cast<uint32_t>(out.size())), 1).bd(kMem, 8, sent);
  s.push(kShim, kS2MM, 0, 1, 1, true).push(kMem, kMM2S, kBack, 8).sync(kShim, kS2MM, 0);
  p.m.run(s, {view(w, false), view(out)});
  CHECK(out == expected);
}

TEST_CASE("simulated time and its data do not depend on whether the argument may be written") {
  const arch::Timing timing(Generation::kNpu2, arch::TimingTable());
  std::array<double, 2> cycles{};
  for (const bool writable : {false, true}) {
    Words w = counting(2 * kObject), out(2 * kObject);
    Pipeline p;
    p.m.configure();
    p.m.array.set_timing(&timing, true);
    Script s;
    Pipeline::load(s, linear(2 * kObject), 0, linear(2 * kObject, kOwnMem));
    s.host_bd(0, 1, linear(2 * kObject), 1).bd(kMem, 8, linear(2 * kObject, kOwnMem));
    s.push(kShim, kS2MM, 0, 1, 1, true).push(kMem, kMM2S, kBack, 8).sync(kShim, kS2MM, 0);
    p.m.run(s, {view(w, writable), view(out)});
    CHECK(out == w);
    cycles[writable] = p.m.array.timing_report().cycles;
  }
  CHECK(cycles[0] > 0);
  CHECK(cycles[0] == cycles[1]);
}

namespace {

// The word that a BD's pattern visits i-th, counted from its base (hardware.md 2.0).
uint64_t visited(const Bd& bd, uint64_t i) {
  uint64_t at = 0;
  for (size_t d = 0; d < 3; ++d) {
    if (bd.wrap[d] == 0) return at + i * bd.step[d];
    at += i % bd.wrap[d] * bd.step[d];
    i /= bd.wrap[d];
  }
  return at + i * bd.step[3];
}

// Random transfers, one after the other, on an array and on a model that moves word by word.
class Model {
 public:
  explicit Model(uint32_t seed) : random_(seed) {
    p_.attach();
    for (Words* w : {&constant_, &writable_}) refill(*w);
  }

  void run() {
    Script s;
    out_.assign(kOut, 0);
    expected_.assign(kOut, 0);
    out_words_ = 0;
    p_.objects.clear();
    objects_.clear();
    for (int i = 0; i < 14; ++i) step(s);
    p_.m.run(s, {view(constant_, false), view(writable_), view(out_)});
    REQUIRE(out_ == expected_);
    REQUIRE(p_.objects.size() == objects_.size());
    for (size_t i = 0; i < objects_.size(); ++i) {
      REQUIRE(p_.objects[i].words == objects_[i]);
      aliased_ += Pipeline::within(p_.objects[i].address, constant_);
      REQUIRE_FALSE(Pipeline::within(p_.objects[i].address, writable_));
    }
    refill(constant_);  // nothing may refer to it any more
    if (random_() % 2) {
      REQUIRE(p_.m.words(kMem, 0, kWindow) == memory_);
    } else {
      const uint32_t word = below(kWindow);
      REQUIRE(p_.m.word(kMem, word) == memory_[word]);
    }
  }
  int aliased() const { return aliased_; }

 private:
  static constexpr uint32_t kWindow = 6000, kArgument = 9000, kOut = 40000, kGrid = 320;

  uint32_t below(uint32_t end) { return static_cast<uint32_t>(random_() % end); }
  void refill(Words& words) {
    words.resize(kArgument);
    for (uint32_t& w : words) w = static_cast<uint32_t>(random_());
  }
  // A pattern of so many words within `room` words: linear, rows, or columns of rows.
  Bd pattern(uint32_t length, uint32_t room, uint64_t base) {
    Bd bd = linear(length);
    const uint32_t kind = below(6);
    if (kind <= 3) {
      constexpr uint32_t kRuns[] = {4, 64, 256, 320, 640};
      const uint32_t run = kRuns[below(5)];
      const uint32_t count = (length + run - 1) / run;
      if (length % run == 0 && count > 1) {
        const uint32_t most = (room - run) / (count - 1);
        bd = rows(length, 0, run, run + (kind == 0 ? 0 : below(most - run + 1)));
        if (kind == 3 && run * 4 < length) {  // the columns of a matrix of run rows
          bd.step = {count, 1, 1, 1};
          bd.wrap[0] = run;
        }
      }
    }
    uint64_t last = 0;
    for (uint64_t i = 0; i < length; ++i) last = std::max(last, visited(bd, i));
    const uint32_t places = room - static_cast<uint32_t>(last);
    bd.base = base + (below(3) ? kGrid * below((places - 1) / kGrid + 1) : below(places));
    return bd;
  }
  uint32_t length() {
    constexpr uint32_t kLengths[] = {16, 256, 640, 1280, 1280, 1280, 1920, 2560};
    return kLengths[below(8)];
  }
  Words read(const Bd& bd, uint64_t base) {
    Words words(bd.length);
    for (uint64_t i = 0; i < bd.length; ++i) {
      words[i] = memory_[bd.base - base + visited(bd, i)];
    }
    return words;
  }
  void write(const Bd& bd, const Words& words) {
    for (uint64_t i = 0; i < bd.length; ++i) memory_[bd.base - kOwnMem + visited(bd, i)] = words[i];
  }

  void step(Script& s) {
    switch (below(8)) {
      case 0:
        return store(s);
      case 1: {
        const uint32_t word = below(kWindow), value = static_cast<uint32_t>(random_());
        s.write(kMem, 4 * word, value);
        memory_[word] = value;
        return;
      }
      case 2:
        return copy(s);
      case 3:
      case 4:
        return deliver(s);
      default:
        return load(s);
    }
  }
  void load(Script& s) {
    const bool constant = below(4) != 0;
    const uint32_t n = length();
    Bd sent = pattern(n, kArgument, 0);
    const uint64_t byte = 4 * sent.base;
    sent.base = 0;
    const Bd received = pattern(n, kWindow, kOwnMem);
    Pipeline::load(s, sent, byte, received, constant ? 0 : 1);
    const Words& from = constant ? constant_ : writable_;
    Words words(n);
    for (uint64_t i = 0; i < n; ++i) words[i] = from[byte / 4 + visited(sent, i)];
    write(received, words);
    loaded_ = received;
  }
  void store(Script& s) {
    const uint32_t n = length();
    if (out_words_ + n > kOut) return;
    const Bd sent = pattern(n, kWindow, kOwnMem);
    s.host_bd(0, 1, linear(n), 2, 4 * out_words_).bd(kMem, 9, sent);
    s.push(kShim, kS2MM, 0, 1, 1, true).push(kMem, kMM2S, kBack, 9).sync(kShim, kS2MM, 0);
    const Words words = read(sent, kOwnMem);
    std::copy(words.begin(), words.end(), expected_.begin() + out_words_);
    out_words_ += n;
  }
  // Within the memtile, from one half to the other.
  void copy(Script& s) {
    const uint32_t n = 640 * (1 + below(2)), half = kWindow / 2, to = below(2);
    const Bd sent = pattern(n, half, kOwnMem + half * (1 - to));
    const Bd received = pattern(n, half, kOwnMem + half * to);
    s.bd(kMem, 24, sent).bd(kMem, 25, received);
    s.push(kMem, kS2MM, 1, 25, 1, true).push(kMem, kMM2S, 1, 24).sync(kMem, kS2MM, 1);
    write(received, read(sent, kOwnMem));
  }
  void deliver(Script& s) {
    const uint32_t n = kObject * (1 + below(2));
    Bd sent = pattern(n, kWindow, kOwnMem);
    if (below(2) && loaded_.base + n <= kOwnMem + kWindow) sent = linear(n, loaded_.base);
    Pipeline::deliver(s, sent);
    const Words words = read(sent, kOwnMem);
    for (uint32_t i = 0; i < n; i += kObject) objects_.push_back(slice(words, i, kObject));
  }

  std::mt19937 random_;
  Pipeline p_;
  Words constant_, writable_, memory_ = Words(kWindow), out_, expected_;
  uint32_t out_words_ = 0;
  std::vector<Words> objects_;
  Bd loaded_ = linear(0, kOwnMem);
  int aliased_ = 0;
};

}  // namespace

TEST_CASE("random transfers through a memtile are those of copies") {
  int aliased = 0;
  for (uint32_t seed = 0; seed < 150; ++seed) {
    CAPTURE(seed);
    Model model(seed);
    for (int run = 0; run < 4; ++run) model.run();
    aliased += model.aliased();
  }
  CHECK(aliased > 50);
}
