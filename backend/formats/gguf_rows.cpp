// Decodes rows of GGUF tensors (gguf_rows.h). Loops run over 16 or 32 elements with fixed trip
// counts so that they vectorise.
#include "formats/gguf_rows.h"

#include <bit>
#include <cassert>
#include <cstring>

namespace npu::weights {

namespace {

struct Type {
  Stored type;
  int64_t elements, bytes;  // of a block
};
constexpr Type kTypes[] = {
    {Stored::kF32, 1, 4},      {Stored::kF16, 1, 2},      {Stored::kQ4_0, 32, 18},
    {Stored::kQ4_1, 32, 20},   {Stored::kQ5_0, 32, 22},   {Stored::kQ5_1, 32, 24},
    {Stored::kQ8_0, 32, 34},   {Stored::kQ2_K, 256, 84},  {Stored::kQ3_K, 256, 110},
    {Stored::kQ4_K, 256, 144}, {Stored::kQ5_K, 256, 176}, {Stored::kQ6_K, 256, 210},
    {Stored::kBF16, 1, 2},
};

const Type& type_of(Stored stored) {
  for (const Type& type : kTypes) {
    if (type.type == stored) return type;
  }
  assert(false);
  return kTypes[0];
}

inline float half(uint16_t bits) {
  const uint32_t magnitude = static_cast<uint32_t>(bits & 0x7fff) << 13;
  // 2^112 moves the exponent's bias from 15 to 127, of subnormal numbers too.
  float value = std::bit_cast<float>(magnitude) * 0x1p112f;
  if ((bits & 0x7c00) == 0x7c00) value = std::bit_cast<float>(magnitude | 0x7f800000u);
  return (bits & 0x8000) != 0 ? -value : value;
}

inline float half_at(const uint8_t* p) {
  return half(static_cast<uint16_t>(p[0] | static_cast<uint16_t>(p[1]) << 8));
}

// Low nibbles are elements 0 to 15, high ones 16 to 31.
inline void nibbles(const uint8_t* q, uint8_t* codes) {
  for (int i = 0; i < 16; ++i) codes[i] = q[i] & 15;
  for (int i = 0; i < 16; ++i) codes[16 + i] = q[i] >> 4;
}

// The fifth bits of Q5_0 and Q5_1: bit i belongs to element i.
inline void fifth_bits(const uint8_t* high, uint8_t* codes) {
  uint32_t bits;
  std::memcpy(&bits, high, 4);
  for (int i = 0; i < 32; ++i) codes[i] |= static_cast<uint8_t>((bits >> i & 1) << 4);
}

// The 6-bit scale and minimum of group j of Q4_K and Q5_K, out of 12 bytes.
inline void scale_minimum(const uint8_t* s, int j, int& scale, int& minimum) {
  if (j < 4) {
    scale = s[j] & 63;
    minimum = s[j + 4] & 63;
  } else {
    scale = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
    minimum = s[j + 4] >> 4 | (s[j] >> 6) << 4;
  }
}

// d and m of the 8 groups of a Q4_K or Q5_K block: w = d * code + m.
inline void k_scales(const uint8_t* block, float* d, float* m) {
  const float scale = half_at(block), minimum = half_at(block + 2);
  for (int j = 0; j < 8; ++j) {
    int sc, mn;
    scale_minimum(block + 4, j, sc, mn);
    d[j] = scale * static_cast<float>(sc);
    m[j] = -(minimum * static_cast<float>(mn));
  }
}

// Nibbles of a Q4_K or Q5_K block: 32 bytes hold groups 2c (low) and 2c + 1 (high).
inline void k_nibbles(const uint8_t* q, uint8_t* codes) {
  for (int c = 0; c < 4; ++c) {
    for (int i = 0; i < 32; ++i) codes[c * 64 + i] = q[c * 32 + i] & 15;
    for (int i = 0; i < 32; ++i) codes[c * 64 + 32 + i] = q[c * 32 + i] >> 4;
  }
}

void q5_k(const uint8_t* block, uint8_t* codes, float* d, float* m) {
  k_scales(block, d, m);
  k_nibbles(block + 48, codes);
  const uint8_t* high = block + 16;
  for (int j = 0; j < 8; ++j) {
    for (int i = 0; i < 32; ++i) {
      codes[j * 32 + i] |= static_cast<uint8_t>((high[i] >> j & 1) << 4);
    }
  }
}

void q6_k(const uint8_t* block, int8_t* codes, float* d) {
  const float scale = half_at(block + 208);
  for (int j = 0; j < 16; ++j) {
    d[j] = scale * static_cast<float>(static_cast<int8_t>(block[192 + j]));
  }
  for (int n = 0; n < 2; ++n) {
    const uint8_t *low = block + n * 64, *high = block + 128 + n * 32;
    int8_t* out = codes + n * 128;
    for (int part = 0; part < 4; ++part) {
      const uint8_t* q = low + (part & 1) * 32;
      const int shift = part < 2 ? 0 : 4;
      for (int i = 0; i < 32; ++i) {
        const int bits = (q[i] >> shift & 15) | (high[i] >> (2 * part) & 3) << 4;
        out[part * 32 + i] = static_cast<int8_t>(bits - 32);
      }
    }
  }
}

// The 2-bit codes of Q2_K and Q3_K: bit pairs j of 32 bytes are elements 32 j to 32 j + 31.
inline void pairs(const uint8_t* q, uint8_t* codes) {
  for (int n = 0; n < 2; ++n) {
    for (int j = 0; j < 4; ++j) {
      for (int i = 0; i < 32; ++i) codes[n * 128 + j * 32 + i] = q[n * 32 + i] >> (2 * j) & 3;
    }
  }
}

void q2_k(const uint8_t* block, float* out) {
  uint8_t codes[256];
  pairs(block + 16, codes);
  const float d = half_at(block + 80), minimum = half_at(block + 82);
  for (int j = 0; j < 16; ++j) {
    const float scale = d * static_cast<float>(block[j] & 15);
    const float low = minimum * static_cast<float>(block[j] >> 4);
    for (int i = 0; i < 16; ++i) {
      out[j * 16 + i] = scale * static_cast<float>(codes[j * 16 + i]) - low;
    }
  }
}

void q3_k(const uint8_t* block, float* out) {
  uint8_t codes[256];
  pairs(block + 32, codes);
  const uint8_t* scales = block + 96;
  const float d = half_at(block + 108);
  for (int j = 0; j < 16; ++j) {
    const int low = j < 8 ? scales[j] & 15 : scales[j - 8] >> 4;
    const int high = scales[8 + j % 4] >> (2 * (j / 4)) & 3;
    const float scale = d * static_cast<float>((low | high << 4) - 32);
    for (int i = 0; i < 16; ++i) {
      const int element = j * 16 + i;
      // Bit element / 32 of the high mask; clear means 4 less.
      const int bit = block[element % 32] >> (element / 32) & 1;
      out[element] = scale * static_cast<float>(codes[element] - (bit ^ 1) * 4);
    }
  }
}

void affine(const uint8_t* codes, float d, float m, int count, float* out) {
  for (int i = 0; i < count; ++i) out[i] = d * static_cast<float>(codes[i]) + m;
}

}  // namespace

std::optional<Stored> stored_type(int number) {
  for (const Type& type : kTypes) {
    if (static_cast<int>(type.type) == number) return type.type;
  }
  return std::nullopt;
}

int64_t row_bytes(Stored type, int64_t k) {
  const Type& found = type_of(type);
  return k % found.elements == 0 ? k / found.elements * found.bytes : 0;
}

bool has_codes4(Stored type) {
  return type == Stored::kQ4_0 || type == Stored::kQ4_1 || type == Stored::kQ4_K;
}

void codes4_row(Stored type, const uint8_t* row, int64_t k, uint8_t* codes, float* d, float* m) {
  if (type == Stored::kQ4_K) {
    for (int64_t b = 0; b < k / 256; ++b) {
      k_scales(row + b * 144, d + b * 8, m + b * 8);
      k_nibbles(row + b * 144 + 16, codes + b * 256);
    }
    return;
  }
  const bool minima = type == Stored::kQ4_1;
  for (int64_t b = 0; b < k / 32; ++b) {
    const uint8_t* block = row + b * (minima ? 20 : 18);
    d[b] = half_at(block);
    m[b] = minima ? half_at(block + 2) : -8 * d[b];
    nibbles(block + (minima ? 4 : 2), codes + b * 32);
  }
}

bool has_codes8(Stored type) {
  return type == Stored::kQ8_0 || type == Stored::kQ5_0 || type == Stored::kQ6_K;
}

void codes8_row(Stored type, const uint8_t* row, int64_t k, int8_t* codes, float* d) {
  if (type == Stored::kQ6_K) {
    for (int64_t b = 0; b < k / 256; ++b) q6_k(row + b * 210, codes + b * 256, d + b * 16);
    return;
  }
  const int64_t bytes = type == Stored::kQ8_0 ? 34 : 22;
  for (int64_t b = 0; b < k / 32; ++b) {
    const uint8_t* block = row + b * bytes;
    d[2 * b] = d[2 * b + 1] = half_at(block);
    int8_t* out = codes + b * 32;
    if (type == Stored::kQ8_0) {
      std::memcpy(out, block + 2, 32);
      continue;
    }
    uint8_t five[32];
    nibbles(block + 6, five);
    fifth_bits(block + 2, five);
    for (int i = 0; i < 32; ++i) out[i] = static_cast<int8_t>(five[i] - 16);
  }
}

void dequantize_row(Stored type, const uint8_t* row, int64_t k, float* out) {
  const int64_t bytes = type_of(type).bytes;
  switch (type) {
    case Stored::kF32:
      std::memcpy(out, row, static_cast<size_t>(k) * 4);
      return;
    case Stored::kF16:
      for (int64_t i = 0; i < k; ++i) {
        uint16_t bits;
        std::memcpy(&bits, row + 2 * i, 2);
        out[i] = half(bits);
      }
      return;
    case Stored::kBF16:
      for (int64_t i = 0; i < k; ++i) {
        uint16_t bits;
        std::memcpy(&bits, row + 2 * i, 2);
        out[i] = std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
      }
      return;
    case Stored::kQ4_0:
    case Stored::kQ4_1:
    case Stored::kQ4_K:
      for (int64_t begin = 0; begin < k; begin += type_of(type).elements) {
        uint8_t codes[256];
        float d[8], m[8];
        const int64_t count = type_of(type).elements;
        codes4_row(type, row + begin / count * bytes, count, codes, d, m);
        for (int j = 0; j < count / 32; ++j) {
          affine(codes + 32 * j, d[j], m[j], 32, out + begin + 32 * j);
        }
      }
      return;
    case Stored::kQ8_0:
    case Stored::kQ5_0:
    case Stored::kQ6_K:
      for (int64_t begin = 0; begin < k; begin += type_of(type).elements) {
        int8_t codes[256];
        float d[16];
        const int64_t count = type_of(type).elements;
        codes8_row(type, row + begin / count * bytes, count, codes, d);
        for (int i = 0; i < count; ++i) out[begin + i] = d[i / 16] * static_cast<float>(codes[i]);
      }
      return;
    case Stored::kQ5_1:
      for (int64_t b = 0; b < k / 32; ++b) {
        const uint8_t* block = row + b * bytes;
        uint8_t codes[32];
        nibbles(block + 8, codes);
        fifth_bits(block + 4, codes);
        affine(codes, half_at(block), half_at(block + 2), 32, out + b * 32);
      }
      return;
    case Stored::kQ5_K:
      for (int64_t b = 0; b < k / 256; ++b) {
        uint8_t codes[256];
        float d[8], m[8];
        q5_k(row + b * bytes, codes, d, m);
        for (int j = 0; j < 8; ++j) affine(codes + 32 * j, d[j], m[j], 32, out + b * 256 + 32 * j);
      }
      return;
    case Stored::kQ2_K:
      for (int64_t b = 0; b < k / 256; ++b) q2_k(row + b * bytes, out + b * 256);
      return;
    case Stored::kQ3_K:
      for (int64_t b = 0; b < k / 256; ++b) q3_k(row + b * bytes, out + b * 256);
      return;
  }
}

}  // namespace npu::weights
