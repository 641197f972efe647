// The workspace of a decoder: one buffer with everything that is neither weights nor keys and
// values. Control words are written once per token, constants (the jobs of the vector core, setups
// of the GEMV cores, norms) once; between them is what steps leave for each other.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "aie_kernels/vector_job.h"
#include "ops/decoder/decoder_products.h"

namespace npu::ops {

// Norm weights, 1 + w, as fp32 values; null where nobody computes with them (simulations).
struct DecoderNorms {
  struct Layer {
    const float *attention, *q, *k, *post_attention, *ffn, *post_ffn;
  };
  std::vector<Layer> layers;
  const float* output = nullptr;
};

// A read of the workspace, constants included, by the vector core.
struct DecoderRead {
  int64_t offset;
  arch::Bd bd;
  int64_t repeats = 1;
};

// A job of the vector core, and the products that follow it.
struct DecoderStep {
  enum class Needs : uint8_t { kNothing, kResults, kMemory, kAttention };
  Needs needs = Needs::kNothing;
  // Before and after what it needs is there.
  std::vector<DecoderRead> early, late;
  // kRotation writes the queries' headers, keys and values; kAttention has no job, its cores read
  // these; kCombination reads their partial results before `late`.
  enum class Kind : uint8_t { kJob, kRotation, kAttention, kCombination };
  Kind kind = Kind::kJob;
  int layer = -1;
  bool reads_row = false, writes_row = false;  // the residual row
  const DecoderPass* pass = nullptr;
};

// Steps of a token that make one stream. Other layers have the same one where their matrices lie at
// the same distances.
struct DecoderPart {
  size_t first = 0, last = 0;         // steps [first, last)
  size_t layer = 0;                   // the first one
  int64_t workspace = 0;              // bytes of it that they use, besides constants
  DecoderBytes constants;             // of the workspace
  std::vector<DecoderBytes> weights;  // that it reads, by region
};

class DecoderWorkspace {
 public:
  static constexpr int kKinds = 2;  // of layers: global, sliding
  static int kind_of(const DecoderLayer& layer) { return layer.window > 0 ? 1 : 0; }

  // How tokens are run: in one stream, or in one for each layer and one for the head; or with two
  // for each layer, of which the second begins with attention, when the keys and values of all
  // tokens that run beside each other are there.
  enum class Cut : uint8_t { kWhole, kLayers, kHalves };

  // rows: of the head that count.
  DecoderWorkspace(const DecoderArray& array, const DecoderModel& model, gemv::Output output,
                   int top, int64_t rows, Cut cut = Cut::kWhole);
  DecoderWorkspace(const DecoderWorkspace&) = delete;

  int64_t bytes() const { return bytes_; }
  // The control words, which every token writes, are the first so many bytes: row(), then
  // rotation() and tables() of both kinds.
  int64_t control_bytes() const { return control_bytes_; }
  // Where constants begin, the last of all.
  int64_t constants() const { return constants_begin_; }
  const std::vector<DecoderStep>& steps() const { return steps_; }
  const std::vector<DecoderPart>& parts() const { return parts_; }
  const std::vector<DecoderPass>& head() const { return head_; }
  int64_t logits() const { return y_head_; }
  int64_t row() const { return row_; }  // fp32, width_words() of it
  int64_t width_words() const { return width_words_; }
  int64_t rotation(int kind) const { return rotations_[static_cast<size_t>(kind)]; }
  int64_t tables(int kind) const { return rotation(kind) + vector::kInBytes; }
  int64_t header(int64_t kv_head) const { return headers_ + kv_head * header_bytes_; }
  int64_t header_bytes() const { return header_bytes_; }
  int64_t queries_bytes() const;  // of a key head
  // Partial results of attention: (key heads, parts, objects), the last object has the statistics.
  // Of each kind of layers: a head may have fewer parts in one than in the other.
  int64_t partial(int kind, int64_t kv_head, int64_t part) const;
  int64_t partial_objects() const { return part_objects_ + 1; }
  // Everything that does not depend on the token.
  void write_constants(const DecoderNorms& norms, std::span<std::byte> memory) const;
  // How many partial results per key head layers of either kind combine.
  void write_parts(const std::array<int64_t, kKinds>& parts, std::span<std::byte> memory) const;

 private:
  struct Combination {
    int kind;  // of layers
    int64_t offset;
    vector::Job job;
  };
  struct Constant {
    int64_t offset;
    std::vector<std::byte> bytes;
  };

  struct NormWeights {
    int64_t post, pre;
  };

  int64_t take(int64_t bytes);
  int64_t keep_job(const vector::Job& job, const DecoderPass* pass, int64_t more = 0);
  void send_x(vector::Job& job, const DecoderPass& pass, int64_t x_at) const;
  void end_part(const DecoderModel& model, size_t layer);
  NormWeights add_norm(int64_t y, const std::vector<DecoderPass>& passes, bool keep_row);
  int64_t add_rotation(int layer, int kind);
  void add_combination(int layer, int kind, const std::vector<DecoderPass>& passes);
  void add_geglu(const std::vector<DecoderPass>& passes);
  DecoderStep send_step(const DecoderPass& pass, int64_t x_at);
  void add_sends(const std::vector<DecoderPass>& passes, int64_t x_at);
  void add_layer(const DecoderModel& model, size_t index, std::vector<int64_t>& load);
  int64_t norm_bytes() const;
  bool row_stays() const;
  int64_t combine_at() const;  // bytes of the store: sums, then x

  const DecoderArray& array_;
  const DecoderShape shape_;
  const Cut cut_;
  int64_t bytes_ = 0, constants_begin_ = 0, control_bytes_ = 0, width_words_ = 0, row_ = 0,
          headers_ = 0, header_bytes_ = 0, partials_ = 0, part_objects_ = 0, y_qkv_ = 0,
          y_output_ = 0, y_gate_up_ = 0, y_down_ = 0, y_head_ = 0;
  std::array<int64_t, kKinds> rotations_{};
  std::vector<Constant> constants_;
  std::vector<Combination> combinations_;
  std::vector<std::array<int64_t, 6>> norms_;  // of every layer: offsets in DecoderNorms' order
  int64_t output_norm_ = 0;
  std::vector<std::vector<DecoderPass>> passes_;  // kept in place: steps point to them
  std::vector<DecoderPass> head_;
  std::vector<DecoderStep> steps_;
  std::vector<DecoderPart> parts_;
};

}  // namespace npu::ops
