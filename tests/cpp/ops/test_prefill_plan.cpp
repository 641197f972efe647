// The plan of a chunk or of a batch (ops/prefill), word by word: for random models and positions,
// every job gets what it needs in the documented order, results come where the next step takes
// them, nothing is written twice, nothing outside of its place, in the caches only the new
// positions.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <map>
#include <random>

#include "prefill_memory.h"
#include "prefill_models.h"

namespace {

using namespace npu;
using namespace npu::prefill_test;
using blocks::Format;
using prefill::Job;
using Kind = PrefillPlan::Kind;

// The array: jobs of every step, from the headers that it sends.
class Walk : private PrefillMemory {
 public:
  using PrefillMemory::PrefillMemory;

  void run() {
    for (size_t i = 0; i < plan_->steps(); ++i) {
      CAPTURE(i);
      step(i);
    }
    for (const Place& at : early_) {  // no step writes what is read before its turn
      if (memory(at.argument).written[at.offset / 4] != 0)
        FAIL("byte " << at.offset << " is early");
    }
    check_result();
    check_pool();
    if (batched_) check_logits();
  }

 private:
  // --- steps

  void step(size_t index) {
    index_ = index;
    layer_ = index / PrefillPlan::kLayerSteps;
    const size_t place = program_place(plan_->kind(index), matrix_of(plan_->kind(index)));
    REQUIRE(plan_->program(index).offset == array_.programs[place].offset);
    const ops::PrefillStep made = plan_->make(index);
    headers_ = plan_->headers();
    Lane a, b, low, high;
    for (const auto& tasks : made.a) a.emplace_back(array_, tasks);
    for (const auto& tasks : made.b) b.emplace_back(array_, tasks);
    for (const auto& tasks : made.c[0]) low.emplace_back(array_, tasks);
    for (const auto& tasks : made.c[1]) high.emplace_back(array_, tasks);
    for (Lane* lane : {&a, &b, &low, &high}) {
      for (const Channel& channel : *lane) check_inside(channel);
    }
    const bool attends = plan_->kind(index) == Kind::kAttention;  // queries pass before keys
    for (const auto& tasks : made.b) {
      for (const auto& task : tasks) REQUIRE((task.part == 0 || !attends));
    }
    reads_.clear(), writes_.clear(), done_.clear();
    int64_t jobs = announced_jobs(a);
    for (; !a[0].ended(); --jobs) job(a, b, low, high);
    REQUIRE(jobs == 0);
    for (Lane* lane : {&a, &b, &low, &high}) {
      for (const Channel& channel : *lane) REQUIRE(channel.ended());
    }
    finish_step();
  }

  void finish_step() {
    apply_writes(int(index_) + 1);
    const Kind kind = plan_->kind(index_);
    const DecoderMatrix* matrix = matrix_of(kind);
    if (matrix == nullptr) return;
    size_t results = 0;
    for (const auto& segment : *matrix) results += size_t(segment.row_blocks() * used_);
    REQUIRE(done_.size() == results);
  }

  void job(Lane& a, Lane& b, Lane& low, Lane& high) {
    const std::array<Job, PrefillArray::kRows> jobs = take_headers(a);
    const Kind kind = plan_->kind(index_);
    switch (prefill::Kind(jobs[0].kind)) {
      case prefill::Kind::kProduct:
        REQUIRE(matrix_of(kind) != nullptr);
        return product(jobs[0], a, b, low, high);
      case prefill::Kind::kNorm:
        REQUIRE((kind == Kind::kFirstNorm || kind == Kind::kSecondNorm || kind == Kind::kLastNorm));
        return norm(jobs[0], a, b, low, high);
      case prefill::Kind::kGeglu:
        REQUIRE(kind == Kind::kGeglu);
        return geglu(jobs[0], a, b, low, high);
      case prefill::Kind::kRotation:
        REQUIRE(kind == Kind::kRotation);
        return rotation(jobs[0], a, b, low, high);
      case prefill::Kind::kAttention:
        REQUIRE(kind == Kind::kAttention);
        return attention(jobs, a, b, low, high);
      case prefill::Kind::kJobs:
        break;
    }
    FAIL("no kind of job");
  }

