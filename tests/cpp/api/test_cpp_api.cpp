// The C++ header over the C interface: types, views, exceptions, lifetimes. Nothing of the backend
// is included here: both have an npu::Error and an npu::Device.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <npu/npu.hpp>
#include <span>
#include <string>
#include <vector>

namespace npu_api_test {
std::string small_folder();  // with a configuration for float32, npu1 (small_folder.cpp)
}

namespace {

npu::Device open() {
  return npu::Device("null:npu1", {.configurations = npu_api_test::small_folder()});
}

npu_status status_of(const auto& call) {
  try {
    call();
  } catch (const npu::Error& error) {
    CHECK(std::string(error.what())[0] == '[');
    return error.status();
  }
  return NPU_OK;
}

}  // namespace

TEST_CASE("bfloat16 rounds to nearest even") {
  CHECK(npu::bfloat16(1.0F).bits == 0x3F80);
  CHECK(npu::bfloat16(-2.0F).bits == 0xC000);
  CHECK(npu::bfloat16(1.00390625F).bits == 0x3F80);  // 1 + 2^-8: a tie, down to even
  CHECK(npu::bfloat16(1.01171875F).bits == 0x3F82);  // 1 + 3 * 2^-8: a tie, up to even
  CHECK(npu::bfloat16(1.00390637F).bits == 0x3F81);
  CHECK(npu::bfloat16(std::numeric_limits<float>::max()).bits == 0x7F80);
  CHECK(std::isnan(static_cast<float>(npu::bfloat16(std::nanf("")))));
  CHECK(static_cast<float>(npu::bfloat16(0.15625F)) == 0.15625F);
}

TEST_CASE("views take vectors, arrays, spans and pointers") {
  std::vector<float> v(6);
  const std::vector<int8_t> constant(6);
  std::array<npu::bfloat16, 6> array{};
  static_assert(std::is_same_v<decltype(npu::Matrix(v, 2, 3)), npu::Matrix<float>>);
  static_assert(std::is_same_v<decltype(npu::Matrix(constant, 2, 3)), npu::Matrix<const int8_t>>);
  CHECK(npu::Matrix(array, 2, 3).c_struct().dtype == NPU_BFLOAT16);
  std::span<int16_t> none;
  CHECK(npu::Matrix(none, 0, 3).c_struct().dtype == NPU_INT16);
  const npu_matrix m = npu::Matrix(v.data(), 2, 3).transposed().c_struct();
  CHECK(m.rows == 3);
  CHECK(m.cols == 2);
  CHECK(m.row_stride == 1);
  CHECK(m.col_stride == 3);
  CHECK(npu::Matrix(v.data(), 2, 2, 3).row_stride == 3);
  CHECK(status_of([&] { npu::Matrix(v, 2, 4); }) == NPU_ERROR_SHAPE);
  CHECK(status_of([&] { npu::Matrix(v, -1, 3); }) == NPU_ERROR_SHAPE);
  CHECK(status_of([&] { npu::Matrix(v, int64_t{1} << 62, int64_t{1} << 62); }) == NPU_ERROR_SHAPE);
}

TEST_CASE("devices and products") {
  npu::Device device = open();
  const npu::DeviceInfo before = device.info();
  CHECK(before.name == "null:npu1");
  CHECK(before.columns == 4);
  std::vector<float> a(256), b(256), c(256);
  const npu::Run run =
      device.matmul(npu::Matrix(a, 16, 16), npu::Matrix(b, 16, 16), npu::Matrix(c, 16, 16));
  CHECK(run.configuration == "rows");
  CHECK(run.tile_n == 4);
  const npu::Packed packed = device.pack(npu::Matrix(b, 16, 16));
  CHECK(device.matmul(npu::Matrix(a, 16, 16), packed, npu::Matrix(c, 16, 16)).configuration ==
        "packed");
  CHECK(status_of([&] { device.pack(npu::Matrix(b, 0, 16)); }) == NPU_ERROR_SHAPE);
  const npu::Device moved = std::move(device);
  CHECK(moved.info().configuration_loads == before.configuration_loads + 2);
  CHECK(status_of([&] {
          moved.matmul(npu::Matrix(a, 16, 16), npu::Matrix(b, 8, 32), npu::Matrix(c, 16, 16));
        }) == NPU_ERROR_SHAPE);
  CHECK(status_of([&] {
          moved.matmul(npu::Matrix(a, 16, 16), npu::Matrix(b, 16, 16), npu::Matrix(c, 16, 16),
                       {.shift = 99});
        }) == NPU_ERROR_ARGUMENT);
  CHECK(status_of([&] {
          moved.matmul(npu::Matrix(a, 16, 16), npu::Matrix(b, 16, 16), npu::Matrix(a, 16, 16));
        }) == NPU_ERROR_ARGUMENT);
  CHECK(status_of([] { npu::Device("gpu:0"); }) == NPU_ERROR_DEVICE);
  CHECK(npu::version() == npu_version());
}
