// The prefill configuration's products in every host build, over all m, row-blocks and formats:
// sums against products in double of the operands rounded as prefill_job.h and docs/q4nx.md say
// (weights to bfloat16; on npu2 both operands to BFP16, restated here), within the bound of fp32
// summation, and against unrounded weights within the bound of the roundings; pieces bit for bit
// where sums are whole numbers; operands outside the fast builds' range; what follows small blocks
// in their objects; sharing; refusals. Sums of npu2's fast builds have the same bits.
#include <doctest/doctest.h>

#include <map>
#include <random>
#include <vector>

#include "kernels/prefill_product_core.h"

namespace {

using namespace npu;
using namespace npu::prefill_product_test;
using kernel_test::builds, kernel_test::kUnit;

// What `sums` are off by, as a part of what is allowed.
struct Worst {
  double summed = 0, rounded = 0;
};

Worst compare(const Core& core, const Product& p) {
  const bool npu1 = core.build.generation == kernel_test::Generation::kNpu1;
  const bool silicon = core.build.arithmetic == Arithmetic::kSilicon;
  const int k = p.shape.k();
  // test_kernels.cpp: k roundings, AIE2's rule 10/8 as many. Sums of eight that are added to the
  // sum are among them.
  const double roundings = (npu1 && silicon ? 1.25 : 1) * k;
  const double gamma = roundings * kUnit / (1 - roundings * kUnit);
  std::vector<double> rows(p.a), weights(p.w);
  if (!npu1) {
    for (size_t i = 0; i < rows.size(); i += 8) block_float::round(&rows[i]);
    for (size_t i = 0; i < weights.size(); i += 8) block_float::round(&weights[i]);
  }
  Worst worst;
  for (int i = 0; i < p.shape.m; ++i) {
    for (int j = 0; j < p.shape.n(); ++j) {
      double sum = 0, magnitude = 0, exact = 0, allowed = 0;
      for (int c = 0; c < k; ++c) {
        const auto x = static_cast<size_t>(i * k + c), y = static_cast<size_t>(j * k + c);
        sum += rows[x] * weights[y];
        magnitude += std::fabs(rows[x] * weights[y]);
        exact += p.a[x] * p.exact_w[y];
        // A weight to bf16: 2^-8 of it, after 2^-24; BFP16: 2^-7 of the block's largest value.
        // A weight of bfloat16 is multiplied as it is on npu1.
        double da = 0;
        double dw = p.shape.format == kBf16 ? 0 : std::fabs(p.exact_w[y]) * (0x1p-8 + 0x1p-23);
        if (!npu1) {
          double top_a = 0, top_w = 0;
          for (int e = c / 8 * 8; e < c / 8 * 8 + 8; ++e) {
            top_a = std::max(top_a, std::fabs(p.a[static_cast<size_t>(i * k + e)]));
            top_w = std::max(top_w, std::fabs(p.w[static_cast<size_t>(j * k + e)]));
          }
          da = 0x1p-7 * top_a, dw += 0x1p-7 * top_w;
        }
        allowed += std::fabs(p.a[x]) * dw + std::fabs(p.exact_w[y]) * da + da * dw;
      }
      const double found = core.sum(i, j), bound = gamma * magnitude;
      worst.summed = std::max(worst.summed, std::fabs(found - sum) / bound);
      worst.rounded = std::max(worst.rounded, std::fabs(found - exact) / (allowed + bound));
    }
  }
  return worst;
}

std::vector<Shape> shapes(bool npu1) {
  std::vector<Shape> all;
  for (int m = 16; m <= slots_of(npu1); m *= 2) {
    for (const int format : kFormats) {
      for (const int blocks : {1, 2}) {
        if (format == kBf16 && blocks == 2) continue;
        all.push_back({m, blocks, format, blocks == 2 ? 3 : 1});
      }
    }
  }
  all.push_back({64, 1, kBf16, 3});
  return all;
}

// Of several row-blocks, where the format allows them.
Shape shape_of(int m, int blocks, int format) {
  return {m, format == kBf16 ? 1 : blocks, format, 1};
}

bool is_npu1(const Build& build) { return build.generation == kernel_test::Generation::kNpu1; }

// Of a product's weights as a core has them, how many are not those of its values: by rows of A
// that are `x` in one column.
int wrong_weights(const Build& build, Product& p, double x = 1) {
  const Shape& shape = p.shape;
  std::vector<double> weights(p.w);
  for (size_t i = 0; !is_npu1(build) && i < weights.size(); i += 8) block_float::round(&weights[i]);
  int wrong = 0;
  for (int first = 0; first < shape.k(); first += shape.m) {
    for (int i = 0; i < shape.m * shape.k(); ++i) {
      p.a[static_cast<size_t>(i)] = i % shape.k() == first + i / shape.k() ? x : 0;
    }
    p.pack_a();
    Core core{build, shape};
    core.clear();
    core.multiply(p);
    for (int i = 0; i < std::min(shape.m, shape.k() - first); ++i) {
      for (int j = 0; j < shape.n(); ++j) {
        wrong += core.sum(i, j) != x * weights[static_cast<size_t>(j * shape.k() + first + i)];
      }
    }
  }
  return wrong;
}

}  // namespace