  void constants(const Job& job, Lane& a, int64_t index) {
    for (Channel& channel : a) {
      for (int64_t object = 0; object < job.constants; ++object) {
        const auto words = take_a(channel);
        for (int64_t w = 0; w < kAWords; ++w) {
          expect(words[size_t(w)], name(Value::kConstant, index, 0, object, w));
        }
      }
    }
  }

  // --- norms

  void norm(const Job& job, Lane& a, Lane& b, Lane& low, Lane& high) {
    const Kind kind = plan_->kind(index_);
    const bool last = kind == Kind::kLastNorm, adds = index_ > 0;
    const auto layer = int64_t(layer_);
    const int64_t version = 2 * layer + (kind == Kind::kSecondNorm ? 1 : 0);
    const Value from = kind == Kind::kSecondNorm ? Value::kOutput : Value::kDown;
    const int64_t y_layer = kind == Kind::kSecondNorm ? layer : layer - 1;
    constants(job, a, 3 * layer + (!last && kind == Kind::kSecondNorm ? 1 : 0));
    REQUIRE(job.columns == layout_.width_blocks() * 32);
    REQUIRE(job.width == s_.width);
    REQUIRE(job.groups * 8 == layout_.width_blocks());
    REQUIRE(job.first_groups == (adds ? job.groups : 0));
    REQUIRE(job.a_turns == (adds ? 1 : 0));
    for (int64_t round = 0; round < job.rounds; ++round) {
      const int64_t first = round * array_.cores();
      for (int64_t g = 0; adds && g < 2 * job.groups; ++g) {  // statistics, then results
        for (int64_t core = 0; core < 4 * job.used; ++core) {
          const int64_t r = core % 4, row = first + core;
          const auto words = take_a(a[size_t(r)]);
          for (int64_t w = 0; row < used_ && w < kAWords; ++w) {
            const int64_t column = g % job.groups * 8 + w / kPiece;
            expect(words[size_t(w)],
                   column < s_.width / 32 ? name(from, y_layer, row, column, w % kPiece) : 0);
          }
        }
      }
      for (int64_t c = 0; c < job.used; ++c) {
        std::array<Pieces, 4> out;
        for (int64_t turn = 0; turn < 2 * job.groups; ++turn) {
          for (int64_t r = 0; r < 4; ++r) {
            const int64_t row = first + 4 * c + r;
            norm_object(b[size_t(c)].take(kBWords), row, turn, version, adds, out[size_t(r)]);
          }
        }
        for (int64_t r = 0; r < 4; ++r) {
          const int64_t row = first + 4 * c + r;
          out[size_t(r)].push_back(piece([&](int64_t w) {
            return row < used_ && w < 8 ? name(Value::kFactor, version, row, 0, w) : kAny;
          }));
        }
        write_pieces(low, c, out[0], out[1]);
        write_pieces(high, c, out[2], out[3]);
      }
    }
    check_used(job);
  }

  // Every row-block has a core; only a single round leaves columns out.
  void check_used(const Job& job) const {
    REQUIRE(job.used <= array_.columns);
    REQUIRE((job.rounds - 1) * array_.cores() + 4 * job.used >= used_);
    REQUIRE((job.rounds == 1 || job.used == array_.columns));
  }

  void norm_object(std::span<const Place> words, int64_t row, int64_t turn, int64_t version,
                   bool adds, Pieces& out) {
    for (int64_t block = 0; block < 4; ++block) {
      const int64_t column = 4 * turn + block;
      const bool counts = row < used_;
      for (int64_t w = 0; counts && w < 256; ++w) {
        expect(words[size_t(256 * block + w)], x_name(version - (adds ? 1 : 0), row, column, w),
               true);
      }
      for (int64_t half = 0; half < 2; ++half) {
        out.push_back(piece([&](int64_t w) {
          return counts ? x_name(version, row, column, kPiece * half + w) : kAny;
        }));
      }
      const bool real = column < s_.width / 32;
      out.push_back(piece([&](int64_t w) {
        return !counts ? kAny : real ? name(Value::kA, version, row, column, w) : 0;
      }));
    }
  }

