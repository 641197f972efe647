// The attention kernels (aie_kernels/attention.cc): jobs of every shape through both cores' kernels
// in every host build, against softmax in double precision with a derived bound; masks, special
// values, merging of partial results, and records that must be refused.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "aie_kernels/attention.h"
#include "aligned.h"
#include "arch/timing.h"
#include "error.h"
#include "kernel_calls.h"
#include "kernels/call.h"
#include "kernels/kernel.h"
#include "kernels/registry.h"

namespace {

using namespace npu;
using attention::Output, attention::Record;
using kernel_test::bf16_value, kernel_test::bf16_word, kernel_test::Build, kernel_test::each_build;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kLog2e = 1.4426950408889634;

// A job with its operands: q (rows, dim), k and v (keys, dim), bfloat16.
struct Job {
  Record record = {};
  std::vector<uint16_t> q, k, v;
  float scale = 1;  // of the softmax

  Job(int rows, int dim, int keys, unsigned seed, float size = 1) {
    std::mt19937 random(seed);
    const auto fill = [&](std::vector<uint16_t>& to, int count, float times) {
      std::normal_distribution<float> normal;
      to.resize(static_cast<size_t>(count));
      for (uint16_t& word : to) word = bf16_word(times * normal(random));
    };
    const int chunk = attention::positions_of(dim), chunks = (keys + chunk - 1) / chunk;
    fill(q, rows * dim, size);
    fill(k, chunks * chunk * dim, 1);
    fill(v, chunks * chunk * dim, 1);
    record.rows = rows, record.group = 1, record.head_dim = dim, record.chunks = chunks;
    record.keys_end = keys;
    set_scale(1 / std::sqrt(static_cast<float>(dim)));
  }
  void set_scale(float to) {
    scale = to;
    record.scale = std::bit_cast<int32_t>(static_cast<float>(double{to} * kLog2e));
  }
  bool sees(int row, int key) const {
    const int query = record.query_position + row / record.group, at = record.key_position + key;
    return at >= record.keys_from && at < record.keys_end && (record.causal == 0 || at <= query) &&
           (record.window == 0 || at > query - record.window);
  }
  double dot(int row, int key) const {
    double sum = 0;
    for (int i = 0; i < record.head_dim; ++i) {
      sum += double{bf16_value(q[static_cast<size_t>(row * record.head_dim + i)])} *
             double{bf16_value(k[static_cast<size_t>(key * record.head_dim + i)])};
    }
    return sum;
  }
  double magnitude(int row, int key) const {
    double sum = 0;
    for (int i = 0; i < record.head_dim; ++i) {
      sum += std::abs(double{bf16_value(q[static_cast<size_t>(row * record.head_dim + i)])} *
                      double{bf16_value(k[static_cast<size_t>(key * record.head_dim + i)])});
    }
    return sum;
  }
  int keys() const { return static_cast<int>(k.size()) / record.head_dim; }
};

// What a job's kernels gave.
struct Result {
  std::vector<float> rows;                  // (rows, dim)
  std::vector<float> maximum, denominator;  // kPartial
};

struct Memory {
  AlignedBytes part = AlignedBytes(8192), q = AlignedBytes(16384), words = AlignedBytes(64),
               values_words = AlignedBytes(64), chunk = AlignedBytes(8192),
               f = AlignedBytes(attention::kScoreBytes), y = AlignedBytes(32768),
               out = AlignedBytes(1024), scores_state = AlignedBytes(4 * attention::kScoresState),
               values_state = AlignedBytes(4 * attention::kValuesState);
};

KernelArgument all(AlignedBytes& bytes) {
  return {bytes.data(), static_cast<uint32_t>(bytes.size()), 0};
}
KernelArgument number(int64_t value) { return {nullptr, 0, value}; }

// Runs a job as the two workers do.
Result run(const Build& build, Job job, Output output = Output::kRows, int index = 3) {
  Record& r = job.record;
  r.objects = attention::header_objects(r.rows, r.head_dim) - 1;
  r.output = static_cast<int32_t>(output);
  r.out_objects = attention::out_objects_of(r.rows, r.head_dim, output);
  std::vector<std::byte> header(static_cast<size_t>(r.objects + 1) * 8192, std::byte{0x5A});
  std::memcpy(header.data() + index * 64, &r, sizeof r);
  std::memcpy(header.data() + attention::kTableBytes, job.q.data(), job.q.size() * 2);

  Memory m;
  for (AlignedBytes* bytes : {&m.q, &m.f, &m.y, &m.scores_state, &m.values_state}) {
    std::fill(bytes->begin(), bytes->end(), std::byte{0xFF});  // NaNs: nothing relies on them
  }
  CoreState a, b;
  std::memcpy(m.part.data(), header.data(), 8192);
  build.find("attention_begin")(
      std::vector{all(m.part), all(m.q), all(m.words), all(m.scores_state), number(index)}, a);
  build.find("values_begin")(
      std::vector{all(m.part), all(m.y), all(m.values_words), all(m.values_state), number(index)},
      b);
  for (int i = 1; i <= r.objects; ++i) {
    std::memcpy(m.part.data(), header.data() + i * 8192, 8192);
    build.find("attention_more")(
        std::vector{all(m.part), all(m.q), all(m.words), all(m.scores_state)}, a);
  }
  build.find("attention_pack")(
      std::vector{all(m.q), all(m.words), all(m.scores_state), number(r.rows), number(r.head_dim)},
      a);
  const HostKernel scores = build.find("attention_scores"), values = build.find("values_chunk");
  for (int i = 0; i < r.chunks; ++i) {
    std::memcpy(m.chunk.data(), job.k.data() + i * 4096, 8192);
    scores(std::vector{all(m.chunk), all(m.q), all(m.f), all(m.words), all(m.scores_state),
                       number(r.rows), number(r.head_dim)},
           a);
    std::memcpy(m.chunk.data(), job.v.data() + i * 4096, 8192);
    values(std::vector{all(m.chunk), all(m.f), all(m.y), all(m.values_words), all(m.values_state),
                       number(r.rows), number(r.head_dim)},
           b);
  }
  Result result;
  const auto count = static_cast<size_t>(r.rows * r.head_dim);
  for (int i = 0; i < r.out_objects; ++i) {
    build.find("values_out")(std::vector{all(m.y), all(m.out), all(m.values_words),
                                         all(m.values_state), number(r.output)},
                             b);
    if (output == Output::kPartial && i + 1 == r.out_objects) {
      const auto* statistics = reinterpret_cast<const float*>(m.out.data());
      result.maximum.assign(statistics, statistics + r.rows);
      result.denominator.assign(statistics + 32, statistics + 32 + r.rows);
      for (int row = r.rows; row < 32; ++row) {
        CHECK(statistics[row] == attention::kNothing);
        CHECK(statistics[32 + row] == 0);
      }
    } else if (output == Output::kPartial) {
      const auto* from = reinterpret_cast<const float*>(m.out.data());
      result.rows.insert(result.rows.end(), from, from + 256);
    } else {
      const auto* from = reinterpret_cast<const uint16_t*>(m.out.data());
      for (int e = 0; e < 512; ++e) result.rows.push_back(bf16_value(from[e]));
    }
  }
  for (size_t i = count; i < result.rows.size(); ++i) CHECK(result.rows[i] == 0);
  result.rows.resize(count);
  return result;
}

// softmax(scale q k) v of one row in double precision, and how far a result may be from it.
//
// Every weight is off by: its score, which is a sum of `dim` products in fp32 and two more
// roundings; the power, 2^-8 + 7.6e-5 relatively, and 2^-126 (aie_kernels/exp.h). The same errors
// are in the denominator. Sums of values are in fp32. The result is rounded to bfloat16, 2^-8.
void reference(const Job& job, int row, std::vector<double>& expected, std::vector<double>& bound) {
  const Record& r = job.record;
  const auto dim = static_cast<size_t>(r.head_dim);
  expected.assign(dim, 0), bound.assign(dim, 0);
  std::vector<double> scores(static_cast<size_t>(job.keys()), -INFINITY);
  double most = -INFINITY;
  for (int key = 0; key < job.keys(); ++key) {
    if (!job.sees(row, key)) continue;
    scores[static_cast<size_t>(key)] = job.dot(row, key) * double{job.scale};
    most = std::max(most, scores[static_cast<size_t>(key)]);
  }
  if (most == -INFINITY) return;
  double sum = 0, error = 0;
  std::vector<double> above(dim, 0);
  for (int key = 0; key < job.keys(); ++key) {
    const double score = scores[static_cast<size_t>(key)];
    if (score == -INFINITY) continue;
    const double weight = std::exp(score - most);
    const double dot_error = (r.head_dim + 4) * 0x1p-23 * job.magnitude(row, key) * job.scale;
    const double off =
        weight * (std::expm1(dot_error + std::abs(score) * 0x1p-21) + 0x1p-8 + 7.6e-5 + 1e-6) +
        0x1p-120;
    sum += weight, error += off;
    for (size_t i = 0; i < dim; ++i) {
      const double value = double{bf16_value(job.v[static_cast<size_t>(key) * dim + i])};
      expected[i] += weight * value;
      above[i] += weight * std::abs(value) * job.keys() * 0x1p-23;
      bound[i] += off * std::abs(value);
    }
  }
  for (size_t i = 0; i < dim; ++i) {
    expected[i] /= sum;
    bound[i] = (bound[i] + above[i]) / sum + std::abs(expected[i]) * error / sum;
    bound[i] = bound[i] * 1.02 + std::abs(expected[i]) * 0x1.1p-8 + 0x1p-125;
  }
}

void check(const Job& job, const Result& result) {
  std::vector<double> expected, bound;
  double worst = 0;
  bool numbers = true;
  for (int row = 0; row < job.record.rows; ++row) {
    reference(job, row, expected, bound);
    for (size_t i = 0; i < expected.size(); ++i) {
      const double value = double{result.rows[static_cast<size_t>(row) * expected.size() + i]};
      numbers &= std::isfinite(value);
      worst = std::max(worst, std::abs(value - expected[i]) / std::max(bound[i], 1e-300));
    }
  }
  CHECK(numbers);
  CHECK(worst <= 1);
}

}  // namespace

