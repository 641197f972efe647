// A prompt's workspace: one buffer with the activations of a chunk of tokens, and the constants of
// its jobs (aie_kernels/prefill_job.h). Rows are tokens; a chunk begins at a position that is a
// multiple of kAlign, so that blocks of 8 rows of keys and values lie together in the cache.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "aie_kernels/prefill_job.h"
#include "arch/bd.h"
#include "ops/decoder/decoder_model.h"
#include "ops/decoder/decoder_workspace.h"
#include "runtime/configuration.h"

namespace npu::ops {

// What a prefill configuration fixes (its `param` lines).
struct PrefillArray {
  int columns;
  int units;  // of attention, per core
  arch::Generation generation;
  static constexpr int kRows = 4;
  // Programs of the cores, one per kind of job, of products one per size of weight blocks, and the
  // control packets that load them, all in a row. They come by a channel of their own; or by B0's,
  // a BD per packet, which has no header then.
  struct Program {
    int64_t offset = 0, words = 0;  // in `packets`: bytes; words
  };
  static constexpr auto kSmallProducts = static_cast<size_t>(prefill::Kind::kJobs);
  std::array<Program, kSmallProducts + 1> programs{};
  std::vector<uint32_t> packets{};
  bool beside_b = false;

  // Throws Error(kFormat) for parameters that are missing or describe no array.
  static PrefillArray of(const Configuration& configuration);
  int cores() const { return columns * kRows; }
  prefill::Sizes sizes() const { return prefill::sizes_of(generation == arch::Generation::kNpu1); }
  // Bytes behind the last page of a pool that streams read with its last keys and values.
  int64_t behind_pool() const { return sizes().a_bytes() - prefill::kAPayload; }
};

// Throws Error(kShape) for models that the configuration does not run.
void check_prefill(const PrefillArray& array, const DecoderModel& model);

// Rows that a core has in a product of `left` row-blocks; a job has kRows times as many.
int64_t core_rows(const PrefillArray& array, int64_t left);

// Where activations are. Offsets in bytes of the workspace; "blocks": 8 rows x 32 columns of
// bfloat16, [column / 32][row / 8].
class PrefillLayout {
 public:
  static constexpr int64_t kAlign = 16;
  static constexpr int64_t kBlock = prefill::kPieceBytes;  // bytes

  // tokens: of the largest chunk, those before its first included. head: its results have a place.
  PrefillLayout(const PrefillArray& array, const DecoderModel& model, int64_t tokens,
                bool head = false);

  int64_t bytes() const { return bytes_; }
  int64_t row_blocks() const { return rows_; }     // of all activations, a stride
  int64_t width_blocks() const { return width_; }  // columns / 32, padded to 8
  int64_t ffn_blocks() const { return ffn_; }
  int64_t group() const { return group_; }  // query heads of a key head, dummies included
  int64_t attention_rows() const { return attention_rows_; }  // row-blocks of its results

  // x and a, prefill::kRecordBytes per block; factors: kBlock per 8 rows.
  int64_t records() const { return records_; }
  int64_t factors() const { return factors_; }
  int64_t qkv() const { return qkv_; }
  // Units, [key head][row / 8][head of the group].
  int64_t queries(int64_t kv_head) const { return queries_ + kv_head * queries_bytes_; }
  int64_t attention() const { return attention_; }
  int64_t y() const { return y_; }
  int64_t gate() const { return gate_; }
  int64_t up() const { return up_; }
  int64_t act() const { return act_; }
  int64_t logits() const { return logits_; }  // prefill_head.h
  int64_t table(int kind) const { return tables_[static_cast<size_t>(kind)]; }
  int64_t table_bytes() const { return 32 * head_dim_; }  // of 8 rows
  // What nobody reads: a place for each column of the array, so that results of two do not meet.
  int64_t dump(int64_t column) const { return dump_ + column * dump_bytes_; }
  // Norm weights, kAPayload objects: those of the layer's first and second norm, of QK-norm.
  enum Constants { kFirst, kSecond, kHeads };
  int64_t constants(size_t layer, Constants which) const;
  int64_t norm_objects() const { return norm_objects_; }
  int64_t last_constants() const { return last_constants_; }  // of the norm after the last layer

  void write_constants(const DecoderNorms& norms, std::span<std::byte> memory) const;

 private:
  int64_t take(int64_t bytes);

  const DecoderShape shape_;
  int64_t bytes_ = 0, rows_ = 0, width_ = 0, ffn_ = 0, group_ = 0, head_dim_ = 0,
          attention_rows_ = 0, records_ = 0, factors_ = 0, qkv_ = 0, queries_ = 0,
          queries_bytes_ = 0, attention_ = 0, y_ = 0, gate_ = 0, up_ = 0, act_ = 0, dump_ = 0,
          dump_bytes_ = 0, norm_objects_ = 0, constants_ = 0, last_constants_ = 0, logits_ = 0;
  std::array<int64_t, DecoderWorkspace::kKinds> tables_{};
};

}  // namespace npu::ops