  // --- products

  const DecoderMatrix* matrix_of(Kind kind) const {
    if (kind == Kind::kQkv) return &model_.layers[layer_].qkv;
    if (kind == Kind::kOutput) return &model_.layers[layer_].output;
    if (kind == Kind::kGateUp) return &model_.layers[layer_].gate_up;
    if (kind == Kind::kDown) return &model_.layers[layer_].down;
    if (kind == Kind::kHead) return &model_.head;
    return nullptr;
  }

  uint64_t source_name(int64_t row, int64_t column, int64_t word) const {
    const Kind kind = plan_->kind(index_);
    const auto layer = int64_t(layer_);
    if (column >= matrix_of(kind)->front().k / 32) return 0;
    if (kind == Kind::kQkv || kind == Kind::kHead) {
      return name(Value::kA, 2 * layer, row, column, word);
    }
    if (kind == Kind::kOutput) return name(Value::kAttention, layer, row, column, word);
    if (kind == Kind::kGateUp) return name(Value::kA, 2 * layer + 1, row, column, word);
    return name(Value::kAct, layer, row, column, word);
  }

  void product(const Job& job, Lane& a, Lane& b, Lane& low, Lane& high) {
    const Kind kind = plan_->kind(index_);
    const auto format = Format(job.format);
    const bool scaled = kind == Kind::kQkv || kind == Kind::kGateUp;
    const int64_t k = matrix_of(kind)->front().k, rows = job.m / 8;
    REQUIRE(int{scaled} == job.scaled);
    const int64_t slices = prefill::range_columns(format) / 32, each = sizes().row_slots / job.m;
    const int64_t read = (job.before + job.behind) * each;
    REQUIRE(read >= slices);
    REQUIRE(read - each < slices);
    REQUIRE(int64_t{job.holds} * prefill::range_columns(format) >= k);
    REQUIRE((int64_t{job.holds} - 1) * prefill::range_columns(format) < k);
    int64_t first = -1;  // row-block of the job
    for (int64_t r = 0; r < 4; ++r) {
      for (int64_t at = 0; at < job.holds * read; ++at) {
        const int64_t slice = at / read * slices + at % read;
        for (int64_t h = 0; h < rows; ++h) {
          const auto words = a[size_t(r)].take(operand());
          if (first < 0) first = int64_t(workspace_->names[words[0].offset / 4] >> 32 & 0xffff);
          const int64_t row = first + r * rows + h;
          if (at % read >= slices) continue;  // no column of the range
          for (int64_t w = 0; row < used_ && w < operand(); ++w) {
            expect(words[size_t(w)], source_name(row, slice, w));
          }
        }
      }
      if (!scaled) continue;
      const int64_t version = 2 * int64_t(layer_) + (kind == Kind::kGateUp ? 1 : 0);
      const auto words = a[size_t(r)].take(sizes().a_bytes() / 4);
      for (int64_t h = 0; h < rows; ++h) {
        const int64_t row = first + r * rows + h;
        for (int64_t w = 0; row < used_ && w < 8; ++w) {
          expect(words[size_t(operand() * h + w)], name(Value::kFactor, version, row, 0, w));
        }
      }
    }
    const int32_t* shares = &job.blocks0;
    for (int64_t c = 0; c < prefill::kMaxColumns; ++c) {
      if (shares[c] == 0) continue;
      REQUIRE(c < array_.columns);
      REQUIRE(shares[c] <= (format == Format::kBf16 ? 1 : prefill::kMaxBlocks));
      const int64_t block = weights(job, shares[c], b[size_t(c)]);
      std::array<Pieces, 4> out;
      for (int64_t r = 0; r < 4; ++r) {
        for (int64_t i = 0; i < shares[c] * rows; ++i) {
          out[size_t(r)].push_back(result(first + r * rows + i % rows, block + i / rows));
        }
        if (job.wide == 1) lines(out[size_t(r)]);
      }
      write_pieces(low, c, out[0], out[1]);
      write_pieces(high, c, out[2], out[3]);
    }
    REQUIRE((job.wide == 1) == (kind == Kind::kHead));
  }

