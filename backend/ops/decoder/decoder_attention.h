// Which pair of attention cores reads which chunks of keys and values for a token, and the records
// that tell the cores.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "aie_kernels/attention.h"
#include "arch/bd.h"
#include "host/kv_pages.h"
#include "ops/decoder/decoder_model.h"

namespace npu::ops {

// Consecutive chunks of a key head for a pair of cores: its partial result is number `part` of the
// head's.
struct DecoderRange {
  int pair = 0;
  int64_t kv_head = 0, part = 0;
  int64_t first = 0, chunks = 0;  // positions / positions of a chunk
  bool operator==(const DecoderRange&) const = default;
};

// The work of attention at one position with one window: the groups of kQueryGroup positions that
// any query of the same group sees, also where this one sees none of a chunk. So the next token
// mostly has the same work, and its stream the same transfers. A group lies in one page of the
// cache, whose rows are finite where no token has been.
struct DecoderAttention {
  int64_t position = 0, from = 0;    // of the query; the first key it sees
  int64_t parts = 0;                 // partial results per key head at most
  std::vector<DecoderRange> ranges;  // in the order of pairs, then heads

  static DecoderAttention of(const DecoderShape& shape, const KvLayout& layout, int pairs,
                             int64_t position, int64_t window);
  attention::Record record(const DecoderShape& shape, const KvLayout& layout,
                           const DecoderRange& range) const;
};

struct KvRead {
  int64_t offset;  // bytes into the pool
  arch::Bd bd;
};

// The reads of a range: one for each run of pages that follow each other in the pool.
// pages: of the layer, by position / 256.
std::vector<KvRead> kv_reads(const KvLayout& layout, std::span<const int64_t> pages,
                             const DecoderRange& range);

}  // namespace npu::ops
