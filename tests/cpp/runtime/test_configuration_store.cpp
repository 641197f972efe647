// The folder of configurations that programs without Python use: where it is looked for, what is
// wrong with a damaged one, and that no damage of the index gets past the reader unnoticed.
#include <doctest/doctest.h>

#include <string>

#include "error.h"
#include "fuzz.h"
#include "ops/gemm/gemm_design.h"
#include "runtime/configuration_store.h"
#include "stored_configurations.h"

using namespace npu;

namespace {

template <typename Call>
std::string refusal(ErrorKind kind, Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    CHECK(error.kind() == kind);
    return error.what();
  }
  return "accepted";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

const std::string kUse =
    "gemm npu1 one.config 0123 89abcdef prefers=host layout=row " + test::kSmallDesign + "\n";

std::string index_refusal(const std::string& lines, int count = 1) {
  const std::string text = "npu-configurations 1\n" + lines + strf("end %d\n", count);
  return refusal(ErrorKind::kFormat, [&] { parse_index(text); });
}

}  // namespace

TEST_CASE("an index is read line by line") {
  const auto uses = parse_index("npu-configurations 1\n" + kUse +
                                "dequant npu2 npu2-dequant.config 77 0000000a\nend 2\n");
  REQUIRE(uses.size() == 2);
  CHECK(uses[0].operation == "gemm");
  CHECK(uses[0].generation == arch::Generation::kNpu1);
  CHECK(uses[0].key() == "one");
  CHECK(uses[0].source == "0123");
  CHECK(uses[0].crc32 == 0x89abcdef);
  CHECK(uses[0].about.at("tile") == "4x8x4");
  CHECK(uses[1].key() == "npu2-dequant");
  CHECK(uses[1].about.empty());
}

TEST_CASE("what is wrong with an index is said with its line") {
  const auto whole = [](const std::string& text) {
    return refusal(ErrorKind::kFormat, [&] { parse_index(text); });
  };
  CHECK(contains(whole(""), "line 1"));
  CHECK(contains(whole("npu-configurations 2\nend 0\n"), "another version"));
  CHECK(contains(whole("npu-configurations 1\n" + kUse), "line 3: the index ends before"));
  CHECK(contains(whole("npu-configurations 1\n" + kUse.substr(0, 40)), "the index ends before"));
  CHECK(contains(whole("npu-configurations 1\n" + std::string(5000, 'x')), "longer than"));
  CHECK(contains(whole("npu-configurations 1\nend 0\nmore\n"), "5 bytes follow"));
  CHECK(contains(index_refusal(kUse, 2), "\"2\" uses are announced, 1 were found"));
  CHECK(contains(index_refusal("gemm npu1 one.config 0123\n"), "line 2: expected OPERATION"));
  CHECK(contains(index_refusal("gemm npu3 one.config 0 0\n"), "use npu1 or npu2"));
  CHECK(contains(index_refusal("gemm npu1 one.config 0 xyz\n"), "CRC-32"));
  CHECK(contains(index_refusal("gemm npu1 one.config 0 0 =3\n"), "not key=value"));
  CHECK(contains(index_refusal("gemm npu1 one.config 0 0 a=1 a=2\n"), "given twice"));
  for (const char* name : {"../one.config", "/etc/passwd", ".hidden", "a/b", "a\\b"}) {
    CHECK(contains(index_refusal(strf("gemm npu1 %s 0 0\n", name)), "not a file name"));
  }
}

