// Overlays on the emulated array: a stream loads programs into two cores by broadcast, runs jobs,
// loads others; what a reset keeps and what it does not; every way to load wrongly; simulated time.
#include <algorithm>

#include "devices/emulator/timed_trace.h"
#include "overlay_machine.h"
#include "runtime/device.h"
#include "runtime/interrupt.h"

using namespace npu;
using namespace npu::test;

namespace {

// Two jobs on the next slots of a ring of three, then the end.
std::string two_jobs(const std::string& kernel) {
  return "loop 2\n acquire_ge 0 1\n call " + kernel +
         " @0|1024|2048%0 #16\n advance 0 3\n release 1 1\nend\n";
}

using Calls = OverlayMachine::Calls;

// Loads overlays 0, 1, 0, with two jobs for each.
Script three_loads(const OverlayMachine& m, size_t words) {
  Script s = m.script();
  for (const uint32_t argument : {0u, 1u, 0u}) {
    m.send(s, words, argument);
    for (const At core : kCores) s.lock(core, 0, 2);
    m.await_cores(s);
  }
  return s;
}

}  // namespace

TEST_CASE("overlay: two cores run one after the other; slots go on where they were") {
  OverlayMachine m;
  m.load({two_jobs("f"), two_jobs("g")});
  CHECK(m.array.read_register(kCores[0].address(kCoreStatus)) == kCoreReset);
  Words first = m.packets(0), second = m.packets(1);
  m.run(three_loads(m, first.size()), {view(first, false), view(second, false)});
  const Calls expected{{"f", 0}, {"f", 1024}, {"g", 2048}, {"g", 0}, {"f", 1024}, {"f", 2048}};
  for (size_t i = 0; i < 2; ++i) {
    CHECK(m.calls[i] == expected);
    // Modes of the core are lost by a reset; data memory and locks are not.
    CHECK(m.roundings[i] == std::vector<int>{0, 12, 0, 12, 0, 12});
    CHECK(m.lock(kCores[i], 1) == 6);
    CHECK(m.word(kCores[i], 0) == 4);
    CHECK(m.word(kCores[i], 2048 / 4) == 6);
    CHECK(m.word(kCores[i], kCounters / 4) == 0);
  }
}

TEST_CASE("overlay: program memory reads back; a new configuration clears it") {
  OverlayMachine m;
  m.load({"", ""});
  Words packets = m.packets(1, 4096);
  packets[3 + 6 * 1023 + 5] = 99;  // the image's last word
  m.send(packets);
  for (const At core : kCores) {
    CHECK(m.array.read_register(core.address(0x20000)) == 0x5855504E);
    CHECK(m.array.read_register(core.address(0x20004)) == 1);
    CHECK(m.array.read_register(core.address(0x23FFC)) == 99);
    CHECK(m.array.read_register(core.address(0x32000)) == 1);
    CHECK(m.array.read_register(core.address(kCoreStatus)) == (1u | kDone));
  }
  CHECK(m.array.read_register(At{1, 2}.address(0x20000)) == 0);
  m.load({""});
  CHECK(m.array.read_register(kCores[0].address(0x20000)) == 0);
  CHECK(m.array.read_register(kCores[0].address(kCoreStatus)) == kCoreReset);
  CHECK(m.calls[0].empty());
}

TEST_CASE("overlay: registers written by the command processor load one, too") {
  OverlayMachine m;
  m.load({"call f @8\n", "call g @16\n"});
  const Words image = m.image(1);
  Script s = m.script();
  s.write(kCores[0], 0x32000, 2);
  s.raw.block_write(kCores[0].address(0x20000), image);
  s.write(kCores[0], 0x32000, 1);
  m.run(s);
  CHECK(m.calls[0] == Calls{{"g", 16}});
  CHECK(m.calls[1].empty());
  m.run(m.script().write(kCores[0], 0x32000, 1));  // enabled already: it goes on, at its end
  CHECK(m.calls[0].size() == 1);
  m.run(m.script().write(kCores[0], 0x32000, 2).write(kCores[0], 0x32000, 1));
  CHECK(m.calls[0].size() == 2);
}

