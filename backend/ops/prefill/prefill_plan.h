// The steps of a prompt's chunk: which transfers each of them makes on which channel. A step begins
// when the results of the one before it are in memory; what does not depend on them (weights,
// headers, constants) is marked.
#pragma once

#include <array>
#include <cstdint>
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

struct PrefillTask {
  uint32_t argument = kPrefillWorkspace;
  int64_t offset = 0;
  arch::Bd bd;
  int64_t repeats = 1;
  int group = 0;       // tasks of a group run at the same time, after those of the groups before
  double part = 1;     // of the group's work that is done when the task ends, at least
  bool early = false;  // reads what no step writes
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
    kLastNorm
  };
  static constexpr size_t kLayerSteps = 9;
  size_t steps() const { return model_.layers.size() * kLayerSteps + 1; }
  Kind kind(size_t step) const;
  PrefillStep make(size_t step);
  // Headers of the jobs of the steps that were made, an object of A each.
  std::vector<std::byte> headers() const;

 private:
  struct Source;
  struct Target;

  // As many words of A as `objects` take that begin kAPayload after each other.
  arch::Bd payloads(int64_t objects) const;
  // A task of the group.
  PrefillTask in_workspace(int64_t offset, const arch::Bd& bd) const;
  PrefillTask header(const prefill::Job& job);
  void add_header(PrefillStep& step, const prefill::Job& job);
  void add_constants(PrefillStep& step, int64_t offset, int64_t objects);
  void norm(PrefillStep& step, int64_t constants, bool adds);
  void norm_round(PrefillStep& step, int64_t round, bool adds);
  void product(PrefillStep& step, const DecoderMatrix& matrix, const Source& source,
               std::span<const Target> targets);
  void product_rows(PrefillStep& step, const DecoderSegment& segment, int64_t first, int64_t blocks,
                    const Source& source, int64_t target);
  void product_job(PrefillStep& step, const DecoderSegment& segment, int64_t first, int64_t blocks,
                   const Source& source, int64_t target, int64_t row, int64_t m);
  void geglu(PrefillStep& step);
  void rotation(PrefillStep& step, size_t layer);
  void rotation_round(PrefillStep& step, size_t layer, int64_t round);
  void attention(PrefillStep& step, size_t layer);
  void attention_job(PrefillStep& step, size_t layer, int64_t kv_head, int64_t job);
  int64_t kv_offset(size_t layer, int64_t kv_head, int64_t position) const;
  void keys_of_tokens(std::vector<PrefillTask>& to, int64_t first, int64_t offset,
                      int64_t unit) const;
  void dump(std::vector<PrefillTask>& to, int64_t words) const;

  const PrefillArray& array_;
  const DecoderModel& model_;
  const PrefillLayout& layout_;
  const PrefillChunk& chunk_;
  int64_t a_words_;                                  // of an object of A
  int64_t used_;                                     // row-blocks that have tokens
  int group_ = 0;                                    // of the tasks that are added
  std::map<std::vector<int32_t>, int64_t> headers_;  // their numbers, by their words
};

}  // namespace npu::ops
