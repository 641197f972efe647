// The attention kernels of prompts (aie_kernels/prefill_attention.cc): jobs of every shape through
// a core's kernels in every host build, against softmax in double precision with a derived bound;
// masks, groups, moving maxima, and headers and orders of calls that must be refused.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#define __AIE_ARCH__ 21  // prefill_job.h; npu1 by sizes_of()
#include "aie_kernels/prefill_job.h"
#undef __AIE_ARCH__
#include "aligned.h"
#include "arch/timing.h"
#include "block_float.h"
#include "error.h"
#include "kernel_calls.h"
#include "kernels/call.h"
#include "kernels/kernel.h"
#include "kernels/registry.h"

namespace {

using namespace npu;
using kernel_test::bf16_value, kernel_test::bf16_word, kernel_test::Build, kernel_test::each_build;
using prefill::Job;

constexpr double kLog2e = 1.4426950408889634;
using Doubles = std::vector<double>;
using Words = std::vector<uint16_t>;

size_t at(int64_t i) { return static_cast<size_t>(i); }

// A core's job with its operands: q (units * 8, dim), k and v (positions, dim), bfloat16.
struct Task {
  Job job = {};
  Words q, k, v;
  double scale = 0;  // of the softmax
  bool npu1;

  Task(const Build& build, int dim, int chunks, unsigned seed, float size = 1)
      : npu1(build.generation == arch::Generation::kNpu1) {
    std::mt19937 random(seed);
    const auto fill = [&](Words& to, int count, float times) {
      std::normal_distribution<float> normal;
      to.resize(at(count));
      for (uint16_t& word : to) word = bf16_word(times * normal(random));
    };
    const int positions = chunks * prefill::chunk_positions(dim);
    job.kind = static_cast<int32_t>(prefill::Kind::kAttention);
    job.units = prefill::sizes_of(npu1).units;
    fill(q, job.units * 8 * dim, size);
    fill(k, positions * dim, 1);
    fill(v, positions * dim, 1);
    job.head_dim = job.dim = dim, job.chunks = chunks, job.group = 1, job.keys_end = positions;
    set_scale(1 / std::sqrt(static_cast<float>(dim)));
  }
  void set_scale(float to) {
    scale = double{to};
    job.scale = std::bit_cast<int32_t>(static_cast<float>(scale * kLog2e));
  }
  int rows() const { return job.units * 8; }
  int keys() const { return job.chunks * prefill::chunk_positions(job.head_dim); }
  int half() const { return prefill::chunk_positions(job.head_dim) / 2; }
  bool exists(int key) const {
    return job.key_position + key >= job.keys_from && job.key_position + key < job.keys_end;
  }
  int query(int row) const {
    const int core = job.column + (npu1 ? 4 : 8) * job.row;
    const int unit = job.first_unit + job.units * core + row / 8;
    return job.query_position + 8 * (unit / job.group) + row % 8;
  }
  bool sees(int row, int key) const {
    const int place = job.key_position + key;
    return exists(key) && (job.causal == 0 || place <= query(row)) &&
           (job.window == 0 || place > query(row) - job.window);
  }
};

// Operands as the core multiplies them.
struct Operands {
  Doubles q, k, v;

  explicit Operands(const Task& task) {
    const auto values = [](const Words& words) {
      Doubles out;
      for (const uint16_t word : words) out.push_back(double{bf16_value(word)});
      return out;
    };
    q = values(task.q), k = values(task.k), v = values(task.v);
    const size_t dim = at(task.job.head_dim);
    for (int key = 0; key < task.keys(); ++key) {
      if (!task.exists(key)) std::fill_n(v.begin() + key * int(dim), dim, 0.0);
    }
    if (task.npu1) return;
    for (size_t i = 0; i < q.size(); i += 8) block_float::round(&q[i]);
    for (size_t i = 0; i < k.size(); i += 8) block_float::round(&k[i]);
    for (size_t i = 0; i < v.size(); i += 8 * dim) {
      for (size_t c = 0; c < dim; ++c) block_float::round(&v[i + c], dim);
    }
  }
};

KernelArgument all(AlignedBytes& bytes) {
  return {bytes.data(), static_cast<uint32_t>(bytes.size()), 0};
}
KernelArgument number(int64_t value) { return {nullptr, 0, value}; }

// A core's memory and its calls.
struct Core {
  const Build& build;
  prefill::Sizes sizes = prefill::sizes_of(build.generation == arch::Generation::kNpu1);
  AlignedBytes a = AlignedBytes(at(sizes.a_bytes())), b = AlignedBytes(prefill::kBBytes),
               b0 = AlignedBytes(prefill::kBBytes), b1 = AlignedBytes(prefill::kBBytes),
               b2 = AlignedBytes(prefill::kBBytes), c = AlignedBytes(prefill::kPieceBytes),
               store = AlignedBytes(prefill::kStore * 4), work = AlignedBytes(at(sizes.work * 4)),
               job = AlignedBytes(prefill::kJobWords * 4);
  CoreState state;
  int64_t dim;

