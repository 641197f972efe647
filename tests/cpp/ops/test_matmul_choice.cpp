// Which designs may run a product (ops/gemm/matmul.h), the policy among them and its memory
// (ops/gemm/gemm_choice.h). tests/python/ops/test_gemm_choice.py plays long sequences of calls.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "devices/null/null_device.h"
#include "error.h"
#include "ops/gemm/gemm_choice.h"
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
