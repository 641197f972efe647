// Products of the prefill configuration, prefill_job.h's kProduct: sums += A W, slice by slice of
// 32 columns, W from blocks of weights; then factors of rows, then results in bf16.
//
// A range of columns: prefill_multiply takes an object of A after the other, expands slices of the
// held blocks into `work` (prefill_weights.h), kAtOnce when it comes to the first of them, and
// multiplies as mmul_block.h does, k unrolled. With many rows prefill_expand expands the last ones;
// the worker gives the blocks back, and prefill_finish multiplies by them. Sums are fp32 tiles
// [m / r][n / t][r][t], where sums_at() says; host `fast` builds keep those of 8 rows row-major.
#include <stdint.h>

#include <aie_api/aie.hpp>

#include "fp32.h"
#include "kernel.h"
#include "prefill_job.h"
#include "prefill_product_results.h"

namespace {
namespace prefill_product {

constexpr int32_t kPieceAt = kState + 1;  // counts pieces

inline int32_t wide(const int32_t* words) { return reinterpret_cast<const Job*>(words)->wide; }

#ifdef AIE_HOST_PREFILL_MULTIPLY  // x86 `fast` builds
// Operands beyond what those multiply in floating point: the code above, between sums in its order.
[[gnu::noinline]] inline void multiply_in_tiles(const bfloat16* a, float* sums, int32_t* work,
                                                int32_t slice, int32_t m, int32_t blocks) {
  constexpr int32_t kR = Tile::r, kT = Tile::t, kStoreEnd = kTailSums > 0 ? kStore : 0;
  const int32_t n = blocks * kRowBlock;
  alignas(64) float tiles[kSums];
  const auto each = [&](auto&& body) {
    for (int32_t i = 0; i < m; ++i) {
      float* const row = sums_at(sums, tail_of(work), i, n);
      for (int32_t j = 0; j < n; ++j) {
        float* const tile = sums_at(tiles, tiles + kStoreEnd, i / kR * kR, n);
        body(row[j], tile[j / kT * kTileElements + i % kR * kT + j % kT]);
      }
    }
  };
  each([](float& row, float& tile) { tile = row; });
  multiply_rows(a, tiles, tiles + kStoreEnd, work, {slice, slice + 1}, m, blocks);
  each([](float& row, float& tile) { row = tile; });
}

template <bool kSmall>
inline void expand_and_multiply(const bfloat16* a, const uint8_t* b0, const uint8_t* b1,
                                float* store, int32_t* work, Slices slices, int32_t m,
                                int32_t blocks, int32_t format) {
  const uint8_t* const b[kMaxBlocks] = {b0, b1};
  for (int32_t slice = slices.first; slice < slices.end; ++slice) {
    if (AIE_HOST_PREFILL_MULTIPLY(a, b, store, tail_of(work), m, blocks, format, slice,
                                  slice % object_slices(m))) {
      continue;
    }
    expand_slices<kSmall>(b0, b1, work, slice / kAtOnce * kAtOnce, blocks, format);
    multiply_in_tiles(a, store, work, slice, m, blocks);
  }
}

// A word of the job that only these builds use: whether the last slices are in the order of the
// code above, not kept in the host's.
constexpr int32_t kExpandedAt = kState + 2;

template <bool kSmall>
inline void expand_last(const uint8_t* b0, const uint8_t* b1, int32_t* work, int32_t* job,
                        int32_t blocks, int32_t format) {
  const uint8_t* const b[kMaxBlocks] = {b0, b1};
  const int32_t first = job[kSliceAt];
  bool kept = true;
  for (int32_t slice = first; slice < range_slices(format) && kept; ++slice) {
    kept = AIE_HOST_PREFILL_KEEP(b, blocks, format, slice, slice_of_w(work, slice, blocks));
  }
  if (!kept) expand_slices<kSmall>(b0, b1, work, first, blocks, format);
  job[kExpandedAt] = kept ? 0 : 1;
}

inline void multiply_expanded(const bfloat16* a, float* store, int32_t* work, const int32_t* job,
                              Slices slices, int32_t m, int32_t blocks) {
  for (int32_t slice = slices.first; slice < slices.end; ++slice) {
    uint8_t* const w = slice_of_w(work, slice, blocks);
    if (job[kExpandedAt] == 0) {
      if (AIE_HOST_PREFILL_FINISH(a, w, store, tail_of(work), m, blocks, slice - slices.first,
                                  slices.end - slices.first)) {
        continue;
      }
      AIE_HOST_PREFILL_EXPAND_KEPT(w, blocks);
    }
    multiply_in_tiles(a, store, work, slice, m, blocks);
  }
}
#else
template <bool kSmall>
inline void expand_last(const uint8_t* b0, const uint8_t* b1, int32_t* work, const int32_t* job,
                        int32_t blocks, int32_t format) {
  expand_slices<kSmall>(b0, b1, work, job[kSliceAt], blocks, format);
}
template <bool kSmall>
inline void expand_and_multiply(const bfloat16* a, const uint8_t* b0, const uint8_t* b1,
                                float* store, int32_t* work, Slices slices, int32_t m,
                                int32_t blocks, int32_t format) {
  NPU_ROLLED for (Slices some = slices; some.first < slices.end; some.first = some.end) {
    expand_slices<kSmall>(b0, b1, work, some.first, blocks, format);
    some.end = some.first + kAtOnce < slices.end ? some.first + kAtOnce : slices.end;
    multiply_slices(a, store, work, some, m, blocks);
  }
}
inline void multiply_expanded(const bfloat16* a, float* store, int32_t* work, const int32_t*,
                              Slices slices, int32_t m, int32_t blocks) {
  multiply_slices(a, store, work, slices, m, blocks);
}
#endif

#if NPU_DECLARATIONS
constexpr Operand kA = buffer("a", kAElements, alignof(float));
constexpr Operand kSums = buffer("store", kStore), kJob = job_operand();
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

void check_blocks(const char* kernel, int64_t format, int64_t blocks) {
  if (format != int64_t(Format::kBf16) || blocks == 1) return;
  npu::fail(npu::ErrorKind::kKernel, "[%s] blocks = %lld; a core has one row-block of bfloat16",
            kernel, static_cast<long long>(blocks));
}
// The object of A of its range; -1 for a slice that begins none.
int32_t object_of(const KernelArgument& job, int64_t m) {
  const int32_t slice = reinterpret_cast<const int32_t*>(job.data)[kSliceAt];
  const int32_t each = object_slices(int32_t(m));
  return slice % each == 0 ? slice / each : -1;
}
RangeParts parts_of(int64_t m, int64_t format) {
  return range_parts(Format(format), int32_t(m), kRowSlots);
}
// multiply: a, b0, b1, store, work, job, m, blocks, format.
void check_multiply(const char* kernel, const KernelArgument* operands) {
  const int64_t m = operands[6].value, format = operands[8].value;
  check_m(kernel, m);
  check_blocks(kernel, format, operands[7].value);
  check_counter(kernel, "object", object_of(operands[5], m), parts_of(m, format).objects());
}
void check_behind(const char* kernel, int32_t object, int64_t m, int64_t format, bool first) {
  const RangeParts parts = parts_of(m, format);
  const int32_t last = first ? parts.before : parts.objects() - 1;
  if (parts.behind > 0 && object >= parts.before && object <= last) return;
  npu::fail(npu::ErrorKind::kKernel,
            "[%s] object %d is none of a range's last %d of %d, which are multiplied by what was "
            "expanded before; check the loops of the header",
            kernel, object, parts.behind, parts.objects());
}
// expand: b0, b1, work, job, m, blocks, format.
void check_expand(const char* kernel, const KernelArgument* operands) {
  const int64_t m = operands[4].value, format = operands[6].value;
  check_m(kernel, m);
  check_blocks(kernel, format, operands[5].value);
  check_behind(kernel, object_of(operands[3], m), m, format, true);
}
// finish: a, store, work, job, m, blocks, format.
void check_finish(const char* kernel, const KernelArgument* operands) {
  const int64_t m = operands[4].value, format = operands[6].value;
  check_m(kernel, m);
  check_blocks(kernel, format, operands[5].value);
  check_behind(kernel, object_of(operands[3], m), m, format, false);
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

// Not measured on hardware. The slices that are expanded at once (prefill_weights.h).
double expand_cycles(const int64_t* integers, int32_t slices) {
  return prefill_weights::cycles(Format(integers[2]), double(integers[1]), slices) + kCall;
}
// Slices that are multiplied at once. npu2: one loop over blocks of 2x2 tiles, of which one follows
// the other after kPeriod cycles of the generated schedule, and of those, and to fill, to drain and
// to call, what pipelined GEMM kernels are measured to take (docs/timing.md). npu1 has the costs of
// matmul_bf16_f32.
constexpr double kPeriod = 18;
double slices_cycles(const Timing& timing, const int64_t* integers, int32_t slices) {
  const auto m = double(integers[0]), n = double(integers[1] * kRowBlock);
  if constexpr (Tile::kBlockFloat) {
    return slices * m * n / 256 * kPeriod * timing.mac_interval_bfp16 + timing.kernel_call;
  } else {
    return slices * npu::perf::matmul_cycles(timing, kInput<Tile>, 4, false, m, kSlice, n) + kCall;
  }
}
// The schedule of npu.vliw.prefill_multiply: a loop for each slice. `counted`: of these here.
Parts slices_parts(const int64_t* integers, double slices, double counted) {
  return {{{"prefill_multiply", {integers[0], kSlice, integers[1] * kRowBlock}, counted, slices}}};
}
constexpr int32_t last_slices(int32_t format) { return (range_slices(format) - 1) % kAtOnce + 1; }

// An object's share of those that are multiplied before the blocks are given back: of 128 rows not
// every slice expands, and with few rows the last object may have fewer slices.
struct Share {
  int32_t before, left;  // slices by kAtOnce, and those after them
  int32_t most;          // of `before` are multiplied at once
  int32_t objects;       // that share them
};
Share share_of(const int64_t* integers) {
  const auto m = int32_t(integers[0]), format = int32_t(integers[2]);
  const RangeParts parts = parts_of(m, format);
  const int32_t last = last_slices(format);
  return {range_slices(format) - last, parts.behind > 0 ? 0 : last,
          object_slices(m) < kAtOnce ? 1 : kAtOnce, parts.before};
}
double products_cycles(const Timing& timing, const int64_t* integers) {
  const Share share = share_of(integers);
  double cycles = share.before / share.most * slices_cycles(timing, integers, share.most);
  if (share.left > 0) cycles += slices_cycles(timing, integers, share.left);
  return cycles / share.objects;
}
double multiply_cycles(const Timing& timing, const int64_t* integers) {
  const Share share = share_of(integers);
  double expand = share.before / kAtOnce * expand_cycles(integers, kAtOnce);
  if (share.left > 0) expand += expand_cycles(integers, share.left);
  return kCall + expand / share.objects + products_cycles(timing, integers);
}
Parts multiply_parts(const Timing& timing, const int64_t* integers) {
  const Share share = share_of(integers);
  return slices_parts(integers, double(share.before + share.left) / share.objects,
                      products_cycles(timing, integers));
}
double expand_last_cycles(const Timing&, const int64_t* integers) {
  return expand_cycles(integers, last_slices(int32_t(integers[2])));
}
int32_t finished_slices(const int64_t* integers) {
  const int32_t last = last_slices(int32_t(integers[2])),
                most = object_slices(int32_t(integers[0]));
  return last < most ? last : most;
}
double finish_cycles(const Timing& timing, const int64_t* integers) {
  return kCall + slices_cycles(timing, integers, finished_slices(integers));
}
Parts finish_parts(const Timing& timing, const int64_t* integers) {
  const int32_t slices = finished_slices(integers);
  return slices_parts(integers, slices, slices_cycles(timing, integers, slices));
}

// Vectors of 32 sums.
constexpr double vectors(const int64_t* integers) {
  return double(integers[0] * integers[1]) * kRowBlock / 32;
}
// A loop of stores: nothing fills or drains. npu2 has one per row of tiles, whose place and loop
// take some 16 cycles.
double clear_cycles(const Timing& timing, const int64_t* integers) {
  const double loops = kTailSums > 0 ? double(integers[0]) / kTileRows : 0;
  return kCall + 16 * loops + 32 * 4 * vectors(integers) / timing.l1_port;
}
// Per vector a product, beside its load and store; as moves it has four factors to broadcast and to
// insert, and six parts of factors to round. A vector takes 7 + 40 (a product, with its factors
// split) + 6 + 4 + 3 from load to store.
double scale_cycles(const Timing&, const int64_t* integers) {
  constexpr double kMoves = weights::kHalves * (2 * kQuad + 6);
  const double tiles = double(integers[0]) / kTileRows;  // rows of them, a loop each
  return kCall + tiles * 60 + vectors(integers) * longest(npu::fp32::kProductSlots, kMoves);
}
// Per piece 8 vectors of 32: loads, stores, and moves: a conversion and three shuffles; one after
// the other of 8 rows (npu1: twice), 7 + 4 + 3 * 2 + 2 from load to store. Of rows in fp32 four
// lines, which take as long or twice that.
constexpr int kPieceCycles = int(kCall) + int(weights::kHalves) * (8 * 4 + 19);

template <bool kSmall>
constexpr Operand kFormat =
    kSmall ? integer("format", int32_t(Format::kQ4_0), int32_t(Format::kQ8_0))
           : integer("format", 0, int32_t(Format::kBf16));

constexpr Product kProduct = __AIE_ARCH__ >= 21 ? Product::kIntegers : Product::kFloats;

template <bool kSmall>
constexpr Declaration kMultiplyCall = {
    .operands = {kA, weight_block("b0"), weight_block("b1"), kSums, kWorkOperand, kJob, kM, kBlocks,
                 kFormat<kSmall>},
    .cycles = multiply_cycles,
    .check = check_multiply,
    .product = kProduct,
    .parts = multiply_parts};
template <bool kSmall>
constexpr Declaration kExpandCall = {.operands = {weight_block("b0"), weight_block("b1"),
                                                  kWorkOperand, kJob, kM, kBlocks, kFormat<kSmall>},
                                     .cycles = expand_last_cycles,
                                     .check = check_expand,
                                     .product = kProduct};
template <bool kSmall>
constexpr Declaration kFinishCall = {
    .operands = {kA, kSums, kWorkOperand, kJob, kM, kBlocks, kFormat<kSmall>},
    .cycles = finish_cycles,
    .check = check_finish,
    .product = kProduct,
    .parts = finish_parts};
#endif

}  // namespace prefill_product
}  // namespace

// A product begins: sums of 0, counters of 0.
NPU_KERNEL void prefill_clear(float* store, int32_t* work, int32_t* job, int32_t m,
                              int32_t blocks) {
  using namespace prefill_product;
  clear(store, tail_of(work), m, blocks * prefill_product::kRowBlock);
  job[kSliceAt] = 0;
  job[kPieceAt] = 0;
}

// The next object of A of a range, times what it needs of the held blocks; of bfloat16, b0 and b1
// are a row-block's. Of small blocks an object has the beginning of another one at its end.
NPU_KERNEL void prefill_multiply(const bfloat16* a, const uint8_t* b0, const uint8_t* b1,
                                 float* store, int32_t* work, int32_t* job, int32_t m,
                                 int32_t blocks, int32_t format) {
  using namespace prefill_product;
  const Slices slices = next_slices(job, m, format);
  expand_and_multiply<false>(a, b0, b1, store, work, slices, m, blocks, format);
}
NPU_KERNEL void prefill_small_multiply(const bfloat16* a, const uint8_t* b0, const uint8_t* b1,
                                       float* store, int32_t* work, int32_t* job, int32_t m,
                                       int32_t blocks, int32_t format) {
  using namespace prefill_product;
  const Slices slices = next_slices(job, m, format);
  expand_and_multiply<true>(a, b0, b1, store, work, slices, m, blocks, format);
}

// What the objects of a range that are left need of the blocks.
NPU_KERNEL void prefill_expand(const uint8_t* b0, const uint8_t* b1, int32_t* work, int32_t* job,
                               int32_t m, int32_t blocks, int32_t format) {
  (void)m;
  prefill_product::expand_last<false>(b0, b1, work, job, blocks, format);
}
NPU_KERNEL void prefill_small_expand(const uint8_t* b0, const uint8_t* b1, int32_t* work,
                                     int32_t* job, int32_t m, int32_t blocks, int32_t format) {
  (void)m;
  prefill_product::expand_last<true>(b0, b1, work, job, blocks, format);
}

// The next of them.
NPU_KERNEL void prefill_finish(const bfloat16* a, float* store, int32_t* work, int32_t* job,
                               int32_t m, int32_t blocks, int32_t format) {
  using namespace prefill_product;
  multiply_expanded(a, store, work, job, next_slices(job, m, format), m, blocks);
}
NPU_KERNEL void prefill_small_finish(const bfloat16* a, float* store, int32_t* work, int32_t* job,
                                     int32_t m, int32_t blocks, int32_t format) {
  using namespace prefill_product;
  multiply_expanded(a, store, work, job, next_slices(job, m, format), m, blocks);
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
#ifdef AIE_HOST_PREFILL_PIECE
  if (wide(job) == 1) {
    auto* const lines = reinterpret_cast<float*>(c);
    return AIE_HOST_PREFILL_WIDE_PIECE(store, tail_of(work), lines, m, blocks, number);
  }
  auto* const rounded = reinterpret_cast<bfloat16*>(c);
  AIE_HOST_PREFILL_PIECE(store, tail_of(work), rounded, m, blocks, number);
#else
  piece(store, tail_of(work), c, m, blocks, number, wide(job) == 1);
#endif
}

NPU_DECLARE(prefill_clear,
            {.operands = {prefill_product::kSums, prefill_product::kWorkOperand,
                          prefill_product::kJob, prefill_product::kM, prefill_product::kBlocks},
             .cycles = prefill_product::clear_cycles});
NPU_DECLARE(prefill_multiply, prefill_product::kMultiplyCall<false>);
NPU_DECLARE(prefill_small_multiply, prefill_product::kMultiplyCall<true>);
NPU_DECLARE(prefill_expand, prefill_product::kExpandCall<false>);
NPU_DECLARE(prefill_small_expand, prefill_product::kExpandCall<true>);
NPU_DECLARE(prefill_finish, prefill_product::kFinishCall<false>);
NPU_DECLARE(prefill_small_finish, prefill_product::kFinishCall<true>);
NPU_DECLARE(prefill_scale, {.operands = {prefill_product::kA, prefill_product::kSums,
                                         prefill_product::kWorkOperand, prefill_product::kM,
                                         prefill_product::kBlocks},
                            .cycles = prefill_product::scale_cycles});
NPU_DECLARE(prefill_piece, {.operands = {prefill_product::kSums,
                                         buffer("c", npu::prefill::kPieceWords).overwritten(),
                                         prefill_product::kWorkOperand, prefill_product::kJob,
                                         prefill_product::kM, prefill_product::kBlocks},
                            .cycles = fixed<prefill_product::kPieceCycles>,
                            .check = prefill_product::check_piece});
