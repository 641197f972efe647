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
    CHECK(sync.kind == ErrorKind::kTimeout);
    CHECK(sync.message.rfind("[wait] a run of \"loopback\"", 0) == 0);
    CHECK(sync.says("the driver's watchdog"));
    CHECK(sync.says(strf("operation %zu of %zu: ", last, last + 1)));
    CHECK(sync.says("SYNC"));
    CHECK(sync.says("npu build --device npu2 loopback --force"));
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
  const Raised first = meets(copying, Fault::kAbort);
  CHECK(first.kind == ErrorKind::kVersions);
  CHECK(first.says("linux-firmware"));
  const Raised aborted = meets(copying, Fault::kAbort);
  CHECK(aborted.kind == ErrorKind::kAborted);
  CHECK(aborted.says("was aborted"));
  CHECK(aborted.says("npu doctor"));
  const Raised refused = meets(copying, Fault::kFirmware);
  CHECK(refused.kind == ErrorKind::kFirmware);
  CHECK(refused.says("the firmware refused"));
  CHECK(refused.says("npu build --device npu2 loopback --force"));
  CHECK(refused.says("dmesg"));
  for (const uint32_t state : {9u, 10u, 11u}) {  // NORESPONSE, SKERROR, SKCRASHED
    CHECK(meets(copying, Fault::kState, state).kind == ErrorKind::kFirmware);
  }
  const Raised start = meets(copying, Fault::kRefusedStart, EIO);
  CHECK(start.kind == ErrorKind::kDevice);
  CHECK(start.says("[submit]"));
  CHECK(start.says("does not take the command"));
  const Raised locked = meets(copying, Fault::kRefusedStart, EAGAIN);
  CHECK(locked.kind == ErrorKind::kMemoryLock);
  CHECK(locked.says("ulimit -l unlimited"));
  const Raised older = meets(copying, Fault::kRefusedStart, EOPNOTSUPP);
  CHECK(older.kind == ErrorKind::kVersions);
  CHECK(older.says("the driver is older than XRT"));
}

TEST_CASE("xrt: a signal during a wait ends neither run nor context") {
  XrtMachine machine;
  Copying copying(machine);
  const auto stream = copying.prepare(64);
  copying.run(stream);
  const uint64_t contexts = xrt_double::counters().contexts_made;
  xrt_double::interrupt_waits(3);
  copying.fill(9);
  CHECK_NOTHROW(copying.run(stream));
  CHECK(copying.copied(256));
  CHECK(xrt_double::counters().contexts_made == contexts);
}

TEST_CASE("xrt: what a signal interrupts is called again") {
  XrtMachine machine;
  xrt_double::refuse_devices(2, EINTR);
  Copying copying(machine);
  xrt_double::refuse_contexts(2, EINTR);
  copying.device->load(machine.loopback("other"));
  copying.device->load(copying.configuration);
  CHECK(xrt_double::counters().contexts_made == 2);
  xrt_double::refuse_buffers(2, EINTR);
  CHECK_NOTHROW(copying.device->allocate(64));
  alignas(4096) static std::byte pages[8192];
  xrt_double::refuse_buffers(2, EINTR);
  CHECK(copying.device->wrap(pages, sizeof pages, Access::kRead) != nullptr);
  xrt_double::refuse_syncs(2, EINTR);
  copying.fill(5);
  // The stream's BO, its synchronisation, the start; then the synchronisation of a patch.
  const std::vector<uint32_t> words = copy_stream(arch::Generation::kNpu2, 64);
  const auto length = std::find(words.begin(), words.end(), 64u) - words.begin();
  const auto stream = copying.device->prepare(words);
  xrt_double::refuse_instructions(2, EINTR);
  xrt_double::refuse_syncs(2, EINTR);
  for (int i = 0; i < 2; ++i) xrt_double::inject(Fault::kRefusedStart, EINTR);
  CHECK_NOTHROW(copying.run(stream));
  CHECK(copying.copied(256));
  const StreamPatch patch[] = {{static_cast<size_t>(length), 64}};
  xrt_double::refuse_syncs(2, EINTR);
  CHECK(copying.device->patch(stream, patch));
  CHECK(xrt_double::counters().contexts_made == 2);
}

