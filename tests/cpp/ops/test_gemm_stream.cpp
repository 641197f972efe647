// GEMM runtime streams, checked by walking their own BDs: every element of A, B and C is visited by
// the right core column the right number of times, in the order the design expects, the 5+5+5 ring
// waits before it reuses a BD, edges and tails come from packed copies, and the stream passes the
// runtime checker. Uses a hand-written configuration; the real ones are exercised from Python.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <string>

#include "arch/bd.h"
#include "error.h"
#include "gemm_fixture.h"
#include "ops/gemm/gemm_schedule.h"
#include "stream/txn.h"
#include "streams.h"

namespace {

using namespace npu;

using test::small_configuration;
using test::visited;

using Place = std::pair<int, uint64_t>;  // argument, byte offset

struct Transfer {
  int col, kind;  // 0 = A, 1 = B, 2 = C
  std::vector<Place> places;
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
      patches[address - 4] = {op.argument, test::unfolded(op.argument, op.argument_offset)};
    } else if (op.opcode == stream::Opcode::kSync) {
      for (int c = op.column; c < op.column + op.columns; ++c) ++waited_c[c];
    } else if (op.opcode == stream::Opcode::kWrite && arch::address_row(address) == 0) {
      const int col = arch::address_col(address);
      const uint32_t bd = arch::tile_address(col, 0, 0x1D000 + 0x20 * (op.value & 0xF));
      Transfer transfer{col, -1, {}};
      for (uint32_t at = bd;;) {
        REQUIRE(bds.count(at) == 1);
        REQUIRE(patches.count(at) == 1);
        const arch::Bd fields = arch::decode_bd(arch::TileKind::kShim, bds[at]);
        const auto [argument, offset] = patches[at];
        transfer.kind = test::matrix_of(argument);
        for (const uint64_t place : visited(fields, offset)) {
          transfer.places.push_back({static_cast<int>(argument), place});
        }
        if (!fields.use_next) break;
        at = arch::tile_address(col, 0, 0x1D000 + 0x20 * fields.next_bd);
      }
      transfers.push_back(std::move(transfer));
      if (op.value >> 31) {
        ++pushed_c[col];
        *peak_in_flight = std::max(*peak_in_flight, pushed_c[col] - waited_c[col]);
      }
    }
  }
  for (const auto& [col, pushed] : pushed_c) CHECK(pushed == waited_c[col]);
  return transfers;
}

// Where an element of A (row, kk) or of a B that lies along K (column, kk) is read, by the
// definition of GemmFeed; `first` is the argument in place.
Place along_k(const ops::GemmFeed& feed, int first, int64_t k, int64_t k_mt, int64_t row,
              int64_t kk) {
  const auto tiled = [&](int64_t r, int64_t depth, int64_t x) {
    return r / 4 * 4 * depth + (x / k_mt * 4 + r % 4) * k_mt + x % k_mt;
  };
  if (row >= feed.direct) {
    return {first + 3, static_cast<uint64_t>(tiled(row - feed.direct, k, kk) * 2)};
  }
  if (kk >= feed.depth) {
    return {first + 6, static_cast<uint64_t>(tiled(row, k - feed.depth, kk - feed.depth) * 2)};
  }
  return {first, static_cast<uint64_t>((row * feed.stride + kk) * 2)};
}

// The same for row-major B, whose packed panels have `width` columns.
Place across_k(const ops::GemmFeed& feed, int64_t k, int64_t col, int64_t kk, int64_t width = 4) {
  const auto panel = [&](int64_t c, int64_t depth, int64_t x) {
    return c / width * width * depth + x * width + c % width;
  };
  if (col >= feed.direct) return {4, static_cast<uint64_t>(panel(col - feed.direct, k, kk) * 2)};
  if (kk >= feed.depth) {
    return {7, static_cast<uint64_t>(panel(col, k - feed.depth, kk - feed.depth) * 2)};
  }
  return {1, static_cast<uint64_t>((kk * feed.stride + col) * 2)};
}

