// What goes wrong on an NPU, injected by the stand-in for XRT: every failure is an error of the
// right kind that says what was found and what to do, a timed-out run with the operation that it
// had reached; the context is made again and the next call is right. Reports of XRT's failures hold
// for any number and text.
#include <cerrno>
#include <random>

#include "devices/xrt/failures.h"
#include "xrt_fixture.h"

namespace {

using namespace npu;
using namespace npu::test;
using xrt_double::Fault;

// The fault meets a run; afterwards the device works, in another context.
Raised meets(Copying& copying, Fault fault, uint32_t number = 0, uint32_t version = 1) {
  const auto stream = copying.prepare(64);
  const uint64_t contexts = xrt_double::counters().contexts_made;
  xrt_double::inject(fault, number, version);
  const Raised out = raised([&] { copying.run(stream); });
  CHECK(raised([&] { copying.run(stream); }).says("no configuration is loaded"));
  copying.device->load(copying.configuration);
  copying.fill(static_cast<uint8_t>(number + 1));
  copying.run(stream);
  CHECK(copying.copied(256));
  CHECK(xrt_double::counters().contexts_made == contexts + 1);
  return out;
}

}  // namespace

TEST_CASE("xrt: a time-out names the operation that the stream had reached") {
  XrtMachine machine;
  Copying copying(machine);
  const auto stream = stream::Stream::parse(std::as_bytes(std::span(copying.prepare(64)->words())));
  const size_t last = stream.operations().size() - 1;
  REQUIRE(stream.operations()[last].opcode == stream::Opcode::kSync);
  for (const uint32_t version : {0u, 1u}) {
    const Raised sync = meets(copying, Fault::kWatchdog, static_cast<uint32_t>(last), version);
    CHECK(sync.kind == ErrorKind::kDeadlock);
    CHECK(sync.message.rfind("[wait] a run of \"loopback\"", 0) == 0);
    CHECK(sync.says("the driver's watchdog"));
    CHECK(sync.says(strf("operation %zu of %zu: ", last, last + 1)));
    CHECK(sync.says("SYNC"));
    CHECK(sync.says("npu build --device npu2 loopback"));
  }
  CHECK(meets(copying, Fault::kWatchdog, 0).says("operation 0 of 7: "));
  for (const uint32_t unknown : {0xFFFFFFFFu, 7u, 0x7FFFFFFFu}) {
    CHECK(meets(copying, Fault::kWatchdog, unknown).says("how far it came is not known"));
  }
}

TEST_CASE("xrt: health data of an unknown form is left alone") {
  XrtMachine machine;
  Copying copying(machine);
  CHECK(meets(copying, Fault::kWatchdog, 3, 7).says("how far it came is not known"));
}

TEST_CASE("xrt: aborted and refused runs") {
  XrtMachine machine;
  Copying copying(machine);
  const Raised aborted = meets(copying, Fault::kAbort);
  CHECK(aborted.kind == ErrorKind::kDevice);
  CHECK(aborted.says("was aborted"));
  CHECK(aborted.says("npu doctor"));
  const Raised refused = meets(copying, Fault::kFirmware);
  CHECK(refused.kind == ErrorKind::kDevice);
  CHECK(refused.says("the firmware refused"));
  CHECK(refused.says("dmesg"));
  const Raised start = meets(copying, Fault::kRefusedStart, EIO);
  CHECK(start.kind == ErrorKind::kDevice);
  CHECK(start.says("[submit]"));
  CHECK(start.says("does not take the command"));
  CHECK(meets(copying, Fault::kRefusedStart, EAGAIN).says("ulimit -l unlimited"));
}

TEST_CASE("xrt: a run without a watchdog is ended by the library") {
  const Environment limit("NPU_XRT_TIMEOUT", "1");
  XrtMachine machine;
  Copying copying(machine);
  const Raised hung = meets(copying, Fault::kHang);
  CHECK(hung.kind == ErrorKind::kDeadlock);
  CHECK(hung.says("NPU_XRT_TIMEOUT"));
  // The same for somebody who waits in small steps.
  xrt_double::inject(Fault::kHang);
  const auto run = copying.device->submit(copying.prepare(64), copying.refs());
  CHECK_FALSE(run->wait(std::chrono::milliseconds(10)));
  CHECK(raised([&] {
          while (!run->wait(std::chrono::milliseconds(50))) {
          }
        }).kind == ErrorKind::kDeadlock);
  CHECK(run->state() == Run::State::kFailed);
}