  std::vector<uint64_t> result(int64_t row, int64_t block) {
    const Kind kind = plan_->kind(index_);
    const Value value = kind == Kind::kQkv      ? Value::kQkv
                        : kind == Kind::kOutput ? Value::kOutput
                        : kind == Kind::kGateUp ? Value::kGateUp
                        : kind == Kind::kHead   ? Value::kLogit
                                                : Value::kDown;
    if (row >= used_) return piece([](int64_t) { return kAny; });
    REQUIRE(++done_[{row, block}] == 1);
    return piece([&](int64_t w) { return name(value, int64_t(layer_), row, block, w); });
  }

  // The blocks of a column's share, range after range; returns the first row-block of the matrix.
  int64_t weights(const Job& job, int64_t share, Channel& b) {
    const bool wide = Format(job.format) == Format::kBf16;
    const DecoderMatrix& matrix = *matrix_of(plan_->kind(index_));
    const ops::DecoderSegment* segment = nullptr;
    int64_t before = 0, first = -1;
    for (int64_t hold = 0; hold < job.holds; ++hold) {
      for (int64_t i = 0; i < (wide ? 2 : share); ++i) {
        const auto words = b.take(kBWords);
        for (size_t w = 0; w < words.size(); ++w) {
          const bool next = words[w].offset == words[0].offset + 4 * w;
          if (!next || words[w].argument != words[0].argument) FAIL("a block is in pieces");
        }
        if (segment == nullptr) {
          for (const auto& one : matrix) {
            const int64_t row = one.column_blocks() * block_size(one.format);
            const auto at = int64_t(words[0].offset) - one.offset;
            if (ops::kPrefillRegions + uint32_t(one.region) == words[0].argument && at >= 0 &&
                at < one.row_blocks() * row) {
              segment = &one;
              first = at / row;
              break;
            }
            before += one.n / 32;
          }
          REQUIRE(segment != nullptr);
          REQUIRE(int(segment->format) == job.format);
          REQUIRE(first + share <= segment->row_blocks());
        }
        const int64_t columns = segment->column_blocks();
        const int64_t column = wide ? std::min(2 * hold + i, columns - 1) : hold;
        const int64_t row = wide ? first : first + i;
        REQUIRE(int64_t(words[0].offset) ==
                segment->offset + (row * columns + column) * block_size(segment->format));
      }
    }
    return before + first;
  }

  // --- GeGLU

  // The blocks of an object: gates with the ups of the same place.
  void geglu(const Job& job, Lane& a, Lane& b, Lane& low, Lane& high) {
    const int64_t ffn = s_.ffn / 32;
    const auto layer = int64_t(layer_);
    REQUIRE(job.used == array_.columns);
    for (int64_t round = 0; round < job.rounds; ++round) {
      std::vector<std::array<std::span<const Place>, 4>> gates(static_cast<size_t>(array_.columns));
      for (size_t r = 0; r < 4; ++r) {
        for (auto& column : gates) column[r] = take_a(a[r]);
      }
      for (int64_t c = 0; c < array_.columns; ++c) {
        std::array<Pieces, 4> out;
        for (size_t r = 0; r < 4; ++r) {
          const auto ups = b[size_t(c)].take(kBWords);
          for (int64_t i = 0; i < 8; ++i) {
            const Place gate = gates[size_t(c)][r][size_t(kPiece * i)];
            const uint64_t first = workspace_->names[gate.offset / 4];
            const int64_t row = int64_t(first >> 32 & 0xffff),
                          column = int64_t(first >> 12 & 0xfffff);
            const bool counts = first >> 56 == uint64_t(Value::kGateUp) && column < ffn;
            for (int64_t w = 0; counts && w < kPiece; ++w) {
              expect(gates[size_t(c)][r][size_t(kPiece * i + w)],
                     name(Value::kGateUp, layer, row, column, w));
              expect(ups[size_t(kPiece * i + w)],
                     name(Value::kGateUp, layer, row, ffn + column, w));
            }
            const bool zero =
                first == 0 && workspace_->names[ups[size_t(kPiece * i)].offset / 4] == 0;
            out[r].push_back(piece([&](int64_t w) {
              return counts ? name(Value::kAct, layer, row, column, w) : zero ? 0 : kAny;
            }));
          }
        }
        write_pieces(low, c, out[0], out[1]);
        write_pieces(high, c, out[2], out[3]);
      }
    }
  }

