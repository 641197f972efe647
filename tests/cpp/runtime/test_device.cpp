// The device contract (runtime/device.h), run against the devices of NPU_TEST_DEVICES: loads are
// counted and repeated loads are free, streams outside their permissions are refused before
// anything runs, arguments outside their buffers are refused, a run can be waited for with a
// timeout and cancelled, runs beside each other end together, those of a series are right, a failed
// run does not poison the next one, unknown names are typed errors.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <string>

#include "error.h"
#include "loopback.h"
#include "runtime/device.h"
#include "runtime/interrupt.h"
#include "stream/txn.h"
#include "streams.h"

namespace {

using namespace npu;

using test::copy_stream;
using test::loopback;
using test::test_devices;

RunReport run(Device& device, std::vector<uint32_t> words, std::span<const BufferRef> refs = {}) {
  return finish(*device.submit(device.prepare(std::move(words)), refs));
}

ErrorKind kind_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    CHECK(std::string(error.what()).substr(0, 1) == "[");
    return error.kind();
  }
  FAIL("no error was raised");
  return ErrorKind::kArgument;
}

}  // namespace

TEST_CASE("device: load is counted once per configuration, submit runs streams") {
  for (const std::string& name : test_devices()) {
    CAPTURE(name);
    const auto device = open_device(name, "fast");
    const arch::Generation generation = device->info().generation;
    CHECK(device->info().name == name);
    CHECK(device->info().columns == arch::device_geometry(generation).columns);
    const auto first = loopback(generation), second = loopback(generation);
    device->load(first);
    device->load(first);
    CHECK(device->counters().configuration_loads == 1);
    device->load(second);
    CHECK(device->counters().configuration_loads == 2);

    const auto in = device->allocate(256), out = device->allocate(256);
    for (size_t i = 0; i < 256; ++i) in->host()[i] = static_cast<std::byte>(i);
    in->sync_to_device(0, 256);
    const BufferRef refs[] = {{in.get(), 0, 256, Access::kRead},
                              {out.get(), 0, 256, Access::kWrite}};
    const RunReport report = run(*device, copy_stream(generation, 64), refs);
    out->sync_from_device(0, 256);
    CHECK(std::equal(in->host(), in->host() + 256, out->host()));
    CHECK(report.shim_read_bytes == 256);
    CHECK(report.shim_write_bytes == 256);
    CHECK(device->counters().submissions == 1);
  }
}

TEST_CASE("device: runs of a series, also of two configurations in turn, have their results") {
  for (const std::string& name : test_devices()) {
    CAPTURE(name);
    const auto device = open_device(name, "fast");
    const arch::Generation generation = device->info().generation;
    const auto configurations = {loopback(generation), loopback(generation)};
    std::vector<std::shared_ptr<const PreparedStream>> streams;
    const auto in = device->allocate(256), out = device->allocate(256);
    const BufferRef refs[] = {{in.get(), 0, 256, Access::kRead},
                              {out.get(), 0, 256, Access::kWrite}};
    for (const auto& configuration : configurations) {
      device->load(configuration);
      streams.push_back(device->prepare(copy_stream(generation, 64)));
      streams.back()->expect_repeats({});
      for (int i = 0; i < 3; ++i) finish(*device->submit(streams.back(), refs));
    }
    for (int round = 0; round < 3; ++round) {
      std::memset(in->host(), round + 1, 256);
      in->sync_to_device(0, 256);
      const Series series(*device);
      for (const size_t of : {0, 0, 1, 0, 1, 1}) {
        device->load(configurations.begin()[of]);
        std::memset(out->host(), 0, 256);
        out->sync_to_device(0, 256);
        finish(*device->submit(streams[of], refs));
        out->sync_from_device(0, 256);
        CHECK(std::equal(in->host(), in->host() + 256, out->host()));
      }
    }
  }
}

