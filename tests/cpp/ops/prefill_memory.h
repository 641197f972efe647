// Memory of the tests of a plan: names of all words before a chunk or a batch, what a step may read
// and write, and what is to be there afterwards. A chunk is one sequence, a batch several.
#pragma once

#include <array>
#include <memory>
#include <random>
#include <utility>

#include "ops/prefill/prefill_head.h"
#include "prefill_cores.h"

namespace npu::prefill_test {

using ops::DecoderModel;
using ops::PrefillArray;
using ops::PrefillBatch;
using ops::PrefillChunk;
using ops::PrefillLayout;
using ops::PrefillPlan;

inline constexpr int64_t kAWords = prefill::kAPayload / 4, kBWords = prefill::kBBytes / 4;
inline constexpr int64_t kPayload = prefill::kBPayload / 4, kPiece = prefill::kPieceWords;

struct Random {
  std::mt19937 engine{1};
  int64_t below(int64_t most) { return int64_t(engine() % uint64_t(most)); }
  int64_t upto(int64_t least, int64_t most) { return least + below(most - least + 1); }
};

inline PrefillArray array_of(arch::Generation generation) {
  PrefillArray array;
  array.generation = generation;
  array.columns = arch::device_geometry(generation).columns;
  array.units = prefill::sizes_of(generation == arch::Generation::kNpu1).units;
  for (PrefillArray::Program& program : array.programs) {  // one per kind of jobs, of unlike sizes
    program = {std::ssize(array.packets) * 4, 6 + std::ssize(array.packets)};
    array.packets.insert(array.packets.end(), size_t(program.words), 0x5A5A5A5A);
  }
  return array;
}

// Positions of a sequence that a plan computes.
struct Span {
  int64_t position, tokens;
  int64_t end() const { return position + tokens; }
};

// Pages of the caches of sequences in one pool, in any order; those before a window are gone.
struct Cache {
  std::vector<std::vector<std::vector<int64_t>>> tables;  // [sequence][layer]
  int64_t pool_pages = 0;

  Cache(Random& random, const DecoderModel& model, const std::vector<Span>& spans) {
    int64_t count = 0;
    for (const Span& span : spans) {
      tables.emplace_back();
      for (const ops::DecoderLayer& layer : model.layers) {
        const int64_t from =
            layer.window > 0 ? std::max<int64_t>(0, span.position - layer.window + 1) : 0;
        std::vector<int64_t> table;
        for (int64_t page = 0; page <= (span.end() - 1) / ops::kPagePositions; ++page) {
          table.push_back(page < from / ops::kPagePositions ? -1 : count++);
        }
        tables.back().push_back(table);
      }
    }
    pool_pages = count + random.below(3);
    std::vector<int64_t> places(static_cast<size_t>(pool_pages));
    for (size_t i = 0; i < places.size(); ++i) places[i] = int64_t(i);
    if (random.below(2) == 0) std::shuffle(places.begin(), places.end(), random.engine);
    for (auto& sequence : tables) {
      for (auto& table : sequence) {
        for (int64_t& page : table) page = page < 0 ? -1 : places[size_t(page)];
      }
    }
  }
};

// The memory that a stream sees, and what is to be in it before and afterwards.
class PrefillMemory {
 public:
  // A chunk.
  PrefillMemory(const PrefillArray& array, const DecoderModel& model, const Cache& cache, Span span)
      : array_(array),
        model_(model),
        s_(model.shape),
        spans_{span},
        lead_(span.position % PrefillLayout::kAlign),
        used_((lead_ + span.tokens + 7) / 8),
        layout_(array, model, lead_ + span.tokens),
        chunk_{{s_.kv_heads, s_.head_dim}, span.position - lead_, lead_ + span.tokens, lead_, {}},
        tables_(cache.tables) {
    for (const auto& table : tables_[0]) chunk_.pages.emplace_back(table);
    plan_ = std::make_unique<PrefillPlan>(array_, model_, layout_, chunk_);
    name_memory(cache);
  }

  // A batch.
  PrefillMemory(const PrefillArray& array, const DecoderModel& model, const Cache& cache,
                const std::vector<Span>& spans)
      : array_(array),
        model_(model),
        s_(model.shape),
        spans_(spans),
        batched_(true),
        used_(std::ssize(spans)),
        layout_(array, model, PrefillBatch::kMaxSequences * 8, true),
        tables_(cache.tables) {
    for (size_t i = 0; i < spans.size(); ++i) {
      const auto& tables = tables_[i];
      batch_.sequences.push_back(
          {spans[i].position, spans[i].tokens, {tables.begin(), tables.end()}});
    }
    plan_ = std::make_unique<PrefillPlan>(array_, model_, layout_, batch_);
    name_memory(cache);
  }

