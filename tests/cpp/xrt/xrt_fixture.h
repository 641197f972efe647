// A machine with the stand-in for XRT (tests/doubles/xrt), a folder of xclbins, and the module that
// was built against it.
#pragma once

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "control.h"
#include "error.h"
#include "loopback.h"
#include "runtime/device.h"
#include "runtime/interrupt.h"
#include "stored_configurations.h"

namespace npu::test {

// Checks at its end that nothing was misused and nothing is left.
class XrtMachine {
 public:
  explicit XrtMachine(const xrt_double::Settings& settings = {}) {
    std::string name = (std::filesystem::temp_directory_path() / "npu-xclbins-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    folder_ = name;
    xclbins_ = std::make_unique<Environment>("NPU_XCLBINS", name.c_str());
    xrt_double::reset(settings);
  }
  ~XrtMachine() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
    for (const std::string& violation : xrt_double::take_violations()) CHECK(violation == "");
    const xrt_double::Counters left = xrt_double::counters();
    CHECK(left.contexts == 0);
    CHECK(left.runs == 0);
    CHECK(left.buffers == 0);
  }
  XrtMachine(const XrtMachine&) = delete;
  XrtMachine& operator=(const XrtMachine&) = delete;

  std::filesystem::path xclbin(const Configuration& configuration) const {
    return folder_ / arch::device_geometry(configuration.generation).name /
           configuration.artefact() / "design.xclbin";
  }
  // What `npu build` does with the file of a configuration.
  void build(std::span<const std::byte> file, size_t buffers = 16,
             const std::string& kernel = "MLIR_AIE") const {
    const std::filesystem::path path = xclbin(Configuration::parse(file));
    std::filesystem::create_directories(path.parent_path());
    xrt_double::write_xclbin(path.string(), file, buffers, kernel);
  }
  // A loopback that was built.
  std::shared_ptr<const Configuration> loopback(
      const char* name = "loopback", arch::Generation generation = arch::Generation::kNpu2,
      size_t buffers = 16) const {
    const std::string file = loopback_file(generation, name);
    build(std::as_bytes(std::span(file.data(), file.size())), buffers);
    return test::loopback(generation, name);
  }
  const std::filesystem::path& folder() const { return folder_; }

 private:
  std::filesystem::path folder_;
  Environment module_{"NPU_XRT_MODULE", NPU_XRT_MODULE_ON_DOUBLE};
  std::unique_ptr<Environment> xclbins_;
};

// A device with two buffers and a loaded loopback, whose runs copy one to the other.
struct Copying {
  explicit Copying(const XrtMachine& machine, size_t size = 256)
      : device(open_device("xrt", "fast")),
        configuration(machine.loopback("loopback", device->info().generation)),
        bytes(size),
        in(device->allocate(size)),
        out(device->allocate(size)) {
    device->load(configuration);
  }
  std::shared_ptr<const PreparedStream> prepare(uint32_t words) {
    return device->prepare(copy_stream(device->info().generation, words));
  }
  std::vector<BufferRef> refs() {
    return {{in.get(), 0, bytes, Access::kRead}, {out.get(), 0, bytes, Access::kWrite}};
  }
  void fill(uint8_t first) {
    for (size_t i = 0; i < bytes; ++i) in->host()[i] = static_cast<std::byte>(first + i);
    in->sync_to_device(0, bytes);
  }
  bool copied(size_t count) {
    out->sync_from_device(0, bytes);
    return std::equal(in->host(), in->host() + count, out->host());
  }
  RunReport run(const std::shared_ptr<const PreparedStream>& stream) {
    return finish(*device->submit(stream, refs()));
  }

  std::unique_ptr<Device> device;
  std::shared_ptr<const Configuration> configuration;
  size_t bytes;
  std::unique_ptr<Buffer> in, out;
};

struct Raised {
  ErrorKind kind;
  std::string message;
  bool says(const std::string& text) const { return message.find(text) != std::string::npos; }
};

inline Raised raised(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return {error.kind(), error.what()};
  }
  FAIL("no error was raised");
  return {};
}

}  // namespace npu::test
