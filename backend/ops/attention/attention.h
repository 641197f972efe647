// Attention on the array (designs/attention.py): how a request becomes jobs of pairs of cores.
//
// Queries of a kv head's group go in blocks of up to 32 rows; a job is a block against those chunks
// of the keys that some of its rows sees, or against one of `parts` shares of these: few queries of
// many keys occupy all pairs so. Arguments of the stream:
//   jobs  (jobs, parts of a header, 2, 8192 bytes): each part for both cores;
//   aie_kernels/attention.h kv    (kv_heads, chunks, {K, V}, positions of a chunk, head_dim)
//   bfloat16 y     (jobs, tokens of a block, group, head_dim) bfloat16, each job padded to 1024
//   bytes
// Jobs are numbered kv head by kv head, block by block.
#pragma once

#include <cstdint>
#include <vector>

#include "aie_kernels/attention.h"
#include "runtime/operation_type.h"

namespace npu::ops {

extern const OperationType kAttentionType;

// The sizes of a request, checked, and what follows from them.
struct AttentionJobs {
  // Throws Error(kShape).
  explicit AttentionJobs(const Request& request);

  int64_t tokens, keys, heads, kv_heads, head_dim, query_position, window, scale;
  bool causal;
  int64_t parts, group, block_tokens, blocks, positions, chunks;  // chunks: of a kv head
  int64_t header_parts, y_bytes;                                  // of a job

  int64_t count() const { return kv_heads * blocks * parts; }
  attention::Output output() const {
    return parts > 1 ? attention::Output::kPartial : attention::Output::kRows;
  }
  int64_t kv_bytes() const { return kv_heads * chunks * 2 * attention::kPartBytes; }
  int64_t header_bytes() const { return header_parts * 2 * attention::kPartBytes; }
  // What the cores are told about a job.
  attention::Record record(int64_t job) const;
  // Where a job's first chunk lies in kv.
  int64_t kv_offset(int64_t job, const attention::Record& record) const;
  // The records of all jobs, kRecordWords words each.
  std::vector<int32_t> records() const;
};

}  // namespace npu::ops