Place place_c(const ops::GemmProblem& p, int64_t row, int64_t col) {
  const int64_t below = (p.m - p.c_rows) * p.n, right = p.n - p.c_cols;
  if (row >= p.c_rows) return {5, static_cast<uint64_t>(((row - p.c_rows) * p.n + col) * 4)};
  if (col >= p.c_cols) {
    return {5, static_cast<uint64_t>((below + row * right + col - p.c_cols) * 4)};
  }
  return {2, static_cast<uint64_t>((row * p.c_stride + col) * 4)};
}

// What a shim channel must move for the tile row, panel or block that starts at `row`, `col`.
std::vector<Place> expected(const ops::GemmProblem& p, int kind, int64_t row, int64_t col,
                            int64_t k_mt, bool b_columns) {
  std::vector<Place> out;
  if (kind == 2) {
    for (int64_t i = 0; i < 8; ++i) {
      for (int64_t j = 0; j < 4; ++j) out.push_back(place_c(p, row + i, col + j));
    }
  } else if (kind == 1 && !b_columns) {
    for (int64_t kk = 0; kk < p.k; ++kk) {
      for (int64_t j = 0; j < 4; j += 2) out.push_back(across_k(p.b, p.k, col + j, kk));
    }
  } else {
    for (int64_t kt = 0; kt < p.k; kt += k_mt) {
      for (int64_t i = 0; i < 4; ++i) {
        for (int64_t j = 0; j < k_mt; j += 2) {
          out.push_back(kind == 0 ? along_k(p.a, 0, p.k, k_mt, row + i, kt + j)
                                  : along_k(p.b, 1, p.k, k_mt, col + i, kt + j));
        }
      }
    }
  }
  return out;
}

void check_transfers(const ops::GemmProblem& p, int k_mt, bool b_columns, uint64_t in_flight) {
  uint64_t peak = 0;
  std::map<std::pair<int, int>, std::vector<std::vector<Place>>> got;
  const Configuration configuration = small_configuration(k_mt, b_columns);
  for (auto& t : play(test::gemm_words(configuration, p), &peak)) {
    got[{t.kind, t.col}].push_back(std::move(t.places));
  }
  CHECK(peak == in_flight);
  const size_t across = static_cast<size_t>(p.n / 8),
               rounds = across * static_cast<size_t>(p.m / 8);
  for (const auto& [channel, transfers] : got) REQUIRE(transfers.size() == rounds);
  REQUIRE(got.size() == 6);
  for (int c = 0; c < 2; ++c) {
    for (size_t round = 0; round < rounds; ++round) {
      const int64_t row = static_cast<int64_t>(round / across) * 8;
      const int64_t col = static_cast<int64_t>(round % across) * 8 + c * 4;
      CHECK(got[{0, c}][round] == expected(p, 0, row + c * 4, col, k_mt, b_columns));
      CHECK(got[{1, c}][round] == expected(p, 1, row, col, k_mt, b_columns));
      CHECK(got[{2, c}][round] == expected(p, 2, row, col, k_mt, b_columns));
    }
  }
}

}  // namespace

TEST_CASE("gemm stream: transfers cover A, B and C in the design's order") {
  for (int variant = 0; variant < 32; ++variant) {
    const int k_mt = variant & 1 ? 24 : 8;
    const bool b_columns = variant & 2;
    const ops::GemmTile tile = ops::GemmTile::of(small_configuration(k_mt, b_columns));
    ops::GemmProblem p = ops::GemmProblem::dense(tile, 24, 48, 32);  // 3 x 4 output rounds
    if (variant & 4) p.a = {};
    if (variant & 8) p.b = {};
    if (variant & 16) p.c_rows = p.c_cols = p.c_stride = 0;
    CAPTURE(variant);
    check_transfers(p, k_mt, b_columns, 5);
    p.overlap = false;
    check_transfers(p, k_mt, b_columns, 1);
  }
}

