// The steps of a prompt's chunk, or of a batch of sequences: which transfers each of them makes on
// which channel. A step begins when the results of the one before it are in memory; what does not
// depend on them (weights, headers, constants) is marked.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "host/kv_pages.h"
#include "ops/prefill/prefill_layout.h"

namespace npu::ops {

// Arguments of a stream; regions of weights follow.
enum PrefillArgument : uint32_t {
  kPrefillWorkspace,
  kPrefillPool,
  kPrefillHeaders,
  kPrefillRegions
};

// A chunk: rows at consecutive positions, the first a multiple of PrefillLayout::kAlign. The first
// `lead` of them are none of its tokens: the cache has their keys and values, which stay.
struct PrefillChunk {
  KvLayout layout;
  int64_t position = 0, tokens = 0, lead = 0;
  std::vector<std::span<const int64_t>> pages;  // per layer, by position / 256
};

// The next tokens of sequences, each with a row-block of its own: its last token is the block's
// last row, rows before its first one are none of its tokens.
struct PrefillBatch {
  static constexpr int64_t kMaxSequences = 8, kMaxTokens = prefill::kRows;
  struct Sequence {
    int64_t position = 0, tokens = 0;             // of the first token; 1 to kMaxTokens
    std::vector<std::span<const int64_t>> pages;  // per layer, by position / 256
    int64_t end() const { return position + tokens; }
  };
  std::vector<Sequence> sequences;
};

struct PrefillTask {
  uint32_t argument = kPrefillWorkspace;
  int64_t offset = 0;
  arch::Bd bd;
  int64_t repeats = 1;
  int group = 0;       // tasks of a group run at the same time, after those of the groups before
  double part = 1;     // of the group's work that is done when the task ends, at least
  bool early = false;  // reads what no step writes
  bool header = false;
  bool program = false;  // control packets
};

// Row-blocks of a matrix, dealt out to the columns of the array: each has `own` of them, one behind
// the other, and in a job up to `most`.
struct DealtBlocks {
  int64_t first, own, most;  // first: of the matrix
  int64_t end;               // behind the last

  DealtBlocks(const PrefillArray& array, blocks::Format format, int64_t begin, int64_t count);
  static int64_t most_of(blocks::Format format) {
    return format == blocks::Format::kBf16 ? 1 : int64_t{prefill::kMaxBlocks};
  }
  // The first one of a column in the job that begins with its number `at`, and how many.
  int64_t begin(int64_t column, int64_t at) const { return first + column * own + at; }
  int64_t count(int64_t column, int64_t at, int64_t limit) const {
    return std::clamp<int64_t>(std::min(end - begin(column, 0), own) - at, 0, limit);
  }
};

// Per channel the tasks of a step, in order.
struct PrefillStep {
  std::array<std::vector<PrefillTask>, PrefillArray::kRows> a;
  std::vector<std::vector<PrefillTask>> b;                 // per column
  std::array<std::vector<std::vector<PrefillTask>>, 2> c;  // of the lower and upper cores
};

class PrefillPlan {
 public:
  PrefillPlan(const PrefillArray& array, const DecoderModel& model, const PrefillLayout& layout,
              const PrefillChunk& chunk);
  PrefillPlan(const PrefillArray& array, const DecoderModel& model, const PrefillLayout& layout,
              const PrefillBatch& batch);

  enum class Kind : uint8_t {
    kFirstNorm,
    kQkv,
    kRotation,
    kAttention,
    kOutput,
    kSecondNorm,
    kGateUp,
    kGeglu,
    kDown,
    kLastNorm,
    kHead  // of a batch
  };
  static constexpr size_t kLayerSteps = 9;
  size_t steps() const { return last_norm() + (batch_ != nullptr ? 2 : 1); }
  Kind kind(size_t step) const;
  // The control packets that load the program of a step, in what headers() gives.
  const PrefillArray::Program& program(size_t step) const;
  PrefillStep make(size_t step);
  // What kPrefillHeaders has: the array's control packets, then the headers of the jobs of the
  // steps that were made since begin(), an object of A each.
  void begin() { headers_.clear(); }
  std::vector<std::byte> headers() const;
  std::vector<std::byte> job_headers() const;  // without the packets