TEST_CASE("device: runs beside each other end together, where a device takes them") {
  for (const std::string& name : test_devices()) {
    CAPTURE(name);
    const auto device = open_device(name, "fast");
    const arch::Generation generation = device->info().generation;
    const auto configuration = loopback(generation);
    device->load(configuration);
    const auto stream = device->prepare(copy_stream(generation, 64));
    stream->expect_repeats({});
    std::vector<std::unique_ptr<Buffer>> buffers;
    std::vector<std::array<BufferRef, 2>> refs;
    for (size_t i = 0; i < 3; ++i) {
      for (const Access access : {Access::kRead, Access::kWrite}) {
        buffers.push_back(device->allocate(256));
        std::memset(buffers.back()->host(), static_cast<int>(i + 1), 256);
        if (access == Access::kWrite) std::memset(buffers.back()->host(), 0, 256);
        buffers.back()->sync_to_device(0, 256);
        if (access == Access::kRead) refs.emplace_back();
        refs.back()[access == Access::kWrite] = {buffers.back().get(), 0, 256, access};
      }
    }
    CHECK(!device->takes_more());
    for (int i = 0; i < 3; ++i) finish(*device->submit(stream, refs[0]));
    const auto has = [&](size_t i) {
      refs[i][1].sync_from_device();
      return std::all_of(refs[i][1].host(), refs[i][1].host() + 256,
                         [&](std::byte byte) { return byte == std::byte(i + 1); });
    };
    const uint64_t submitted = device->counters().submissions;
    const auto first = device->submit(stream, refs[0]);
    if (!device->takes_more()) {
      CHECK(device->submit_beside(stream, refs[1]) == nullptr);
      finish(*first);
      CHECK(device->counters().submissions == submitted + 1);
      CHECK(!has(1));
      continue;
    }
    const uint64_t replays = device->counters().replays;
    const auto second = device->submit_beside(stream, refs[1]);
    REQUIRE(second != nullptr);
    const auto fresh = device->prepare(copy_stream(generation, 64));
    CHECK(device->submit_beside(fresh, refs[2]) == nullptr);  // would have to execute
    CHECK(kind_of([&] { device->submit(stream, refs[2]); }) == ErrorKind::kArgument);
    CHECK(device->takes_more());
    CHECK(!second->wait(std::chrono::nanoseconds(0)));
    CHECK(first->state() == Run::State::kRunning);
    CHECK(finish(*second).shim_write_bytes == 256);
    CHECK(first->state() == Run::State::kDone);
    CHECK(finish(*first).shim_write_bytes == 256);
    CHECK(has(0));
    CHECK(has(1));
    CHECK(!has(2));
    CHECK(device->counters().submissions == submitted + 2);
    CHECK(device->counters().replays == replays + 2);

    const auto third = device->submit(stream, refs[0]);
    auto fourth = device->submit_beside(stream, refs[2]);
    fourth = nullptr;  // cancels it
    CHECK(third->state() == Run::State::kCancelled);
    CHECK(!device->takes_more());
    CHECK(!has(2));
    device->load(configuration);
    for (int i = 0; i < 3; ++i) finish(*device->submit(stream, refs[2]));
    CHECK(has(2));
  }
}

TEST_CASE("device: a stream may write RTP words but nothing else of a core") {
  for (const std::string& name : test_devices()) {
    const auto device = open_device(name, "fast");
    const arch::Generation generation = device->info().generation;
    device->load(loopback(generation));
    const auto in = device->allocate(4), out = device->allocate(4);
    const BufferRef refs[] = {{in.get(), 0, 4, Access::kRead}, {out.get(), 0, 4, Access::kWrite}};
    CHECK_NOTHROW(run(*device, copy_stream(generation, 1, arch::tile_address(0, 2, 1024)), refs));
    for (const uint32_t address :
         {arch::tile_address(0, 2, 1028), arch::tile_address(0, 1, 0xC0000),
          arch::tile_address(0, 2, 0x1F010), arch::tile_address(0, 0, 0x3F010)}) {
      CHECK(kind_of([&] { run(*device, copy_stream(generation, 1, address), refs); }) ==
            ErrorKind::kForbidden);
    }
    // Refused streams ran nothing: the configuration is still loaded.
    CHECK_NOTHROW(run(*device, copy_stream(generation, 1), refs));
    CHECK(device->counters().configuration_loads == 1);
  }
}

TEST_CASE("device: a failed run is followed by a working one after the next load") {
  for (const std::string& name : test_devices()) {
    const auto device = open_device(name, "fast");
    const arch::Generation generation = device->info().generation;
    const auto configuration = loopback(generation);
    device->load(configuration);
    const auto in = device->allocate(64), out = device->allocate(64);
    const BufferRef refs[] = {{in.get(), 0, 64, Access::kRead}, {out.get(), 0, 64, Access::kWrite}};
    CHECK(kind_of([&] { run(*device, copy_stream(generation, 17), refs); }) ==
          ErrorKind::kOutOfRange);
    CHECK(kind_of([&] { run(*device, copy_stream(generation, 16), refs); }) ==
          ErrorKind::kArgument);
    device->load(configuration);
    CHECK(device->counters().configuration_loads == 2);
    CHECK_NOTHROW(run(*device, copy_stream(generation, 16), refs));
  }
}

