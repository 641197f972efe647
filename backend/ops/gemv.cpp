// GEMV on a device (gemv.h).
#include "ops/gemv.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "error.h"

namespace npu::ops {

namespace {

constexpr size_t kStreamBudget = size_t{64} << 20;  // bytes of cached streams
constexpr size_t kMostPlans = 1024;
constexpr int64_t kMostSide = int64_t{1} << 31;
constexpr int64_t kMostTop = 64;

int64_t blocks_of(int64_t size, int64_t unit) { return (size + unit - 1) / unit; }

MatrixView rows_of(const MatrixView& x, int64_t first, int64_t count) {
  MatrixView out = x;
  out.data += first * x.row_stride * static_cast<int64_t>(element_bytes(x.type));
  out.rows = count;
  return out;
}

MatrixView columns_of(const MatrixView& x, int64_t first, int64_t count) {
  MatrixView out = x;
  out.data += first * x.col_stride * static_cast<int64_t>(element_bytes(x.type));
  out.cols = count;
  return out;
}

// Order of a top-k list.
bool before(const GemvTop& a, const GemvTop& b) {
  if (std::isnan(a.value) != std::isnan(b.value)) return std::isnan(b.value);
  if (a.value != b.value && !std::isnan(a.value)) return a.value > b.value;
  return a.row < b.row;
}

}  // namespace

Gemv::Gemv(std::shared_ptr<SharedDevice> device, Configuration configuration)
    : shared_(std::move(device)),
      configuration_(std::move(configuration)),
      array_(GemvArray::of(configuration_)),
      streams_(kStreamBudget) {}

OpCounters Gemv::counters() const {
  const std::lock_guard<std::mutex> guard(shared_->mutex);
  return {streams_.built(), streams_.hits(), host_copy_bytes_};
}

int64_t Gemv::most_top() const { return kMostTop; }

std::shared_ptr<const GemvWeights> Gemv::bind(std::span<const std::byte> blocks, int64_t n,
                                              int64_t k) {
  if (n < 1 || k < 1 || n > kMostSide || k > kMostSide) {
    fail(ErrorKind::kShape, "[gemv] W is (%lld, %lld); both sizes must be 1 to 2^31",
         static_cast<long long>(n), static_cast<long long>(k));
  }
  auto w = std::make_shared<GemvWeights>();
  w->device = shared_;
  w->n = n;
  w->k = k;
  w->row_blocks = blocks_of(n, kQ4Rows);
  w->column_blocks = blocks_of(k, kQ4Columns);
  const auto bytes = static_cast<size_t>(w->row_blocks * w->column_blocks * kQ4BlockBytes);
  if (blocks.size() != bytes) {
    fail(ErrorKind::kShape,
         "[gemv] W of (%lld, %lld) has %lld x %lld blocks of 5120 bytes, %zu bytes; %zu were given",
         static_cast<long long>(n), static_cast<long long>(k),
         static_cast<long long>(w->row_blocks), static_cast<long long>(w->column_blocks), bytes,
         blocks.size());
  }
  const bool enough = w->row_blocks >= array_.least_row_blocks();
  const bool aligned = reinterpret_cast<uintptr_t>(blocks.data()) % 4 == 0;
  if (shared_->device->accepts_host_memory() && enough && aligned) {
    w->view = {const_cast<std::byte*>(blocks.data()), bytes, false};
    return w;
  }
  // Row-blocks that only fill cores up are zero.
  w->row_blocks = std::max(w->row_blocks, array_.least_row_blocks());
  const auto padded = static_cast<size_t>(w->row_blocks * w->column_blocks * kQ4BlockBytes);
  const std::lock_guard<std::mutex> guard(shared_->mutex);
  w->buffer = shared_->device->allocate(padded);
  std::memcpy(w->buffer->data(), blocks.data(), bytes);
  std::memset(w->buffer->data() + bytes, 0, padded - bytes);
  w->buffer->sync_to_device();
  w->view = {w->buffer->data(), padded, false};
  host_copy_bytes_ += bytes;
  return w;
}

void Gemv::check(const GemvWeights& w, const MatrixView& x) const {
  if (w.device != shared_) {
    fail(ErrorKind::kArgument,
         "[gemv] W is bound to another device; bind it to the one that multiplies");
  }
  if (w.row_blocks < array_.least_row_blocks()) {
    fail(ErrorKind::kArgument,
         "[gemv] W was bound for another configuration; bind it with this one");
  }
  if (x.rows < 1 || x.cols != w.k) {
    fail(ErrorKind::kShape, "[gemv] x is (%lld, %lld) and W (%lld, %lld); x must be (batch, %lld)",
         static_cast<long long>(x.rows), static_cast<long long>(x.cols),
         static_cast<long long>(w.n), static_cast<long long>(w.k), static_cast<long long>(w.k));
  }
  if (x.type != ElementType::kF32 && x.type != ElementType::kBf16) {
    fail(ErrorKind::kDtype, "[gemv] x is %s; pass float32 or bfloat16", element_name(x.type));
  }
}

void Gemv::pack_x(const MatrixView& x, const GemvProblem& problem, const GemvPlan& plan) {
  const BufferView out = shared_->scratch(x_, static_cast<size_t>(plan.x_bytes));
  std::memcpy(out.data, plan.setup.data(), plan.setup.size() * 4);
  const int64_t width = plan.x_blocks * kQ4Columns;
  const auto used = static_cast<size_t>(width * problem.batch * 2);
  for (int64_t object = 0; object < plan.x_objects; ++object) {
    std::byte* at = out.data + (1 + object) * array_.x_bytes;
    const int64_t first = object * width, count = std::min(width, x.cols - first);
    size_t written = 0;
    if (count > 0) {
      pack_tiles(columns_of(x, first, count), ElementType::kBf16, problem.batch, kQ4Columns,
                 TileOrder::kRowsFirst, at);
      written = packed_bytes(x.rows, count, ElementType::kBf16, problem.batch, kQ4Columns);
    }
    std::memset(at + written, 0, used - written);
  }
  host_copy_bytes_ += static_cast<uint64_t>(plan.x_bytes);
  x_->sync_to_device();
}

// One pass over the weights; the results lie in y_, as `plan` says.
RunReport Gemv::pass(const GemvWeights& w, const MatrixView& x, const GemvProblem& problem,
                     const GemvPlan** plan) {
  auto found = plans_.find(problem);
  if (found == plans_.end()) {
    if (plans_.size() >= kMostPlans) plans_.clear();
    found = plans_.emplace(problem, plan_gemv(array_, problem)).first;
  }
  *plan = &found->second;
  shared_->device->load(configuration_);
  const auto stream = streams_.get(problem, [&] {
    return shared_->device->prepare(build_gemv_stream(configuration_, problem, **plan));
  });
  pack_x(x, problem, **plan);
  const BufferView results = shared_->scratch(y_, static_cast<size_t>((*plan)->y_bytes));
  const BufferView views[] = {
      w.view, {x_->data(), static_cast<size_t>((*plan)->x_bytes), false}, results};
  const RunReport report = shared_->device->submit_prepared(*stream, views);
  y_->sync_from_device();
  return report;
}

namespace {

// Calls visit(core's share, core row, first byte of an object of results) in row-block order.
template <typename Visit>
void each_object(const GemvArray& array, const GemvPlan& plan, const std::byte* results,
                 const Visit& visit) {
  for (int c = 0; c < array.columns; ++c) {
    const GemvShare& share = plan.shares[static_cast<size_t>(c)];
    for (int64_t object = 0; object < share.y_objects; ++object) {
      for (int r = 0; r < array.cores(c); ++r) {
        const int64_t at = share.y_offset + (object * array.cores(c) + r) * array.y_bytes;
        visit(share, r, object, results + at);
      }
    }
  }
}

int padded_batch(int64_t vectors) {
  return static_cast<int>(std::bit_ceil(static_cast<uint64_t>(vectors)));
}

}  // namespace

RunReport Gemv::run(const GemvWeights& w, const MatrixView& x, std::byte* y, ElementType y_type) {
  check(w, x);
  if (y_type != ElementType::kF32 && y_type != ElementType::kBf16) {
    fail(ErrorKind::kDtype, "[gemv] y is %s; use float32 or bfloat16", element_name(y_type));
  }
  const auto size = static_cast<int64_t>(element_bytes(y_type));
  const int64_t step = std::min<int64_t>(kGemvBatch, array_.y_bytes / (kQ4Rows * size));
  const std::lock_guard<std::mutex> guard(shared_->mutex);
  RunReport total;
  for (int64_t done = 0; done < x.rows; done += step) {
    const int64_t vectors = std::min(step, x.rows - done);
    GemvProblem problem{w.row_blocks, w.column_blocks, w.n, padded_batch(vectors)};
    problem.output = y_type == ElementType::kF32 ? GemvOutput::kF32 : GemvOutput::kBf16;
    const GemvPlan* plan = nullptr;
    add(total, pass(w, rows_of(x, done, vectors), problem, &plan));
    each_object(array_, *plan, y_->data(),
                [&](const GemvShare& share, int r, int64_t object, const std::byte* from) {
                  int64_t block = share.first[static_cast<size_t>(r)] +
                                  object * share.y_row_blocks * share.step;
                  for (int64_t s = 0; s < share.y_row_blocks; ++s, block += share.step) {
                    const int64_t row = block * kQ4Rows, count = std::min(kQ4Rows, w.n - row);
                    for (int64_t v = 0; v < problem.batch; ++v, from += kQ4Rows * size) {
                      if (v >= vectors || count < 1) continue;
                      std::memcpy(y + ((done + v) * w.n + row) * size, from,
                                  static_cast<size_t>(count * size));
                    }
                  }
                });
    host_copy_bytes_ += static_cast<uint64_t>(vectors * w.n * size);
  }
  return total;
}

RunReport Gemv::top(const GemvWeights& w, const MatrixView& x, int64_t k, GemvTop* top) {
  check(w, x);
  if (k < 1 || k > kMostTop || k > w.n) {
    fail(ErrorKind::kArgument, "[gemv_top] k is %lld; use 1 to %lld", static_cast<long long>(k),
         static_cast<long long>(std::min(kMostTop, w.n)));
  }
  const auto most = static_cast<int64_t>(
      std::bit_floor(static_cast<uint64_t>(array_.y_bytes / kGemvTopBytes / k)));
  const int64_t step = std::min<int64_t>(kGemvBatch, most);
  const std::lock_guard<std::mutex> guard(shared_->mutex);
  RunReport total;
  std::vector<GemvTop> found;
  for (int64_t done = 0; done < x.rows; done += step) {
    const int64_t vectors = std::min(step, x.rows - done);
    GemvProblem problem{w.row_blocks, w.column_blocks, w.n, padded_batch(vectors)};
    problem.output = GemvOutput::kTop;
    problem.top = static_cast<int>(k);
    const GemvPlan* plan = nullptr;
    add(total, pass(w, rows_of(x, done, vectors), problem, &plan));
    for (int64_t v = 0; v < vectors; ++v) {
      found.clear();
      each_object(array_, *plan, y_->data(),
                  [&](const GemvShare&, int, int64_t, const std::byte* list) {
                    list += v * k * kGemvTopBytes;
                    for (int64_t i = 0; i < k; ++i) {
                      float value;
                      int32_t row;
                      std::memcpy(&value, list + i * 4, 4);
                      std::memcpy(&row, list + (k + i) * 4, 4);
                      if (row >= 0 && row < w.n) found.push_back({value, row});
                    }
                  });
      std::sort(found.begin(), found.end(), before);
      // Rows that two cores computed come next to each other, with the same value.
      const auto same = [](const GemvTop& a, const GemvTop& b) { return a.row == b.row; };
      found.erase(std::unique(found.begin(), found.end(), same), found.end());
      std::copy_n(found.begin(), std::min(found.size(), static_cast<size_t>(k)),
                  top + (done + v) * k);
    }
  }
  return total;
}

}  // namespace npu::ops
