// A token through a decoder on the array (designs/decoder.py): one submission, over weights and a
// KV cache in memory that the device reaches.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "ops/decoder/decoder_stream.h"
#include "ops/decoder/model_memory.h"
#include "ops/top_list.h"
#include "runtime/operation.h"
#include "runtime/operation_type.h"

namespace npu::ops {

extern const OperationType kDecoderType;

// The model that a request describes: its weights lie one after the other, each matrix in one
// format.
DecoderModel decoder_model_of(const Request& request);
// The fields of such a request, after the operation's own. head_rows: what "vocabulary" is where it
// is not given, or RequestField::kRequired.
std::vector<RequestField> decoder_model_fields(std::vector<RequestField> own, int64_t head_rows);

// Pages for a request: those that queries at positions [first, last] see, one after the other.
struct DecoderPages {
  std::vector<std::vector<int64_t>> tables;  // per layer, by position / 256
  int64_t count = 0;

  DecoderPages(const DecoderModel& model, int64_t first, int64_t last);
  std::vector<std::span<const int64_t>> spans() const { return {tables.begin(), tables.end()}; }
};

// What a token needs besides the model. Rotations: cosines, then sines, of head_dim / 2 angles.
struct DecoderToken {
  int64_t position = 0;
  std::span<const float> embedding;  // the row of the token's id
  std::array<std::span<const float>, DecoderWorkspace::kKinds> rotations;  // global, sliding
  std::span<std::byte> pool;                                               // of the cache
  std::vector<std::span<const int64_t>> pages;                             // per layer
};

class Decoder {
 public:
  // regions: memory with the blocks of weights, which must outlive this. Throws Error(kShape,
  // kOutOfRange), kShape also where they lie in more pieces than a submission takes.
  Decoder(std::shared_ptr<SharedDevice> device, Configuration configuration, DecoderModel model,
          std::span<const std::span<const std::byte>> regions, const DecoderNorms& norms);

  const DecoderModel& model() const { return model_; }
  // The logits of tokens of different sequences, float32 (tokens, vocabulary). Thread-safe, as is
  // top().
  RunReport logits(std::span<const DecoderToken> tokens, float* out);
  // The largest of the first `rows` logits, at most kMaxTop, in the order of TopLists::take().
  RunReport top(const DecoderToken& token, int64_t k, int64_t rows, TopEntry* out);
  OperationCounters counters() const { return operation_.counters(); }

 private:
  // A stream, which by patching a few words serves other tokens whose attention reads the same
  // ranges: the next ones of its sequence, and those of sequences about as long.
  struct Prepared {
    std::shared_ptr<const Operation<int>::Entry> entry;
    std::vector<DecoderVariable> variables;
    DecoderPosition position;  // of the latest token, without pages
    std::vector<std::vector<int64_t>> pages;
  };
  // Memory of a token under way.
  struct Space {
    std::unique_ptr<Buffer> buffer;
    // For which ranges the buffer has the combinations' jobs, and zeros where nobody writes the
    // statistics of a part.
    DecoderPosition::Attention combined;
  };
  struct Place {
    std::unique_ptr<DecoderWorkspace> layout;
    std::vector<Space> spaces;
    std::vector<Prepared> streams;  // that of the latest token at the end
  };
  // A token under way, or one whose run cannot be beside others.
  struct Started {
    std::shared_ptr<const Operation<int>::Entry> entry;
    std::unique_ptr<CachePool> pool;
    std::vector<BufferRef> arguments;
    const Space* space;
    std::unique_ptr<Run> run;
  };

  Place& place(gemv::Output output, int top, int64_t rows);
  Space& space(Place& at, size_t number);
  void write_control(const DecoderToken& token, const DecoderPosition& position,
                     const DecoderWorkspace& layout, Space& space) const;
  void check(const DecoderToken& token) const;  // throws Error(kShape)
  // number: of the tokens under way.
  Started start(const DecoderToken& token, Place& at, size_t number);
  RunReport end(const Started& started);
  // Whether one of these has become the stream of a token at this position: the last one then.
  bool patch_kept(const DecoderPosition& position, std::vector<Prepared>& all);
  std::shared_ptr<const Operation<int>::Entry> prepare(const DecoderPosition& position, Place& at);

  // Lists of up to 64 entries in eights, and all logits; callers who vary `rows` start again.
  static constexpr size_t kMaxPlaces = 12;
  static constexpr size_t kMostStreams = 12;  // of a place: sequences of several lengths in turn

  Operation<int> operation_;
  DecoderArray array_;
  DecoderModel model_;
  DecoderNorms norms_;
  std::unique_ptr<ModelRegions> regions_;
  std::map<std::tuple<gemv::Output, int, int64_t>, Place> places_;
};

}  // namespace npu::ops
