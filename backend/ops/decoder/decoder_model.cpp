// Checks of a decoder's description (decoder_model.h).
#include "ops/decoder/decoder_model.h"

#include <algorithm>

#include "aie_kernels/vector_job.h"
#include "error.h"
#include "ops/block_weights.h"
#include "rounding.h"

namespace npu::ops {

namespace {

void check_range(const char* what, int64_t value, int64_t least, int64_t most, int64_t step) {
  if (value >= least && value <= most && value % step == 0) return;
  fail(ErrorKind::kShape, "[decoder] %s is %lld; the array runs %lld to %lld in steps of %lld",
       what, static_cast<long long>(value), static_cast<long long>(least),
       static_cast<long long>(most), static_cast<long long>(step));
}

void check_matrix(const char* what, const DecoderModel& model, const DecoderMatrix& matrix,
                  int64_t rows, int64_t columns) {
  int64_t found = 0;
  for (const DecoderSegment& segment : matrix) {
    found += segment.n;
    const auto region = static_cast<size_t>(segment.region);
    if (segment.k != columns || segment.region < 0 || region >= model.region_bytes.size() ||
        segment.offset < 0 || segment.offset % 4 != 0 ||
        segment.offset + segment.bytes() + segment.slack() > model.region_bytes[region]) {
      fail(ErrorKind::kShape,
           "[decoder] %s: a part of %lld x %lld at byte %lld of region %d does "
           "not fit; expected %lld columns inside the region, and %lld bytes behind them",
           what, static_cast<long long>(segment.n), static_cast<long long>(segment.k),
           static_cast<long long>(segment.offset), segment.region, static_cast<long long>(columns),
           static_cast<long long>(segment.slack()));
    }
    // Parts begin where row-blocks do, so that no padding lies between their results.
    if (&segment != &matrix.back() && segment.n % blocks::kRows != 0) {
      fail(ErrorKind::kShape,
           "[decoder] %s: a part has %lld rows; parts before the last need a "
           "multiple of 32",
           what, static_cast<long long>(segment.n));
    }
  }
  if (found == rows) return;
  fail(ErrorKind::kShape, "[decoder] %s has %lld rows, expected %lld", what,
       static_cast<long long>(found), static_cast<long long>(rows));
}

// What jobs keep in the store of the vector core at once (DecoderWorkspace).
void check_store(const DecoderShape& s) {
  constexpr int64_t kIn = vector::kInBytes;
  const auto objects = [](int64_t bytes) { return round_up(bytes, kIn); };
  const int64_t kv = s.kv_heads, d = s.head_dim;
  const int64_t turned = kv * attention::kTableBytes + 2 * s.heads * d + 4 * kv * d;
  const int64_t rotation =
      3 * kIn + objects(kv * attention::kTableBytes) + objects(2 * s.qkv_rows()) + turned;
  check_range("rotated heads, in bytes,", rotation, 0, vector::kDataBytes, 1);
  // Objects of results are whole.
  check_range("rotated heads, in bytes,", turned, 0, vector::kDataBytes, vector::kOutBytes);
  const int64_t statistics = objects(8 * int64_t{attention::kRows} * DecoderArray::kMaxParts * kv);
  check_range("combined heads, in bytes,", statistics + 2 * kIn + 2 * s.heads * d + kIn, 0,
              vector::kDataBytes, 1);
  check_range("elements of all heads", s.heads * s.dim, 16, int64_t{1} << 20, 16);
}

}  // namespace

void DecoderBytes::add(const DecoderBytes& other) {
  if (other.count() == 0) return;
  const bool empty = count() == 0;
  first = empty ? other.first : std::min(first, other.first);
  end = empty ? other.end : std::max(end, other.end);
}

DecoderArray DecoderArray::of(const Configuration& configuration) {
  DecoderArray array;
  array.generation = configuration.generation;
  const int columns = arch::device_geometry(configuration.generation).columns;
  array.columns = static_cast<int>(configuration.param("columns", 2, columns));
  array.pairs = static_cast<int>(configuration.param("pairs", 1, array.columns - 1));
  array.run_blocks = configuration.param("run_blocks", 1, 8);
  array.block_bytes = block_bytes_of(configuration);
  return array;
}

void DecoderModel::check() const {
  const DecoderShape& s = shape;
  constexpr int64_t kRow = int64_t{vector::kDataBytes} / 6;  // fp32 and bf16 of the same row
  check_range("width", s.width, 64, kRow / 256 * 256, 32);
  check_range("head of attention", s.head_dim, 64, 256, 64);
  if (s.head_dim == 192) check_range("head of attention", s.head_dim, 256, 256, 64);
  check_range("head", s.dim, 2, s.head_dim, 2);
  check_range("number of key heads", s.kv_heads, 1, 16, 1);
  check_range("number of query heads", s.heads, s.kv_heads, 8 * s.kv_heads, s.kv_heads);
  check_store(s);
  check_range("FFN width", s.ffn, 64, int64_t{vector::kDataBytes} / 2 - 512, 32);
  if (layers.empty()) fail(ErrorKind::kShape, "[decoder] the model has no layers");
  for (const DecoderLayer& layer : layers) {
    check_range("window", layer.window, 0, int64_t{1} << 30, 1);
    check_matrix("q, k, v", *this, layer.qkv, s.qkv_rows(), s.width);
    check_matrix("output", *this, layer.output, s.width, s.heads * s.dim);
    check_matrix("gate, up", *this, layer.gate_up, 2 * s.ffn, s.width);
    check_matrix("down", *this, layer.down, s.width, s.ffn);
  }
  check_matrix("head", *this, head, s.vocabulary, s.width);
}

}  // namespace npu::ops
