// Every array operation gives on the XRT device, over the stand-in, the bits that the emulated NPU
// gives: the same streams on the same data, in any order and repeatedly, from buffers whose host
// and device copies are apart, while the configuration is reloaded at random between runs. And
// products through the C interface, which packs, wraps and synchronises by itself.
//
// Real configurations are written by Python: the folder is NPU_TEST_CONFIGURATIONS, and without it
// these cases say so and check nothing.
#include <cstdio>
#include <cstdlib>
#include <npu/npu.hpp>
#include <random>

#include "ops/gemm/gemm_schedule.h"
#include "runtime/configuration_store.h"
#include "runtime/operation_type.h"
#include "xrt_fixture.h"

namespace {

using namespace npu;
using namespace npu::test;
using Values = Request::Values;

// Small, but several tasks each.
const std::vector<std::pair<const char*, Values>>& requests() {
  static const std::vector<std::pair<const char*, Values>> kRequests = {
      {"gemm", {{"m", 100}, {"k", 130}, {"n", 90}}},
      {"gemv", {{"n", 100}, {"k", 600}, {"batch", 2}}},
      {"gemv", {{"n", 300}, {"k", 256}, {"output", 2}, {"top", 3}}},
      {"dequant", {{"n", 70}, {"k", 300}}},
      {"rms_norm", {{"rows", 33}, {"width", 256}, {"residual", 1}}},
      {"rope", {{"tokens", 32}, {"heads", 2}, {"width", 64}}},
      {"geglu", {{"elements", 16384}}},
      {"attention",
       {{"tokens", 20},
        {"keys", 48},
        {"heads", 2},
        {"kv_heads", 1},
        {"head_dim", 64},
        {"query_position", 28}}},
      {"decoder",
       {{"position", 40},
        {"sliding", 1},
        {"global", 1},
        {"width", 320},
        {"heads", 4},
        {"kv_heads", 2},
        {"head_dim", 64},
        {"ffn", 512},
        {"window", 32},
        {"vocabulary", 1000},
        {"top", 8}}},
      {"prefill",
       {{"tokens", 8},
        {"position", 16},
        {"sliding", 1},
        {"global", 1},
        {"width", 320},
        {"heads", 4},
        {"kv_heads", 2},
        {"head_dim", 64},
        {"ffn", 512},
        {"window", 32}}}};
  return kRequests;
}

const char* configurations() {
  const char* folder = std::getenv("NPU_TEST_CONFIGURATIONS");
  if (folder != nullptr && *folder != '\0') return folder;
  std::puts("skipped: NPU_TEST_CONFIGURATIONS names no folder of configurations");
  return nullptr;
}

std::string contents(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Finite numbers of magnitude 0.01 to 2 as bfloat16, and as float32.
void fill(std::span<std::byte> bytes, std::mt19937& random) {
  for (size_t i = 0; i + 1 < bytes.size(); i += 2) {
    const auto word = static_cast<uint32_t>(random());
    bytes[i] = static_cast<std::byte>(word);
    bytes[i + 1] = static_cast<std::byte>((word >> 8 & 0x80) | (0x3C + (word >> 16) % 4));
  }
}

// An operation with what it reads and, after run(), what it wrote.
struct Work {
  std::shared_ptr<const Configuration> configuration;
  std::vector<Submission> submissions;

  std::vector<std::vector<std::byte>> run(Device& device) const {
    std::mt19937 random(17);
    std::vector<std::vector<std::byte>> out;
    device.load(configuration);
    for (const Submission& submission : submissions) {
      const auto stream = device.prepare(submission.words);
      std::vector<std::unique_ptr<Buffer>> buffers;
      std::vector<BufferRef> refs;
      for (const ArgumentLayout& argument : submission.arguments) {
        refs.emplace_back();
        if (argument.bytes == 0) continue;
        // Not at the buffer's beginning, where a missing offset would not show.
        constexpr size_t kBefore = 128;
        buffers.push_back(device.allocate(argument.bytes + kBefore));
        BufferRef& ref = refs.back();
        ref = {buffers.back().get(), kBefore, argument.bytes, argument.access};
        fill({ref.host(), ref.bytes}, random);
        std::copy_n(argument.contents.begin(), std::min(argument.contents.size(), ref.bytes),
                    ref.host());
        ref.sync_to_device();
      }
      finish(*device.submit(stream, refs));
      for (const BufferRef& ref : refs) {
        if (ref.buffer == nullptr || !writes(ref.access)) continue;
        ref.sync_from_device();
        out.emplace_back(ref.host(), ref.host() + ref.bytes);
      }
    }
    return out;
  }
};

}  // namespace

TEST_CASE("xrt: every operation gives the bits of the emulated NPU") {
  const char* folder = configurations();
  if (folder == nullptr) return;
  const auto store = ConfigurationStore::open(folder);
  for (const auto generation : {arch::Generation::kNpu1, arch::Generation::kNpu2}) {
    const bool npu1 = generation == arch::Generation::kNpu1;
    xrt_double::Settings settings;
    if (npu1) settings.device = "emu:npu1+reload-random-3", settings.name = "NPU Phoenix";
    XrtMachine machine(settings);
    std::vector<std::pair<std::string, Work>> all;
    for (const auto& [name, values] : requests()) {
      const auto use = std::find_if(store->uses().begin(), store->uses().end(), [&](const auto& u) {
        return u.operation == name && u.generation == generation;
      });
      REQUIRE(use != store->uses().end());
      const std::string file = contents(store->folder() / use->file);
      machine.build(std::as_bytes(std::span(file.data(), file.size())));
      Work work{std::make_shared<const Configuration>(store->load(*use)), {}};
      const OperationType& type = operation_type(name);
      work.submissions = type.submissions(*work.configuration, Request(type, values));
      all.emplace_back(name, std::move(work));
    }
    const auto emulated = open_device(npu1 ? "emu:npu1" : "emu:npu2", "fast");
    const auto device = open_device("xrt", "fast");
    std::vector<std::vector<std::vector<std::byte>>> expected;
    for (const auto& [name, work] : all) {
      CAPTURE(name);
      expected.push_back(work.run(*emulated));
      REQUIRE_FALSE(expected.back().empty());
      for (int i = 0; i < 2; ++i) CHECK(work.run(*device) == expected.back());
    }
    std::vector<size_t> order;
    for (size_t i = 0; i < all.size(); ++i) order.push_back(i);
    std::shuffle(order.begin(), order.end(), std::mt19937(generation == arch::Generation::kNpu1));
    for (const size_t i : order) {
      CAPTURE(all[i].first);
      CHECK(all[i].second.run(*device) == expected[i]);
    }
  }
}

TEST_CASE("xrt: products of the C++ interface give the bits of the emulated NPU") {
  const char* folder = configurations();
  if (folder == nullptr) return;
  XrtMachine machine;
  const auto store = ConfigurationStore::open(folder);
  for (const ConfigurationUse& use : store->uses()) {
    if (use.operation != "gemm" || use.generation != arch::Generation::kNpu2) continue;
    const std::string file = contents(store->folder() / use.file);
    machine.build(std::as_bytes(std::span(file.data(), file.size())));
  }
  const v1::DeviceOptions options{.designs = "array", .configurations = folder};
  const v1::Device emulated("emu:npu2", options), device("xrt", options);
  CHECK(device.info().name == "xrt:npu2");
  CHECK_FALSE(device.info().emulated);
  std::mt19937 random(29);
  std::normal_distribution<float> normal;
  for (const auto& [m, k, n] :
       {std::array{1, 1, 1}, std::array{65, 200, 130}, std::array{256, 128, 128}}) {
    std::vector<float> a(static_cast<size_t>(m * k)), b(static_cast<size_t>(k * n)),
        c(static_cast<size_t>(m * n)), d(c), e(c);
    for (float& x : a) x = normal(random);
    for (float& x : b) x = normal(random);
    emulated.matmul(v1::Matrix(a, m, k), v1::Matrix(b, k, n), v1::Matrix(c, m, n));
    device.matmul(v1::Matrix(a, m, k), v1::Matrix(b, k, n), v1::Matrix(d, m, n));
    CHECK(std::memcmp(c.data(), d.data(), c.size() * 4) == 0);
    const v1::Packed packed = device.pack(v1::Matrix(b, k, n));
    device.matmul(v1::Matrix(a, m, k), packed, v1::Matrix(e, m, n));
    CHECK(std::memcmp(c.data(), e.data(), c.size() * 4) == 0);
    std::vector<int8_t> ai(a.size()), bi(b.size());
    for (int8_t& x : ai) x = static_cast<int8_t>(random());
    for (int8_t& x : bi) x = static_cast<int8_t>(random());
    std::vector<int32_t> ci(c.size()), di(c.size());
    emulated.matmul(v1::Matrix(ai, m, k), v1::Matrix(bi, k, n), v1::Matrix(ci, m, n));
    device.matmul(v1::Matrix(ai, m, k), v1::Matrix(bi, k, n), v1::Matrix(di, m, n));
    CHECK(ci == di);
  }
  CHECK(device.info().submissions > 0);
}