TEST_CASE("attention kernels: jobs of every shape agree with softmax") {
  each_build([](const Build& build) {
    unsigned seed = 1;
    for (const int dim : {64, 128, 256}) {
      for (const int rows : {1, 4, 7, 8, 13, 16, 20, 32}) {
        CAPTURE(dim);
        CAPTURE(rows);
        const int chunk = attention::positions_of(dim);
        Job job(rows, dim, 3 * chunk - 5, seed++, 3);
        check(job, run(build, job));
      }
    }
  });
}

TEST_CASE("attention kernels: causal, windowed and bounded keys, groups of heads") {
  each_build([](const Build& build) {
    unsigned seed = 100;
    for (const int dim : {64, 256}) {
      for (const int group : {1, 4}) {
        for (const int window : {0, 1, 21, 1000}) {
          for (const int causal : {0, 1}) {
            CAPTURE(dim);
            CAPTURE(group);
            CAPTURE(window);
            CAPTURE(causal);
            const int keys = 4 * attention::positions_of(dim);
            Job job(24, dim, keys, seed++, 3);
            Record& r = job.record;
            r.group = group, r.window = window, r.causal = causal;
            r.key_position = 1000, r.query_position = 1000 + keys / 2 - 3;
            r.keys_from = 1003, r.keys_end = 1000 + keys - 5;
            check(job, run(build, job));
          }
        }
      }
    }
  });
}