TEST_CASE(
    "prefill_multiply: sums within the bounds of their roundings, the same in npu2's builds") {
  std::map<size_t, std::vector<double>> of_npu2;  // by number of the shape: sums of a fast build
  for (const Build& build : builds()) {
    double summed = 0;
    size_t number = 0;
    for (const Shape& shape : shapes(is_npu1(build))) {
      CAPTURE(build.name());
      CAPTURE(shape.m);
      CAPTURE(shape.blocks);
      CAPTURE(shape.format);
      const Product p(shape, is_npu1(build), 3, {});
      Core core{build, shape};
      core.clear();
      core.multiply(p);
      const Worst worst = compare(core, p);
      CHECK(worst.summed <= 1);
      summed = std::max(summed, worst.summed);
      CHECK(worst.rounded <= 1);
      CHECK(worst.rounded > 0);
      if (!is_npu1(build) && build.arithmetic == Arithmetic::kFast) {
        std::vector<double> sums;
        for (int i = 0; i < shape.m * shape.n(); ++i)
          sums.push_back(core.sum(i / shape.n(), i % shape.n()));
        CHECK(of_npu2.try_emplace(number++, sums).first->second == sums);
      }
      CHECK(core.job[kSliceAt] == 0);  // wraps at the end of a range
      CHECK(core.wrong_lines() == 0);
      CHECK_THROWS_AS(core.piece(), Error);  // there are no more
      CHECK(core.job[kSliceAt + 3] == 5);
    }
    CHECK(summed > 0);  // fp32 did round
  }
}

TEST_CASE("prefill_multiply: every weight bit for bit, as rows of A that are 1 in one column") {
  for (const Build& build : builds()) {
    CAPTURE(build.name());
    for (const int format : kFormats) {
      Product p(shape_of(64, 2, format), is_npu1(build), 11, {});
      CHECK(wrong_weights(build, p) == 0);
    }
  }
}

TEST_CASE("prefill_multiply: every scale of 4 bits without minima, with weights of any size") {
  for (const Build& build : builds()) {
    CAPTURE(build.name());
    std::mt19937 random(12);
    Product p({64, 2, kQ4_0, 1}, is_npu1(build), 12, {});
    for (int j = 0; j < 2; ++j) {
      auto& block = p.w_objects[static_cast<size_t>(j)];
      // Each sign and mantissa once, and zeros.
      for (int i = 0; i < 256; ++i) {
        const int number = i ^ (j * 128), exponent = 118 + i % 7;
        const bool zero = i % 97 == 5;
        const auto word = static_cast<uint16_t>((zero ? 0 : number & 127) |
                                                (zero ? 0 : exponent << 7) | (number & 128) << 8);
        std::memcpy(block.data() + 2 * i, &word, 2);
      }
      // The largest of eight columns: one of all sizes.
      const auto code = [&](int row, int c) {
        constexpr unsigned kLargest[] = {8, 0, 1, 2, 3, 5, 6, 7};
        const unsigned most = kLargest[(c / 8 + row) % 8];
        return std::min(8 - most + static_cast<unsigned>(random()) % (2 * most + 1), 15u);
      };
      for (int row = 0; row < 32; row += 2) {
        for (int c = 0; c < 256; ++c) {
          const auto at =
              codes_at(kQ4_0) + static_cast<size_t>(row / 16 * 2048 + c * 8 + row % 16 / 2);
          block[at] = static_cast<std::byte>(code(row, c) | code(row + 1, c) << 4);
        }
      }
      p.take_values(0, j);
    }
    CHECK(wrong_weights(build, p) == 0);
  }
}

