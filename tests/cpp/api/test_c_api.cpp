// The C interface: statuses and messages of everything a caller can get wrong, what is returned
// about devices and runs. The null device computes nothing, so no result is looked at here except
// those that no device makes; tests/installed compares results.
#include <doctest/doctest.h>
#include <npu/npu.h>

#include <cstdint>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "stored_configurations.h"

namespace {

using npu::test::Environment;
using npu::test::StoredConfigurations;

bool says(const std::string& part) {
  return std::string(npu_last_error()).find(part) != std::string::npos;
}

// null:npu1 with one configuration, bfloat16 to float32, row-major B.
struct Opened {
  StoredConfigurations folder;
  npu_device* device = nullptr;
  explicit Opened(const char* name = "null:npu1") {
    folder.add("rows.config", "prefers=host layout=row " + npu::test::kSmallDesign);
    folder.add("large.config", "prefers=array layout=row " + npu::test::kSmallDesign);
    folder.add("packed.config", "prefers=host layout=packed " + npu::test::kSmallDesign);
    folder.write_index();
    npu_device_options options = NPU_DEVICE_OPTIONS_INIT;
    const std::string path = folder.folder().string();
    options.configurations = path.c_str();
    options.designs = "host";
    REQUIRE(npu_device_open(name, &options, &device) == NPU_OK);
  }
  ~Opened() { npu_device_close(device); }
};

struct Product {
  std::vector<float> a = std::vector<float>(16 * 16, 1), b = a, c = a;
  npu_matrix ma = {a.data(), NPU_FLOAT32, 16, 16, 0, 0}, mb = {b.data(), NPU_FLOAT32, 16, 16, 0, 0},
             mc = {c.data(), NPU_FLOAT32, 16, 16, 0, 0};
  npu_matmul_options options = NPU_MATMUL_OPTIONS_INIT;
  npu_status run(npu_device* device) {
    return npu_matmul(device, &ma, &mb, &mc, &options, nullptr);
  }
};

}  // namespace

TEST_CASE("versions and names") {
  CHECK(std::string(npu_version()).find('.') != std::string::npos);
  CHECK(npu_abi_version() == NPU_ABI_VERSION);
  CHECK(std::string(npu_status_name(NPU_OK)) == "ok");
  CHECK(std::string(npu_status_name(NPU_ERROR_INTERNAL)) == "internal");
  CHECK(std::string(npu_status_name(-1)) == "unknown");
  CHECK(std::string(npu_status_name(10)) == "unknown");
}