TEST_CASE("gemm stream: edges and K tails come from packed copies, the rest from its place") {
  for (int variant = 0; variant < 64; ++variant) {
    const int k_mt = variant & 1 ? 24 : 8;
    const bool b_columns = variant & 2, tail_a = variant & 16, tail_b = variant & 32;
    ops::GemmProblem p{24, 48, 32};
    p.a = {variant & 4 ? 16 : 24, tail_a ? 48 - k_mt : 48, 50};  // rows of 50 elements
    p.b = {variant & 8 ? 16 : 32, tail_b ? 48 - k_mt : 48, b_columns ? 46 : 30};
    p.c_rows = variant & 4 ? 16 : 24;
    p.c_cols = variant & 8 ? 16 : 32;
    p.c_stride = 31;
    CAPTURE(variant);
    check_transfers(p, k_mt, b_columns, tail_a || tail_b ? 3 : 5);
  }
}

TEST_CASE("gemm stream: the ports of a pair read the upper and the lower half of every tile") {
  for (int variant = 0; variant < 16; ++variant) {
    const int k_mt = variant & 1 ? 24 : 8;
    const bool tail = variant & 2;
    ops::GemmProblem p{16, 48, 32};
    p.a = {16, 48, 48};
    p.b = {variant & 4 ? 16 : 32, tail ? 48 - k_mt : 48, 34};
    if (variant & 8) p.b = {};
    CAPTURE(variant);
    uint64_t peak = 0;
    const Configuration configuration = small_configuration(k_mt, false, true);
    std::vector<std::vector<Place>> got;
    for (auto& t : play(test::gemm_words(configuration, p), &peak)) {
      if (t.kind == 1) got.push_back(std::move(t.places));
      if (t.kind == 1) CHECK(t.col == 1);
    }
    CHECK(peak == (tail && p.b.direct > 0 ? 3 : 5));
    REQUIRE(got.size() == 2 * 2 * 4);  // two ports, 2 x 4 output rounds
    for (size_t i = 0; i < got.size(); ++i) {
      const int64_t col = static_cast<int64_t>(i / 2 % 4) * 8, half = i % 2 ? 4 : 0;
      std::vector<Place> want;
      for (int64_t kt = 0; kt < p.k; kt += 8) {
        for (int64_t kk = kt + half; kk < kt + half + 4; ++kk) {
          for (int64_t j = 0; j < 8; j += 2) want.push_back(across_k(p.b, p.k, col + j, kk, 8));
        }
      }
      CHECK(got[i] == want);
    }
  }
}

TEST_CASE("gemm stream: a B whose tiles are too far apart for a pair's BDs is packed") {
  const ops::GemmTile single = ops::GemmTile::of(small_configuration());
  const ops::GemmTile pairs = ops::GemmTile::of(small_configuration(8, false, true));
  const int64_t widest = int64_t{4} << 20;  // bytes between two rows that a BD steps over
  CHECK(single.b_step_fits(widest));
  CHECK_FALSE(single.b_step_fits(widest + 4));
  CHECK(pairs.b_step_fits(widest / 8));  // tile_k = 8
  CHECK_FALSE(pairs.b_step_fits(widest / 8 + 4));
  const int64_t n = widest / 8 / 2 + 8;
  CHECK(ops::GemmExtent::dense(single, 8, 8, n).b.direct == n);
  CHECK(ops::GemmExtent::dense(pairs, 8, 8, n).b.direct == 0);
  CHECK_FALSE(single.packs_b_like(pairs));
}

TEST_CASE("gemm stream: a pair's ports take halves of objects of several tiles of B") {
  Configuration config = small_configuration(16, false, true);
  config.params["b_rows"] = 16;  // two tiles
  CHECK(ops::GemmTile::of(config).b_step_fits((int64_t{4} << 20) / 16));
  CHECK_FALSE(ops::GemmTile::of(config).b_step_fits((int64_t{4} << 20) / 16 + 4));
  uint64_t peak = 0;
  const ops::GemmTile tile = ops::GemmTile::of(config);
  const auto transfers =
      play(test::gemm_words(config, ops::GemmProblem::dense(tile, 8, 32, 8)), &peak);
  int64_t half = 0;
  for (const Transfer& transfer : transfers) {
    if (transfer.kind != 1) continue;
    std::vector<Place> want;  // rows 0-7 and 16-23 of the first port, the others of the second
    for (int64_t first = 8 * half; first < 32; first += 16) {
      for (int64_t row = first; row < first + 8; ++row) {
        for (int64_t col = 0; col < 8; col += 2) {
          want.push_back({ops::kB, static_cast<uint64_t>((row * 8 + col) * 2)});
        }
      }
    }
    CHECK(transfer.places == want);
    ++half;
  }
  CHECK(half == 2);
}