TEST_CASE("xrt: the limit of a run is checked") {
  XrtMachine machine;
  for (const char* text : {"0", "-1", "soon", "1000000"}) {
    const Environment limit("NPU_XRT_TIMEOUT", text);
    CHECK(raised([] { open_device("xrt", "fast"); }).kind == ErrorKind::kArgument);
  }
}

TEST_CASE("xrt: what the emulator finds wrong in a stream ends as the NPU would end it") {
  XrtMachine machine;
  Copying copying(machine, 64);
  copying.device->load(copying.configuration);
  // 4097 words are beyond the 4096 bytes of the BO.
  const Raised outside = raised([&] { copying.run(copying.prepare(4097)); });
  CHECK(outside.kind == ErrorKind::kDevice);
  CHECK(xrt_double::last_failure().find("argument") != std::string::npos);
  copying.device->load(copying.configuration);
  CHECK_NOTHROW(copying.run(copying.prepare(16)));
}

TEST_CASE("xrt: heap, buffers and contexts that are refused are typed errors") {
  XrtMachine machine;
  Copying copying(machine);
  xrt_double::refuse_buffers(1, ENOMEM);
  const Raised memory = raised([&] { copying.device->allocate(64); });
  CHECK(memory.kind == ErrorKind::kUnavailable);
  CHECK(memory.says("errno 12"));
  xrt_double::refuse_buffers(1, ENOSPC);
  const Raised heap = raised([&] { copying.run(copying.prepare(64)); });
  CHECK(heap.kind == ErrorKind::kUnavailable);
  CHECK(heap.says("instruction heap"));
  CHECK_NOTHROW(copying.run(copying.prepare(64)));
  const std::pair<int, const char*> kCodes[] = {{ENOENT, "heap is missing"},
                                                {ENOMEM, "ulimit -l unlimited"},
                                                {EINVAL, "close other programs"},
                                                {ENODEV, "no columns"}};
  const auto other = machine.loopback("other");
  for (const auto& [code, advice] : kCodes) {
    xrt_double::refuse_contexts(2, code);
    const Raised context = raised([&] { copying.device->load(other); });
    CHECK(context.kind == ErrorKind::kUnavailable);
    CHECK(context.says(advice));
  }
  xrt_double::refuse_contexts(0, 0);
  copying.device->load(other);
  CHECK_NOTHROW(copying.run(copying.prepare(64)));
}

TEST_CASE("xrt: reports hold for any numbers and texts of XRT") {
  std::mt19937 random(11);
  const std::vector<uint32_t> words = copy_stream(arch::Generation::kNpu2, 64);
  const auto stream = stream::Stream::parse(std::as_bytes(std::span(words)));
  for (int i = 0; i < 2000; ++i) {
    npu_xrt_error error{};
    error.what = static_cast<int32_t>(random() % 14) - 2;
    error.code = static_cast<int32_t>(random() % 200) - 20;
    error.asked = random();
    const size_t length = random() % sizeof error.text;
    for (size_t c = 0; c < length; ++c) error.text[c] = "ab %s\n%n"[random() % 8];
    CHECK(std::string(xrt::call_error("f", "x", error).what()).rfind("[f] x", 0) == 0);
    xrt::FailedRun run;
    run.configuration = "c";
    run.stream = random() % 4 == 0 ? nullptr : &stream;
    run.outcome = {static_cast<int32_t>(random() % 12), static_cast<int32_t>(random() % 20) - 5,
                   static_cast<uint32_t>(random()), static_cast<uint32_t>(random() % 3)};
    run.own_limit = random() % 2 == 0;
    CHECK(std::string(xrt::run_error(run).what()).rfind("[wait] ", 0) == 0);
  }
}