  // --- rotation

  void rotation(const Job& job, Lane& a, Lane& b, Lane& low, Lane& high) {
    const auto layer = int64_t(layer_);
    const int kind = ops::DecoderWorkspace::kind_of(model_.layers[layer_]);
    REQUIRE(job.heads == s_.heads);
    REQUIRE(job.kv_heads == s_.kv_heads);
    REQUIRE(job.dim == s_.dim);
    REQUIRE(job.head_dim == s_.head_dim);
    constants(job, a, 3 * layer + 2);
    check_used(job);
    const int64_t turns = s_.heads + 2 * s_.kv_heads;
    REQUIRE(job.b_turns == turns);
    for (int64_t round = 0; round < job.rounds; ++round) {
      const int64_t first = round * array_.cores();
      for (int64_t object = 0; object < job.first_groups; ++object) {
        for (int64_t core = 0; core < 4 * job.used; ++core) {
          const auto words = take_a(a[size_t(core % 4)]);
          for (int64_t w = 0; first + core < used_ && w < kAWords; ++w) {
            const int64_t at = object * kAWords + w;
            if (at >= 8 * s_.head_dim) break;
            expect(words[size_t(w)], name(Value::kTable, kind, first + core, 0, at));
          }
        }
      }
      REQUIRE(job.first_groups * kAWords >= 8 * s_.head_dim);
      for (int64_t c = 0; c < job.used; ++c) {
        std::array<Pieces, 4> out;
        for (int64_t turn = 0; turn < turns; ++turn) {
          for (int64_t r = 0; r < 4; ++r) {
            rotate_head(b[size_t(c)].take(kBWords), first + 4 * c + r, turn, out[size_t(r)]);
          }
        }
        write_pieces(low, c, out[0], out[1]);
        write_pieces(high, c, out[2], out[3]);
      }
    }
  }

  void rotate_head(std::span<const Place> words, int64_t row, int64_t head, Pieces& out) {
    const auto layer = int64_t(layer_);
    const int64_t width = s_.dim / 32, half = s_.head_dim / 2;
    for (int64_t w = 0; row < used_ && w < width * kPiece; ++w) {
      expect(words[size_t(w)],
             name(Value::kQkv, layer, row, head * width + w / kPiece, w % kPiece));
    }
    for (int64_t i = 0; i < s_.head_dim / 32; ++i) {
      out.push_back(piece([&](int64_t w) {
        const int64_t at = i * kPiece + w;
        if (row >= used_) return kAny;
        if (head < s_.heads) return name(Value::kQ, layer, row, head, at);
        const Row token = row_of(row, at / half);
        if (!token.real) return kAny;
        const bool values = head >= s_.heads + s_.kv_heads;
        return key_name(token.sequence, layer_, values, token.position,
                        head - s_.heads - (values ? s_.kv_heads : 0), at % half);
      }));
    }
  }

  // --- attention

