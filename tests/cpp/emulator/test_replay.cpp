// Runs that repeat recorded ones (devices/emulator/replay/). Asserts, against a second array that
// executes every run at register level, that results, all memories, locks, registers and reports
// are the same, whatever the data and the stream between; that another state of the array, another
// configuration, other words that steer cores and arguments that share memory lead to the register
// level, and so do words that kernels compute; that recordings that are used least recently leave a
// full memory; that kernels that fail, Ctrl-C and deadlines end or pause a replay as they do a run.
#include <atomic>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "devices/emulator/replay/recordings.h"
#include "emulator_fixture.h"

using namespace npu;
using namespace npu::test;
using emulator::Recordings;
using emulator::ReplayMemory;

namespace {

constexpr uint32_t kWords = 512;  // of an object: aliased and shared, as it is large
constexpr int kIn = 0x4000, kSum = 0x6000, kOut = 0x8000;  // bytes of a core's memory
constexpr int kLoops = 0x1000, kTaken = 0x1100;  // its runtime parameter; words of a kernel
const At kShim{0, 0}, kEast{1, 0}, kMem{0, 1}, kMemEast{1, 1}, kCore{0, 2}, kCoreEast{1, 2};

// sum = 3 sum + in, and out = sum, sum = 0.
consteval kernels::Declaration adds() {
  kernels::Operand in = kernels::buffer("in", "words", 4);
  in.read_only = true;
  return kernels::resolved(
      "add", {.operands = {in, kernels::buffer("sum", "words", 4), kernels::multiple("words", 4)}});
}
constexpr kernels::Declaration kAdds = adds();
constexpr kernels::Declaration kGives = kernels::resolved(
    "give", {.operands = {kernels::buffer("sum", "words", 4), kernels::buffer("out", "words", 4),
                          kernels::multiple("words", 4)}});

// Bound of the loop and words to add, which it takes from an object: with a declaration that says
// so and without.
consteval kernels::Declaration takes(bool declared) {
  kernels::Operand from = kernels::buffer("from", 4, 4), to = from;
  from.element = to.element = kernels::Element::kInt32;
  from.read_only = true;
  to.name = "to";
  if (declared) {
    from = from.steers(kernels::Steering::kReads, 2);
    to = to.steers(kernels::Steering::kCopies, 2);
  }
  return kernels::resolved("take", {.operands = {from, to}});
}
constexpr kernels::Declaration kTakes = takes(true), kComputes = takes(false);

std::atomic<bool> fails = false;  // the next call

void add(std::span<const KernelArgument> a) {
  if (fails.exchange(false)) fail(ErrorKind::kKernel, "[add] was told to fail");
  const auto* in = reinterpret_cast<const uint32_t*>(a[0].data);
  auto* sum = reinterpret_cast<uint32_t*>(a[1].data);
  for (uint32_t i = 0; i < static_cast<uint32_t>(a[2].value); ++i) sum[i] = 3 * sum[i] + in[i];
}

void take(std::span<const KernelArgument> a) { std::memcpy(a[1].data, a[0].data, 8); }

void give(std::span<const KernelArgument> a) {
  auto* sum = reinterpret_cast<uint32_t*>(a[0].data);
  auto* out = reinterpret_cast<uint32_t*>(a[1].data);
  for (uint32_t i = 0; i < static_cast<uint32_t>(a[2].value); ++i) {
    out[i] = std::exchange(sum[i], 0u);
  }
}

// An argument's objects reach a memtile, which has two places for them and turns each around, then
// two cores of two columns; each adds `loops` of them and sends the sum to the host.
// A stream says how many, or every object of an argument does in its first word, and in its word
// 256 how much to add of it; or a kernel takes these from the first object.
enum class SteeredBy { kStream, kData, kTakenData, kComputedData };

struct Design {
  explicit Design(SteeredBy by = SteeredBy::kStream) : steered_by(by) {
    Script& c = m.config;
    c.shim_dma(0).shim_dma(1);
    c.connect(kShim, sp::kMm2s0, sp::kNorthMaster).connect(kMem, mp::kSouthSlave, mp::kDma);
    c.connect(kMem, mp::kDma, mp::kNorthMaster);
    c.connect(kCore, cp::kSouthSlave, cp::kDma).connect(kCore, cp::kSouthSlave, cp::kEastMaster);
    c.connect(kCoreEast, cp::kWestSlave, cp::kDma);
    for (const auto& [core, mem, shim] :
         {std::tuple{kCore, kMem, kShim}, std::tuple{kCoreEast, kMemEast, kEast}}) {
      c.connect(core, cp::kDma, cp::kSouthMaster).connect(mem, mp::kNorthSlave, mp::kSouthMaster);
      c.connect(shim, sp::kNorthSlave, sp::kS2mm0);
    }
    memtile(c);
    for (const At core : {kCore, kCoreEast}) {
      c.lock(core, 0, 1).lock(core, 2, 1);
      c.bd(core, 0, followed_by(releasing(acquiring(linear(kWords, kIn / 4), 0, -1), 1, 1), 0));
      c.bd(core, 1, followed_by(releasing(acquiring(linear(kWords, kOut / 4), 3, -1), 2, 1), 1));
      c.push(core, kS2MM, 0, 0).push(core, kMM2S, 0, 1);
    }
    configure();
  }

