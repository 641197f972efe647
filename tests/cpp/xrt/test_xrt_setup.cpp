// What an xclbin does not hold, shim BDs and channels that the configuration writes, is written by
// every stream: on the stand-in, whose xclbins are without them, such streams run, their patches
// change the right words, and a time-out counts the operations that the stream really has.
#include "devices/xrt/identity.h"
#include "devices/xrt/setup.h"
#include "xrt_fixture.h"

namespace {

using namespace npu;
using namespace npu::test;

constexpr uint32_t kWords = 64;

uint32_t bd_address(uint32_t number) {
  return arch::tile_geometry(arch::TileKind::kShim).bd_base + 0x20 * number;
}

// A loopback whose static stream has the BDs that its streams use, between other writes.
std::string preset_file() {
  const std::string plain = loopback_file(arch::Generation::kNpu2, "preset");
  const size_t head = plain.find("txn ");
  stream::Builder builder(arch::Generation::kNpu2, 8);
  const std::string binary = plain.substr(plain.find('\n', head) + 1);
  const auto routes = stream::Stream::parse(std::as_bytes(std::span(binary.data(), binary.size())));
  arch::Bd bd;
  bd.length = kWords;
  const std::vector<uint32_t> encoded = arch::encode_bd(arch::TileKind::kShim, bd);
  for (const stream::Operation& route : routes.operations()) {
    builder.write(static_cast<uint32_t>(route.address), route.value);
    if (route.index < 2) builder.block_write(bd_address(route.index), encoded);
  }
  const std::vector<uint32_t> txn = builder.finish();
  std::string file = plain.substr(0, head) + strf("txn %zu\n", txn.size() * 4);
  return file.append(reinterpret_cast<const char*>(txn.data()), txn.size() * 4);
}

Configuration parsed(const std::string& file) {
  return Configuration::parse(std::as_bytes(std::span(file.data(), file.size())));
}

// Copies kWords words by those BDs: sets their addresses, pushes them, waits.
std::vector<uint32_t> short_stream() {
  stream::Builder builder(arch::Generation::kNpu2, 8);
  for (uint32_t i = 0; i < 2; ++i) builder.address_patch(bd_address(i) + 4, i, 0);
  for (const auto direction : {arch::Direction::kMM2S, arch::Direction::kS2MM}) {
    const bool last = direction == arch::Direction::kS2MM;
    builder.write(arch::channel_queue(arch::TileKind::kShim, direction, 0),
                  last ? 1 | 1u << 31 : 0);
  }
  builder.sync(0, 0, arch::Direction::kS2MM, 0);
  return builder.finish();
}

struct Preset {
  explicit Preset(const XrtMachine& machine) : copying(machine) {
    const std::string file = preset_file();
    machine.build(std::as_bytes(std::span(file.data(), file.size())));
    configuration = std::make_shared<const Configuration>(parsed(file));
    copying.device->load(configuration);
  }
  Copying copying;
  std::shared_ptr<const Configuration> configuration;
};

}  // namespace

TEST_CASE("xrt: the setup is the configuration's writes to shim BDs and channels") {
  const xrt::Setup setup = xrt::setup_of(parsed(preset_file()));
  CHECK(setup.operations == 2);
  CHECK(setup.words.size() == 2 * 12);  // a block write of 8 words each
  CHECK(setup.words[0] == static_cast<uint32_t>(stream::Opcode::kBlockWrite));
  const std::vector<uint32_t> words = short_stream();
  const xrt::HeaderWords header = xrt::header_after(setup, words);
  CHECK(header[2] == words[2] + 2);
  CHECK(header[3] == words[3] + 4 * setup.words.size());
  const xrt::Setup none = xrt::setup_of(*loopback(arch::Generation::kNpu2));
  CHECK(none.operations == 0);
  CHECK(std::equal(words.begin(), words.begin() + 4, xrt::header_after(none, words).begin()));
  std::vector<uint32_t> compact = words;
  compact[0] = (compact[0] & ~0xFFFFu) | 1;
  CHECK(raised([&] { xrt::header_after(setup, compact); }).kind == ErrorKind::kFormat);
}

TEST_CASE("xrt: streams rely on what the configuration wrote, after a reload too") {
  XrtMachine machine({.device = "emu:npu2+reload"});
  Preset preset(machine);
  Copying& copying = preset.copying;
  const auto stream = copying.device->prepare(short_stream());
  CHECK(stream->words().size() == short_stream().size());
  for (uint8_t i = 0; i < 3; ++i) {
    copying.fill(static_cast<uint8_t>(40 * i));
    CHECK(copying.run(stream).operations == 2 + 5);
    CHECK(copying.copied(256));
  }
  // One of another configuration in between has none of it.
  copying.device->load(copying.configuration);
  copying.fill(9);
  CHECK(copying.run(copying.prepare(64)).operations == 7);
  CHECK(copying.copied(256));
}

