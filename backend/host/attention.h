// Causal grouped-query attention of new positions over a KV cache, in float32 on the host.
#pragma once

#include <cstdint>

#include "host/kv_pages.h"

namespace npu::ops {

struct AttentionShape {
  int64_t queries = 0, heads = 0, kv_heads = 0, head_dim = 0;
  int64_t keys = 0;       // of each KV head; at least shift + queries
  int64_t kv_stride = 0;  // floats from one KV head to the next
  int64_t shift = 0;      // query t is key shift + t
  int64_t window = 0;     // keys that a query sees, itself included; 0: all
  float scale = 1;
};

// q and out: (queries, heads, head_dim), contiguous; k, v: (kv_heads, keys, head_dim) with
// contiguous rows. Blocks of queries run on the shared thread pool; no result depends on threads.
void attention(const float* q, const float* k, const float* v, const AttentionShape& shape,
               float* out);

// The same over bfloat16 pages, key s at position s. Nothing before the first query's window is
// read; pages must cover the rest (KvPages::covers). Equals the above on the same values.
void attention(const float* q, const KvPages& pages, const AttentionShape& shape, float* out);

}  // namespace npu::ops
