// The GEMV kernels: every host build of gemv_block and gemv_small_block, on blocks of 4-bit codes
// (Q4NX, Q4_0), against a double-precision product of the block read by the published formula, the
// three ways a row-block ends, and operands and formats that must be refused.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "aie_kernels/gemv_setup.h"
#include "error.h"
#include "kernel_calls.h"
#include "kernels/kernel.h"

namespace {

using namespace npu;
using arch::Generation;
using kernel_test::bf16_value, kernel_test::bf16_word, kernel_test::Build, kernel_test::builds;

constexpr int kQ4nx = 0, kQ4_0 = 3;
constexpr int kFormats[] = {kQ4nx, kQ4_0};

const char* kernel_of(int format) { return format == kQ4_0 ? "gemv_small_block" : "gemv_block"; }
uint32_t bytes_of(int format) { return format == kQ4_0 ? 4608 : 5120; }

// A core's memory with the kernels' operands; words and state as in designs/gemv.py.
struct Memory {
  alignas(64) std::byte block[5120];
  alignas(64) uint16_t x[2048];
  alignas(64) float sums[256];
  alignas(64) int32_t y[128];
  alignas(64) int32_t words[16];
  alignas(64) int32_t state[16];
  alignas(64) float work[5120];
  int format;

  // What lies behind a small block is random, too.
  explicit Memory(unsigned seed, bool whole = true, int which = kQ4nx) : format(which) {
    std::memset(sums, 0, sizeof sums);
    std::memset(y, 0x7F, sizeof y);
    std::memset(words, 0, sizeof words);
    std::memset(state, 0, sizeof state);
    std::memset(work, 0x7F, sizeof work);
    std::mt19937 random(seed);
    for (std::byte& b : block) b = static_cast<std::byte>(random());
    auto* planes = reinterpret_cast<uint16_t*>(block);
    for (int i = 0; i < 256; ++i) {
      const auto uniform = [&] { return static_cast<float>(random() % 1000) / 1000; };
      planes[i] =
          bf16_word(whole ? 0.25f * static_cast<float>(1 + random() % 2) : 0.1f * uniform());
      if (format == kQ4_0) continue;
      planes[256 + i] =
          bf16_word(whole ? static_cast<float>(random() % 33) / 8 - 2 : uniform() - 0.5f);
    }
    for (uint16_t& v : x) {
      v = bf16_word(whole ? static_cast<float>(random() % 9) - 4
                          : static_cast<float>(random() % 2001) / 1000 - 1);
    }
  }
  void setup(int row_blocks, int x_objects, int x_blocks, int batch, int output, int top = 0) {
    const int32_t record[] = {1,  row_blocks, x_objects - 1, x_blocks, 0, batch, output,   top,
                              64, 32,         100,           0,        0, 0,     x_blocks, format};
    std::copy(std::begin(record), std::end(record), words);
  }
  std::vector<KernelArgument> arguments(int batch) {
    const auto buffer = [](auto& array) {
      return KernelArgument{reinterpret_cast<std::byte*>(array), sizeof array, 0};
    };
    return {KernelArgument{block, bytes_of(format), 0},
            buffer(x),
            buffer(sums),
            buffer(y),
            buffer(words),
            buffer(state),
            buffer(work),
            KernelArgument{nullptr, 0, batch},
            KernelArgument{nullptr, 0, format}};
  }
  double weight(int row, int column) const {
    const auto* codes = reinterpret_cast<const uint8_t*>(block) + (format == kQ4_0 ? 512 : 1024);
    const uint8_t byte = codes[row / 16 * 2048 + column * 8 + row % 16 / 2];
    const int code = row % 2 != 0 ? byte >> 4 : byte & 15;
    const auto* planes = reinterpret_cast<const uint16_t*>(block);
    const int at = column / 32 * 32 + row;
    if (format == kQ4_0) return double{bf16_value(planes[at])} * (code - 8);
    return double{bf16_value(planes[at])} * code + double{bf16_value(planes[256 + at])};
  }
  double product(int line, int row, bool magnitude = false) const {
    double sum = 0;
    for (int c = 0; c < 256; ++c) {
      const double term = weight(row, c) * double{bf16_value(x[line * 256 + c])};
      sum += magnitude ? std::abs(term) : term;
    }
    return sum;
  }
  // What a sum of line v may be off by: rounding errors of the kernels' order of additions, thrice
  // as many by AIE2's rule.
  double bound(int v, int row) const {
    double scale = 0;
    const auto* planes = reinterpret_cast<const uint16_t*>(block);
    for (int c = 0; c < 256; ++c) {
      const int at = c / 32 * 32 + row;
      const double x_of = std::abs(double{bf16_value(x[v * 256 + c])});
      const double d = std::abs(double{bf16_value(planes[at])});
      // tests/python/compare.py: (34 * 271 + 128 * 31 + 18 * 15) d + (31 + 18) |m|. Without minima
      // s = -136 X + sum (128 + code) x, sums up to 279 sum |x|, and 8 + 2 roundings of d s.
      scale += x_of * (format == kQ4_0
                           ? (34 * 279 + 136 * 31 + 10 * 8) * d
                           : 13452 * d + 49 * std::abs(double{bf16_value(planes[256 + at])}));
    }
    return 3 * std::ldexp(scale, -24);
  }
  // Zeros the second half of the first `planes` planes, but word `kept` of the last of these.
  void leave_out_half(int planes, int kept) {
    auto* const scales = reinterpret_cast<uint16_t*>(block);
    const uint16_t scale = scales[256 * (planes - 1) + kept];
    for (int i = 0; i < planes; ++i) std::fill_n(scales + 256 * i + 128, 128, uint16_t{0});
    scales[256 * (planes - 1) + kept] = scale;
  }
  // Sums of so many lines that are not exactly the product; finite ones where spoiled(line, row).
  template <typename Spoiled>
  int wrong_sums(int lines, const Spoiled& spoiled) const {
    int wrong = 0;
    for (int v = 0; v < lines; ++v) {
      for (int r = 0; r < 32; ++r) {
        const float sum = sums[v * 32 + r];
        wrong += spoiled(v, r) ? std::isfinite(sum) : double{sum} != product(v, r);
      }
    }
    return wrong;
  }
  int wrong_rows() const {
    return wrong_sums(1, [](int, int) { return false; });
  }
};

// body(kernel, format) for every build and format of 4-bit codes.
template <typename Body>
void for_formats(const Body& body) {
  for (const Build& build : builds()) {
    CAPTURE(build.name());
    for (const int format : kFormats) {
      CAPTURE(format);
      const HostKernel kernel = build.find(kernel_of(format));
      REQUIRE(bool(kernel));
      body(kernel, format);
    }
  }
}

}  // namespace

