// A token through a decoder on the array (designs/decoder.py), over weights and a KV cache in
// memory that the device reaches: one submission, or where runs are repeated one for each layer, or
// two, and one for the head.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <tuple>
#include <vector>

#include "ops/decoder/decoder_stream.h"
#include "ops/decoder/model_memory.h"
#include "ops/top_list.h"
#include "runtime/operation.h"

namespace npu::ops {

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
  // The logits of tokens of different sequences, float32 (tokens, vocabulary). Thread-safe, as all
  // of these.
  RunReport logits(std::span<const DecoderToken> tokens, float* out);
  // Of tokens that follow each other in one sequence: the logits of the last one, float32
  // (vocabulary); the largest of its first `rows`, at most kMaxTop, in the order of
  // TopLists::take(); nothing but their keys and values.
  RunReport last_logits(std::span<const DecoderToken> tokens, float* out);
  RunReport top(std::span<const DecoderToken> tokens, int64_t k, int64_t rows, TopEntry* out);
  RunReport extend(std::span<const DecoderToken> tokens);
  OperationCounters counters() const { return operation_.counters(); }

 private:
  // The stream of a part, of a layer and of others alike: patches of what depends on the position
  // make it that of the next token, or of the next layer.
  struct PartStream {
    std::shared_ptr<const Operation<int>::Entry> entry;
    std::vector<DecoderVariable> variables;
    std::vector<uint32_t> form;  // its words, zeros for places in the pool
    // A patch has begun and did not end: nobody knows what the stream does.
    bool patching = false;
    // A layer that sees all positions: what it reads now a sequence that goes on reads never again.
    bool grows = false;
  };
  // The streams of tokens whose attention reads the same ranges of the same pages: the next ones of
  // a sequence.
  struct Prepared {
    std::vector<std::shared_ptr<PartStream>> parts;
    std::vector<std::vector<StreamPatch>> reads;  // of each: where attention reads
    DecoderPosition::Attention attention;
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
    std::vector<std::unique_ptr<Space>> spaces;
    std::vector<std::shared_ptr<Prepared>> prepared;  // that of the latest token at the end
  };
  // A token under way.
  struct Started {
    DecoderPosition position;
    Space* space;
    std::unique_ptr<CachePool> pool;
    std::shared_ptr<Prepared> prepared;
    std::vector<BufferRef> arguments;  // of the run
    std::unique_ptr<Run> run;
  };

  // together: for tokens of one sequence.
  Place& place(gemv::Output output, int top, int64_t rows, bool together = false);
  Space& space(Place& at, size_t number);
  void write_control(const DecoderToken& token, const DecoderPosition& position,
                     const DecoderWorkspace& layout, Space& space) const;
  // Throw Error(kShape).
  void check(const DecoderToken& token) const;
  void check_sequence(std::span<const DecoderToken> tokens) const;

  std::shared_ptr<Prepared> prepare(const DecoderPosition& position, Place& at);
  std::shared_ptr<Prepared> kept(const DecoderPosition& position, Place& at);
  std::shared_ptr<PartStream> part_stream(const DecoderPosition& position, const Place& at,
                                          size_t part);
  std::shared_ptr<PartStream> build(std::vector<uint32_t>& words, const DecoderPosition& position,
                                    const Place& at, size_t part) const;
  void prepare(PartStream& made, std::vector<uint32_t> words);
  void drop_unused();

  // Tokens to their ends; the head runs for the last `heads` of them, or in one stream for all.
  // Their results are in the spaces of their numbers.
  RunReport run(std::span<const DecoderToken> tokens, Place& at, size_t heads);
  // The same of one sequence. Returns the space of the last one.
  Space& run_sequence(std::span<const DecoderToken> tokens, Place& at, size_t heads,
                      RunReport& total);
  Started start(const DecoderToken& token, Place& at, size_t number);
  void run_part(std::span<Started> tokens, const Place& at, size_t part, RunReport& total);
  bool patch(PartStream& of, const Started& token, const Place& at, size_t part);
  const Operation<int>::Entry& moved(Started& token, const Place& at, size_t part);
  void end(std::span<Started> tokens, RunReport& total);
  std::vector<BufferRef> arguments(const Started& token, const Place& at,
                                   const DecoderPart& part) const;

  // Lists of up to 64 entries in eights, and all logits, of one token and of several; callers who
  // vary `rows` start again.
  static constexpr size_t kMaxPlaces = 20;
  static constexpr size_t kMostPrepared = 12;  // of a place: sequences of several lengths in turn
  // Streams of layers and heads that are not prepared for a position: reads of a window have four
  // forms in turn, by where in a page it begins, of the first layer and of others, and of halves.
  static constexpr size_t kMostUnused = 16;

  Operation<int> operation_;
  DecoderArray array_;
  DecoderModel model_;
  DecoderNorms norms_;
  std::unique_ptr<ModelRegions> regions_;
  std::map<std::tuple<gemv::Output, int, int64_t, DecoderWorkspace::Cut>, Place> places_;
  std::list<std::shared_ptr<PartStream>> parts_;  // used last first
};

}  // namespace npu::ops
