// A product of the prefill configuration (aie_kernels/prefill_product.cc) as its values and as the
// objects that a core is sent, and a core's memory with the kernels on it, as the worker calls
// them.
#pragma once

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

namespace npu::prefill_product_test {

using kernel_test::bf16_value, kernel_test::bf16_word, kernel_test::Build;

inline constexpr int kSlice = 32, kBlockRows = 32, kStore = 6144, kHalf = 4096;
inline constexpr int kQ4nx = 0, kQ8 = 1, kBf16 = 2, kQ4_0 = 3, kQ8_0 = 4;
inline constexpr int kFormats[] = {kQ4nx, kQ8, kBf16, kQ4_0, kQ8_0};
// Of the latter two an object is longer than a block: it ends with the next one's beginning.
inline bool is_small(int format) { return format == kQ4_0 || format == kQ8_0; }
inline bool has_bytes(int format) { return format == kQ8 || format == kQ8_0; }
inline size_t codes_at(int format) { return is_small(format) ? 512 : 1024; }
inline constexpr size_t kBlockBytes = 5120, kSliceAt = 64, kPieceAt = 65, kWideAt = 16;
// Rows of a slice that fills an object of A, and its bytes: npu2 has BFP16.
inline int slots_of(bool npu1) { return npu1 ? 64 : 128; }
inline size_t a_bytes(bool npu1) { return npu1 ? 4096 : 4608; }

inline uint16_t nearest(double value) {  // to nearest even; finite
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(value));
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

struct Shape {
  int m, blocks, format, ranges;
  int block_columns() const { return format == kBf16 ? 80 : has_bytes(format) ? 128 : 256; }
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
  // Of them, those that are multiplied when the blocks have been given back.
  int behind(bool npu1) const {
    const int each = slots_of(npu1) / m, last = range() / kSlice % 2 == 0 ? 2 : 1;
    return each > 2 ? 0 : (last + each - 1) / each;
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
    const size_t scale_count[] = {512, 256, 0, 256, 128};
    for (size_t i = 0; i < scale_count[shape.format]; ++i) {
      if (!has_bytes(shape.format)) {
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
    if (has_bytes(shape.format) && scales.whole) {  // even codes of at most 16
      for (size_t i = codes_at(shape.format); i < codes_at(shape.format) + 4096; ++i) {
        block[i] = static_cast<std::byte>(2 * (static_cast<int>(random() % 17) - 8));
      }
    }
    for (size_t i = 0; shape.format == kBf16 && i < kBlockBytes; i += 2) {
      const float part = std::ldexp(uniform(), static_cast<int>(random() % 9) - 4);
      const uint16_t word =
          bf16_word(scales.whole ? static_cast<float>(random() % 17) - 8 : scales.w * part);
      std::memcpy(block.data() + i, &word, 2);
    }
    w_objects.push_back(std::move(block));
    take_values(range, j);
  }
  // The values of a block.
  void take_values(int range, int j) {
    const auto& block = w_objects[static_cast<size_t>(range * shape.held() + j)];
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
  }

  // By the published layouts; `rounded`: to fp32.
  double weight(const std::vector<std::byte>& block, int row, int c, float& rounded) const {
    const std::byte* const codes = block.data() + codes_at(shape.format);
    if (shape.format == kQ4nx || shape.format == kQ4_0) {
      const auto byte = static_cast<unsigned>(codes[row / 16 * 2048 + c * 8 + row % 16 / 2]);
      const int code = static_cast<int>(row % 2 == 0 ? byte & 15 : byte >> 4);
      uint16_t d, m;
      const auto at = static_cast<size_t>(2 * (c / 32 * 32 + row));
      std::memcpy(&d, block.data() + at, 2);
      if (shape.format == kQ4_0) {
        return double{rounded = static_cast<float>(double{bf16_value(d)} * (code - 8))};
      }
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
    const int group = shape.format == kQ8_0 ? 32 : 16;
    std::memcpy(&d, block.data() + 4 * (c / group * 32 + row), 4);
    const auto code = static_cast<int8_t>(codes[c * 32 + row]);
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
  std::vector<int32_t> work = std::vector<int32_t>(npu1() ? 2304 : 3200, 0x40E00000);
  std::vector<int32_t> job = std::vector<int32_t>(96, 5);
  std::vector<int32_t> out = std::vector<int32_t>(128);
  std::vector<std::byte> nobodys = std::vector<std::byte>(kBlockBytes, std::byte{0xFF});
  CoreState state{};

  bool npu1() const { return build.generation == kernel_test::Generation::kNpu1; }

  KernelArgument integer(int x) const { return kernel_test::integer(x); }
  template <typename T>
  static KernelArgument constant(const std::vector<T>& v) {
    return kernel_test::buffer(const_cast<std::vector<T>&>(v));
  }
  void call(const std::string& name, std::vector<KernelArgument> arguments) {
    arguments.push_back(integer(shape.m));
    arguments.push_back(integer(shape.blocks));
    for (const char* multiplies : {"_multiply", "_expand", "_finish"}) {
      if (name.ends_with(multiplies)) arguments.push_back(integer(shape.format));
    }
    build.find(name.c_str())(arguments, state);
  }
  void clear() {
    call("prefill_clear",
         {kernel_test::buffer(store), kernel_test::buffer(work), kernel_test::buffer(job)});
  }
  // `shared`: packed forms of all objects of A, then of W, if there are any.
  void multiply(const Product& p, std::vector<PackedOperand>* shared = nullptr) {
    const std::string kernels = is_small(shape.format) ? "prefill_small_" : "prefill_";
    const int parts = shape.parts(npu1()), before = parts - shape.behind(npu1());
    const KernelArgument sums = kernel_test::buffer(store), words = kernel_test::buffer(job);
    const KernelArgument kept = kernel_test::buffer(work);
    size_t object = 0;
    for (int range = 0; range < shape.ranges; ++range) {
      std::vector<KernelArgument> w;
      for (int j = 0; j < 2; ++j) {
        const auto at = static_cast<size_t>(range * shape.held() + j);
        if (j >= shape.held()) {  // a place that the core does not hold
          w.push_back(constant(nobodys));
          continue;
        }
        w.push_back(constant(p.w_objects[at]));
        if (shared != nullptr) w.back().packed = &(*shared)[p.a_objects.size() + at];
      }
      for (int part = 0; part < parts; ++part, ++object) {
        KernelArgument rows = constant(p.a_objects[object]);
        if (shared != nullptr) rows.packed = &(*shared)[object];
        if (part < before) {
          call(kernels + "multiply", {rows, w[0], w[1], sums, kept, words});
          continue;
        }
        if (part == before) call(kernels + "expand", {w[0], w[1], kept, words});
        call(kernels + "finish", {rows, sums, kept, words});  // the blocks were given back
      }
    }
  }
  // fast: row-major; else tiles. npu2's rows of tiles alternate between halves.
  double sum(int i, int j) const {
    const int n = shape.n(), t = npu1() ? 4 : 8;
    int at =
        build.arithmetic == Arithmetic::kFast ? i % t * n + j : j / t * t * t + i % t * t + j % t;
    at += npu1() ? i / t * t * n : i / t % 2 * kHalf + i / t / 2 * t * n;
    const auto place = static_cast<size_t>(at % kStore);
    return at >= kStore ? std::bit_cast<float>(work[place]) : store[place];
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

}  // namespace npu::prefill_product_test
