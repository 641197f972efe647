// Products of the prefill configuration, prefill_job.h's kProduct: sums += A W, slice by slice of
// 32 columns, W from blocks of weights; then factors of rows, then results in bf16.
//
// A call of prefill_multiply expands its slice of the held blocks into `work` (prefill_weights.h),
// and multiplies as mmul_block.h does, k unrolled. The last slice of a range has two calls, between
// which the worker gives the blocks back. Sums are fp32 tiles [m / r][n / t][r][t], from
// row kStoreRows on in `work`; host `fast` builds keep them row-major.
#include <stdint.h>

#include <aie_api/aie.hpp>

#include "fp32.h"
#include "kernel.h"
#include "mmul_block.h"
#include "prefill_job.h"
#include "prefill_weights.h"

namespace {
namespace prefill_product {

using namespace npu::prefill;
using npu::blocks::Format;
using prefill_weights::kPairTile, prefill_weights::kRowBlock, prefill_weights::kSteps;

// Counters of a job: slices of its range of columns, pieces.
constexpr int32_t kSliceAt = kState, kPieceAt = kState + 1;
constexpr int32_t kPieceRows = kRows;

inline int32_t wide(const int32_t* words) { return reinterpret_cast<const Job*>(words)->wide; }

constexpr int32_t range_slices(int32_t format) { return range_columns(Format(format)) / kSlice; }
// Those of the objects of A that a range takes.
constexpr int32_t padded_slices(int32_t format, int32_t m) {
  const int32_t slices = kRowSlots / m;
  return (range_slices(format) + slices - 1) / slices * slices;
}

#if __AIE_ARCH__ >= 21
using Tile = BlockFloatTile;

// Bytes of a slice of W. The first lies behind the sums that `work` has for the most rows; the
// second, of fewer rows, in their place.
constexpr int32_t kTailBytes = (kRowSlots - kStoreRows) * kMaxBlocks * kRowBlock * 4;
constexpr int32_t kSliceBytes = kMaxBlocks * kRowBlock * kSlice / 8 * 9;
static_assert(kTailBytes % 64 == 0 && kSliceBytes <= kTailBytes);
static_assert(kTailBytes + kSliceBytes <= 4 * kWork);

inline uint8_t* slice_of_w(int32_t* work, int32_t number) {
  return reinterpret_cast<uint8_t*>(work) + (number == 0 ? kTailBytes : 0);
}
constexpr int32_t slice_bytes(int32_t m) { return m / kRows * kOperandBytes; }

// sums += A W of kSlices slices, one loop over 2x2 blocks: A [m/8][4], W pairs [n/16][4][2], blocks
// of 8x8.
template <int32_t kSlices>
inline void multiply(const uint8_t* __restrict a, int32_t* __restrict work, float* __restrict sums,
                     float* __restrict tail, int32_t m, int32_t blocks) {
  constexpr int32_t kC = 64;
  using Blocks = aie::block_vector_input_buffer_stream<bfp16ebs8, 64>;
  const auto at = [](const uint8_t* slice) {
    return Blocks(reinterpret_cast<const bfp16ebs8*>(slice));
  };
  const int32_t across = blocks * kRowBlock / 16, count = m / 16 * across;
  const int32_t in_store = kStoreRows / 16 * across;
  constexpr int32_t kLast = kSlices - 1;
  const uint8_t* const last_a = a + kLast * slice_bytes(m);
  Blocks a0[] = {at(a), at(last_a)}, a1[] = {at(a), at(last_a)};
  Blocks b[] = {at(slice_of_w(work, 0)), at(slice_of_w(work, kLast))};
  for (int32_t s = 0; s < kSlices; ++s) a1[s].seek(kSteps);
  int32_t column = 0;
  AIE_PREPARE_FOR_PIPELINING
  for (int32_t i = 0; i < count; ++i) {
    float* const lower = sums + 2 * across * kC;
    MmulBlock<Tile, BLayout::kColumnMajor, float> block;
    block.load(sums, lower, 0);
    for (int32_t s = 0; s < kSlices; ++s) {
      for (int32_t step = 0; step < kSteps; ++step) {
        const auto left = b[s].pop(), right = b[s].pop();
        block.multiply(a0[s].pop(), a1[s].pop(), left, right);
      }
    }
    block.store(sums, lower, 0);
    const bool last = ++column == across;  // selects, no branches: one loop body
    column = last ? 0 : column;
    for (int32_t s = 0; s < kSlices; ++s) {
      a0[s].seek(last ? kSteps : -kSteps);
      a1[s].seek(last ? kSteps : -kSteps);
      b[s].seek(last ? -2 * kSteps * across : 0);
    }
    sums = i + 1 == in_store ? tail : sums + (last ? 2 * kC + 2 * across * kC : 2 * kC);
  }
}
#else
using Tile = NativeTile<bfloat16, 4, 8, 4, 4>;

inline uint8_t* slice_of_w(int32_t* work, int32_t) { return reinterpret_cast<uint8_t*>(work); }
static_assert(kMaxBlocks * kRowBlock * kSlice * 2 <= 4 * kWork && kRowSlots <= kStoreRows);
constexpr int32_t slice_bytes(int32_t m) { return m * kSlice * 2; }

// The same for A [m/4][4][4][8] and W pairs [n/8][4][2][8][4].
inline void multiply(const bfloat16* __restrict a, int32_t* __restrict work, float* __restrict sums,
                     int32_t m, int32_t blocks) {
  constexpr int32_t kA = 4 * 8, kC = 4 * 4;
  const auto* const weights = reinterpret_cast<const bfloat16*>(work);
  const int32_t across = blocks * kRowBlock / 8;
  for (int32_t row = 0; row < m; row += 8, a += 2 * kSteps * kA) {
    const auto* b = weights;
    float* lower = sums + 2 * across * kC;
    for (int32_t column = 0; column < across; ++column) {
      MmulBlock<Tile, BLayout::kRowMajor, float> block;
      block.load(sums, lower, 0);
      for (int32_t step = 0; step < kSteps; ++step, b += kPairTile) {
        block.mac(a + step * kA, a + (kSteps + step) * kA, b, b + kPairTile / 2);
      }
      block.store(sums, lower, 0);
      sums += 2 * kC;
      lower += 2 * kC;
    }
    sums = lower;
  }
}
#endif

constexpr int32_t kTileRows = Tile::r, kTileElements = Tile::r * Tile::t;

inline void clear(float* sums, int32_t count) {
  for (int32_t i = 0; i < count; i += 16) aie::store_v(sums + i, aie::zeros<float, 16>());
}

inline float* tail_of(int32_t* work) { return reinterpret_cast<float*>(work); }
inline const float* tail_of(const int32_t* work) { return reinterpret_cast<const float*>(work); }
constexpr int32_t rows_in_store(int32_t m) { return m < kStoreRows ? m : kStoreRows; }

// The same columns of W as `slice` of A.
inline void expand(const uint8_t* const* b, uint8_t* to, int32_t blocks, int32_t format,
                   int32_t slice) {
  if (format == int32_t(Format::kBf16)) return prefill_weights::expand_bf16(b, slice, to);
  for (int32_t j = 0; j < blocks; ++j) {
    if (format == int32_t(Format::kQ4nx)) {
      prefill_weights::expand_q4nx(b[j], slice, to, j);
    } else {
      prefill_weights::expand_q8(b[j], slice, to, j);
    }
  }
}

// Slice `slice` of the range, whose A begins at `a`, times the same columns of W, which have been
// expanded. If `pairs`, npu2 waits for a slice that follows in the same object, and multiplies both
// at once.
inline void multiply_expanded(const bfloat16* a, float* sums, float* tail, int32_t* work, int32_t m,
                              int32_t blocks, int32_t format, int32_t slice, bool pairs) {
#if __AIE_ARCH__ >= 21
  const int32_t number = pairs ? slice % 2 : 0;
  const auto* const from = reinterpret_cast<const uint8_t*>(a) - number * slice_bytes(m);
  if (number == 1) {
    multiply<2>(from, work, sums, tail, m, blocks);
  } else if (!pairs || slice + 1 == range_slices(format)) {
    multiply<1>(from, work, sums, tail, m, blocks);
  }
#else
  (void)tail, (void)format, (void)slice, (void)pairs;
  multiply(a, work, sums, m, blocks);
#endif
}

inline void expand_slice(const uint8_t* const* b, int32_t* work, int32_t blocks, int32_t format,
                         int32_t slice, bool pairs) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  expand(b, slice_of_w(work, pairs ? slice % 2 : 0), blocks, format, slice);
}

constexpr bool in_pairs(int32_t m) { return Tile::kBlockFloat && m < kRowSlots; }

// Of the range's slices, the one that a call is for; counts it.
inline int32_t next_slice(int32_t* job, int32_t m, int32_t format) {
  const int32_t slice = job[kSliceAt], next = slice + 1;
  job[kSliceAt] = next == padded_slices(format, m) ? 0 : next;
  return slice;
}
// Where its A begins; slices per object are a power of two.
inline const bfloat16* slice_of_a(const bfloat16* a, int32_t slice, int32_t m) {
  return a + (slice & (kRowSlots / m - 1)) * slice_bytes(m) / 2;
}

// 32 lanes of a row of tiles: the factors of the rows that they belong to.
inline npu::fp32::Floats row_factors(const float* factors, int32_t first) {
  npu::fp32::Floats out;
  constexpr unsigned kT = Tile::t, kLines = 32 / kT;
  for (unsigned i = 0; i < kLines; ++i) {
    const float factor = factors[first + int32_t(i % Tile::r)];
    out.template insert<kT>(i, aie::broadcast<float, kT>(factor));
  }
  return out;
}

inline void scale(const bfloat16* __restrict a, float* __restrict store, float* __restrict tail,
                  int32_t m, int32_t blocks) {
  constexpr int32_t kParts = kTileElements > 32 ? 2 : 1;  // vectors that differ in their rows
  const int32_t n = blocks * kRowBlock, across = n * kTileRows;  // elements of a row of tiles
  for (int32_t row = 0; row < m; row += kTileRows) {
    float* const sums = sums_at(store, tail, row, n);
    const auto* factors = reinterpret_cast<const float*>(a + row / kRows * (kOperandBytes / 2));
    for (int32_t part = 0; part < kParts; ++part) {
      const auto f = row_factors(factors, row % kRows + part * kTileRows / kParts);
      for (int32_t i = part * 32; i < across; i += kParts * 32) {
        aie::store_v(sums + i, npu::fp32::product(aie::load_v<32>(sums + i), f));
      }
    }
  }
}

// Eight columns of a row of tiles, row by row, in bf16.
inline auto eight_columns(const float* sums) {
  constexpr unsigned kElements = kTileRows * 8;
  const auto tiles =
      aie::accum<accfloat, kElements>(aie::load_v<kElements>(sums)).template to_vector<bfloat16>();
  if constexpr (Tile::t == 8) {
    return tiles;
  } else {
    const auto zipped =
        aie::interleave_zip(tiles.template extract<16>(0), tiles.template extract<16>(1), 4);
    return aie::concat(zipped.first, zipped.second);
  }
}

// 8 rows of 32 columns as [8][32].
inline void piece(const float* __restrict store, const float* __restrict tail,
                  bfloat16* __restrict out, int32_t m, int32_t blocks, int32_t number) {
  constexpr int32_t kEight = kTileRows * 8, kTiles = kTileRows * kRowBlock;
  aie::set_rounding(aie::rounding_mode::conv_even);
  const int32_t parts = m / kPieceRows, first = number % parts * kPieceRows;
  const float* sums = sums_at(store, tail, first, blocks * kRowBlock) + number / parts * kTiles;
  for (int32_t row = 0; row < kPieceRows; row += kTileRows, sums += blocks * kTiles) {
    const auto left = aie::interleave_zip(eight_columns(sums), eight_columns(sums + kEight), 8);
    const auto right =
        aie::interleave_zip(eight_columns(sums + 2 * kEight), eight_columns(sums + 3 * kEight), 8);
    const auto upper = aie::interleave_zip(left.first, right.first, 16);
    const auto lower = aie::interleave_zip(left.second, right.second, 16);
    aie::store_v(out, upper.first);
    aie::store_v(out + kEight, upper.second);
    aie::store_v(out + 2 * kEight, lower.first);
    aie::store_v(out + 3 * kEight, lower.second);
    out += kTiles;
  }
}

// The last of every 8 rows in fp32: kWideLines lines of 32 columns, [row-block][m / 8].
inline void wide_piece(const float* store, const float* tail, float* out, int32_t m, int32_t blocks,
                       int32_t number) {
  const int32_t parts = m / kPieceRows;
  for (int32_t i = 0; i < kWideLines; ++i, out += kSlice) {
    const int32_t line = number * kWideLines + i;
    const int32_t tiles = line % parts * kPieceRows + kPieceRows - kTileRows;  // their first row
    const float* from = sums_at(store, tail, tiles, blocks * kRowBlock) +
                        line / parts * kRowBlock * kTileRows + (kTileRows - 1) * Tile::t;
    for (int32_t x = 0; x < kSlice; x += Tile::t, from += kTileElements) {
      aie::store_v(out + x, line < parts * blocks ? aie::load_v<Tile::t>(from)
                                                  : aie::zeros<float, Tile::t>());
    }
  }
}

#ifdef AIE_HOST_PREFILL_MULTIPLY  // x86 `fast` builds
// Operands beyond what those multiply in floating point: the code above, between sums in its order.
[[gnu::noinline]] inline void multiply_in_tiles(const bfloat16* a, const uint8_t* const* b,
                                                float* sums, int32_t* work, int32_t m,
                                                int32_t blocks, int32_t format, int32_t slice) {
  constexpr int32_t kR = Tile::r, kT = Tile::t;
  const int32_t n = blocks * kRowBlock;
  alignas(64) float tiles[kRowSlots * kMaxBlocks * kRowBlock];
  const auto each = [&](auto&& body) {
    for (int32_t i = 0; i < m; ++i) {
      float* const row = sums_at(sums, tail_of(work), i, n);
      for (int32_t j = 0; j < n; ++j) {
        body(row[j], tiles[i / kR * kR * n + j / kT * kTileElements + i % kR * kT + j % kT]);
      }
    }
  };
  each([](float& row, float& tile) { tile = row; });
  expand_slice(b, work, blocks, format, slice, false);
  multiply_expanded(a, tiles, tiles + kStoreRows * n, work, m, blocks, format, slice, false);
  each([](float& row, float& tile) { row = tile; });
}

inline void multiply_slice(const bfloat16* a, const uint8_t* const* b, float* store, int32_t* work,
                           int32_t m, int32_t blocks, int32_t format, int32_t slice) {
  const int32_t in_object = slice & (kRowSlots / m - 1);
  if (!AIE_HOST_PREFILL_MULTIPLY(a, b, store, tail_of(work), m, blocks, format, slice, in_object)) {
    multiply_in_tiles(slice_of_a(a, slice, m), b, store, work, m, blocks, format, slice);
  }
}
#else
inline void multiply_slice(const bfloat16* a, const uint8_t* const* b, float* store, int32_t* work,
                           int32_t m, int32_t blocks, int32_t format, int32_t slice) {
  expand_slice(b, work, blocks, format, slice, in_pairs(m));
  multiply_expanded(slice_of_a(a, slice, m), store, tail_of(work), work, m, blocks, format, slice,
                    in_pairs(m));
}
#endif

#if NPU_DECLARATIONS
constexpr Operand kA = buffer("a", kAElements, alignof(float));
constexpr Operand kSums = buffer("store", kStore), kJob = buffer("job", kJobWords);
constexpr Operand kWorkOperand = buffer("work", kWork);
constexpr Operand kM = integer("m", 16, kRowSlots, 16);
constexpr Operand kBlocks = integer("blocks", 1, kMaxBlocks);
constexpr Operand weight_block(const char* name) {
  return {.name = name, .buffer = true, .alignment = alignof(float), .size = kBBytes};
}

void check_m(const char* kernel, int64_t m) {
  if (m == 16 || m == 32 || m == 64 || m == kRowSlots) return;
  npu::fail(npu::ErrorKind::kKernel, "[%s] m = %lld, must be 16, 32, 64 or %d", kernel,
            static_cast<long long>(m), kRowSlots);
}
void check_counter(const char* kernel, const char* what, int32_t value, int64_t end) {
  if (value >= 0 && value < end) return;
  npu::fail(npu::ErrorKind::kKernel,
            "[%s] %s %d of the job does not exist, it has %lld; check the loops of the header",
            kernel, what, value, static_cast<long long>(end));
}

// multiply, last: a, b0, b1, store, work, job, m, blocks, format.
void check_multiply(const char* kernel, const KernelArgument* operands) {
  const int64_t m = operands[6].value, blocks = operands[7].value;
  check_m(kernel, m);
  if (operands[8].value == int64_t(Format::kBf16) && blocks != 1) {
    npu::fail(npu::ErrorKind::kKernel, "[%s] blocks = %lld; a core has one row-block of bfloat16",
              kernel, static_cast<long long>(blocks));
  }
  check_counter(kernel, "slice", reinterpret_cast<const int32_t*>(operands[5].data)[kSliceAt],
                padded_slices(int32_t(operands[8].value), int32_t(m)));
}
void check_last(const char* kernel, const KernelArgument& job, int64_t m, int64_t format) {
  const int32_t slice = reinterpret_cast<const int32_t*>(job.data)[kSliceAt];
  if (slice + 1 == padded_slices(int32_t(format), int32_t(m))) return;
  npu::fail(npu::ErrorKind::kKernel,
            "[%s] slice %d is not the last one of a range; check the loops of the header", kernel,
            slice);
}
void check_last_multiply(const char* kernel, const KernelArgument* operands) {
  check_multiply(kernel, operands);
  check_last(kernel, operands[5], operands[6].value, operands[8].value);
}
// finish: a, store, work, job, m, blocks, format. The worker's loops end ranges.
void check_finish(const char* kernel, const KernelArgument* operands) {
  const int64_t m = operands[4].value;
  check_m(kernel, m);
  check_last(kernel, operands[3], m, operands[6].value);
}
// piece: store, c, work, job, m, blocks.
void check_piece(const char* kernel, const KernelArgument* operands) {
  check_m(kernel, operands[4].value);
  const auto* words = reinterpret_cast<const int32_t*>(operands[3].data);
  check_counter(
      kernel, "piece", words[kPieceAt],
      product_pieces(int32_t(operands[4].value), int32_t(operands[5].value), wide(words)));
}

constexpr double kCall = 24;  // call, counters, loop set-up

// Not measured on hardware: the expansion (prefill_weights.h), then the multiplication, which has
// the costs of matmul_bfp16_f32_pipelined or matmul_bf16_f32; of a pair of slices, half. An odd
// range counts as single slices.
double expand_cycles(const Timing&, const int64_t* integers) {
  return double(integers[1]) * prefill_weights::cycles(Format(integers[2])) + kCall;
}
double expanded_cycles(const Timing& timing, const int64_t* integers) {
  const auto m = double(integers[0]), n = double(integers[1]) * kRowBlock;
  if constexpr (Tile::kBlockFloat) {
    const bool pairs = integers[0] < kRowSlots && range_slices(int32_t(integers[2])) % 2 == 0;
    const int32_t slices = pairs ? 2 : 1;
    return npu::perf::pipelined_cycles(timing, npu::perf::InputKind::kBfp16, 4, m, slices * kSlice,
                                       n) /
           slices;
  } else {
    return kCall + npu::perf::matmul_cycles(timing, kInput<Tile>, 4, false, m, kSlice, n);
  }
}
double multiply_cycles(const Timing& timing, const int64_t* integers) {
  return expand_cycles(timing, integers) + expanded_cycles(timing, integers);
}

// Vectors of 32 sums.
constexpr double vectors(const int64_t* integers) {
  return double(integers[0] * integers[1]) * kRowBlock / 32;
}
#endif

}  // namespace prefill_product
}  // namespace