TEST_CASE("device: a stream of the other generation is refused before it is submitted") {
  for (const std::string& name : test_devices()) {
    const auto device = open_device(name, "fast");
    const arch::Generation generation = device->info().generation;
    const auto other =
        generation == arch::Generation::kNpu1 ? arch::Generation::kNpu2 : arch::Generation::kNpu1;
    device->load(loopback(generation));
    CHECK(kind_of([&] { device->prepare(copy_stream(other, 1)); }) == ErrorKind::kFormat);
    const auto in = device->allocate(64), out = device->allocate(64);
    const BufferRef refs[] = {{in.get(), 0, 64, Access::kRead}, {out.get(), 0, 64, Access::kWrite}};
    CHECK_NOTHROW(run(*device, copy_stream(generation, 16), refs));
  }
}

TEST_CASE("device: a failed run is no intruder of later ones") {
  const auto device = open_device("emu:npu2+intruder", "fast");
  const auto configuration = loopback(arch::Generation::kNpu2);
  device->load(configuration);
  const auto in = device->allocate(64), out = device->allocate(64);
  const BufferRef refs[] = {{in.get(), 0, 64, Access::kRead}, {out.get(), 0, 64, Access::kWrite}};
  CHECK_THROWS_AS(run(*device, copy_stream(arch::Generation::kNpu2, 17), refs), Error);
  for (uint32_t words = 8; words <= 16; ++words) {
    device->load(configuration);
    CHECK_NOTHROW(run(*device, copy_stream(arch::Generation::kNpu2, words), refs));
  }
  CHECK(device->counters().configuration_loads == 2);
}

TEST_CASE("device: what is asked for must exist and fit") {
  CHECK(kind_of([] { open_device("emu:npu3", "fast"); }) == ErrorKind::kDevice);
  CHECK(kind_of([] { open_device("emu:npu2", "exact"); }) == ErrorKind::kDevice);
  CHECK(kind_of([] { open_device("xrt", "fast"); }) == ErrorKind::kMissingXrt);
  const auto device = open_device("emu:npu2", "fast");
  CHECK(kind_of([&] { device->load(loopback(arch::Generation::kNpu1)); }) == ErrorKind::kDevice);
  CHECK(kind_of([&] { run(*device, copy_stream(arch::Generation::kNpu2, 1)); }) ==
        ErrorKind::kArgument);
  device->load(loopback(arch::Generation::kNpu2));
  const std::vector<uint32_t> garbage(7, 0xFFFFFFFF);
  CHECK(kind_of([&] { run(*device, garbage); }) == ErrorKind::kFormat);
}

TEST_CASE("device: arguments must lie inside their buffers and may not write read-only memory") {
  for (const std::string& name : test_devices()) {
    const auto device = open_device(name, "fast");
    const arch::Generation generation = device->info().generation;
    device->load(loopback(generation));
    const auto stream = device->prepare(copy_stream(generation, 1));
    const auto in = device->allocate(8), out = device->allocate(8);
    const BufferRef good{in.get(), 0, 4, Access::kRead}, sink{out.get(), 0, 4, Access::kWrite};
    for (const auto& [offset, bytes] : {std::pair<size_t, size_t>{4, 8}, {9, 0}, {SIZE_MAX, 2}}) {
      const BufferRef refs[] = {{in.get(), offset, bytes, Access::kRead}, sink};
      CHECK(kind_of([&] { device->submit(stream, refs); }) == ErrorKind::kOutOfRange);
    }
    alignas(64) std::byte memory[64] = {};
    const auto wrapped = device->wrap(memory, sizeof memory, Access::kRead);
    if (wrapped != nullptr) {
      const BufferRef refs[] = {good, {wrapped.get(), 0, 4, Access::kWrite}};
      CHECK(kind_of([&] { device->submit(stream, refs); }) == ErrorKind::kArgument);
    }
    const BufferRef refs[] = {good, sink};
    CHECK_NOTHROW(finish(*device->submit(stream, refs)));
    CHECK(device->counters().submissions == 1);
  }
}

TEST_CASE("device: a stream runs over the configuration that it was prepared for") {
  for (const std::string& name : test_devices()) {
    const auto device = open_device(name, "fast");
    const arch::Generation generation = device->info().generation;
    device->load(loopback(generation));
    const auto stream = device->prepare(copy_stream(generation, 1));
    device->load(loopback(generation));
    CHECK(kind_of([&] { device->submit(stream, {}); }) == ErrorKind::kArgument);
  }
}