  Core(const Build& of, const Task& task) : build(of), dim(task.job.head_dim) {
    for (AlignedBytes* bytes : {&a, &b, &b0, &b1, &b2, &c, &store, &work}) {
      std::fill(bytes->begin(), bytes->end(), std::byte{0xFF});  // NaNs: nothing relies on them
    }
    std::fill(job.begin(), job.end(), std::byte{0});
    std::memcpy(job.data(), &task.job, sizeof task.job);
  }
  int32_t& word(int number) { return reinterpret_cast<int32_t*>(job.data())[number]; }
  Job& header() { return *reinterpret_cast<Job*>(job.data()); }
  // [dim / 32][8][32] of eight rows.
  void query(const uint16_t* rows) {
    auto* to = reinterpret_cast<uint16_t*>(b.data());
    for (int64_t i = 0; i < 8 * dim; ++i) to[i] = rows[i / 32 % 8 * dim + i / 256 * 32 + i % 32];
    build.find("prefill_query")(std::vector{all(b), all(store), all(job), number(dim)}, state);
  }
  void place() {
    build.find("prefill_place")(
        std::vector{all(b0), all(b1), all(store), all(work), all(job), number(dim)}, state);
  }
  void scores(const uint16_t* rows) {
    std::memcpy(a.data(), rows, prefill::kAPayload);
    build.find("prefill_scores")(std::vector{all(a), all(b0), all(b1), all(b2), all(store),
                                             all(work), all(job), number(dim)},
                                 state);
  }
  void weigh() {
    build.find("prefill_weigh")(std::vector{all(work), all(job), number(dim)}, state);
  }
  void values(const uint16_t* rows) {
    std::memcpy(a.data(), rows, prefill::kAPayload);
    build.find("prefill_values")(
        std::vector{all(a), all(b2), all(store), all(work), all(job), number(dim)}, state);
  }
  void add() {
    build.find("prefill_add")(std::vector{all(b2), all(store), all(work), all(job), number(dim)},
                              state);
  }
  void chunk(const uint16_t* k, const uint16_t* v) {
    scores(k), scores(k + 2048), weigh(), values(v), values(v + 2048), add();
  }
  void out() {
    build.find("prefill_out")(std::vector{all(store), all(c), all(work), all(job), number(dim)},
                              state);
  }
};

// Runs a task as the worker does: (units * 8, dim), of the header.
std::vector<float> run(const Build& build, const Task& task) {
  Core core(build, task);
  const int dim = task.job.head_dim, units = task.job.units;
  for (int unit = 0; unit < units; ++unit) core.query(task.q.data() + unit * 8 * dim);
  core.place();
  for (int chunk = 0; chunk < task.job.chunks; ++chunk) {
    core.chunk(task.k.data() + chunk * 4096, task.v.data() + chunk * 4096);
  }
  const int width = task.job.dim;
  std::vector<float> result(at(units * 8 * width));
  for (int i = 0; i < units * 8 * width; i += 256) {
    core.out();
    const auto* piece = reinterpret_cast<const uint16_t*>(core.c.data());
    for (int e = i; e < i + 256; ++e) {
      const int unit = e / (8 * width), column = e % (8 * width) / 256 * 32 + e % 32;
      const int row = e / 32 % 8, place = prefill::tile_place(row, e % 32 / 8, 4) + e % 8;
      result[at((unit * 8 + row) * width + column)] =
          task.npu1 ? bf16_value(piece[place])
                    : static_cast<float>(block_float::operand(piece, row, e % 32));
    }
  }
  return result;
}

// softmax(scale q k) v of one row in double precision, and how far a result may be from it.
//
// Operands are those the core multiplies (npu2: rounded to BFP16). Every weight is off by: its
// score, a sum of `dim` products in fp32 and two more roundings; the power and its rounding to
// bfloat16, 2^-8 + 7.6e-5 relatively, and 2^-126 (aie_kernels/exp.h); npu2: half a unit of BFP16,
// at most 2^-7 of the largest weight of its eight positions. The same errors are in the
// denominator. Sums of values are in fp32. The result is rounded to bfloat16, 2^-8.
void reference(const Task& task, const Operands& x, int row, Doubles& expected, Doubles& bound) {
  const size_t dim = at(task.job.head_dim);
  expected.assign(dim, 0), bound.assign(dim, 0);
  Doubles scores(at(task.keys()), -INFINITY), sizes = scores;
  double most = -INFINITY;
  for (int key = 0; key < task.keys(); ++key) {
    if (!task.sees(row, key)) continue;
    double dot = 0, size = 0;
    for (size_t i = 0; i < dim; ++i) {
      const double product = x.q[at(row) * dim + i] * x.k[at(key) * dim + i];
      dot += product, size += std::abs(product);
    }
    scores[at(key)] = dot * task.scale, sizes[at(key)] = size * task.scale;
    most = std::max(most, scores[at(key)]);
  }
  if (most == -INFINITY) return;
  double sum = 0, error = 0;
  Doubles above(dim, 0);
  for (size_t key = 0; key < scores.size(); ++key) {
    if (scores[key] == -INFINITY) continue;
    const double weight = std::exp(scores[key] - most);
    const double score_error = double(dim + 4) * 0x1p-23 * sizes[key];
    const double relative = std::expm1(score_error + std::abs(scores[key]) * 0x1p-22);
    double off = weight * (relative + 0x1p-8 + 7.6e-5 + 1e-6) + 0x1p-120;
    if (!task.npu1) {
      const auto block = scores.begin() + int(key / 8 * 8);
      const double largest = std::exp(*std::max_element(block, block + 8) - most);
      off += largest * (1 + relative + 0x1p-7) * 0x1p-7;
    }
    sum += weight, error += off;
    for (size_t i = 0; i < dim; ++i) {
      const double value = x.v[key * dim + i];
      expected[i] += weight * value;
      above[i] += weight * std::abs(value) * double(scores.size() + 8) * 0x1p-23;
      bound[i] += off * std::abs(value);
    }
  }
  for (size_t i = 0; i < dim; ++i) {
    expected[i] /= sum;
    bound[i] = (bound[i] + above[i]) / sum + std::abs(expected[i]) * error / sum;
    bound[i] = bound[i] * 1.02 + std::abs(expected[i]) * 0x1.1p-8 + 0x1p-125;
  }
}

void check(const Task& task, const std::vector<float>& result) {
  const Operands operands(task);
  Doubles expected, bound;
  const size_t width = at(task.job.dim);
  double worst = 0;
  bool numbers = true;
  for (int row = 0; row < task.rows(); ++row) {
    reference(task, operands, row, expected, bound);
    for (size_t i = 0; i < width; ++i) {
      const double value = double{result[at(row) * width + i]};
      numbers &= std::isfinite(value);
      // The result is an operand: npu2 rounds it to BFP16 with its neighbours.
      const double block = task.npu1 ? 0 : block_float::reach(&expected[i / 8 * 8], i % 8);
      worst = std::max(worst, std::abs(value - expected[i]) / std::max(bound[i] + block, 1e-300));
    }
  }
  CHECK(numbers);
  CHECK(worst <= 1);
}

}  // namespace