TEST_CASE("overlay: a core in the middle of its program is not reset nor given another") {
  OverlayMachine m;
  m.load({"call f @0\nacquire_ge 3 2\ncall f @0\n", ""});
  const auto refused = [&](auto&& stream, std::initializer_list<const char*> telling) {
    m.load({"call f @0\nacquire_ge 3 2\ncall f @0\n", ""});
    m.send(m.packets(0));
    check_error(ErrorKind::kKernel, telling, stream);
  };
  const char* const waits =
      "which waits for its lock 3 to be >= 2 (it is 0), at instruction 1 of overlay \"o0\"";
  refused([&] { m.send(m.packets(1)); },
          {"control packet of shim (0,0) MM2S 0] resets core (0,2)", waits, "wait until"});
  refused([&] { m.run(m.script().write(kCores[1], 0x32000, 2)); },
          {"WRITE] resets core (0,3)", waits});
  refused([&] { m.run(m.script().write(kCores[1], 0x20000, 2)); },
          {"writes the program memory of core (0,3)", waits});
  Words image_only = m.packets(1);
  image_only.erase(image_only.begin(), image_only.begin() + 3);
  refused([&] { m.send(image_only); }, {"writes the program memory of core (0,2)", waits});
  // Disabled in the middle of it, it still has not ended.
  refused([&] { m.run(m.script().write(kCores[0], 0x32000, 0).write(kCores[0], 0x32000, 2)); },
          {"resets core (0,2), which is at instruction 1 of overlay \"o0\""});
}

TEST_CASE("overlay: enabling a core without a program of the configuration") {
  OverlayMachine m;
  const auto refused = [&](const Words& words, std::initializer_list<const char*> telling) {
    m.load({"call f @0\n", ""});
    check_error(ErrorKind::kKernel, telling, [&] { m.send(words); });
    CHECK(m.calls[0].empty());
  };
  refused(control_packets(Words(16)),
          {"control packet of shim (0,0) MM2S 0] core (0,2) is enabled with program memory that "
           "holds no program of this configuration",
           "0x00000000 0x00000000 0x00000000", "(o0, o1)"});
  Words number = m.packets(0), source = m.packets(0), magic = m.packets(0);
  number[6] = 2;
  refused(number, {"0x5855504e 0x00000002 0x00000007"});
  source[7] = 8;
  refused(source, {"0x5855504e 0x00000000 0x00000008"});
  magic[5] = 1;
  refused(magic, {"0x00000001 0x00000000"});
}

TEST_CASE("overlay: all words of an image must have arrived") {
  OverlayMachine m;
  const auto refused = [&](size_t overlay, const Words& words, const char* telling) {
    m.load({"call f @0\n", "call g @0\n", "call h @0\n"}, 4096);
    m.send(m.packets(0, 4096));  // what is not written later is the first one's
    CHECK(m.calls[0] == Calls{{"f", 0}});
    check_error(ErrorKind::kKernel, {"core (0,2) is enabled", telling, "write all of its image"},
                [&] { m.send(words); });
    CHECK(m.calls[0] == Calls{{"f", 0}});
    m.calls = {};
    m.load({"call f @0\n", "call g @0\n", "call h @0\n"}, 4096);
    m.send(m.packets(overlay, 4096));
    CHECK(m.calls[0].size() == 1);
    m.calls = {};
  };
  for (const size_t overlay : {size_t{1}, size_t{2}}) {
    Words lost = m.packets(overlay, 4096), wrong = lost;
    lost.erase(lost.begin() + 3 + 6 * 500, lost.begin() + 3 + 6 * 501);
    refused(overlay, lost,
            overlay == 1 ? "as overlay \"o1\", but word 2000 is 0x"
                         : "as overlay \"o2\", but word 2000 is 0x");
    wrong[3 + 6 * 1023 + 5] ^= 1;
    refused(overlay, wrong, ", but word 4095 is 0x");
  }
}

TEST_CASE("overlay: slot counters outside their rings are refused") {
  for (const uint32_t value : {3u, 0xFFFFFFFFu}) {
    OverlayMachine m;
    m.load({"call f @0|8|16%1\n", "advance 1 3\n"});
    for (const size_t overlay : {size_t{0}, size_t{1}}) {
      m.load({"call f @0|8|16%1\n", "advance 1 3\n"});
      m.run(m.script().memory(kCores[1], kCounters / 4, {77, value}));
      check_error(ErrorKind::kKernel,
                  {"core (0,3) finds", value == 3 ? "finds 3 in" : "finds -1 in",
                   "slot counter 1 (address 60004), which chooses among 3 slots", "of overlay"},
                  [&] { m.send(m.packets(overlay)); });
    }
  }
}