TEST_CASE("opening a device") {
  const Environment none("NPU_DEVICE", nullptr);
  StoredConfigurations folder;
  folder.add("rows.config", "prefers=host layout=row " + npu::test::kSmallDesign);
  folder.write_index();
  const std::string path = folder.folder().string();
  npu_device_options options = NPU_DEVICE_OPTIONS_INIT;
  options.configurations = path.c_str();
  auto* device = reinterpret_cast<npu_device*>(1);
  const auto refused = [&](const char* name) {
    const npu_status status = npu_device_open(name, &options, &device);
    CHECK(device == nullptr);
    npu_device_close(device);
    return status;
  };
  CHECK(npu_device_open("null:npu1", &options, nullptr) == NPU_ERROR_ARGUMENT);
  CHECK(refused("gpu:0") == NPU_ERROR_DEVICE);
  CHECK(says("\"gpu:0\" is unknown"));
  options.size = 3;
  CHECK(refused("null:npu1") == NPU_ERROR_ARGUMENT);
  CHECK(says("NPU_DEVICE_OPTIONS_INIT"));
  options.size = sizeof options;
  options.arithmetic = "slow";
  CHECK(refused("null:npu1") == NPU_ERROR_DEVICE);
  options.arithmetic = nullptr;
  options.bf16 = "bfp16";
  CHECK(refused("null:npu1") == NPU_ERROR_DEVICE);
  options.bf16 = "fp8";
  CHECK(refused("null:npu2") == NPU_ERROR_ARGUMENT);
  CHECK(says("use \"native\" or \"bfp16\""));
  options.bf16 = nullptr;
  options.designs = "fast";
  CHECK(refused("null:npu1") == NPU_ERROR_ARGUMENT);
  options.designs = nullptr;
  options.kernel = "pipelined";
  CHECK(refused("null:npu1") == NPU_ERROR_DEVICE);
  options.kernel = nullptr;
  options.machine = "strix-atb";
  CHECK(refused("null:npu1") == NPU_ERROR_ARGUMENT);
  CHECK(says("machine is \"strix-atb\""));
  options.machine = "phoenix-gemm";
  options.kernels = "fast";
  CHECK(refused("null:npu1") == NPU_ERROR_ARGUMENT);
  options.kernels = nullptr;
  {
    const Environment profile("NPU_KERNELS", "guessed");
    CHECK(refused("null:npu1") == NPU_ERROR_ARGUMENT);
  }
  options.configurations = "/nowhere/at/all";
  CHECK(refused("null:npu1") == NPU_ERROR_UNAVAILABLE);
  CHECK(says("/nowhere/at/all"));
  options.configurations = path.c_str();
  npu::test::write_file(folder.folder() / "index.txt", folder.index().substr(0, 60));
  CHECK(refused("null:npu1") == NPU_ERROR_FORMAT);
  folder.write_index();
  {
    const Environment name("NPU_DEVICE", "null:npu1"), mode("NPU_DESIGNS", "array");
    REQUIRE(npu_device_open(nullptr, &options, &device) == NPU_OK);
  }
  npu_device_info info = {};
  info.size = sizeof info;
  REQUIRE(npu_device_get_info(device, &info) == NPU_OK);
  CHECK(std::string(info.name) == "null:npu1");
  CHECK(std::string(info.generation) == "npu1");
  CHECK(std::string(info.bf16) == "native");
  CHECK(std::string(info.designs) == "array");
  CHECK(info.configurations == path);
  CHECK(info.columns == 4);
  CHECK(info.clock_hz > 1e8);
  CHECK(info.configuration_loads == 0);
  info.size = 8;
  CHECK(npu_device_get_info(device, &info) == NPU_ERROR_ARGUMENT);
  CHECK(npu_device_get_info(nullptr, &info) == NPU_ERROR_ARGUMENT);
  CHECK(npu_device_get_info(device, nullptr) == NPU_ERROR_ARGUMENT);
  npu_device_close(device);
  npu_device_close(nullptr);
}

TEST_CASE("a product says what it ran as") {
  const Opened opened;
  Product p;
  npu_run run = NPU_RUN_INIT;
  REQUIRE(npu_matmul(opened.device, &p.ma, &p.mb, &p.mc, nullptr, &run) == NPU_OK);
  CHECK(std::string(run.configuration) == "rows");
  CHECK(std::string(run.reason) == "the only one");
  CHECK(run.tile_m == 4);
  CHECK(run.tile_k == 8);
  CHECK(run.k_mt == 8);
  CHECK(run.size == sizeof run);
  npu_device_info info = {};
  info.size = sizeof info;
  REQUIRE(npu_device_get_info(opened.device, &info) == NPU_OK);
  CHECK(info.configuration_loads == 1);
  CHECK(info.submissions == 1);
  run.size = 4;
  CHECK(npu_matmul(opened.device, &p.ma, &p.mb, &p.mc, nullptr, &run) == NPU_ERROR_ARGUMENT);
  CHECK(says("NPU_RUN_INIT"));
}

TEST_CASE("programs of an earlier or a later version") {
  const Opened opened;
  Product p;
  // Later: the structs are longer; what this library does not know is left alone.
  struct {
    npu_run run = NPU_RUN_INIT;
    uint64_t more = 0xABCD;
  } later;
  later.run.size = sizeof later;
  struct {
    npu_matmul_options options = NPU_MATMUL_OPTIONS_INIT;
    const char* more = "unknown";
  } asked;
  asked.options.size = sizeof asked;
  REQUIRE(npu_matmul(opened.device, &p.ma, &p.mb, &p.mc, &asked.options, &later.run) == NPU_OK);
  CHECK(later.run.size == sizeof later);
  CHECK(later.run.tile_k == 8);
  CHECK(later.more == 0xABCD);
  // Earlier: these are the sizes of version 1, which is accepted for good.
  static_assert(NPU_ABI_VERSION > 1 ||
                (sizeof(npu_device_options) >= 48 && sizeof(npu_device_info) >= 1192 &&
                 sizeof(npu_matmul_options) >= 32 && sizeof(npu_run) >= 264));
  later.run.size = 264;
  CHECK(npu_matmul(opened.device, &p.ma, &p.mb, &p.mc, nullptr, &later.run) == NPU_OK);
  later.run.size = 263;
  CHECK(npu_matmul(opened.device, &p.ma, &p.mb, &p.mc, nullptr, &later.run) == NPU_ERROR_ARGUMENT);
}