TEST_CASE("prefill attention: jobs of every shape agree with softmax") {
  each_build([](const Build& build) {
    unsigned seed = 1;
    for (const int dim : {64, 128, 256}) {
      for (const int chunks : {1, 2, 5}) {
        for (const float size : {0.1f, 3.0f}) {
          CAPTURE(dim);
          CAPTURE(chunks);
          const Task task(build, dim, chunks, seed++, size);
          check(task, run(build, task));
        }
      }
    }
  });
}

TEST_CASE("prefill attention: of smaller heads only the columns that the model has are sent") {
  each_build([](const Build& build) {
    unsigned seed = 60;
    for (const auto& [head_dim, dim] :
         std::vector<std::pair<int, int>>{{64, 32}, {128, 96}, {128, 32}, {256, 160}}) {
      CAPTURE(head_dim);
      CAPTURE(dim);
      Task task(build, head_dim, 3, seed++, 2);
      task.job.dim = dim, task.job.causal = 1;
      task.job.query_position = task.keys() / 2;
      check(task, run(build, task));
      Core core(build, task);
      for (int unit = 0; unit < task.job.units; ++unit) core.query(task.q.data());
      core.place();
      for (int i = 0; i < task.job.units * dim / 32; ++i) core.out();
      CHECK_THROWS_AS(core.out(), Error);
    }
  });
}

