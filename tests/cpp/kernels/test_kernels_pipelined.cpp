// Asserts the pipelined kernels (aie_kernels/matmul_pipelined.cc, convert_bfp16.cc) in every npu2
// host build: the results of the published kernels bit for bit, rows outside the ones asked for
// untouched, and Error(kKernel) for operands they cannot take.
#include <doctest/doctest.h>

#include "kernel_calls.h"

using namespace kernel_test;

namespace {

constexpr Shape kShape{8, 8, 8};
constexpr int kM = 32, kN = 48;

std::vector<Build> npu2_builds() {
  std::vector<Build> out;
  for (const Build& build : builds()) {
    if (build.generation == Generation::kNpu2) out.push_back(build);
  }
  return out;
}

// `shift` < 0: the kernel takes none. C comes back, of which rows `row` on are computed.
template <typename TIn, typename TOut>
std::vector<TOut> run(const Build& build, const std::string& name, int m, int k, std::vector<TIn> a,
                      std::vector<TIn> b, std::vector<TOut> c, int shift, int row) {
  std::vector<npu::KernelArgument> arguments = {buffer(a),  buffer(b),  buffer(c),
                                                integer(m), integer(k), integer(kN)};
  if (shift >= 0) arguments.push_back(integer(shift));
  if (row >= 0) arguments.push_back(integer(row));
  npu::CoreState core;
  build.find(name.c_str())(arguments, core);
  return c;
}

template <typename TOut>
void check_integers(const Build& build, const std::string& type, int shift, bool column_major) {
  std::mt19937 rng(3);
  const std::string layout = column_major ? "_bcol" : "";
  for (const int k : {16, 24, 64}) {
    const auto a = random_integers<int8_t>(area(kM, k), rng);
    const auto b = random_integers<int8_t>(area(k, kN), rng);
    const auto c = random_integers<TOut>(area(kM, kN), rng);
    const auto want = run(build, "matmul_i8_" + type + layout, kM, k, a, b, c, shift, -1);
    const std::string name = "matmul_i8_" + type + "_pipelined" + layout;
    INFO(build.name() << " " << name << " k=" << k);
    CHECK(run(build, name, kM, k, a, b, c, shift, 0) == want);
    // The lower half of A on the lower half of C.
    const std::vector<int8_t> lower(a.begin() + static_cast<int>(area(kM / 2, k)), a.end());
    const auto got = run(build, name, kM / 2, k, lower, b, c, shift, kM / 2);
    const auto half = static_cast<int>(area(kM / 2, kN));
    CHECK(std::equal(c.begin(), c.begin() + half, got.begin()));
    CHECK(std::equal(want.begin() + half, want.end(), got.begin() + half));
  }
}

std::vector<uint8_t> converted(const Build& build, const char* name, std::vector<uint16_t> source,
                               int depth) {
  std::vector<uint8_t> out(source.size() / 8 * 9);
  std::vector<npu::KernelArgument> arguments = {buffer(source), buffer(out),
                                                integer(static_cast<int64_t>(source.size()))};
  if (depth > 0) arguments.push_back(integer(depth));
  npu::CoreState core;
  build.find(name)(arguments, core);
  return out;
}

}  // namespace

TEST_CASE("pipelined int8 kernels are the published ones bit for bit") {
  for (const Build& build : npu2_builds()) {
    for (const bool column_major : {false, true}) {
      check_integers<int8_t>(build, "i8", 7, column_major);
      check_integers<int16_t>(build, "i16", 3, column_major);
      check_integers<int32_t>(build, "i32", -1, column_major);
    }
  }
}

