// The prefill configuration's products in every host build, over all m, row-blocks and formats:
// sums against products in double of the operands rounded as prefill_job.h and docs/q4nx.md say
// (weights to bfloat16; on npu2 both operands to BFP16, restated here), within the bound of fp32
// summation, and against unrounded weights within the bound of the roundings; pieces bit for bit
// where sums are whole numbers; operands outside the fast builds' range; sharing; refusals.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "block_float.h"
#include "kernel_calls.h"
#include "kernels/call.h"
#include "kernels/host/packed_operand.h"
#include "kernels/registry.h"

namespace {

using namespace npu;
using kernel_test::bf16_value, kernel_test::bf16_word, kernel_test::Build, kernel_test::builds;
using kernel_test::kUnit;

constexpr int kSlice = 32, kBlockRows = 32, kBf16 = 2, kStoreRows = 96;
constexpr size_t kBlockBytes = 5120, kSliceAt = 64, kPieceAt = 65, kWideAt = 16;
// Rows of a slice that fills an object of A, and its bytes: npu2 has BFP16.
int slots_of(bool npu1) { return npu1 ? 64 : 128; }
size_t a_bytes(bool npu1) { return npu1 ? 4096 : 4608; }

uint16_t nearest(double value) {  // to nearest even; finite
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(value));
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

struct Shape {
  int m, blocks, format, ranges;
  int block_columns() const { return format == 0 ? 256 : format == 1 ? 128 : 80; }
  // Of bfloat16 a core holds two blocks of one row-block.
  int across() const { return format == kBf16 ? 2 : 1; }
  int held() const { return blocks * across(); }
  int range() const { return block_columns() * across(); }
  int k() const { return ranges * range(); }
  // Objects of A per range.
  int parts(bool npu1) const {
    const int slices = slots_of(npu1) / m;
    return (range() / kSlice + slices - 1) / slices;
  }
  int n() const { return blocks * kBlockRows; }
};

struct Scales {
  float a = 1, w = 1;
  bool whole = false;  // small whole numbers, which every step keeps
};

// A product, as its values and as the objects that a core is sent.
struct Product {
  Shape shape;
  bool npu1;
  std::vector<double> a, w, exact_w;              // m x k; n x k, rounded to bf16 and not
  std::vector<std::vector<std::byte>> a_objects;  // in order
  std::vector<std::vector<std::byte>> w_objects;  // [range][row-block][across]

  Product(Shape s, bool is_npu1, unsigned seed, Scales scales) : shape(s), npu1(is_npu1) {
    std::mt19937 random(seed);
    const auto uniform = [&] { return static_cast<float>(random() % 2001) / 1000 - 1; };
    for (int i = 0; i < s.m * s.k(); ++i) {
      const float x = scales.whole ? static_cast<float>(random() % 7) - 3
                                   : scales.a * std::ldexp(uniform(), int(random() % 9) - 4);
      a.push_back(bf16_value(bf16_word(x)));
    }
    w.resize(static_cast<size_t>(s.n() * s.k()));
    exact_w.resize(w.size());
    for (int range = 0; range < s.ranges; ++range) {
      for (int j = 0; j < s.held(); ++j) add_block(range, j, random, scales);
    }
    pack_a();
  }

  void add_block(int range, int j, std::mt19937& random, Scales scales) {
    std::vector<std::byte> block(kBlockBytes);
    for (std::byte& b : block) b = static_cast<std::byte>(random());
    const auto uniform = [&] { return static_cast<float>(random() % 2001) / 1000 - 1; };
    const size_t scale_count[] = {512, 256, 0};
    for (size_t i = 0; i < scale_count[shape.format]; ++i) {
      if (shape.format == 0) {
        const float part = i < 256 ? 0.1f * (2 + uniform()) : 0.8f * uniform() - 1;
        const float whole = i < 256 ? 1 : -8;
        const uint16_t word = bf16_word(
            scales.whole ? whole : std::ldexp(scales.w * part, static_cast<int>(i % 5) - 2));
        std::memcpy(block.data() + 2 * i, &word, 2);
      } else {
        const float d = scales.whole ? 0.5f : scales.w * 0.01f * uniform();
        std::memcpy(block.data() + 4 * i, &d, 4);
      }
    }
    if (shape.format == 1 && scales.whole) {  // even codes of at most 16
      for (size_t i = 1024; i < kBlockBytes; ++i) {
        block[i] = static_cast<std::byte>(2 * (static_cast<int>(random() % 17) - 8));
      }
    }
    for (size_t i = 0; shape.format == kBf16 && i < kBlockBytes; i += 2) {
      const float part = std::ldexp(uniform(), static_cast<int>(random() % 9) - 4);
      const uint16_t word =
          bf16_word(scales.whole ? static_cast<float>(random() % 17) - 8 : scales.w * part);
      std::memcpy(block.data() + i, &word, 2);
    }
    const int first_row = j / shape.across() * kBlockRows;
    const int first = range * shape.range() + j % shape.across() * shape.block_columns();
    for (int row = 0; row < kBlockRows; ++row) {
      for (int c = 0; c < shape.block_columns(); ++c) {
        const auto at = static_cast<size_t>((first_row + row) * shape.k() + first + c);
        float rounded;
        exact_w[at] = weight(block, row, c, rounded);
        w[at] = bf16_value(nearest(double{rounded}));
      }
    }
    w_objects.push_back(std::move(block));
  }

