// Dequantisation on a device (dequant.h).
#include "ops/dequant.h"

#include <algorithm>
#include <cstring>

#include "error.h"

namespace npu::ops {

namespace {

constexpr size_t kStreamBudget = size_t{64} << 20;  // bytes of cached streams

size_t tile_bytes(int64_t row_blocks, int64_t column_blocks) {
  return static_cast<size_t>(row_blocks * kQ4Rows * column_blocks * kQ4Columns * 2);
}

}  // namespace

Dequant::Dequant(std::shared_ptr<SharedDevice> device, Configuration configuration)
    : shared_(std::move(device)),
      configuration_(std::move(configuration)),
      array_(DequantArray::of(configuration_)),
      streams_(kStreamBudget) {}

OpCounters Dequant::counters() const {
  const std::lock_guard<std::mutex> guard(shared_->mutex);
  return {streams_.built(), streams_.hits(), host_copy_bytes_};
}

void Dequant::check(const GemvWeights& w, const RowBlocks& part) const {
  if (w.device != shared_) {
    fail(ErrorKind::kArgument,
         "[dequantize] W is bound to another device; bind it to the one that expands it");
  }
  const int64_t rows = (w.n + kQ4Rows - 1) / kQ4Rows;
  if (part.first < 0 || part.count < 1 || part.first > rows - part.count) {
    fail(ErrorKind::kArgument, "[dequantize] row-blocks %lld to %lld of %lld are not there",
         static_cast<long long>(part.first), static_cast<long long>(part.first + part.count),
         static_cast<long long>(rows));
  }
}

RunReport Dequant::run(const GemvWeights& w, const RowBlocks& part, std::byte* out) {
  check(w, part);
  const int64_t rows = std::min(part.count * kQ4Rows, w.n - part.first * kQ4Rows);
  return expand(w, part, out, rows, w.k);
}

RunReport Dequant::run_padded(const GemvWeights& w, const RowBlocks& part, std::byte* out) {
  check(w, part);
  return expand(w, part, out, part.count * kQ4Rows, w.column_blocks * kQ4Columns);
}

// The first `rows` and `columns` of the part's blocks.
RunReport Dequant::expand(const GemvWeights& w, const RowBlocks& part, std::byte* out, int64_t rows,
                          int64_t columns) {
  const std::lock_guard<std::mutex> guard(shared_->mutex);
  const int64_t q = w.column_blocks, count = std::max<int64_t>(part.count, array_.cores);
  const auto row_bytes = static_cast<size_t>(q * kQ4BlockBytes);
  BufferView blocks = {w.view.data + static_cast<size_t>(part.first) * row_bytes,
                       static_cast<size_t>(part.count) * row_bytes, false};
  if (count > part.count) {
    // A lane's cores work side by side: row-blocks that only fill them up are zero.
    const BufferView all = shared_->scratch(in_, static_cast<size_t>(count) * row_bytes);
    std::memcpy(all.data, blocks.data, blocks.bytes);
    std::memset(all.data + blocks.bytes, 0, all.bytes - blocks.bytes);
    host_copy_bytes_ += all.bytes;
    in_->sync_to_device();
    blocks = {all.data, all.bytes, false};
  }
  const bool fills = count == part.count && rows == count * kQ4Rows && columns == q * kQ4Columns;
  const bool direct =
      fills && shared_->device->accepts_host_memory() && reinterpret_cast<uintptr_t>(out) % 4 == 0;
  const size_t bytes = tile_bytes(count, q);
  const BufferView target = direct ? BufferView{out, bytes, true} : shared_->scratch(out_, bytes);
  const DequantProblem problem{count, q};
  shared_->device->load(configuration_);
  const auto stream = streams_.get(problem, [&] {
    return shared_->device->prepare(build_dequant_stream(configuration_, problem));
  });
  const BufferView views[] = {blocks, target};
  const RunReport report = shared_->device->submit_prepared(*stream, views);
  if (direct) return report;
  out_->sync_from_device();
  copy_block(target.data, q * kQ4Columns, out, columns, rows, columns, 2);
  host_copy_bytes_ += static_cast<uint64_t>(rows * columns * 2);
  return report;
}

}  // namespace npu::ops