  void configure() {
    m.configure();
    for (const At core : {kCore, kCoreEast}) {
      Program program = parse_program(text(), "test");
      std::vector<emulator::KernelFunction> functions;
      for (const std::string& name : program.functions) {
        const auto kernel = name == "add" ? add : name == "take" ? take : give;
        const kernels::Declaration* declaration = name == "add" ? &kAdds : &kGives;
        if (name == "take") {
          declaration = steered_by == SteeredBy::kTakenData ? &kTakes : &kComputes;
        }
        functions.push_back({[kernel](std::span<const KernelArgument> a, CoreState&) { kernel(a); },
                             false, declaration});
      }
      m.array.attach(core.col, core.row, std::move(program), std::move(functions));
    }
  }

  // Of arguments: objects, result, result of the eastern core.
  static Script stream(uint32_t loops, bool says_how_many = true) {
    Script s;
    for (const At core : {kCore, kCoreEast}) {
      if (says_how_many) s.write(core, kLoops, loops);
      s.lock(core, 4, 1);
    }
    s.host_bd(0, 0, linear(kWords * loops), 0).push(kShim, kMM2S, 0, 0);
    s.host_bd(0, 1, linear(kWords), 1).push(kShim, kS2MM, 0, 1, 1, true);
    s.host_bd(1, 1, linear(kWords), 2).push(kEast, kS2MM, 0, 1, 1, true);
    return s.sync(kShim, kS2MM, 0).sync(kEast, kS2MM, 0);
  }

  Machine m;
  const SteeredBy steered_by;

 private:
  std::string text() const {
    const bool by_stream = steered_by == SteeredBy::kStream,
               by_data = steered_by == SteeredBy::kData;
    const int words = by_stream ? kLoops : by_data ? kIn : kTaken;
    const std::string taken = strf("  call take @%d @%d\n", kIn, kTaken);
    const std::string first = " acquire_ge 1 1\n" + (by_data ? "" : taken) + " release 1 1\n";
    const std::string count = by_stream ? strf("#%u", kWords) : strf("$%d", words + 4);
    return strf(
        "loop forever\n acquire_ge 4 1\n%s loop rtp:%d\n  acquire_ge 1 1\n"
        "  call add @%d @%d %s\n  release 0 1\n end\n acquire_ge 2 1\n"
        "  call give @%d @%d #%u\n release 3 1\nend\n",
        by_stream ? "" : first.c_str(), words, kIn, kSum, count.c_str(), kSum, kOut, kWords);
  }
  static void memtile(Script& c) {
    c.lock(kMem, 0, 2);
    for (uint32_t i = 0; i < 2; ++i) {
      const Bd in = acquiring(linear(kWords, kOwnMem + kWords * i), kOwnLock, -1);
      Bd out = in;
      out.wrap[0] = 2;
      out.step[0] = kWords / 2;  // words 0, 256, 1, 257, ...
      out.step[1] = 1;
      out = acquiring(out, kOwnLock + 1, -1);
      c.bd(kMem, static_cast<int>(i), followed_by(releasing(in, kOwnLock + 1, 1), 1 - i));
      c.bd(kMem, static_cast<int>(2 + i), followed_by(releasing(out, kOwnLock, 1), 3 - i));
    }
    c.push(kMem, kS2MM, 0, 0).push(kMem, kMM2S, 0, 2);
  }
};

// Its arguments, which begin at any word.
struct Data {
  Data(uint32_t objects, uint32_t seed) : in(counting(kWords * objects, seed * 977)) {}
  std::vector<emulator::Argument> arguments() { return {view(in, false), view(out), view(east)}; }
  bool operator==(const Data& other) const { return out == other.out && east == other.east; }