 protected:
  using Lane = std::vector<Channel>;

  // Whose token a row is, and where; `real`: it is one.
  struct Row {
    int64_t sequence, position;
    bool real;
  };
  Row row_of(int64_t block, int64_t row) const {
    const int64_t sequence = batched_ ? block : 0;
    const Span& span = spans_[size_t(sequence)];
    const int64_t at = batched_ ? span.end() - 8 + row : chunk_.position + 8 * block + row;
    return {sequence, at, at >= span.position && at < span.end()};
  }

  // --- sizes

  prefill::Sizes sizes() const { return array_.sizes(); }
  // Words of an operand that count.
  int64_t operand() const { return sizes().operand_bytes / 4; }
  // The next header of every row of the array, all of one kind.
  std::array<prefill::Job, PrefillArray::kRows> take_headers(Lane& a) const {
    std::array<prefill::Job, PrefillArray::kRows> jobs;
    for (size_t r = 0; r < jobs.size(); ++r) {
      const auto words = a[r].take(sizes().a_bytes() / 4);
      for (size_t w = 0; w < words.size(); ++w) {
        REQUIRE(words[w].argument == ops::kPrefillHeaders);
        REQUIRE(words[w].offset == words[0].offset + 4 * w);
      }
      REQUIRE(words[0].offset >= 4 * array_.packets.size());
      std::memcpy(&jobs[r], headers_.data() + words[0].offset, sizeof jobs[r]);
      REQUIRE(jobs[r].kind == jobs[0].kind);
    }
    return jobs;
  }
  // What a program of one kind of jobs is told first; the array's control packets come before it.
  int64_t announced_jobs(Lane& a) const {
    REQUIRE(std::memcmp(headers_.data(), array_.packets.data(), array_.packets.size() * 4) == 0);
    const auto first = take_headers(a);
    for (const prefill::Job& job : first) {
      REQUIRE(prefill::Kind(job.kind) == prefill::Kind::kJobs);
      REQUIRE(job.rounds == first[0].rounds);
    }
    return first[0].rounds;
  }
  // The payload of the next object of A.
  std::span<const Place> take_a(Channel& channel) const {
    return channel.take(sizes().a_bytes() / 4).first(kAWords);
  }

  // --- memory

  Memory& memory(uint32_t argument) {
    if (argument > ops::kPrefillPool) FAIL("argument " << argument << " is no memory of names");
    return argument == ops::kPrefillWorkspace ? *workspace_ : *pool_;
  }

  void put(int64_t offset, int64_t words, const auto& name_of) {
    for (int64_t w = 0; w < words; ++w) workspace_->names[size_t(offset / 4 + w)] = name_of(w);
  }

  // Where K (V) of a position is, as docs/decoder.md has it.
  size_t cache_word(size_t sequence, size_t layer, int64_t head, bool values, int64_t at) const {
    const int64_t size = 4096 / s_.head_dim, page = tables_[sequence][layer][size_t(at / 256)];
    REQUIRE(page >= 0);
    const int64_t chunk = (page * s_.kv_heads + head) * (256 / size) + at % 256 / size;
    return size_t((((chunk * 2 + int{values}) * size + at % size) * s_.head_dim) / 2);
  }

  // Positions up to `last` of the sequence, or before its first new one.
  void name_cache(std::vector<uint64_t>& names, bool new_ones) const {
    for (size_t sequence = 0; sequence < spans_.size(); ++sequence) {
      const Span& span = spans_[sequence];
      for (size_t layer = 0; layer < model_.layers.size(); ++layer) {
        for (int64_t at = 0; at < (new_ones ? span.end() : span.position); ++at) {
          if (tables_[sequence][layer][size_t(at / 256)] < 0) continue;
          for (int64_t i = 0; i < 2 * s_.kv_heads; ++i) {
            const size_t to = cache_word(sequence, layer, i / 2, i % 2 > 0, at);
            for (int64_t w = 0; w < s_.head_dim / 2; ++w) {
              names[to + size_t(w)] = key_name(int64_t(sequence), layer, i % 2 > 0, at, i / 2, w);
            }
          }
        }
      }
    }
  }

  static constexpr int64_t kSequence = 16;  // layers of a sequence, in a name
  static uint64_t key_name(int64_t sequence, size_t layer, bool values, int64_t at, int64_t head,
                           int64_t word) {
    return name(values ? Value::kV : Value::kK, kSequence * sequence + int64_t(layer), at, head,
                word);
  }