TEST_CASE("null pointers") {
  const Opened opened;
  Product p;
  CHECK(npu_matmul(nullptr, &p.ma, &p.mb, &p.mc, nullptr, nullptr) == NPU_ERROR_ARGUMENT);
  CHECK(npu_matmul(opened.device, nullptr, &p.mb, &p.mc, nullptr, nullptr) == NPU_ERROR_ARGUMENT);
  CHECK(says("A is null"));
  CHECK(npu_matmul(opened.device, &p.ma, nullptr, &p.mc, nullptr, nullptr) == NPU_ERROR_ARGUMENT);
  CHECK(npu_matmul(opened.device, &p.ma, &p.mb, nullptr, nullptr, nullptr) == NPU_ERROR_ARGUMENT);
  for (npu_matrix Product::*matrix : {&Product::ma, &Product::mb, &Product::mc}) {
    Product other;
    (other.*matrix).data = nullptr;
    CHECK(other.run(opened.device) == NPU_ERROR_ARGUMENT);
    CHECK(says("is null; pass where its elements are"));
  }
}

TEST_CASE("element types") {
  const Opened opened;
  for (const npu_dtype type : {-1, 5, 1 << 30}) {
    Product p;
    p.mb.dtype = type;
    CHECK(p.run(opened.device) == NPU_ERROR_DTYPE);
    CHECK(says("use NPU_FLOAT32 to NPU_INT32"));
  }
  const auto mixed = [&](npu_dtype a, npu_dtype b, npu_dtype c) {
    Product p;
    p.ma.dtype = a;
    p.mb.dtype = b;
    p.mc.dtype = c;
    return p.run(opened.device);
  };
  CHECK(mixed(NPU_FLOAT32, NPU_BFLOAT16, NPU_FLOAT32) == NPU_OK);
  CHECK(mixed(NPU_FLOAT32, NPU_INT8, NPU_FLOAT32) == NPU_ERROR_DTYPE);
  CHECK(mixed(NPU_INT8, NPU_INT16, NPU_INT32) == NPU_ERROR_DTYPE);
  CHECK(mixed(NPU_FLOAT32, NPU_FLOAT32, NPU_INT32) == NPU_ERROR_DTYPE);
  CHECK(mixed(NPU_INT32, NPU_INT32, NPU_INT32) == NPU_ERROR_DTYPE);
  Product none;  // nothing to compute, and still no such product
  none.ma.rows = none.mc.rows = 0;
  none.mc.dtype = NPU_INT8;
  CHECK(none.run(opened.device) == NPU_ERROR_DTYPE);
}

TEST_CASE("sizes and strides") {
  const Opened opened;
  constexpr int64_t kHuge = int64_t{1} << 40, kMax = std::numeric_limits<int64_t>::max();
  const auto sized = [&](int64_t m, int64_t k, int64_t n) {
    Product p;
    p.ma.rows = p.mc.rows = m;
    p.ma.cols = p.mb.rows = k;
    p.mb.cols = p.mc.cols = n;
    return p.run(opened.device);
  };
  CHECK(sized(-1, 16, 16) == NPU_ERROR_SHAPE);
  CHECK(sized(16, kHuge, kHuge) == NPU_ERROR_SHAPE);
  CHECK(sized(kMax, kMax, kMax) == NPU_ERROR_SHAPE);
  CHECK(says("more than can be addressed"));
  CHECK(sized(0, 16, 16) == NPU_OK);
  CHECK(sized(16, 16, 0) == NPU_OK);
  Product p;
  p.mb.rows = 15;
  CHECK(p.run(opened.device) == NPU_ERROR_SHAPE);
  CHECK(says("A is (16, 16), B (15, 16)"));
  const auto strided = [&](int64_t rows, int64_t cols) {
    Product q;
    q.mc.row_stride = rows;
    q.mc.col_stride = cols;
    return q.run(opened.device);
  };
  CHECK(strided(16, 1) == NPU_OK);
  CHECK(strided(15, 1) == NPU_ERROR_ARGUMENT);
  CHECK(strided(1, 15) == NPU_ERROR_ARGUMENT);
  CHECK(strided(-16, 1) == NPU_ERROR_ARGUMENT);
  CHECK(strided(32, 2) == NPU_ERROR_ARGUMENT);
  CHECK(says("its rows or its columns must be dense"));
  Product far;
  far.ma.row_stride = kMax / 2;
  far.ma.col_stride = 1;
  CHECK(far.run(opened.device) == NPU_ERROR_SHAPE);
  CHECK(says("beyond the address space"));
}