// A product begins: sums of 0, counters of 0.
NPU_KERNEL void prefill_clear(float* store, int32_t* work, int32_t* job, int32_t m,
                              int32_t blocks) {
  using namespace prefill_product;
  const int32_t n = blocks * prefill_product::kRowBlock, first = rows_in_store(m);
  clear(store, first * n);
  clear(tail_of(work), (m - first) * n);
  job[kSliceAt] = 0;
  job[kPieceAt] = 0;
}

// The next slice of 32 columns of A and of the held blocks; of bfloat16, b0 and b1 are a
// row-block's.
NPU_KERNEL void prefill_multiply(const bfloat16* a, const uint8_t* b0, const uint8_t* b1,
                                 float* store, int32_t* work, int32_t* job, int32_t m,
                                 int32_t blocks, int32_t format) {
  using namespace prefill_product;
  const int32_t slice = next_slice(job, m, format);
  if (slice >= range_slices(format)) return;
  const uint8_t* const b[kMaxBlocks] = {b0, b1};
  multiply_slice(a, b, store, work, m, blocks, format, slice);
}

// The last slice of a range: what needs the blocks.
NPU_KERNEL void prefill_last(const bfloat16* a, const uint8_t* b0, const uint8_t* b1, float* store,
                             int32_t* work, const int32_t* job, int32_t m, int32_t blocks,
                             int32_t format) {
  using namespace prefill_product;
  const int32_t slice = job[kSliceAt];
  if (slice >= range_slices(format)) return;
  const uint8_t* const b[kMaxBlocks] = {b0, b1};
#ifdef AIE_HOST_PREFILL_MULTIPLY
  multiply_slice(a, b, store, work, m, blocks, format, slice);
#else
  (void)a, (void)store;
  expand_slice(b, work, blocks, format, slice, in_pairs(m));
#endif
}