  // By the published layouts; `rounded`: to fp32.
  double weight(const std::vector<std::byte>& block, int row, int c, float& rounded) const {
    if (shape.format == 0) {
      const auto byte = static_cast<unsigned>(
          block[static_cast<size_t>(1024 + row / 16 * 2048 + c * 8 + row % 16 / 2)]);
      const unsigned code = row % 2 == 0 ? byte & 15 : byte >> 4;
      uint16_t d, m;
      const auto at = static_cast<size_t>(2 * (c / 32 * 32 + row));
      std::memcpy(&d, block.data() + at, 2);
      std::memcpy(&m, block.data() + at + 512, 2);
      const double value = double{bf16_value(d)} * code + double{bf16_value(m)};
      rounded = static_cast<float>(value);  // the product is exact in fp32
      return value;
    }
    if (shape.format == kBf16) {
      uint16_t word;
      std::memcpy(&word, block.data() + 2 * (c * 32 + row), 2);
      return double{rounded = bf16_value(word)};
    }
    float d;
    std::memcpy(&d, block.data() + 4 * (c / 16 * 32 + row), 4);
    const auto code = static_cast<int8_t>(block[static_cast<size_t>(1024 + c * 32 + row)]);
    rounded = d * static_cast<float>(code);
    return double{d} * code;
  }

  // Slices of 32 columns, slots / m per object, [slice][m / r][4][r][8]; NaN behind a range.
  void pack_a() {
    const int r = npu1 ? 4 : 8, slices = shape.range() / kSlice;
    a_objects.clear();
    for (int slice = 0; slice < shape.k() / kSlice; ++slice) {
      if (slice % slices % (slots_of(npu1) / shape.m) == 0) a_objects.emplace_back();
      for (int tile = 0; tile < shape.m; tile += r) {
        for (int c = 0; c < kSlice; c += 8) {
          for (int y = 0; y < r; ++y) {
            pack_eight(&a[static_cast<size_t>((tile + y) * shape.k() + slice * kSlice + c)]);
          }
        }
      }
      if (slice % slices == slices - 1) a_objects.back().resize(a_bytes(npu1), std::byte{0xFF});
    }
    for (const auto& object : a_objects) REQUIRE(object.size() == a_bytes(npu1));
  }
  void pack_eight(const double* x) {
    std::vector<std::byte>& object = a_objects.back();
    const size_t at = object.size();
    object.resize(at + (npu1 ? 16 : block_float::kBytes));
    if (!npu1) return block_float::encode(x, reinterpret_cast<uint8_t*>(object.data() + at));
    for (size_t i = 0; i < 8; ++i) {
      const uint16_t word = bf16_word(static_cast<float>(x[i]));
      std::memcpy(object.data() + at + 2 * i, &word, 2);
    }
  }

  double a_at(int i, int k) const { return a[static_cast<size_t>(i * shape.k() + k)]; }
};

// A core's memory, and the kernels on it as the worker calls them.
struct Core {
  const Build& build;
  Shape shape;
  std::vector<float> store = std::vector<float>(6144, 7.0f);
  std::vector<int32_t> work = std::vector<int32_t>(npu1() ? 2304 : 2720, 0x40E00000);
  std::vector<int32_t> job = std::vector<int32_t>(96, 5);
  std::vector<int32_t> out = std::vector<int32_t>(128);
  CoreState state{};

  bool npu1() const { return build.generation == kernel_test::Generation::kNpu1; }

