// KV pages: rows at the addresses of the layout, rounding, ranges that are refused, attention over
// pages against attention over float32 arrays.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "host/attention.h"
#include "host/kv_pages.h"

namespace {

using npu::ops::AttentionShape;
using npu::ops::KvPages;

// Row of (position, head, K or V): page, head, chunk, K or V, position of the chunk.
size_t row_at(const KvPages& pages, int64_t position, int64_t head, int64_t which) {
  const int64_t chunk = npu::ops::chunk_positions(pages.head_dim), inside = position % 256;
  const int64_t page = pages.table[static_cast<size_t>(position / 256)];
  int64_t row = page * pages.kv_heads + head;
  row = (row * (256 / chunk) + inside / chunk) * 2 + which;
  return static_cast<size_t>((row * chunk + inside % chunk) * pages.head_dim);
}

}  // namespace

TEST_CASE("a chunk is 4096 elements where that is a power of two of positions in a page") {
  CHECK(npu::ops::chunk_positions(64) == 64);
  CHECK(npu::ops::chunk_positions(128) == 32);
  CHECK(npu::ops::chunk_positions(256) == 16);
  CHECK(npu::ops::chunk_positions(1) == 256);
  CHECK(npu::ops::chunk_positions(40) == 64);
  CHECK(npu::ops::chunk_positions(5000) == 1);
}

TEST_CASE("attention over pages equals attention over arrays of the same values") {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const int64_t head_dim : {40, 64, 128, 256}) {
    const int64_t keys = 530, queries = 18, kv_heads = 2, heads = 6;
    std::vector<int64_t> table{4, 1, 2};
    KvPages pages{{}, table, kv_heads, head_dim};
    std::vector<uint16_t> pool(static_cast<size_t>(5 * pages.page_elements()), 0x7FC0);  // NaN
    pages.pool = pool;
    // (positions, kv_heads, head_dim) of multiples of 1/8, which bfloat16 has exactly up to 32.
    const auto size = static_cast<size_t>(keys * kv_heads * head_dim);
    std::vector<float> k(size), v(size), q(static_cast<size_t>(queries * heads * head_dim));
    for (auto* values : {&k, &v}) {
      for (float& value : *values) value = std::round(8 * normal(random)) / 8;
    }
    for (float& value : q) value = normal(random);
    npu::ops::put_rows(pages, 0, 500, k.data(), v.data());
    const auto part = static_cast<size_t>(500 * kv_heads * head_dim);
    npu::ops::put_rows(pages, 500, keys - 500, k.data() + part, v.data() + part);

    std::vector<float> k_heads(size), v_heads(size);
    const auto width = static_cast<size_t>(head_dim);
    for (int64_t position = 0; position < keys; ++position) {
      for (int64_t head = 0; head < kv_heads; ++head) {
        const auto from = static_cast<size_t>(position * kv_heads + head) * width;
        const auto to = static_cast<size_t>(head * keys + position) * width;
        for (size_t i = 0; i < width; ++i) {
          k_heads[to + i] = k[from + i];
          v_heads[to + i] = v[from + i];
          const uint16_t stored = pool[row_at(pages, position, head, 1) + i];
          REQUIRE(std::bit_cast<float>(uint32_t{stored} << 16) == v[from + i]);
        }
      }
    }
    AttentionShape s{.queries = queries, .heads = heads, .kv_heads = kv_heads};
    s.head_dim = head_dim;
    s.keys = keys;
    s.kv_stride = keys * head_dim;
    s.shift = keys - queries;
    s.scale = 0.1f;
    for (const int64_t window : {0, 1, 7, 200, 400}) {
      s.window = window;
      std::vector<float> expected(q.size()), actual(q.size());
      npu::ops::attention(q.data(), k_heads.data(), v_heads.data(), s, expected.data());
      npu::ops::attention(q.data(), pages, s, actual.data());
      CHECK(actual == expected);
    }
    npu::ops::clear_rows(pages, 520, 530);
    CHECK(pool[row_at(pages, 519, 1, 0)] ==
          static_cast<uint16_t>(
              std::bit_cast<uint32_t>(k_heads[static_cast<size_t>(keys + 519) * width]) >> 16));
    CHECK(pool[row_at(pages, 520, 1, 0)] == 0);
    CHECK(pool[row_at(pages, 529, 0, 1) + width - 1] == 0);
  }
}

TEST_CASE("positions outside of the pages are not covered") {
  std::vector<int64_t> table{1, -1, 0, 3};
  KvPages pages{{}, table, 1, 64};
  std::vector<uint16_t> pool(static_cast<size_t>(3 * pages.page_elements()));
  pages.pool = pool;
  CHECK(pages.covers(0, 256));
  CHECK(pages.covers(512, 768));
  CHECK(pages.covers(300, 300));
  CHECK_FALSE(pages.covers(255, 257));
  CHECK_FALSE(pages.covers(512, 769));   // page 3 of a pool of 3
  CHECK_FALSE(pages.covers(700, 1025));  // beyond the table
  CHECK_FALSE(pages.covers(-1, 1));
  CHECK_FALSE(pages.covers(0, std::numeric_limits<int64_t>::max()));
}
