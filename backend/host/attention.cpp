// Attention on the host (attention.h): per KV head and block of queries, scores, softmax, mix.
#include "host/attention.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <type_traits>

#include "host/clones.h"
#include "host/host_math.h"
#include "host/thread_pool.h"
#include "rounding.h"

namespace npu::ops {

namespace {

constexpr int64_t kLanes = 16;
constexpr int64_t kQueries = 16;    // per block; times the heads of a group, rows share each key
constexpr int kKeys = 4;            // scores of a row that are made at once
constexpr int kVectors = 4;         // of an output row that are made at once
constexpr int64_t kMixedKeys = 64;  // a strip of so many values stays in L1

using Vector [[gnu::vector_size(kLanes * sizeof(float))]] = float;
using Half [[gnu::vector_size(kLanes / 2 * sizeof(float))]] = float;
using Four [[gnu::vector_size(4 * sizeof(float))]] = float;
using FourIndices [[gnu::vector_size(4 * sizeof(int32_t))]] = int32_t;

template <typename T>
NPU_INLINE void load(T& vector, const void* from) {
  std::memcpy(&vector, from, sizeof vector);
}

// The sums of the lanes of four vectors.
NPU_INLINE void sum_lanes(const Vector* vectors, float* out) {
  Four parts[4];
  for (int i = 0; i < 4; ++i) {
    Half low, high;
    load(low, &vectors[i]);
    load(high, reinterpret_cast<const char*>(&vectors[i]) + sizeof low);
    low += high;
    Four first, second;
    load(first, &low);
    load(second, reinterpret_cast<const char*>(&low) + sizeof first);
    parts[i] = first + second;
  }
  const FourIndices even{0, 2, 4, 6}, odd{1, 3, 5, 7};
  const Four a =
      __builtin_shuffle(parts[0], parts[1], even) + __builtin_shuffle(parts[0], parts[1], odd);
  const Four b =
      __builtin_shuffle(parts[2], parts[3], even) + __builtin_shuffle(parts[2], parts[3], odd);
  const Four sums = __builtin_shuffle(a, b, even) + __builtin_shuffle(a, b, odd);
  std::memcpy(out, &sums, sizeof sums);
}

// Scores of R rows of q and four rows of k, each `width` long.
template <int R>
NPU_INLINE void score(const float* q, const float* const* k, int64_t width, float* out,
                      int64_t stride) {
  Vector sums[R][kKeys] = {};
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    Vector rows[R];
    for (int r = 0; r < R; ++r) load(rows[r], q + r * width + i);
    for (int j = 0; j < kKeys; ++j) {
      Vector key;
      load(key, k[j] + i);
      for (int r = 0; r < R; ++r) sums[r][j] += rows[r] * key;
    }
  }
  for (int r = 0; r < R; ++r) sum_lanes(sums[r], out + r * stride);
  for (; i < width; ++i) {
    for (int r = 0; r < R; ++r) {
      for (int j = 0; j < kKeys; ++j) out[r * stride + j] += q[r * width + i] * k[j][i];
    }
  }
}

// out (R rows of `width`) += p (R rows, `stride` apart) times `keys` rows of v, V vectors wide.
template <int R, int V>
NPU_INLINE void mix(const float* p, int64_t stride, const float* v, int64_t keys, int64_t width,
                    float* out) {
  Vector sums[R][V];
  for (int r = 0; r < R; ++r) {
    for (int j = 0; j < V; ++j) load(sums[r][j], out + r * width + j * kLanes);
  }
  for (int64_t key = 0; key < keys; ++key, v += width) {
    Vector values[V];
    for (int j = 0; j < V; ++j) load(values[j], v + j * kLanes);
    for (int r = 0; r < R; ++r) {
      for (int j = 0; j < V; ++j) sums[r][j] += p[r * stride + key] * values[j];
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int j = 0; j < V; ++j) {
      std::memcpy(out + r * width + j * kLanes, &sums[r][j], sizeof sums[r][j]);
    }
  }
}

// Calls visit(row, integral constant of how many rows): fours, then what is left.
template <typename Visit>
NPU_INLINE void each_rows(int64_t rows, const Visit& visit) {
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) visit(r, std::integral_constant<int, 4>());
  if (r + 2 <= rows) {
    visit(r, std::integral_constant<int, 2>());
    r += 2;
  }
  if (r < rows) visit(r, std::integral_constant<int, 1>());
}

