// The device contract (backend/device.h), run against every device this build has: loads are
// counted and repeated loads are free, streams outside their permissions are refused before
// anything runs, a failed run does not poison the next one, unknown names are typed errors. A new
// device joins kNames.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>

#include "arch/bd.h"
#include "device.h"
#include "error.h"
#include "stream/txn.h"

namespace {

using namespace npu;

const char* const kNames[] = {"emu:npu1", "emu:npu2"};

// Shim (0,0): MM2S 0 looped straight back to S2MM 0 through its own switch.
Configuration loopback(arch::Generation generation) {
  stream::Builder builder(generation, arch::device_model(generation).columns);
  const uint32_t switch_base = arch::tile_model(arch::TileKind::kShim).switch_base;
  builder.write(switch_base + 4 * 4, 1u << 31 | 5);      // master South 2 <- slave South 3
  builder.write(switch_base + 0x100 + 4 * 5, 1u << 31);  // slave South 3
  builder.write(0x1F000, 1u << 10);
  builder.write(0x1F004, 1u << 4);
  const std::vector<uint32_t> txn = builder.finish();
  std::string text = strf(
      "npu-config 1\nname loopback\ngeneration %s\n"
      "source 0000000000000000000000000000000000000000000000000000000000000000\n"
      "port in 0 mm2s 0\nport out 0 s2mm 0\nrtp word 0 2 1024\ntxn %zu\n",
      arch::device_model(generation).name, txn.size() * 4);
  std::vector<std::byte> bytes(text.size() + txn.size() * 4);
  std::memcpy(bytes.data(), text.data(), text.size());
  std::memcpy(bytes.data() + text.size(), txn.data(), txn.size() * 4);
  return Configuration::parse(bytes);
}

// Copies `words` words from argument 0 to argument 1; `poke` adds a write the device must judge.
std::vector<uint32_t> copy_stream(arch::Generation generation, uint32_t words, uint32_t poke = 0) {
  stream::Builder builder(generation, arch::device_model(generation).columns);
  if (poke) builder.write(poke, 7);
  arch::Bd bd;
  bd.length = words;
  const std::vector<uint32_t> encoded = arch::encode_bd(arch::TileKind::kShim, bd);
  for (uint32_t i = 0; i < 2; ++i) {
    const uint32_t address = arch::tile_model(arch::TileKind::kShim).bd_base + 0x20 * i;
    builder.block_write(address, encoded);
    builder.address_patch(address + 4, i, 0);
  }
  const auto queue = [](arch::Direction direction) {
    return arch::channel_queue(arch::TileKind::kShim, direction, 0);
  };
  builder.write(queue(arch::Direction::kMM2S), 0);
  builder.write(queue(arch::Direction::kS2MM), 1 | 1u << 31);
  builder.sync(0, 0, arch::Direction::kS2MM, 0);
  return builder.finish();
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
  for (const char* name : kNames) {
    CAPTURE(name);
    const auto device = open_device(name, "fast");
    const arch::Generation generation = device->info().generation;
    CHECK(device->info().name == name);
    CHECK(device->info().columns == arch::device_model(generation).columns);
    const Configuration first = loopback(generation), second = loopback(generation);
    device->load(first);
    device->load(first);
    CHECK(device->counters().configuration_loads == 1);
    device->load(second);
    CHECK(device->counters().configuration_loads == 2);

    const auto in = device->allocate(256), out = device->allocate(256);
    for (size_t i = 0; i < 256; ++i) in->data()[i] = static_cast<std::byte>(i);
    in->sync_to_device();
    const BufferView views[] = {{in->data(), 256, false}, {out->data(), 256, true}};
    const RunReport report = device->submit(copy_stream(generation, 64), views);
    out->sync_from_device();
    CHECK(std::equal(in->data(), in->data() + 256, out->data()));
    CHECK(report.shim_read_bytes == 256);
    CHECK(report.shim_write_bytes == 256);
    CHECK(device->counters().submissions == 1);
  }
}

TEST_CASE("device: a stream may write RTP words but nothing else of a core") {
  for (const char* name : kNames) {
    const auto device = open_device(name, "fast");
    const arch::Generation generation = device->info().generation;
    device->load(loopback(generation));
    const auto in = device->allocate(4), out = device->allocate(4);
    const BufferView views[] = {{in->data(), 4, false}, {out->data(), 4, true}};
    CHECK_NOTHROW(
        device->submit(copy_stream(generation, 1, arch::tile_address(0, 2, 1024)), views));
    for (const uint32_t address :
         {arch::tile_address(0, 2, 1028), arch::tile_address(0, 1, 0xC0000),
          arch::tile_address(0, 2, 0x1F000), arch::tile_address(0, 0, 0x3F010)}) {
      CHECK(kind_of([&] { device->submit(copy_stream(generation, 1, address), views); }) ==
            ErrorKind::kForbidden);
    }
    // Refused streams ran nothing: the configuration is still loaded.
    CHECK_NOTHROW(device->submit(copy_stream(generation, 1), views));
    CHECK(device->counters().configuration_loads == 1);
  }
}

TEST_CASE("device: a failed run is followed by a working one after the next load") {
  for (const char* name : kNames) {
    const auto device = open_device(name, "fast");
    const arch::Generation generation = device->info().generation;
    const Configuration configuration = loopback(generation);
    device->load(configuration);
    const auto in = device->allocate(64), out = device->allocate(64);
    const BufferView views[] = {{in->data(), 64, false}, {out->data(), 64, true}};
    CHECK(kind_of([&] { device->submit(copy_stream(generation, 17), views); }) ==
          ErrorKind::kOutOfRange);
    CHECK(kind_of([&] { device->submit(copy_stream(generation, 16), views); }) ==
          ErrorKind::kArgument);
    device->load(configuration);
    CHECK(device->counters().configuration_loads == 2);
    CHECK_NOTHROW(device->submit(copy_stream(generation, 16), views));
  }
}

TEST_CASE("device: what is asked for must exist and fit") {
  CHECK(kind_of([] { open_device("emu:npu3", "fast"); }) == ErrorKind::kDevice);
  CHECK(kind_of([] { open_device("emu:npu2", "exact"); }) == ErrorKind::kDevice);
  CHECK(kind_of([] { open_device("xrt", "fast"); }) == ErrorKind::kUnavailable);
  const auto device = open_device("emu:npu2", "fast");
  CHECK(kind_of([&] { device->load(loopback(arch::Generation::kNpu1)); }) == ErrorKind::kDevice);
  CHECK(kind_of([&] { device->submit(copy_stream(arch::Generation::kNpu2, 1), {}); }) ==
        ErrorKind::kArgument);
  device->load(loopback(arch::Generation::kNpu2));
  const std::vector<uint32_t> garbage(7, 0xFFFFFFFF);
  CHECK(kind_of([&] { device->submit(garbage, {}); }) == ErrorKind::kFormat);
}