TEST_CASE("attention kernels: what is not visible has no influence, rows without keys are zero") {
  each_build([](const Build& build) {
    Job job(32, 128, 96, 7);
    Record& r = job.record;
    r.causal = 1, r.query_position = -5, r.keys_from = 2, r.keys_end = 70;
    const Result before = run(build, job);
    check(job, before);
    for (int i = 0; i < 128 * 7; ++i) CHECK(before.rows[static_cast<size_t>(i)] == 0);
    for (int key = 0; key < 96; ++key) {
      if (key >= 2 && key < 70) continue;
      for (int i = 0; i < 128; ++i) {
        const auto at = static_cast<size_t>(key * 128 + i);
        job.k[at] = i % 2 == 0 ? 0x7F80 : 0x7FC0;
        job.v[at] = 0x7F00;  // must be finite
      }
    }
    CHECK(run(build, job).rows == before.rows);
    job.record.keys_end = 2;
    for (const float value : run(build, job).rows) CHECK(value == 0);
  });
}

TEST_CASE("attention kernels: large, equal, tiny and single scores") {
  each_build([](const Build& build) {
    for (const float size : {1e2f, 1e4f, 1e9f, 1e-20f, 0.0f}) {
      CAPTURE(size);
      Job job(20, 64, 150, 11, size);
      check(job, run(build, job));
    }
    Job equal(8, 64, 128, 12);
    for (size_t i = 64; i < equal.k.size(); ++i) equal.k[i] = equal.k[i % 64];
    check(equal, run(build, equal));
    Job one(32, 256, 1, 13, 100);
    const Result result = run(build, one);
    check(one, result);
    for (size_t i = 0; i < result.rows.size(); ++i) {
      CHECK(result.rows[i] == bf16_value(one.v[i % 256]));
    }
    for (const float weight : run(build, one, Output::kPartial).denominator) {
      CHECK(weight <= 1);
      CHECK(weight > 0.5f);
    }
    // Scores that rise with every chunk move the maximum, from below float's range of powers on.
    Job rising(4, 64, 640, 14, 0);
    for (size_t i = 0; i < rising.q.size(); i += 64) rising.q[i] = bf16_word(1);
    for (int key = 0; key < 640; ++key) {
      rising.k[static_cast<size_t>(key) * 64] = bf16_word(static_cast<float>(key - 600) * 20);
    }
    for (const float scale : {1.0f, 0.01f, 0.001f, -0.005f}) {
      rising.set_scale(scale);
      Job made = rising;
      made.scale = std::abs(scale);
      if (scale < 0) {
        for (uint16_t& word : made.q) word ^= 0x8000;
      }
      check(made, run(build, rising));
    }
  });
}