// scores (rows, `stride` apart) = q k^T.
NPU_CLONES
void all_scores(const float* q, const float* k, int64_t rows, int64_t keys, int64_t width,
                float* scores, int64_t stride) {
  for (int64_t key = 0; key < keys; key += kKeys) {
    const float* four[kKeys];
    float sums[4 * kKeys];
    for (int j = 0; j < kKeys; ++j) four[j] = k + std::min(key + j, keys - 1) * width;
    const auto count = static_cast<size_t>(std::min<int64_t>(kKeys, keys - key));
    each_rows(
        rows, [&](int64_t r, auto together) __attribute__((always_inline)) {
          constexpr int kRows = decltype(together)::value;
          score<kRows>(q + r * width, four, width, sums, kKeys);
          for (int i = 0; i < kRows; ++i) {
            std::memcpy(scores + (r + i) * stride + key, sums + i * kKeys, count * sizeof(float));
          }
        });
  }
}

// out (rows, width) += p (rows of `keys`, `stride` apart) v.
NPU_CLONES
void all_mixed(const float* p, int64_t stride, const float* v, int64_t rows, int64_t keys,
               int64_t width, float* out) {
  for (int64_t first = 0; first < keys; first += kMixedKeys) {
    const int64_t count = std::min(kMixedKeys, keys - first);
    const float* values = v + first * width;
    int64_t column = 0;
    for (; column + kVectors * kLanes <= width; column += kVectors * kLanes) {
      each_rows(
          rows, [&](int64_t r, auto together) __attribute__((always_inline)) {
            mix<decltype(together)::value, kVectors>(p + r * stride + first, stride,
                                                     values + column, count, width,
                                                     out + r * width + column);
          });
    }
    for (; column + kLanes <= width; column += kLanes) {
      each_rows(
          rows, [&](int64_t r, auto together) __attribute__((always_inline)) {
            mix<decltype(together)::value, 1>(p + r * stride + first, stride, values + column,
                                              count, width, out + r * width + column);
          });
    }
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t key = 0; key < count; ++key) {
        for (int64_t i = column; i < width; ++i) {
          out[r * width + i] += p[r * stride + first + key] * values[key * width + i];
        }
      }
    }
  }
}

// Queries [begin, begin + count) of one KV head's group. Rows of q, scores and mixed are (head of
// the group, query), so that they share every key they read.
struct Scratch {
  std::unique_ptr<float[]> q, scores, mixed, strip;
};

// Rows of K (0) and V (1) in float32 arrays: all keys from one on are one strip.
struct FloatRows {
  const float* values[2];
  int64_t stride, width, keys;

  int64_t strip_keys() const { return 0; }  // nothing is copied
  int64_t strip(int which, int64_t head, int64_t key, float*, const float*& rows) const {
    rows = values[which] + head * stride + key * width;
    return keys - key;
  }
};

// Rows in bfloat16 pages: a strip is what a chunk has from a key on, widened into scratch memory.
struct PagedRows {
  const KvPages& pages;
  int64_t chunk;

  int64_t strip_keys() const { return chunk; }
  int64_t strip(int which, int64_t head, int64_t key, float* memory, const float*& rows) const {
    const int64_t width = pages.head_dim, count = chunk - key % chunk;
    widen(pages.row(head, key) + which * chunk * width, count * width, memory);
    rows = memory;
    return count;
  }
};

// Calls visit(rows, offset, count) for strips of keys [first, last).
template <typename Rows, typename Visit>
void each_strip(const Rows& source, int which, int64_t head, int64_t first, int64_t last,
                float* memory, const Visit& visit) {
  for (int64_t key = first; key < last;) {
    const float* rows = nullptr;
    const int64_t count = std::min(source.strip(which, head, key, memory, rows), last - key);
    visit(rows, key - first, count);
    key += count;
  }
}

