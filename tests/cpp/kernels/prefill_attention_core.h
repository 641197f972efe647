// A job of prompt attention through a core's kernels (aie_kernels/prefill_attention.cc) in one host
// build, and softmax in double precision with a derived bound to compare with.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
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

namespace npu::prefill_attention_test {

using kernel_test::bf16_value, kernel_test::bf16_word, kernel_test::Build, kernel_test::each_build;
using prefill::Job;

inline constexpr double kLog2e = 1.4426950408889634;
using Doubles = std::vector<double>;
using Words = std::vector<uint16_t>;

inline size_t at(int64_t i) { return static_cast<size_t>(i); }

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
    return exists(key) && query(row) >= job.queries_from &&
           (job.causal == 0 || (place <= query(row) && query(row) < job.keys_end)) &&
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

inline KernelArgument all(AlignedBytes& bytes) {
  return {bytes.data(), static_cast<uint32_t>(bytes.size()), 0};
}
inline KernelArgument number(int64_t value) { return {nullptr, 0, value}; }

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
inline std::vector<float> run(const Build& build, const Task& task) {
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
inline void reference(const Task& task, const Operands& x, int row, Doubles& expected,
                      Doubles& bound) {
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
    const double relative = std::expm1(score_error + std::abs(scores[key]) * 0x1p-21);
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

inline void check(const Task& task, const std::vector<float>& result) {
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

}  // namespace npu::prefill_attention_test