// And what does not.
NPU_KERNEL void prefill_finish(const bfloat16* a, float* store, int32_t* work, int32_t* job,
                               int32_t m, int32_t blocks, int32_t format) {
  using namespace prefill_product;
  const int32_t slice = next_slice(job, m, format);
#ifdef AIE_HOST_PREFILL_MULTIPLY
  (void)a, (void)store, (void)work, (void)blocks, (void)slice;
#else
  if (slice >= range_slices(format)) return;
  multiply_expanded(slice_of_a(a, slice, m), store, tail_of(work), work, m, blocks, format, slice,
                    in_pairs(m));
#endif
}

// Rows times their factors.
NPU_KERNEL void prefill_scale(const bfloat16* a, float* store, int32_t* work, int32_t m,
                              int32_t blocks) {
  using namespace prefill_product;
#ifdef AIE_HOST_PREFILL_SCALE
  AIE_HOST_PREFILL_SCALE(a, store, tail_of(work), m, blocks);
#else
  scale(a, store, tail_of(work), m, blocks);
#endif
}

// The next piece of results.
NPU_KERNEL void prefill_piece(const float* store, int32_t* c, const int32_t* work, int32_t* job,
                              int32_t m, int32_t blocks) {
  using namespace prefill_product;
  const int32_t number = job[kPieceAt]++;
  auto* const narrow = reinterpret_cast<bfloat16*>(c);
  auto* const lines = reinterpret_cast<float*>(c);
#ifdef AIE_HOST_PREFILL_PIECE
  if (wide(job) == 1) {
    return AIE_HOST_PREFILL_WIDE_PIECE(store, tail_of(work), lines, m, blocks, number);
  }
  AIE_HOST_PREFILL_PIECE(store, tail_of(work), narrow, m, blocks, number);
#else
  if (wide(job) == 1) return wide_piece(store, tail_of(work), lines, m, blocks, number);
  piece(store, tail_of(work), narrow, m, blocks, number);
#endif
}