TEST_CASE("attention kernels: NaN and infinities") {
  each_build([](const Build& build) {
    Job job(8, 64, 128, 21);
    for (uint16_t& word : job.q) word &= 0x7FFF;
    const auto key = [&](int at, uint16_t word) {
      Job changed = job;
      for (int i = 0; i < 64; ++i) changed.k[static_cast<size_t>(at * 64 + i)] = word;
      return changed;
    };
    for (const int at : {0, 63, 64, 100}) {
      for (const float value : run(build, key(at, 0x7FC0)).rows) CHECK(std::isnan(value));
      for (const float value : run(build, key(at, 0x7F80)).rows) CHECK(std::isnan(value));
      // A score of -infinity is a weight of 0.
      Job hidden = key(at, 0xFF80);
      const Result result = run(build, hidden);
      Job absent = hidden;
      for (int i = 0; i < 64; ++i) absent.k[static_cast<size_t>(at * 64 + i)] = bf16_word(-1e4f);
      check(absent, result);
    }
    Job value = job;
    value.v[5 * 64 + 7] = 0x7F80;  // infinity
    const Result result = run(build, value);
    for (size_t i = 0; i < result.rows.size(); ++i) {
      CHECK(result.rows[i] == (i % 64 == 7 ? kInfinity : result.rows[i]));
    }
    Job nothing = job;
    for (uint16_t& word : nothing.k) word = 0xFF80;
    for (const float row : run(build, nothing).rows) CHECK(row == 0);
  });
}