TEST_CASE("prefill attention: causal, windowed and bounded keys, groups of heads, all cores") {
  each_build([](const Build& build) {
    unsigned seed = 100;
    for (const int dim : {64, 128, 256}) {
      for (const int group : {1, 2, 3, 4, 8}) {
        for (const int window : {0, 1, 21, 1000}) {
          for (const int causal : {0, 1}) {
            CAPTURE(dim);
            CAPTURE(group);
            CAPTURE(window);
            CAPTURE(causal);
            Task task(build, dim, 4, seed++, 3);
            Job& job = task.job;
            job.group = group, job.window = window, job.causal = causal;
            job.row = int(seed % 4), job.column = int(seed / 4 % 4), job.first_unit = int(seed % 7);
            job.key_position = 1000;
            // The core's first row is in the midst of the keys.
            job.query_position = 1000 + task.keys() / 2 - 3 - task.query(0);
            job.keys_from = 1003, job.keys_end = 1000 + task.keys() - 5;
            check(task, run(build, task));
          }
        }
      }
    }
  });
}

TEST_CASE("prefill attention: what does not exist has no influence, rows without keys are zero") {
  each_build([](const Build& build) {
    for (const int dim : {64, 128, 256}) {
      CAPTURE(dim);
      Task task(build, dim, 6, 7);
      Job& job = task.job;
      const int half = task.half();
      // Of chunk 1 only the second half is there, of chunk 3 part of the first.
      job.causal = 1, job.query_position = 3 * half - 4;
      job.keys_from = 3 * half + 1, job.keys_end = 6 * half + half / 2 + 1;
      const std::vector<float> before = run(build, task);
      check(task, before);
      for (int i = 0; i < 5 * dim; ++i) CHECK(before[at(i)] == 0);  // rows up to 3 * half
      CHECK(before[at(7 * dim)] != 0);
      for (int key = 0; key < task.keys(); ++key) {
        if (task.exists(key)) continue;
        for (int i = 0; i < dim; ++i) {
          task.k[at(key * dim + i)] = i % 2 == 0 ? 0x7F80 : 0x7FC0;
          task.v[at(key * dim + i)] = 0x7F00;  // must be finite
        }
      }
      CHECK(run(build, task) == before);
      job.keys_end = job.keys_from;
      for (const float value : run(build, task)) CHECK(value == 0);
      job.chunks = 0;
      for (const float value : run(build, task)) CHECK(value == 0);
    }
  });
}

TEST_CASE("prefill attention: a unit without keys beside one that has some") {
  each_build([](const Build& build) {
    Task task(build, 128, 2, 9);
    task.job.causal = 1, task.job.query_position = -8;  // the second unit's rows are 0 to 7
    const std::vector<float> result = run(build, task);
    check(task, result);
    for (int i = 0; i < 8 * 128; ++i) CHECK(result[at(i)] == 0);
    // A row of one key has its values, of which BFP16 rounds some to zero.
    CHECK(std::count(result.begin() + 8 * 128, result.begin() + 9 * 128, 0.0f) < 16);
  });
}

TEST_CASE("prefill attention: large, equal, tiny and single scores") {
  each_build([](const Build& build) {
    for (const float size : {1e2f, 1e4f, 1e9f, 1e-20f, 1e-38f, 0.0f}) {
      CAPTURE(size);
      const Task task(build, 64, 3, 11, size);
      check(task, run(build, task));
    }
    Task equal(build, 256, 4, 12);
    for (size_t i = 256; i < equal.k.size(); ++i) equal.k[i] = equal.k[i % 256];
    check(equal, run(build, equal));
    // The weight of a single key cancels: its value comes back as it was multiplied.
    Task one(build, 128, 1, 13, 100);
    one.job.keys_end = 1;
    const Operands operands(one);
    const std::vector<float> result = run(build, one);
    Doubles row(operands.v.begin(), operands.v.begin() + 128);
    for (size_t i = 0; !one.npu1 && i < row.size(); i += 8) block_float::round(&row[i]);
    for (size_t i = 0; i < result.size(); ++i) CHECK(double{result[i]} == row[i % 128]);
  });
}

