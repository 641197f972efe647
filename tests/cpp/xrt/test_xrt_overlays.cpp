// Programs that streams load come from the artefact's folder: the bytes that the builder put there,
// which the stand-in's cores demand; without them, or with others of another size, one sentence
// says which file is wrong and how it is made again.
#include <fstream>
#include <iterator>

#include "devices/xrt/files.h"
#include "runtime/overlay.h"
#include "xrt_fixture.h"

namespace {

using namespace npu;
using namespace npu::test;

// A loopback with two overlays, which no core runs.
std::string overlay_file() {
  std::string file = loopback_file(arch::Generation::kNpu2, "two");
  const std::string overlays =
      "overlay first 64 2048\nendoverlay\noverlay second 4096 2048\nendoverlay\n";
  return file.insert(file.find("txn "), overlays);
}

struct Built {
  Built() : file(overlay_file()) {
    machine.build(std::as_bytes(std::span(file.data(), file.size())));
  }
  std::filesystem::path image(const char* name) const {
    return machine.xclbin(configuration).parent_path() / (std::string(name) + ".overlay.bin");
  }
  XrtMachine machine;
  const std::string file;
  const Configuration configuration =
      Configuration::parse(std::as_bytes(std::span(file.data(), file.size())));
};

}  // namespace

TEST_CASE("xrt: an overlay's image is what was built") {
  Built built;
  const auto device = open_device("xrt", "fast");
  for (size_t i = 0; i < 2; ++i) {
    const Configuration::Overlay& overlay = built.configuration.overlays[i];
    const std::vector<uint32_t> found = device->overlay_image(built.configuration, i);
    CHECK(found.size() == overlay.bytes / 4);
    CHECK(found != stand_in(built.configuration, i));
    std::ifstream in(built.image(overlay.name.c_str()), std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(in), {}};
    REQUIRE(bytes.size() == overlay.bytes);
    CHECK(std::memcmp(bytes.data(), found.data(), bytes.size()) == 0);
  }
  const Raised third = raised([&] { device->overlay_image(built.configuration, 2); });
  CHECK(third.kind == ErrorKind::kArgument);
}

TEST_CASE("xrt: images that are missing or of another size name the command") {
  Built built;
  const auto device = open_device("xrt", "fast");
  const auto configuration = std::make_shared<const Configuration>(built.configuration);
  const auto refused = [&](size_t overlay) {
    const Raised out = raised([&] { device->overlay_image(built.configuration, overlay); });
    CHECK(out.kind == ErrorKind::kMissingBuild);
    CHECK(out.says("npu build --device npu2 two"));
    CHECK(raised([&] { device->load(configuration); }).kind == ErrorKind::kMissingBuild);
    return out;
  };
  for (const size_t bytes : {size_t{0}, size_t{63}, size_t{80}}) {
    write_file(built.image("first"), std::string(bytes, 'x'));
    const Raised size = refused(0);
    CHECK(size.says(strf("64 bytes in %s: it has %zu bytes", built.image("first").c_str(), bytes)));
    CHECK(size.says("--force"));
  }
  std::filesystem::remove(built.image("second"));
  CHECK(refused(1).says("No such file"));
  std::filesystem::create_directory(built.image("second"));
  refused(1);
  std::filesystem::remove_all(built.machine.xclbin(built.configuration).parent_path());
  CHECK(refused(0).says("has not been built"));
}