  void attention(const std::array<Job, 4>& jobs, Lane& a, Lane& b, Lane& low, Lane& high) {
    const auto layer = int64_t(layer_);
    const int64_t group = jobs[0].group, units = array_.units, width = s_.dim / 32;
    for (const Job& job : jobs) REQUIRE(job.a_turns == prefill::kChunkHalves);
    REQUIRE(group >= s_.group());
    std::array<int64_t, 4> heads{-1, -1, -1, -1}, sequences{};  // of the rows of the array
    for (int64_t c = 0; c < array_.columns; ++c) {
      std::array<Pieces, 4> out;
      for (int64_t r = 0; r < 4; ++r) {
        const Job& job = jobs[size_t(r)];
        REQUIRE(job.units == units);
        REQUIRE(job.group == group);
        for (int64_t j = 0; j < units; ++j) {
          const int64_t unit = job.first_unit + (r * array_.columns + c) * units + j;
          const auto words = b[size_t(c)].take(kBWords);
          const uint64_t first = workspace_->names[words[0].offset / 4];
          // In a batch a row of the array has the head and the row-block of its first query.
          int64_t row = unit / group, of_group = unit % group;
          if (batched_ && c == 0 && j == 0) sequences[size_t(r)] = int64_t(first >> 32 & 0xffff);
          if (batched_) row = sequences[size_t(r)], of_group = c * units + j;
          const bool counts = row < used_ && of_group < s_.group() && (!batched_ || job.chunks > 0);
          int64_t& kv_head = heads[batched_ ? size_t(r) : 0];
          if (kv_head < 0 && counts) kv_head = int64_t(first >> 12 & 0xfffff) / s_.group();
          const int64_t head = kv_head * s_.group() + of_group;
          for (int64_t w = 0; counts && w < 4 * s_.head_dim; ++w) {
            expect(words[size_t(w)], name(Value::kQ, layer, row, head, w));
          }
          for (int64_t i = 0; i < width; ++i) {
            out[size_t(r)].push_back(piece([&](int64_t w) {
              return counts ? name(Value::kAttention, layer, row, head * width + i, w) : kAny;
            }));
          }
          if (counts) check_keys(job, row, unit);
        }
      }
      for (int held = 0; held < prefill::kHeld; ++held)
        b[size_t(c)].take(kBWords);  // of no meaning
      write_pieces(low, c, out[0], out[1]);
      write_pieces(high, c, out[2], out[3]);
    }
    for (size_t r = 0; r < 4; ++r) keys(jobs[r], a[r], heads[batched_ ? r : 0], sequences[r]);
  }

  // All that the tokens of a row-block see is among the keys that the row of the array gets, and
  // what they do not see is masked.
  void check_keys(const Job& job, int64_t row, int64_t unit) {
    const int64_t window = model_.layers[layer_].window;
    REQUIRE(job.query_position + 8 * (unit / job.group) == row_of(row, 0).position);
    REQUIRE(job.window == window);
    REQUIRE(job.causal == 1);
    const Span& span = spans_[size_t(row_of(row, 0).sequence)];
    REQUIRE(job.queries_from == span.position);
    REQUIRE(job.keys_end == span.end());
    REQUIRE(job.head_dim == s_.head_dim);
    const double scale = std::bit_cast<float>(job.scale);
    REQUIRE(scale == doctest::Approx(double{s_.attention_scale} / std::log(2.0)).epsilon(1e-6));
    const int64_t keys_end = job.key_position + job.chunks * (4096 / s_.head_dim);
    for (int64_t i = 0; i < 8; ++i) {
      const Row query = row_of(row, i);
      if (!query.real) continue;
      const int64_t from = window > 0 ? std::max<int64_t>(0, query.position - window + 1) : 0;
      REQUIRE(job.key_position <= from);
      REQUIRE(job.keys_from <= from);
      REQUIRE(query.position < keys_end);
    }
  }

  void keys(const Job& job, Channel& a, int64_t kv_head, int64_t sequence) {
    const int64_t size = 4096 / s_.head_dim, half = s_.head_dim / 2;
    for (int64_t chunk = 0; chunk < job.chunks; ++chunk) {
      for (int values = 0; values < 2; ++values) {
        std::span<const Place> words;
        for (int64_t i = 0; i < size; ++i) {
          if (i % (size / 2) == 0) words = take_a(a);
          const int64_t at = job.key_position + chunk * size + i;
          if (at < job.keys_from || at >= job.keys_end) continue;
          for (int64_t w = 0; w < half; ++w) {
            expect(words[size_t(i % (size / 2) * half + w)],
                   key_name(sequence, layer_, values > 0, at, kv_head, w));
          }
        }
      }
    }
  }