TEST_CASE("xrt: patches of a stream count from its own beginning") {
  XrtMachine machine;
  Preset preset(machine);
  Copying& copying = preset.copying;
  std::vector<uint32_t> words = short_stream();
  // The second address patch's offset: 128 bytes into argument 1.
  const auto parsed_words = stream::Stream::parse(std::as_bytes(std::span(words)));
  const size_t word = parsed_words.operations()[1].byte_offset / 4 + 10;
  REQUIRE(words[word] == 0);
  copying.out = copying.device->allocate(512);
  const BufferRef refs[] = {{copying.in.get(), 0, 256, Access::kRead},
                            {copying.out.get(), 0, 512, Access::kWrite}};
  for (const bool ran : {false, true}) {
    const auto stream = copying.device->prepare(words);
    if (ran) finish(*copying.device->submit(stream, refs));
    const StreamPatch patch[] = {{word, 128}};
    CHECK(copying.device->patch(stream, patch));
    CHECK(stream->words()[word] == 128);
    std::fill(copying.out->host(), copying.out->host() + 512, std::byte{0});
    copying.out->sync_to_device(0, 512);
    copying.fill(7);
    finish(*copying.device->submit(stream, refs));
    copying.out->sync_from_device(0, 512);
    CHECK(std::equal(copying.in->host(), copying.in->host() + 256, copying.out->host() + 128));
    CHECK(copying.out->host()[0] == std::byte{0});
    for (const size_t other : {size_t{0}, size_t{3}, word - 1, word + 2, words.size(), SIZE_MAX}) {
      const StreamPatch forbidden[] = {{word, 0}, {other, 1}};
      CHECK(raised([&] { copying.device->patch(stream, forbidden); }).kind ==
            ErrorKind::kForbidden);
    }
    CHECK(stream->words()[word] == 128);
  }
}

TEST_CASE("xrt: a time-out names operations of the setup, too") {
  XrtMachine machine;
  Preset preset(machine);
  Copying& copying = preset.copying;
  const std::pair<uint32_t, stream::Opcode> kReached[] = {{1, stream::Opcode::kBlockWrite},
                                                          {2, stream::Opcode::kAddressPatch},
                                                          {6, stream::Opcode::kSync}};
  for (const auto& [index, opcode] : kReached) {
    copying.device->load(preset.configuration);
    xrt_double::inject(xrt_double::Fault::kWatchdog, index);
    const Raised out = raised([&] { copying.run(copying.device->prepare(short_stream())); });
    CHECK(out.kind == ErrorKind::kTimeout);
    CHECK(out.says(strf("operation %u of 7: %u ", index, index)));
    CHECK(out.says(stream::opcode_name(opcode)));
  }
}

TEST_CASE("xrt: the PCI device says which NPU it is, else the name") {
  XrtMachine machine;
  const auto folder = machine.folder() / "bus/pci/devices/0000:66:00.1";
  std::filesystem::create_directories(folder);
  const auto identified = [&](const char* vendor, const char* device, const char* name,
                              const char* revision = "0x10\n") {
    write_file(folder / "vendor", vendor);
    write_file(folder / "device", device);
    write_file(folder / "revision", revision);
    return xrt::identify(name, "0000:66:00.1", machine.folder());
  };
  const xrt::Identity strix = identified("0x1022\n", "0x17f0\n", "whatever");
  CHECK(strix.generation == arch::Generation::kNpu2);
  CHECK(strix.pci_id == "1022:17f0 rev 10");
  CHECK(identified("0x1022", "0x1502", "NPU Strix", "0x00").generation == arch::Generation::kNpu1);
  for (const char* revision : {"0x11", "0x20"}) {
    CHECK(identified("0x1022", "0x17f0", "", revision).generation == arch::Generation::kNpu2);
  }
  CHECK(raised([&] { identified("0x1022", "0x17f0", "NPU Strix", "0x30"); }).says("rev 30"));
  CHECK(raised([&] { identified("0x1022", "0x1502", "NPU Phoenix"); }).says("rev 10"));
  CHECK(raised([&] { identified("0x1022", "0x17f1", "NPU Strix"); }).says("after npu2"));
  CHECK(raised([&] { identified("0x1022", "0x1234", "NPU Strix"); }).kind ==
        ErrorKind::kGeneration);
  CHECK(raised([&] { identified("0x10ee", "0x17f0", "NPU Strix"); }).says("(10ee:17f0)"));
  CHECK(identified("0x1022", "soon", "NPU Strix").pci_id.empty());  // by its name
  CHECK(raised([&] { identified("0x1022", "soon", "card"); }).says("PCI id not readable"));
  // So is one whose revision cannot be read.
  const auto no_revision = identified("0x1022", "0x17f0", "NPU Strix Halo", "");
  CHECK(no_revision.generation == arch::Generation::kNpu2);
  CHECK(no_revision.pci_id == "1022:17f0 rev 00");
  CHECK(raised([&] { identified("0x1022", "0x17f0", "NPU of tomorrow", ""); }).says("rev 00"));
  CHECK(raised([&] { identified("0x1022", "0x1234", "NPU Strix", ""); }).kind ==
        ErrorKind::kGeneration);
}
