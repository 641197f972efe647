// The GEMV kernel on 8-bit and bfloat16 blocks: every host build against a double-precision product
// of the block read by its published layout (docs/gemv.md), and the kernels that expand such blocks
// against the same values. Blocks of 4-bit codes, the ends of row-blocks and what is refused are in
// test_gemv_kernels.cpp.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernel_calls.h"
#include "kernels/kernel.h"

namespace {

using namespace npu;
using kernel_test::bf16_value, kernel_test::bf16_word, kernel_test::Build, kernel_test::builds;

constexpr int kQ8 = 1, kBf16 = 2, kQ8_0 = 4;
constexpr int kFormats[] = {kQ8, kBf16, kQ8_0};

const char* kernel_of(int format) { return format == kQ8_0 ? "gemv_small_block" : "gemv_block"; }

// To nearest even, of finite values.
uint16_t rounded(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

struct Memory {
  alignas(64) std::byte block[5120];  // behind a small block random, too
  alignas(64) uint16_t x[2048];
  alignas(64) float sums[256];
  alignas(64) int32_t y[128];
  alignas(64) int32_t words[16];
  alignas(64) int32_t state[16];
  alignas(64) float work[5120];
  int format, columns, group, codes_at;  // columns of a block and of a scale
  uint32_t bytes;

  Memory(int which, unsigned seed, bool whole)
      : format(which),
        columns(which == kBf16 ? 80 : 128),
        group(which == kQ8_0 ? 32 : 16),
        codes_at(which == kQ8_0 ? 512 : 1024),
        bytes(which == kQ8_0 ? 4608 : 5120) {
    std::memset(sums, 0, sizeof sums);
    std::memset(y, 0x7F, sizeof y);
    std::memset(words, 0, sizeof words);
    std::memset(state, 0, sizeof state);
    std::memset(work, 0x7F, sizeof work);
    std::mt19937 random(seed);
    const auto uniform = [&] { return static_cast<float>(random() % 2001) / 1000 - 1; };
    for (std::byte& b : block) b = static_cast<std::byte>(random());
    if (format != kBf16) {
      for (int i = 0; i < codes_at / 4; ++i) {
        const float d = whole ? 0.25f * static_cast<float>(1 + random() % 2) : 0.1f * uniform();
        std::memcpy(block + 4 * i, &d, 4);
      }
    } else {
      for (int i = 0; i < 2560; ++i) {
        const uint16_t w = bf16_word(whole ? static_cast<float>(random() % 255) - 127 : uniform());
        std::memcpy(block + 2 * i, &w, 2);
      }
    }
    for (uint16_t& v : x) {
      v = bf16_word(whole ? static_cast<float>(random() % 9) - 4 : uniform());
    }
  }
  void setup(int x_blocks, int batch) {
    const int32_t record[] = {1,  1,  1,   x_blocks, 0, batch, 0,        0,
                              64, 32, 100, 0,        0, 0,     x_blocks, format};
    std::copy(std::begin(record), std::end(record), words);
  }
  std::vector<KernelArgument> arguments(int batch) {
    const auto buffer = [](auto& array) {
      return KernelArgument{reinterpret_cast<std::byte*>(array), sizeof array, 0};
    };
    return {KernelArgument{block, bytes, 0},
            buffer(x),
            buffer(sums),
            buffer(y),
            buffer(words),
            buffer(state),
            buffer(work),
            KernelArgument{nullptr, 0, batch},
            KernelArgument{nullptr, 0, format}};
  }
  float scale(int row, int column) const {
    float d;
    std::memcpy(&d, block + 4 * (column / group * 32 + row), 4);
    return d;
  }
  int code(int row, int column) const {
    return static_cast<int8_t>(block[codes_at + column * 32 + row]);
  }
  double weight(int row, int column) const {
    if (format != kBf16) return double{scale(row, column)} * code(row, column);
    uint16_t w;
    std::memcpy(&w, block + 2 * (column * 32 + row), 2);
    return double{bf16_value(w)};
  }
  double product(int line, int row, bool magnitude = false) const {
    double sum = 0;
    for (int c = 0; c < columns; ++c) {
      const double term = weight(row, c) * double{bf16_value(x[line * columns + c])};
      sum += magnitude ? std::abs(term) : term;
    }
    return sum;
  }
};

}  // namespace

TEST_CASE("gemv_block: whole numbers are exact in every build, format, batch and line of x") {
  for (const Build& build : builds()) {
    CAPTURE(build.name());
    for (const int format : kFormats) {
      CAPTURE(format);
      const HostKernel kernel = build.find(kernel_of(format));
      for (const int batch : {1, 2, 4, 8}) {
        CAPTURE(batch);
        Memory memory(format, static_cast<unsigned>(batch), true);
        const int lines = 2048 / (memory.columns * batch);
        memory.setup(lines, batch);
        std::fill_n(memory.sums, 256, 3.0f);
        std::vector<double> expected(256, 3.0);
        CoreState core;
        for (int step = 0; step < lines; ++step) {
          kernel(memory.arguments(batch), core);
          for (int v = 0; v < batch; ++v) {
            for (int r = 0; r < 32; ++r) {
              expected[static_cast<size_t>(v * 32 + r)] += memory.product(step * batch + v, r);
            }
          }
        }
        bool same = true;
        for (size_t i = 0; i < 256; ++i) same &= double{memory.sums[i]} == expected[i];
        CHECK(same);
        CHECK(memory.state[0] == 0);
        CHECK(memory.state[2] == 1);  // of two objects
      }
    }
  }
}

TEST_CASE("gemv_block: random values of 8-bit and bfloat16 weights within their bounds") {
  for (const Build& build : builds()) {
    CAPTURE(build.name());
    for (const int format : kFormats) {
      CAPTURE(format);
      const HostKernel kernel = build.find(kernel_of(format));
      for (const int batch : {1, 2, 4, 8}) {
        Memory memory(format, 11, false);
        memory.setup(2, batch);
        CoreState core;
        kernel(memory.arguments(batch), core);
        double worst = 0;
        for (int v = 0; v < batch; ++v) {
          for (int r = 0; r < 32; ++r) {
            // tests/python/compare.py: a block has sums of a scale's columns and of its groups, one
            // of bf16 80.
            const int sums = memory.group + memory.columns / memory.group;
            const double steps = (format == kBf16 ? 80 : sums) + 4;
            const double bound = 3 * steps * std::ldexp(memory.product(v, r, true), -24);
            worst = std::max(
                worst, std::abs(double{memory.sums[v * 32 + r]} - memory.product(v, r)) / bound);
          }
        }
        CHECK(worst <= 1);
        CHECK(worst > 0);
      }
    }
  }
}

TEST_CASE("gemv_block: infinities and NaNs of x arrive, those of a scale spoil its row only") {
  for (const Build& build : builds()) {
    CAPTURE(build.name());
    for (const int format : kFormats) {
      CAPTURE(format);
      const HostKernel kernel = build.find(kernel_of(format));
      for (const int batch : {1, 8}) {
        CAPTURE(batch);
        for (const uint16_t word : {uint16_t{0x7F80}, uint16_t{0xFF80}, uint16_t{0x7FC0}}) {
          CAPTURE(word);
          Memory of_x(format, 5, true), of_w(format, 5, true);
          of_x.x[33] = word;  // of the first line
          const float scale = bf16_value(word);
          // Group 2 of row 19; of bfloat16 the weight of column 64.
          if (format == kBf16) std::memcpy(of_w.block + 2 * (64 * 32 + 19), &word, 2);
          if (format != kBf16) std::memcpy(of_w.block + 4 * (2 * 32 + 19), &scale, 4);
          for (Memory* memory : {&of_x, &of_w}) {
            memory->setup(2, batch);
            CoreState core;
            kernel(memory->arguments(batch), core);
            int wrong = 0;
            for (int v = 0; v < batch; ++v) {
              for (int r = 0; r < 32; ++r) {
                const float sum = memory->sums[v * 32 + r];
                const bool spoiled = memory == &of_x ? v == 0 : r == 19;
                wrong += spoiled ? std::isfinite(sum) : double{sum} != memory->product(v, r);
              }
            }
            CHECK(wrong == 0);
          }
        }
      }
    }
  }
}

TEST_CASE(
    "dequant_q8, dequant_q8_0 and dequant_bf16 give the formula's bits in row order in every "
    "build") {
  for (const int format : kFormats) {
    CAPTURE(format);
    for (const Build& build : builds()) {
      CAPTURE(build.name());
      const HostKernel kernel = build.find(format == kQ8     ? "dequant_q8"
                                           : format == kQ8_0 ? "dequant_q8_0"
                                                             : "dequant_bf16");
      REQUIRE(bool(kernel));
      Memory memory(format, 3, false);
      if (format != kBf16) {  // products that round, overflow, or are denormal
        const float odd[] = {std::numeric_limits<float>::max(), 1e-40f, 1.0000001f, -3.3333333f};
        for (int i = 0; i < 4; ++i) std::memcpy(memory.block + 4 * (5 + i), &odd[i], 4);
      }
      alignas(64) uint16_t out[32 * 128];
      std::memset(out, 0x55, sizeof out);
      const auto bytes = static_cast<uint32_t>(32 * memory.columns * 2);
      const std::vector<KernelArgument> arguments{{memory.block, memory.bytes, 0},
                                                  {reinterpret_cast<std::byte*>(out), bytes, 0}};
      CoreState core;
      kernel(arguments, core);
      int different = 0;
      for (int r = 0; r < 32; ++r) {
        for (int c = 0; c < memory.columns; ++c) {
          uint16_t wanted;
          if (format != kBf16) {
            // Added to zero: there is no -0.
            const float exact = memory.scale(r, c) * static_cast<float>(memory.code(r, c)) + 0.0f;
            wanted = std::isinf(exact) ? bf16_word(exact) : rounded(exact);
          } else {
            std::memcpy(&wanted, memory.block + 2 * (c * 32 + r), 2);
          }
          different += out[r * memory.columns + c] != wanted;
        }
      }
      CHECK(different == 0);
      bool untouched = true;
      for (int i = 32 * memory.columns; i < 32 * 128; ++i) untouched &= out[i] == 0x5555;
      CHECK(untouched);
    }
  }
}
