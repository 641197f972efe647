// A prompt through a decoder on the array (designs/prefill.py): chunk after chunk of its tokens,
// one submission each, over the weights and the KV cache of the decode steps (ops/decoder). And the
// next tokens of several sequences, with their logits, one submission for all.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ops/decoder/model_memory.h"
#include "ops/prefill/prefill_stream.h"
#include "runtime/operation.h"
#include "runtime/operation_type.h"

namespace npu::ops {

extern const OperationType kPrefillType;

// Tokens at consecutive positions. rows: embeddings
// (tokens, width), multiplied by their scale; after run() the last layer's output. Rotations:
// (tokens, dim): cosines, then sines, of dim / 2 angles.
struct PrefillTokens {
  int64_t position = 0, count = 0;
  std::span<float> rows;
  std::array<std::span<const float>, DecoderWorkspace::kKinds> rotations;  // global, sliding
  std::span<std::byte> pool;                    // of the cache, and PrefillArray::behind_pool()
  std::vector<std::span<const int64_t>> pages;  // per layer
};

// Tokens of sequences whose caches share a pool, one sequence behind the other in rows (tokens,
// width) and rotations; logits: (sequences, vocabulary), of each sequence's last token.
struct PrefillSequences {
  struct Sequence {
    int64_t position = 0, count = 0;
    std::vector<std::span<const int64_t>> pages;  // per layer
  };
  std::vector<Sequence> sequences;
  std::span<const float> rows;
  std::array<std::span<const float>, DecoderWorkspace::kKinds> rotations;
  std::span<std::byte> pool;  // and PrefillArray::behind_pool()
  std::span<float> logits;
};

class Prefill {
 public:
  // regions: memory with the blocks of weights, which must outlive this. Throws Error(kShape,
  // kOutOfRange), kShape also where they lie in more pieces than a submission takes.
  Prefill(std::shared_ptr<SharedDevice> device, Configuration configuration, DecoderModel model,
          std::span<const std::span<const std::byte>> regions, const DecoderNorms& norms);

  // Tokens of a run at most; rows whose layers are one submission: more are split by layers, as
  // streams would grow with them. A device that repeats runs gets a submission per layer.
  static constexpr int64_t kMaxTokens = 2048, kSubmissionRows = 1024;
  const DecoderModel& model() const { return model_; }
  RunReport run(const PrefillTokens& tokens);
  RunReport run(const PrefillSequences& batch);
  OperationCounters counters() const { return operation_.counters(); }

 private:
  // The workspace of chunks of so many row-blocks.
  struct Place {
    std::unique_ptr<PrefillLayout> layout;
    std::unique_ptr<Buffer> buffer;
  };
  // What rows of the workspace are: embeddings and rotations, and per row which of them, or -1.
  struct Rows {
    std::span<const float> embeddings;
    std::array<std::span<const float>, DecoderWorkspace::kKinds> rotations;
    std::vector<int64_t> tokens;
  };
  void check(const PrefillTokens& tokens) const;
  void check(const PrefillSequences& batch) const;
  void check_sizes(const Rows& rows, int64_t count) const;
  void check_pages(std::span<const std::span<const int64_t>> pages, int64_t position, int64_t count,
                   size_t pool) const;
  Place& place(Place& at, int64_t tokens, bool head);
  void write(const Rows& rows, Place& at) const;
  RunReport submit(PrefillPlan& plan, Place& at, std::span<std::byte> pool, int64_t rows);
  BufferRef headers(const PrefillPlan& plan);
  // Steps of a submission: [first, last) of the plan.
  struct Part {
    size_t first, last;
  };
  std::vector<Part> parts(const PrefillPlan& plan, int64_t rows) const;
  RunReport submit_part(PrefillPlan& plan, const Part& part, const Place& at,
                        const BufferRef& pool);
  void read(const PrefillTokens& tokens, const Place& at) const;

  Operation<int> operation_;
  PrefillArray array_;
  DecoderModel model_;
  DecoderNorms norms_;
  std::unique_ptr<ModelRegions> regions_;
  Place place_, batch_place_;
  // Headers behind the control packets; the first headers_used_ are those of the series.
  struct Headers {
    std::vector<std::byte> jobs;
    std::unique_ptr<Buffer> buffer;
  };
  std::vector<Headers> headers_;
  size_t headers_used_ = 0;
};

}  // namespace npu::ops