TEST_CASE("pipelined bfp16 kernels are the published ones bit for bit") {
  std::mt19937 rng(4);
  for (const Build& build : npu2_builds()) {
    for (const int k : {16, 40}) {
      for (const int spread : {3, 90}) {  // 90: beyond what the fast builds multiply
        const auto a = random_bf16(area(kM, k), rng, spread);
        const auto b = random_bf16(area(k, kN), rng, spread);
        const std::vector<float> c(area(kM, kN), 0.25f);
        const auto a_blocks = converted(build, "convert_bf16_bfp16_a", a, 0);
        for (const bool column_major : {false, true}) {
          const auto b_blocks = column_major ? converted(build, "convert_bf16_bfp16_b_bcol", b, 0)
                                             : converted(build, "convert_bf16_bfp16_b", b, k);
          const std::string layout = column_major ? "_bcol" : "";
          const auto want = run(build, "matmul_bf16bfp16_f32" + layout, kM, k, a, b, c, -1, -1);
          const auto got =
              run(build, "matmul_bfp16_f32_pipelined", kM, k, a_blocks, b_blocks, c, -1, 0);
          int wrong = 0;
          for (size_t i = 0; i < want.size(); ++i) {
            wrong += std::bit_cast<uint32_t>(want[i]) != std::bit_cast<uint32_t>(got[i]);
          }
          INFO(build.name() << layout << " k=" << k << " spread " << spread);
          CHECK(wrong == 0);
        }
      }
    }
  }
}

TEST_CASE("BFP16 in memory: the exponent, then eight mantissas") {
  // 1 = 64 * 2^(127 - 133); -128 * 2^-6 = -2 has a larger exponent, so its block counts in 2^-5.
  std::vector<uint16_t> tile(64, bf16_word(0));
  for (int i = 0; i < 8; ++i) tile[static_cast<size_t>(i)] = bf16_word(1.0f);
  tile[8] = bf16_word(-2.0f);
  tile[9] = bf16_word(0.5f);
  for (const Build& build : npu2_builds()) {
    const auto blocks = converted(build, "convert_bf16_bfp16_a", tile, 0);
    REQUIRE(blocks.size() == 72);
    CHECK(blocks[0] == 127);
    CHECK(blocks[1] == 64);
    CHECK(blocks[8] == 64);
    CHECK(blocks[9] == 128);
    CHECK(static_cast<int8_t>(blocks[10]) == -64);
    CHECK(blocks[11] == 16);
    CHECK(blocks[18] == 0);
  }
}

TEST_CASE("pipelined kernels refuse operands they cannot take") {
  std::vector<int8_t> a(area(kM, 64)), b(area(64, kN)), c(area(kM, kN));
  std::vector<uint16_t> source(128);
  std::vector<uint8_t> blocks(143);  // one byte short
  for (const Build& build : npu2_builds()) {
    const auto with = [&](int m, int k, int row) {
      return raised(build, "matmul_i8_i8_pipelined",
                    {buffer(a), buffer(b), buffer(c), integer(m), integer(k), integer(kN),
                     integer(0), integer(row)});
    };
    const std::string refused = npu::kind_name(npu::ErrorKind::kKernel);
    CHECK(with(kM, 16, 0) == "none");
    CHECK(with(kM, 8, 0) == refused);
    CHECK(with(kM, 72, 0) == refused);
    CHECK(with(kM, 16, 8) == refused);  // no multiple of 16
    CHECK(with(kM, 16, -16) == refused);
    CHECK(with(kM, 16, 16) == refused);  // past the end of C
    CHECK(with(16, 16, 16) == "none");
    CHECK(raised(build, "convert_bf16_bfp16_a", {buffer(source), buffer(blocks), integer(128)}) ==
          refused);
    CHECK(raised(build, "convert_bf16_bfp16_a", {buffer(source), buffer(blocks), integer(32)}) ==
          refused);
    CHECK(raised(build, "convert_bf16_bfp16_b",
                 {buffer(source), buffer(blocks), integer(64), integer(16)}) == refused);
    CHECK(raised(build, "convert_bf16_bfp16_b",
                 {buffer(source), buffer(blocks), integer(64), integer(8)}) == "none");
  }
}