NPU_DECLARE(prefill_clear,
            {.operands = {prefill_product::kSums, prefill_product::kWorkOperand,
                          prefill_product::kJob, prefill_product::kM, prefill_product::kBlocks},
             .cycles = [](const Timing& timing, const int64_t* integers) {
               return prefill_product::kCall +
                      32 * 4 * prefill_product::vectors(integers) / timing.l1_port;
             }});
NPU_DECLARE(prefill_multiply,
            {.operands = {prefill_product::kA, prefill_product::weight_block("b0"),
                          prefill_product::weight_block("b1"), prefill_product::kSums,
                          prefill_product::kWorkOperand, prefill_product::kJob, prefill_product::kM,
                          prefill_product::kBlocks,
                          integer("format", 0, npu::blocks::kFormats - 1)},
             .cycles = prefill_product::multiply_cycles,
             .check = prefill_product::check_multiply,
             .product = true});
NPU_DECLARE(prefill_last, {.operands = {prefill_product::kA, prefill_product::weight_block("b0"),
                                        prefill_product::weight_block("b1"), prefill_product::kSums,
                                        prefill_product::kWorkOperand, prefill_product::kJob,
                                        prefill_product::kM, prefill_product::kBlocks,
                                        integer("format", 0, npu::blocks::kFormats - 1)},
                           .cycles = prefill_product::expand_cycles,
                           .check = prefill_product::check_last_multiply,
                           .product = true});
