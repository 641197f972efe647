// Attention of prompts (prefill_job.h): a core has kUnits units of eight query rows of one key
// head, and sees chunks of keys as two halves of K, then two halves of V. Arithmetic as in
// attention.cc: maxima rounded up to whole numbers, so that corrections are powers of two, and a
// denominator that sums the weights that multiply the values.
//
// npu2 multiplies through BFP16: q, k and, over eight positions each, weights and v share
// exponents; the denominators sum the weights rounded so. Values of positions that no row may see
// are taken as zero, so that they do not matter to the exponents. npu1 multiplies in bfloat16.
//
// Keys of the second half may move the maximum: then the weights of the first half are corrected,
// too, which is exact, and the sums take the correction of the chunk once, with the first values.
#include <stdint.h>

#include <aie_api/aie.hpp>

#include "fp32.h"
#include "kernel.h"
#include "prefill_attention_tiles.h"
#include "prefill_job.h"
#include "prefill_operand.h"
#include "softmax.h"

namespace {
namespace prefill_attention {

inline const Job& job_of(const int32_t* words) { return *reinterpret_cast<const Job*>(words); }
inline float* floats(int32_t* words) { return reinterpret_cast<float*>(words); }
inline const float* floats(const int32_t* words) { return reinterpret_cast<const float*>(words); }
inline int32_t weights_at(int32_t half, int32_t dim) {
  return half == 0 ? kWeights : scores_at(dim);
}

// Query position of row 0 of a unit of this core.
inline int32_t query_of(const Job& job, int32_t unit) {
  const int32_t core = job.column + kArrayColumns * job.row;
  return job.query_position + kRows * ((job.first_unit + kUnits * core + unit) / job.group);
}
inline Range visible(const Job& job, int32_t query) {
  return softmax::visible({job.keys_from, job.keys_end}, job.window, job.causal, query);
}

enum class Seen { kNone, kSome, kAll };

// How much of positions [key, key + positions) the rows of a unit see. kSome is safe.
inline Seen seen_by(const Job& job, int32_t query, int32_t key, int32_t positions) {
  const Range first = visible(job, query), last = visible(job, query + kRows - 1);
  if (last.end <= key || first.from >= key + positions) return Seen::kNone;
  const bool all = last.from <= key && first.from <= key && first.end >= key + positions &&
                   last.end >= key + positions;
  return all ? Seen::kAll : Seen::kSome;
}
inline Seen seen_by_core(const Job& job, int32_t key, int32_t positions) {
  Seen of_core = seen_by(job, query_of(job, 0), key, positions);
  for (int32_t unit = 1; unit < kUnits; ++unit) {
    const Seen of_unit = seen_by(job, query_of(job, unit), key, positions);
    if (of_unit != of_core) of_core = Seen::kSome;
  }
  return of_core;
}

// Of a half of V, the positions that some query may see, from its first.
inline Range existing(const Job& job, int32_t half, int32_t positions) {
  const int32_t key = job.key_position + half * positions;
  const int32_t from = job.keys_from - key, end = job.keys_end - key;
  return {from > 0 ? from : 0, end < positions ? end : positions};
}

inline void clear(float* store, int32_t* work, int32_t dim) {
  for (int32_t unit = 0; unit < kUnits; ++unit) {
    float* const sums = sums_of(store, work, unit, dim);
    for (int32_t i = 0; i < kRows * dim; i += 16) {
      aie::store_v(sums + i, aie::zeros<float, 16>());
    }
  }
  aie::store_v(floats(work) + kMaximum, powers::all(kNothing));
  aie::store_v(floats(work) + kSum, aie::zeros<float, 32>());
  aie::store_v(floats(work) + kCorrection, powers::all(1.0f));
}

#ifndef AIE_HOST_PREFILL_ATTENTION

// Moves the maxima to scores as large as `best`, and with them the denominators, the chunk's
// correction and, in the second half, the weights of the first.
inline void move_maximum(int32_t* work, const float* best, int32_t half, int32_t dim) {
  float* const maximum = floats(work) + kMaximum;
  const auto before = aie::load_v<32>(maximum);
  const auto now = aie::max(before, softmax::rounded_up(aie::load_v<32>(best)));
  const Floats factor = softmax::correction(before, now);
  aie::store_v(maximum, now);
  const auto sum = aie::load_v<32>(floats(work) + kSum);
  aie::store_v(floats(work) + kSum, powers::product(sum, factor));
  if (half == 0) {
    aie::store_v(floats(work) + kCorrection, factor);
    return;
  }
  const auto chunk = aie::load_v<32>(floats(work) + kCorrection);
  aie::store_v(floats(work) + kCorrection, powers::product(chunk, factor));
  alignas(64) float factors[kPadded];
  aie::store_v(factors, factor);
  bfloat16* weights = reinterpret_cast<bfloat16*>(work + kWeights);
  for (int32_t unit = 0; unit < kUnits; ++unit) {
    for (int32_t p = 0; p < half_positions(dim); p += 4) {  // half a tile: four rows
      Floats of_rows;
      for (unsigned i = 0; i < 4; ++i) {
        const int32_t row = unit * kRows + p % 8 + int32_t(i);
        of_rows.template insert<8>(i, aie::broadcast<float, 8>(factors[row]));
      }
      const Floats weight = Sums(aie::load_v<32>(weights)).template to_vector<float>();
      aie::store_v(weights, Sums(powers::product(weight, of_rows)).template to_vector<bfloat16>());
      weights += 32;
    }
  }
}

inline void score_half(const bfloat16* k, const uint8_t* first, const uint8_t* second,
                       const float* store, int32_t* work, const Job& job, int32_t scored, Seen seen,
                       int32_t dim) {
  const int32_t positions = half_positions(dim), size = positions * kRows, half = scored % 2;
  const int32_t key = job.key_position + scored * positions;
  float* const scores = floats(work) + scores_at(dim);
  alignas(64) float best[kPadded];
  aie::store_v(best, powers::all(kNothing));
  if (seen != Seen::kNone) multiply_keys(k, first, second, store, dim, scores);
  for (int32_t unit = 0; unit < kUnits && seen != Seen::kNone; ++unit) {
    alignas(32) int32_t from[kRows], end[kRows];
    for (int32_t row = 0; row < kRows; ++row) {
      const Range range = visible(job, query_of(job, unit) + row);
      from[row] = range.from, end[row] = range.end;
    }
    softmax::scale_block(scores + unit * size, positions, __builtin_bit_cast(float, job.scale), key,
                         from, end, best + unit * kRows);
  }
  move_maximum(work, best, half, dim);
  if (seen == Seen::kNone) return;
  bfloat16* const weights = reinterpret_cast<bfloat16*>(work + weights_at(half, dim));
  aie::store_v(best, aie::zeros<float, 32>());  // now the sums of the half
  for (int32_t unit = 0; unit < kUnits; ++unit) {
    const Sums total =
        softmax::weigh_block(scores + unit * size, floats(work) + kMaximum + unit * kRows,
                             positions, weights + unit * size);
    sum_weights(weights + unit * size, positions, total, best + unit * kRows);
  }
  const auto sum =
      aie::add(Sums(aie::load_v<32>(floats(work) + kSum)), Sums(aie::load_v<32>(best)));
  aie::store_v(floats(work) + kSum, sum.template to_vector<float>());
}

inline void add_half(const bfloat16* v, int32_t* work, int32_t half, bool seen, const Range& range,
                     int32_t dim, float* store) {
  const float* const correction = floats(work) + kCorrection;
  if (!seen) {
    if (half == 0) correct(correction, dim, store, work);
    return;
  }
  const bfloat16* weights = reinterpret_cast<const bfloat16*>(work + weights_at(half, dim));
  multiply_values(v, weights, half == 0 ? correction : nullptr, dim, range, store, work);
}

// 32 elements of a row of a unit's sums.
inline Floats row_part(const float* y, int32_t row, int32_t column, int32_t dim) {
  using attention_tiles::kColumns;
  Floats out;
  for (uint32_t i = 0; i < 32; i += kColumns) {
    const int32_t at = attention_tiles::place_of(row, column + int32_t(i), dim);
    out.template insert<kColumns>(i / kColumns, aie::load_v<kColumns>(y + at));
  }
  return out;
}

#else  // x86 `fast` builds, which have orders of their own

inline void pack(const bfloat16* q, float* store, int32_t unit, int32_t dim) {
  if constexpr (kNpu1) {
    auto* const queries = reinterpret_cast<int32_t*>(store + kCoreRows * kMaxDim);
    aie::host::prefill_pack(q, queries, unit, dim);
  } else {
    auto* const part = reinterpret_cast<uint8_t*>(store) + unit / kPartUnits * part_bytes(dim);
    aie::host::prefill_pack(q, reinterpret_cast<int32_t*>(part), unit % kPartUnits, dim);
  }
}
inline void score_half(const bfloat16* k, const uint8_t* first, const uint8_t* second,
                       const float* store, int32_t* work, const Job& job, int32_t scored, Seen seen,
                       int32_t dim) {
  const int32_t positions = half_positions(dim), half = scored % 2;
  const int32_t key = job.key_position + scored * positions;
  float* const correction = floats(work) + kCorrection;
  if (seen == Seen::kNone) {
    for (int32_t row = 0; half == 0 && row < kPadded; ++row) correction[row] = 1;
    return;
  }
  int32_t from[kCoreRows], end[kCoreRows];
  for (int32_t row = 0; seen == Seen::kSome && row < kCoreRows; ++row) {
    const Range range = visible(job, query_of(job, row / kRows) + row % kRows);
    from[row] = range.from - key, end[row] = range.end - key;
  }
  const auto* lower = reinterpret_cast<const int32_t*>(first);
  if constexpr (kNpu1) lower = reinterpret_cast<const int32_t*>(store + kCoreRows * kMaxDim);
  const auto* upper = reinterpret_cast<const int32_t*>(second);
  aie::host::prefill_score({{lower, upper},
                            floats(work) + kMaximum,
                            floats(work) + kSum,
                            correction,
                            reinterpret_cast<uint32_t*>(work + weights_at(half, dim)),
                            half == 0 ? nullptr : reinterpret_cast<uint32_t*>(work + kWeights)},
                           k, dim, __builtin_bit_cast(float, job.scale),
                           seen == Seen::kSome ? from : nullptr, end);
}
inline void add_half(const bfloat16* v, int32_t* work, int32_t half, bool seen, const Range& range,
                     int32_t dim, float* store) {
  const auto* weights = reinterpret_cast<const uint32_t*>(work + weights_at(half, dim));
  aie::host::prefill_add(v, seen ? weights : nullptr,
                         half == 0 ? floats(work) + kCorrection : nullptr, dim, range.from,
                         range.end, {store, floats(work) + kTailAt});
}
inline Floats row_part(const float* y, int32_t row, int32_t column, int32_t dim) {
  return aie::load_v<32>(y + row * dim + column);
}

#endif

// Piece number `piece`: the first `width` columns of rows, divided by their denominators.
inline void send(const float* store, const int32_t* work, int32_t piece, int32_t width, int32_t dim,
                 bfloat16* out) {
  // A core resets to floor, which would bias every result; the mode stays set afterwards.
  aie::set_rounding(aie::rounding_mode::conv_even);
  constexpr int32_t kElements = kPieceBytes / 2, kBlock = kRows * kSlice;
  constexpr int32_t kTileRows = __AIE_ARCH__ == 20 ? 4 : 8;
  static_assert(kElements == kBlock);
  const int32_t blocks = width / kSlice;  // of a unit
  for (int32_t i = 0; i < kElements; i += kSlice) {
    const int32_t block = (piece * kElements + i) / kBlock, row = i / kSlice % kRows;
    const int32_t unit = block / blocks, column = block % blocks * kSlice;
    const float sum = floats(work)[kSum + unit * kRows + row];
    const Floats factor = powers::all(sum == 0 ? 0 : 1 / sum);
    const Floats result =
        powers::product(row_part(sums_of(store, work, unit, dim), row, column, dim), factor);
    const auto rounded = Sums(result).template to_vector<bfloat16>();
    for (uint32_t eight = 0; eight < kSlice / 8; ++eight) {  // in the order of a product's tiles
      aie::store_v(out + tile_place(row, int32_t(eight), kTileRows),
                   rounded.template extract<8>(eight));
    }
  }
  npu::prefill_operand::from_tiles(out);
}

inline void take_query(const uint8_t* b, float* store, int32_t* job, int32_t dim) {
  aie::set_rounding(aie::rounding_mode::conv_even);  // of BFP16; stays set
  pack(reinterpret_cast<const bfloat16*>(b), store, job[kPacked]++, dim);
}

// npu2's queries wait where the sums will be.
inline void place_queries(uint8_t* first, uint8_t* second, float* store, int32_t* work,
                          int32_t* job, int32_t dim) {
  if constexpr (!kNpu1) {
    const auto* from = reinterpret_cast<const uint8_t*>(store);
    const int32_t bytes = part_bytes(dim);
    for (int32_t i = 0; i < bytes; i += 64) {
      aie::store_v(first + i, aie::load_v<64>(from + i));
      aie::store_v(second + i, aie::load_v<64>(from + bytes + i));
    }
  }
  clear(store, work, dim);
  job[kPlaced] = 1;
}

inline void take_keys(const bfloat16* k, const uint8_t* first, const uint8_t* second,
                      const float* store, int32_t* work, int32_t* job, int32_t dim) {
  aie::set_rounding(aie::rounding_mode::conv_even);  // of weights and BFP16
  const int32_t scored = job[kScored]++, positions = half_positions(dim);
  const int32_t key = job_of(job).key_position + scored * positions;
  const Seen seen = seen_by_core(job_of(job), key, positions);
  job[kSeen + scored % 2] = seen != Seen::kNone;
  score_half(k, first, second, store, work, job_of(job), scored, seen, dim);
}

inline void take_values(const bfloat16* v, float* store, int32_t* work, int32_t* job, int32_t dim) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  const int32_t added = job[kAdded]++, half = added % 2;
  const Range range = existing(job_of(job), added, half_positions(dim));
  add_half(v, work, half, job[kSeen + half] != 0, range, dim, store);
}

inline void send_piece(const float* store, int32_t* c, const int32_t* work, int32_t* job,
                       int32_t dim) {
  const int32_t width = job_of(job).dim;
  send(store, work, job[kSent]++, width, dim, reinterpret_cast<bfloat16*>(c));
}

#if NPU_DECLARATIONS
constexpr int32_t kFarthest = 1 << 28;  // positions and units lie within

bool near(int32_t x) { return x >= -kFarthest && x <= kFarthest; }

// Whether a header keeps the kernels inside their buffers and integers.
bool header_fits(const Job& job) {
  if (job.kind != int32_t(Kind::kAttention) || job.units != kUnits || job.group < 1) return false;
  if (job.head_dim != 64 && job.head_dim != 128 && job.head_dim != 256) return false;
  if (job.dim < kSlice || job.dim > job.head_dim || job.dim % kSlice != 0) return false;
  if (job.chunks < 0 || int64_t{job.chunks} * chunk_positions(job.head_dim) > kFarthest) {
    return false;
  }
  for (const int32_t at : {job.query_position, job.key_position, job.keys_from, job.keys_end}) {
    if (!near(at)) return false;
  }
  if (job.first_unit < 0 || job.first_unit > kFarthest / kRows) return false;
  if (job.row < 0 || job.row >= 16 || job.column < 0 || job.column >= kArrayColumns) return false;
  return job.window >= 0 && job.window <= kFarthest && job.causal >= 0 && job.causal <= 1;
}

[[noreturn]] void refuse(const char* kernel, const int32_t* words, const char* what) {
  const Job& job = job_of(words);
  npu::fail(npu::ErrorKind::kKernel,
            "[%s] %s: kind %d, units %d, head_dim %d, chunks %d, group %d, first_unit %d, row %d, "
            "column %d, query_position %d, key_position %d, keys %d to %d, window %d, causal %d; "
            "%d queries, %d halves of K, %d of V, %d pieces are done; send the job's header first, "
            "then what it announces",
            kernel, what, job.kind, job.units, job.head_dim, job.chunks, job.group, job.first_unit,
            job.row, job.column, job.query_position, job.key_position, job.keys_from, job.keys_end,
            job.window, job.causal, words[kPacked], words[kScored], words[kAdded], words[kSent]);
}

// `queries`: those that are packed by now.
void check_job(const char* kernel, const KernelArgument& job, const KernelArgument& dim,
               int32_t queries) {
  const auto* words = reinterpret_cast<const int32_t*>(job.data);
  if (!header_fits(job_of(words))) refuse(kernel, words, "the header does not fit the core");
  if (dim.value != job_of(words).head_dim) refuse(kernel, words, "head_dim is not the header's");
  if (queries >= 0 && words[kPacked] != queries) refuse(kernel, words, "queries are missing");
}

// query: b, store, job, head_dim.
void check_query(const char* kernel, const KernelArgument* operands) {
  check_job(kernel, operands[2], operands[3], -1);
  const auto* words = reinterpret_cast<const int32_t*>(operands[2].data);
  if (words[kPacked] < 0 || words[kPacked] >= kUnits) refuse(kernel, words, "queries are complete");
}

// place: b0, b1, store, work, job, head_dim.
void check_place(const char* kernel, const KernelArgument* operands) {
  check_job(kernel, operands[4], operands[5], kUnits);
  const auto* words = reinterpret_cast<const int32_t*>(operands[4].data);
  if (words[kPlaced] != 0) refuse(kernel, words, "queries are in their place");
}

// The operands from `job` on are job, units, head_dim.
void check_half(const char* kernel, const KernelArgument* operands, int job, bool values) {
  check_job(kernel, operands[job], operands[job + 2], kUnits);
  const auto* words = reinterpret_cast<const int32_t*>(operands[job].data);
  if (operands[job + 1].value != kUnits) refuse(kernel, words, "units are not the header's");
  if (words[kPlaced] != 1) refuse(kernel, words, "queries are not in their place");
  const int32_t scored = words[kScored], added = words[kAdded];
  if (scored < 0 || added < 0) refuse(kernel, words, "a counter is negative");
  const int32_t done = values ? added : scored, other = values ? scored : added;
  if (done >= 2 * job_of(words).chunks) refuse(kernel, words, "all chunks are done");
  if (other != done / 2 * 2 + (values ? 2 : 0)) refuse(kernel, words, "another half is due");
}
void check_scores(const char* kernel, const KernelArgument* operands) {
  check_half(kernel, operands, 5, false);
}
void check_values(const char* kernel, const KernelArgument* operands) {
  check_half(kernel, operands, 3, true);
}

// out: store, c, work, job, head_dim.
void check_out(const char* kernel, const KernelArgument* operands) {
  check_job(kernel, operands[3], operands[4], kUnits);
  const auto* words = reinterpret_cast<const int32_t*>(operands[3].data);
  if (words[kPlaced] != 1) refuse(kernel, words, "queries are not in their place");
  const int32_t pieces = kUnits * unit_pieces(job_of(words).dim);
  if (words[kSent] < 0 || words[kSent] >= pieces) refuse(kernel, words, "all pieces are sent");
}

// Not measured on hardware: instructions counted per slot, as in attention.cc; BFP16 products of
// 8x8x8 follow each other every mac_interval_bfp16 cycles. Per eight positions of 32 elements:
// moves that make four tiles, and on npu2 as many conversions in the same slot.
constexpr double kHalves = kNpu1 ? 2 : 1, kCall = 24;
constexpr double kConversion = kNpu1 ? 0 : 2, kMoves = 12 * 2 + 4 * kConversion;
constexpr double kSteps = kAPayload / 2 / (8 * 32);  // of a half
constexpr double kProduct = npu::fp32::kProductSlots, kSumSlots = npu::fp32::kAddSlots;

double products(const Timing& timing) {
  const double macs = 8 * 32 * kCoreRows;
  return kNpu1 ? macs / timing.mac_bf16_native
               : macs / timing.mac_bfp16 * timing.mac_interval_bfp16;
}

double score_cycles(const Timing& timing, const int64_t* integers) {
  const double loads = kHalves * (8 + 4 * 2 * kUnits) / 2;
  const double multiplied = kSteps * longest(longest(products(timing), kMoves), loads);
  // Per vector of 32 scores: scaled, compared with two bounds and the largest, loaded and stored;
  // then minus the maximum, the power, the sum, a transposition (attention.cc).
  constexpr double kScale = kProduct + 3 * 2 + 2 * kHalves + 2 * kHalves;
  constexpr double kPower = kNpu1 ? 8 * 2 + 3 * kProduct : 2;
  constexpr double kWeigh = 2 + kPower + 2 + 2 * kHalves;
  // Weights of the first half are corrected, npu2: summed as BFP16 (converted, and a product).
  const double kRest = kProduct + 2 * kHalves + (kNpu1 ? 0 : kConversion + 1);
  constexpr double kFold = 48, kMaxima = 128;  // per unit: reductions, ranges; per call
  const double vectors = kCoreRows * half_positions(int32_t(integers[1])) / 32.0;
  return kCall + multiplied + vectors * (kScale + kWeigh + kRest) + kUnits * kFold + kMaxima;
}

double value_cycles(const Timing& timing, const int64_t* integers) {
  // Sums are loaded and stored for every eight positions (npu1: once), 64 bytes at a time (32).
  const double vectors = kCoreRows * double(integers[1]) / 32;
  const double passes = kNpu1 ? 1 : half_positions(int32_t(integers[1])) / 8.0;
  const double stores = passes * vectors * 2 * kHalves;
  const double weights = kUnits * 2 * kHalves;  // npu2: converted, too
  const double moves = kNpu1 ? kMoves * kUnits : kMoves + kUnits * kConversion;
  const double step = longest(products(timing), moves + weights);
  // The correction of the sums, charged always: by halves, as each chunk has it once. npu2: two
  // differences and three products of bfloat16 (by_powers).
  constexpr double kCorrect = kNpu1 ? kProduct : 5;
  return kCall + longest(kSteps * step, stores) + vectors * kCorrect / 2;
}

// A unit: loads, moves, stores.
double query_cycles(const Timing&, const int64_t* integers) {
  const auto steps = double(integers[0]) / 32;
  return kCall + steps * longest(kMoves, 3 * 8 * kHalves);
}
// 64 bytes copied by a load and a store; then sums cleared, 64 bytes (npu1: 32) at a time.
double place_cycles(const Timing&, const int64_t* integers) {
  const double copies = kNpu1 ? 0 : kHeld * double(part_bytes(int32_t(integers[0]))) / 64;
  return kCall + copies + kCoreRows * double(integers[0]) / 16 * kHalves;
}
// A row of a slice takes a reciprocal.
constexpr int kSend =
    int(kPieceBytes / 64 * (kProduct + kSumSlots + 6 * kHalves) +
        kPieceBytes / 64 * npu::fp32::kScalar + kCall + npu::prefill_operand::kFromTilesCycles);

constexpr Operand kA = buffer("a", kAElements), kB = buffer("b", kBBytes);
constexpr Operand kFirst = buffer("b0", kBBytes), kSecond = buffer("b1", kBBytes);
constexpr Operand kStoreOperand = buffer("store", kStore), kWorkOperand = buffer("work", kWork);
constexpr Operand kJob = buffer("job", kJobWords), kUnitsOperand = integer("units", 1, kUnits);
constexpr Operand kDim = integer("head_dim", 64, kMaxDim, 64);
#endif

}  // namespace prefill_attention
}  // namespace

