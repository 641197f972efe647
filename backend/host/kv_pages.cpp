// Rows of KV pages (kv_pages.h): addresses and conversions.
#include "host/kv_pages.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "host/clones.h"

namespace npu::ops {

namespace {

constexpr int64_t kChunkElements = 4096;

NPU_INLINE uint16_t narrowed(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  // A NaN stays one: rounding could carry its mantissa away.
  const uint32_t nan = (bits >> 16) | 0x40u;
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  return static_cast<uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? nan : rounded);
}

NPU_CLONES
void narrow(const float* values, int64_t count, uint16_t* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = narrowed(values[i]);
}

}  // namespace

int64_t first_seen(int64_t query, int64_t window) {
  return window > 0 ? std::max<int64_t>(0, query - window + 1) : 0;
}

int64_t first_read(int64_t query, int64_t window) {
  return first_seen(query / kQueryGroup * kQueryGroup, window) / kQueryGroup * kQueryGroup;
}

int64_t chunk_positions(int64_t head_dim) {
  const int64_t most = std::clamp<int64_t>(kChunkElements / head_dim, 1, kPagePositions);
  return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(most)));
}

bool KvPages::covers(int64_t first, int64_t last) const {
  if (first >= last) return true;
  const auto pages = static_cast<int64_t>(pool.size()) / page_elements();
  if (first < 0 || last > static_cast<int64_t>(table.size()) * kPagePositions) return false;
  for (int64_t i = first / kPagePositions; i * kPagePositions < last; ++i) {
    const int64_t page = table[static_cast<size_t>(i)];
    if (page < 0 || page >= pages) return false;
  }
  return true;
}

int64_t KvLayout::row(std::span<const int64_t> pages, int64_t head, int64_t position) const {
  const int64_t chunk = chunk_positions(), inside = position % kPagePositions;
  const int64_t page = pages[static_cast<size_t>(position / kPagePositions)];
  return page * page_bytes() + head * head_bytes() + inside / chunk * 2 * chunk_bytes() +
         inside % chunk * head_dim * 2;
}

uint16_t* KvPages::row(int64_t head, int64_t position) const {
  return pool.data() + layout().row(table, head, position) / 2;
}

void put_rows(const KvPages& pages, int64_t first, int64_t count, const float* k, const float* v) {
  const int64_t width = pages.head_dim, value_rows = chunk_positions(width) * width;
  for (int64_t t = 0; t < count; ++t) {
    for (int64_t head = 0; head < pages.kv_heads; ++head) {
      uint16_t* to = pages.row(head, first + t);
      const int64_t from = (t * pages.kv_heads + head) * width;
      narrow(k + from, width, to);
      narrow(v + from, width, to + value_rows);
    }
  }
}

void clear_rows(const KvPages& pages, int64_t first, int64_t last) {
  const int64_t width = pages.head_dim, value_rows = chunk_positions(width) * width;
  const auto bytes = static_cast<size_t>(width) * sizeof(uint16_t);
  for (int64_t position = first; position < last; ++position) {
    for (int64_t head = 0; head < pages.kv_heads; ++head) {
      uint16_t* row = pages.row(head, position);
      std::memset(row, 0, bytes);
      std::memset(row + value_rows, 0, bytes);
    }
  }
}

NPU_CLONES
void widen(const uint16_t* values, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = std::bit_cast<float>(static_cast<uint32_t>(values[i]) << 16);
  }
}

}  // namespace npu::ops
