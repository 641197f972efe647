// Dequantisation on a device (dequant.h).
#include "ops/dequant/dequant.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "error.h"
#include "formats/pack.h"
#include "ops/shim_commands.h"

namespace npu::ops {

namespace {

constexpr int64_t kTileBytes = q4nx::kRows * q4nx::kColumns * 2;  // of an expanded block

// Row-blocks that the array expands: a lane's cores work side by side.
int64_t padded_row_blocks(const DequantArray& array, int64_t count) {
  return std::max<int64_t>(count, array.cores);
}

std::vector<Submission> submissions(const Configuration& configuration, const Request& request) {
  constexpr int64_t kMaxSide = int64_t{1} << 31;
  const int64_t rows = q4nx::row_blocks(request.get("n", 1, kMaxSide));
  const DequantProblem problem{padded_row_blocks(DequantArray::of(configuration), rows),
                               q4nx::column_blocks(request.get("k", 1, kMaxSide))};
  std::vector<uint32_t> words = stream_words(configuration, [&](stream::Builder& builder) {
    append_dequant(builder, configuration, problem);
  });
  const int64_t blocks = problem.row_blocks * problem.column_blocks;
  return {{std::move(words),
           {ArgumentLayout::input("blocks", blocks * q4nx::kBlockBytes),
            ArgumentLayout::output("out", blocks * kTileBytes)}}};
}

}  // namespace

const OperationType kDequantType = {"dequant",
                                    "Q4NX blocks to a bfloat16 matrix",
                                    {{"n", "rows of W"}, {"k", "columns of W"}},
                                    {{"1B qkv", {{"n", 1536}, {"k", 1152}}}},
                                    &submissions};

Dequant::Dequant(std::shared_ptr<SharedDevice> device, Configuration configuration)
    : operation_(std::move(device), std::move(configuration)),
      array_(DequantArray::of(operation_.configuration())) {}

void Dequant::check(const Q4nxWeights& w, const RowBlocks& part) const {
  if (w.device != operation_.shared_device()) {
    fail(ErrorKind::kArgument,
         "[dequantize] W is bound to another device; bind it to the one that expands it");
  }
  const int64_t rows = q4nx::row_blocks(w.n);
  if (part.first < 0 || part.count < 1 || part.first > rows - part.count) {
    fail(ErrorKind::kArgument, "[dequantize] row-blocks %lld to %lld are out of range; W has %lld",
         static_cast<long long>(part.first), static_cast<long long>(part.first + part.count),
         static_cast<long long>(rows));
  }
}

RunReport Dequant::run(const Q4nxWeights& w, const RowBlocks& part, std::byte* out) {
  check(w, part);
  const int64_t rows = std::min(part.count * q4nx::kRows, w.n - part.first * q4nx::kRows);
  return expand(w, part, out, rows, w.k);
}

RunReport Dequant::run_padded(const Q4nxWeights& w, const RowBlocks& part, std::byte* out) {
  check(w, part);
  return expand(w, part, out, part.count * q4nx::kRows, w.column_blocks * q4nx::kColumns);
}

// The first `rows` and `columns` of the part's blocks.
RunReport Dequant::expand(const Q4nxWeights& w, const RowBlocks& part, std::byte* out, int64_t rows,
                          int64_t columns) {
  const auto guard = operation_.lock();
  Device& device = operation_.device();
  const int64_t q = w.column_blocks, count = padded_row_blocks(array_, part.count);
  const auto row_bytes = static_cast<size_t>(q * q4nx::kBlockBytes);
  BufferRef blocks = w.blocks.after(static_cast<size_t>(part.first) * row_bytes);
  blocks.bytes = static_cast<size_t>(part.count) * row_bytes;
  if (count > part.count) {
    // Row-blocks that only fill the lane's cores are zero.
    const BufferRef all = in_.get(device, static_cast<size_t>(count) * row_bytes, Access::kRead);
    std::memcpy(all.host(), blocks.host(), blocks.bytes);
    std::memset(all.host() + blocks.bytes, 0, all.bytes - blocks.bytes);
    operation_.count_copy(all.bytes);
    all.sync_to_device();
    blocks = all;
  }
  const bool fills =
      count == part.count && rows == count * q4nx::kRows && columns == q * q4nx::kColumns;
  const auto bytes = static_cast<size_t>(count * q * kTileBytes);
  const Wrapped direct = fills ? wrap_memory(device, out, bytes, Access::kWrite) : Wrapped{};
  const BufferRef target = direct ? direct.ref : out_.get(device, bytes, Access::kWrite);
  const DequantProblem problem{count, q};
  const auto entry = operation_.prepare(problem, [&](stream::Builder& builder) {
    append_dequant(builder, operation_.configuration(), problem);
    return std::monostate{};
  });
  const BufferRef arguments[] = {blocks, target};
  const RunReport report = operation_.submit(*entry, arguments);
  if (direct) return report;
  copy_block(target.host(), q * q4nx::kColumns, out, columns, rows, columns, 2);
  operation_.count_copy(static_cast<uint64_t>(rows * columns * 2));
  return report;
}

}  // namespace npu::ops