  Words in, out = Words(kWords), east = Words(kWords);
};

// Two objects that bound a loop and say how many of their words to add.
Data steering(uint32_t bound, uint32_t count, uint32_t seed) {
  Data data(2, seed);
  for (uint32_t object = 0; object < 2; ++object) {
    data.in[kWords * object] = bound;
    data.in[kWords * object + 256] = count;  // the second word behind the memtile
  }
  return data;
}

// A stream as a device keeps it.
struct Prepared {
  Prepared(uint32_t loops, const std::shared_ptr<ReplayMemory>& memory, bool says_how_many = true)
      : objects(loops),
        words(Design::stream(loops, says_how_many).words()),
        parsed(stream::Stream::parse(std::as_bytes(std::span(words)))),
        recordings(memory) {}

  const uint32_t objects;
  const Words words;
  const stream::Stream parsed;
  Recordings recordings;
};

// The run, and whether it was a replay.
bool run(Design& design, Prepared& stream, Data& data) {
  design.m.array.begin(stream.parsed, data.arguments(), &stream.recordings);
  const bool replays = design.m.array.replaying();
  const bool ended = design.m.array.resume(Array::Deadline::max());
  CHECK(ended);
  return replays;
}

bool same_report(const RunReport& a, const RunReport& b) {
  RunReport timeless = a;
  timeless.array_ns = b.array_ns;
  return std::memcmp(&timeless, &b, sizeof b) == 0;
}

// Registers of BDs, channels, their status and locks, and all data memory.
Words state(Machine& m) {
  Words all;
  for (int col = 0; col < 2; ++col) {
    for (int row = 0; row < 3; ++row) {
      const At at{col, row};
      const auto read = [&](uint32_t from, int count, uint32_t step) {
        for (int i = 0; i < count; ++i) {
          all.push_back(m.array.read_register(at.address(from + step * static_cast<uint32_t>(i))));
        }
      };
      const arch::TileGeometry& tile = at.model();
      for (int bd = 0; bd < tile.bds; ++bd) {
        read(tile.bd_base + 0x20u * static_cast<uint32_t>(bd), tile.bd_words, 4);
      }
      read(tile.s2mm_base, tile.channels, 8);
      read(tile.lock_base, tile.locks, 0x10);
      for (auto& side : m.array.tile(col, row).channels) {
        for (const auto* channel : side) all.push_back(channel->status());
      }
      if (tile.memory_bytes == 0) continue;  // a shim
      const Words memory = m.words(at, 0, tile.memory_bytes / 4);
      all.insert(all.end(), memory.begin(), memory.end());
    }
  }
  return all;
}

}  // namespace

TEST_SUITE_BEGIN("columns");  // which ThreadSanitizer runs

TEST_CASE("replays leave what runs at register level leave, with other streams between") {
  Design replayed, plain;
  const auto memory = std::make_shared<ReplayMemory>();
  Prepared three(3, memory), two(2, memory);
  int replays = 0;
  for (uint32_t i = 0; i < 40; ++i) {
    Prepared& stream = i % 5 == 4 ? two : three;  // three leaves the memtile at its other place
    Data data(3, i), expected(3, i);
    replays += run(replayed, stream, data);
    plain.m.array.begin(stream.parsed, expected.arguments());
    CHECK(plain.m.array.resume(Array::Deadline::max()));
    CHECK(data == expected);
    CHECK(data.out != Words(kWords));
    CHECK(data.out == data.east);
    CHECK(same_report(replayed.m.array.report(), plain.m.array.report()));
    if (i % 3 == 0) CHECK(state(replayed.m) == state(plain.m));
  }
  CHECK(state(replayed.m) == state(plain.m));
  CHECK(replays >= 24);
  CHECK(memory->bytes() > 0);
}

TEST_CASE("arguments may lie elsewhere, but not in each other") {
  Design design;
  Prepared stream(2, std::make_shared<ReplayMemory>());
  for (uint32_t i = 0; i < 6; ++i) {
    Data data(2, i);  // new memory every time
    CHECK(run(design, stream, data) == (i >= 2));
  }
  Data shared(2, 7), expected(2, 7);
  run(design, stream, expected);
  design.m.array.begin(stream.parsed,
                       std::vector{view(shared.in, false), view(shared.in), view(shared.east)},
                       &stream.recordings);
  CHECK(!design.m.array.replaying());
  CHECK(design.m.array.resume(Array::Deadline::max()));
  CHECK(shared.east == expected.east);
}