TEST_CASE("prefill_multiply: eight weights of 4 bits too small for what fast builds multiply") {
  for (const Build& build : builds()) {
    CAPTURE(build.name());
    if (is_npu1(build)) continue;  // rounds nothing to blocks
    Product p({64, 2, kQ4_0, 1}, false, 13, {});
    // In a row of each slice. With the smallest exponent that fast builds have they would lose a
    // bit.
    for (int j = 0; j < 2; ++j) {
      auto& block = p.w_objects[static_cast<size_t>(j)];
      for (int slice = 0; slice < 8; ++slice) {
        const int row = slice / 4 * 16 + 5;
        const auto scale = uint16_t{69 << 7 | 0x22};
        std::memcpy(block.data() + 2 * (slice * 32 + row), &scale, 2);
        for (int c = 0; c < 32; ++c) {
          std::byte& both = block[codes_at(kQ4_0) +
                                  static_cast<size_t>(row / 16 * 2048 + (slice * 32 + c) * 8 + 2)];
          const auto code = static_cast<std::byte>(c / 8 == slice % 4 ? 9 : 8);
          both = (both & std::byte{15}) | code << 4;
        }
      }
      p.take_values(0, j);
    }
    CHECK(wrong_weights(build, p, 0x1p-57) == 0);
  }
}

TEST_CASE("prefill_multiply: rows of zeros stay, the others do not depend on how many there are") {
  std::mt19937 random(3);
  for (const Build& build : builds()) {
    CAPTURE(build.name());
    for (const int format : kFormats) {
      for (const int m : {16, slots_of(is_npu1(build))}) {
        CAPTURE(m);
        const Shape shape = shape_of(m, 2, format);
        Product all(shape, is_npu1(build), 5, {});
        // Of row 0 only the second half of every slice.
        for (int c = 0; c < shape.k(); ++c) {
          if (c % 32 < 16) all.a[static_cast<size_t>(c)] = 0;
        }
        all.pack_a();
        Core expected{build, shape};
        expected.clear();
        expected.multiply(all);
        for (const uint32_t used :
             {0x8080u, 0u, 0x0001u, 0x0111u, 0x00FFu, 0x0F0Fu, 0x00F0u, 0x7F7Fu, 0xFFFEu}) {
          CAPTURE(used);
          std::vector<bool> rows;  // these 16, then others like them, or none
          for (int first = 0; first < m; first += 16) {
            const uint32_t some = first == 0 || random() % 3 != 0 ? used : 0;
            for (int row = 0; row < 16; ++row) rows.push_back((some >> row & 1) != 0);
          }
          Product p(all);
          for (int i = 0; i < m * shape.k(); ++i) {
            if (!rows[static_cast<size_t>(i / shape.k())]) p.a[static_cast<size_t>(i)] = 0;
          }
          p.pack_a();
          Core core{build, shape};
          core.clear();
          core.multiply(p);
          int wrong = 0;
          for (int i = 0; i < m; ++i) {
            const bool is_used = rows[static_cast<size_t>(i)];
            for (int j = 0; j < shape.n(); ++j) {
              wrong += core.sum(i, j) != (is_used ? expected.sum(i, j) : 0);
            }
          }
          CHECK(wrong == 0);
        }
      }
    }
  }
}

TEST_CASE("prefill_multiply: operands beyond what fast builds multiply") {
  for (const Build& build : builds()) {
    if (is_npu1(build)) continue;  // rounds nothing to blocks
    for (const Scales& scales : {Scales{1e-24f, 1}, Scales{1e20f, 1e-3f}, Scales{1, 1e-22f}}) {
      CAPTURE(build.name());
      CAPTURE(scales.a);
      CAPTURE(scales.w);
      for (const int format : kFormats) {
        const Shape shape = shape_of(32, 2, format);
        const Product p(shape, false, 4, scales);
        Core core{build, shape};
        core.clear();
        core.multiply(p);
        CHECK(compare(core, p).summed <= 1);
      }
    }
  }
}