TEST_CASE("designs say what they lack") {
  const auto design = [](const std::string& about) {
    return refusal(ErrorKind::kFormat, [&] {
      ops::GemmDesign::of(
          parse_index("npu-configurations 1\ngemm npu1 one.config 0 0 " + about + "\nend 1\n")[0]);
    });
  };
  const std::string good = "prefers=host layout=row " + test::kSmallDesign;
  CHECK(design(good) == "accepted");
  CHECK(contains(design("prefers=host"), "\"a\" is missing"));
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    return design(text.replace(text.find(from), from.size(), to));
  };
  CHECK(contains(with("tile=4x8x4", "tile=4x8"), "not a valid tile"));
  CHECK(contains(with("tile=4x8x4", "tile=4x8x4x4"), "not a valid tile"));
  CHECK(contains(with("tile=4x8x4", "tile=4x0x4"), "not a valid tile"));
  CHECK(contains(with("k_mt=8", "k_mt=99999999999999999999"), "not a valid k_mt"));
  CHECK(contains(with("layout=row", "layout=diagonal"), "not a valid layout"));
  CHECK(contains(with("a=bfloat16", "a=complex"), "not a valid a"));
  CHECK(contains(with("c_buffers=1", "c_buffers=3"), "not a valid c_buffers"));
}

TEST_CASE("random damage of an index is refused or harmless") {
  test::StoredConfigurations folder;
  folder.add("one.config", "prefers=host layout=row " + test::kSmallDesign);
  folder.add("two.config", "prefers=array layout=col " + test::kSmallDesign);
  const int accepted = test::fuzz(folder.index(), 20000, [](const std::string& text) {
    for (const ConfigurationUse& use : parse_index(text)) {
      if (use.operation != "gemm") continue;
      perf::GemmPoint point = ops::GemmDesign::of(use).point;
      point.M = point.K = point.N = 100;
      const double seconds =
          ops::gemm_seconds(arch::Timing(use.generation, arch::TimingTable{}), point, false);
      REQUIRE(seconds > 0);
    }
  });
  CHECK(accepted < 20000);
}

TEST_CASE("a folder is found where it is named") {
  test::StoredConfigurations folder, other;
  folder.add("one.config", "prefers=host layout=row " + test::kSmallDesign);
  folder.write_index();
  const test::Environment none("NPU_CONFIGURATIONS", other.folder().c_str());
  const auto store = ConfigurationStore::open(folder.folder().string());
  CHECK(store->folder() == folder.folder());
  CHECK(store->load(store->uses()[0]).name == "small");
  const std::string missing = refusal(ErrorKind::kUnavailable, [] { ConfigurationStore::open(); });
  CHECK(contains(missing, other.folder().string()));
  CHECK(contains(missing, "set NPU_CONFIGURATIONS"));
  {
    const test::Environment set("NPU_CONFIGURATIONS", folder.folder().c_str());
    CHECK(ConfigurationStore::open()->uses().size() == 1);
  }
  // Without a name: beside the program first, where the library is installed last.
  const auto defaults = ConfigurationStore::default_folders();
  REQUIRE(defaults.size() == 3);
  CHECK(defaults[0] ==
        std::filesystem::canonical("/proc/self/exe").parent_path() / "configurations");
  for (const auto& path : defaults) CHECK(path.filename() == "configurations");
}

TEST_CASE("files that are damaged, missing or of another folder are refused") {
  test::StoredConfigurations folder;
  folder.add("one.config", "prefers=host layout=row " + test::kSmallDesign);
  folder.write_index();
  const auto store = ConfigurationStore::open(folder.folder().string());
  const auto load = [&](ErrorKind kind) {
    return refusal(kind, [&] { store->load(store->uses()[0]); });
  };
  const std::string good = test::small_configuration_file();
  for (const size_t at : {size_t{30}, good.size() / 2, good.size() - 1}) {
    std::string bytes = good;
    bytes[at] = static_cast<char>(bytes[at] ^ 4);
    test::write_file(folder.folder() / "one.config", bytes);
    CHECK(contains(load(ErrorKind::kFormat), "is damaged"));
  }
  test::write_file(folder.folder() / "one.config", good.substr(0, good.size() - 4));
  CHECK(contains(load(ErrorKind::kFormat), "is damaged"));
  std::filesystem::remove(folder.folder() / "one.config");
  CHECK(contains(load(ErrorKind::kUnavailable), "one.config is missing"));
  std::filesystem::create_directory(folder.folder() / "one.config");
  CHECK(contains(load(ErrorKind::kUnavailable), "one.config is missing"));
}