TEST_CASE("another state of the array, another program or size is no replay") {
  Design design;
  Prepared stream(2, std::make_shared<ReplayMemory>());
  const auto replays = [&](Data&& data) { return run(design, stream, data); };
  for (int i = 0; i < 3; ++i) replays(Data(2, 1));
  CHECK(replays(Data(2, 1)));
  CHECK(!replays(Data(3, 1)));  // a longer argument
  CHECK(replays(Data(2, 1)));
  design.m.array.write_register(kMem.address(kMem.model().lock_base + 0x10 * 9), 3);
  CHECK(!replays(Data(2, 1)));
  design.m.array.write_register(kMem.address(kMem.model().lock_base + 0x10 * 9), 0);
  CHECK(replays(Data(2, 1)));
  design.configure();
  CHECK(!replays(Data(2, 1)));
}

TEST_CASE("words of arguments that steer cores are compared before every replay") {
  for (const SteeredBy by : {SteeredBy::kData, SteeredBy::kTakenData}) {
    CAPTURE(static_cast<int>(by));
    Design replayed(by), plain(by);
    Prepared stream(2, std::make_shared<ReplayMemory>());
    for (uint32_t i = 0; i < 16; ++i) {
      CAPTURE(i);
      Data data = steering(2, 512 - i / 4 % 2 * 256, i),
           expected = steering(2, 512 - i / 4 % 2 * 256, i);
      // The other count is recorded when it first comes.
      CHECK(run(replayed, stream, data) == (i != 0 && i != 1 && i != 4));
      plain.m.array.begin(stream.parsed, expected.arguments());
      CHECK(plain.m.array.resume(Array::Deadline::max()));
      CHECK(data == expected);
      CHECK(same_report(replayed.m.array.report(), plain.m.array.report()));
      CHECK(state(replayed.m) == state(plain.m));
    }
  }
}

TEST_CASE("words that steer cores into an error lead to that error") {
  for (const SteeredBy by : {SteeredBy::kData, SteeredBy::kTakenData}) {
    for (const bool waits : {true, false}) {
      Design design(by);
      Prepared stream(2, std::make_shared<ReplayMemory>());
      for (uint32_t i = 0; i < 4; ++i) {
        Data data = steering(2, 512, i);
        CHECK(run(design, stream, data) == (i >= 2));
      }
      Data wrong = steering(waits ? 3 : UINT32_MAX, 512, 1);
      if (waits) {
        check_error(ErrorKind::kDeadlock, {"core (0,2)"}, [&] { run(design, stream, wrong); });
      } else {
        check_error(ErrorKind::kKernel, {"loop bound of -1"}, [&] { run(design, stream, wrong); });
      }
    }
  }
}

TEST_CASE("words that earlier runs left in cores are compared before every replay") {
  Design design;
  const auto memory = std::make_shared<ReplayMemory>();
  Prepared says(2, memory), relies(2, memory, false);
  Data data(2, 1);
  run(design, says, data);
  for (int i = 0; i < 4; ++i) CHECK(run(design, relies, data) == (i >= 2));
  design.m.array.write_register(kCore.address(kLoops), 3);
  check_error(ErrorKind::kDeadlock, {"core (0,2)"}, [&] { run(design, relies, data); });
}

TEST_CASE("cores that are steered by what a kernel computes are never recorded") {
  Design design(SteeredBy::kComputedData);
  const auto memory = std::make_shared<ReplayMemory>();
  Prepared stream(2, memory);
  for (uint32_t i = 0; i < 5; ++i) {
    Data data = steering(2, 512, i);
    CHECK(!run(design, stream, data));
  }
  CHECK(memory->bytes() == 0);
}

TEST_CASE("recordings take no more memory than they may, and give it back") {
  const auto memory = std::make_shared<ReplayMemory>();
  Design design;
  {
    Prepared stream(2, memory);
    for (uint32_t i = 0; i < 4; ++i) {
      Data data(2, i);
      run(design, stream, data);
    }
    CHECK(memory->bytes() > 0);
    stream.recordings.clear();
    CHECK(memory->bytes() == 0);
  }
  memory->limit(1000);
  Prepared stream(2, memory);
  for (uint32_t i = 0; i < 4; ++i) {
    Data data(2, i);
    CHECK(!run(design, stream, data));
  }
  CHECK(memory->bytes() == 0);
}

