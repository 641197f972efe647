// Which designs may run a product (ops/gemm/matmul.h), the policy among them and its memory
// (ops/gemm/gemm_choice.h). tests/python/ops/test_gemm_choice.py plays long sequences of calls.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "devices/null/null_device.h"
#include "error.h"
#include "ops/gemm/gemm_choice.h"
#include "ops/gemm/host_cost.h"
#include "ops/gemm/matmul.h"
#include "stored_configurations.h"

using namespace npu;
using namespace npu::ops;

namespace {

std::vector<GemmDesign> designs() {
  std::vector<GemmDesign> out;
  const auto add = [&](const char* key, bool for_array, bool pipelined, GemmLayout layout) {
    GemmDesign design;
    design.key = key;
    design.kind = {ElementType::kI8, ElementType::kI32, layout, GemmSums::kWide, false};
    design.for_array = for_array;
    design.point.pipelined = pipelined;
    out.push_back(design);
  };
  add("host", false, false, GemmLayout::kRow);
  add("host pipelined", false, true, GemmLayout::kRow);
  add("large", true, true, GemmLayout::kRow);
  add("small", true, false, GemmLayout::kRow);
  add("columns", true, true, GemmLayout::kColumn);
  return out;
}

std::vector<std::string> keys(const DesignPreference& preference,
                              GemmLayout layout = GemmLayout::kRow) {
  const auto all = designs();
  std::vector<std::string> out;
  const GemmKind kind{ElementType::kI8, ElementType::kI32, layout, GemmSums::kWide, false};
  for (const GemmDesign* design : candidates(all, kind, preference)) out.push_back(design->key);
  return out;
}

}  // namespace

TEST_CASE("designs are those of the product, the preference and the kernels") {
  using Keys = std::vector<std::string>;
  CHECK(keys({false, {}}) == Keys{"host"});
  CHECK(keys({false, true}) == Keys{"host pipelined"});
  CHECK(keys({false, {}, false}).empty());  // four of eight columns compute
  CHECK(keys({true, {}}) == Keys{"large", "small"});
  CHECK(keys({true, true}) == Keys{"large"});
  CHECK(keys({true, false}) == Keys{"small"});
  CHECK(keys({true, false}, GemmLayout::kColumn) == Keys{"columns"});  // nothing else is there
  CHECK(keys({false, {}}, GemmLayout::kColumn).empty());
  CHECK(keys({true, {}}, GemmLayout::kPacked).empty());
}

TEST_CASE("the loaded design stays until another has saved two loads") {
  GemmChooser chooser(1.0);
  const std::vector<Candidate> large = {{"a", 1.0}, {"b", 3.0}}, small = {{"a", 1.6}, {"b", 1.0}};
  auto choice = chooser.choose(large, 5);
  CHECK(choice.candidate == 0);
  CHECK(choice.load_seconds == 1.0);
  CHECK(choice.predicted_seconds == 2.0);
  for (int call = 0; call < 3; ++call) CHECK(chooser.choose(small, 6).candidate == 0);
  choice = chooser.choose(small, 6);  // 4 x 0.6 > 2
  CHECK(choice.candidate == 1);
  CHECK(std::string(choice.reason) == "saves more than its load");
  CHECK(chooser.choose(large, 7).candidate == 1);  // one call does not bring it back
  // Another operation has loaded something: a load is due, so the fastest wins.
  CHECK(chooser.choose(large, 8).candidate == 0);
  // What is the only one for its product is not remembered against others.
  CHECK(chooser.choose({{"c", 0}}, 9).load_seconds == 0);
  CHECK(chooser.choose(small, 10).candidate == 1);
  CHECK_THROWS_AS(chooser.choose({}, 10), Error);
}

TEST_CASE("the index says which cores compute, all of them if nothing") {
  const auto point_of = [](const std::string& cores) {
    ConfigurationUse use;
    use.generation = arch::Generation::kNpu2;
    use.file = "one.config";
    use.about = {{"prefers", "host"},     {"layout", "row"},      {"a", "int8"},
                 {"c", "int32"},          {"accumulate", "wide"}, {"bf16", "native"},
                 {"kernel", "published"}, {"tile", "64x128x64"},  {"k_mt", "128"},
                 {"b_layout", "row"},     {"c_buffers", "1"},     {"a_parts", "1"},
                 {"b_pairs", "0"}};
    if (!cores.empty()) use.about["cores"] = cores;
    return GemmDesign::of(use).point;
  };
  CHECK(point_of("").rows == 4);
  CHECK(point_of("").columns == 8);
  CHECK(point_of("1x2").rows == 1);
  CHECK(point_of("1x2").columns == 2);
  CHECK(tile_of(point_of("1x2")).native_n() == 128);
  for (const char* bad : {"1", "0x1", "5x1", "1x9", "1x1x1", "x", "1x"}) {
    CAPTURE(bad);
    CHECK_THROWS_AS(point_of(bad), Error);
  }
}

