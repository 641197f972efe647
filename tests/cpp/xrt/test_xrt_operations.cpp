// Every array operation gives on the XRT device, over the stand-in, the bits that the emulated NPU
// gives: the same streams on the same data, in any order and repeatedly, from buffers whose host
// and device copies are apart, while the configuration is reloaded at random between runs. GEMV,
// whose padded results hold anything, runs through its class, on weights that are read in place.
//
// Real configurations are written by Python: the folder is NPU_TEST_CONFIGURATIONS, and without it
// the case says so and checks nothing.
#include <cstdio>
#include <cstdlib>
#include <random>

#include "ops/gemv/gemv.h"
#include "runtime/configuration_store.h"
#include "runtime/operation_type.h"
#include "runtime/overlay.h"
#include "xrt_fixture.h"

namespace {

using namespace npu;
using namespace npu::test;
using Values = Request::Values;

// Small, but several tasks each.
const std::vector<std::pair<const char*, Values>>& requests() {
  static const std::vector<std::pair<const char*, Values>> kRequests = {
      {"gemm", {{"m", 100}, {"k", 130}, {"n", 90}}},
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

const ConfigurationUse& use_of(const ConfigurationStore& store, const std::string& operation,
                               arch::Generation generation) {
  for (const ConfigurationUse& use : store.uses()) {
    if (use.operation == operation && use.generation == generation) return use;
  }
  FAIL("no configuration of ", operation);
  return store.uses()[0];
}

void build(const XrtMachine& machine, const ConfigurationStore& store,
           const ConfigurationUse& use) {
  const std::string file = contents(store.folder() / use.file);
  machine.build(std::as_bytes(std::span(file.data(), file.size())));
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

// Streams carry the programs that the device has.
Work work_for(Device& device, Configuration configuration, const char* name, const Values& values) {
  Work work{std::make_shared<const Configuration>(with_images(device, std::move(configuration))),
            {}};
  const OperationType& type = operation_type(name);
  work.submissions = type.submissions(*work.configuration, Request(type, values));
  return work;
}

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
    const auto emulated = open_device(npu1 ? "emu:npu1" : "emu:npu2", "fast");
    const auto device = open_device("xrt", "fast");
    std::vector<std::pair<std::string, Work>> all;
    std::vector<std::vector<std::vector<std::byte>>> expected;
    for (const auto& [name, values] : requests()) {
      CAPTURE(name);
      const ConfigurationUse& use = use_of(*store, name, generation);
      build(machine, *store, use);
      all.emplace_back(name, work_for(*device, store->load(use), name, values));
      expected.push_back(work_for(*emulated, store->load(use), name, values).run(*emulated));
      REQUIRE_FALSE(expected.back().empty());
      for (int i = 0; i < 2; ++i) CHECK(all.back().second.run(*device) == expected.back());
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

TEST_CASE("xrt: GEMV on weights in the program's memory gives the bits of the emulated NPU") {
  const char* folder = configurations();
  if (folder == nullptr) return;
  const auto store = ConfigurationStore::open(folder);
  XrtMachine machine;
  const ConfigurationUse& use = use_of(*store, "gemv", arch::Generation::kNpu2);
  build(machine, *store, use);
  constexpr int64_t kN = 500, kK = 600, kBatch = 11, kTop = 4, kBlocks = 16 * 3;
  std::mt19937 random(23);
  std::vector<std::byte> weights(kBlocks * 5120 + 64);
  fill(weights, random);
  std::vector<float> x(kBatch * kK);
  for (float& value : x) value = static_cast<float>(random() % 256) / 64 - 2;
  const auto results = [&](const char* name, size_t skew) {
    auto device = std::make_shared<SharedDevice>(open_device(name, "fast"));
    ops::Gemv gemv(device, store->load(use));
    const auto bound = gemv.bind(std::span(weights).subspan(skew, kBlocks * 5120), kN, kK,
                                 npu::blocks::Format::kQ4nx);
    CHECK(bound->in_place);
    const ops::MatrixView view{
        reinterpret_cast<const std::byte*>(x.data()), ops::ElementType::kF32, kBatch, kK, kK, 1};
    std::vector<float> y(kBatch * kN);
    std::vector<ops::TopEntry> top(kBatch * kTop);
    gemv.run(*bound, view, reinterpret_cast<std::byte*>(y.data()), ops::ElementType::kF32);
    gemv.top(*bound, view, kTop, top.data());
    for (const ops::TopEntry& entry : top) {
      y.push_back(entry.value);
      y.push_back(static_cast<float>(entry.row));
    }
    return y;
  };
  for (const size_t skew : {0, 4, 64}) {
    const std::vector<float> expected = results("emu:npu2", skew), found = results("xrt", skew);
    CHECK(std::memcmp(expected.data(), found.data(), expected.size() * 4) == 0);
  }
}

// For tests that do not include the backend: a machine on which every GEMM of npu2 was built.
namespace npu_xrt_test {

std::shared_ptr<void> machine_with_gemms(const char* folder) {
  auto machine = std::make_shared<XrtMachine>();
  const auto store = ConfigurationStore::open(folder);
  for (const ConfigurationUse& use : store->uses()) {
    if (use.operation != "gemm" || use.generation != arch::Generation::kNpu2) continue;
    build(*machine, *store, use);
  }
  return machine;
}

}  // namespace npu_xrt_test
