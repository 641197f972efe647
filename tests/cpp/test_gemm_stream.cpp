// GEMM runtime streams, checked by walking their own BDs: every element of A, B and C is visited by
// the right core column the right number of times, in the order the design expects, the 5+5+5 ring
// waits before it reuses a BD, and the stream passes the runtime checker. Uses a hand-written
// configuration; the real ones are exercised from Python.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <string>

#include "arch/bd.h"
#include "error.h"
#include "ops/gemm_stream.h"
#include "stream/txn.h"

namespace {

using namespace npu;

// Two rows and two columns of cores with tiles of 4 x 8 x 4 bytes-sized elements; the array itself
// does not matter here. k_mt and layout as in the design's parameters.
Configuration small_configuration(int k_mt = 8, bool b_columns = false) {
  std::string text =
      "npu-config 1\nname small\ngeneration npu1\n"
      "source 0000000000000000000000000000000000000000000000000000000000000000\n"
      "param tile_m 4\nparam tile_k 8\nparam tile_n 4\nparam rows 2\nparam columns 2\n"
      "param a_bytes 2\nparam c_bytes 4\nparam a_columns_stride 1\n";
  text += strf("param k_mt %d\nparam b_layout %d\n", k_mt, int{b_columns});
  for (int c = 0; c < 2; ++c) {
    text += strf("port A%d %d mm2s 0\nport B%d %d mm2s 1\nport C%d %d s2mm 0\n", c, c, c, c, c, c);
    for (int row = 2; row < 4; ++row) {
      text += strf("rtp k_tiles %d %d 1024\nrtp tiles %d %d 1028\n", c, row, c, row);
      text += strf("rtp shift %d %d 1032\nrtplock %d %d 8\n", c, row, c, row);
    }
  }
  stream::Builder empty(arch::Generation::kNpu1, 4);
  const std::vector<uint32_t> txn = empty.finish();
  text += strf("txn %zu\n", txn.size() * 4);
  std::vector<std::byte> bytes(text.size() + txn.size() * 4);
  std::copy_n(reinterpret_cast<const std::byte*>(text.data()), text.size(), bytes.begin());
  std::copy_n(reinterpret_cast<const std::byte*>(txn.data()), txn.size() * 4,
              bytes.begin() + static_cast<long>(text.size()));
  return Configuration::parse(bytes);
}

// Byte offsets that a shim BD visits, one per 32-bit word (brute force over its counters).
std::vector<uint64_t> visited(const arch::Bd& bd, uint64_t base) {
  std::vector<uint64_t> offsets;
  for (uint64_t w = 0; w < bd.length; ++w) {
    const uint64_t n0 = bd.wrap[0] ? bd.wrap[0] : bd.length;
    const uint64_t n1 = bd.wrap[1] ? bd.wrap[1] : bd.length;
    const uint64_t i0 = w % n0, i1 = w / n0 % n1, i2 = w / n0 / n1;
    offsets.push_back(base + 4 * (i0 * bd.step[0] + i1 * bd.step[1] + i2 * bd.step[2]));
  }
  return offsets;
}

struct Transfer {
  int col, argument;
  std::vector<uint64_t> offsets;
};

// Plays a stream: the transfers in push order, with the ring's discipline checked on the way.
std::vector<Transfer> play(const std::vector<uint32_t>& words, uint64_t* peak_in_flight) {
  const stream::Stream parsed = stream::Stream::parse(std::as_bytes(std::span(words)));
  std::map<uint32_t, std::vector<uint32_t>> bds;  // BD address -> words
  std::map<uint32_t, std::pair<uint32_t, uint64_t>> patches;
  std::map<int, uint64_t> pushed_c, waited_c;
  std::vector<Transfer> transfers;
  *peak_in_flight = 0;
  for (const stream::Operation& op : parsed.operations()) {
    const uint32_t address = static_cast<uint32_t>(op.address);
    if (op.opcode == stream::Opcode::kBlockWrite) {
      bds[address] = {op.data.begin(), op.data.end()};
    } else if (op.opcode == stream::Opcode::kAddressPatch) {
      patches[address - 4] = {op.argument, op.argument_offset};
    } else if (op.opcode == stream::Opcode::kSync) {
      for (int c = op.column; c < op.column + op.columns; ++c) ++waited_c[c];
    } else if (op.opcode == stream::Opcode::kWrite && arch::address_row(address) == 0) {
      const int col = arch::address_col(address);
      const uint32_t bd = arch::tile_address(col, 0, 0x1D000 + 0x20 * (op.value & 0xF));
      REQUIRE(bds.count(bd) == 1);
      REQUIRE(patches.count(bd) == 1);
      const arch::Bd fields = arch::decode_bd(arch::TileKind::kShim, bds[bd]);
      const auto [argument, offset] = patches[bd];
      transfers.push_back({col, static_cast<int>(argument), visited(fields, offset)});
      if (op.value >> 31) {
        ++pushed_c[col];
        *peak_in_flight = std::max(*peak_in_flight, pushed_c[col] - waited_c[col]);
      }
    }
  }
  for (const auto& [col, pushed] : pushed_c) CHECK(pushed == waited_c[col]);
  return transfers;
}

// `rows` rows from `first` of a matrix with K columns, as K/k_mt tiles of (rows, k_mt).
std::vector<uint64_t> expect_along_k(int64_t k, int64_t first, int64_t k_mt, bool tiled) {
  std::vector<uint64_t> offsets;
  const int64_t rows = 4;
  for (int64_t kt = 0; kt < k / k_mt; ++kt) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < k_mt; j += 2) {
        const int64_t element =
            tiled ? first * k + (kt * rows + i) * k_mt + j : (first + i) * k + kt * k_mt + j;
        offsets.push_back(static_cast<uint64_t>(element * 2));
      }
    }
  }
  return offsets;
}

