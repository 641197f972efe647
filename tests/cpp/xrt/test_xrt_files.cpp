// Finding the XRT module, xclbins and an NPU: where is looked, in which order, and what is said
// when something is missing, damaged or of another version. No NPU, no module: one sentence.
#include <pwd.h>

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
  for (const char* word : {"off", "Off", "OFF"}) {  // of prepared weights
    const Environment off("NPU_CACHE", word);
    CHECK(xrt::cache_root() == "/home/u/.cache/npu-xdna");
  }
}

TEST_CASE("xrt: folders are absolute, and homes are expanded as Python does") {
  const Environment home("HOME", "/home/u"), no_xdg("XDG_CACHE_HOME", nullptr);
  const std::filesystem::path here = std::filesystem::current_path();
  const passwd* user = getpwuid(getuid());
  REQUIRE(user != nullptr);
  const std::filesystem::path own = user->pw_dir;
  const Environment unset("NPU_XCLBINS", nullptr), no_cache("NPU_CACHE", nullptr);
  const std::pair<std::string, std::filesystem::path> kFolders[] = {
      {"~", "/home/u"},      {"~/x", "/home/u/x"},
      {"x/y", here / "x/y"}, {"~nobody-of-this-name/x", here / "~nobody-of-this-name/x"},
      {"/a/~", "/a/~"},      {std::string("~") + user->pw_name + "/x", own / "x"}};
  for (const auto& [written, folder] : kFolders) {
    CAPTURE(written);
    const Environment chosen("NPU_XCLBINS", written.c_str());
    CHECK(xrt::xclbin_folder() == folder);
    const Environment cache("NPU_CACHE", written.c_str());
    CHECK(xrt::cache_root() == folder);
  }
  {
    const Environment caches("XDG_CACHE_HOME", "some");
    CHECK(xrt::cache_root() == here / "some/npu-xdna");
    const Environment in_home("XDG_CACHE_HOME", "~/c");
    CHECK(xrt::cache_root() == "/home/u/c/npu-xdna");
  }
  const Environment no_home("HOME", nullptr);
  CHECK(xrt::cache_root() == own / ".cache/npu-xdna");
  CHECK(xrt::xclbin_folder() == own / ".cache/npu-xdna/xclbins");
}

TEST_CASE("xrt: without a module one sentence says where was looked and how to get it") {
  XrtMachine machine;
  const std::string path = (machine.folder() / "libnpu_xrt.so").string();
  const Environment chosen("NPU_XRT_MODULE", path.c_str());
  const Raised missing = opened();
  CHECK(missing.kind == ErrorKind::kMissingXrt);
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
    CHECK(damaged.kind == ErrorKind::kMissingXrt);
    CHECK(damaged.says("does not load"));
  }
  const Environment other("NPU_XRT_MODULE", NPU_XRT_LIBRARY_OF_DOUBLE);
  CHECK(opened().says("has no function npu_xrt_module_get"));
  const Environment old("NPU_XRT_MODULE", NPU_XRT_MODULE_OLD);
  CHECK(opened().says("has interface 999 and this library needs 3"));
}

TEST_CASE("xrt: without an NPU the error is XRT's, with where to look") {
  XrtMachine machine({.present = false});
  const Raised none = opened();
  CHECK(none.kind == ErrorKind::kMissingXrt);
  CHECK(none.says("XRT sees 0 devices"));
  CHECK(none.says("npu doctor"));
  XrtMachine another;
  xrt_double::refuse_devices(1, EOPNOTSUPP);
  const Raised older = opened();
  CHECK(older.kind == ErrorKind::kVersions);
  xrt_double::refuse_devices(1, EIO);
  const Raised broken = opened();
  CHECK(broken.kind == ErrorKind::kDevice);
  CHECK(broken.says("XRT opens no NPU (DRM_IOCTL"));
}

TEST_CASE("xrt: what keeps an NPU from being opened says what to do") {
  XrtMachine machine;
  // The heap is locked when the device is opened.
  for (const int code : {EAGAIN, ENOMEM, EPERM}) {
    xrt_double::refuse_devices(1, code, "mmap(addr=(nil), len=67108864, prot=3, flags=8193)");
    const Raised locked = opened();
    CHECK(locked.kind == ErrorKind::kMemoryLock);
    CHECK(locked.says("64 MiB"));
    CHECK(locked.says("ulimit -l unlimited"));
  }
  const std::pair<int, const char*> kNode[] = {
      {EACCES, "usermod -aG render"},
      {EPERM, "--device /dev/accel/accel0"},
      {ENOENT, "modprobe amdxdna"},
      {ENODEV, "amd_iommu=on iommu=pt"},
      {EINVAL, "(SVA)"},
      {EOPNOTSUPP, "container"},
      {EBUSY, "XRT opens no NPU (Open"},
  };
  for (const auto& [code, words] : kNode) {
    xrt_double::refuse_devices(1, code, "Open /dev/accel/accel0");
    const Raised out = opened();
    CHECK(out.kind == ErrorKind::kDevice);
    CHECK_MESSAGE(out.says(words), out.message);
    CHECK(out.says("npu doctor"));
  }
  for (const char* request : {"DRM_IOCTL_AMDXDNA_GET_INFO", "DRM_IOCTL_AMDXDNA_GET_ARRAY"}) {
    for (const int code : {EOPNOTSUPP, EINVAL}) {
      xrt_double::refuse_devices(1, code, request);
      CHECK(opened().kind == ErrorKind::kVersions);
    }
  }
}

TEST_CASE("xrt: a configuration that was not built names the command that builds it") {
  XrtMachine machine;
  const auto device = open_device("xrt", "fast");
  const Raised missing = raised([&] { device->load(loopback(arch::Generation::kNpu2)); });
  CHECK(missing.kind == ErrorKind::kMissingBuild);
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
    CHECK(damaged.kind == ErrorKind::kDevice);
    CHECK(damaged.says(path));
    CHECK(damaged.says("npu build --device npu2 loopback --force"));
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