// The next unit of queries.
NPU_KERNEL void prefill_query(const uint8_t* b, float* store, int32_t* job, int32_t head_dim) {
  prefill_attention::take_query(b, store, job, head_dim);
}

// All queries are there: they go to b0 and b1 (npu1: they stay), and sums begin.
NPU_KERNEL void prefill_place(uint8_t* b0, uint8_t* b1, float* store, int32_t* work, int32_t* job,
                              int32_t head_dim) {
  prefill_attention::place_queries(b0, b1, store, work, job, head_dim);
}

// The next half of K: its weights in `work`.
NPU_KERNEL void prefill_scores(const bfloat16* a, const uint8_t* b0, const uint8_t* b1,
                               const float* store, int32_t* work, int32_t* job, int32_t units,
                               int32_t head_dim) {
  (void)units;
  prefill_attention::take_keys(a, b0, b1, store, work, job, head_dim);
}

// The next half of V: weighed and added to the sums.
NPU_KERNEL void prefill_values(const bfloat16* a, float* store, int32_t* work, int32_t* job,
                               int32_t units, int32_t head_dim) {
  (void)units;
  prefill_attention::take_values(a, store, work, job, head_dim);
}

// The next piece of results.
NPU_KERNEL void prefill_out(const float* store, int32_t* c, const int32_t* work, int32_t* job,
                            int32_t head_dim) {
  prefill_attention::send_piece(store, c, work, job, head_dim);
}

