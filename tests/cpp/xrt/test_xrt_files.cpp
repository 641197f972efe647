// Finding the XRT module, xclbins and an NPU: where is looked, in which order, and what is said
// when something is missing, damaged or of another version. No NPU, no module: one sentence.
#include "devices/xrt/files.h"
#include "devices/xrt/module.h"
#include "xrt_fixture.h"

namespace {

using namespace npu;
using namespace npu::test;

Raised opened() {
  return raised([] { open_device("xrt", "fast"); });
}

}  // namespace

TEST_CASE(
    "xrt: the module is looked for beside the library and in the cache, or where it is said") {
  const Environment none("NPU_XRT_MODULE", nullptr), cache("NPU_CACHE", "/tmp/some-cache");
  const auto places = xrt::module_places();
  REQUIRE(places.size() == 2);
  CHECK(places[0] == xrt::own_folder() / "libnpu_xrt.so");
  CHECK(places[1] == "/tmp/some-cache/xrt/libnpu_xrt.so");
  const Environment chosen("NPU_XRT_MODULE", "/opt/m.so");
  CHECK(xrt::module_places() == std::vector<std::filesystem::path>{"/opt/m.so"});
}

TEST_CASE("xrt: the cache is the user's, or the one that is set") {
  const Environment home("HOME", "/home/u"), no_xdg("XDG_CACHE_HOME", nullptr);
  {
    const Environment set("NPU_CACHE", nullptr);
    CHECK(xrt::cache_root() == "/home/u/.cache/npu-xdna");
    const Environment xdg("XDG_CACHE_HOME", "/var/c");
    CHECK(xrt::cache_root() == "/var/c/npu-xdna");
    const Environment own("NPU_XCLBINS", nullptr);
    CHECK(xrt::xclbin_folder() == "/var/c/npu-xdna/xclbins");
    const Environment folder("NPU_XCLBINS", "/x");
    CHECK(xrt::xclbin_folder() == "/x");
  }
  const Environment off("NPU_CACHE", "off");  // of prepared weights
  CHECK(xrt::cache_root() == "/home/u/.cache/npu-xdna");
}

TEST_CASE("xrt: without a module one sentence says where was looked and how to get it") {
  XrtMachine machine;
  const std::string path = (machine.folder() / "libnpu_xrt.so").string();
  const Environment chosen("NPU_XRT_MODULE", path.c_str());
  const Raised missing = opened();
  CHECK(missing.kind == ErrorKind::kUnavailable);
  CHECK(missing.says("[device] \"xrt\" was requested"));
  CHECK(missing.says(path));
  CHECK(missing.says("npu build --xrt"));
}

TEST_CASE("xrt: files that are no module of this version are refused") {
  XrtMachine machine;
  const std::string path = (machine.folder() / "libnpu_xrt.so").string();
  const Environment chosen("NPU_XRT_MODULE", path.c_str());
  for (const std::string& damage : {std::string(), std::string("not a library"),
                                    std::string("\177ELF\2\1\1") + std::string(100, '\0')}) {
    write_file(path, damage);
    const Raised damaged = opened();
    CHECK(damaged.kind == ErrorKind::kUnavailable);
    CHECK(damaged.says("does not load"));
  }
  const Environment other("NPU_XRT_MODULE", NPU_XRT_LIBRARY_OF_DOUBLE);
  CHECK(opened().says("has no function npu_xrt_module_get"));
  const Environment old("NPU_XRT_MODULE", NPU_XRT_MODULE_OLD);
  CHECK(opened().says("has interface 999 and this library needs 1"));
}

TEST_CASE("xrt: without an NPU the error is XRT's, with where to look") {
  XrtMachine machine({.present = false});
  const Raised none = opened();
  CHECK(none.kind == ErrorKind::kUnavailable);
  CHECK(none.says("XRT opens no NPU (No such device with index '0')"));
  CHECK(none.says("npu doctor"));
}

TEST_CASE("xrt: a configuration that was not built names the command that builds it") {
  XrtMachine machine;
  const auto device = open_device("xrt", "fast");
  const Raised missing = raised([&] { device->load(loopback(arch::Generation::kNpu2)); });
  CHECK(missing.kind == ErrorKind::kUnavailable);
  CHECK(missing.says("npu build --device npu2 loopback"));
  CHECK(missing.says((machine.folder() / "npu2" / "loopback-npu2-0000000000000000").string()));
  const Raised other = raised([&] { device->load(loopback(arch::Generation::kNpu1)); });
  CHECK(other.kind == ErrorKind::kDevice);
}

TEST_CASE("xrt: damaged xclbins, and those of other kernels, are refused") {
  XrtMachine machine;
  const auto device = open_device("xrt", "fast");
  const auto configuration = machine.loopback();
  const std::string path = machine.xclbin(*configuration).string();
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{30}}) {
    write_file(path, std::string(bytes, '\377'));
    const Raised damaged = raised([&] { device->load(configuration); });
    CHECK(damaged.kind == ErrorKind::kFormat);
    CHECK(damaged.says(path));
  }
  const std::string file = loopback_file(arch::Generation::kNpu2);
  machine.build(std::as_bytes(std::span(file.data(), file.size())), 16, "vadd");
  CHECK(raised([&] { device->load(configuration); }).says("none is called MLIR_AIE"));
  machine.build(std::as_bytes(std::span(file.data(), file.size())), 16, "MLIR_AIE_2");
  CHECK_NOTHROW(device->load(configuration));
  // One that was built again while its context is open takes effect with the next load.
  device->load(machine.loopback("other"));
  device->load(configuration);
  CHECK(xrt_double::counters().contexts_made == 2);
  machine.build(std::as_bytes(std::span(file.data(), file.size())), 5);
  device->load(machine.loopback("other"));
  device->load(loopback(arch::Generation::kNpu2));
  CHECK(xrt_double::counters().contexts_made >= 3);
}