  size_t index_ = 0, layer_ = 0;
  std::map<std::pair<int64_t, int64_t>, int> done_;  // results of a product
};

}  // namespace

TEST_CASE("prefill plan: random models and chunks") {
  Random random;
  int walked = 0;
  for (int round = 0; round < 40; ++round) {
    const int64_t sizes[] = {20, 20, 70, 70, 140, 140, 300, 300, 1100};
    const int64_t most = sizes[random.below(9)], tokens = random.upto(1, most);
    const auto array =
        array_of(random.below(2) ? arch::Generation::kNpu1 : arch::Generation::kNpu2);
    const DecoderModel model = random_model(random, most > 100);
    const int64_t position = random.below(3) * random.below(1500);
    CAPTURE(round);
    CAPTURE(tokens);
    CAPTURE(position);
    CAPTURE(array.columns);
    CAPTURE(model.shape.width);
    CAPTURE(model.shape.heads);
    CAPTURE(model.shape.kv_heads);
    CAPTURE(model.shape.dim);
    CAPTURE(model.shape.head_dim);
    CAPTURE(model.shape.ffn);
    try {
      ops::check_prefill(array, model);
    } catch (const Error&) {
      continue;  // what a store of the decode configuration does not hold
    }
    ++walked;
    const Cache cache(random, model, {{position, tokens}});
    Walk(array, model, cache, Span{position, tokens}).run();
  }
  CHECK(walked >= 25);
}

TEST_CASE("prefill plan: random models and batches") {
  Random random;
  int walked = 0;
  for (int round = 0; round < 40; ++round) {
    const auto array =
        array_of(random.below(2) ? arch::Generation::kNpu1 : arch::Generation::kNpu2);
    DecoderModel model = random_model(random, round % 2 == 0);
    model.shape.vocabulary = random.upto(33, 2500);
    model.head = Matrices(random, model)(model.shape.vocabulary, model.shape.width);
    std::vector<Span> spans;
    for (int64_t i = random.upto(1, PrefillBatch::kMaxSequences); i > 0; --i) {
      spans.push_back({random.below(3) * random.below(600), random.upto(1, 8)});
    }
    CAPTURE(round);
    CAPTURE(spans.size());
    CAPTURE(array.columns);
    CAPTURE(model.shape.heads);
    CAPTURE(model.shape.kv_heads);
    CAPTURE(model.shape.dim);
    CAPTURE(model.shape.head_dim);
    CAPTURE(model.shape.vocabulary);
    try {
      ops::check_prefill(array, model);
    } catch (const Error&) {
      continue;
    }
    ++walked;
    Walk(array, model, Cache(random, model, spans), spans).run();
  }
  CHECK(walked >= 25);
}

TEST_CASE("prefill plan: more repeats than a BD has") {
  Random random;
  for (int round = 0; round < 4; ++round) {
    const auto array = array_of(round % 2 ? arch::Generation::kNpu1 : arch::Generation::kNpu2);
    const auto formats = round < 2 ? Formats{Format::kQ4nx, Format::kQ8, Format::kBf16}
                                   : Formats{Format::kQ4_0, Format::kQ8_0};
    DecoderModel model = random_model(random, true);
    ops::DecoderShape& s = model.shape;
    s.width = 3072, s.ffn = 64, s.heads = 2, s.kv_heads = 1, s.dim = s.head_dim = 64;
    model.region_bytes.clear();
    model.layers.resize(1);
    Matrices matrix(random, model);
    ops::DecoderLayer& layer = model.layers[0];
    layer.qkv = matrix(s.qkv_rows(), s.width, formats);
    layer.output = matrix(s.width, s.heads * s.dim, formats);
    layer.gate_up = matrix(2 * s.ffn, s.width, formats);
    layer.down = matrix(s.width, s.ffn, formats);
    model.head = matrix(s.vocabulary, s.width, formats);
    REQUIRE_NOTHROW(ops::check_prefill(array, model));
    const Cache cache(random, model, {{5, 9}});
    Walk(array, model, cache, Span{5, 9}).run();
  }
}