TEST_CASE("a stride that nothing uses may be any number") {
  const Opened opened;
  for (const int64_t stride :
       {std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min(), int64_t{-3}}) {
    Product row;  // (1, 16) by (16, 16)
    row.ma = {row.a.data(), NPU_FLOAT32, 1, 16, stride, 1};
    row.mc = {row.c.data(), NPU_FLOAT32, 1, 16, stride, 1};
    CHECK(row.run(opened.device) == NPU_OK);
    Product column;  // (16, 16) by (16, 1)
    column.mb = {column.b.data(), NPU_FLOAT32, 16, 1, 1, stride};
    column.mc = {column.c.data(), NPU_FLOAT32, 16, 1, 1, stride};
    CHECK(column.run(opened.device) == NPU_OK);
    npu_packed* packed = nullptr;
    const npu_matrix b = {row.b.data(), NPU_FLOAT32, 1, 16, stride, 1};
    CHECK(npu_pack(opened.device, &b, nullptr, &packed) == NPU_OK);
    npu_packed_free(packed);
  }
  Product apart;  // a C of one row whose elements lie apart
  apart.ma.rows = 1;
  apart.c.assign(48, 7);
  apart.mc = {apart.c.data(), NPU_FLOAT32, 1, 16, 1, 3};
  apart.ma.cols = apart.mb.rows = 0;
  REQUIRE(apart.run(opened.device) == NPU_OK);
  for (size_t i = 0; i < 48; ++i) CHECK(apart.c[i] == (i % 3 == 0 ? 0.0F : 7.0F));
}

TEST_CASE("no product at all is zero, where C is") {
  const Opened opened;
  Product p;
  p.c.assign(16 * 20, 7);
  p.mc = {p.c.data(), NPU_FLOAT32, 16, 16, 20, 1};
  p.ma.cols = p.mb.rows = 0;
  p.ma.data = p.mb.data = nullptr;
  REQUIRE(p.run(opened.device) == NPU_OK);
  for (size_t i = 0; i < p.c.size(); ++i) CHECK(p.c[i] == (i % 20 < 16 ? 0.0F : 7.0F));
}

TEST_CASE("C shares no memory with A and B") {
  const Opened opened;
  Product p;
  p.mc.data = p.a.data() + 255;
  CHECK(p.run(opened.device) == NPU_ERROR_ARGUMENT);
  CHECK(says("overlaps"));
  p.mc.data = p.b.data() - 255;
  CHECK(p.run(opened.device) == NPU_ERROR_ARGUMENT);
  // The last row of B is the first in memory.
  Product q;
  q.mb = {q.b.data() + 15 * 16, NPU_FLOAT32, 16, 16, -16, 1};
  q.mc.data = q.b.data() - 128;
  CHECK(q.run(opened.device) == NPU_ERROR_ARGUMENT);
  q.ma.data = q.b.data();
  q.mc.data = q.c.data();
  CHECK(q.run(opened.device) == NPU_OK);  // operands may share
}

TEST_CASE("options of a product") {
  const Opened opened;
  Product p;
  for (const int32_t shift : {-1, 32}) {
    p.options.shift = shift;
    CHECK(p.run(opened.device) == NPU_ERROR_ARGUMENT);
    CHECK(says("use 0 to 31"));
  }
  p.options.shift = 1;
  CHECK(p.run(opened.device) == NPU_ERROR_ARGUMENT);
  CHECK(says("shift"));
  p.options.shift = 0;
  p.options.accumulate = "kahan";
  CHECK(p.run(opened.device) == NPU_ERROR_ARGUMENT);
  p.options.accumulate = "narrow";  // means nothing for 32 bits
  CHECK(p.run(opened.device) == NPU_OK);
  p.options.bf16 = "bfp16";
  CHECK(p.run(opened.device) == NPU_ERROR_ARGUMENT);
  p.options.bf16 = "native";
  CHECK(p.run(opened.device) == NPU_OK);
  p.ma.dtype = p.mb.dtype = NPU_INT8;
  p.mc.dtype = NPU_INT32;
  CHECK(p.run(opened.device) == NPU_ERROR_ARGUMENT);
  CHECK(says("leave it out for integers"));
  p.options.size = 0;
  CHECK(p.run(opened.device) == NPU_ERROR_ARGUMENT);
  CHECK(says("NPU_MATMUL_OPTIONS_INIT"));
}

