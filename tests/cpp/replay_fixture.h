// A design whose runs are recorded and repeated (devices/emulator/replay/), its streams, arguments
// and runs, and what an array is compared by.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "devices/emulator/replay/recordings.h"
#include "emulator_fixture.h"

namespace npu::test {

using emulator::Recordings;
using emulator::ReplayMemory;

inline constexpr uint32_t kWords = 512;  // of an object: aliased and shared, as it is large
inline constexpr int kIn = 0x4000, kSum = 0x6000, kOut = 0x8000;  // bytes of a core's memory
inline constexpr int kLoops = 0x1000, kTaken = 0x1100;  // its runtime parameter; words of a kernel
inline constexpr At kShim{0, 0}, kEast{1, 0}, kMem{0, 1}, kMemEast{1, 1}, kCore{0, 2},
    kCoreEast{1, 2};

// sum = 3 sum + in, and out = sum, sum = 0.
consteval kernels::Declaration adds() {
  kernels::Operand in = kernels::buffer("in", "words", 4);
  in.read_only = true;
  return kernels::resolved(
      "add", {.operands = {in, kernels::buffer("sum", "words", 4), kernels::multiple("words", 4)}});
}
inline constexpr kernels::Declaration kAdds = adds();
inline constexpr kernels::Declaration kGives = kernels::resolved(
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
inline constexpr kernels::Declaration kTakes = takes(true), kComputes = takes(false);

inline std::atomic<bool> fails = false;  // the next call

inline void add(std::span<const KernelArgument> a) {
  if (fails.exchange(false)) fail(ErrorKind::kKernel, "[add] was told to fail");
  const auto* in = reinterpret_cast<const uint32_t*>(a[0].data);
  auto* sum = reinterpret_cast<uint32_t*>(a[1].data);
  for (uint32_t i = 0; i < static_cast<uint32_t>(a[2].value); ++i) sum[i] = 3 * sum[i] + in[i];
}

// What a sum begins with.
inline constexpr kernels::Declaration kPrepares = kernels::resolved(
    "prepare", {.operands = {kernels::buffer("sum", "words", 4), kernels::multiple("words", 4)}});
inline void prepare(std::span<const KernelArgument> a) {
  std::fill_n(reinterpret_cast<uint32_t*>(a[0].data), a[1].value, 5u);
}

// The same as a kernel of a host build, for designs whose memtile is started; also for several
// cores at once, and how many calls were of others than the first.
inline bool run_add(const KernelArgument* a) {
  add({a, 3});
  return true;
}
inline std::atomic<int> joined = 0;
inline bool joint_add(const KernelArgument* const* calls, int count, uint32_t times,
                      int64_t stride) {
  if (count < 2) return false;
  for (int i = 0; i < count; ++i) {
    std::vector<KernelArgument> call(calls[i], calls[i] + 3);
    CHECK(call[0].data == calls[0][0].data);
    for (uint32_t t = 0; t < times; ++t, call[0].data += stride) add(call);
  }
  joined += static_cast<int>(times) * (count - 1);
  return true;
}
inline const HostKernel kAddKernel{&kAdds, run_add, joint_add};

inline void take(std::span<const KernelArgument> a) { std::memcpy(a[1].data, a[0].data, 8); }

inline void give(std::span<const KernelArgument> a) {
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
// kPrepared: as kStream, but the cores write their sums before they wait for a stream.
enum class SteeredBy { kStream, kData, kTakenData, kComputedData, kPrepared };

struct Design {
  // starts: the memtile waits for tasks of a stream, which started() gives it.
  explicit Design(SteeredBy by = SteeredBy::kStream, bool starts = false)
      : steered_by(by), starts_(starts) {
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
    if (!starts) memtile(c);
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
        auto kernel = name == "add" ? add : name == "take" ? take : give;
        const kernels::Declaration* declaration = name == "add" ? &kAdds : &kGives;
        if (name == "prepare") {
          kernel = prepare;
          declaration = &kPrepares;
        }
        if (name == "take") {
          declaration = steered_by == SteeredBy::kTakenData ? &kTakes : &kComputes;
        }
        if (name == "add" && starts_) {
          functions.push_back({kAddKernel, false, declaration});
          continue;
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
    begin_cores(s, loops, says_how_many);
    s.host_bd(0, 0, linear(kWords * loops), 0).push(kShim, kMM2S, 0, 0);
    return end(s);
  }
  // The memtile, which has one place, turns objects around in so many parts.
  static Script started(uint32_t loops, uint32_t parts) {
    Script s;
    const Bd in = acquiring(linear(kWords, kOwnMem + kWords * parts), kOwnLock, -1);
    Bd out = acquiring(in, kOwnLock + 1, -1);
    out.wrap[0] = parts;
    out.step[0] = kWords / parts;
    out.step[1] = 1;
    s.lock(kMem, 0, 1);
    s.bd(kMem, 0, releasing(in, kOwnLock + 1, 1)).bd(kMem, 1, releasing(out, kOwnLock, 1));
    s.push(kMem, kS2MM, 0, 0, static_cast<int>(loops));
    s.push(kMem, kMM2S, 0, 1, static_cast<int>(loops));
    begin_cores(s, loops, true);
    s.host_bd(0, 0, linear(kWords * loops), 0).push(kShim, kMM2S, 0, 0);
    return end(s).lock(kMem, 0, 0);
  }
  // Of two objects in an argument each, the first and the fourth.
  static Script of_two() {
    Script s;
    begin_cores(s, 2, true);
    s.host_bd(0, 0, linear(kWords), 0).push(kShim, kMM2S, 0, 0);
    s.host_bd(0, 2, linear(kWords), 3).push(kShim, kMM2S, 0, 2);
    return end(s);
  }

  Machine m;
  const SteeredBy steered_by;

 private:
  const bool starts_;
  static void begin_cores(Script& s, uint32_t loops, bool says_how_many) {
    for (const At core : {kCore, kCoreEast}) {
      if (says_how_many) s.write(core, kLoops, loops);
      s.lock(core, 4, 1);
    }
  }
  static Script& end(Script& s) {
    s.host_bd(0, 1, linear(kWords), 1).push(kShim, kS2MM, 0, 1, 1, true);
    s.host_bd(1, 1, linear(kWords), 2).push(kEast, kS2MM, 0, 1, 1, true);
    return s.sync(kShim, kS2MM, 0).sync(kEast, kS2MM, 0);
  }
  std::string text() const {
    if (steered_by == SteeredBy::kPrepared) {
      return strf(
          "loop forever\n acquire_ge 2 1\n call prepare @%d #%u\n acquire_ge 4 1\n loop rtp:%d\n"
          "  acquire_ge 1 1\n  call add @%d @%d #%u\n  release 0 1\n end\n"
          " call give @%d @%d #%u\n release 3 1\nend\n",
          kSum, kWords, kLoops, kIn, kSum, kWords, kSum, kOut, kWords);
    }
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
inline Data steering(uint32_t bound, uint32_t count, uint32_t seed) {
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
      : Prepared(loops, memory, Design::stream(loops, says_how_many)) {}
  Prepared(uint32_t loops, const std::shared_ptr<ReplayMemory>& memory, const Script& script)
      : objects(loops),
        words(script.words()),
        parsed(stream::Stream::parse(std::as_bytes(std::span(words)))),
        recordings(memory, parsed) {}

  const uint32_t objects;
  const Words words;
  stream::Stream parsed;
  Recordings recordings;
};

// The run, and whether it was a replay.
inline bool run(Design& design, Prepared& stream, Data& data) {
  design.m.array.begin(stream.parsed, data.arguments(), &stream.recordings);
  const bool replays = design.m.array.replaying();
  const bool ended = design.m.array.resume(Array::Deadline::max());
  CHECK(ended);
  return replays;
}

// The same on an array that executes every run at register level.
inline void run_plainly(Design& design, const Prepared& stream,
                        std::vector<emulator::Argument> arguments) {
  design.m.array.return_to_rest();
  design.m.array.begin(stream.parsed, arguments);
  const bool ended = design.m.array.resume(Array::Deadline::max());
  CHECK(ended);
}

inline bool same_report(const RunReport& a, const RunReport& b) {
  RunReport timeless = a;
  timeless.array_ns = b.array_ns;
  return std::memcmp(&timeless, &b, sizeof b) == 0;
}

// Registers of BDs, channels, their status and locks, and all data memory.
inline Words state(Machine& m) {
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

}  // namespace npu::test
