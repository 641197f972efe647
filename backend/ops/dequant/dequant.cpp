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

// Bytes of an expanded block.
int64_t tile_bytes(blocks::Format format) { return blocks::kRows * blocks::columns_of(format) * 2; }

// Row-blocks that the array expands: a lane's cores work side by side.
int64_t padded_row_blocks(const DequantArray& array, int64_t count) {
  return std::max<int64_t>(count, array.cores);
}

std::vector<Submission> submissions(const Configuration& configuration, const Request& request) {
  constexpr int64_t kMaxSide = int64_t{1} << 31;
  const int64_t rows = blocks::row_blocks(request.get("n", 1, kMaxSide));
  const DequantArray array = DequantArray::of(configuration);
  const DequantProblem problem{padded_row_blocks(array, rows),
                               blocks::column_blocks(request.get("k", 1, kMaxSide), array.format)};
  std::vector<uint32_t> words = stream_words(configuration, [&](stream::Builder& builder) {
    append_dequant(builder, configuration, problem);
  });
  const int64_t count = problem.row_blocks * problem.column_blocks;
  return {{std::move(words),
           {ArgumentLayout::input("blocks", count * blocks::bytes_of(array.format)),
            ArgumentLayout::output("out", count * tile_bytes(array.format))}}};
}

}  // namespace

const OperationType kDequantType = {"dequant",
                                    "blocks of weights to a bfloat16 matrix",
                                    {{"n", "rows of W"}, {"k", "columns of W"}},
                                    {{"1B qkv", {{"n", 1536}, {"k", 1152}}}},
                                    &submissions};

Dequant::Dequant(std::shared_ptr<SharedDevice> device, Configuration configuration)
    : operation_(std::move(device), std::move(configuration)),
      array_(DequantArray::of(operation_.configuration())) {}

void Dequant::check(const BlockWeights& w, const RowBlocks& part) const {
  if (w.device != operation_.shared_device()) {
    fail(ErrorKind::kArgument,
         "[dequantize] W is bound to another device; bind it to the one that expands it");
  }
  if (w.format != array_.format) {
    fail(ErrorKind::kArgument, "[dequantize] W is in %s blocks, this configuration expands %s",
         blocks::kFormatNames[static_cast<int>(w.format)],
         blocks::kFormatNames[static_cast<int>(array_.format)]);
  }
  const int64_t rows = blocks::row_blocks(w.n);
  if (part.first < 0 || part.count < 1 || part.first > rows - part.count) {
    fail(ErrorKind::kArgument, "[dequantize] row-blocks %lld to %lld are out of range; W has %lld",
         static_cast<long long>(part.first), static_cast<long long>(part.first + part.count),
         static_cast<long long>(rows));
  }
}

RunReport Dequant::run(const BlockWeights& w, const RowBlocks& part, std::byte* out) {
  check(w, part);
  const int64_t rows = std::min(part.count * blocks::kRows, w.n - part.first * blocks::kRows);
  return expand(w, part, out, rows, w.k);
}

RunReport Dequant::run_padded(const BlockWeights& w, const RowBlocks& part, std::byte* out) {
  check(w, part);
  return expand(w, part, out, part.count * blocks::kRows,
                w.column_blocks * blocks::columns_of(w.format));
}

// The first `rows` and `columns` of the part's blocks.
RunReport Dequant::expand(const BlockWeights& w, const RowBlocks& part, std::byte* out,
                          int64_t rows, int64_t columns) {
  const auto guard = operation_.lock();
  Device& device = operation_.device();
  const int64_t q = w.column_blocks, count = padded_row_blocks(array_, part.count);
  const int64_t width = q * blocks::columns_of(w.format);
  const auto row_bytes = static_cast<size_t>(q * blocks::bytes_of(w.format));
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
  const bool fills = count == part.count && rows == count * blocks::kRows && columns == width;
  const auto bytes = static_cast<size_t>(count * q * tile_bytes(w.format));
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
  copy_block(target.host(), width, out, columns, rows, columns, 2);
  operation_.count_copy(static_cast<uint64_t>(rows * columns * 2));
  return report;
}

}  // namespace npu::ops