std::vector<uint64_t> expect_b(const ops::GemmProblem& p, int64_t first_col, int64_t k_mt,
                               bool b_columns) {
  const bool packed = p.b_layout == ops::BLayout::kPanels;
  if (b_columns) return expect_along_k(p.k, first_col, k_mt, packed);
  std::vector<uint64_t> offsets;
  for (int64_t i = 0; i < p.k; ++i) {
    for (int64_t j = 0; j < 4; j += 2) {
      const int64_t element = packed ? first_col * p.k + i * 4 + j : i * p.n + first_col + j;
      offsets.push_back(static_cast<uint64_t>(element * 2));
    }
  }
  return offsets;
}

std::vector<uint64_t> expect_c(const ops::GemmProblem& p, int64_t row, int64_t col) {
  std::vector<uint64_t> offsets;
  for (int64_t i = 0; i < 8; ++i) {
    for (int64_t j = 0; j < 4; ++j) {
      offsets.push_back(static_cast<uint64_t>(((row + i) * p.n + col + j) * 4));
    }
  }
  return offsets;
}

}  // namespace

TEST_CASE("gemm stream: transfers cover A, B and C in the design's order") {
  for (const int variant : {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}) {
    const int k_mt = variant & 1 ? 24 : 8;
    const bool b_columns = variant & 2;
    const Configuration configuration = small_configuration(k_mt, b_columns);
    ops::GemmProblem p{24, 48, 32};  // 3 x 4 output rounds
    p.a_layout = variant & 4 ? ops::ALayout::kTiles : ops::ALayout::kRowMajor;
    p.b_layout = variant & 8 ? ops::BLayout::kPanels : ops::BLayout::kMatrix;
    CAPTURE(variant);
    for (const bool overlap : {true, false}) {
      p.overlap = overlap;
      uint64_t peak = 0;
      std::map<std::pair<int, int>, std::vector<std::vector<uint64_t>>> got;
      for (auto& t : play(ops::build_gemm_stream(configuration, p), &peak)) {
        got[{t.argument, t.col}].push_back(std::move(t.offsets));
      }
      CHECK(peak == (overlap ? 5 : 1));
      for (int c = 0; c < 2; ++c) {
        for (size_t round = 0; round < 12; ++round) {
          const int64_t row = static_cast<int64_t>(round) / 4 * 8;
          const int64_t col = static_cast<int64_t>(round) % 4 * 8 + c * 4;
          const bool tiled = p.a_layout == ops::ALayout::kTiles;
          CHECK(got[{0, c}][round] == expect_along_k(p.k, row + c * 4, k_mt, tiled));
          CHECK(got[{1, c}][round] == expect_b(p, col, k_mt, b_columns));
          CHECK(got[{2, c}][round] == expect_c(p, row, col));
        }
      }
    }
  }
}