template <typename Rows>
void attend(const float* q, const Rows& source, const AttentionShape& s, int64_t kv_head,
            int64_t begin, int64_t count, const Scratch& scratch, float* out) {
  const int64_t group = s.heads / s.kv_heads, rows = group * count, width = s.head_dim;
  const int64_t last = s.shift + begin + count;
  const int64_t first = first_seen(s.shift + begin, s.window);
  const auto place = [&](int64_t row) {
    const int64_t head = kv_head * group + row / count;
    return ((begin + row % count) * s.heads + head) * width;
  };
  for (int64_t row = 0; row < rows; ++row) {
    const float* from = q + place(row);
    float* to = scratch.q.get() + row * width;
    for (int64_t i = 0; i < width; ++i) to[i] = from[i] * s.scale;
  }
  const int64_t keys = last - first;
  float* scores = scratch.scores.get();
  float* mixed = scratch.mixed.get();
  each_strip(source, 0, kv_head, first, last, scratch.strip.get(),
             [&](const float* strip, int64_t at, int64_t length) {
               all_scores(scratch.q.get(), strip, rows, length, width, scores + at, keys);
             });
  causal_softmax(scores, rows, keys, count, s.shift + begin - first, s.window);
  std::fill(mixed, mixed + rows * width, 0.0f);
  each_strip(source, 1, kv_head, first, last, scratch.strip.get(),
             [&](const float* strip, int64_t at, int64_t length) {
               all_mixed(scores + at, keys, strip, rows, length, width, mixed);
             });
  for (int64_t row = 0; row < rows; ++row) {
    std::memcpy(out + place(row), mixed + row * width, static_cast<size_t>(width) * sizeof(float));
  }
}

template <typename Rows>
void attend_all(const float* q, const Rows& source, const AttentionShape& s, float* out) {
  const int64_t blocks = divide_up(s.queries, kQueries), jobs = blocks * s.kv_heads;
  const int64_t max_keys =
      s.window > 0 ? std::min(s.keys, s.window + kQueries) : std::max<int64_t>(s.keys, 1);
  const auto rows = static_cast<size_t>(s.heads / s.kv_heads * std::min(kQueries, s.queries));
  const auto width = static_cast<size_t>(s.head_dim);
  ThreadPool& pool = ThreadPool::shared();
  const auto threads = static_cast<size_t>(std::min<int64_t>(pool.threads(), jobs));
  const auto scratch = std::make_unique<Scratch[]>(threads);
  for (size_t i = 0; i < threads; ++i) {
    scratch[i].q = std::make_unique_for_overwrite<float[]>(rows * width);
    scratch[i].mixed = std::make_unique_for_overwrite<float[]>(rows * width);
    scratch[i].scores =
        std::make_unique_for_overwrite<float[]>(rows * static_cast<size_t>(max_keys));
    scratch[i].strip = std::make_unique_for_overwrite<float[]>(
        static_cast<size_t>(source.strip_keys() * s.head_dim));
  }
  // The latest queries see most keys: they go first.
  std::atomic<int64_t> next{0};
  pool.parallel_for(threads, [&](size_t thread) {
    for (int64_t job = next++; job < jobs; job = next++) {
      const int64_t begin = (blocks - 1 - job / s.kv_heads) * kQueries;
      attend(q, source, s, job % s.kv_heads, begin, std::min(kQueries, s.queries - begin),
             scratch[thread], out);
    }
  });
}

}  // namespace

void attention(const float* q, const float* k, const float* v, const AttentionShape& s,
               float* out) {
  attend_all(q, FloatRows{{k, v}, s.kv_stride, s.head_dim, s.keys}, s, out);
}

void attention(const float* q, const KvPages& pages, const AttentionShape& s, float* out) {
  attend_all(q, PagedRows{pages, chunk_positions(pages.head_dim)}, s, out);
}

}  // namespace npu::ops
