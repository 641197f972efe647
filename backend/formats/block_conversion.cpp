// Rows to weight blocks (block_conversion.h), 32 rows at a time: decode each row, then transpose.
#include "formats/block_conversion.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "aie_kernels/weight_block.h"
#include "host/clones.h"
#include "rounding.h"

namespace npu::weights {

namespace {

using blocks::q8, blocks::q8_0, blocks::q4_0;
constexpr int64_t kBlockRows = blocks::kRows;
constexpr int64_t kColumnsBf16 = blocks::bf16::kColumns;
constexpr int64_t kGroup = q8::kGroup;  // columns of a scale as codes8_row gives them
constexpr uint32_t kInfinity = 0x7f800000;

NPU_INLINE uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffff) > kInfinity) return static_cast<uint16_t>(bits >> 16 | 0x40);  // NaN
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Whether all numbers are finite: the largest exponent is found without branches.
bool finite(const float* values, int64_t count) {
  uint32_t highest = 0;
  for (int64_t i = 0; i < count; ++i) {
    highest = std::max(highest, std::bit_cast<uint32_t>(values[i]) & 0x7fffffff);
  }
  return highest < kInfinity;
}

bool finite_bf16(const uint16_t* values, int64_t count) {
  uint16_t highest = 0;
  for (int64_t i = 0; i < count; ++i) {
    highest = std::max(highest, static_cast<uint16_t>(values[i] & 0x7fff));
  }
  return highest < 0x7f80;
}

// Out[c * 32 + r] = in[r * stride + c] for 32 rows and 16 columns of elements of any kind.
template <typename T>
NPU_INLINE void transpose(const T* in, int64_t stride, T* out) {
  for (int64_t c = 0; c < 16; ++c) {
    for (int64_t r = 0; r < kBlockRows; ++r) out[c * kBlockRows + r] = in[r * stride + c];
  }
}

// 32 rows of codes (width: whole blocks) and bfloat16 planes to a row-block: q4nx, or q4_0 where m
// is null.
NPU_CLONES void pack4(const uint8_t* codes, const uint16_t* d, const uint16_t* m, int64_t width,
                      uint8_t* out) {
  const int64_t groups = width / q4nx::kGroup, codes_at = m ? q4nx::kCodesAt : q4_0::kCodesAt;
  const int64_t bytes = m ? blocks::kBytes : blocks::kSmallBytes;
  for (int64_t b = 0; b < width / q4nx::kColumns; ++b, out += bytes) {
    uint16_t plane[q4nx::kRows * q4nx::kGroups];
    for (const uint16_t* source : {d, m}) {
      if (!source) continue;
      for (int64_t g = 0; g < q4nx::kGroups; ++g) {
        for (int64_t r = 0; r < q4nx::kRows; ++r) {
          plane[g * q4nx::kRows + r] = source[r * groups + b * q4nx::kGroups + g];
        }
      }
      std::memcpy(out + (source == m ? q4nx::kPlaneBytes : 0), plane, sizeof plane);
    }
    uint8_t tile[16 * kBlockRows];
    for (int64_t first = 0; first < q4nx::kColumns; first += 16) {
      transpose(codes + b * q4nx::kColumns + first, width, tile);
      // Byte half * 2048 + column * 8 + pair has rows half * 16 + pair * 2 (low nibble) and + 1.
      for (int64_t half = 0; half < 2; ++half) {
        uint8_t* to = out + codes_at + half * 2048 + first * 8;
        for (int64_t c = 0; c < 16; ++c) {
          for (int64_t p = 0; p < 8; ++p) {
            const uint8_t* pair = tile + c * kBlockRows + half * 16 + 2 * p;
            to[c * 8 + p] = static_cast<uint8_t>(pair[0] | pair[1] << 4);
          }
        }
      }
    }
  }
}

// Of 32 rows of codes with a scale per 16 columns; q8_0 takes one of two, which are equal.
template <typename Layout>
NPU_INLINE void pack8_as(const int8_t* codes, const float* d, int64_t width, uint8_t* out) {
  for (int64_t b = 0; b < width / Layout::kColumns; ++b, out += Layout::kSize) {
    float plane[Layout::kGroups * kBlockRows];
    for (int64_t g = 0; g < Layout::kGroups; ++g) {
      const int64_t from = (b * Layout::kGroups + g) * (Layout::kGroup / kGroup);
      for (int64_t r = 0; r < kBlockRows; ++r) {
        plane[g * kBlockRows + r] = d[r * (width / kGroup) + from];
      }
    }
    std::memcpy(out, plane, sizeof plane);
    auto* to = reinterpret_cast<int8_t*>(out + Layout::kCodesAt);
    for (int64_t first = 0; first < Layout::kColumns; first += 16) {
      transpose(codes + b * Layout::kColumns + first, width, to + first * kBlockRows);
    }
  }
}