TEST_CASE("prefill attention: scores that rise move the maximum within and between chunks") {
  each_build([](const Build& build) {
    for (const int dim : {64, 128, 256}) {
      Task rising(build, dim, 10, 14, 0);
      for (size_t i = 0; i < rising.q.size(); i += at(dim)) rising.q[i] = bf16_word(1);
      for (int key = 0; key < rising.keys(); ++key) {
        rising.k[at(key * dim)] = bf16_word(static_cast<float>(key - rising.keys() + 40) * 20);
      }
      // Only the first element of a block matters to its exponent.
      for (size_t i = 0; i < rising.k.size(); ++i) {
        if (i % at(dim) != 0) rising.k[i] = 0;
      }
      for (const float scale : {1.0f, 0.1f, 0.01f, 0.001f, -0.005f}) {
        CAPTURE(dim);
        CAPTURE(scale);
        Task task = rising;
        task.set_scale(std::abs(scale));
        if (scale < 0) {
          for (uint16_t& word : task.q) word ^= 0x8000;
        }
        check(task, run(build, task));
      }
    }
  });
}

TEST_CASE("prefill attention: huge finite operands, NaN and infinities") {
  each_build([](const Build& build) {
    Task huge(build, 64, 1, 21, 1e-36f);
    for (uint16_t& word : huge.k) word = bf16_word(bf16_value(word) * 1e36f);
    for (uint16_t& word : huge.v) word = bf16_word(bf16_value(word) * 1e34f);
    check(huge, run(build, huge));
    for (const uint16_t word : Words{0x7FC0, 0x7F80}) {
      Task task(build, 64, 2, 22);
      for (uint16_t& x : task.q) x &= 0x7FFF;
      for (size_t i = 0; i < 64; ++i) task.k[37 * 64 + i] = word;
      for (const float value : run(build, task)) CHECK(std::isnan(value));
    }
  });
}

