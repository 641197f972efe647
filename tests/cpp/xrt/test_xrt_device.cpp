// The XRT device over the stand-in for XRT: streams run and give the emulator's results on both
// generations, loads are counted and made once, contexts are kept, shared and limited, arguments
// are checked against the kernel, runs are waited for with a timeout and cancelled, and everything
// is destroyed in XRT's order (the fixture checks that).
#include <cerrno>

#include "xrt_fixture.h"

namespace {

using namespace npu;
using namespace npu::test;

}  // namespace

TEST_CASE("xrt: a stream runs on both generations, and says what it can know") {
  for (const auto generation : {arch::Generation::kNpu1, arch::Generation::kNpu2}) {
    const bool first = generation == arch::Generation::kNpu1;
    XrtMachine machine(first ? xrt_double::Settings{.device = "emu:npu1", .name = "RyzenAI-npu1"}
                             : xrt_double::Settings{});
    Copying copying(machine);
    const DeviceInfo info = copying.device->info();
    CHECK(info.name == (first ? "xrt:npu1" : "xrt:npu2"));
    CHECK(info.generation == generation);
    CHECK_FALSE(info.emulated);
    CHECK(info.arithmetic == "hardware");
    CHECK(info.columns == arch::device_geometry(generation).columns);
    const auto stream = copying.prepare(64);
    for (uint8_t i = 0; i < 5; ++i) {
      copying.fill(static_cast<uint8_t>(17 * i));
      const RunReport report = copying.run(stream);
      CHECK(copying.copied(256));
      CHECK(report.operations == 7);
      CHECK(report.array_ns > 0);
    }
    CHECK(copying.device->counters().submissions == 5);
    CHECK(copying.device->counters().configuration_loads == 1);
    CHECK(xrt_double::counters().contexts_made == 1);
    CHECK(xrt_double::counters().starts == 5);
  }
}

TEST_CASE("xrt: a device is opened by either name") {
  XrtMachine machine;
  CHECK(open_device("xrt", "fast")->info().name == "xrt:npu2");
  for (const char* name : {"xrt:npu2", "xrt+module", "xrt:npu2+module"}) {
    CHECK(open_device(name, "fast")->info().name == "xrt:npu2");
  }
  for (const char* name : {"xrt:npu1", "xrt:npu1+module"}) {
    const Raised other = raised([&] { open_device(name, "fast"); });
    CHECK(other.kind == ErrorKind::kGeneration);
    CHECK(other.says("the NPU of this machine is npu2"));
  }
  for (const char* name : {"xrt:npu3", "xrt+", "xrt+modules", "xrt+module:npu2"}) {
    CHECK(raised([&] { open_device(name, "fast"); }).kind == ErrorKind::kDevice);
  }
  CHECK(raised([] { open_device("xrt+pyxrt", "fast"); }).says("Python's way"));
}

TEST_CASE("xrt: the first NPU among XRT's devices is taken") {
  {
    XrtMachine machine({.before = {"xilinx_u250_gen3x16", "npu10"}});
    Copying copying(machine);
    copying.fill(2);
    copying.run(copying.prepare(64));
    CHECK(copying.copied(256));
  }
  XrtMachine none({.before = {"xilinx_u250_gen3x16", "xilinx_u50"}, .present = false});
  const Raised cards = raised([] { open_device("xrt", "fast"); });
  CHECK(cards.kind == ErrorKind::kGeneration);
  CHECK(cards.says("\"xilinx_u250_gen3x16\" at ffff:00:00.1"));
}

TEST_CASE("xrt: what does not open is told where no other device is an NPU") {
  {
    XrtMachine machine({.before = {"xilinx_u250_gen3x16"}});
    // A card has no memory of the kind that an NPU has.
    xrt_double::refuse_buffers(1, EINVAL);
    const auto device = open_device("xrt", "fast");
    CHECK(device->info().name == "xrt:npu2");
    xrt_double::refuse_buffers(0, 0);
    xrt_double::refuse_devices(1, EIO);
    CHECK(open_device("xrt", "fast")->info().name == "xrt:npu2");
  }
  XrtMachine two({.before = {"xilinx_u50", "NPU Strix"}, .present = false});
  xrt_double::refuse_devices(1, EIO);
  CHECK_NOTHROW(open_device("xrt", "fast"));
  xrt_double::refuse_devices(2, EACCES, "Open /dev/accel/accel0");
  const Raised none = raised([] { open_device("xrt", "fast"); });
  CHECK(none.kind == ErrorKind::kDevice);
  CHECK(none.says("usermod -aG render"));
}