NPU_DECLARE(prefill_query, {.operands = {prefill_attention::kB, prefill_attention::kStoreOperand,
                                         prefill_attention::kJob, prefill_attention::kDim},
                            .cycles = prefill_attention::query_cycles,
                            .check = prefill_attention::check_query});
NPU_DECLARE(prefill_place,
            {.operands = {prefill_attention::kFirst, prefill_attention::kSecond,
                          prefill_attention::kStoreOperand, prefill_attention::kWorkOperand,
                          prefill_attention::kJob, prefill_attention::kDim},
             .cycles = prefill_attention::place_cycles,
             .check = prefill_attention::check_place});
NPU_DECLARE(prefill_scores,
            {.operands = {prefill_attention::kA, prefill_attention::kFirst,
                          prefill_attention::kSecond, prefill_attention::kStoreOperand,
                          prefill_attention::kWorkOperand, prefill_attention::kJob,
                          prefill_attention::kUnitsOperand, prefill_attention::kDim},
             .cycles = prefill_attention::score_cycles,
             .check = prefill_attention::check_scores});
NPU_DECLARE(prefill_values,
            {.operands = {prefill_attention::kA, prefill_attention::kStoreOperand,
                          prefill_attention::kWorkOperand, prefill_attention::kJob,
                          prefill_attention::kUnitsOperand, prefill_attention::kDim},
             .cycles = prefill_attention::value_cycles,
             .check = prefill_attention::check_values});
NPU_DECLARE(prefill_out,
            {.operands = {prefill_attention::kStoreOperand, buffer("c", npu::prefill::kPieceWords),
                          prefill_attention::kWorkOperand, prefill_attention::kJob,
                          prefill_attention::kDim},
             .cycles = fixed<prefill_attention::kSend>,
             .check = prefill_attention::check_out});