TEST_CASE("overlay: deadlocks name it, and cores without one") {
  OverlayMachine m;
  m.load({"acquire_ge 2 1\n", ""});
  Script stuck = m.script();
  stuck.raw.mask_poll(kCores[0].address(kCoreStatus), kDone, kDone);
  check_error(ErrorKind::kDeadlock, {"core (0,2) has no overlay loaded", "core (0,3) has no over"},
              [&] { m.run(stuck); });
  m.load({"acquire_ge 2 1\n", ""});
  m.send(m.packets(0));
  check_error(ErrorKind::kDeadlock,
              {"core (0,3) waits for its lock 2", "at instruction 0 of overlay \"o0\"",
               "lock 2 of core (0,2), which no core program and no BD releases"},
              [&] { m.run(stuck); });
  // The program that releases it may be another overlay.
  m.load({"acquire_ge 2 1\n", "release 2 1\n"});
  m.send(m.packets(0));
  try {
    m.run(stuck);
    FAIL("no deadlock");
  } catch (const Error& error) {
    CHECK(std::string(error.what()).find("no core program and no BD") == std::string::npos);
  }
}

TEST_CASE("overlay: simulated time of a load is that of its words; results are the same") {
  const arch::Timing timing{Generation::kNpu2, {}};
  const auto run = [&](bool timed) {
    OverlayMachine m;
    m.load({two_jobs("zero_i32"), two_jobs("zero_f32")});
    if (timed) m.array.set_timing(&timing, true);
    Words first = m.packets(0, 4096), second = m.packets(1, 4096);
    m.run(three_loads(m, first.size()), {view(first, false), view(second, false)});
    std::vector<Words> out;
    for (const At core : kCores) out.push_back(m.words(core, 0, 16384));
    CHECK(m.calls[0].size() == 6);
    CHECK(m.calls[1] == m.calls[0]);
    if (timed) {
      const double words = 3 * static_cast<double>(first.size()),
                   cycles = m.array.timing_report().cycles;
      CHECK(cycles >= words);
      CHECK(cycles < words + 3 * (timing.token + timing.shim_cold_start + 8000));  // with its jobs
    }
    return out;
  };
  CHECK(run(true) == run(false));
}

TEST_CASE("overlay: a run without data takes the words of control packets, if they are there") {
  const arch::Timing timing{Generation::kNpu2, {}};
  const auto cycles = [&](bool data) {
    OverlayMachine m;
    m.load({two_jobs("zero_i32"), two_jobs("zero_f32")});
    m.array.set_timing(&timing, data);
    Words first = m.packets(0), second = m.packets(1);
    m.run(three_loads(m, first.size()), {view(first, false), view(second, false)});
    CHECK(m.calls[0].size() == (data ? 6u : 0u));
    CHECK(m.array.timing_report().core_busy > 0);
    return m.array.timing_report().cycles;
  };
  CHECK(cycles(false) == cycles(true));
  OverlayMachine m;
  m.load({""});
  m.array.set_timing(&timing, false);
  Script s = m.script();
  m.send(s, 30);
  check_error(ErrorKind::kUnsupported,
              {"shim (0,0) MM2S 0 sends control packets", "without memory"},
              [&] { m.run(s, {{nullptr, 120, false}}); });
}

TEST_CASE("overlay: in simulated time a program must have ended when the reset sets out") {
  const arch::Timing timing{Generation::kNpu2, {}};
  OverlayMachine m;
  m.load({"call zero_i32 @0 #16\n", ""});
  m.send(m.packets(0));
  m.array.set_timing(&timing, true);
  Words packets = m.packets(0);
  Script s = m.script();
  m.send(s, packets.size());
  m.send(s, packets.size());  // the token takes longer than the call
  m.run(s, {view(packets, false)});
  CHECK(m.calls[0].size() == 3);
  // It would end before the words arrive, but not before the first of them could.
  Words whole = m.packets(0, 4096);
  const double cycles = timing.token + static_cast<double>(whole.size()) / 2;
  // In a packet of its own, and behind the register before it.
  Words joined = packet(0x31FFC, {0, kCoreReset});
  joined.insert(joined.end(), whole.begin() + 3, whole.end());
  for (Words* second : {&whole, &joined}) {
    m.load({"call zero_i32 @0 #" + std::to_string(static_cast<int>(cycles * 16)) + "\n", ""});
    Script early = m.script();
    m.send(early, whole.size(), 0);
    m.send(early, second->size(), 1);
    check_error(ErrorKind::kKernel, {"resets core (0,2)", "at instruction 0 of overlay \"o0\""},
                [&] { m.run(early, {view(whole, false), view(*second, false)}); });
  }
}

