// GEMV on a device (gemv.h).
#include "ops/gemv/gemv.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "error.h"
#include "ops/shim_commands.h"

namespace npu::ops {

namespace {

constexpr int64_t kMaxSide = int64_t{1} << 31;

void check_sizes(int64_t n, int64_t k) {
  if (n >= 1 && k >= 1 && n <= kMaxSide && k <= kMaxSide) return;
  fail(ErrorKind::kShape, "[gemv] W is (%lld, %lld); both sizes must be 1 to 2^31",
       static_cast<long long>(n), static_cast<long long>(k));
}

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

std::vector<Submission> submissions(const Configuration& configuration, const Request& request) {
  const GemvArray array = GemvArray::of(configuration);
  const int64_t n = request.get("n", 1, kMaxSide), k = request.get("k", 1, kMaxSide);
  const auto format = static_cast<blocks::Format>(request.get("format", 0, blocks::kFormats - 1));
  GemvProblem problem{std::max(blocks::row_blocks(n), array.min_row_blocks()),
                      blocks::column_blocks(k, format), n,
                      static_cast<int>(request.get("batch", 1, kGemvBatch))};
  problem.format = format;
  problem.output =
      static_cast<GemvOutput>(request.get("output", 0, static_cast<int64_t>(GemvOutput::kTop)));
  problem.top = static_cast<int>(request.get("top", 0, kMaxTop));
  const GemvSchedule schedule = schedule_gemv(array, problem);
  std::vector<uint32_t> words = stream_words(configuration, [&](stream::Builder& builder) {
    append_gemv(builder, configuration, problem, schedule);
  });
  const int64_t count = problem.row_blocks * problem.column_blocks;
  return {{std::move(words),
           {ArgumentLayout::input("w", count * array.block_bytes),
            ArgumentLayout::input("x", schedule.x_bytes, std::as_bytes(std::span(schedule.setup))),
            ArgumentLayout::output("y", schedule.y_bytes)}}};
}

}  // namespace

const OperationType kGemvType = {
    "gemv",
    "y = W x with W in 4-bit, 8-bit or bfloat16 blocks, a pass over the weights",
    {{"n", "rows of W"},
     {"k", "columns of W"},
     {"batch", "vectors: 1, 2, 4 or 8", 1},
     {"output", "0: bfloat16, 1: float32, 2: the largest", 0},
     {"top", "entries per vector of output 2", 0},
     {"format", "of W; 0: q4nx, 1: q8, 2: bf16; 3: q4_0, 4: q8_0, of small blocks", 0}},
    {{"1B qkv", {{"n", 1536}, {"k", 1152}}},
     {"1B down, batch 8", {{"n", 1152}, {"k", 6912}, {"batch", 8}}},
     {"1B head, top 4", {{"n", 32768}, {"k", 1152}, {"output", 2}, {"top", 4}}},
     {"1B qkv, 8-bit", {{"n", 1536}, {"k", 1152}, {"format", 1}}},
     {"1B down, bfloat16, batch 8", {{"n", 1152}, {"k", 6912}, {"batch", 8}, {"format", 2}}}},
    &submissions};

Gemv::Gemv(std::shared_ptr<SharedDevice> device, Configuration configuration)
    : operation_(std::move(device), std::move(configuration)),
      array_(GemvArray::of(operation_.configuration())) {}

std::shared_ptr<const BlockWeights> Gemv::bind(std::span<const std::byte> data, int64_t n,
                                               int64_t k, blocks::Format format) {
  check_sizes(n, k);
  auto w = std::make_shared<BlockWeights>();
  w->device = operation_.shared_device();
  w->format = format;
  w->n = n;
  w->k = k;
  w->row_blocks = blocks::row_blocks(n);
  w->column_blocks = blocks::column_blocks(k, format);
  check_block_bytes("gemv", format, array_.block_bytes);
  const auto bytes = static_cast<size_t>(w->row_blocks * w->column_blocks * array_.block_bytes);
  if (data.size() != bytes) {
    fail(ErrorKind::kShape,
         "[gemv] W of (%lld, %lld) has %lld x %lld blocks of %lld bytes, %zu bytes; %zu were given",
         static_cast<long long>(n), static_cast<long long>(k),
         static_cast<long long>(w->row_blocks), static_cast<long long>(w->column_blocks),
         static_cast<long long>(array_.block_bytes), bytes, data.size());
  }
  const auto guard = operation_.lock();
  Device& device = operation_.device();
  if (w->row_blocks >= array_.min_row_blocks()) {
    Wrapped wrapped = wrap_input(device, data.data(), bytes);
    if (wrapped) {
      w->buffer = std::move(wrapped.buffer);
      w->blocks = wrapped.ref;
      w->in_place = true;
      return w;
    }
  }
  // Row-blocks that only fill cores up are zero.
  w->row_blocks = std::max(w->row_blocks, array_.min_row_blocks());
  const auto padded = static_cast<size_t>(w->row_blocks * w->column_blocks * array_.block_bytes);
  w->buffer = device.allocate(padded);
  std::memcpy(w->buffer->host(), data.data(), bytes);
  std::memset(w->buffer->host() + bytes, 0, padded - bytes);
  w->blocks = {w->buffer.get(), 0, padded, Access::kRead};
  w->blocks.sync_to_device();
  operation_.count_copy(bytes);
  return w;
}

void Gemv::check(const BlockWeights& w, const MatrixView& x) const {
  if (w.device != operation_.shared_device()) {
    fail(ErrorKind::kArgument,
         "[gemv] W is bound to another device; bind it to the one that multiplies");
  }
  if (w.row_blocks < array_.min_row_blocks()) {
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

// The setup object, then x in objects.
BufferRef Gemv::pack_x(const MatrixView& x, const GemvProblem& problem,
                       const GemvSchedule& schedule) {
  const BufferRef out =
      x_.get(operation_.device(), static_cast<size_t>(schedule.x_bytes), Access::kRead);
  std::memcpy(out.host(), schedule.setup.data(), schedule.setup.size() * 4);
  const int64_t columns = blocks::columns_of(problem.format);  // of a line
  const int64_t width = schedule.x_blocks * columns;
  const auto used = static_cast<size_t>(width * problem.batch * 2);
  for (int64_t object = 0; object < schedule.x_objects; ++object) {
    std::byte* at = out.host() + (1 + object) * array_.x_bytes;
    const int64_t first = object * width, count = std::min(width, x.cols - first);
    size_t written = 0;
    if (count > 0) {
      pack_tiles(columns_of(x, first, count), ElementType::kBf16, problem.batch, columns,
                 TileOrder::kRowsFirst, at);
      written = packed_bytes(x.rows, count, ElementType::kBf16, problem.batch, columns);
    }
    std::memset(at + written, 0, used - written);
  }
  operation_.count_copy(static_cast<uint64_t>(schedule.x_bytes));
  out.sync_to_device();
  return out;
}

Gemv::Pass Gemv::pass(const BlockWeights& w, const MatrixView& x, const GemvProblem& problem) {
  auto entry = operation_.prepare(problem, [&](stream::Builder& builder) {
    GemvSchedule schedule = schedule_gemv(array_, problem);
    append_gemv(builder, operation_.configuration(), problem, schedule);
    return schedule;
  });
  const BufferRef packed = pack_x(x, problem, entry->schedule);
  const BufferRef results =
      y_.get(operation_.device(), static_cast<size_t>(entry->schedule.y_bytes), Access::kWrite);
  const BufferRef arguments[] = {w.blocks, packed, results};
  const RunReport report = operation_.submit(*entry, arguments);
  return {report, std::move(entry), results.host()};
}

namespace {

// Calls visit(core's share, core row, first byte of an object of results) in row-block order.
template <typename Visit>
void each_object(const GemvArray& array, const GemvSchedule& schedule, const std::byte* results,
                 const Visit& visit) {
  for (int c = 0; c < array.columns; ++c) {
    const GemvShare& share = schedule.shares[static_cast<size_t>(c)];
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

RunReport Gemv::run(const BlockWeights& w, const MatrixView& x, std::byte* y, ElementType y_type) {
  check(w, x);
  if (y_type != ElementType::kF32 && y_type != ElementType::kBf16) {
    fail(ErrorKind::kDtype, "[gemv] y is %s; use float32 or bfloat16", element_name(y_type));
  }
  const auto size = static_cast<int64_t>(element_bytes(y_type));
  const int64_t step = std::min<int64_t>(kGemvBatch, array_.y_bytes / (blocks::kRows * size));
  const auto guard = operation_.lock();
  RunReport total;
  for (int64_t done = 0; done < x.rows; done += step) {
    const int64_t vectors = std::min(step, x.rows - done);
    GemvProblem problem{w.row_blocks, w.column_blocks, w.n, padded_batch(vectors)};
    problem.format = w.format;
    problem.output = y_type == ElementType::kF32 ? GemvOutput::kF32 : GemvOutput::kBf16;
    const Pass one = pass(w, rows_of(x, done, vectors), problem);
    add(total, one.report);
    each_object(array_, one.entry->schedule, one.results,
                [&](const GemvShare& share, int r, int64_t object, const std::byte* from) {
                  int64_t block = share.first[static_cast<size_t>(r)] +
                                  object * share.y_row_blocks * share.step;
                  for (int64_t s = 0; s < share.y_row_blocks; ++s, block += share.step) {
                    const int64_t row = block * blocks::kRows,
                                  count = std::min(blocks::kRows, w.n - row);
                    for (int64_t v = 0; v < problem.batch; ++v, from += blocks::kRows * size) {
                      if (v >= vectors || count < 1) continue;
                      std::memcpy(y + ((done + v) * w.n + row) * size, from,
                                  static_cast<size_t>(count * size));
                    }
                  }
                });
    operation_.count_copy(static_cast<uint64_t>(vectors * w.n * size));
  }
  return total;
}

RunReport Gemv::top(const BlockWeights& w, const MatrixView& x, int64_t k, TopEntry* top) {
  check(w, x);
  if (k < 1 || k > kMaxTop || k > w.n) {
    fail(ErrorKind::kArgument, "[gemv_top] k is %lld; use 1 to %lld", static_cast<long long>(k),
         static_cast<long long>(std::min(kMaxTop, w.n)));
  }
  const auto max_vectors = static_cast<int64_t>(
      std::bit_floor(static_cast<uint64_t>(array_.y_bytes / kGemvTopBytes / k)));
  const int64_t step = std::min<int64_t>(kGemvBatch, max_vectors);
  const auto guard = operation_.lock();
  RunReport total;
  TopLists lists;
  for (int64_t done = 0; done < x.rows; done += step) {
    const int64_t vectors = std::min(step, x.rows - done);
    GemvProblem problem{w.row_blocks, w.column_blocks, w.n, padded_batch(vectors)};
    problem.format = w.format;
    problem.output = GemvOutput::kTop;
    problem.top = static_cast<int>(k);
    const Pass one = pass(w, rows_of(x, done, vectors), problem);
    add(total, one.report);
    for (int64_t v = 0; v < vectors; ++v) {
      each_object(array_, one.entry->schedule, one.results,
                  [&](const GemvShare&, int, int64_t, const std::byte* list) {
                    lists.add(list + v * k * kGemvTopBytes, k, w.n);
                  });
      lists.take(k, top + (done + v) * k);
    }
  }
  return total;
}

}  // namespace npu::ops