TEST_CASE("prefill_multiply: an infinite weight spoils its column only") {
  for (const Build& build : builds()) {
    CAPTURE(build.name());
    // Also of 4 bits, times codes of nothing; and scales of which only a multiple is infinite.
    struct Case {
      int format, zero = -1;
      uint32_t scale = 0x7F80;
    };
    for (const auto& [format, zero, scale] :
         {Case{kQ4nx}, Case{kQ8}, Case{kBf16}, Case{kQ4_0}, Case{kQ8_0}, Case{kQ4nx, 0x00},
          Case{kQ4_0, 0x88}, Case{kQ4_0, 0x88, 0x7E80}, Case{kQ4_0, 0x88, 0x7F7F}}) {
      CAPTURE(format);
      CAPTURE(scale);
      if (is_npu1(build) && scale != 0x7F80) continue;  // these weights are finite there
      const Shape shape = shape_of(16, 2, format);
      Product p(shape, is_npu1(build), 5, {});
      const auto group = p.w_objects[1].begin() + std::ptrdiff_t(codes_at(format)) + 32 * 8;
      if (zero >= 0) std::fill_n(group, 32 * 8, static_cast<std::byte>(zero));
      const uint32_t infinity = has_bytes(format) ? scale << 16 : scale;
      const size_t size = has_bytes(format) ? 4 : 2;  // row 7
      std::memcpy(p.w_objects[1].data() + size * (32 + 7), &infinity, size);
      const int spoiled = format == kBf16 ? 7 : 32 + 7;
      Core core{build, shape};
      core.clear();
      core.multiply(p);
      int wrong = 0;
      for (int i = 0; i < shape.m; ++i) {
        for (int j = 0; j < shape.n(); ++j) {
          wrong += std::isfinite(core.sum(i, j)) == (j == spoiled);
        }
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("prefill_multiply: finite bfloat16 weights beyond the width have no influence") {
  for (const Build& build : builds()) {
    CAPTURE(build.name());
    const Shape shape{64, 1, kBf16, 2};
    Product p(shape, is_npu1(build), 9, {});
    const int width = shape.k() - shape.block_columns();
    for (int i = 0; i < shape.m; ++i) {
      for (int c = width; c < shape.k(); ++c) p.a[static_cast<size_t>(i * shape.k() + c)] = 0;
    }
    p.pack_a();
    std::mt19937 random(10);
    for (size_t i = 0; i < kBlockBytes; i += 2) {  // of every size
      auto word = static_cast<uint16_t>(random());
      if ((word & 0x7F80) == 0x7F80) word ^= 0x80;
      std::memcpy(p.w_objects.back().data() + i, &word, 2);
    }
    Core core{build, shape};
    core.clear();
    core.multiply(p);
    CHECK(compare(core, p).summed <= 1);
  }
}

TEST_CASE("prefill_small_multiply: what follows a block in its object has no influence") {
  for (const Build& build : builds()) {
    CAPTURE(build.name());
    for (const int format : {kQ4_0, kQ8_0}) {
      CAPTURE(format);
      const Shape shape{64, 2, format, 2};
      Product p(shape, is_npu1(build), 12, {});
      Core expected{build, shape};
      expected.clear();
      expected.multiply(p);
      CHECK(compare(expected, p).summed <= 1);
      for (const int behind : {0x00, 0xFF, 0x7F}) {  // zeros, NaNs of either sign
        for (auto& object : p.w_objects) {
          std::fill(object.begin() + 4608, object.end(), static_cast<std::byte>(behind));
        }
        Core core{build, shape};
        core.clear();
        core.multiply(p);
        CHECK(std::memcmp(core.store.data(), expected.store.data(),
                          sizeof(float) * core.store.size()) == 0);
      }
    }
  }
}

TEST_CASE("prefill products of whole numbers: scaled and rounded pieces bit for bit") {
  for (const Build& build : builds()) {
    for (const Shape& shape : shapes(is_npu1(build))) {
      CAPTURE(build.name());
      CAPTURE(shape.m);
      CAPTURE(shape.blocks);
      CAPTURE(shape.format);
      const Product p(shape, is_npu1(build), 6, {1, 1, true});
      std::vector<std::byte> factors(a_bytes(is_npu1(build)), std::byte{0xFF});  // NaN elsewhere
      std::vector<float> factor;
      for (int i = 0; i < shape.m; ++i) {
        factor.push_back(static_cast<float>(i % 11) * 0.25f - 1);
        const int operand = is_npu1(build) ? 512 : 288;
        std::memcpy(&factors[static_cast<size_t>(i / 8 * operand + i % 8 * 4)], &factor.back(), 4);
      }
      Core core{build, shape};
      core.clear();
      core.multiply(p);
      core.call("prefill_scale", {Core::constant(factors), kernel_test::buffer(core.store),
                                  kernel_test::buffer(core.work)});
      const std::vector<uint16_t> found = core.pieces();
      CHECK(core.job[kPieceAt] == shape.blocks * shape.m / 8);
      int wrong = 0;
      for (int i = 0; i < shape.m; ++i) {
        for (int j = 0; j < shape.n(); ++j) {
          double sum = 0;
          for (int c = 0; c < shape.k(); ++c) {
            sum += p.a_at(i, c) * p.w[static_cast<size_t>(j * shape.k() + c)];
          }
          const uint16_t bits = found[static_cast<size_t>(i * shape.n() + j)];
          const uint16_t wanted = nearest(sum * double{factor[static_cast<size_t>(i)]});
          wrong += (bits & 0x7FFF) == 0 ? (wanted & 0x7FFF) != 0 : bits != wanted;
        }
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("prefill_multiply: cores that share objects compute what one computes alone") {
  for (const Build& build : builds()) {
    CAPTURE(build.name());
    for (const Scales& scales : {Scales{}, Scales{1e-24f, 1}}) {
      for (const int format : kFormats) {
        const Shape shape = shape_of(16, 2, format);
        const Product p(shape, is_npu1(build), 7, scales);
        Core alone{build, shape};
        alone.clear();
        alone.multiply(p);
        std::vector<PackedOperand> shared(p.a_objects.size() + p.w_objects.size());
        for (int core = 0; core < 2; ++core) {
          Core other{build, shape};
          other.clear();
          other.multiply(p, &shared);
          CHECK(std::memcmp(other.store.data(), alone.store.data(),
                            sizeof(float) * static_cast<size_t>(shape.m * shape.n())) == 0);
        }
        if (build.arithmetic == Arithmetic::kSilicon) continue;
        // On npu1 refusals have no reason here, and bf16 is multiplied as it is.
        const bool refused = !is_npu1(build) && scales.a < 1;
        CHECK(shared.back().state == PackedOperand::kReady);
        if (!is_npu1(build)) {
          CHECK(shared.front().state ==
                (refused ? PackedOperand::kRefused : PackedOperand::kReady));
        }
      }
    }
  }
}

TEST_CASE("prefill products: what leaves a core's buffers is refused") {
  for (const Build& build : builds()) {
    CAPTURE(build.name());
    const Product p({32, 1, kQ8, 1}, is_npu1(build), 8, {});
    const auto refused = [&](const std::string& name, Shape s, size_t word, int32_t value) {
      Core core{build, s};
      // Of a range's objects of A, or as it is.
      core.job[word] = word == kSliceAt ? value * slots_of(is_npu1(build)) / s.m : value;
      std::vector<KernelArgument> arguments = {
          Core::constant(p.a_objects[0]), Core::constant(p.w_objects[0]),
          Core::constant(p.w_objects[0]), kernel_test::buffer(core.store),
          kernel_test::buffer(core.work), kernel_test::buffer(core.job)};
      if (name.ends_with("_finish")) {
        arguments.erase(arguments.begin() + 1, arguments.begin() + 3);
      }
      if (name.ends_with("_expand")) {
        arguments.erase(arguments.begin() + 3), arguments.erase(arguments.begin());
      }
      if (name == "prefill_piece") {
        arguments = {kernel_test::buffer(core.store), kernel_test::buffer(core.out),
                     kernel_test::buffer(core.work), kernel_test::buffer(core.job)};
      }
      const std::vector<float> before = core.store;
      try {
        core.call(name, arguments);
      } catch (const Error& error) {
        CHECK(std::string(error.what()).starts_with("[" + name + "] "));
        CHECK(core.store == before);
        return error.kind() == ErrorKind::kKernel;
      }
      return false;
    };
    // Objects of a range: npu1 has twice as many, of half the slices.
    const int more = is_npu1(build) ? 2 : 1;
    const int bf16_objects = is_npu1(build) ? 5 : 3;
    for (const auto& [kernels, four, eight] :
         {std::tuple{std::string("prefill_"), kQ4nx, kQ8}, {"prefill_small_", kQ4_0, kQ8_0}}) {
      CAPTURE(kernels);
      const std::string multiply = kernels + "multiply";
      const std::string expand = kernels + "expand", finish = kernels + "finish";
      const Shape shape{32, 1, eight, 1};
      CHECK_FALSE(refused(multiply, shape, kSliceAt, more - 1));
      CHECK(refused(multiply, shape, kSliceAt, more));
      CHECK(refused(multiply, shape, kSliceAt, -1));
      CHECK_FALSE(refused(multiply, {32, 1, four, 1}, kSliceAt, 2 * more - 1));
      CHECK(refused(multiply, {32, 1, four, 1}, kSliceAt, 2 * more));
      CHECK(refused(multiply, {48, 1, eight, 1}, kSliceAt, 0));
      CHECK(refused(multiply, {32, 3, eight, 1}, kSliceAt, 0));
      CHECK(refused(multiply, {128, 2, four, 1}, kSliceAt, 0) == is_npu1(build));
      // npu2's last object has both slices that are expanded last, npu1's last two one each.
      const int last = 4 * more - 1, first = 4 * more - more;
      CHECK_FALSE(refused(expand, {64, 1, four, 1}, kSliceAt, first));
      for (const int at : {-1, 0, first - 1, first + 1}) {
        CHECK(refused(expand, {64, 1, four, 1}, kSliceAt, at));
      }
      CHECK_FALSE(refused(finish, {64, 1, four, 1}, kSliceAt, first));
      CHECK_FALSE(refused(finish, {64, 1, four, 1}, kSliceAt, last));
      for (const int at : {-1, 0, first - 1, last + 1}) {
        CHECK(refused(finish, {64, 1, four, 1}, kSliceAt, at));
      }
      for (const std::string& name : {expand, finish}) {
        CHECK(refused(name, {16, 1, four, 1}, kSliceAt, 0));  // nothing is left there
        CHECK(refused(name, {48, 1, eight, 1}, kSliceAt, 1));
      }
      // Formats of the other size, at an object that all of their own have.
      for (const std::string& name : {multiply, expand, finish}) {
        for (const int format : {-1, kQ4nx, kQ8, kBf16, kQ4_0, kQ8_0, 5}) {
          CAPTURE(format);
          const bool own = format >= 0 && format <= kQ8_0 && is_small(format) == is_small(four);
          const Shape other{64, 1, format, 1};
          const int behind = other.parts(is_npu1(build)) - other.behind(is_npu1(build));
          CHECK(refused(name, other, kSliceAt, name == multiply ? 0 : behind) == !own);
        }
      }
    }
    CHECK_FALSE(refused("prefill_multiply", {64, 1, kBf16, 1}, kSliceAt, bf16_objects - 1));
    CHECK(refused("prefill_multiply", {64, 1, kBf16, 1}, kSliceAt, bf16_objects));
    CHECK(refused("prefill_multiply", {64, 2, kBf16, 1}, kSliceAt, 0));
    for (const char* name : {"prefill_expand", "prefill_finish"}) {
      CHECK_FALSE(refused(name, {64, 1, kBf16, 1}, kSliceAt, bf16_objects - 1));
      CHECK(refused(name, {64, 1, kBf16, 1}, kSliceAt, bf16_objects - 2));
      CHECK(refused(name, {64, 2, kBf16, 1}, kSliceAt, bf16_objects - 1));
    }
    CHECK_FALSE(refused("prefill_piece", {32, 2, 1, 1}, kPieceAt, 7));
    CHECK(refused("prefill_piece", {32, 2, 1, 1}, kPieceAt, 8));
    CHECK(refused("prefill_piece", {32, 2, 1, 1}, kPieceAt, -1));
    CHECK(refused("prefill_piece", {48, 2, 1, 1}, kPieceAt, 0));
  }
}