NPU_CLONES void pack8(const int8_t* codes, const float* d, int64_t width, uint8_t* out) {
  pack8_as<q8>(codes, d, width, out);
}
NPU_CLONES void pack8_0(const int8_t* codes, const float* d, int64_t width, uint8_t* out) {
  pack8_as<q8_0>(codes, d, width, out);
}

NPU_CLONES void pack_bf16(const uint16_t* values, int64_t width, uint8_t* out) {
  for (int64_t b = 0; b < width / kColumnsBf16; ++b, out += blocks::kBytes) {
    uint16_t tile[16 * kBlockRows];
    for (int64_t first = 0; first < kColumnsBf16; first += 16) {
      transpose(values + b * kColumnsBf16 + first, width, tile);
      std::memcpy(out + first * kBlockRows * 2, tile, sizeof tile);
    }
  }
}

NPU_CLONES void narrowed(const float* values, int64_t count, uint16_t* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = to_bf16(values[i]);
}

// A group's: of a few scales around largest / 127, each fitted to its codes, the one with the least
// squared error, as npu/formats/blocks.py (quantize_q8).
template <int kColumns>
NPU_INLINE void fit8(const float* x, float* scale, int8_t* codes) {
  float largest = 0;
  for (int i = 0; i < kColumns; ++i) largest = std::max(largest, std::fabs(x[i]));
  *scale = 0;
  std::memset(codes, 0, kColumns);
  const float inverse = 1 / largest;
  if (!(inverse < 0x1p126f)) return;  // zeros, or too small to divide by
  float unit[kColumns], best = std::numeric_limits<float>::infinity();  // relative to the largest:
  for (int i = 0; i < kColumns; ++i) unit[i] = x[i] * inverse;  // no square overflows or vanishes
  for (const float most : {127.0f, 126.0f, 124.5f}) {
    constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
    float c[kColumns], products = 0, squares = 0, error = 0;
    for (int i = 0; i < kColumns; ++i) c[i] = (unit[i] * most + kMagic) - kMagic;
    for (int i = 0; i < kColumns; ++i) products += unit[i] * c[i];
    for (int i = 0; i < kColumns; ++i) squares += c[i] * c[i];
    const float d = products / squares;
    for (int i = 0; i < kColumns; ++i) error += (unit[i] - d * c[i]) * (unit[i] - d * c[i]);
    if (error < best) {
      best = error;
      *scale = d * largest;
      for (int i = 0; i < kColumns; ++i) codes[i] = static_cast<int8_t>(c[i]);
    }
  }
}

// Codes of a row, a scale per 16 columns; those of 32 have two that are equal.
template <typename Layout>
NPU_INLINE void fit8_row_as(const float* values, int64_t width, int8_t* codes, float* scales) {
  constexpr int64_t kScales = Layout::kGroup / kGroup;
  for (int64_t c = 0; c < width; c += Layout::kGroup, scales += kScales) {
    fit8<Layout::kGroup>(values + c, scales, codes + c);
    std::fill_n(scales, kScales, *scales);
  }
}

NPU_CLONES void fit8_row(const float* values, int64_t width, int8_t* codes, float* scales) {
  fit8_row_as<q8>(values, width, codes, scales);
}
NPU_CLONES void fit8_0_row(const float* values, int64_t width, int8_t* codes, float* scales) {
  fit8_row_as<q8_0>(values, width, codes, scales);
}

// Whether the codes of a type, with the scales that they have, are those of a format.
bool keeps_codes8(Stored type, Format format) {
  return format == Format::kQ8 ? has_codes8(type) : type == Stored::kQ8_0 || type == Stored::kQ5_0;
}

// Calls row(r, bytes) for the rows of each row-block, then pack(its index); `clear` zeroes the
// buffers of a row that does not exist. Returns the first row for which row() was false, or -1.
template <typename Row, typename Clear, typename Pack>
int64_t by_row_blocks(const uint8_t* raw, int64_t stride, int64_t rows, const Row& row,
                      const Clear& clear, const Pack& pack) {
  for (int64_t first = 0; first < rows; first += kBlockRows) {
    for (int64_t r = 0; r < kBlockRows; ++r) {
      if (first + r >= rows) {
        clear(r);
      } else if (!row(r, raw + (first + r) * stride)) {
        return first + r;
      }
    }
    pack(first / kBlockRows);
  }
  return -1;
}

// Bytes of a row-block whose rows fill blocks.
int64_t row_block_bytes(Format format, int64_t width) {
  return width / blocks::columns_of(format) * blocks::bytes_of(format);
}