NPU_DECLARE(prefill_finish, {.operands = {prefill_product::kA, prefill_product::kSums,
                                          prefill_product::kWorkOperand, prefill_product::kJob,
                                          prefill_product::kM, prefill_product::kBlocks,
                                          integer("format", 0, npu::blocks::kFormats - 1)},
                             .cycles = prefill_product::expanded_cycles,
                             .check = prefill_product::check_finish,
                             .product = true});
NPU_DECLARE(prefill_scale, {.operands = {prefill_product::kA, prefill_product::kSums,
                                         prefill_product::kWorkOperand, prefill_product::kM,
                                         prefill_product::kBlocks},
                            .cycles = [](const Timing&, const int64_t* integers) {
                              // A product per vector, beside its load and store; 8 factors.
                              return prefill_product::kCall + double(integers[0]) +
                                     prefill_product::vectors(integers) * npu::fp32::kProductSlots;
                            }});
// Per piece 8 vectors of 32: loads, stores, and moves: a conversion and three shuffles.
NPU_DECLARE(prefill_piece,
            {.operands = {prefill_product::kSums, buffer("c", npu::prefill::kPieceWords),
                          prefill_product::kWorkOperand, prefill_product::kJob, prefill_product::kM,
                          prefill_product::kBlocks},
             .cycles = fixed<int(prefill_product::kCall + 8 * 4 * weights::kHalves)>,
             .check = prefill_product::check_piece});
