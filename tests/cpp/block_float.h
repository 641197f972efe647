// BFP16 as aie_api/bfp16.hpp describes it, restated for tests in double: 8 values share an exponent
// E, multiples of 2^(E - 133), at most 127 of them; in memory a byte of E, then the mantissas.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace npu::block_float {

inline constexpr size_t kBytes = 9;

// 2^(E - 133) of the largest magnitude; of zeros and NaN the smallest and NaN.
inline double unit_of(const double* x, size_t stride = 1) {
  double most = 0;
  for (size_t i = 0; i < 8; ++i) {
    if (std::isnan(x[i * stride])) return NAN;
    most = std::max(most, std::abs(x[i * stride]));
  }
  return std::ldexp(1.0, most == 0 ? -133 : std::max(std::ilogb(most), -127) - 6);
}

// Rounds eight finite values, `stride` from one to the next.
inline void round(double* x, size_t stride = 1) {
  const double unit = unit_of(x, stride);
  for (size_t i = 0; i < 8; ++i) {
    x[i * stride] = std::min(std::nearbyint(x[i * stride] / unit), 127.0) * unit;
  }
}

// How far rounding may move x[i] of eight values that are known up to a part 2^-7 of them.
inline double reach(const double* x, size_t i) {
  double above[8];
  for (size_t j = 0; j < 8; ++j) above[j] = x[j] * (1 + 0x1p-7);
  const double unit = unit_of(above);
  return std::abs(above[i]) > 126.5 * unit ? unit : unit / 2;
}

// The memory of eight finite values.
inline void encode(const double* x, uint8_t* bytes) {
  const double unit = unit_of(x);
  bytes[0] = static_cast<uint8_t>(std::ilogb(unit) + 133);
  for (int i = 0; i < 8; ++i) {
    const double mantissa = std::min(std::nearbyint(x[i] / unit), 127.0);
    bytes[1 + i] = static_cast<uint8_t>(static_cast<int>(mantissa));
  }
}

inline double decode(const uint8_t* bytes, int i) {
  if (bytes[0] == 255) return NAN;
  return std::ldexp(static_cast<double>(static_cast<int8_t>(bytes[1 + i])), bytes[0] - 133);
}

// Element (row, column) of an operand of 8 rows x 32 columns: four tiles of 8 x 8.
inline double operand(const void* block, int row, int column) {
  const auto* bytes = static_cast<const uint8_t*>(block);
  return decode(bytes + static_cast<size_t>(column / 8 * 8 + row) * kBytes, column % 8);
}

}  // namespace npu::block_float