int64_t convert4(Stored type, Format format, const uint8_t* raw, int64_t stride, int64_t rows,
                 int64_t k, uint8_t* out) {
  const bool minima = format == Format::kQ4nx;
  const uint8_t zero = minima ? 0 : q4_0::kZero;
  const int64_t width = round_up(k, q4nx::kColumns), groups = width / q4nx::kGroup;
  const int64_t used = k / q4nx::kGroup, bytes = row_block_bytes(format, width);
  std::vector<uint8_t> codes(static_cast<size_t>(kBlockRows * width), zero);
  std::vector<uint16_t> d(static_cast<size_t>(kBlockRows * groups)), m(d.size());
  std::vector<float> wide(static_cast<size_t>(2 * used));
  const auto row = [&](int64_t r, const uint8_t* bytes_of_row) {
    float *d_wide = wide.data(), *m_wide = wide.data() + used;
    uint16_t *d_row = d.data() + r * groups, *m_row = m.data() + r * groups;
    codes4_row(type, bytes_of_row, k, codes.data() + r * width, d_wide, m_wide);
    for (int64_t g = 0; g < used; ++g) d_row[g] = to_bf16(d_wide[g]);
    for (int64_t g = 0; g < used; ++g) m_row[g] = to_bf16(m_wide[g]);
    return finite_bf16(d_row, used) && finite_bf16(m_row, used);
  };
  const auto clear = [&](int64_t r) {
    std::fill_n(codes.data() + r * width, width, zero);
    std::fill_n(d.data() + r * groups, groups, uint16_t{0});
    std::fill_n(m.data() + r * groups, groups, uint16_t{0});
  };
  return by_row_blocks(raw, stride, rows, row, clear, [&](int64_t block) {
    pack4(codes.data(), d.data(), minima ? m.data() : nullptr, width, out + block * bytes);
  });
}

int64_t convert8(Stored type, Format format, const uint8_t* raw, int64_t stride, int64_t rows,
                 int64_t k, uint8_t* out) {
  const int64_t width = round_up(k, q8::kColumns), groups = width / kGroup;
  const int64_t bytes = row_block_bytes(format, width);
  const auto pack = format == Format::kQ8 ? pack8 : pack8_0;
  const auto fit = format == Format::kQ8 ? fit8_row : fit8_0_row;
  std::vector<int8_t> codes(static_cast<size_t>(kBlockRows * width));
  std::vector<float> d(static_cast<size_t>(kBlockRows * groups));
  std::vector<float> values(static_cast<size_t>(width));
  const auto row = [&](int64_t r, const uint8_t* bytes_of_row) {
    int8_t* codes_row = codes.data() + r * width;
    float* d_row = d.data() + r * groups;
    if (keeps_codes8(type, format)) {
      codes8_row(type, bytes_of_row, k, codes_row, d_row);
      return finite(d_row, k / kGroup);
    }
    dequantize_row(type, bytes_of_row, k, values.data());
    fit(values.data(), width, codes_row, d_row);
    return finite(values.data(), k);
  };
  const auto clear = [&](int64_t r) {
    std::fill_n(codes.data() + r * width, width, int8_t{0});
    std::fill_n(d.data() + r * groups, groups, 0.0f);
  };
  return by_row_blocks(raw, stride, rows, row, clear, [&](int64_t block) {
    pack(codes.data(), d.data(), width, out + block * bytes);
  });
}

int64_t convert_bf16(Stored type, const uint8_t* raw, int64_t stride, int64_t rows, int64_t k,
                     uint8_t* out) {
  const int64_t width = round_up(k, kColumnsBf16), bytes = row_block_bytes(Format::kBf16, width);
  std::vector<uint16_t> narrow(static_cast<size_t>(kBlockRows * width));
  std::vector<float> values(static_cast<size_t>(k));
  const auto row = [&](int64_t r, const uint8_t* bytes_of_row) {
    uint16_t* to = narrow.data() + r * width;
    if (type == Stored::kBF16) {
      std::memcpy(to, bytes_of_row, static_cast<size_t>(2 * k));
    } else {
      dequantize_row(type, bytes_of_row, k, values.data());
      narrowed(values.data(), k, to);
    }
    return finite_bf16(to, k);
  };
  const auto clear = [&](int64_t r) { std::fill_n(narrow.data() + r * width, width, uint16_t{0}); };
  return by_row_blocks(raw, stride, rows, row, clear, [&](int64_t block) {
    pack_bf16(narrow.data(), width, out + block * bytes);
  });
}

}  // namespace

bool converts(Stored type, Format format) {
  return format == Format::kQ4nx ? has_codes4(type)
                                 : format != Format::kQ4_0 || type == Stored::kQ4_0;
}

int64_t convert_rows(Stored type, Format format, const uint8_t* raw, int64_t stride, int64_t rows,
                     int64_t k, uint8_t* out) {
  if (is_int4(format)) return convert4(type, format, raw, stride, rows, k, out);
  if (is_int8(format)) return convert8(type, format, raw, stride, rows, k, out);
  return convert_bf16(type, raw, stride, rows, k, out);
}

}  // namespace npu::weights