  void name_memory(const Cache& cache) {
    workspace_ = std::make_unique<Memory>(layout_.bytes(), 0);
    const ops::KvLayout kv{s_.kv_heads, s_.head_dim};
    pool_ = std::make_unique<Memory>(cache.pool_pages * kv.page_bytes(), kAny);
    name_inputs();
  }

  void name_inputs() {
    for (int64_t row = 0; row < used_; ++row) {
      for (int64_t column = 0; column < s_.width / 32; ++column) {
        const int64_t at = column * layout_.row_blocks() + row;
        put(layout_.records() + at * prefill::kRecordBytes, 256,
            [&](int64_t w) { return name(Value::kX, 0, row, column, w); });
      }
      for (int kind = 0; kind < 2; ++kind) {
        put(layout_.table(kind) + row * layout_.table_bytes(), 8 * s_.head_dim,
            [&](int64_t w) { return name(Value::kTable, kind, row, 0, w); });
      }
    }
    const auto constants = [&](int64_t offset, int64_t index, int64_t objects) {
      put(offset, objects * kAWords,
          [&](int64_t w) { return name(Value::kConstant, index, 0, w / kAWords, w % kAWords); });
    };
    for (size_t i = 0; i < model_.layers.size(); ++i) {
      const auto layer = int64_t(i);
      constants(layout_.constants(i, PrefillLayout::kFirst), 3 * layer, layout_.norm_objects());
      constants(layout_.constants(i, PrefillLayout::kSecond), 3 * layer + 1,
                layout_.norm_objects());
      constants(layout_.constants(i, PrefillLayout::kHeads), 3 * layer + 2, 1);
    }
    constants(layout_.last_constants(), 3 * int64_t(model_.layers.size()), layout_.norm_objects());
    name_cache(pool_->names, false);
  }

  // Words that count are read by their names, and not written in the same step.
  void expect(const Place& at, uint64_t expected, bool in_place = false) {
    if (memory(at.argument).names[at.offset / 4] != expected) {
      CAPTURE(at.argument);
      CAPTURE(at.offset);
      FAIL("a word is " << std::hex << memory(at.argument).names[at.offset / 4] << ", expected "
                        << expected);
    }
    if (!in_place) reads_.push_back(at);
    if (at.early) early_.push_back(at);
  }

  void write(const Place& at, uint64_t value) { writes_.emplace_back(at, value); }

  // Results of a core: per piece the name of its words.
  using Pieces = std::vector<std::vector<uint64_t>>;

  void write_pieces(Lane& lane, int64_t column, const Pieces& first, const Pieces& second) {
    REQUIRE(first.size() == second.size());
    for (size_t i = 0; i < first.size(); ++i) {
      for (const Pieces* core : {&first, &second}) {
        const auto places = lane[size_t(column)].take(kPiece);
        for (int64_t w = 0; w < kPiece; ++w) write(places[size_t(w)], (*core)[i][size_t(w)]);
      }
    }
  }

  static std::vector<uint64_t> piece(const auto& name_of) {
    std::vector<uint64_t> out;
    for (int64_t w = 0; w < kPiece; ++w) out.push_back(name_of(w));
    return out;
  }

  // Of each row-block of results the last row in fp32, so many as fit in a piece.
  static void lines(Pieces& pieces) {
    Pieces out;
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (i % 4 == 0) out.push_back(piece([](int64_t) { return 0; }));
      std::copy_n(pieces[i].begin(), 32, out.back().begin() + int64_t(i % 4 * 32));
    }
    pieces = out;
  }

  uint64_t x_name(int64_t version, int64_t row, int64_t column, int64_t word) const {
    return column < s_.width / 32 ? name(Value::kX, version, row, column, word) : 0;
  }

  void check_inside(const Channel& channel) const {
    for (const Place& at : channel.words()) {
      int64_t bytes = 0;
      if (at.argument == ops::kPrefillWorkspace) bytes = layout_.bytes();
      if (at.argument == ops::kPrefillPool)
        bytes = int64_t(pool_->names.size()) * 4 + array_.behind_pool();
      if (at.argument == ops::kPrefillHeaders) bytes = int64_t(headers_.size());
      if (at.argument >= ops::kPrefillRegions) {
        bytes = model_.region_bytes.at(at.argument - ops::kPrefillRegions);
      }
      if (int64_t(at.offset) + 4 > bytes) {
        FAIL("byte " << at.offset << " of argument " << at.argument << ", which has " << bytes);
      }
    }
  }