TEST_CASE("device: a run is waited for with a timeout, and cancelled when it is dropped") {
  for (const std::string& name : test_devices()) {
    const auto device = open_device(name, "fast");
    if (!device->info().emulated) continue;  // how far a run is after 0 ns
    const arch::Generation generation = device->info().generation;
    const auto configuration = loopback(generation);
    device->load(configuration);
    constexpr uint32_t kWords = 1 << 20;
    const auto in = device->allocate(4 * kWords), out = device->allocate(4 * kWords);
    const BufferRef refs[] = {{in.get(), 0, 4 * kWords, Access::kRead},
                              {out.get(), 0, 4 * kWords, Access::kWrite}};
    for (uint32_t i = 0; i < kWords; ++i) std::memcpy(in->host() + 4 * i, &i, 4);
    const auto stream = device->prepare(copy_stream(generation, kWords));
    const auto run = device->submit(stream, refs);
    CHECK(run->state() == Run::State::kRunning);
    int waits = 0;
    while (!run->wait(std::chrono::nanoseconds(0))) {
      CHECK(run->state() == Run::State::kRunning);
      ++waits;
    }
    CHECK(waits > 0);
    CHECK(run->state() == Run::State::kDone);
    CHECK(run->report().shim_write_bytes == 4 * kWords);
    CHECK(std::equal(in->host(), in->host() + 4 * kWords, out->host()));
    CHECK(run->wait(std::chrono::nanoseconds(0)));

    device->submit(stream, refs);  // dropped at once
    CHECK(kind_of([&] { device->submit(stream, refs); }) == ErrorKind::kArgument);
    device->load(configuration);
    CHECK_NOTHROW(finish(*device->submit(stream, refs)));
  }
}

TEST_CASE("device: a check while waiting can end the run") {
  for (const std::string& name : test_devices()) {
    const auto device = open_device(name, "fast");
    if (!device->info().emulated) continue;
    const arch::Generation generation = device->info().generation;
    const auto configuration = loopback(generation);
    device->load(configuration);
    const auto in = device->allocate(4), out = device->allocate(4);
    const BufferRef refs[] = {{in.get(), 0, 4, Access::kRead}, {out.get(), 0, 4, Access::kWrite}};
    struct Interrupted {};
    struct Restore {
      ~Restore() { set_interrupt_check({}); }
    } restore;
    // Hundreds of milliseconds of copies, of which the first check ends the rest.
    constexpr uint32_t kWords = 1 << 20, kCopies = 1000;
    const auto from = device->allocate(4 * kWords), to = device->allocate(4 * kWords);
    const BufferRef large[] = {{from.get(), 0, 4 * kWords, Access::kRead},
                               {to.get(), 0, 4 * kWords, Access::kWrite}};
    int checks = 0;
    set_interrupt_check([&] {
      ++checks;
      throw Interrupted{};
    });
    CHECK_THROWS_AS(run(*device, copy_stream(generation, kWords, 0, kCopies), large), Interrupted);
    CHECK(checks == 1);
    set_interrupt_check({});
    device->load(configuration);
    CHECK_NOTHROW(run(*device, copy_stream(generation, 1), refs));
  }
}

TEST_CASE("device: residency modes reload, and refuse streams that leave locks changed") {
  for (const char* mode : {"reload", "reload-second", "reload-random-7", "intruder"}) {
    CAPTURE(mode);
    const auto device = open_device(std::string("emu:npu1+") + mode, "fast");
    const auto configuration = loopback(arch::Generation::kNpu1);
    device->load(configuration);
    const auto in = device->allocate(64), out = device->allocate(64);
    const BufferRef refs[] = {{in.get(), 0, 64, Access::kRead}, {out.get(), 0, 64, Access::kWrite}};
    for (uint32_t words = 1; words <= 16; ++words) {
      std::fill_n(in->host(), 64, static_cast<std::byte>(words));
      CHECK_NOTHROW(run(*device, copy_stream(arch::Generation::kNpu1, words), refs));
      CHECK(std::equal(in->host(), in->host() + 4 * words, out->host()));
    }
    CHECK(device->counters().configuration_loads == 1);
    // Of a core's locks a stream may write the RTP lock only.
    const uint32_t lock = arch::tile_address(0, 2, 0x1F000);
    CHECK(kind_of([&] { run(*device, copy_stream(arch::Generation::kNpu1, 1, lock), refs); }) ==
          ErrorKind::kLock);
  }
  for (const char* name : {"emu:npu1+", "emu:npu1+sometimes", "emu:npu1+reload-random-x"}) {
    CHECK(kind_of([&] { open_device(name, "fast"); }) == ErrorKind::kDevice);
  }
}

TEST_CASE("device: the null device takes everything and computes nothing") {
  const auto device = open_device("null:npu2", "fast");
  CHECK_FALSE(device->info().computes);
  device->load(loopback(arch::Generation::kNpu2));
  const auto in = device->allocate(4), out = device->allocate(4);
  in->host()[0] = std::byte{1};
  const BufferRef refs[] = {{in.get(), 0, 4, Access::kRead}, {out.get(), 0, 4, Access::kWrite}};
  CHECK(run(*device, copy_stream(arch::Generation::kNpu2, 1), refs).operations > 0);
  CHECK(out->host()[0] == std::byte{0});
}
