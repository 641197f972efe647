// Asserts the kernels of a C in BFP16 (aie_kernels/matmul_pipelined.cc, convert_bfp16.cc) in every
// npu2 host build against their model in double, bit for bit: sums loaded from and stored to
// blocks, rows outside the ones asked for untouched, sums converted where they lie, zeros.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>

#include "block_float.h"
#include "kernel_calls.h"

using namespace kernel_test;
using npu::block_float::decode;
using npu::block_float::encode;
using npu::block_float::kBytes;

namespace {

constexpr int kM = 32, kN = 48, kTileBytes = 72;

std::vector<Build> npu2_builds() {
  std::vector<Build> out;
  for (const Build& build : builds()) {
    if (build.generation == Generation::kNpu2) out.push_back(build);
  }
  return out;
}

void call(const Build& build, const char* name, std::vector<npu::KernelArgument> arguments) {
  npu::CoreState core;
  build.find(name)(arguments, core);
}

// rows x columns random values in tiles of 8x8 blocks along columns; `spread`: of exponents.
std::vector<uint8_t> random_blocks(int rows, int columns, int spread, std::mt19937& rng) {
  std::normal_distribution<double> normal;
  std::uniform_int_distribution<int> exponent(-spread, spread);
  std::vector<uint8_t> out(area(rows, columns) / 8 * kBytes);
  for (size_t block = 0; block < out.size() / kBytes; ++block) {
    double values[8];
    for (double& value : values) value = std::ldexp(normal(rng), exponent(rng));
    encode(values, out.data() + block * kBytes);
  }
  return out;
}

// The bytes of row `row` of the tile in tile row `down` and column `across` of `columns` tiles.
size_t at(int down, int across, int columns, int row) {
  return (static_cast<size_t>(down) * static_cast<size_t>(columns) + static_cast<size_t>(across)) *
             kTileBytes +
         static_cast<size_t>(row) * kBytes;
}

// C += A B of blocks: exact sums of eight products, added in float, then blocks again.
std::vector<uint8_t> model(const std::vector<uint8_t>& a, const std::vector<uint8_t>& b,
                           std::vector<uint8_t> c, int m, int k) {
  for (int row = 0; row < m; ++row) {
    for (int across = 0; across < kN / 8; ++across) {
      uint8_t* const block = c.data() + at(row / 8, across, kN / 8, row % 8);
      double sums[8];
      for (int j = 0; j < 8; ++j) {
        auto sum = static_cast<float>(decode(block, j));
        for (int step = 0; step < k / 8; ++step) {
          const uint8_t* const left = a.data() + at(row / 8, step, k / 8, row % 8);
          const uint8_t* const right = b.data() + at(across, step, k / 8, j);
          double products = 0;
          for (int i = 0; i < 8; ++i) products += decode(left, i) * decode(right, i);
          sum += static_cast<float>(products);
        }
        sums[j] = sum;
      }
      encode(sums, block);
    }
  }
  return c;
}

std::vector<uint8_t> multiplied(const Build& build, std::vector<uint8_t> a, std::vector<uint8_t> b,
                                std::vector<uint8_t> c, int m, int k, int row) {
  call(build, "matmul_bfp16_bfp16_pipelined",
       {buffer(a), buffer(b), buffer(c), integer(m), integer(k), integer(kN), integer(row)});
  return c;
}

}  // namespace

TEST_CASE("products with sums in BFP16 are their model bit for bit") {
  std::mt19937 rng(5);
  for (const int k : {16, 40, 64}) {
    for (const int spread : {2, 60}) {  // 60: beyond what the fast builds multiply
      const auto a = random_blocks(kM, k, spread, rng), b = random_blocks(kN, k, spread, rng);
      const auto c = random_blocks(kM, kN, spread, rng);
      const auto want = model(a, b, c, kM, k);
      for (const Build& build : npu2_builds()) {
        INFO(build.name() << " k=" << k << " spread " << spread);
        CHECK(multiplied(build, a, b, c, kM, k, 0) == want);
        // The lower half of A on the lower half of C.
        const auto half = static_cast<std::ptrdiff_t>(c.size() / 2);
        const std::vector<uint8_t> lower(a.begin() + static_cast<std::ptrdiff_t>(a.size() / 2),
                                         a.end());
        const auto got = multiplied(build, lower, b, c, kM / 2, k, kM / 2);
        CHECK(std::equal(c.begin(), c.begin() + half, got.begin()));
        CHECK(std::equal(want.begin() + half, want.end(), got.begin() + half));
      }
    }
  }
}

TEST_CASE("a block of C with a NaN stays one, and its neighbours do not become one") {
  std::mt19937 rng(6);
  const auto a = random_blocks(kM, 16, 1, rng), b = random_blocks(kN, 16, 1, rng);
  auto c = random_blocks(kM, kN, 1, rng);
  c[at(1, 2, kN / 8, 3)] = 255;
  for (const Build& build : npu2_builds()) {
    INFO(build.name());
    const auto got = multiplied(build, a, b, c, kM, 16, 0);
    int bad = 0;
    for (size_t block = 0; block < got.size(); block += kBytes) bad += got[block] == 255;
    CHECK(bad == 1);
    CHECK(got[at(1, 2, kN / 8, 3)] == 255);
  }
}

TEST_CASE("sums become BFP16 where they lie, or elsewhere, as the format says") {
  std::mt19937 rng(7);
  std::normal_distribution<float> normal;
  std::vector<float> wide(192);
  std::vector<uint16_t> narrow(wide.size());
  for (size_t i = 0; i < wide.size(); ++i) {
    wide[i] = std::ldexp(normal(rng), static_cast<int>(i % 5) * 3);
    narrow[i] = bf16_word(wide[i]);
  }
  wide[0] = 255.9f;  // 127.95 steps, of which there are 127
  for (int i = 1; i < 8; ++i) wide[static_cast<size_t>(i)] = 1;
  const auto blocks_of = [](const auto& values, auto value) {
    std::vector<uint8_t> out(values.size() / 8 * kBytes);
    for (size_t i = 0; i < values.size(); i += 8) {
      double block[8];
      for (size_t j = 0; j < 8; ++j) block[j] = value(values[i + j]);
      encode(block, out.data() + i / 8 * kBytes);
    }
    return out;
  };
  const auto check = [](const Build& build, const char* name, auto source,
                        const std::vector<uint8_t>& want) {
    INFO(build.name() << " " << name);
    std::vector<uint8_t> apart(want.size());
    const auto count = integer(static_cast<int64_t>(source.size()));
    call(build, name, {buffer(source), buffer(apart), count});
    CHECK(apart == want);
    call(build, name, {buffer(source), buffer(source), count});
    CHECK(std::memcmp(source.data(), want.data(), want.size()) == 0);
  };
  const auto from_wide = blocks_of(wide, [](float x) { return static_cast<double>(x); });
  const auto from_narrow =
      blocks_of(narrow, [](uint16_t x) { return static_cast<double>(bf16_value(x)); });
  for (const Build& build : npu2_builds()) {
    check(build, "convert_f32_bfp16_c", wide, from_wide);
    check(build, "convert_bf16_bfp16_c", narrow, from_narrow);
  }
  CHECK(from_wide[1] == 127);
}

TEST_CASE("a C of zeros in BFP16 has exponents of zero") {
  for (const Build& build : npu2_builds()) {
    std::vector<uint8_t> c(3 * kTileBytes, 0xA5);
    call(build, "zero_bfp16", {buffer(c), integer(192)});
    CHECK(c == std::vector<uint8_t>(c.size(), 0));
  }
}