TEST_CASE("packed operands") {
  const Opened opened, other;
  Product p;
  npu_packed* packed = reinterpret_cast<npu_packed*>(1);
  const auto refused = [&](npu_device* device, const npu_matrix* b, const char* bf16) {
    const npu_status status = npu_pack(device, b, bf16, &packed);
    CHECK(packed == nullptr);
    return status;
  };
  CHECK(refused(nullptr, &p.mb, nullptr) == NPU_ERROR_ARGUMENT);
  CHECK(refused(opened.device, nullptr, nullptr) == NPU_ERROR_ARGUMENT);
  CHECK(refused(opened.device, &p.mb, "bfp16") == NPU_ERROR_ARGUMENT);
  CHECK(npu_pack(opened.device, &p.mb, nullptr, nullptr) == NPU_ERROR_ARGUMENT);
  npu_matrix wrong = p.mb;
  wrong.rows = 0;
  CHECK(refused(opened.device, &wrong, nullptr) == NPU_ERROR_SHAPE);
  wrong.rows = int64_t{1} << 62;
  CHECK(refused(opened.device, &wrong, nullptr) == NPU_ERROR_SHAPE);
  wrong = p.mb;
  wrong.dtype = NPU_INT16;  // the folder has no design for it
  CHECK(refused(opened.device, &wrong, nullptr) == NPU_ERROR_DTYPE);

  REQUIRE(npu_pack(opened.device, &p.mb, "native", &packed) == NPU_OK);
  npu_run run = NPU_RUN_INIT;
  REQUIRE(npu_matmul_packed(opened.device, &p.ma, packed, &p.mc, nullptr, &run) == NPU_OK);
  CHECK(std::string(run.configuration) == "packed");
  CHECK(npu_matmul_packed(other.device, &p.ma, packed, &p.mc, nullptr, nullptr) ==
        NPU_ERROR_ARGUMENT);
  CHECK(says("another device"));
  CHECK(npu_matmul_packed(opened.device, &p.ma, nullptr, &p.mc, nullptr, nullptr) ==
        NPU_ERROR_ARGUMENT);
  CHECK(npu_matmul_packed(nullptr, &p.ma, packed, &p.mc, nullptr, nullptr) == NPU_ERROR_ARGUMENT);
  p.mc.data = p.a.data();
  CHECK(npu_matmul_packed(opened.device, &p.ma, packed, &p.mc, nullptr, nullptr) ==
        NPU_ERROR_ARGUMENT);
  p.mc.data = p.c.data();
  p.ma.cols = 8;
  CHECK(npu_matmul_packed(opened.device, &p.ma, packed, &p.mc, nullptr, nullptr) ==
        NPU_ERROR_SHAPE);
  p.ma.cols = 16;
  p.ma.rows = p.mc.rows = 0;
  CHECK(npu_matmul_packed(opened.device, &p.ma, packed, &p.mc, nullptr, &run) == NPU_OK);
  CHECK(std::string(run.configuration).empty());
  npu_packed_free(packed);
  npu_packed_free(nullptr);
}

TEST_CASE("a packed operand outlives the device's handle") {
  npu_packed* packed = nullptr;
  {
    const Opened opened;
    Product p;
    REQUIRE(npu_pack(opened.device, &p.mb, nullptr, &packed) == NPU_OK);
  }
  npu_packed_free(packed);
}

TEST_CASE("every thread has its own last error") {
  CHECK(npu_device_open("gpu:0", nullptr, nullptr) == NPU_ERROR_ARGUMENT);
  const std::string here = npu_last_error();
  std::string there = "not asked";
  std::thread([&] {
    there = npu_last_error();
    npu_device* device = nullptr;
    npu_device_open("gpu:1", nullptr, &device);
  }).join();
  CHECK(there.empty());
  CHECK(here == npu_last_error());
}
