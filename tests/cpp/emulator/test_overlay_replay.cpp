// Recorded runs of streams that load overlays. Asserts that a replay leaves the data memory,
// program memory, core control and slot counters that the register level leaves, and begins with
// those of a loaded configuration; that control packets are compared before it, and wrong ones are
// the errors of the register level; that a run is refused whose packets may change, or which moves
// words to slot counters.
#include "devices/emulator/replay/recordings.h"
#include "overlay_machine.h"

using namespace npu;
using namespace npu::test;

namespace {

using emulator::Recordings;
using emulator::ReplayMemory;

consteval kernels::Declaration counts() {
  kernels::Operand place = kernels::buffer("place", 4, 4);
  place.element = kernels::Element::kInt32;
  return kernels::resolved("count", {.operands = {place}});
}
constexpr kernels::Declaration kCounts = counts();

// Two overlays that call a kernel twice, on the next slots of a ring of three: f adds 1 to the word
// there, g multiplies it by 10.
struct Loads : OverlayMachine {
  // place: of the operand of f's and g's calls; end: of their programs.
  explicit Loads(const std::string& place = "0|1024|2048%0", const std::string& end = "") {
    configure();
    std::vector<emulator::OverlayProgram> overlays;
    for (const std::string name : {"f", "g"}) {
      emulator::OverlayProgram overlay;
      overlay.program = parse_program(
          "loop 2\n call " + name + " @" + place + "\n advance 0 3\nend\n" + end, "test");
      overlay.functions.push_back({[name](std::span<const KernelArgument> a, CoreState&) {
                                     auto& word = *reinterpret_cast<int32_t*>(a[0].data);
                                     word = name == "f" ? word + 1 : word * 10;
                                   },
                                   false, &kCounts});
      overlay.name = name;
      overlay.image = image(overlays.size(), kImageWords);
      overlay.counters = kCounters;
      overlays.push_back(std::move(overlay));
    }
    const auto shared = std::make_shared<const std::vector<emulator::OverlayProgram>>(overlays);
    for (const At core : kCores) array.attach(core.col, core.row, shared);
  }

  // Loads what argument 0 holds. Its two calls come after the stream's end.
  Script stream() const {
    Script s = script();
    return send(s, first.size());
  }
  std::vector<emulator::Argument> arguments(bool writable = false) {
    return {view(packets_sent, writable)};
  }
  // All that a run may leave.
  Words state() {
    Words all;
    for (const At core : kCores) {
      for (const uint32_t at : {0x20000u, 0x20004u, 0x20038u, 0x32000u, kCoreStatus}) {
        all.push_back(array.read_register(core.address(at)));
      }
      const Words memory = this->words_of(core);
      all.insert(all.end(), memory.begin(), memory.end());
    }
    return all;
  }
  Words words_of(At core) { return OverlayMachine::words(core, 0, 0x10000 / 4); }

  static constexpr size_t kImageWords = 16;
  Words first = packets(0), second = packets(1), packets_sent = first;
};

struct Prepared {
  explicit Prepared(const Script& script)
      : words(script.words()),
        parsed(stream::Stream::parse(std::as_bytes(std::span(words)))),
        recordings(memory, parsed) {}
  std::shared_ptr<ReplayMemory> memory = std::make_shared<ReplayMemory>();
  const Words words;
  stream::Stream parsed;
  Recordings recordings;
};

bool run(Loads& m, Prepared& stream, bool writable = false) {
  m.array.begin(stream.parsed, m.arguments(writable), &stream.recordings);
  const bool replays = m.array.replaying();
  m.array.resume(emulator::Array::Deadline::max());
  return replays;
}

}  // namespace

TEST_CASE("overlay: replays leave what the register level leaves") {
  Loads m, plain;
  Prepared stream(m.stream());
  bool replays = false;
  for (int turn = 0; turn < 5; ++turn) {
    CAPTURE(turn);
    replays = run(m, stream);
    plain.array.return_to_rest();
    plain.run(plain.stream(), plain.arguments());
    CHECK(m.state() == plain.state());
    CHECK(m.word(kCores[0], kCounters / 4) == 2);
    CHECK(m.word(kCores[0], 1024 / 4) == static_cast<uint32_t>(turn + 1));
    CHECK(m.word(kCores[0], 2048 / 4) == 0);
  }
  CHECK(replays);
  REQUIRE(m.array.reload());
  CHECK(m.array.read_register(kCores[1].address(kCoreStatus)) == kCoreReset);
  CHECK(m.array.read_register(kCores[1].address(0x20000)) == 0);
  CHECK(m.words_of(kCores[1]) == Words(0x10000 / 4));
  CHECK(run(m, stream));
}

TEST_CASE("overlay: control packets are compared before a replay") {
  Loads m;
  Prepared stream(m.stream());
  while (!run(m, stream)) {
  }
  m.packets_sent = m.second;
  CHECK(!run(m, stream));
  while (!run(m, stream)) {
  }
  CHECK(m.word(kCores[0], 0) % 10 == 0);
  m.packets_sent[12] ^= 1;
  check_error(ErrorKind::kKernel, {"core (0,2) is enabled"}, [&] {
    m.array.begin(stream.parsed, m.arguments(), &stream.recordings);
    m.array.resume(emulator::Array::Deadline::max());
  });
}

TEST_CASE("overlay: runs that only the register level can do") {
  Loads m;
  Prepared changing(m.stream());
  for (int i = 0; i < 4; ++i) CHECK(!run(m, changing, true));
  CHECK(changing.recordings.refused());
  Script script = m.stream();
  script.write(kCores[0], kCounters, 1);
  Prepared writing(script);
  for (int i = 0; i < 4; ++i) CHECK(!run(m, writing));
  CHECK(writing.recordings.refused());
}

TEST_CASE("overlay: after a stream that has changed routes, configurations are loaded afresh") {
  Loads m;
  REQUIRE(m.array.return_to_rest());
  CHECK(m.array.reload());
  m.run(m.script().connect(kCores[1], cp::kSouthSlave, cp::kNorthMaster));
  CHECK(!m.array.reload());
  CHECK(!m.array.return_to_rest());
}

TEST_CASE("overlay: a run that reads slot counters is not recorded") {
  Loads m(std::to_string(kCounters - 12));  // the last of the operand's four words
  Prepared stream(m.stream());
  for (int i = 0; i < 4; ++i) CHECK(!run(m, stream));
  CHECK(stream.recordings.refused());
}

TEST_CASE("overlay: a core in the middle of its program is not brought back to rest") {
  Loads m("0|1024|2048%0", "acquire_ge 3 1\n");  // which nobody releases
  Prepared stream(m.stream());
  CHECK(!run(m, stream));
  CHECK(!m.array.return_to_rest());
  check_error(ErrorKind::kKernel, {"resets core (0,2), which waits for its lock 3"}, [&] {
    m.array.begin(stream.parsed, m.arguments(), &stream.recordings);
    m.array.resume(emulator::Array::Deadline::max());
  });
}