 private:
  // What is multiplied: blocks in memory, from row-block to row-block and from column to column.
  struct Source {
    int64_t offset, row_step, column_step;  // words
    int64_t factors = -1;                   // bytes of the workspace; -1: none
    bool wide = false;                      // results are the head's
  };
  // Where row-blocks of a matrix (32 rows) go.
  struct Target {
    int64_t first, count, offset;
  };
  // A key head of a sequence of a batch.
  struct BatchHead {
    int64_t kv_head, sequence;
  };

  // What a step multiplies by; null if it is no product.
  const DecoderMatrix* matrix(size_t step) const;
  size_t last_norm() const { return model_.layers.size() * kLayerSteps; }
  KvLayout kv() const { return {model_.shape.kv_heads, model_.shape.head_dim}; }
  // Columns of the array whose cores have row-blocks in norms and rotation.
  int64_t used_columns() const {
    return std::min<int64_t>(array_.columns,
                             (used_ + PrefillArray::kRows - 1) / PrefillArray::kRows);
  }
  // As many words of A as `objects` take that begin kAPayload after each other.
  arch::Bd payloads(int64_t objects) const;
  // A task of the group.
  PrefillTask in_workspace(int64_t offset, const arch::Bd& bd) const;
  int64_t header_offset(int64_t number) const;
  PrefillTask header(const prefill::Job& job);
  PrefillStep jobs(size_t step);
  void announce(PrefillStep& step);
  void add_header(PrefillStep& step, const prefill::Job& job);
  void add_constants(PrefillStep& step, int64_t offset, int64_t objects);
  void norm(PrefillStep& step, int64_t constants, bool adds);
  void norm_round(PrefillStep& step, int64_t round, bool adds);
  void product(PrefillStep& step, const DecoderMatrix& matrix, const Source& source,
               std::span<const Target> targets);
  void product_rows(PrefillStep& step, const DecoderSegment& segment, int64_t first, int64_t blocks,
                    const Source& source, int64_t target);
  void product_blocks(PrefillStep& step, const DecoderSegment& segment, const DealtBlocks& dealt,
                      const Source& source, int64_t target, bool one_job);
  void product_job(PrefillStep& step, const DecoderSegment& segment, const DealtBlocks& dealt,
                   int64_t at, const Source& source, int64_t row, int64_t m);
  void product_results(PrefillStep& step, const DealtBlocks& dealt, int64_t at, int64_t limit,
                       int64_t target, int64_t row, int64_t m, int group) const;
  void geglu(PrefillStep& step);
  void rotation(PrefillStep& step, size_t layer);
  void rotation_round(PrefillStep& step, size_t layer, int64_t round);
  void attention(PrefillStep& step, size_t layer);
  void attention_job(PrefillStep& step, size_t layer, int64_t kv_head, int64_t job);
  prefill::Job attention_header(size_t layer) const;
  void add_keys(std::vector<PrefillTask>& to, prefill::Job job, std::span<const int64_t> pages,
                int64_t kv_head, int64_t first, int64_t last);
  // Where a row of K of a pair of row-blocks goes in the pool; negative: nowhere. V's comes behind.
  using KeyPlace = std::function<int64_t(int64_t kv_head, int64_t row)>;
  void keys_by_rows(std::vector<PrefillTask>& to, int64_t column, const KeyPlace& place) const;
  void chunk_keys(std::vector<PrefillTask>& to, size_t layer, int64_t column, int64_t first) const;
  // Of a batch (prefill_batch.cpp, prefill_head.cpp).
  void batch_keys(std::vector<PrefillTask>& to, size_t layer, int64_t column, int64_t first) const;
  void batch_attention(PrefillStep& step, size_t layer);
  void batch_job(PrefillStep& step, size_t layer, std::span<const BatchHead> heads);
  void batch_queries(std::vector<PrefillTask>& to, std::span<const BatchHead> heads,
                     int64_t column) const;
  void batch_results(PrefillStep& step, std::span<const BatchHead> heads, int64_t column) const;
  void head(PrefillStep& step, const Source& source);
  void dump(std::vector<PrefillTask>& to, int64_t column, int64_t words) const;

  const PrefillArray& array_;
  const DecoderModel& model_;
  const PrefillLayout& layout_;
  const PrefillChunk* chunk_ = nullptr;  // or
  const PrefillBatch* batch_ = nullptr;
  int64_t a_words_;                                  // of an object of A
  int64_t used_;                                     // row-blocks that have tokens
  int group_ = 0;                                    // of the tasks that are added
  std::map<std::vector<int32_t>, int64_t> headers_;  // their numbers, by their words
};

}  // namespace npu::ops