// With values that are columns of the identity, numerators are the weights.
TEST_CASE("attention kernels: weights are powers of two within the stated error") {
  each_build([](const Build& build) {
    constexpr int kDim = 64;
    double worst = -1;
    for (int part = 0; part < 40; ++part) {
      Job job(2, kDim, kDim, 31);
      std::fill(job.q.begin(), job.q.end(), uint16_t{0});
      std::fill(job.k.begin(), job.k.end(), uint16_t{0});
      std::fill(job.v.begin(), job.v.end(), uint16_t{0});
      for (size_t i = 0; i < 3; ++i) job.q[i] = job.q[kDim + i] = bf16_word(1);
      job.record.scale = std::bit_cast<int32_t>(1.0f);
      std::vector<float> x(kDim, 0);
      std::mt19937 random(static_cast<unsigned>(part));
      for (size_t key = 1; key < kDim; ++key) {
        const float uniform = static_cast<float>(random() >> 8) * 0x1p-24f;
        x[key] = part < 20 ? -uniform * static_cast<float>(part + 1) : -140 * uniform;
        if (part == 0) x[key] = -std::ldexp(1.0f, -static_cast<int>(key));
        float left = x[key];  // exactly, in three parts
        for (size_t i = 0; i < 3; ++i) {
          job.k[key * kDim + i] = bf16_word(left);
          left -= bf16_value(job.k[key * kDim + i]);
        }
        x[key] -= left;
      }
      for (size_t key = 0; key < kDim; ++key) job.v[key * kDim + key] = bf16_word(1);
      const Result result = run(build, job, Output::kPartial);
      CHECK(result.maximum == std::vector<float>(2, 0.0f));
      double sum = 0;
      for (size_t key = 0; key < kDim; ++key) {
        const double power = std::exp2(double{x[key]}), found = double{result.rows[key]};
        const double half_unit = std::ldexp(1.0, std::ilogb(power) - 8);
        worst = std::max(worst, (std::abs(found - power) - half_unit - 0x1p-126) / power);
        CHECK(result.rows[kDim + key] == result.rows[key]);
        CHECK(bf16_value(bf16_word(result.rows[key])) == result.rows[key]);
        sum += found;
      }
      CHECK(double{result.denominator[0]} == doctest::Approx(sum).epsilon(1e-6));
    }
    CHECK(worst <= 7.6e-5);
  });
}

TEST_CASE("attention kernels: partial results of any split merge to the whole") {
  each_build([](const Build& build) {
    const Job whole(12, 128, 256, 41, 6);
    for (const int cut : {1, 3, 7, 8}) {  // chunks of the first part; 8: the second has none
      CAPTURE(cut);
      Job near = whole, far = whole;
      near.record.chunks = cut, far.record.chunks = 8 - cut;
      far.record.key_position = cut * 32;
      far.k.erase(far.k.begin(), far.k.begin() + cut * 4096);
      far.v.erase(far.v.begin(), far.v.begin() + cut * 4096);
      const Result a = run(build, near, Output::kPartial), b = run(build, far, Output::kPartial);
      Result merged;
      for (size_t row = 0; row < 12; ++row) {
        const float top = std::max(a.maximum[row], b.maximum[row]);
        CHECK(top == std::ceil(top));
        const float left = std::exp2(a.maximum[row] - top), right = std::exp2(b.maximum[row] - top);
        const float sum = left * a.denominator[row] + right * b.denominator[row];
        for (size_t i = row * 128; i < (row + 1) * 128; ++i) {
          merged.rows.push_back((left * a.rows[i] + right * b.rows[i]) / sum);
        }
      }
      check(whole, merged);
    }
  });
}