TEST_CASE("gemm stream: runtime parameters are K/k, the rounds and the shift") {
  ops::GemmProblem p{16, 48, 16};
  p.shift = 7;
  std::map<uint32_t, int> values;
  const std::vector<uint32_t> words = ops::build_gemm_stream(small_configuration(24), p);
  const stream::Stream parsed = stream::Stream::parse(std::as_bytes(std::span(words)));
  for (const stream::Operation& op : parsed.operations()) {
    const uint32_t address = static_cast<uint32_t>(op.address);
    if (op.opcode == stream::Opcode::kWrite && arch::address_row(address) >= 2 &&
        arch::address_offset(address) < 65536) {
      const uint32_t expected[] = {48 / 8, 2 * 2, 7};
      CHECK(op.value == expected[(arch::address_offset(address) - 1024) / 4]);
      ++values[arch::address_offset(address)];
    }
  }
  CHECK(values == std::map<uint32_t, int>{{1024, 4}, {1028, 4}, {1032, 4}});
}

TEST_CASE("gemm stream: shifts and sizes out of range are refused") {
  const Configuration configuration = small_configuration();
  for (const int shift : {-1, 32, 1 << 30}) {
    ops::GemmProblem p{8, 8, 8};
    p.shift = shift;
    CHECK_THROWS_AS(ops::build_gemm_stream(configuration, p), Error);
  }
  const int64_t huge = int64_t{1} << 62;
  for (const ops::GemmProblem& p :
       {ops::GemmProblem{huge, 8, 8}, ops::GemmProblem{8, huge, 8}, ops::GemmProblem{8, 8, huge}}) {
    CHECK_THROWS_AS(ops::build_gemm_stream(configuration, p), Error);
  }
}

TEST_CASE("gemm stream: row-major B with K times N beyond a BD's step field") {
  const ops::GemmProblem p{8, 64, 1 << 17, ops::ALayout::kRowMajor, ops::BLayout::kMatrix};
  CHECK_NOTHROW(ops::build_gemm_stream(small_configuration(), p));
}

TEST_CASE("gemm stream: touches only what a runtime stream may") {
  const Configuration configuration = small_configuration();
  const std::vector<uint32_t> words = ops::build_gemm_stream(configuration, {8, 8, 8});
  stream::Permissions permissions;
  for (const auto& rtp : configuration.rtps) {
    permissions.rtp_words.push_back({rtp.col, rtp.row, rtp.address, 4});
  }
  for (const auto& lock : configuration.rtp_locks) {
    permissions.rtp_locks.push_back({lock.col, lock.row, lock.lock});
  }
  const stream::Stream parsed = stream::Stream::parse(std::as_bytes(std::span(words)));
  CHECK_NOTHROW(stream::check_runtime_stream(parsed, permissions));
  CHECK_THROWS_AS(stream::check_runtime_stream(parsed, {}), Error);
}

TEST_CASE("gemm stream: K far beyond a BD's row stride works when A is packed") {
  const Configuration configuration = small_configuration();
  const int64_t k = int64_t{1} << 24;
  CHECK_NOTHROW(ops::build_gemm_stream(configuration,
                                       {8, k, 8, ops::ALayout::kTiles, ops::BLayout::kPanels}));
  CHECK_THROWS_AS(ops::build_gemm_stream(configuration,
                                         {8, k, 8, ops::ALayout::kRowMajor, ops::BLayout::kPanels}),
                  Error);
}

TEST_CASE("gemm stream: sizes that are not multiples of the native size are refused") {
  const Configuration configuration = small_configuration();
  for (const ops::GemmProblem& p :
       {ops::GemmProblem{7, 8, 8}, ops::GemmProblem{8, 9, 8}, ops::GemmProblem{8, 8, 12},
        ops::GemmProblem{0, 8, 8}, ops::GemmProblem{8, -8, 8}}) {
    CHECK_THROWS_AS(ops::build_gemm_stream(configuration, p), Error);
  }
}