TEST_CASE("xrt: contexts are closed for a new one only where that can help") {
  struct Refusal {
    int code;
    ErrorKind kind;
    size_t left;  // of three
    const char* advice;
    const char* call = "DRM_IOCTL_AMDXDNA_CREATE_HWCTX IOCTL";
  };
  const Refusal refusals[] = {
      {EINVAL, ErrorKind::kContext, 2, "6 contexts on npu1 and 16 on npu2"},
      {EIO, ErrorKind::kContext, 2, "no hardware context is left", "status 0x2000003"},
      {ENOMEM, ErrorKind::kContext, 0, "ulimit -l unlimited"},
      {EAGAIN, ErrorKind::kContext, 0, "ulimit -l unlimited"},
      {ENODEV, ErrorKind::kContext, 0, "no columns of the array are free"},
      {ENOSPC, ErrorKind::kContext, 0, "end other users of it in this process"},
      {EIO, ErrorKind::kContext, 0, "end other users of it in this process",
       "heap can't expand further:"},
      {EPERM, ErrorKind::kContext, 3, "ulimit -l unlimited"},
      {ENOENT, ErrorKind::kContext, 3, "open the device again"},
      {EOPNOTSUPP, ErrorKind::kDevice, 3, "npu doctor"},
      {ETIMEDOUT, ErrorKind::kDevice, 3, "npu doctor"},
      {EINVAL, ErrorKind::kVersions, 3, "or could not wake the NPU", "DRM_IOCTL_AMDXDNA_GET_INFO"},
      {ENODEV, ErrorKind::kDevice, 3, "npu doctor", "DRM_IOCTL_AMDXDNA_GET_INFO"},
  };
  for (const Refusal& refusal : refusals) {
    CAPTURE(refusal.code);
    CAPTURE(refusal.call);
    XrtMachine machine;
    Copying copying(machine);
    for (const char* name : {"b", "c"}) copying.device->load(machine.loopback(name));
    const auto other = machine.loopback("other");
    xrt_double::refuse_contexts(9, refusal.code, refusal.call);
    const Raised out = raised([&] { copying.device->load(other); });
    CHECK(out.kind == refusal.kind);
    CHECK_MESSAGE(out.says(refusal.advice), out.message);
    CHECK(xrt_double::counters().contexts == refusal.left);
    xrt_double::refuse_contexts(0, 0);
    copying.device->load(other);
    copying.fill(7);
    copying.run(copying.prepare(64));
    CHECK(copying.copied(256));
  }
}

TEST_CASE("xrt: a run without a watchdog is ended by the library") {
  const Environment limit("NPU_XRT_TIMEOUT", "1");
  XrtMachine machine;
  Copying copying(machine);
  const Raised hung = meets(copying, Fault::kHang);
  CHECK(hung.kind == ErrorKind::kTimeout);
  CHECK(hung.says("NPU_XRT_TIMEOUT"));
  // The same for somebody who waits in small steps.
  xrt_double::inject(Fault::kHang);
  const auto run = copying.device->submit(copying.prepare(64), copying.refs());
  CHECK_FALSE(run->wait(std::chrono::milliseconds(10)));
  CHECK(raised([&] {
          while (!run->wait(std::chrono::milliseconds(50))) {
          }
        }).kind == ErrorKind::kTimeout);
  CHECK(run->state() == Run::State::kFailed);
}

TEST_CASE("xrt: the limit of a run is checked") {
  XrtMachine machine;
  for (const char* text : {"0", "-1", "86401", "1.5", " 3", "3 ", "+3", "1e3", "1_0", "x",
                           "999999999999999999999999999999", "\u0663"}) {
    CAPTURE(text);
    const Environment limit("NPU_XRT_TIMEOUT", text);
    const Raised out = raised([] { open_device("xrt", "fast"); });
    CHECK(out.kind == ErrorKind::kArgument);
    CHECK(out.says("use seconds from 1 to 86400"));
  }
  for (const char* text : {"", "1", "86400"}) {
    const Environment limit("NPU_XRT_TIMEOUT", text);
    CHECK_NOTHROW(open_device("xrt", "fast"));
  }
}

TEST_CASE("xrt: what the emulator finds wrong in a stream ends as the NPU would end it") {
  XrtMachine machine;
  Copying copying(machine, 64);
  copying.device->load(copying.configuration);
  // 4097 words are beyond the 4096 bytes of the BO.
  const Raised outside = raised([&] { copying.run(copying.prepare(4097)); });
  CHECK(outside.kind == ErrorKind::kFirmware);
  CHECK(xrt_double::last_failure().find("argument") != std::string::npos);
  copying.device->load(copying.configuration);
  CHECK_NOTHROW(copying.run(copying.prepare(16)));
}

TEST_CASE("xrt: heap, buffers and contexts that are refused are typed errors") {
  XrtMachine machine;
  Copying copying(machine);
  xrt_double::refuse_buffers(1, ENOMEM);
  const Raised memory = raised([&] { copying.device->allocate(64); });
  CHECK(memory.kind == ErrorKind::kMemoryLock);
  CHECK(memory.says("errno 12"));
  xrt_double::refuse_buffers(1, ENOSPC);
  const Raised heap = raised([&] { copying.run(copying.prepare(64)); });
  CHECK(heap.kind == ErrorKind::kHeap);
  CHECK(heap.says("instruction heap"));
  xrt_double::refuse_buffers(1, EAGAIN);
  const Raised locked = raised([&] { copying.run(copying.prepare(64)); });
  CHECK(locked.kind == ErrorKind::kMemoryLock);
  CHECK(locked.says("ulimit -l unlimited"));
  CHECK_NOTHROW(copying.run(copying.prepare(64)));
}

TEST_CASE("xrt: XRT's own errors of buffers have no number") {
  const auto of = [](const char* text) {
    npu_xrt_error error{NPU_XRT_MEMORY, 0, 64, 0, {}};
    std::snprintf(error.text, sizeof error.text, "%s", text);
    return xrt::call_error("allocate", "64 bytes", error);
  };
  CHECK(of("failed to allocate BO").kind() == ErrorKind::kMemoryLock);
  CHECK(std::string(of("failed to allocate BO").what()).find("ulimit -l") != std::string::npos);
  CHECK(of("something else").kind() == ErrorKind::kDevice);
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
                   static_cast<uint32_t>(random()), static_cast<uint32_t>(random() % 3),
                   random() % 2};
    run.own_limit = random() % 2 == 0;
    CHECK(std::string(xrt::run_error(run).what()).rfind("[wait] ", 0) == 0);
  }
}