  KernelArgument integer(int x) const { return kernel_test::integer(x); }
  template <typename T>
  static KernelArgument constant(const std::vector<T>& v) {
    return kernel_test::buffer(const_cast<std::vector<T>&>(v));
  }
  void call(const char* name, std::vector<KernelArgument> arguments) {
    arguments.push_back(integer(shape.m));
    arguments.push_back(integer(shape.blocks));
    const std::string all = " prefill_multiply prefill_last prefill_finish ";
    if (all.find(std::string(" ") + name + " ") != std::string::npos) {
      arguments.push_back(integer(shape.format));
    }
    build.find(name)(arguments, state);
  }
  void clear() {
    call("prefill_clear",
         {kernel_test::buffer(store), kernel_test::buffer(work), kernel_test::buffer(job)});
  }
  // `shared`: packed forms of all objects of A, then of W, if there are any.
  void multiply(const Product& p, std::vector<PackedOperand>* shared = nullptr) {
    const int slices = slots_of(npu1()) / shape.m, parts = shape.parts(npu1());
    size_t object = 0;
    for (int range = 0; range < shape.ranges; ++range) {
      for (int part = 0; part < parts; ++part, ++object) {
        for (int slice = 0; slice < slices; ++slice) {
          std::vector<KernelArgument> arguments = {constant(p.a_objects[object])};
          if (shared != nullptr) arguments[0].packed = &(*shared)[object];
          for (int j = 0; j < 2; ++j) {
            const auto at =
                static_cast<size_t>(range * shape.held() + std::min(j, shape.held() - 1));
            arguments.push_back(constant(p.w_objects[at]));
            if (shared != nullptr) arguments.back().packed = &(*shared)[p.a_objects.size() + at];
          }
          arguments.push_back(kernel_test::buffer(store));
          arguments.push_back(kernel_test::buffer(work));
          arguments.push_back(kernel_test::buffer(job));
          if (part < parts - 1 || slice < slices - 1) {
            call("prefill_multiply", arguments);
            continue;
          }
          call("prefill_last", arguments);
          arguments.erase(arguments.begin() + 1, arguments.begin() + 3);  // blocks were given back
          call("prefill_finish", arguments);
        }
      }
    }
  }
  // fast: row-major; else tiles.
  double sum(int i, int j) const {
    const int n = shape.n(), t = npu1() ? 4 : 8;
    const bool behind = i >= kStoreRows;
    if (behind) i -= kStoreRows;
    const int at = build.arithmetic == Arithmetic::kFast
                       ? i * n + j
                       : i / t * t * n + j / t * t * t + i % t * t + j % t;
    const auto place = static_cast<size_t>(at);
    return behind ? std::bit_cast<float>(work[place]) : store[place];
  }
  void piece() {
    call("prefill_piece", {kernel_test::buffer(store), kernel_test::buffer(out),
                           kernel_test::buffer(work), kernel_test::buffer(job)});
  }
  // Of all wide pieces, how many values are not the sums of the last of every 8 rows, or zero.
  int wrong_lines() {
    const int parts = shape.m / 8, lines = parts * shape.blocks;
    int wrong = 0;
    job[kWideAt] = 1;
    for (int line = 0; line % 4 != 0 || line < lines; ++line) {
      if (line % 4 == 0) piece();
      for (int i = 0; i < 32; ++i) {
        const auto found = std::bit_cast<float>(out[static_cast<size_t>(line % 4 * 32 + i)]);
        const int row = line % parts * 8 + 7;
        wrong += double{found} != (line < lines ? sum(row, line / parts * 32 + i) : 0);
      }
    }
    return wrong;
  }
  // All pieces, as m x n.
  std::vector<uint16_t> pieces() {
    std::vector<uint16_t> all(static_cast<size_t>(shape.m * shape.n()));
    for (int j = 0; j < shape.blocks; ++j) {
      for (int row = 0; row < shape.m; row += 8) {
        piece();
        for (int i = 0; i < 256; ++i) {
          const int y = row + i / 32, x = j * 32 + i % 32;
          std::memcpy(&all[static_cast<size_t>(y * shape.n() + x)],
                      reinterpret_cast<const char*>(out.data()) + 2 * i, 2);
        }
      }
    }
    return all;
  }
};

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
    for (const int format : {0, 1, kBf16}) {
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

}  // namespace

TEST_CASE("prefill_multiply: sums within the bounds of their roundings") {
  for (const Build& build : builds()) {
    double summed = 0;
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
      CHECK(core.job[kSliceAt] == 0);  // wraps at the end of a range
      CHECK(core.wrong_lines() == 0);
      CHECK_THROWS_AS(core.piece(), Error);  // there are no more
      CHECK(core.job[kSliceAt + 2] == 5);
    }
    CHECK(summed > 0);  // fp32 did round
  }
}

