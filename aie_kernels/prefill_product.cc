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
#include "prefill_job.h"
#include "prefill_product_results.h"

namespace {
namespace prefill_product {

constexpr int32_t kPieceAt = kState + 1;  // counts pieces

inline int32_t wide(const int32_t* words) { return reinterpret_cast<const Job*>(words)->wide; }

#ifdef AIE_HOST_PREFILL_MULTIPLY  // x86 `fast` builds
// Operands beyond what those multiply in floating point: the code above, between sums in its order.
[[gnu::noinline]] inline void multiply_in_tiles(const bfloat16* a, const uint8_t* b0,
                                                const uint8_t* b1, float* sums, int32_t* work,
                                                int32_t m, int32_t blocks, int32_t format,
                                                int32_t slice) {
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
  aie::set_rounding(aie::rounding_mode::conv_even);
  prefill_weights::expand(b0, b1, blocks, format, slice, slice_of_w(work, 0));
  const auto* const from = reinterpret_cast<const uint8_t*>(a) + row_of(slice, m) * kRowBytes;
  multiply_expanded(from, tiles, tiles + kStoreRows * n, work, m, blocks, 0);
  each([](float& row, float& tile) { row = tile; });
}

inline void multiply_slice(const bfloat16* a, const uint8_t* b0, const uint8_t* b1, float* store,
                           int32_t* work, int32_t m, int32_t blocks, int32_t format,
                           int32_t slice) {
  if (slice >= range_slices(format)) return;
  const uint8_t* const b[kMaxBlocks] = {b0, b1};
  if (!AIE_HOST_PREFILL_MULTIPLY(a, b, store, tail_of(work), m, blocks, format, slice,
                                 row_of(slice, m) / m)) {
    multiply_in_tiles(a, b0, b1, store, work, m, blocks, format, slice);
  }
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

constexpr int32_t padded_slices(int32_t format, int32_t m) {
  const int32_t slices = kRowSlots / m;  // of an object of A
  return (range_slices(format) + slices - 1) / slices * slices;
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
// the costs of matmul_bfp16_f32_pipelined or matmul_bf16_f32, with what its loop takes to fill and
// to drain; of a pair of slices, half. An odd range counts as single slices.
double expand_cycles(const Timing&, const int64_t* integers) {
  return prefill_weights::cycles(Format(integers[2]), double(integers[1])) + kCall;
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
// A loop of stores: nothing fills or drains.
double clear_cycles(const Timing& timing, const int64_t* integers) {
  return kCall + 32 * 4 * vectors(integers) / timing.l1_port;
}
// Per vector a product, beside its load and store; as moves it has four factors to broadcast and to
// insert, and six parts of factors to round. A vector takes 7 + 40 (a product, with its factors
// split) + 6 + 4 + 3 from load to store.
double scale_cycles(const Timing&, const int64_t* integers) {
  constexpr double kMoves = weights::kHalves * (2 * kQuad + 6);
  return kCall + 60 + vectors(integers) * longest(npu::fp32::kProductSlots, kMoves);
}
// Per piece 8 vectors of 32: loads, stores, and moves: a conversion and three shuffles; one after
// the other of 8 rows (npu1: twice), 7 + 4 + 3 * 2 + 2 from load to store. Of rows in fp32 four
// lines, which take as long or twice that.
constexpr int kPieceCycles = int(kCall) + int(weights::kHalves) * (8 * 4 + 19);

// What multiply and last are given.
constexpr Operand kFormat = integer("format", 0, npu::blocks::kFormats - 1);
constexpr Declaration multiplying(double (*cycles)(const Timing&, const int64_t*),
                                  void (*check)(const char*, const KernelArgument*)) {
  return {.operands = {kA, weight_block("b0"), weight_block("b1"), kSums, kWorkOperand, kJob, kM,
                       kBlocks, kFormat},
          .cycles = cycles,
          .check = check,
          .product = true};
}
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

// The next slice of 32 columns of A and of the held blocks; of bfloat16, b0 and b1 are a
// row-block's.
NPU_KERNEL void prefill_multiply(const bfloat16* a, const uint8_t* b0, const uint8_t* b1,
                                 float* store, int32_t* work, int32_t* job, int32_t m,
                                 int32_t blocks, int32_t format) {
  using namespace prefill_product;
#ifdef AIE_HOST_PREFILL_MULTIPLY
  multiply_slice(a, b0, b1, store, work, m, blocks, format, count_slice(job, m, format));
#else
  expand_next(b0, b1, work, job, m, blocks, format);
  multiply_next(a, store, work, job, m, blocks, format);
#endif
}

// The last slice of a range: what needs the blocks.
NPU_KERNEL void prefill_last(const bfloat16* a, const uint8_t* b0, const uint8_t* b1, float* store,
                             int32_t* work, const int32_t* job, int32_t m, int32_t blocks,
                             int32_t format) {
  using namespace prefill_product;
#ifdef AIE_HOST_PREFILL_MULTIPLY
  multiply_slice(a, b0, b1, store, work, m, blocks, format, job[kSliceAt]);
#else
  (void)a, (void)store;
  expand_next(b0, b1, work, job, m, blocks, format);
#endif
}

// And what does not.
NPU_KERNEL void prefill_finish(const bfloat16* a, float* store, int32_t* work, int32_t* job,
                               int32_t m, int32_t blocks, int32_t format) {
  using namespace prefill_product;
#ifdef AIE_HOST_PREFILL_MULTIPLY
  (void)a, (void)store, (void)work, (void)blocks;
  count_slice(job, m, format);
#else
  multiply_next(a, store, work, job, m, blocks, format);
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
NPU_DECLARE(prefill_multiply, prefill_product::multiplying(prefill_product::multiply_cycles,
                                                           prefill_product::check_multiply));
NPU_DECLARE(prefill_last, prefill_product::multiplying(prefill_product::expand_cycles,
                                                       prefill_product::check_last_multiply));
NPU_DECLARE(prefill_finish,
            {.operands = {prefill_product::kA, prefill_product::kSums,
                          prefill_product::kWorkOperand, prefill_product::kJob, prefill_product::kM,
                          prefill_product::kBlocks, prefill_product::kFormat},
             .cycles = prefill_product::expanded_cycles,
             .check = prefill_product::check_finish,
             .product = true});
NPU_DECLARE(prefill_scale, {.operands = {prefill_product::kA, prefill_product::kSums,
                                         prefill_product::kWorkOperand, prefill_product::kM,
                                         prefill_product::kBlocks},
                            .cycles = prefill_product::scale_cycles});
NPU_DECLARE(prefill_piece,
            {.operands = {prefill_product::kSums, buffer("c", npu::prefill::kPieceWords),
                          prefill_product::kWorkOperand, prefill_product::kJob, prefill_product::kM,
                          prefill_product::kBlocks},
             .cycles = fixed<prefill_product::kPieceCycles>,
             .check = prefill_product::check_piece});