TEST_CASE("part of the array reads what was packed for all of it, not the other way round") {
  perf::GemmPoint point = point_of(arch::Generation::kNpu2, {ElementType::kI8, ElementType::kI32});
  point.m = point.n = 64;
  point.k = 128;
  point.k_mt = 256;
  point.b_column_major = false;
  perf::GemmPoint part = point, deeper = point;
  part.rows = part.columns = 1;
  deeper.k_mt = 128;
  CHECK(tile_of(part).packs_b_like(tile_of(point)));
  CHECK_FALSE(tile_of(point).packs_b_like(tile_of(part)));
  CHECK_FALSE(tile_of(deeper).packs_b_like(tile_of(point)));
}

TEST_CASE("the host computes small products faster on one core, large ones on all") {
  perf::GemmPoint all = point_of(arch::Generation::kNpu2, {ElementType::kI8, ElementType::kI32});
  all.m = all.n = 64;
  all.k = 128;
  all.k_mt = 256;
  perf::GemmPoint one = all;
  one.k_mt = 128;
  one.rows = one.columns = 1;
  const auto faster = [&](int64_t m, int64_t k, int64_t n, int threads) {
    for (perf::GemmPoint* point : {&all, &one}) {
      point->M = m;
      point->K = k;
      point->N = n;
    }
    return host_seconds(one, threads) < host_seconds(all, threads);
  };
  for (const int64_t size : {1, 64, 128}) CHECK(faster(size, size, size, 2));
  for (const int64_t size : {512, 1024, 4096}) CHECK_FALSE(faster(size, size, size, 2));
  CHECK(faster(16, 1024, 1024, 2));  // a quarter of the rows is padding at least
  CHECK_FALSE(faster(16, 1024, 1024, 8));
  CHECK(host_seconds(all, 64) == host_seconds(all, 8));  // a thread for each column
}

TEST_CASE("products run on the configurations of a folder") {
  test::StoredConfigurations folder;
  folder.add("rows.config", "prefers=host layout=row " + test::kSmallDesign);
  folder.add("large.config", "prefers=array layout=row " + test::kSmallDesign);
  folder.write_index();
  const auto store = ConfigurationStore::open(folder.folder().string());
  const auto device = std::make_shared<SharedDevice>(open_null_device(arch::Generation::kNpu1));
  std::vector<float> a(16 * 16), b(16 * 16), c(16 * 16);
  const auto view = [](std::vector<float>& x) {
    return MatrixView{reinterpret_cast<const std::byte*>(x.data()), ElementType::kF32, 16, 16, 16};
  };
  auto* out = reinterpret_cast<std::byte*>(c.data());
  Matmul host(device, store, {false, {}}), array(device, store, {true, {}});
  CHECK(host.run(view(a), view(b), out, ElementType::kF32, {}).design->key == "rows");
  const MatmulReport report = array.run(view(a), view(b), out, ElementType::kF32, {});
  CHECK(report.design->key == "large");
  CHECK(std::string(report.choice.reason) == "the only one");
  CHECK(device->device->counters().configuration_loads == 2);
  // There is none for a B by columns, nor for another type of C.
  CHECK_THROWS_AS(host.run(view(a), view(b).transposed(), out, ElementType::kF32, {}), Error);
  CHECK_THROWS_AS(host.run(view(a), view(b), out, ElementType::kI32, {}), Error);
}

TEST_CASE("a file that is not what the index says of it is refused before it runs") {
  std::string narrower = test::kSmallDesign, larger = test::kSmallDesign;
  narrower.replace(narrower.find("c=float32"), 9, "c=bfloat16");
  larger.replace(larger.find("tile=4x8x4"), 10, "tile=4x8x8");
  test::StoredConfigurations folder;
  folder.add("narrower.config", "prefers=host layout=row " + narrower);
  folder.add("larger.config", "prefers=array layout=row " + larger);
  folder.write_index();
  const auto store = ConfigurationStore::open(folder.folder().string());
  const auto device = std::make_shared<SharedDevice>(open_null_device(arch::Generation::kNpu1));
  std::vector<float> a(16 * 16), c(16 * 16);
  const MatrixView view{reinterpret_cast<const std::byte*>(a.data()), ElementType::kF32, 16, 16,
                        16};
  const auto kind_of = [&](bool for_array, ElementType type) {
    try {
      Matmul matmul(device, store, {for_array, {}});
      matmul.run(view, view, reinterpret_cast<std::byte*>(c.data()), type, {});
    } catch (const Error& error) {
      CHECK(std::string(error.what()).find("does not compute what the index says") !=
            std::string::npos);
      return error.kind();
    }
    FAIL("no error was raised");
    return ErrorKind::kArgument;
  };
  CHECK(kind_of(false, ElementType::kBf16) == ErrorKind::kFormat);
  CHECK(kind_of(true, ElementType::kF32) == ErrorKind::kFormat);
  CHECK(device->device->counters().submissions == 0);
}