  // At the end of step `now`, counted from 1.
  void apply_writes(int now) {
    const auto dump = uint64_t(layout_.dump(0));
    const auto dump_end = uint64_t(layout_.constants(0, PrefillLayout::kFirst));
    for (const auto& [at, value] : writes_) {
      Memory& to = memory(at.argument);
      const bool dumped =
          at.argument == ops::kPrefillWorkspace && at.offset >= dump && at.offset < dump_end;
      if (at.argument == ops::kPrefillPool && value == kAny) FAIL("the cache gets what is no key");
      if (!dumped && to.written[at.offset / 4] == now) {
        FAIL("byte " << at.offset << " of argument " << at.argument << " is written twice");
      }
      to.written[at.offset / 4] = now;
      to.names[at.offset / 4] = dumped ? kAny : value;
    }
    for (const Place& at : reads_) {
      if (memory(at.argument).written[at.offset / 4] == now) {
        FAIL("byte " << at.offset << " of argument " << at.argument << " is read and written");
      }
    }
  }

  // --- afterwards

  void check_result() {
    const auto version = 2 * int64_t(model_.layers.size());
    for (int64_t row = 0; row < used_; ++row) {
      for (int64_t column = 0; column < s_.width / 32; ++column) {
        const int64_t at =
            layout_.records() + (column * layout_.row_blocks() + row) * prefill::kRecordBytes;
        for (int64_t w = 0; w < 256; ++w) {
          if (workspace_->names[size_t(at / 4 + w)] != x_name(version, row, column, w)) {
            FAIL("row-block " << row << ", block " << column << " of the result");
          }
        }
      }
    }
  }

  // The cache has the new keys and values; nothing else of it was written.
  void check_pool() {
    std::vector<uint64_t> expected(pool_->names.size(), kAny);
    name_cache(expected, true);
    REQUIRE(pool_->names == expected);
    for (size_t i = 0; i < expected.size(); ++i) {
      const auto position = int64_t(expected[i] >> 32 & 0xffff);
      const auto sequence = size_t(expected[i] >> 48 & 0xff) / kSequence;
      const bool new_key = expected[i] != kAny && position >= spans_[sequence].position;
      if ((pool_->written[i] > 0) != new_key) FAIL("word " << i << " of the cache");
    }
  }

  // The host finds the logits of each sequence where the head's results are.
  void check_logits() {
    const ops::HeadResults results(array_, model_);
    std::vector<std::byte> memory(size_t(layout_.bytes()));
    constexpr float kOther = 1 << 16, kFactor = 0.5f;
    const auto set = [&](int64_t at, float value) { std::memcpy(&memory[size_t(at)], &value, 4); };
    for (int64_t at = layout_.logits(); at < layout_.logits() + results.bytes(); at += 4) {
      const uint64_t found = workspace_->names[size_t(at / 4)];
      if (found >> 56 != uint64_t(Value::kLogit)) continue;
      const int64_t row = int64_t(found >> 12 & 0xfffff) * 32 + int64_t(found & 0xfff);
      set(at, float(int64_t(found >> 32 & 0xffff)) * kOther + float(row));
    }
    for (int64_t i = 0; i < used_; ++i) set(layout_.factors() + 512 * i + 7 * 4, kFactor);
    for (int64_t i = 0; i < used_; ++i) {
      std::vector<float> logits(size_t(s_.vocabulary), -1.0f);
      results.read(layout_, memory, i, logits);
      for (int64_t v = 0; v < s_.vocabulary; ++v) {
        if (logits[size_t(v)] != kFactor * (float(i) * kOther + float(v))) {
          FAIL("logit " << v << " of sequence " << i << " is " << logits[size_t(v)]);
        }
      }
    }
  }

  const PrefillArray& array_;
  const DecoderModel& model_;
  const ops::DecoderShape& s_;
  std::vector<Span> spans_;
  bool batched_ = false;
  int64_t lead_ = 0, used_;
  PrefillLayout layout_;
  PrefillChunk chunk_;
  PrefillBatch batch_;
  std::vector<std::vector<std::vector<int64_t>>> tables_;
  std::unique_ptr<PrefillPlan> plan_;
  std::unique_ptr<Memory> workspace_, pool_;
  std::vector<std::byte> headers_;
  std::vector<Place> reads_, early_;
  std::vector<std::pair<Place, uint64_t>> writes_;
};

}  // namespace npu::prefill_test