TEST_CASE("xrt: NPUs are told apart by XRT's names") {
  const std::pair<const char*, const char*> kNames[] = {
      {"NPU Phoenix", "xrt:npu1"},        {"NPU Hawk Point", "xrt:npu1"},
      {"RyzenAI-npu1", "xrt:npu1"},       {"NPU Strix", "xrt:npu2"},
      {"NPU Strix Halo", "xrt:npu2"},     {"NPU Krackan 1", "xrt:npu2"},
      {"NPU Gorgon Point 2", "xrt:npu2"}, {"RyzenAI-npu4", "xrt:npu2"},
      {"RyzenAI-npu6", "xrt:npu2"},       {"npu1x", "xrt:npu1"},
      {"ryzenai-NPU5_b", "xrt:npu2"}};
  for (const auto& [name, device] : kNames) {
    CAPTURE(name);
    XrtMachine machine({.name = name});
    CHECK(open_device("xrt", "fast")->info().name == device);
  }
  // The rules of python/npu/hardware/known_npus.py.
  for (const char* name : {"NPU Stri", "NPU Strixes", "phoenixes", "npu10", "npu42", "NPU1502"}) {
    CAPTURE(name);
    XrtMachine machine({.name = name});
    CHECK(raised([] { open_device("xrt", "fast"); }).kind == ErrorKind::kGeneration);
  }
  XrtMachine machine({.name = "NPU of tomorrow"});
  const Raised unknown = raised([] { open_device("xrt", "fast"); });
  CHECK(unknown.kind == ErrorKind::kGeneration);
  CHECK(unknown.says("\"NPU of tomorrow\""));
}

TEST_CASE("xrt: contexts are kept for the configurations used last") {
  XrtMachine machine;
  Copying copying(machine);
  std::vector<std::shared_ptr<const Configuration>> all = {copying.configuration};
  for (const char* name : {"b", "c", "d"}) all.push_back(machine.loopback(name));
  // Four are kept: going round them makes each once.
  for (int round = 0; round < 3; ++round) {
    for (const auto& configuration : all) {
      copying.device->load(configuration);
      copying.fill(static_cast<uint8_t>(round));
      copying.run(copying.prepare(64));
      CHECK(copying.copied(256));
    }
  }
  CHECK(xrt_double::counters().contexts_made == 4);
  // A fifth takes the place of the one used least recently, and no other.
  copying.device->load(machine.loopback("e"));
  CHECK(xrt_double::counters().contexts == 4);
  copying.device->load(all[3]);
  CHECK(xrt_double::counters().contexts_made == 5);
  copying.device->load(all[0]);
  CHECK(xrt_double::counters().contexts_made == 6);
  copying.run(copying.prepare(64));
}

TEST_CASE("xrt: contexts that other programs hold are done without") {
  XrtMachine machine({.contexts = 2});
  Copying first(machine), second(machine);
  // Both contexts of the system are taken: a new one takes the place of the device's own.
  first.device->load(machine.loopback("b"));
  CHECK(xrt_double::counters().contexts == 2);
  first.run(first.prepare(64));
  second.run(second.prepare(64));
  xrt_double::refuse_contexts(2, 22);
  const Raised refused = raised([&] { first.device->load(machine.loopback("c")); });
  CHECK(refused.kind == ErrorKind::kContext);
  CHECK(refused.says("[load]"));
  CHECK(refused.says("refuses a hardware context"));
  CHECK(refused.says("6 contexts on npu1 and 16 on npu2"));
  first.device->load(machine.loopback("c"));
  first.fill(3);
  first.run(first.prepare(64));
  CHECK(first.copied(256));
}