TEST_CASE("gemv_block: whole numbers are exact in every build, batch and line of x") {
  for_formats([](const HostKernel& kernel, int format) {
    for (const int batch : {1, 2, 4, 8}) {
      CAPTURE(batch);
      Memory memory(static_cast<unsigned>(batch), true, format);
      const int lines = 8 / batch;
      memory.setup(1, 2, lines, batch, 0);
      std::fill_n(memory.sums, 256, 3.0f);
      std::vector<double> expected(256, 3.0);
      CoreState core;
      for (int step = 0; step < lines; ++step) {  // the second object of x stays out
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
      CHECK(memory.y[0] == 0x7F7F7F7F);
    }
  });
}

TEST_CASE("gemv_block: a row-block ends with the last block of its last object of x") {
  const HostKernel kernel = find_host_kernel("gemv_block", Generation::kNpu2, Arithmetic::kFast);
  Memory memory(5);
  memory.setup(2, 3, 3, 1, 1);
  memory.words[14] = 2;  // objects of 3, 3 and 2 blocks
  CoreState core;
  double expected = 0;
  for (int block = 0; block < 8; ++block) {
    CHECK(memory.state[1] == 0);
    expected += memory.product(block % 3, 7);
    kernel(memory.arguments(1), core);
  }
  CHECK(memory.state[0] == 0);
  CHECK(memory.state[1] == 1);
  CHECK(double{reinterpret_cast<const float*>(memory.y)[7]} == expected);
}

TEST_CASE("gemv_block: random values within the bound of tests/python/compare.py") {
  for_formats([](const HostKernel& kernel, int format) {
    for (const int batch : {1, 2, 4, 8}) {
      CAPTURE(batch);
      Memory memory(11, false, format);
      memory.setup(1, 2, 8 / batch, batch, 0);
      CoreState core;
      kernel(memory.arguments(batch), core);
      double worst = 0;
      for (int v = 0; v < batch; ++v) {
        for (int r = 0; r < 32; ++r) {
          const double error = std::abs(double{memory.sums[v * 32 + r]} - memory.product(v, r));
          worst = std::max(worst, error / memory.bound(v, r));
        }
      }
      CHECK(worst <= 1);
      CHECK(worst > 0);
    }
  });
}

// Groups of 32 columns, which a build may bring to one unit: of equal sizes, with all bits of bf16
// set, with few or many that are tiny beside the largest, of zeros.
TEST_CASE("gemv_block: columns of widely different sizes are exact in every build") {
  const auto of_group = [](int group, int c) -> float {
    const auto odd = static_cast<float>(2 * (c % 4) - 3);
    switch (group) {
      case 0:
        return 255 * odd / 3;
      case 1:
        return c % 2 == 0 ? 1020 : -1020;
      case 2:
        return c == 5 ? 1024 : (c % 6 == 0 ? odd / 4 : odd * 64);
      case 3:
        return c == 31 ? -1020 : odd / 4;
      case 4:
        return 0;
      case 5:
        return c == 7 ? 0.25f : 0;
      case 6:
        return c % 8 == 0 ? odd / 4 : (odd > 0 ? 63.75f : -63.75f);
      default:
        return c == 0 ? 1024 : 0.25f;
    }
  };
  for_formats([&](const HostKernel& kernel, int format) {
    for (const int power : {0, -110, 100, -60, 60}) {
      CAPTURE(power);
      Memory memory(3, true, format);
      memory.setup(1, 1, 2, 1, 1);
      for (int c = 0; c < 256; ++c) {
        memory.x[c] = bf16_word(std::ldexp(of_group(c / 32, c % 32), power));
        REQUIRE(bf16_value(memory.x[c]) == std::ldexp(of_group(c / 32, c % 32), power));
      }
      CoreState core;
      kernel(memory.arguments(1), core);
      CHECK(memory.wrong_rows() == 0);
    }
  });
}

TEST_CASE("gemv_block: lines of x that differ in one column are told apart") {
  for_formats([](const HostKernel& kernel, int format) {
    Memory memory(4, true, format);
    memory.setup(1, 1, 2, 1, 1);
    const uint16_t first = memory.x[200], second = bf16_word(bf16_value(first) + 1);
    CoreState core;
    for (const uint16_t word : {first, second, first}) {
      memory.x[200] = word;
      memory.state[0] = 0;
      std::fill_n(memory.sums, 32, 0.0f);
      kernel(memory.arguments(1), core);
      CHECK(memory.wrong_rows() == 0);
    }
  });
}

TEST_CASE("gemv_block: infinities and NaNs of x arrive in every build") {
  for_formats([](const HostKernel& kernel, int format) {
    for (const uint16_t word : {uint16_t{0x7F80}, uint16_t{0x7FC0}}) {
      Memory memory(3, true, format);
      memory.setup(1, 1, 2, 1, 1);
      memory.x[77] = word;
      CoreState core;
      kernel(memory.arguments(1), core);
      int finite = 0;
      for (int r = 0; r < 32; ++r) finite += std::isfinite(memory.sums[r]) ? 1 : 0;
      CHECK(finite == 0);
    }
  });
}

// Of scales, then of minima too.
TEST_CASE("gemv_block: half a block without scales adds nothing, unless x is too large for that") {
  for_formats([](const HostKernel& kernel, int format) {
    const auto check = [&](int batch, int planes, int kept, int infinite) {
      CAPTURE(batch);
      CAPTURE(planes);
      CAPTURE(kept);
      CAPTURE(infinite);  // line of x
      Memory memory(static_cast<unsigned>(batch), true, format);
      memory.setup(1, 2, 8 / batch, batch, 0);
      memory.leave_out_half(planes, kept);
      if (infinite >= 0) memory.x[infinite * 256 + 200] = 0x7F80;
      CoreState core;
      kernel(memory.arguments(batch), core);
      CHECK(memory.wrong_sums(batch, [&](int v, int) { return v == infinite; }) == 0);
    };
    for (const int batch : {1, 2, 4, 8}) {
      for (int planes = 1; planes <= (format == kQ4_0 ? 1 : 2); ++planes) {
        for (const int kept : {0, 128, 255}) {
          check(batch, planes, kept, -1);
          check(batch, planes, kept, batch - 1);
        }
      }
    }
  });
}

TEST_CASE("gemv_block: an infinite or NaN scale spoils its row only") {
  for_formats([](const HostKernel& kernel, int format) {
    for (const int batch : {1, 8}) {
      CAPTURE(batch);
      for (const uint16_t word : {uint16_t{0x7F80}, uint16_t{0xFF80}, uint16_t{0x7FC0}}) {
        Memory memory(3, true, format);
        memory.setup(1, 2, 8 / batch, batch, 0);
        std::memcpy(memory.block + 2 * (5 * 32 + 19), &word, 2);  // of group 5, row 19
        CoreState core;
        kernel(memory.arguments(batch), core);
        CHECK(memory.wrong_sums(batch, [](int, int row) { return row == 19; }) == 0);
      }
    }
  });
}

TEST_CASE("gemv_block: a complete row-block leaves as bf16, fp32 or a list, and the sums restart") {
  for_formats([](const HostKernel& kernel, int format) {
    for (const int output : {0, 1, 2}) {
      CAPTURE(output);
      Memory memory(5, true, format);
      memory.setup(2, 1, 1, 2, output, 5);  // row-blocks at rows 64 and 96, of 100 rows
      CoreState core{.rounding = 12};       // to nearest even, as gemv_setup sets it
      for (int i = 0; i < 2; ++i) kernel(memory.arguments(2), core);
      CHECK(std::all_of(memory.sums, memory.sums + 64, [](float s) { return s == 0; }));
      CHECK(memory.state[0] == 0);
      CHECK(memory.state[1] == 0);
      for (int v = 0; v < 2; ++v) {
        std::vector<std::pair<double, int>> values;
        for (int slot = 0; slot < 2; ++slot) {
          for (int r = 0; r < 32; ++r) {
            const auto exact = static_cast<float>(memory.product(v, r));
            const int at = (slot * 2 + v) * 32 + r;
            if (64 + slot * 32 + r < 100) values.emplace_back(-exact, 64 + slot * 32 + r);
            if (output == 1) CHECK(reinterpret_cast<float*>(memory.y)[at] == exact);
            if (output == 0) {
              const float got = bf16_value(reinterpret_cast<uint16_t*>(memory.y)[at]);
              CHECK(std::abs(got - exact) <= std::ldexp(std::abs(exact), -8));
            }
          }
        }
        if (output != 2) continue;
        std::stable_sort(values.begin(), values.end());
        for (int i = 0; i < 5; ++i) {
          CHECK(double{std::bit_cast<float>(memory.y[v * 10 + i])} ==
                -values[static_cast<size_t>(i)].first);
          CHECK(memory.y[v * 10 + 5 + i] == values[static_cast<size_t>(i)].second);
        }
      }
    }
  });
}

TEST_CASE("gemv_setup takes a core's record and starts afresh") {
  for (const Build& build : builds()) {
    CAPTURE(build.name());
    const HostKernel kernel = build.find("gemv_setup");
    REQUIRE(bool(kernel));
    Memory memory(1);
    auto* table = reinterpret_cast<int32_t*>(memory.x);
    for (int i = 0; i < 512; ++i) table[i] = i;
    std::fill_n(memory.state, 16, 7);
    std::fill_n(memory.sums, 256, 7.0f);
    const auto all = memory.arguments(0);
    const auto call = [&](KernelArgument index) {
      const std::vector<KernelArgument> arguments{all[1], all[4], all[5], all[2], index};
      CoreState core;
      kernel(arguments, core);
    };
    call({nullptr, 0, 31});
    CHECK(memory.words[0] == 31 * 16);
    CHECK(memory.words[15] == 31 * 16 + 15);
    CHECK(std::all_of(memory.state, memory.state + 5, [](int32_t s) { return s == 0; }));
    CHECK(memory.state[5] == memory.words[2] + 1);  // objects of x
    CHECK(memory.state[6] == memory.words[3]);      // blocks of the first
    CHECK(std::all_of(memory.state + 7, memory.state + 16, [](int32_t s) { return s == 0; }));
    CHECK(std::all_of(memory.sums, memory.sums + 256, [](float s) { return s == 0; }));
    CHECK_THROWS_AS(call({nullptr, 0, 32}), Error);
    CHECK_THROWS_AS(call({nullptr, 0, -1}), Error);
    CHECK_THROWS_AS(call(all[0]), Error);
  }
}

TEST_CASE("gemv_piece writes all of a piece, whatever it held") {
  for (const Build& build : builds()) {
    CAPTURE(build.name());
    std::vector<int32_t> y(128);
    for (size_t i = 0; i < y.size(); ++i) y[i] = static_cast<int32_t>(1000 + i);
    for (const int32_t before : {0, -1}) {
      std::vector<int32_t> piece(17, before), state(16);
      state[gemv::State::kSent] = 1;
      CoreState core;
      build.find("gemv_piece")(std::vector{kernel_test::buffer(y), kernel_test::buffer(piece),
                                           kernel_test::buffer(state)},
                               core);
      CHECK(std::equal(piece.begin(), piece.begin() + 16, y.begin() + 16));
      CHECK(piece[16] == before);
      CHECK(state[gemv::State::kSent] == 2);
    }
  }
}

TEST_CASE("gemv_block refuses setups and operands that leave its buffers") {
  for (const int format : kFormats) {
    CAPTURE(format);
    const HostKernel kernel =
        find_host_kernel(kernel_of(format), Generation::kNpu2, Arithmetic::kFast);
    CoreState core;
    const auto refused = [&](auto change, int batch = 1) {
      Memory memory(2, true, format);
      memory.setup(2, 1, 4, 1, 0, 3);
      std::vector<KernelArgument> arguments = memory.arguments(batch);
      change(memory, arguments);
      CHECK_THROWS_AS(kernel(arguments, core), Error);
    };
    using Arguments = std::vector<KernelArgument>;
    Memory good(2, true, format);
    good.setup(2, 1, 4, 1, 0, 3);
    CHECK_NOTHROW(kernel(good.arguments(1), core));
    refused([](Memory&, Arguments&) {}, 2);                     // batch disagrees
    refused([](Memory& m, Arguments&) { m.words[5] = 3; }, 3);  // no such batch
    refused([](Memory& m, Arguments&) { m.words[3] = 9; });     // x object too long
    refused([](Memory& m, Arguments&) { m.words[3] = 0; });
    refused([](Memory& m, Arguments&) { m.words[2] = -1; });
    refused([](Memory& m, Arguments&) { m.words[14] = 0; });  // the last x object
    refused([](Memory& m, Arguments&) { m.words[14] = 5; });
    refused([](Memory& m, Arguments&) { m.words[1] = 9; });  // y object too long
    refused([](Memory& m, Arguments&) { m.words[6] = 3; });  // no such output
    refused([](Memory& m, Arguments&) { m.words[6] = 2, m.words[7] = 65; });
    refused([](Memory& m, Arguments&) { m.words[6] = 2, m.words[7] = 0; });
    refused([](Memory& m, Arguments&) { m.state[0] = 4; });
    refused([](Memory& m, Arguments&) { m.state[1] = -1; });
    refused([](Memory& m, Arguments&) { m.state[2] = 1; });  // objects of x
    refused([](Memory& m, Arguments&) { m.state[2] = -1; });
    refused([](Memory&, Arguments& a) { --a[0].bytes; });
    refused([](Memory&, Arguments& a) { a[1].bytes = 4095; });
    refused([](Memory&, Arguments& a) { a[3].bytes = 511; });
    refused([](Memory&, Arguments& a) { a[6].bytes = 20479; });
    refused([](Memory&, Arguments& a) { a.pop_back(); });
    refused([](Memory&, Arguments& a) { a[7] = a[0]; });
    const int other = format + 1;                                 // of the same size
    refused([&](Memory&, Arguments& a) { a[8].value = other; });  // format disagrees
    // Lines of 128 columns: at most 16; of 80: 25.
    const auto lines = [](int which, int count) {
      return [=](Memory& m, Arguments& a) {
        m.words[15] = which, m.words[3] = m.words[14] = count, a[8].value = which;
      };
    };
    refused(lines(other, 17));
    if (format == kQ4nx) refused(lines(2, 26));
  }
}

TEST_CASE("gemv kernels refuse formats of the other size of blocks") {
  for (const Generation generation : {Generation::kNpu1, Generation::kNpu2}) {
    for (const char* name : {"gemv_block", "gemv_one", "gemv_kept", "gemv_small_block",
                             "gemv_small_one", "gemv_small_kept"}) {
      CAPTURE(std::string(name));
      const bool small = std::string(name).find("small") != std::string::npos;
      const HostKernel kernel = find_host_kernel(name, generation, Arithmetic::kFast);
      for (int format = -1; format <= 5; ++format) {
        CAPTURE(format);
        Memory memory(2, true, format);  // of 5120 bytes or 4608, as the kernel takes them
        memory.setup(1, 1, 1, 1, 0);
        std::vector<uint16_t> x(1 << 16);  // more than any of them holds
        std::vector<KernelArgument> arguments = memory.arguments(1);
        arguments[0].bytes = bytes_of(small ? kQ4_0 : kQ4nx);
        arguments[1] = kernel_test::buffer(x);
        const bool one = !std::string(name).ends_with("_block");
        if (one) arguments.erase(arguments.begin() + 7);
        CoreState core;
        if (small ? format == 3 || format == 4 : format >= 0 && format <= 2) {
          CHECK_NOTHROW(kernel(arguments, core));
        } else {
          CHECK_THROWS_AS(kernel(arguments, core), Error);
        }
      }
    }
  }
}