TEST_CASE("recordings of a configuration leave with it, and come ever later if none was repeated") {
  Design design;
  const auto memory = std::make_shared<ReplayMemory>();
  Prepared stream(2, memory);
  Data data(2, 1);
  for (int i = 0; i < 2; ++i) run(design, stream, data);
  const size_t one = memory->bytes();
  CHECK(one > 0);
  for (int i = 1; i <= 12; ++i) {
    CAPTURE(i);
    design.configure();
    CHECK(!run(design, stream, data));
    CHECK(memory->bytes() <= one + one / 2);
    CHECK((memory->bytes() > 0) == (i == 4 || i == 12));  // after 4 runs, then after 8
  }
}

// Of 2, 4 and 6 objects, after which the memtile is where it was.
TEST_CASE("recordings that are used least recently leave a full memory") {
  Design design;
  const auto memory = std::make_shared<ReplayMemory>();
  Prepared small(2, memory), large(4, memory), other(2, memory), vast(6, memory);
  const auto replays = [&](Prepared& stream) {
    Data data(stream.objects, 11), expected(stream.objects, 11);
    const bool replayed = run(design, stream, data);
    design.m.array.begin(stream.parsed, expected.arguments());
    CHECK(design.m.array.resume(Array::Deadline::max()));
    CHECK(data == expected);
    return replayed;
  };
  const auto record = [&](Prepared& stream, int runs = 2) {
    const size_t before = memory->bytes();
    for (int i = 0; i < runs; ++i) CHECK(!replays(stream));
    return memory->bytes() - before;
  };
  const size_t of_small = record(small), of_large = record(large), full = memory->bytes();
  CHECK(of_small > 0);
  CHECK(of_large > of_small);
  memory->limit(full);
  CHECK(replays(small));
  record(other);  // in the place of `large`
  CHECK(memory->bytes() == 2 * of_small);
  CHECK(replays(small));
  CHECK(replays(other));

  record(large, 4);  // has left without a replay: after twice as many runs
  CHECK(memory->bytes() == of_small + of_large);
  CHECK(replays(large));
  CHECK(replays(other));
  record(small);  // has been replayed
  CHECK(replays(small));
  CHECK(replays(other));

  memory->limit(of_large);
  record(vast);  // more than the limit: nothing leaves for it
  CHECK(!replays(vast));
  CHECK(replays(small));
  CHECK(replays(other));
}

TEST_CASE("the states of one stream do not drive each other out") {
  Design design;
  const auto memory = std::make_shared<ReplayMemory>();
  Prepared three(3, memory), four(4, memory);  // three leaves the memtile at its other place
  const auto replays = [&](Prepared& stream) {
    Data data(stream.objects, 3);
    return run(design, stream, data);
  };
  for (Prepared* stream : {&three, &three, &four, &four}) CHECK(!replays(*stream));
  memory->limit(memory->bytes());
  CHECK(!replays(three));  // the other state: `four` leaves, though it was used later
  CHECK(replays(three));
  CHECK(replays(three));
  CHECK(!replays(four));
}

TEST_CASE("a kernel that fails, Ctrl-C and a deadline end or pause a replay") {
  Design design;
  Prepared stream(2, std::make_shared<ReplayMemory>());
  Data data(2, 3);
  const auto warm = [&] {
    for (int i = 0; i < 3; ++i) run(design, stream, data);
    const Words out = data.out;
    CHECK(run(design, stream, data));
    CHECK(data.out == out);
  };
  warm();
  fails = true;
  check_error(ErrorKind::kKernel, {"was told to fail"}, [&] { run(design, stream, data); });
  check_error(ErrorKind::kArgument, {"configure"}, [&] { run(design, stream, data); });

  design.configure();
  warm();
  design.m.array.set_interrupt([] { throw std::runtime_error("Ctrl-C"); });
  CHECK_THROWS_WITH(run(design, stream, data), "Ctrl-C");
  design.m.array.set_interrupt({});

  design.configure();
  warm();
  const Words out = data.out;
  std::fill(data.out.begin(), data.out.end(), 0u);
  design.m.array.begin(stream.parsed, data.arguments(), &stream.recordings);
  CHECK(design.m.array.replaying());
  CHECK(!design.m.array.resume(std::chrono::steady_clock::now()));
  CHECK(data.out == Words(kWords));
  stream.recordings.clear();  // what runs keeps its recording
  CHECK(design.m.array.resume(Array::Deadline::max()));
  CHECK(data.out == out);
  for (int i = 0; i < 2; ++i) CHECK(!run(design, stream, data));
  CHECK(run(design, stream, data));
}

TEST_SUITE_END();