TEST_CASE("attention kernels: a record or state that would leave the buffers is refused") {
  const Build build{arch::Generation::kNpu2, Arithmetic::kFast, "v2"};
  const auto refused = [&](const char* what, auto&& spoil) {
    CAPTURE(what);
    Job job(4, 64, 64, 51);
    Record r = job.record;
    r.out_objects = 1;
    Memory m;
    std::memcpy(m.words.data(), &r, sizeof r);
    auto* state = reinterpret_cast<int32_t*>(m.scores_state.data());
    state[0] = -1, state[1] = 0;
    int64_t rows = 4, dim = 64;
    auto& record = *reinterpret_cast<Record*>(m.words.data());
    const auto scores = [&] {
      CoreState core;
      build.find("attention_scores")(std::vector{all(m.chunk), all(m.q), all(m.f), all(m.words),
                                                 all(m.scores_state), number(rows), number(dim)},
                                     core);
    };
    CHECK_NOTHROW(scores());
    state[1] = 0;
    spoil(record, state, rows, dim);
    CHECK_THROWS_WITH_AS(scores(), doctest::Contains("[attention_scores]"), Error);
  };
  using S = int32_t*;
  using N = int64_t&;
  refused("rows", [](Record& r, S, N rows, N) { r.rows = 33, rows = 32; });
  refused("no rows", [](Record& r, S, N, N) { r.rows = 0; });
  refused("group", [](Record& r, S, N, N) { r.group = 0; });
  refused("head_dim", [](Record& r, S, N, N dim) { r.head_dim = 192, dim = 192; });
  refused("objects", [](Record& r, S, N, N) { r.objects = 1; });
  refused("output", [](Record& r, S, N, N) { r.output = 2; });
  refused("out_objects", [](Record& r, S, N, N) { r.out_objects = 2; });
  refused("position", [](Record& r, S, N, N) { r.query_position = INT32_MAX; });
  refused("window", [](Record& r, S, N, N) { r.window = -1; });
  refused("chunks", [](Record& r, S, N, N) { r.chunks = INT32_MAX; });
  refused("rows of the call", [](Record&, S, N rows, N) { rows = 5; });
  refused("head_dim of the call", [](Record&, S, N, N dim) { dim = 128; });
  refused("q", [](Record&, S state, N, N) { state[0] = 4 * 64; });
  refused("scored", [](Record&, S state, N, N) { state[1] = 1; });
  refused("scored before", [](Record&, S state, N, N) { state[1] = -1; });

  Memory m;
  Job job(4, 64, 64, 52);
  job.record.out_objects = 1;
  std::memcpy(m.words.data(), &job.record, sizeof job.record);
  CoreState core;
  const auto send = [&](int64_t output) {
    build.find("values_out")(
        std::vector{all(m.y), all(m.out), all(m.words), all(m.values_state), number(output)}, core);
  };
  CHECK_THROWS_AS(send(1), Error);
  CHECK_NOTHROW(send(0));
  CHECK_THROWS_AS(send(0), Error);
  auto* taken = reinterpret_cast<int32_t*>(m.scores_state.data());
  for (const int32_t elements : {256, -32, 16}) {
    *taken = elements;
    CHECK_THROWS_AS(
        build.find("attention_more")(
            std::vector{all(m.part), all(m.q), all(m.words), all(m.scores_state)}, core),
        Error);
  }
  const auto pack = [&](int64_t rows) {
    build.find("attention_pack")(
        std::vector{all(m.q), all(m.words), all(m.scores_state), number(rows), number(64)}, core);
  };
  *taken = 192;
  CHECK_THROWS_WITH_AS(pack(4), doctest::Contains("q is not complete"), Error);
  *taken = 256;
  CHECK_THROWS_AS(pack(5), Error);
  CHECK_NOTHROW(pack(4));
  CHECK_THROWS_WITH_AS(pack(4), doctest::Contains("q is not complete"), Error);  // once
}

TEST_CASE("attention kernels: a chunk of a decode step takes less than its 4096 cycles") {
  for (const auto generation : {arch::Generation::kNpu1, arch::Generation::kNpu2}) {
    const arch::Timing timing(generation, arch::TimingTable());
    for (const char* name : {"attention_scores", "values_chunk"}) {
      const kernels::Declaration* kernel = kernels::find_declaration(name, generation);
      REQUIRE(kernel != nullptr);
      double before = 0;
      for (const int64_t rows : {8, 16, 24, 32}) {
        const double cycles = kernels::call_cycles(*kernel, timing, {rows, 256});
        CHECK(cycles > before);
        CHECK(cycles == kernels::call_cycles(*kernel, timing, {rows - 7, 256}));  // blocks of 8
        before = cycles;
        // No faster than the multiplications, nor much slower.
        const double least = 4096 * double(rows) / timing.mac_bf16_native;
        CHECK(cycles > least);
        if (rows == 8) CHECK(cycles < 3072);
        const bool npu2 = generation == arch::Generation::kNpu2;
        // Of 32 rows less than the pair's share of DRAM takes: 8.9 thousand (npu1: 7.5).
        if (rows == 32) CHECK(cycles < least * (npu2 ? 2 : 7.5));
      }
    }
  }
}