TEST_CASE("xrt: a prepared stream is written to the heap once, and again after a patch") {
  XrtMachine machine;
  Copying copying(machine);
  // Word 1 of the block write of argument 0's BD is the address; its word 0 the length. A stream
  // for 64 words is changed to copy 32.
  const std::vector<uint32_t> words = copy_stream(arch::Generation::kNpu2, 64);
  std::vector<StreamPatch> patches;
  for (size_t i = 4; i < words.size(); ++i) {
    if (words[i] == 64) patches.push_back({i, 32});
  }
  REQUIRE(patches.size() == 2);
  const auto stream = copying.device->prepare(words);
  const auto before_first_run = copying.prepare(64);
  copying.fill(1);
  copying.run(stream);
  CHECK(copying.copied(256));
  const uint64_t heap = xrt_double::counters().heap_bytes;
  CHECK(heap == 32 << 10);
  std::fill(copying.out->host(), copying.out->host() + 256, std::byte{0});
  copying.out->sync_to_device(0, 256);
  CHECK(copying.device->patch(stream, patches));
  copying.run(stream);
  CHECK(copying.copied(128));
  CHECK(copying.out->host()[128] == std::byte{0});
  CHECK(xrt_double::counters().heap_bytes == heap);
  // A stream that is not in the heap yet.
  CHECK(copying.device->patch(before_first_run, patches));
  copying.fill(9);
  copying.run(before_first_run);
  CHECK(copying.copied(128));
  CHECK_FALSE(copying.copied(256));
  // Other words are refused, and nothing changes.
  const StreamPatch forbidden[] = {{0, 1}};
  CHECK(raised([&] { copying.device->patch(stream, forbidden); }).kind == ErrorKind::kForbidden);
  CHECK_NOTHROW(copying.run(stream));
}

TEST_CASE("xrt: arguments beyond those of the kernel are refused") {
  XrtMachine machine;
  const auto device = open_device("xrt", "fast");
  device->load(machine.loopback("five", arch::Generation::kNpu2, 5));
  const auto buffer = device->allocate(256);
  const auto stream = device->prepare(copy_stream(arch::Generation::kNpu2, 64));
  std::vector<BufferRef> refs(5, {buffer.get(), 0, 256, Access::kReadWrite});
  CHECK_NOTHROW(finish(*device->submit(stream, refs)));
  refs.resize(16);  // the rest is left alone
  CHECK_NOTHROW(finish(*device->submit(stream, refs)));
  refs[5] = refs[0];
  const Raised many = raised([&] { device->submit(stream, refs); });
  CHECK(many.kind == ErrorKind::kArgument);
  CHECK(many.says("argument 6, the xclbin's kernel takes 5"));
  refs[5] = {};
  CHECK_NOTHROW(finish(*device->submit(stream, refs)));
}

TEST_CASE("xrt: a run is waited for with a timeout, and one at a time") {
  XrtMachine machine({.device = "emu:npu2"});
  constexpr uint32_t kWords = 1 << 20;
  Copying copying(machine, kWords * 4);
  const auto stream = copying.device->prepare(copy_stream(arch::Generation::kNpu2, kWords, 0, 400));
  copying.fill(5);
  const auto run = copying.device->submit(stream, copying.refs());
  CHECK(run->state() == Run::State::kRunning);
  CHECK_FALSE(run->wait(std::chrono::milliseconds(1)));
  CHECK(run->state() == Run::State::kRunning);
  CHECK_FALSE(run->wait(std::chrono::nanoseconds(0)));
  CHECK(raised([&] { copying.device->submit(stream, copying.refs()); }).kind ==
        ErrorKind::kArgument);
  int waits = 1;
  while (!run->wait(std::chrono::milliseconds(20))) ++waits;
  CHECK(waits > 1);
  CHECK(run->state() == Run::State::kDone);
  CHECK(run->wait(std::chrono::nanoseconds(0)));
  CHECK(copying.copied(copying.bytes));
}

TEST_CASE("xrt: a run can be cancelled, by loading too; the next one is right") {
  XrtMachine machine({.device = "emu:npu2"});
  constexpr uint32_t kWords = 1 << 20;
  Copying copying(machine, kWords * 4);
  const auto long_stream =
      copying.device->prepare(copy_stream(arch::Generation::kNpu2, kWords, 0, 400));
  auto run = copying.device->submit(long_stream, copying.refs());
  run->cancel();
  CHECK(run->state() == Run::State::kCancelled);
  CHECK(xrt_double::counters().contexts == 0);
  CHECK(raised([&] { copying.device->submit(long_stream, copying.refs()); }).kind ==
        ErrorKind::kArgument);
  copying.device->load(copying.configuration);
  run = copying.device->submit(long_stream, copying.refs());
  CHECK_FALSE(run->wait(std::chrono::milliseconds(1)));
  run = nullptr;  // cancels
  copying.device->load(copying.configuration);
  run = copying.device->submit(long_stream, copying.refs());
  copying.device->load(machine.loopback("other"));
  CHECK(run->state() == Run::State::kCancelled);
  copying.device->load(copying.configuration);
  copying.fill(200);
  const auto short_stream = copying.prepare(64);
  copying.run(short_stream);
  CHECK(copying.copied(256));
}
