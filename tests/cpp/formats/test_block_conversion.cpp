// Stored rows to weight blocks, in buffers of exactly the size they need (ASan sees a byte beyond):
// every type, every format, ragged sizes and arbitrary bytes. What a block holds is compared with
// elements decoded one by one from ggml's layouts, in double precision.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <random>
#include <vector>

#include "formats/block_conversion.h"
#include "formats/gguf_rows.h"
#include "formats/weight_blocks.h"

namespace {

using npu::blocks::Format;
using npu::weights::Stored;
using Bytes = std::vector<uint8_t>;

struct Type {
  Stored type;
  int64_t elements, bytes;  // of a block
};
constexpr Type kTypes[] = {
    {Stored::kF32, 1, 4},      {Stored::kF16, 1, 2},      {Stored::kBF16, 1, 2},
    {Stored::kQ4_0, 32, 18},   {Stored::kQ4_1, 32, 20},   {Stored::kQ5_0, 32, 22},
    {Stored::kQ5_1, 32, 24},   {Stored::kQ8_0, 32, 34},   {Stored::kQ2_K, 256, 84},
    {Stored::kQ3_K, 256, 110}, {Stored::kQ4_K, 256, 144}, {Stored::kQ5_K, 256, 176},
    {Stored::kQ6_K, 256, 210},
};

template <typename T>
T at(const uint8_t* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

double half(const uint8_t* p) {
  const uint16_t bits = at<uint16_t>(p);
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  double value =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  if (exponent == 31) value = mantissa == 0 ? INFINITY : NAN;
  return bits >> 15 ? -value : value;
}

// Bits [first, first + count) of the bytes, counted from the lowest.
int bits(const uint8_t* p, int64_t first, int count) {
  int value = 0;
  for (int i = 0; i < count; ++i) value |= (p[(first + i) / 8] >> (first + i) % 8 & 1) << i;
  return value;
}

// Scale and minimum j of Q4_K and Q5_K: 6 bits, of the last four the upper two lie apart.
int six(const uint8_t* s, int64_t j, bool minimum) {
  if (j < 4) return s[j + (minimum ? 4 : 0)] & 63;
  return bits(s + j + 4, minimum ? 4 : 0, 4) | s[minimum ? j : j - 4] >> 6 << 4;
}

// Element e of a K-quant's block.
double k_element(Stored type, const uint8_t* b, int64_t e) {
  const int64_t half_of = e / 128, in = e % 128;
  switch (type) {
    case Stored::kQ2_K: {
      const int code = b[16 + half_of * 32 + in % 32] >> 2 * (in / 32) & 3;
      return half(b + 80) * (b[e / 16] & 15) * code - half(b + 82) * (b[e / 16] >> 4);
    }
    case Stored::kQ3_K: {
      const int64_t j = e / 16;
      const int low = bits(b + 96 + j % 8, j < 8 ? 0 : 4, 4),
                high = bits(b + 104 + j % 4, j / 4 * 2, 2);
      const int code = b[32 + half_of * 32 + in % 32] >> 2 * (in / 32) & 3;
      const int less = b[e % 32] >> e / 32 & 1 ? 0 : 4;
      return half(b + 108) * ((low | high << 4) - 32) * (code - less);
    }
    case Stored::kQ6_K: {
      const int low = b[half_of * 64 + in % 64] >> (in < 64 ? 0 : 4) & 15;
      const int high = b[128 + half_of * 32 + in % 32] >> 2 * (in / 32) & 3;
      return half(b + 208) * static_cast<int8_t>(b[192 + e / 16]) * ((low | high << 4) - 32);
    }
    default: {  // Q4_K, Q5_K
      const bool five = type == Stored::kQ5_K;
      const int low = b[(five ? 48 : 16) + e / 64 * 32 + e % 32] >> (e / 32 % 2 ? 4 : 0) & 15;
      const int code = low | (five ? (b[16 + e % 32] >> e / 32 & 1) << 4 : 0);
      return half(b) * six(b + 4, e / 32, false) * code - half(b + 2) * six(b + 4, e / 32, true);
    }
  }
}

double element(const Type& t, const uint8_t* row, int64_t column) {
  const uint8_t* b = row + column / t.elements * t.bytes;
  const int64_t e = column % t.elements;
  const auto nibble = [&](int from) { return b[from + e % 16] >> (e < 16 ? 0 : 4) & 15; };
  switch (t.type) {
    case Stored::kF32:
      return at<float>(b);
    case Stored::kF16:
      return half(b);
    case Stored::kBF16:
      return std::bit_cast<float>(uint32_t{at<uint16_t>(b)} << 16);
    case Stored::kQ4_0:
      return half(b) * (nibble(2) - 8);
    case Stored::kQ4_1:
      return half(b) * nibble(4) + half(b + 2);
    case Stored::kQ5_0:
      return half(b) * ((nibble(6) | bits(b + 2, e, 1) << 4) - 16);
    case Stored::kQ5_1:
      return half(b) * (nibble(8) | bits(b + 4, e, 1) << 4) + half(b + 2);
    case Stored::kQ8_0:
      return half(b) * static_cast<int8_t>(b[2 + e]);
    default:
      return k_element(t.type, b, e);
  }
}

// What becomes what (docs/weights.md).
bool possible(Stored type, Format format) {
  if (format == Format::kQ4nx) return npu::weights::has_codes4(type);
  if (format == Format::kQ4_0) return type == Stored::kQ4_0;
  return true;
}

double bf16_at(const uint8_t* p) { return std::bit_cast<float>(uint32_t{at<uint16_t>(p)} << 16); }

// The block of (row, column) in blocks of a matrix of k columns.
const uint8_t* block_of(Format format, const Bytes& blocks, int64_t k, int64_t row,
                        int64_t column) {
  const bool small = format == Format::kQ4_0 || format == Format::kQ8_0;
  const int64_t columns = npu::blocks::columns_of(format), across = (k + columns - 1) / columns;
  return blocks.data() + (row / 32 * across + column / columns) * (small ? 4608 : 5120);
}

// The scale of (row, column); 0 where the format has none.
double scale(Format format, const Bytes& blocks, int64_t k, int64_t row, int64_t column) {
  const uint8_t* b = block_of(format, blocks, k, row, column);
  const int64_t r = row % 32, c = column % npu::blocks::columns_of(format);
  if (format == Format::kBf16) return 0;
  if (format == Format::kQ8) return at<float>(b + 4 * (32 * (c / 16) + r));
  if (format == Format::kQ8_0) return at<float>(b + 4 * (32 * (c / 32) + r));
  return bf16_at(b + 2 * (32 * (c / 32) + r));
}

// Element (row, column) of blocks of a matrix of k columns.
double packed(Format format, const Bytes& blocks, int64_t k, int64_t row, int64_t column) {
  const uint8_t* b = block_of(format, blocks, k, row, column);
  const int64_t r = row % 32, c = column % npu::blocks::columns_of(format);
  const double d = scale(format, blocks, k, row, column);
  if (format == Format::kBf16) return bf16_at(b + 2 * (32 * c + r));
  if (format == Format::kQ8) return d * static_cast<int8_t>(b[1024 + 32 * c + r]);
  if (format == Format::kQ8_0) return d * static_cast<int8_t>(b[512 + 32 * c + r]);
  const uint8_t* pairs = b + (format == Format::kQ4_0 ? 512 : 1024);
  const int code = pairs[r / 16 * 2048 + c * 8 + r % 16 / 2] >> (r % 2 ? 4 : 0) & 15;
  if (format == Format::kQ4_0) return d * (code - 8);
  return d * code + bf16_at(b + 512 + 2 * (32 * (c / 32) + r));
}

// The most that a stored element may change.
double allowed(const Type& t, Format format, double largest, double value) {
  const double u24 = std::ldexp(1, -24) * 4 * largest + 0x1p-126;  // float32 steps on the way
  if (format == Format::kBf16) return std::ldexp(std::fabs(value), -8) + std::ldexp(1, -133) + u24;
  if (format == Format::kQ8_0) {
    // As below, of twice as many elements.
    const bool kept = t.type == Stored::kQ5_0 || t.type == Stored::kQ8_0;
    return kept ? u24 : std::sqrt(32) * largest / 249 * 1.001 + u24;
  }
  if (format == Format::kQ4_0) return std::ldexp(std::fabs(value), -8);  // d rounded to bfloat16
  if (format == Format::kQ8) {
    // Half a step of largest / 124.5 per element bounds the group's squared error (npu.blocks).
    return npu::weights::has_codes8(t.type) ? u24 : 4 * largest / 249 * 1.001 + u24;
  }
  return 4 * largest / 128;  // d and m each rounded to bfloat16; |d| 15 and |m| <= 2 largest below
}

Bytes random_bytes(size_t count, std::mt19937& random) {
  Bytes out(count);
  for (uint8_t& byte : out) byte = static_cast<uint8_t>(random());
  return out;
}

struct Case {
  Type type;
  Format format;
  int64_t rows, k, stride;
  Bytes raw;
};

// Converts into bytes that are not zero. Returns the first bad row.
int64_t converted(const Case& c, Bytes& out) {
  const int64_t count = npu::blocks::row_blocks(c.rows) * npu::blocks::column_blocks(c.k, c.format);
  out.assign(static_cast<size_t>(count * npu::blocks::bytes_of(c.format)), 0xA5);
  return npu::weights::convert_rows(c.type.type, c.format, c.raw.data(), c.stride, c.rows, c.k,
                                    out.data());
}

bool finite(const Case& c, double value) {
  // Beyond this, rounding to bfloat16 gives infinity.
  return std::isfinite(value) && (c.format != Format::kBf16 || std::fabs(value) < 0x1.FFp127);
}

int64_t first_bad_row(const Case& c) {
  for (int64_t r = 0; r < c.rows; ++r) {
    for (int64_t i = 0; i < c.k; ++i) {
      if (!finite(c, element(c.type, c.raw.data() + r * c.stride, i))) return r;
    }
  }
  return -1;
}

// Every element is near what was stored, and what fills blocks is 0.
void check_blocks(const Case& c, const Bytes& out) {
  const int64_t columns = npu::blocks::columns_of(c.format);
  const int64_t width = npu::blocks::column_blocks(c.k, c.format) * columns;
  int64_t wrong = 0;
  for (int64_t r = 0; r < npu::blocks::row_blocks(c.rows) * 32; ++r) {
    for (int64_t group = 0; group < width; group += 16) {
      double largest = 0, values[16] = {};
      for (int64_t i = 0; i < 16 && r < c.rows && group + i < c.k; ++i) {
        values[i] = element(c.type, c.raw.data() + r * c.stride, group + i);
        largest = std::max(largest, std::fabs(values[i]));
      }
      const bool by_32 = c.format == Format::kQ4nx || c.format == Format::kQ8_0;
      if (by_32 && r < c.rows) {  // a whole group shares its numbers
        for (int64_t i = group / 32 * 32; i < std::min(c.k, group / 32 * 32 + 32); ++i) {
          largest = std::max(largest, std::fabs(element(c.type, c.raw.data() + r * c.stride, i)));
        }
      }
      const int64_t first = c.format == Format::kQ8_0 ? group / 32 * 32 : group;  // of a scale
      if (r >= c.rows || first >= c.k) wrong += scale(c.format, out, c.k, r, group) != 0;
      for (int64_t i = 0; i < 16; ++i) {
        const bool fills = r >= c.rows || group + i >= c.k;
        const double got = packed(c.format, out, c.k, r, group + i);
        const double most = fills ? 0 : allowed(c.type, c.format, largest, values[i]);
        wrong += !(std::fabs(got - values[i]) <= most);
      }
    }
  }
  CHECK(wrong == 0);
}

void check(const Case& c) {
  CAPTURE(static_cast<int>(c.type.type));
  CAPTURE(static_cast<int>(c.format));
  CAPTURE(c.rows);
  CAPTURE(c.k);
  Bytes out;
  const int64_t bad = converted(c, out);
  CHECK(bad == first_bad_row(c));
  if (bad < 0) check_blocks(c, out);
}

// A matrix of random bytes; `tame`: with scales below 4, so that no number is infinite or NaN.
Case random_case(const Type& t, Format format, int64_t rows, int64_t k, bool tame,
                 std::mt19937& random) {
  const int64_t stride = k / t.elements * t.bytes;
  Case c{t, format, rows, k, stride, random_bytes(static_cast<size_t>(rows * stride), random)};
  if (!tame) return c;
  const auto clear = [&](int64_t block, int64_t byte) {  // of a float's upper byte
    uint8_t& upper = c.raw[static_cast<size_t>(block * t.bytes + byte)];
    upper = static_cast<uint8_t>(upper & 0x80) | (upper & 0x40 ? 0x3f : upper & 0x3f);
  };
  for (int64_t block = 0; block < rows * k / t.elements; ++block) {
    switch (t.type) {
      case Stored::kF32:
        clear(block, 3);
        break;
      case Stored::kQ2_K:
        clear(block, 81), clear(block, 83);
        break;
      case Stored::kQ3_K:
        clear(block, 109);
        break;
      case Stored::kQ6_K:
        clear(block, 209);
        break;
      case Stored::kQ4_1:
      case Stored::kQ5_1:
      case Stored::kQ4_K:
      case Stored::kQ5_K:
        clear(block, 1), clear(block, 3);
        break;
      default:
        clear(block, 1);
    }
  }
  return c;
}

constexpr Format kFormats[] = {Format::kQ4nx, Format::kQ8, Format::kBf16, Format::kQ4_0,
                               Format::kQ8_0};

}  // namespace

TEST_CASE("rows of every type become blocks of every format, at ragged sizes") {
  std::mt19937 random(7);
  for (const Type& t : kTypes) {
    for (const Format format : kFormats) {
      CHECK(npu::weights::converts(t.type, format) == possible(t.type, format));
      if (!npu::weights::converts(t.type, format)) continue;
      for (const int64_t rows : {1, 31, 32, 33, 97}) {
        for (const int64_t units : {1, 3, 5}) {
          const int64_t k = t.elements == 1 ? units * 53 : units * t.elements;
          check(random_case(t, format, rows, k, true, random));
        }
      }
    }
  }
}

TEST_CASE("arbitrary bytes are converted, or the first row that is not finite is named") {
  std::mt19937 random(8);
  int refused = 0;
  for (int round = 0; round < 120; ++round) {
    for (const Type& t : kTypes) {
      const Format format = kFormats[random() % std::size(kFormats)];
      if (!npu::weights::converts(t.type, format)) continue;
      const auto rows = static_cast<int64_t>(1 + random() % 40);
      const auto k = static_cast<int64_t>(t.elements * (1 + random() % (t.elements == 1 ? 90 : 3)));
      const Case c = random_case(t, format, rows, k, false, random);
      Bytes out;
      const int64_t bad = converted(c, out);
      refused += bad >= 0;
      CAPTURE(static_cast<int>(t.type));
      CAPTURE(static_cast<int>(format));
      CHECK(bad == first_bad_row(c));
      if (bad < 0 && t.type != Stored::kF32 && t.type != Stored::kBF16) check_blocks(c, out);
    }
  }
  CHECK(refused > 100);
}

TEST_CASE("decoded rows are ggml's, and sizes that no row has are known") {
  std::mt19937 random(9);
  for (const Type& t : kTypes) {
    CAPTURE(static_cast<int>(t.type));
    CHECK(npu::weights::stored_type(static_cast<int>(t.type)) == t.type);
    CHECK(npu::weights::row_bytes(t.type, 3 * t.elements) == 3 * t.bytes);
    if (t.elements > 1) CHECK(npu::weights::row_bytes(t.type, t.elements + 1) == 0);
    const Case c = random_case(t, Format::kQ8, 1, 2 * t.elements, true, random);
    std::vector<float> out(static_cast<size_t>(c.k));
    npu::weights::dequantize_row(t.type, c.raw.data(), c.k, out.data());
    for (int64_t i = 0; i < c.k; ++i) {
      const double expected = element(t, c.raw.data(), i);
      // Products and a difference, each below 2048 and rounded to float32.
      CHECK(std::fabs(out[static_cast<size_t>(i)] - expected) <=
            0x1p-22 * (std::fabs(expected) + 1024));
    }
  }
  for (const int number : {-1, 4, 5, 9, 15, 29, 31, 1 << 30}) {
    CHECK_FALSE(npu::weights::stored_type(number));
  }
}