TEST_CASE("prefill_multiply: every weight bit for bit, as rows of A that are 1 in one column") {
  for (const Build& build : builds()) {
    CAPTURE(build.name());
    for (const int format : {0, 1, kBf16}) {
      const Shape shape = shape_of(64, 2, format);
      Product p(shape, is_npu1(build), 11, {});
      std::vector<double> weights(p.w);
      for (size_t i = 0; !is_npu1(build) && i < weights.size(); i += 8)
        block_float::round(&weights[i]);
      int wrong = 0;
      for (int first = 0; first < shape.k(); first += shape.m) {
        for (int i = 0; i < shape.m * shape.k(); ++i) {
          p.a[static_cast<size_t>(i)] = i % shape.k() == first + i / shape.k() ? 1 : 0;
        }
        p.pack_a();
        Core core{build, shape};
        core.clear();
        core.multiply(p);
        for (int i = 0; i < std::min(shape.m, shape.k() - first); ++i) {
          for (int j = 0; j < shape.n(); ++j) {
            wrong += core.sum(i, j) != weights[static_cast<size_t>(j * shape.k() + first + i)];
          }
        }
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("prefill_multiply: operands beyond what fast builds multiply in floating point") {
  for (const Build& build : builds()) {
    if (is_npu1(build)) continue;  // rounds nothing to blocks
    for (const Scales& scales : {Scales{1e-24f, 1}, Scales{1e20f, 1e-3f}, Scales{1, 1e-22f}}) {
      CAPTURE(build.name());
      CAPTURE(scales.a);
      CAPTURE(scales.w);
      for (const int format : {0, 1, kBf16}) {
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
    for (const int format : {0, 1, kBf16}) {
      const Shape shape = shape_of(16, 2, format);
      Product p(shape, is_npu1(build), 5, {});
      const uint32_t infinity = format == 1 ? 0x7F800000 : 0x7F80;
      const size_t size = format == 1 ? 4 : 2;  // row 7
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
      for (const int format : {0, 1, kBf16}) {
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
    const Shape shape{32, 1, 1, 1};
    const Product p(shape, is_npu1(build), 8, {});
    const auto refused = [&](const char* name, Shape s, size_t word, int32_t value) {
      Core core{build, s};
      core.job[word] = value;
      std::vector<KernelArgument> arguments = {
          Core::constant(p.a_objects[0]), Core::constant(p.w_objects[0]),
          Core::constant(p.w_objects[0]), kernel_test::buffer(core.store),
          kernel_test::buffer(core.work), kernel_test::buffer(core.job)};
      if (std::string(name) == "prefill_finish") {
        arguments.erase(arguments.begin() + 1, arguments.begin() + 3);
      }
      if (std::string(name) == "prefill_piece") {
        arguments = {kernel_test::buffer(core.store), kernel_test::buffer(core.out),
                     kernel_test::buffer(core.work), kernel_test::buffer(core.job)};
      }
      const std::vector<float> before = core.store;
      try {
        core.call(name, arguments);
      } catch (const Error& error) {
        CHECK(std::string(error.what()).starts_with("[" + std::string(name) + "] "));
        CHECK(core.store == before);
        return error.kind() == ErrorKind::kKernel;
      }
      return false;
    };
    CHECK_FALSE(refused("prefill_multiply", shape, kSliceAt, 3));
    CHECK(refused("prefill_multiply", shape, kSliceAt, 4));
    CHECK(refused("prefill_multiply", shape, kSliceAt, -1));
    CHECK_FALSE(refused("prefill_multiply", {32, 1, 0, 1}, kSliceAt, 7));
    CHECK(refused("prefill_multiply", {32, 1, 0, 1}, kSliceAt, 8));
    CHECK(refused("prefill_multiply", {48, 1, 1, 1}, kSliceAt, 0));
    CHECK(refused("prefill_multiply", {32, 3, 1, 1}, kSliceAt, 0));
    CHECK(refused("prefill_multiply", {64, 1, 3, 1}, kSliceAt, 0));
    const int slices = is_npu1(build) ? 5 : 6;  // of its objects of A
    CHECK_FALSE(refused("prefill_multiply", {64, 1, kBf16, 1}, kSliceAt, slices - 1));
    CHECK(refused("prefill_multiply", {64, 1, kBf16, 1}, kSliceAt, slices));
    CHECK(refused("prefill_multiply", {128, 2, 0, 1}, kSliceAt, 0) == is_npu1(build));
    CHECK(refused("prefill_multiply", {64, 2, kBf16, 1}, kSliceAt, 0));
    for (const char* name : {"prefill_last", "prefill_finish"}) {
      CHECK_FALSE(refused(name, {32, 1, 0, 1}, kSliceAt, 7));
      for (const int slice : {-1, 0, 6, 8}) CHECK(refused(name, {32, 1, 0, 1}, kSliceAt, slice));
      CHECK_FALSE(refused(name, {64, 1, kBf16, 1}, kSliceAt, slices - 1));
      CHECK(refused(name, {64, 1, kBf16, 1}, kSliceAt, slices - 2));
      CHECK(refused(name, {48, 1, 1, 1}, kSliceAt, 7));
    }
    CHECK_FALSE(refused("prefill_piece", {32, 2, 1, 1}, kPieceAt, 7));
    CHECK(refused("prefill_piece", {32, 2, 1, 1}, kPieceAt, 8));
    CHECK(refused("prefill_piece", {32, 2, 1, 1}, kPieceAt, -1));
    CHECK(refused("prefill_piece", {48, 2, 1, 1}, kPieceAt, 0));
  }
}
