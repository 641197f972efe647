// Attention's work of a token (ops/decoder): ranges cover once every group of chunks with a key
// that a query of its 64 sees, for any position, window and heads, and stay the same for these 64;
// records are those of the ranges; reads are what a walk over the pages finds, for pages anywhere.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "error.h"
#include "gemm_fixture.h"
#include "ops/decoder/decoder_attention.h"

namespace {

using namespace npu;
using ops::DecoderAttention;
using ops::DecoderRange;
using ops::KvLayout;

struct Random {
  std::mt19937 engine{1};
  int64_t below(int64_t most) { return int64_t(engine() % uint64_t(most)); }
};

void check_ranges(const ops::DecoderShape& shape, int pairs, int64_t position, int64_t window) {
  CAPTURE(shape.kv_heads);
  CAPTURE(shape.head_dim);
  CAPTURE(pairs);
  CAPTURE(position);
  CAPTURE(window);
  const KvLayout layout{shape.kv_heads, shape.head_dim};
  const auto work = DecoderAttention::of(shape, layout, pairs, position, window);
  const int64_t size = layout.chunk_positions();
  const int64_t from = window > 0 ? std::max<int64_t>(0, position - window + 1) : 0;
  REQUIRE(work.from == from);
  REQUIRE(work.parts <= ops::DecoderArray::kMaxParts);
  std::map<std::pair<int64_t, int64_t>, int> seen;  // head, chunk
  std::map<int64_t, std::set<int64_t>> parts;       // of a head
  std::map<int, int64_t> load;                      // chunks of a pair
  for (const DecoderRange& range : work.ranges) {
    REQUIRE(range.pair >= 0);
    REQUIRE(range.pair < pairs);
    REQUIRE(range.chunks > 0);
    REQUIRE(parts[range.kv_head].insert(range.part).second);
    for (int64_t i = 0; i < range.chunks; ++i) ++seen[{range.kv_head, range.first + i}];
    load[range.pair] += range.chunks;
    const attention::Record record = work.record(shape, layout, range);
    REQUIRE(record.rows == shape.group());
    REQUIRE(record.group == shape.group());
    REQUIRE(record.chunks == range.chunks);
    REQUIRE(record.query_position == position);
    REQUIRE(record.key_position == range.first * size);
    REQUIRE(record.keys_from == from);
    REQUIRE(record.keys_end == position + 1);
    // 2^(scale s) is e^(attention_scale s).
    const double scale = std::bit_cast<float>(record.scale);
    REQUIRE(scale == doctest::Approx(double{shape.attention_scale} / std::log(2.0)).epsilon(1e-6));
    REQUIRE((1 + record.objects) * attention::kPartBytes >=
            attention::kTableBytes + shape.group() * shape.head_dim * 2);
  }
  // What the first query of the 64 sees, in groups of 64.
  const int64_t begin = window > 0 ? std::max<int64_t>(0, position / 64 * 64 - window + 1) : 0;
  std::map<std::pair<int64_t, int64_t>, int> expected;
  for (int64_t head = 0; head < shape.kv_heads; ++head) {
    for (int64_t group = begin / 64; group <= position / 64; ++group) {
      for (int64_t key = 64 * group; key < 64 * group + 64; ++key) expected[{head, key / size}] = 1;
    }
    for (const int64_t part : parts[head]) REQUIRE(part < work.parts);
    REQUIRE(*parts[head].rbegin() + 1 == int64_t(parts[head].size()));
  }
  REQUIRE(seen == expected);
  // Pairs that work have the same to do, up to one chunk.
  int64_t least = INT64_MAX, most = 0;
  for (const auto& [pair, chunks] : load) {
    least = std::min(least, chunks);
    most = std::max(most, chunks);
  }
  REQUIRE(most - least <= 1);
  const auto next = DecoderAttention::of(shape, layout, pairs, position + 1, window);
  REQUIRE((next.ranges == work.ranges) == (position / 64 == (position + 1) / 64));
}

}  // namespace

TEST_CASE("decoder attention: ranges cover what the queries of a group see once") {
  Random random;
  for (int round = 0; round < 2000; ++round) {
    ops::DecoderShape shape;
    shape.kv_heads = 1 + random.below(16);
    shape.heads = shape.kv_heads * (1 + random.below(8));
    shape.head_dim = 64 << random.below(3);
    shape.attention_scale = 0.01f * float(1 + random.below(40));
    const int64_t window = random.below(2) * (1 + random.below(1200));
    const int64_t positions[] = {0, 1, 15, 16, 255, 256, 257, random.below(4000)};
    check_ranges(shape, int(1 + random.below(7)), positions[random.below(8)], window);
  }
}

TEST_CASE("decoder attention: reads are those of a walk over the pages") {
  Random random;
  for (int round = 0; round < 400; ++round) {
    const KvLayout layout{1 + random.below(8), 64 << random.below(3)};
    const int64_t count = 1 + random.below(12), pool = 4 * count;
    // Runs, gaps and any order.
    std::vector<int64_t> pages;
    std::set<int64_t> used;
    while (int64_t(pages.size()) < count) {
      int64_t next = pages.empty() || random.below(3) == 0 ? random.below(pool) : pages.back() + 1;
      while (next >= pool || used.count(next) != 0) next = random.below(pool);
      used.insert(next);
      pages.push_back(next);
    }
    const int64_t chunks = count * layout.page_chunks();
    const int64_t first = random.below(chunks);
    const DecoderRange range{0, random.below(layout.kv_heads), 0, first,
                             1 + random.below(chunks - first)};
    std::vector<uint64_t> expected, found;  // every word's byte
    for (int64_t chunk = first; chunk < first + range.chunks; ++chunk) {
      const int64_t at =
          ((pages[size_t(chunk / layout.page_chunks())] * layout.kv_heads + range.kv_head) *
               layout.page_chunks() +
           chunk % layout.page_chunks()) *
          2 * 8192;
      for (int64_t b = 0; b < 2 * 8192; b += 4) {
        expected.push_back(uint64_t(at + b));
      }
    }
    for (const ops::KvRead& read : kv_reads(layout, pages, range)) {
      (void)arch::encode_bd(arch::TileKind::kShim, read.bd);
      for (const uint64_t at : test::visited(read.bd, uint64_t(read.offset))) found.push_back(at);
    }
    REQUIRE(found == expected);
  }
}

TEST_CASE("decoder attention: one read for pages that follow each other, none for missing ones") {
  const KvLayout layout{2, 256};
  const DecoderRange all{0, 1, 0, 0, 4 * layout.page_chunks()};
  const int64_t together[] = {5, 6, 7, 8}, apart[] = {5, 6, 9, 8};
  CHECK(kv_reads(layout, together, all).size() == 1);
  CHECK(kv_reads(layout, apart, all).size() == 3);
  const int64_t released[] = {-1, 6, 7, 8};
  CHECK_THROWS_AS(kv_reads(layout, released, all), Error);
  CHECK_THROWS_AS(kv_reads(layout, std::span(together, 3), all), Error);
}
