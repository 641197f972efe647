// Attention's work per token (decoder_attention.h).
#include "ops/decoder/decoder_attention.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <numbers>

#include "error.h"

namespace npu::ops {

namespace {

// Fewer chunks are not worth a pair's start and its partial result.
constexpr int64_t kMinChunks = 5;

}  // namespace

DecoderAttention DecoderAttention::of(const DecoderShape& shape, const KvLayout& layout, int pairs,
                                      int64_t position, int64_t window) {
  DecoderAttention out;
  out.position = position;
  out.from = first_seen(position, window);
  static_assert(kPagePositions % kQueryGroup == 0);
  const int64_t size = layout.chunk_positions(), heads = shape.kv_heads;
  const int64_t begin = first_read(position, window) / size;
  const int64_t chunks = (position / kQueryGroup + 1) * kQueryGroup / size - begin;
  const int64_t total = chunks * heads;
  const int64_t used = std::clamp<int64_t>(total / kMinChunks, 1, pairs);
  std::vector<int64_t> parts(static_cast<size_t>(heads), 0);
  for (int pair = 0; pair < used; ++pair) {
    int64_t next = total * pair / used;
    const int64_t end = total * (pair + 1) / used;
    while (next < end) {
      const int64_t head = next / chunks, first = next % chunks;
      const int64_t count = std::min(end - next, chunks - first);
      int64_t& part = parts[static_cast<size_t>(head)];
      out.ranges.push_back({pair, head, part++, begin + first, count});
      next += count;
    }
  }
  out.parts = *std::max_element(parts.begin(), parts.end());
  return out;
}

attention::Record DecoderAttention::record(const DecoderShape& shape, const KvLayout& layout,
                                           const DecoderRange& range) const {
  const auto word = [](int64_t value) { return static_cast<int32_t>(value); };
  attention::Record record{};
  record.rows = record.group = word(shape.group());
  record.head_dim = word(shape.head_dim);
  record.objects = attention::header_objects(record.rows, record.head_dim) - 1;
  record.chunks = word(range.chunks);
  record.query_position = word(position);
  record.key_position = word(range.first * layout.chunk_positions());
  record.keys_from = word(from);
  record.keys_end = word(position + 1);
  record.causal = 1;
  record.scale = std::bit_cast<int32_t>(shape.attention_scale * std::numbers::log2e_v<float>);
  record.output = static_cast<int32_t>(attention::Output::kPartial);
  record.out_objects =
      attention::out_objects_of(record.rows, record.head_dim, attention::Output::kPartial);
  return record;
}

std::vector<KvRead> kv_reads(const KvLayout& layout, std::span<const int64_t> pages,
                             const DecoderRange& range) {
  constexpr int64_t kLine = 512;  // words
  const int64_t chunk_bytes = 2 * layout.chunk_bytes();
  const int64_t per_page = layout.page_chunks();
  const auto page_at = [&](int64_t chunk) {
    const auto index = static_cast<size_t>(chunk / per_page);
    if (index >= pages.size() || pages[index] < 0) {
      fail(ErrorKind::kOutOfRange,
           "[decoder] chunk %lld is in no page of the cache; begin() makes "
           "room for a token",
           static_cast<long long>(chunk));
    }
    return pages[index];
  };
  std::vector<KvRead> out;
  int64_t next = range.first;
  const int64_t end = range.first + range.chunks;
  while (next < end) {
    const int64_t page = page_at(next);
    KvRead read{page * layout.page_bytes() + range.kv_head * layout.head_bytes() +
                    next % per_page * chunk_bytes,
                {}};
    int64_t count = std::min(end - next, per_page - next % per_page);
    if (next % per_page == 0) {  // whole pages that follow each other
      while (next + count + per_page <= end && count % per_page == 0 &&
             page_at(next + count) == page + count / per_page) {
        count += per_page;
      }
    }
    if (count > per_page) {
      read.bd.wrap[0] = kLine;
      read.bd.step[1] = kLine;
      read.bd.wrap[1] = static_cast<uint32_t>(layout.head_bytes() / 4 / kLine);
      read.bd.step[2] = static_cast<uint32_t>(layout.page_bytes() / 4);
    }
    read.bd.length = static_cast<uint32_t>(count * chunk_bytes / 4);
    out.push_back(read);
    next += count;
  }
  return out;
}

}  // namespace npu::ops
