// What the GEMM tests share: a hand-written configuration with small tiles, and the words that a
// shim BD visits.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "arch/bd.h"
#include "error.h"
#include "runtime/configuration.h"
#include "stream/txn.h"

namespace npu::test {

// Two rows and two columns of cores with tiles of 4 x 8 x 4 bytes-sized elements; the array itself
// does not matter here. k_mt and layout as in the design's parameters. With b_pairs both ports of B
// are of column 1, and A has columns 0 and 2.
inline std::string small_configuration_file(int k_mt = 8, bool b_columns = false,
                                            bool b_pairs = false) {
  std::string text =
      "npu-config 1\nname small\ngeneration npu1\n"
      "source 0000000000000000000000000000000000000000000000000000000000000000\n"
      "param tile_m 4\nparam tile_k 8\nparam tile_n 4\nparam rows 2\nparam columns 2\nparam b_rows "
      "8\n"
      "param a_type 1\nparam b_type 1\nparam c_type 0\n";
  text += strf("param k_mt %d\nparam b_layout %d\n", k_mt, int{b_columns});
  text += strf("param b_pairs %d\n", int{b_pairs});
  for (int c = 0; c < 2; ++c) {
    text += strf("port A%d %d mm2s 0\nport C%d %d s2mm 0\n", c, b_pairs ? 2 * c : c, c, c);
    text += strf("port B%d %d mm2s %d\n", c, b_pairs ? 1 : c, b_pairs ? c : 1);
    for (int row = 2; row < 4; ++row) {
      text += strf("rtp k_tiles %d %d 1024\nrtp tiles %d %d 1028\n", c, row, c, row);
      text += strf("rtp shift %d %d 1032\nrtplock %d %d 8\n", c, row, c, row);
    }
  }
  stream::Builder empty(arch::Generation::kNpu1, 4);
  const std::vector<uint32_t> txn = empty.finish();
  text += strf("txn %zu\n", txn.size() * 4);
  return text.append(reinterpret_cast<const char*>(txn.data()), txn.size() * 4);
}

inline Configuration small_configuration(int k_mt = 8, bool b_columns = false,
                                         bool b_pairs = false) {
  const std::string file = small_configuration_file(k_mt, b_columns, b_pairs);
  return Configuration::parse(std::as_bytes(std::span(file.data(), file.size())));
}

// Byte offsets that a shim BD visits, one per 32-bit word (brute force over its counters).
inline std::vector<uint64_t> visited(const arch::Bd& bd, uint64_t base) {
  std::vector<uint64_t> offsets;
  for (uint64_t w = 0; w < bd.length; ++w) {
    const uint64_t n0 = bd.wrap[0] ? bd.wrap[0] : bd.length;
    const uint64_t n1 = bd.wrap[1] ? bd.wrap[1] : bd.length;
    const uint64_t i0 = w % n0, i1 = w / n0 % n1, i2 = w / n0 / n1;
    offsets.push_back(base + 4 * (i0 * bd.step[0] + i1 * bd.step[1] + i2 * bd.step[2]));
  }
  return offsets;
}

// The kind of matrix (0 = A, 1 = B, 2 = C) behind an argument of a GEMM stream.
inline int matrix_of(uint32_t argument) {
  constexpr int kKinds[] = {0, 1, 2, 0, 1, 2, 0, 1};
  return argument < 8 ? kKinds[argument] : -1;
}

// The byte offset of an address patch without the aperture folded into late arguments.
inline uint64_t unfolded(uint32_t argument, uint64_t offset) {
  return argument >= static_cast<uint32_t>(arch::kFirstFoldedArgument) ? offset - arch::kDdrAperture
                                                                       : offset;
}

}  // namespace npu::test
