// Products through the C++ interface on the XRT device, over the stand-in: they pack, wrap and
// synchronise by themselves, and give the bits of the emulated NPU. Nothing of the backend is
// included here: both have an npu::Error and an npu::Device. Devices that are not there have the
// statuses that the header names.
#include <doctest/doctest.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <npu/npu.hpp>
#include <random>
#include <string>
#include <vector>

namespace npu_xrt_test {
std::shared_ptr<void> machine_with_gemms(const char* folder);  // test_xrt_operations.cpp
}

namespace {

npu_status status_of(const char* name, const npu::DeviceOptions& options) {
  try {
    const npu::Device opened(name, options);
    return NPU_OK;
  } catch (const npu::Error& error) {
    return error.status();
  }
}

}  // namespace

TEST_CASE("xrt: products of the C++ interface give the bits of the emulated NPU") {
  const char* folder = std::getenv("NPU_TEST_CONFIGURATIONS");
  if (folder == nullptr || *folder == '\0') return;  // see test_xrt_operations.cpp
  const auto machine = npu_xrt_test::machine_with_gemms(folder);
  const npu::DeviceOptions options{.designs = "array", .configurations = folder};
  const npu::Device emulated("emu:npu2", options), device("xrt", options);
  CHECK(device.info().name == "xrt:npu2");
  CHECK(status_of("xrt:npu2+module", options) == NPU_OK);
  CHECK(status_of("xrt:npu1", options) == NPU_ERROR_DEVICE);
  CHECK_FALSE(device.info().emulated);
  std::mt19937 random(29);
  std::normal_distribution<float> normal;
  for (const auto& [m, k, n] :
       {std::array{1, 1, 1}, std::array{65, 200, 130}, std::array{256, 128, 128}}) {
    std::vector<float> a(static_cast<size_t>(m * k)), b(static_cast<size_t>(k * n)),
        c(static_cast<size_t>(m * n)), d(c), e(c);
    for (float& x : a) x = normal(random);
    for (float& x : b) x = normal(random);
    emulated.matmul(npu::Matrix(a, m, k), npu::Matrix(b, k, n), npu::Matrix(c, m, n));
    device.matmul(npu::Matrix(a, m, k), npu::Matrix(b, k, n), npu::Matrix(d, m, n));
    CHECK(std::memcmp(c.data(), d.data(), c.size() * 4) == 0);
    const npu::Packed packed = device.pack(npu::Matrix(b, k, n));
    device.matmul(npu::Matrix(a, m, k), packed, npu::Matrix(e, m, n));
    CHECK(std::memcmp(c.data(), e.data(), c.size() * 4) == 0);
    std::vector<int8_t> ai(a.size()), bi(b.size());
    for (int8_t& x : ai) x = static_cast<int8_t>(random());
    for (int8_t& x : bi) x = static_cast<int8_t>(random());
    std::vector<int32_t> ci(c.size()), di(c.size());
    emulated.matmul(npu::Matrix(ai, m, k), npu::Matrix(bi, k, n), npu::Matrix(ci, m, n));
    device.matmul(npu::Matrix(ai, m, k), npu::Matrix(bi, k, n), npu::Matrix(di, m, n));
    CHECK(ci == di);
  }
  CHECK(device.info().submissions > 0);
}

TEST_CASE("xrt: without a module the NPU is unavailable") {
  const char* before = std::getenv("NPU_XRT_MODULE");
  const std::string kept = before != nullptr ? before : "";
  setenv("NPU_XRT_MODULE", "/nowhere/libnpu_xrt.so", 1);
  CHECK(status_of("xrt", {}) == NPU_ERROR_UNAVAILABLE);
  before != nullptr ? setenv("NPU_XRT_MODULE", kept.c_str(), 1) : unsetenv("NPU_XRT_MODULE");
}
