// Attention and rotary embedding on the host against loops in double precision, in buffers without
// a spare element, so that a sanitizer sees what reads or writes beyond them.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "host/attention.h"
#include "host/host_math.h"

namespace {

using npu::ops::AttentionShape;
using Floats = std::vector<float>;

Floats random_floats(size_t count, std::mt19937& random) {
  std::normal_distribution<float> normal;
  Floats out(count);
  for (float& value : out) value = normal(random);
  return out;
}

// One output row by the definition: keys (position - window, position], softmax, mix.
std::vector<double> expected_row(const Floats& q, const Floats& k, const Floats& v,
                                 const AttentionShape& s, int64_t query, int64_t head) {
  const int64_t width = s.head_dim, position = s.shift + query;
  const int64_t first = s.window > 0 ? std::max<int64_t>(0, position - s.window + 1) : 0;
  const int64_t base = head / (s.heads / s.kv_heads) * s.kv_stride;
  const float* row = q.data() + (query * s.heads + head) * width;
  std::vector<double> p, out(static_cast<size_t>(width));
  double most = -std::numeric_limits<double>::infinity(), total = 0;
  for (int64_t key = first; key <= position; ++key) {
    double sum = 0;
    for (int64_t i = 0; i < width; ++i) {
      sum += double{row[i]} * double{k[static_cast<size_t>(base + key * width + i)]};
    }
    p.push_back(sum * double{s.scale});
    most = std::max(most, p.back());
  }
  for (double& value : p) total += value = std::exp(value - most);
  for (int64_t key = first; key <= position; ++key) {
    for (int64_t i = 0; i < width; ++i) {
      out[static_cast<size_t>(i)] += p[static_cast<size_t>(key - first)] / total *
                                     double{v[static_cast<size_t>(base + key * width + i)]};
    }
  }
  return out;
}

void check_attention(const AttentionShape& s) {
  CAPTURE(s.queries);
  CAPTURE(s.heads);
  CAPTURE(s.kv_heads);
  CAPTURE(s.head_dim);
  CAPTURE(s.window);
  std::mt19937 random(7);
  const auto cached = static_cast<size_t>((s.kv_heads - 1) * s.kv_stride + s.keys * s.head_dim);
  const auto rows = static_cast<size_t>(s.queries * s.heads * s.head_dim);
  const Floats q = random_floats(rows, random);
  const Floats k = random_floats(cached, random), v = random_floats(cached, random);
  Floats out(rows, std::numeric_limits<float>::quiet_NaN());
  npu::ops::attention(q.data(), k.data(), v.data(), s, out.data());
  double worst = 0;
  for (int64_t query = 0; query < s.queries; ++query) {
    for (int64_t head = 0; head < s.heads; ++head) {
      const std::vector<double> expected = expected_row(q, k, v, s, query, head);
      for (size_t i = 0; i < expected.size(); ++i) {
        const size_t at = static_cast<size_t>((query * s.heads + head) * s.head_dim) + i;
        const double error = std::abs(double{out[at]} - expected[i]);
        worst = std::isnan(error) ? 1 : std::max(worst, error);
      }
    }
  }
  // Scores of size |q| |k| < 4 head_dim scale, rounded like sums of head_dim + 1 terms, and up to
  // `keys` terms of a weighted mean of values below 5.
  const double terms = 2 * 4.0 * static_cast<double>(s.head_dim) * double{s.scale} + 2;
  CHECK(worst <= 5 * terms * static_cast<double>(s.head_dim + s.keys) * std::ldexp(1.0, -24));
}

}  // namespace

TEST_CASE("attention equals its definition at every group, width and block") {
  for (const int64_t head_dim : {1, 4, 16, 40, 64, 96}) {
    for (const int64_t group : {1, 2, 3, 4, 7}) {
      AttentionShape s;
      s.kv_heads = 1 + group % 2;
      s.heads = group * s.kv_heads;
      s.head_dim = head_dim;
      s.queries = head_dim == 40 ? 37 : 1 + group % 3;
      s.shift = head_dim == 64 ? 0 : 70 + group;
      s.keys = s.shift + s.queries;
      s.kv_stride = s.keys * head_dim;
      s.scale = 1 / std::sqrt(static_cast<float>(head_dim));
      for (const int64_t window : {0, 1, 5, 64}) {
        s.window = window;
        check_attention(s);
      }
    }
  }
}

TEST_CASE("the heads of a cache may be apart and have keys to spare") {
  AttentionShape s;
  s.kv_heads = 2;
  s.heads = 8;
  s.head_dim = 32;
  s.queries = 20;
  s.shift = 11;
  s.keys = 40;
  s.kv_stride = 50 * 32;
  s.scale = 0.2f;
  check_attention(s);
}

TEST_CASE("rope rotates pairs half a head apart") {
  std::mt19937 random(3);
  for (const int64_t width : {2, 6, 32, 70}) {
    const int64_t rows = 3, heads = 2, half = width / 2;
    const Floats x = random_floats(static_cast<size_t>(rows * heads * width), random);
    Floats cosines, sines, out(x.size());
    for (int64_t i = 0; i < rows * half; ++i) {
      cosines.push_back(static_cast<float>(std::cos(0.1 * static_cast<double>(i))));
      sines.push_back(static_cast<float>(std::sin(0.1 * static_cast<double>(i))));
    }
    npu::ops::rope(x.data(), cosines.data(), sines.data(), rows, heads, width, out.data());
    for (int64_t row = 0; row < rows * heads; ++row) {
      for (int64_t i = 0; i < half; ++i) {
        const double angle = 0.1 * static_cast<double>(row / heads * half + i);
        const double low = double{x[static_cast<size_t>(row * width + i)]};
        const double high = double{x[static_cast<size_t>(row * width + half + i)]};
        const double turned = low * std::cos(angle) - high * std::sin(angle);
        const double other = high * std::cos(angle) + low * std::sin(angle);
        CHECK(out[static_cast<size_t>(row * width + i)] == doctest::Approx(turned).epsilon(1e-5));
        CHECK(out[static_cast<size_t>(row * width + half + i)] ==
              doctest::Approx(other).epsilon(1e-5));
      }
    }
  }
}