TEST_CASE("overlay: recorded kernels name it; packets go to cores") {
  const arch::Timing timing{Generation::kNpu2, {}};
  OverlayMachine m;
  m.load({two_jobs("zero_i32"), two_jobs("zero_i32")});
  emulator::Recorder recorder({});
  m.array.set_timing(&timing, true, &recorder);
  Words first = m.packets(0), second = m.packets(1);
  m.run(three_loads(m, first.size()), {view(first, false), view(second, false)});
  std::vector<std::string> kernels;
  std::vector<std::string> receivers;
  for (const emulator::TraceEvent& event : recorder.events()) {
    if (event.kind == emulator::TraceEvent::Kind::kKernel &&
        recorder.tracks()[event.track].name == "core (0,3)") {
      kernels.push_back(recorder.kernels()[event.other]);
    }
    if (event.kind != emulator::TraceEvent::Kind::kSend) continue;
    CHECK(event.bytes == 4 * first.size());
    for (const uint32_t track : recorder.routes()[event.other]) {
      receivers.push_back(recorder.tracks()[track].name);
    }
  }
  const std::string o0 = "zero_i32 (o0)", o1 = "zero_i32 (o1)";
  CHECK(kernels == std::vector<std::string>{o0, o0, o1, o1, o0, o0});
  const std::string low = "core (0,2)", high = "core (0,3)";
  REQUIRE(receivers.size() == 6);
  std::sort(receivers.begin(), receivers.end());
  CHECK(receivers == std::vector<std::string>{low, low, low, high, high, high});
}

namespace {

// Core (0,2) fills 64 words with zeros per load of its overlay and sends them to the host.
std::shared_ptr<const Configuration> zeros() {
  Script s;
  s.shim_dma(0).connect(kShim0, sp::kMm2s0, sp::kNorthMaster);
  s.connect({0, 1}, mp::kSouthSlave, mp::kNorthMaster);
  s.connect(kCores[0], cp::kSouthSlave, kControlMaster);
  s.connect(kCores[0], cp::kDma, cp::kSouthMaster);
  s.connect({0, 1}, mp::kNorthSlave, mp::kSouthMaster);
  s.connect(kShim0, sp::kNorthSlave, sp::kS2mm0);
  s.lock(kCores[0], 0, 1);
  for (uint32_t i = 0; i < 2; ++i) {
    s.bd(kCores[0], static_cast<int>(i),
         followed_by(releasing(acquiring(linear(64, i * 1024), 1, -1), 0, 1), 1 - i));
  }
  s.push(kCores[0], kMM2S, 0, 0);
  const Words txn = s.words();
  std::string text = strf(
      "npu-config 1\nname zeros generation npu2 source 89abcdef\n"
      "port control 0 mm2s 0\nport out 0 s2mm 0\ncore 0 2\nendcore\n"
      "overlay idle 16 65528\nendoverlay\n"
      "overlay fill 32 65528\nacquire_ge 0 1\ncall zero_i32 @0|4096%%0 #64\nadvance 0 2\n"
      "release 1 1\nendoverlay\ntxn %zu\n",
      4 * txn.size());
  text.append(reinterpret_cast<const char*>(txn.data()), 4 * txn.size());
  return std::make_shared<const Configuration>(
      Configuration::parse(std::as_bytes(std::span(text))));
}

}  // namespace

TEST_CASE("overlay: devices load configurations with overlays; also after a reload") {
  const std::shared_ptr<const Configuration> configuration = zeros();
  for (const char* name : {"emu:npu2", "emu:npu2+reload"}) {
    CAPTURE(name);
    const auto device = open_device(name, "fast");
    device->load(configuration);
    Words packets = control_packets(overlay_image(*configuration, 1));
    Script s;
    s.host_bd(0, 0, linear(static_cast<uint32_t>(packets.size())), 0).host_bd(0, 1, linear(64), 1);
    s.push(kShim0, kS2MM, 0, 1, 1, true).push(kShim0, kMM2S, 0, 0, 1, true);
    s.sync(kShim0, kMM2S, 0).sync(kShim0, kS2MM, 0);
    const auto stream = device->prepare(s.words());
    for (int run = 0; run < 3; ++run) {
      Words out(64, 5);
      const auto from = device->wrap(reinterpret_cast<std::byte*>(packets.data()),
                                     4 * packets.size(), Access::kRead);
      const auto to =
          device->wrap(reinterpret_cast<std::byte*>(out.data()), 256, Access::kReadWrite);
      const std::vector<BufferRef> refs{{from.get(), 0, from->bytes(), Access::kRead},
                                        {to.get(), 0, to->bytes(), Access::kReadWrite}};
      finish(*device->submit(stream, refs));
      CHECK(out == Words(64));
    }
  }
}
