// Pages of a KV cache in one pool: where the K and V rows of a position are, and copies to and from
// float32. A page holds 256 positions of one layer as (KV heads, chunks, {K, V}, positions of a
// chunk, head_dim) bfloat16, the order in which attention streams a head's chunks.
#pragma once

#include <cstdint>
#include <span>

namespace npu::ops {

inline constexpr int64_t kPagePositions = 256;
// Attention may read for a query what the first one of its group sees.
inline constexpr int64_t kQueryGroup = 64;
// The first key that a query sees through a window (0: all), and the first that may be read for it,
// where a group begins.
int64_t first_seen(int64_t query, int64_t window);
int64_t first_read(int64_t query, int64_t window);

// Positions of a chunk: 4096 elements (8 KiB) of K, at most a page; a power of two.
int64_t chunk_positions(int64_t head_dim);

// Sizes and places in bytes; a page begins at a multiple of page_bytes() of its pool.
struct KvLayout {
  int64_t kv_heads = 0, head_dim = 0;

  int64_t chunk_positions() const { return ops::chunk_positions(head_dim); }
  int64_t chunk_bytes() const { return chunk_positions() * head_dim * 2; }    // of K; V's follows
  int64_t page_chunks() const { return kPagePositions / chunk_positions(); }  // of a head
  int64_t head_bytes() const { return page_chunks() * 2 * chunk_bytes(); }
  int64_t page_bytes() const { return kv_heads * head_bytes(); }
  // Where the K row of a position is; its V row is chunk_bytes() behind it.
  // pages: of the layer, by position / kPagePositions.
  int64_t row(std::span<const int64_t> pages, int64_t head, int64_t position) const;
};

struct KvPages {
  std::span<uint16_t> pool;        // bfloat16
  std::span<const int64_t> table;  // page by position / 256; negative: not kept
  int64_t kv_heads = 0, head_dim = 0;

  KvLayout layout() const { return {kv_heads, head_dim}; }
  int64_t page_elements() const { return layout().page_bytes() / 2; }
  // Whether positions [first, last) lie in pages of the table that lie in the pool.
  bool covers(int64_t first, int64_t last) const;
  // The K row of a position; its V row is chunk_positions(head_dim) rows behind it.
  uint16_t* row(int64_t head, int64_t position) const;
};

// Rounds k, v (count, kv_heads, head_dim), contiguous, to nearest even into positions from `first`.
void put_rows(const KvPages& pages, int64_t first, int64_t count, const float* k, const float* v);

// Sets the rows of positions [first, last) to 0.
void clear_rows(const KvPages& pages, int64_t first, int64_t last);

// out (count) = the float32 values of bfloat16 ones.
void widen(const uint16_t* values, int64_t count, float* out);

}  // namespace npu::ops