TEST_CASE("gemm stream: the first reads, A's before B's, precede the cores' parameters") {
  const auto words = test::gemm_words(small_configuration(), {16, 16, 16});
  const stream::Stream parsed = stream::Stream::parse(std::as_bytes(std::span(words)));
  std::string order;  // of queue pushes (q), parameters and locks (p)
  for (const stream::Operation& op : parsed.operations()) {
    if (op.opcode != stream::Opcode::kWrite) continue;
    const char kind = arch::address_row(static_cast<uint32_t>(op.address)) == 0 ? 'q' : 'p';
    if (order.empty() || order.back() != kind || kind == 'q') order.push_back(kind);
  }
  CHECK(order.substr(0, 7) == "qqqqpqq");  // two A, two B, parameters, two C
  CHECK(order.find('p', 5) == std::string::npos);
  uint64_t peak = 0;
  const auto transfers = play(words, &peak);
  const int kinds[] = {0, 0, 1, 1, 2, 2};
  for (size_t i = 0; i < 6; ++i) CHECK(transfers[i].kind == kinds[i]);
}

TEST_CASE("gemm stream: runtime parameters are K/k, the rounds and the shift") {
  ops::GemmProblem p{16, 48, 16};
  p.shift = 7;
  std::map<uint32_t, int> values;
  const std::vector<uint32_t> words = test::gemm_words(small_configuration(24), p);
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
    CHECK_THROWS_AS(test::gemm_words(configuration, p), Error);
  }
  const int64_t huge = int64_t{1} << 62;
  for (const ops::GemmProblem& p :
       {ops::GemmProblem{huge, 8, 8}, ops::GemmProblem{8, huge, 8}, ops::GemmProblem{8, 8, huge}}) {
    CHECK_THROWS_AS(test::gemm_words(configuration, p), Error);
  }
}

TEST_CASE("gemm stream: row-major B with K times N beyond a BD's step field") {
  const Configuration configuration = small_configuration();
  const auto p = ops::GemmProblem::dense(ops::GemmTile::of(configuration), 8, 64, 1 << 17);
  CHECK_NOTHROW(test::gemm_words(configuration, p));
}

TEST_CASE("gemm stream: touches only what a runtime stream may") {
  const Configuration configuration = small_configuration();
  const std::vector<uint32_t> words = test::gemm_words(configuration, {8, 8, 8});
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
  CHECK_NOTHROW(test::gemm_words(configuration, {8, k, 8}));
  ops::GemmProblem p{8, k, 8};
  p.a = {8, k, k};
  CHECK_THROWS_AS(test::gemm_words(configuration, p), Error);
}

TEST_CASE("gemm stream: sizes that are not multiples of the native size are refused") {
  const Configuration configuration = small_configuration();
  for (const ops::GemmProblem& p :
       {ops::GemmProblem{7, 8, 8}, ops::GemmProblem{8, 9, 8}, ops::GemmProblem{8, 8, 12},
        ops::GemmProblem{0, 8, 8}, ops::GemmProblem{8, -8, 8}}) {
    CHECK_THROWS_AS(test::gemm_words(configuration, p), Error);
  }
}

TEST_CASE("gemm stream: sizes beyond a register are refused, not cut") {
  const Configuration configuration = small_configuration();
  // 4 rows x K x 2 bytes = 2^32 words and one k tile less.
  const int64_t k = int64_t{1} << 31;
  CHECK_THROWS_AS(test::gemm_words(configuration, {8, k, 8}), Error);
  CHECK_NOTHROW(test::gemm_words(configuration, {8, k - 8, 8}));
}

