// Attention of prompts (prefill_job.h): a core has kUnits units of eight query rows of one key
// head, and sees chunks of keys as two halves of K, then two halves of V. Arithmetic as in
// attention.cc: maxima rounded up to whole numbers, so that corrections are powers of two, and a
// denominator that sums the weights that multiply the values.
//
// npu2 multiplies through BFP16: q, k and, over eight positions each, weights and v share
// exponents; the denominators sum the weights rounded so. Values of positions that no row may see
// are taken as zero, so that they do not matter to the exponents. npu1 multiplies in bfloat16.
//
// Halves are packed, chunks weighed. npu2's maxima move once per chunk, npu1's with each half:
// where keys of the second one move them, weights of the first are corrected, too, which is exact.
#include <stdint.h>

#include <aie_api/aie.hpp>
#include <algorithm>

#include "fp32.h"
#include "kernel.h"
#include "prefill_attention_bf16.h"
#include "prefill_attention_bfp16.h"
#include "prefill_attention_tiles.h"
#include "prefill_job.h"
#include "prefill_operand.h"
#include "softmax.h"

namespace {
namespace prefill_attention {

// The highest bit of a unit's number, and what it may be shifted for a division.
constexpr int32_t kUnitBits = 25, kMaxGroup = 32;
#ifdef AIE_HOST_PREFILL_ATTENTION
constexpr bool kByRows = true;  // sums row by row, else by blocks of columns
#else
constexpr bool kByRows = false;
#endif

// Of every row the positions that it sees, in `work`.
inline void find_visible(const Job& job, int32_t* work) {
  // The first unit's number by the heads of a group: a division, bit by bit.
  const int32_t core = job.column + kArrayColumns * job.row;
  int32_t head = job.first_unit + kUnits * core, blocks = 0;
  NPU_SERIAL_FOR(int32_t bit = kUnitBits, bit >= 0, --bit) {
    const int32_t part = job.group << bit, rest = head - part, below = rest >> 31;
    head = rest + (part & below);
    blocks = 2 * blocks + 1 + below;
  }
  int32_t query = job.query_position + kRows * blocks;
  // From `back` before the query's position to `on` behind it.
  constexpr int32_t kFar = 1 << 29;
  const int32_t first = job.keys_from, end = job.keys_end, queries = job.queries_from;
  const int32_t back = job.window != 0 ? job.window - 1 : kFar, on = job.causal != 0 ? 1 : kFar;
  const int32_t queries_end = job.causal != 0 ? end : INT32_MAX;
  int32_t units = kNpu1 ? job.units : kUnits;  // known, two would be two copies
  NPU_ROLLED do {
    NPU_SERIAL_FOR(int32_t row = 0, row != kRows, ++row) {
      // Behind all keys, not masked: a core without other rows lets chunks pass.
      const int32_t exist_from = query + row < queries_end ? first : end;
      const int32_t from = std::max(exist_from, query + row - back);
      work[kBefore] = int32_t(0x80000000 - uint32_t(from));
      const int32_t seen = std::max(std::min(end, query + row + on) - from, 0);
      work[kLength] = (seen & where(query + row >= queries)) ^ INT32_MIN;
      ++work;
    }
    ++head;
    const bool last = head == job.group;
    head = last ? 0 : head;
    query += last ? kRows : 0;
  }
  while (--units != 0);
}

inline void clear(float* store, int32_t* work, int32_t dim) {
  float* y = store;
  NPU_SERIAL_FOR(int32_t left = kCoreRows * dim, left != 0, left -= 16) {
    aie::store_v(y, aie::zeros<float, 16>());
    y += 16;
    if (kTailAt != kWork) y = y == store + kStore ? floats(work) + kTailAt : y;
  }
  aie::store_v(floats(work) + kMaximum, powers::all(kNothing));
  aie::store_v(floats(work) + kSum, aie::zeros<float, 32>());
}

// Reciprocals of 16 denominators, rounded to nearest; 0 of 0. They are 0 or from 2^-2 to 2^60:
// 24 bits of the quotient are found one by one.
NPU_OUTLINED inline void invert(float* sums) {
  using Ints = aie::vector<int32_t, 16>;
  const auto all = [](int32_t x) { return aie::broadcast<int32_t, 16>(x); };
  constexpr int32_t kOne = 1 << 23;
  {
    const Ints bits = aie::load_v<16>(sums).template cast_to<int32_t>(), zero = all(0);
    const Ints divisor = aie::bit_or(aie::bit_and(bits, all(kOne - 1)), all(kOne));
    const Ints minus = aie::add(aie::bit_xor(divisor, all(-1)), all(1));
    Ints rest = all(kOne), quotient = zero;
    NPU_SERIAL_FOR(int32_t bit = 24, bit != 0, --bit) {
      const Ints twice = aie::add(rest, rest), less = aie::add(twice, minus);
      const auto over = aie::lt(less, zero);
      rest = aie::select(less, twice, over);
      quotient = aie::add(aie::add(quotient, quotient), aie::select(all(1), zero, over));
    }
    const auto up = aie::lt(divisor, aie::add(rest, rest));  // never half way
    quotient = aie::add(quotient, aie::select(zero, all(1), up));
    // Exponents: 2^47 / divisor is the quotient, and the sum divisor 2^(e - 150).
    const Ints exponent = aie::bit_xor(aie::bit_and(bits, all(0x7F800000)), all(-1));
    const Ints inverse = aie::add(aie::add(quotient, exponent), all((252 << 23) + 1));
    const auto some = aie::lt(zero, bits);
    aie::store_v(sums, aie::select(zero, inverse, some).template cast_to<float>());
  }
}

#ifdef AIE_HOST_PREFILL_ATTENTION  // x86 `fast` builds, which have orders of their own

inline void pack(const bfloat16* q, float* store, int32_t unit, int32_t dim) {
  if constexpr (kNpu1) {
    aie::host::prefill_pack(q, reinterpret_cast<int32_t*>(queries_of(store)), unit, dim);
  } else {
    auto* const part = reinterpret_cast<uint8_t*>(store) + unit / kPartUnits * part_bytes(dim);
    aie::host::prefill_pack(q, reinterpret_cast<int32_t*>(part), unit % kPartUnits, dim);
  }
}
inline void score_half(const bfloat16* k, const uint8_t* first, const uint8_t* second, uint8_t*,
                       const float* store, int32_t* work, int32_t* words, int32_t scored,
                       int32_t dim) {
  const int32_t positions = half_positions(dim), half = scored % 2;
  const int32_t key = job_of(words).key_position + scored * positions;
  float* const correction = floats(work) + kCorrection;
  words[kSeen + half] = seen_by_core(work, key, positions);
  if (words[kSeen + half] == 0) {
    for (int32_t row = 0; half == 0 && row < kPadded; ++row) correction[row] = 1;
    return;
  }
  int32_t from[kCoreRows], end[kCoreRows];
  bool all = true;
  for (int32_t row = 0; row < kCoreRows; ++row) {
    const Range keys = visible_of(work, row);
    from[row] = keys.from - key, end[row] = keys.end - key;
    all = all && from[row] <= 0 && end[row] >= positions;
  }
  const auto* lower = reinterpret_cast<const int32_t*>(first);
  if constexpr (kNpu1) lower = reinterpret_cast<const int32_t*>(queries_of(store));
  const auto* upper = reinterpret_cast<const int32_t*>(second);
  aie::host::prefill_score({{lower, upper},
                            floats(work) + kMaximum,
                            floats(work) + kSum,
                            correction,
                            reinterpret_cast<uint32_t*>(work + weights_at(half, dim)),
                            half == 0 ? nullptr : reinterpret_cast<uint32_t*>(work + kWeights)},
                           k, dim, __builtin_bit_cast(float, job_of(words).scale),
                           all ? nullptr : from, end);
}
inline void weigh_chunk(int32_t*, const int32_t*, int32_t, int32_t) {}
inline void add_half(bfloat16* v, uint8_t*, float* store, int32_t* work, int32_t* words,
                     int32_t added, int32_t dim) {
  const int32_t half = added % 2;
  const Range range = existing(job_of(words), added, half_positions(dim));
  const auto* weights = reinterpret_cast<const uint32_t*>(work + weights_at(half, dim));
  aie::host::prefill_add(v, words[kSeen + half] != 0 ? weights : nullptr,
                         half == 0 ? floats(work) + kCorrection : nullptr, dim, range.from,
                         range.end, {store, floats(work) + kTailAt});
}
inline void add_chunk(const uint8_t*, float*, int32_t*, int32_t) {}

// A block of 32 columns of a unit's rows, times their factors.
inline void put_block(const float* y, int32_t unit, int32_t* work, int32_t dim, bfloat16* out) {
  const float* const factors = floats(work) + kSum + unit * kRows;
  constexpr int32_t kTileRows = kNpu1 ? 4 : 8;
  for (int32_t row = 0; row < kRows; ++row) {
    const Floats sums = aie::load_v<32>(y + row * dim);
    const bool none = aie::host::all_zero(y + row * dim, kSlice * 4);  // the row sees no key
    const Floats result = none ? sums : powers::product(sums, powers::all(factors[row]));
    const auto rounded = Sums(result).template to_vector<bfloat16>();
    for (uint32_t eight = 0; eight < kSlice / 8; ++eight) {  // in the order of a product's tiles
      aie::store_v(out + tile_place(row, int32_t(eight), kTileRows),
                   rounded.template extract<8>(eight));
    }
  }
  npu::prefill_operand::from_tiles(out);
}

#endif

inline void take_query(const uint8_t* b, float* store, int32_t* job, int32_t dim) {
  // Of BFP16, weights and results, throughout a job: a core resets to floor.
  aie::set_rounding(aie::rounding_mode::conv_even);
  pack(reinterpret_cast<const bfloat16*>(b), store, job[kPacked]++, dim);
}

// npu2's queries wait where the sums will be.
inline void place_queries(uint8_t* first, uint8_t* second, float* store, int32_t* work,
                          int32_t* job, int32_t dim) {
  if constexpr (!kNpu1) {
    const auto* from = reinterpret_cast<const uint8_t*>(store);
    const int32_t bytes = part_bytes(dim);
    NPU_SERIAL_FOR(int32_t i = 0, i < bytes, i += 64) {
      aie::store_v(first + i, aie::load_v<64>(from + i));
      aie::store_v(second + i, aie::load_v<64>(from + bytes + i));
    }
  }
  clear(store, work, dim);
  find_visible(job_of(job), work);
  job[kPlaced] = 1;
}

// The next piece: a block of the first `dim` columns of a unit.
inline void send_piece(const float* store, int32_t* c, int32_t* work, int32_t* job, int32_t dim) {
  static_assert(kPieceBytes / 2 == kRows * kSlice);
  if (job[kSent]++ == 0) {
    for (int32_t row = 0; row < kCoreRows; row += 16) invert(floats(work) + kSum + row);
  }
  const int32_t unit = job[kUnitAt], column = job[kColumnAt];
  const int32_t place = kByRows ? column : column * kRows;
  put_block(sums_of(store, work, unit, dim) + place, unit, work, dim,
            reinterpret_cast<bfloat16*>(c));
  const bool last = column + kSlice == job_of(job).dim;
  job[kColumnAt] = last ? 0 : column + kSlice;
  job[kUnitAt] = last ? unit + 1 : unit;
}

#if NPU_DECLARATIONS
constexpr int32_t kFarthest = 1 << 28;  // positions and units lie within

bool near(int32_t x) { return x >= -kFarthest && x <= kFarthest; }

// Whether a header keeps the kernels inside their buffers and integers.
bool header_fits(const Job& job) {
  if (job.kind != int32_t(Kind::kAttention) || job.units != kUnits) return false;
  if (job.group < 1 || job.group > kMaxGroup) return false;
  if (job.head_dim != 64 && job.head_dim != 128 && job.head_dim != 256) return false;
  if (job.dim < kSlice || job.dim > job.head_dim || job.dim % kSlice != 0) return false;
  if (job.chunks < 0 || int64_t{job.chunks} * chunk_positions(job.head_dim) > kFarthest) {
    return false;
  }
  for (const int32_t at :
       {job.query_position, job.queries_from, job.key_position, job.keys_from, job.keys_end}) {
    if (!near(at)) return false;
  }
  if (job.first_unit < 0 || job.first_unit > kFarthest / kRows) return false;
  if (job.row < 0 || job.row >= 16 || job.column < 0 || job.column >= kArrayColumns) return false;
  return job.window >= 0 && job.window <= kFarthest && job.causal >= 0 && job.causal <= 1;
}

[[noreturn]] void refuse(const char* kernel, const int32_t* words, const char* what) {
  const Job& job = job_of(words);
  npu::fail(
      npu::ErrorKind::kKernel,
      "[%s] %s: kind %d, units %d, head_dim %d, chunks %d, group %d, first_unit %d, row %d, "
      "column %d, query_position %d, queries from %d, key_position %d, keys %d to %d, window %d, "
      "causal %d; %d queries, %d halves of K, %d of V, %d pieces are done; send the job's header "
      "first, "
      "then what it announces",
      kernel, what, job.kind, job.units, job.head_dim, job.chunks, job.group, job.first_unit,
      job.row, job.column, job.query_position, job.queries_from, job.key_position, job.keys_from,
      job.keys_end, job.window, job.causal, words[kPacked], words[kScored], words[kAdded],
      words[kSent]);
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

// The operands from `job` on are job, head_dim. `turn`: of a chunk's steps, two halves of K,
// weights, two halves of V, sums.
void check_step(const char* kernel, const KernelArgument* operands, int job, int32_t turn) {
  check_job(kernel, operands[job], operands[job + 1], kUnits);
  const auto* words = reinterpret_cast<const int32_t*>(operands[job].data);
  if (words[kPlaced] != 1) refuse(kernel, words, "queries are not in their place");
  const int32_t scored = words[kScored], added = words[kAdded];
  const int32_t weighed = words[kWeighed], summed = words[kSummed];
  if (std::min({scored, added, weighed, summed}) < 0)
    refuse(kernel, words, "a counter is negative");
  if (summed >= job_of(words).chunks) refuse(kernel, words, "all chunks are done");
  const int32_t steps[] = {scored - 2 * summed, weighed - summed, added - 2 * summed};
  const bool due[] = {steps[0] < 2 && steps[1] == 0 && steps[2] == 0,
                      steps[0] == 2 && steps[1] == 0 && steps[2] == 0,
                      steps[0] == 2 && steps[1] == 1 && steps[2] < 2,
                      steps[0] == 2 && steps[1] == 1 && steps[2] == 2};
  if (!due[turn]) refuse(kernel, words, "another step is due");
}
void check_scores(const char* kernel, const KernelArgument* operands) {
  check_step(kernel, operands, 6, 0);
}
void check_weigh(const char* kernel, const KernelArgument* operands) {
  check_step(kernel, operands, 1, 1);
}
void check_values(const char* kernel, const KernelArgument* operands) {
  check_step(kernel, operands, 4, 2);
}
void check_add(const char* kernel, const KernelArgument* operands) {
  check_step(kernel, operands, 3, 3);
}

// out: store, c, work, job, head_dim.
void check_out(const char* kernel, const KernelArgument* operands) {
  check_job(kernel, operands[3], operands[4], kUnits);
  const auto* words = reinterpret_cast<const int32_t*>(operands[3].data);
  if (words[kPlaced] != 1) refuse(kernel, words, "queries are not in their place");
  const int32_t sent = words[kSent], blocks = job_of(words).dim / kSlice;
  if (sent < 0 || sent >= kUnits * blocks) refuse(kernel, words, "all pieces are sent");
  if (words[kUnitAt] != sent / blocks || words[kColumnAt] != sent % blocks * kSlice) {
    refuse(kernel, words, "the piece's place is not that of its number");
  }
}

// Not measured on hardware: instructions counted per slot, as in attention.cc; BFP16 products of
// 8x8x8 follow each other every mac_interval_bfp16 cycles. Per eight positions of 32 elements:
// moves that make four tiles, and on npu2 as many conversions in the same slot.
constexpr double kHalves = kNpu1 ? 2 : 1, kCall = 24;
constexpr double kConversion = 2, kMoves = 12 * 2 + (kNpu1 ? 0 : 4 * kConversion);
constexpr double kProduct = npu::fp32::kProductSlots;
// Each entry of a pipelined loop, which fills and drains: a load, three moves, a multiplication and
// a conversion (7 + 3 x 2 + 6 + 4); an fp32 product, a chain of nine multiplications; by_powers(),
// five conversions, two differences, three products. An outlined function: jump, return.
constexpr double kInner = npu::fp32::kOutlined, kFill = 24, kProductFill = 9 * 6;
constexpr double kPowersFill = 5 * 4 + 5 * 6;

double product_cycles(const Timing& timing) {
  if constexpr (kNpu1) return 8 * 8 * 8 / timing.mac_bf16_native;
  return 8 * 8 * 8 / timing.mac_bfp16 * timing.mac_interval_bfp16;
}

// pack_tiles(), whose loop over columns is entered for every eight rows.
double tiles_cycles(double rows, double columns) {
  return kInner + rows / 8 * (kFill + columns / 32 * kMoves);
}

// npu1's fp32 products of n lanes by a function.
double products_cycles(double n) { return kInner + kFill + kProductFill + n / 32 * kProduct; }

double score_cycles(const Timing& timing, const int64_t* integers) {
  const auto dim = double(integers[0]);
  const double positions = half_positions(int32_t(integers[0]));
  // Two units at a time: of every round a tile of keys and two of queries, each two loads (npu1:
  // four), and two products; of eight positions sums converted, shuffled and stored.
  const double round = longest(2 * product_cycles(timing), 3 * 2 * kHalves / 2);
  constexpr double kEnds = kNpu1 ? 6 + 8 * kConversion + 16 + 16 : 2 + 3 * 8 + 12;
  return kCall + tiles_cycles(positions, dim) +
         kUnits / 2 * (kInner + positions / 8 * (kFill + kEnds + dim / 8 * round));
}

// A position of all rows at a time. First: scaled, compared with the bound and the largest, the
// position counted, loaded and stored. Maxima of 16 rows, twice, each result waited for. Then two
// positions, which wait: loaded, minus the maximum in four steps, the power, stored. Tiles.
double weigh_cycles(const Timing&, const int64_t* integers) {
  const double half = half_positions(int32_t(integers[0])), positions = 2 * half;
  constexpr double kMaxima = 2 * (kInner + 100), kBegin = 24;
  if constexpr (kNpu1) {
    // Positions wait: masked and compared; the fraction taken (a difference, a comparison, the
    // whole number added and taken away); two at a time the power put together, rounded, summed.
    // Of each half three products of its scores. Also a product of the denominators.
    constexpr double kMask = 7 + 2 + 2 + 6 + 2 + 2, kSplit = 7 + 4 + 6 + 4 + 6 + 4 + 3 * 6 + 4 + 6;
    constexpr double kPower = (7 + 2 + 2 + 4 + 6 + 4 + 4 + 6 + 16) / 2.0, kSumming = 30;
    const double lanes = half * kCoreRows;
    return kCall + kBegin + kMaxima + products_cycles(2 * lanes) + products_cycles(kCoreRows) +
           positions * (kMask + kSplit + kPower) +
           2 * (3 * products_cycles(lanes) + kSumming + tiles_cycles(half, kCoreRows));
  }
  constexpr double kScale = kProduct + 2 + 2 + 2 + 4;
  constexpr double kWeigh = (7 + 4 + 6 + 4 + 8 + 2 + 9) / 2.0;
  return kCall + kBegin + kFill + kProductFill + kMaxima + positions * (kScale + kWeigh) +
         tiles_cycles(positions, kCoreRows);
}

double value_cycles(const Timing& timing, const int64_t* integers) {
  constexpr double kRange = 30;  // what exists; npu2: all else, rarely, is cleared
  const auto dim = double(integers[0]);
  const double positions = half_positions(int32_t(integers[0]));
  const double packed = kCall + kRange + tiles_cycles(positions, dim);
  if constexpr (!kNpu1) return packed;
  // Tiles of y of a unit and eight positions: products, or y loaded (the values, too) and stored.
  const double tile = longest(product_cycles(timing), longest((8 + 4) / 2, 8));
  // Before one half of two, sums are corrected, always.
  constexpr double kSpread = kInner + 20;
  const double corrected = kSpread + kUnits * products_cycles(kRows * dim);
  return packed + positions / 8 * kUnits * (kFill + dim / 8 * tile) + corrected / 2;
}

// npu2. By 16 positions: of each unit the sums of weights and the correction,
// waited for; tiles of y, of which each is multiplied by powers (two
// differences and three products of 32 lanes, twice) and gets two products;
// then the denominators, waited for.
double add_cycles(const Timing& timing, const int64_t* integers) {
  if constexpr (kNpu1) return kCall;
  const auto dim = double(integers[0]);
  const double passes = half_positions(int32_t(integers[0])) / 8.0;
  constexpr double kTile = 2 * 5, kUnit = 40, kLoop = kFill + kPowersFill;
  constexpr double kSums = 3 * kInner + 16 + 7 + kProductFill + 4 + 2 * 2;
  const double tile = kTile + 2 * product_cycles(timing);
  return kCall + passes * (kUnits * (kUnit + dim / 8 * tile) + kLoop + kSums);
}

// A unit: tiles of [dim / 32][8 rows][32].
double query_cycles(const Timing&, const int64_t* integers) {
  return kCall + tiles_cycles(double(integers[0]) / 4, 32);
}
// Loops that wait: 64 bytes copied by a load and a store, twice; sums cleared; a division of 26
// bits; a row after the other.
double place_cycles(const Timing&, const int64_t* integers) {
  constexpr double kCopy = 24, kClear = 2 * kHalves, kBit = 8, kRow = 24;
  const double copies = kNpu1 ? 0 : double(part_bytes(int32_t(integers[0]))) / 64;
  return kCall + copies * kCopy + kCoreRows * double(integers[0]) / 16 * kClear +
         (kUnitBits + 1) * kBit + kCoreRows * kRow;
}
// Each result waited for: products of 32 lanes by a function and their rounding; tiles transposed,
// converted, stored. npu1: factors spread, products by a function; of 8 columns four loads,
// rounded, exchanged, stored. And a share of the reciprocals, 24 bits of seven operations.
double out_cycles(const Timing&, const int64_t* integers) {
  constexpr double kVectors = kPieceBytes / 64, kBit = 8 * 2, kInverse = kInner + 24 * kBit + 40;
  const double pieces = kUnits * unit_pieces(int32_t(integers[0]));
  const double inverses = kCoreRows / 16 * kInverse / pieces;
  if constexpr (kNpu1) {
    constexpr double kSpread = kInner + 20, kEight = 7 + 8 + 2 * 4 + 4 * 2 + 4;
    return kCall + inverses + kSpread + products_cycles(kRows * kSlice) + kSlice / 8 * kEight;
  }
  constexpr double kVector = 7 + 4 + kProductFill + 4 + 2, kTile = 7 + 4 + 3 * 4 + 2 + 2;
  return kCall + inverses + kVectors * (kInner + kVector) + kVectors / 2 * kTile;
}

constexpr Operand kA = buffer("a", kAElements), kB = buffer("b", kBBytes);
constexpr Operand kFirst = buffer("b0", kBBytes), kSecond = buffer("b1", kBBytes);
constexpr Operand kThird = buffer("b2", kBBytes);
constexpr Operand kStoreOperand = buffer("store", kStore), kWorkOperand = buffer("work", kWork);
constexpr Operand kJob = job_operand();
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

// The next half of K: its scores in `work`. b2 changes.
NPU_KERNEL void prefill_scores(const bfloat16* a, const uint8_t* b0, const uint8_t* b1, uint8_t* b2,
                               const float* store, int32_t* work, int32_t* job, int32_t head_dim) {
  using namespace prefill_attention;
  score_half(a, b0, b1, b2, store, work, job, job[kScored]++, head_dim);
}

// Both halves of a chunk's K have been there: its weights.
NPU_KERNEL void prefill_weigh(int32_t* work, int32_t* job, int32_t head_dim) {
  using namespace prefill_attention;
  weigh_chunk(work, job, job[kWeighed]++, head_dim);
}

// The next half of V: in b2; npu1: added to the sums. npu2: what does not exist becomes 0.
NPU_KERNEL void prefill_values(bfloat16* a, uint8_t* b2, float* store, int32_t* work, int32_t* job,
                               int32_t head_dim) {
  using namespace prefill_attention;
  add_half(a, b2, store, work, job, job[kAdded]++, head_dim);
}

// Both halves of a chunk's V have been there: npu2 adds them to the sums.
NPU_KERNEL void prefill_add(const uint8_t* b2, float* store, int32_t* work, int32_t* job,
                            int32_t head_dim) {
  using namespace prefill_attention;
  ++job[kSummed];
  add_chunk(b2, store, work, head_dim);
}

// The next piece of results.
NPU_KERNEL void prefill_out(const float* store, int32_t* c, int32_t* work, int32_t* job,
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
                          prefill_attention::kSecond, prefill_attention::kThird,
                          prefill_attention::kStoreOperand, prefill_attention::kWorkOperand,
                          prefill_attention::kJob, prefill_attention::kDim},
             .cycles = prefill_attention::score_cycles,
             .check = prefill_attention::check_scores});
NPU_DECLARE(prefill_weigh, {.operands = {prefill_attention::kWorkOperand, prefill_attention::kJob,
                                         prefill_attention::kDim},
                            .cycles = prefill_attention::weigh_cycles,
                            .check = prefill_attention::check_weigh});
NPU_DECLARE(prefill_values,
            {.operands = {prefill_attention::kA, prefill_attention::kThird,
                          prefill_attention::kStoreOperand, prefill_attention::kWorkOperand,
                          prefill_attention::kJob, prefill_attention::kDim},
             .cycles = prefill_attention::value_cycles,
             .check = prefill_attention::check_values});
NPU_DECLARE(prefill_add, {.operands = {prefill_attention::kThird, prefill_attention::kStoreOperand,
                                       prefill_attention::kWorkOperand, prefill_attention::kJob,
                                       prefill_attention::kDim},
                          .cycles = prefill_attention::add_cycles,
                          .check = prefill_attention::check_add});
NPU_DECLARE(prefill_out, {.operands = {prefill_attention::kStoreOperand,
                                       buffer("c", npu::prefill::kPieceWords).overwritten(),
                                       prefill_attention::kWorkOperand, prefill_attention::kJob,
                                       prefill_attention::kDim},
                          .cycles = prefill_attention::out_cycles,
                          .check = prefill_attention::check_out});
