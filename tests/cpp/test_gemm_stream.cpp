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
#include "gemm_fixture.h"
#include "ops/gemm_stream.h"
#include "stream/txn.h"

namespace {

using namespace npu;
using test::small_configuration;
using test::visited;

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

std::vector<uint64_t> expect_a(const ops::GemmProblem& p, int64_t first_row) {
  std::vector<uint64_t> offsets;
  const int64_t m = 4, k = 8;
  for (int64_t kt = 0; kt < p.k / k; ++kt) {
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < k; j += 2) {
        const int64_t element = p.a_layout == ops::ALayout::kRowMajor
                                    ? (first_row + i) * p.k + kt * k + j
                                    : first_row * p.k + (kt * m + i) * k + j;
        offsets.push_back(static_cast<uint64_t>(element * 2));
      }
    }
  }
  return offsets;
}

std::vector<uint64_t> expect_b(const ops::GemmProblem& p, int64_t first_col) {
  std::vector<uint64_t> offsets;
  for (int64_t i = 0; i < p.k; ++i) {
    for (int64_t j = 0; j < 4; j += 2) {
      const int64_t element = p.b_layout == ops::BLayout::kRowMajor ? i * p.n + first_col + j
                                                                    : first_col * p.k + i * 4 + j;
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
  const Configuration configuration = small_configuration();
  for (const auto a : {ops::ALayout::kRowMajor, ops::ALayout::kTiles}) {
    for (const auto b : {ops::BLayout::kRowMajor, ops::BLayout::kPanels}) {
      const ops::GemmProblem p{24, 16, 32, a, b};  // 3 x 4 output rounds
      uint64_t peak = 0;
      std::map<std::pair<int, int>, std::vector<std::vector<uint64_t>>> got;
      for (auto& t : play(ops::build_gemm_stream(configuration, p), &peak)) {
        got[{t.argument, t.col}].push_back(std::move(t.offsets));
      }
      CHECK(peak == 5);
      for (int c = 0; c < 2; ++c) {
        for (int argument = 0; argument < 3; ++argument) {
          REQUIRE(got[{argument, c}].size() == 12);
        }
        for (size_t round = 0; round < 12; ++round) {
          const int64_t row = static_cast<int64_t>(round) / 4 * 8;
          const int64_t col = static_cast<int64_t>(round) % 4 * 8 + c * 4;
          CHECK(got[{0, c}][round] == expect_a(p, row + c * 4));
          CHECK(got[{1, c}][round] == expect_b(p, col));
          CHECK(got[{2, c}][round] == expect_c(p, row, col));
        }
      }
    }
  }
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

TEST_CASE("gemm stream: sizes beyond a register are refused, not cut") {
  const Configuration configuration = small_configuration();
  // 4 rows x K x 2 bytes = 2^32 words and one k tile less.
  const int64_t k = int64_t{1} << 31;
  CHECK_THROWS_AS(ops::build_gemm_stream(configuration, {8, k, 8}), Error);
  CHECK_NOTHROW(ops::build_gemm_stream(configuration, {8, k - 8, 8}));
}

TEST_CASE("gemm stream: configurations that describe no GEMM are refused") {
  const Configuration good = small_configuration();
  for (const char* name : {"tile_m", "tile_k", "tile_n", "rows", "columns", "a_bytes", "c_bytes"}) {
    for (const int64_t value : {int64_t{0}, int64_t{-4}, int64_t{1} << 40}) {
      Configuration bad = good;
      bad.params[name] = value;
      CHECK_THROWS_AS(ops::build_gemm_stream(bad, {8, 8, 8}), Error);
    }
  }
  Configuration odd = good;
  odd.params["tile_n"] = 3;  // 6 bytes a row
  CHECK_THROWS_AS(ops::build_gemm_stream(odd, {8, 8, 6}), Error);
  Configuration renamed = good;
  renamed.rtps[0].name = "k_count";
  CHECK_THROWS_AS(ops::build_gemm_stream(renamed, {8, 8, 8}), Error);
}