TEST_CASE("prefill attention: what would leave the buffers, or comes out of turn, is refused") {
  each_build([](const Build& build) {
    const Task task(build, 128, 2, 51);
    const auto refused = [&](const char* what, const std::function<void(Core&)>& prepare,
                             const std::function<void(Core&)>& call) {
      CAPTURE(what);
      Core core(build, task);
      for (int unit = 0; unit < task.job.units; ++unit) core.query(task.q.data());
      core.place();
      prepare(core);
      CHECK_THROWS_WITH_AS(call(core), doctest::Contains("[prefill_"), Error);
    };
    const auto query = [&](Core& core) { core.query(task.q.data()); };
    const auto place = [](Core& core) { core.place(); };
    const auto scores = [&](Core& core) { core.scores(task.k.data()); };
    const auto weigh = [](Core& core) { core.weigh(); };
    const auto values = [&](Core& core) { core.values(task.v.data()); };
    const auto add = [](Core& core) { core.add(); };
    const auto out = [](Core& core) { core.out(); };
    const auto headers = std::vector<std::pair<const char*, std::function<void(Job&)>>>{
        {"kind", [](Job& job) { job.kind = 0; }},
        {"units", [](Job& job) { --job.units; }},
        {"head_dim", [](Job& job) { job.head_dim = 192; }},
        {"dim", [](Job& job) { job.dim = 48; }},
        {"dim beyond head_dim", [](Job& job) { job.dim = 160; }},
        {"head_dim of the call", [](Job& job) { job.head_dim = 64; }},
        {"group", [](Job& job) { job.group = 0; }},
        {"large group", [](Job& job) { job.group = 33; }},
        {"chunks", [](Job& job) { job.chunks = -1; }},
        {"many chunks", [](Job& job) { job.chunks = INT32_MAX; }},
        {"query_position", [](Job& job) { job.query_position = INT32_MAX; }},
        {"key_position", [](Job& job) { job.key_position = INT32_MIN; }},
        {"keys_from", [](Job& job) { job.keys_from = INT32_MIN; }},
        {"keys_end", [](Job& job) { job.keys_end = INT32_MAX; }},
        {"first_unit", [](Job& job) { job.first_unit = -1; }},
        {"row", [](Job& job) { job.row = 1 << 20; }},
        {"column", [](Job& job) { job.column = -1; }},
        {"window", [](Job& job) { job.window = -1; }},
        {"causal", [](Job& job) { job.causal = 2; }}};
    for (const auto& [what, spoil] : headers) {
      const auto prepare = [&](Core& core) { spoil(core.header()); };
      for (const auto& call :
           std::vector<std::function<void(Core&)>>{query, place, scores, weigh, values, add, out}) {
        refused(what, prepare, call);
      }
    }
    refused("one query more", [](Core&) {}, query);
    refused("placed twice", [](Core&) {}, place);
    const auto unplaced = [](Core& core) { core.word(prefill::kAttentionState + 6) = 0; };
    refused("scores of queries in no place", unplaced, scores);
    refused("pieces before queries are placed", unplaced, out);
    const auto weighed = [&](Core& core) { scores(core), scores(core), weigh(core); };
    const auto chunk = [&](Core& core) { core.chunk(task.k.data(), task.v.data()); };
    refused(
        "values of queries in no place", [&](Core& core) { weighed(core), unplaced(core); },
        values);
    refused(
        "placed too early",
        [&](Core& core) { unplaced(core), core.word(prefill::kAttentionState) = 1; }, place);
    refused("negative query", [](Core& core) { core.word(prefill::kAttentionState) = -1; }, query);
    refused("no queries", [](Core& core) { core.word(prefill::kAttentionState) = 1; }, scores);
    const auto twice = [](const auto& call) {
      return [call](Core& core) { call(core), call(core); };
    };
    refused("values first", [](Core&) {}, values);
    refused("weights first", [](Core&) {}, weigh);
    refused("sums first", [](Core&) {}, add);
    refused("weights after one half", scores, weigh);
    refused("values without weights", twice(scores), values);
    refused("a third half of keys", twice(scores), scores);
    refused("weights again", weighed, weigh);
    refused("scores without values", weighed, scores);
    refused("sums of one half", [&](Core& core) { weighed(core), values(core); }, add);
    refused(
        "a third half of values", [&](Core& core) { weighed(core), twice(values)(core); }, values);
    refused("scores without sums", [&](Core& core) { weighed(core), twice(values)(core); }, scores);
    refused("sums again", chunk, add);
    refused("a third chunk", twice(chunk), scores);
    refused(
        "negative counter", [](Core& core) { core.word(prefill::kAttentionState + 1) = INT32_MIN; },
        scores);
    const int pieces = task.job.units * prefill::unit_pieces(128);
    refused(
        "one piece more",
        [&](Core& core) {
          for (int i = 0; i < pieces; ++i) core.out();
        },
        out);
    refused(
        "negative piece", [](Core& core) { core.word(prefill::kAttentionState + 3) = -1; }, out);
    refused("another piece", [](Core& core) { core.word(prefill::kAttentionState + 3) = 1; }, out);
  });
}

TEST_CASE("prefill attention: a chunk takes no less than its products, nor much more") {
  for (const auto generation : {arch::Generation::kNpu1, arch::Generation::kNpu2}) {
    const bool npu1 = generation == arch::Generation::kNpu1;
    const arch::Timing timing(generation, arch::TimingTable());
    const int64_t units = prefill::sizes_of(npu1).units;
    const double macs = 2 * 2048.0 * 8 * double(units);
    const double least = macs / (npu1 ? timing.mac_bf16_native : timing.mac_bfp16);
    for (const auto& [taken, then] : {std::pair("prefill_scores", "prefill_weigh"),
                                      std::pair("prefill_values", "prefill_add")}) {
      for (const int64_t dim : {64, 128, 256}) {
        const auto cycles_of = [&](const char* name) {
          const kernels::Declaration* kernel = kernels::find_declaration(name, generation);
          REQUIRE(kernel != nullptr);
          return kernels::call_cycles(*kernel, timing, {dim});
        };
        const double cycles = 2 * cycles_of(taken) + cycles_of(then);
        CAPTURE(dim);
        CHECK(cycles > least);
        CHECK(cycles < 40 * least);
      }
    }
  }
}