TEST_CASE("gemm stream: the longest stream is built and read, a longer one refused at once") {
  const Configuration configuration = small_configuration();
  const auto built = [&](int64_t rounds) {
    return test::gemm_words(
        configuration, ops::GemmProblem::dense(ops::GemmTile::of(configuration), 8 * rounds, 8, 8));
  };
  const auto size = [&](int64_t rounds) { return static_cast<int64_t>(built(rounds).size()) * 4; };
  const int64_t step = size(21) - size(20), most = static_cast<int64_t>(stream::Stream::kMaxBytes);
  const int64_t rounds = (most - size(20)) / step + 20;
  const std::vector<uint32_t> longest = built(rounds);
  CHECK_NOTHROW(stream::Stream::parse(std::as_bytes(std::span(longest))));
  for (const int64_t more : {rounds + 8, int64_t{1} << 27}) {
    try {
      built(more);
      FAIL("built");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::kShape);
      CHECK(std::string(error.what()).find("split M or N") != std::string::npos);
    }
  }
}

TEST_CASE("gemm stream: configurations that describe no GEMM are refused") {
  const Configuration good = small_configuration();
  for (const char* name : {"tile_m", "tile_k", "tile_n", "rows", "columns", "a_type", "b_type",
                           "c_type", "k_mt", "b_rows"}) {
    for (const int64_t value : {int64_t{0}, int64_t{-4}, int64_t{1} << 40}) {
      if (value == 0 && std::string(name).ends_with("_type")) continue;  // float32
      Configuration bad = good;
      bad.params[name] = value;
      CHECK_THROWS_AS(test::gemm_words(bad, {8, 8, 8}), Error);
    }
  }
  Configuration odd = good;
  odd.params["tile_n"] = 3;  // 6 bytes a row
  CHECK_THROWS_AS(test::gemm_words(odd, {8, 8, 6}), Error);
  for (const auto& [k_mt, b_rows] : {std::pair{24, 12}, {24, 16}}) {
    Configuration uneven = small_configuration(k_mt);  // tile_k = 8
    uneven.params["b_rows"] = b_rows;
    CHECK_THROWS_AS(test::gemm_words(uneven, {8, 24, 8}), Error);
  }
  Configuration renamed = good;
  renamed.rtps[0].name = "k_count";
  CHECK_THROWS_AS(test::gemm_words(renamed, {8, 8, 8}), Error);
}

TEST_CASE("gemm stream: two problems follow each other, each with its arguments") {
  const Configuration configuration = small_configuration();
  const ops::GemmTile tile = ops::GemmTile::of(configuration);
  const ops::GemmProblem problems[] = {ops::GemmProblem::dense(tile, 16, 24, 32),
                                       ops::GemmProblem::dense(tile, 8, 16, 24)};
  const auto words = test::words_of(configuration, [&](stream::Builder& builder) {
    ops::append_gemms(builder, configuration, problems);
  });
  const stream::Stream both = stream::Stream::parse(std::as_bytes(std::span(words)));
  size_t at = 0;
  for (uint32_t i = 0; i < 2; ++i) {
    const auto single = test::gemm_words(configuration, problems[i]);
    const stream::Stream alone = stream::Stream::parse(std::as_bytes(std::span(single)));
    for (const stream::Operation& expected : alone.operations()) {
      REQUIRE(at < both.operations().size());
      const stream::Operation& found = both.operations()[at++];
      REQUIRE(found.opcode == expected.opcode);
      REQUIRE(found.address == expected.address);
      REQUIRE(found.value == expected.value);
      if (expected.opcode != stream::Opcode::kAddressPatch) continue;
      const uint32_t argument = expected.argument + i * static_cast<uint32_t>(ops::kGemmArguments);
      REQUIRE(found.argument == argument);
      REQUIRE(test::unfolded(found.argument, found.argument_offset) ==
              test::unfolded(expected.argument, expected.argument_offset));
    }
  }
  CHECK(at == both.operations().size());
}
