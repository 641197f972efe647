// Attention by a pair of cores (attention.h). One scores chunk after chunk of keys: s = scale q k
// in fp32, the running maximum m and weights 2^(s - m) in bfloat16. The other one sums up values
// with these weights in fp32.
//
// m is rounded up to a whole number, so corrections 2^(m before - m) are powers of two, which
// multiply exactly: however often m moves, no error adds up. The denominator l sums the rounded
// weights, those that multiply the values. Scores that are not visible or -infinity count as
// absent; a row without any has m = kNothing and l = 0, its result is 0.
#include "attention.h"

#include <stdint.h>

#include <aie_api/aie.hpp>

#include "attention_tiles.h"
#include "exp.h"
#include "fp32.h"
#include "kernel.h"
#include "softmax.h"

namespace {
namespace attention {

using namespace npu::attention;
using powers::Floats, powers::Sums;

constexpr int32_t kStep = 16;  // rows whose maxima and sums are taken at once
constexpr int32_t kRowBlock = 8, kBlocks = kRows / kRowBlock;
constexpr int32_t kPartElements = kPartBytes / 2, kQueries = kRows * kMaxDim;
constexpr int32_t kScoreWords = kScoreBytes / 4, kOutWords = kOutBytes / 4;
// Words of an object of scores, after the weights.
constexpr int32_t kCorrectionAt = kWeightBytes / 4, kMaximumAt = kCorrectionAt + kRows;
constexpr int32_t kSumAt = kMaximumAt + kRows;
// Words of the states: elements of q taken, or kPacked; chunks scored; objects sent. Then per row.
constexpr int32_t kTaken = 0, kScored = 1, kSent = 0, kPacked = -1;
constexpr int32_t kMaximum = 16, kSum = kMaximum + kRows, kBest = kSum + kRows;
constexpr int32_t kFrom = kBest + kRows, kEnd = kFrom + kRows;  // positions that a row sees
constexpr int32_t kScratch = kEnd + kRows;  // scores of a chunk, or a block of q
static_assert(kScratch + kRows * 64 == kScoresState && kSum + kRows == kValuesState);

inline const Record& record_of(const int32_t* words) {
  return *reinterpret_cast<const Record*>(words);
}
inline float* floats(int32_t* words) { return reinterpret_cast<float*>(words); }
using softmax::Range;

// log2 of a head dimension: the cores have no division.
constexpr int32_t bits_of(int32_t dim) { return 6 + (dim >> 7); }
constexpr int32_t positions_in(int32_t dim) { return 4096 >> bits_of(dim); }
static_assert(1 << bits_of(64) == 64 && 1 << bits_of(128) == 128 && 1 << bits_of(256) == 256);
static_assert(positions_in(256) == positions_of(256));

inline void take_record(const bfloat16* part, int32_t* words, int32_t index) {
  const int32_t* table = reinterpret_cast<const int32_t*>(part);
  aie::store_v(words, aie::load_v<kRecordWords>(table + index * kRecordWords));
}

#ifndef AIE_HOST_ATTENTION

// Of every row the positions that it sees: state[kFrom] and state[kEnd].
inline void find_visible(const Record& r, int32_t* state) {
  int32_t query = r.query_position, left = r.group;
  NPU_SERIAL_FOR(int32_t row = 0, row < r.rows, ++row) {
    const Range range = softmax::visible({r.keys_from, r.keys_end}, r.window, r.causal, query);
    state[kFrom + row] = range.from, state[kEnd + row] = range.end;
    if (--left == 0) ++query, left = r.group;
  }
}

NPU_OUTLINED inline void copy(const bfloat16* from, int32_t count, bfloat16* to) {
  NPU_ROLLED for (int32_t i = 0; i < count; i += 32) {
    aie::store_v(to + i, aie::load_v<32>(from + i));
  }
}

// q, whole, into the order of the tiles.
inline void pack(bfloat16* q, const Record& r, int32_t* state) {
  bfloat16* block = reinterpret_cast<bfloat16*>(state + kScratch);
  const int32_t dim = r.head_dim, size = kRowBlock * dim;
  const int32_t end = ((r.rows + kRowBlock - 1) & -kRowBlock) * dim;
  NPU_ROLLED for (int32_t i = r.rows * dim; i < end; i += 32) {
    aie::store_v(q + i, aie::zeros<bfloat16, 32>());
  }
  NPU_ROLLED for (int32_t at = 0; at < end; at += size) {
    copy(q + at, size, block);
    attention_tiles::pack_block(block, dim, q + at);
  }
}

// Maximum and correction of all rows, from the largest scores of a chunk.
inline void move_maximum(int32_t* state, float* f, int32_t rows) {
  float* const maxima = floats(state) + kMaximum;
  NPU_SERIAL_FOR(int32_t i = 0, i < rows, i += kStep) {
    const auto before = aie::load_v<kStep>(maxima + i);
    const auto best = aie::load_v<kStep>(floats(state) + kBest + i);
    const auto maximum = aie::max(before, softmax::rounded_up(best));
    aie::store_v(f + kCorrectionAt + i, softmax::correction(before, maximum));
    aie::store_v(f + kMaximumAt + i, maximum);
    aie::store_v(maxima + i, maximum);
  }
}

// Sums of all rows: corrected, and with those of the chunk.
inline void add_sums(int32_t* state, float* f, int32_t rows) {
  float* const sums = floats(state) + kSum;
  NPU_SERIAL_FOR(int32_t i = 0, i < rows, i += kStep) {
    const aie::accum<accfloat, kStep> of_chunk(aie::load_v<kStep>(floats(state) + kBest + i));
    const auto sum =
        aie::mac(of_chunk, aie::load_v<kStep>(sums + i), aie::load_v<kStep>(f + kCorrectionAt + i))
            .template to_vector<float>();
    aie::store_v(sums + i, sum);
    aie::store_v(f + kSumAt + i, sum);
  }
}

static_assert(8 * kMaxDim * 2 <= kWeightBytes);  // which have the tiles of eight keys first

inline void score_chunk(const bfloat16* k, const bfloat16* q, float* f, const Record& r,
                        int32_t* state) {
  const int32_t dim = r.head_dim, positions = positions_in(dim);
  const int32_t rows = (r.rows + kRowBlock - 1) & -kRowBlock;
  float* const scores = floats(state) + kScratch;
  bfloat16* const weights = reinterpret_cast<bfloat16*>(f);
  NPU_ROLLED for (int32_t p = 0; p < positions; p += 8) {
    attention_tiles::pack_keys(k + p * dim, dim, weights);
    NPU_ROLLED for (int32_t row = 0; row < rows; row += 2 * kRowBlock) {
      float* const at = scores + row * positions + p * kRowBlock;
      attention_tiles::multiply_tiles(weights, q + row * dim, dim, row + kRowBlock < rows, at,
                                      at + positions * kRowBlock);
    }
  }
  const int32_t key = r.key_position + state[kScored] * positions;
  float* const best = floats(state) + kBest;
  NPU_ROLLED for (int32_t row = 0; row < rows; row += kRowBlock) {
    softmax::scale_block(scores + row * positions, positions, __builtin_bit_cast(float, r.scale),
                         key, state + kFrom + row, state + kEnd + row, best + row);
  }
  move_maximum(state, f, rows);
  // `best` has the sums of the chunk now.
  NPU_ROLLED for (int32_t row = 0; row < rows; row += kRowBlock) {
    softmax::fold(softmax::weigh_block(scores + row * positions, f + kMaximumAt + row, positions,
                                       weights + row * positions),
                  best + row);
  }
  add_sums(state, f, rows);
}

inline void add_values(const bfloat16* v, const float* f, float* y, const Record& r) {
  const int32_t dim = r.head_dim, positions = positions_in(dim);
  const bfloat16* weights = reinterpret_cast<const bfloat16*>(f);
  for (int32_t first = 0; first < r.rows; first += kRowBlock) {
    attention_tiles::multiply_values(v, weights + first * positions, f + kCorrectionAt + first, dim,
                                     positions, y + first * dim);
  }
}

using attention_tiles::kColumns, attention_tiles::place_of;

#else  // x86 `fast` builds, which have orders of their own

constexpr uint32_t kColumns = 8;
inline int32_t place_of(int32_t row, int32_t column, int32_t dim) { return row * dim + column; }
inline void find_visible(const Record&, int32_t*) {}
inline void copy(const bfloat16* from, int32_t count, bfloat16* to) {
  for (int32_t i = 0; i < count; i += 32) aie::store_v(to + i, aie::load_v<32>(from + i));
}
inline Range visible(const Record& r, int32_t row) {
  const int32_t query = r.query_position + row / r.group;
  return softmax::visible({r.keys_from, r.keys_end}, r.window, r.causal, query);
}

// Whether some row does not see all of a chunk.
inline bool is_masked(const Record& r, int32_t key, int32_t positions) {
  const Range first = visible(r, 0), last = visible(r, r.rows - 1);
  return key < last.from || key < first.from || key + positions > first.end ||
         key + positions > last.end;
}

inline void pack(bfloat16* q, const Record& r, int32_t*) { aie::host::pack_queries(q, r); }
inline void score_chunk(const bfloat16* k, const bfloat16* q, float* f, const Record& r,
                        int32_t* state) {
  const int32_t positions = positions_of(r.head_dim);
  const int32_t key = r.key_position + state[kScored] * positions;
  int32_t from[kRows], end[kRows];
  const bool masked = is_masked(r, key, positions);
  for (int32_t row = 0; masked && row < kRows; ++row) {
    const Range range = visible(r, row < r.rows ? row : r.rows - 1);
    from[row] = range.from - key, end[row] = range.end - key;
  }
  aie::host::attention_scores(k, q, f, r, masked, from, end, floats(state) + kMaximum,
                              floats(state) + kSum);
}
inline void add_values(const bfloat16* v, const float* f, float* y, const Record& r) {
  aie::host::attention_values(v, f, y, r);
}

#endif

// `count` elements of q at most.
inline void take_queries(const bfloat16* from, int32_t count, bfloat16* q, const int32_t* words,
                         int32_t* state) {
  const Record& r = record_of(words);
  const int32_t at = state[kTaken], left = r.rows * r.head_dim - at;
  const int32_t some = left < count ? left : count;
  copy(from, some, q + at);
  state[kTaken] = at + some;
}

// 32 elements of a row of y.
inline Floats row_part(const float* y, int32_t row, int32_t column, int32_t dim) {
  Floats out;
  for (uint32_t i = 0; i < 32; i += kColumns) {
    const int32_t place = place_of(row, column + int32_t(i), dim);
    out.template insert<kColumns>(i / kColumns, aie::load_v<kColumns>(y + place));
  }
  return out;
}

// The next kOutBytes of the rows divided by their denominators, zeros after the last one.
inline void send_rows(const float* y, const float* sums, const Record& r, int32_t part,
                      bfloat16* out) {
  // A core resets to floor, which would bias every result; the mode stays set afterwards.
  aie::set_rounding(aie::rounding_mode::conv_even);
  constexpr int32_t kElements = kOutBytes / 2;
  const int32_t dim = r.head_dim;
  Floats factor = aie::zeros<float, 32>();
  for (int32_t i = 0; i < kElements; i += 32) {
    const int32_t at = part * kElements + i, row = at >> bits_of(dim), column = at & (dim - 1);
    if (row >= r.rows) {
      aie::store_v(out + i, aie::zeros<bfloat16, 32>());
      continue;
    }
    if (i == 0 || column == 0) factor = powers::all(sums[row] == 0 ? 0 : 1 / sums[row]);
    const Floats result = powers::product(row_part(y, row, column, dim), factor);
    aie::store_v(out + i, Sums(result).template to_vector<bfloat16>());
  }
}

// The same for numerators in fp32, then the statistics.
inline void send_partial(const float* y, const float* statistics, const Record& r, int32_t part,
                         float* out) {
  constexpr int32_t kElements = kOutBytes / 4;
  const int32_t dim = r.head_dim;
  const bool last = part + 1 == r.out_objects;
  for (int32_t i = 0; i < kElements; i += 32) {
    const int32_t at = part * kElements + i, row = at >> bits_of(dim), column = at & (dim - 1);
    Floats run = aie::zeros<float, 32>();
    if (last && i < 2 * kRows) {
      run = aie::load_v<32>(statistics + i);
    } else if (!last && row < r.rows) {
      run = row_part(y, row, column, dim);
    }
    aie::store_v(out + i, run);
  }
  if (!last) return;
  for (int32_t row = r.rows; row < kRows; ++row) out[row] = kNothing, out[kRows + row] = 0;
}

#if NPU_DECLARATIONS
constexpr int32_t kFarthest = 1 << 30;  // positions lie within

// Whether a record keeps the kernels inside their buffers.
bool record_fits(const Record& r) {
  if (r.rows < 1 || r.rows > kRows || r.group < 1) return false;
  if (r.head_dim != 64 && r.head_dim != 128 && r.head_dim != 256) return false;
  if (r.objects != header_objects(r.rows, r.head_dim) - 1) return false;
  const int64_t keys = int64_t{r.chunks} * positions_of(r.head_dim);
  if (r.chunks < 0 || keys > kFarthest) return false;
  for (const int32_t position : {r.query_position, r.key_position, r.keys_from, r.keys_end}) {
    if (position < -kFarthest || position > kFarthest) return false;
  }
  if (r.window < 0 || r.window > kFarthest || r.causal < 0 || r.causal > 1) return false;
  const auto output = Output(r.output);
  if (output != Output::kRows && output != Output::kPartial) return false;
  return r.out_objects >= 0 && r.out_objects <= out_objects_of(r.rows, r.head_dim, output);
}

[[noreturn]] void refuse(const char* kernel, const Record& r, const char* what) {
  npu::fail(npu::ErrorKind::kKernel,
            "[%s] %s: rows %d, group %d, head_dim %d, objects %d, chunks %d, query_position %d, "
            "key_position %d, keys %d to %d, window %d, causal %d, output %d, out_objects %d; send "
            "a header with the job's record first",
            kernel, what, r.rows, r.group, r.head_dim, r.objects, r.chunks, r.query_position,
            r.key_position, r.keys_from, r.keys_end, r.window, r.causal, r.output, r.out_objects);
}

void check_record(const char* kernel, const Record& r) {
  if (!record_fits(r)) refuse(kernel, r, "the record does not fit the core's buffers");
}

// begin: operands part, q or y, words, state, index.
void check_begin(const char* kernel, const KernelArgument* operands) {
  const auto* table = reinterpret_cast<const int32_t*>(operands[0].data);
  check_record(kernel, record_of(table + operands[4].value * kRecordWords));
}

// more: part, q, words, state.
void check_more(const char* kernel, const KernelArgument* operands) {
  const Record& r = record_of(reinterpret_cast<const int32_t*>(operands[2].data));
  check_record(kernel, r);
  const int32_t taken = reinterpret_cast<const int32_t*>(operands[3].data)[kTaken];
  if (taken < 0 || taken % 32 != 0 || taken >= r.rows * r.head_dim) {
    refuse(kernel, r, "q is complete");
  }
}

void check_chunk(const char* kernel, const Record& r, int64_t rows, int64_t dim) {
  check_record(kernel, r);
  if (rows != r.rows || dim != r.head_dim)
    refuse(kernel, r, "rows or head_dim are not the record's");
}

// pack: q, words, state, rows, head_dim.
void check_pack(const char* kernel, const KernelArgument* operands) {
  const Record& r = record_of(reinterpret_cast<const int32_t*>(operands[1].data));
  check_chunk(kernel, r, operands[3].value, operands[4].value);
  const auto* state = reinterpret_cast<const int32_t*>(operands[2].data);
  if (state[kTaken] != r.rows * r.head_dim) refuse(kernel, r, "q is not complete");
}

// scores: k, q, f, words, state, rows, head_dim.
void check_scores(const char* kernel, const KernelArgument* operands) {
  const Record& r = record_of(reinterpret_cast<const int32_t*>(operands[3].data));
  check_chunk(kernel, r, operands[5].value, operands[6].value);
  const auto* state = reinterpret_cast<const int32_t*>(operands[4].data);
  if (state[kTaken] != kPacked) refuse(kernel, r, "q is not packed");
  if (state[kScored] < 0 || state[kScored] >= r.chunks) refuse(kernel, r, "all chunks are scored");
}

// chunk: v, f, y, words, state, rows, head_dim.
void check_values(const char* kernel, const KernelArgument* operands) {
  const Record& r = record_of(reinterpret_cast<const int32_t*>(operands[3].data));
  check_chunk(kernel, r, operands[5].value, operands[6].value);
}

// out: y, out, words, state, output.
void check_out(const char* kernel, const KernelArgument* operands) {
  const Record& r = record_of(reinterpret_cast<const int32_t*>(operands[2].data));
  check_record(kernel, r);
  const int32_t sent = reinterpret_cast<const int32_t*>(operands[3].data)[kSent];
  if (sent < 0 || sent >= r.out_objects) refuse(kernel, r, "all objects are sent");
  if (operands[4].value != r.output) refuse(kernel, r, "output is not the record's");
}

// Not measured on hardware: instructions counted per slot. Loads have two slots of 64 bytes (npu1:
// of 32), stores one; a move is a shuffle of 512 bits; products and sums of fp32 as in fp32.h.
constexpr double kHalves = __AIE_ARCH__ == 20 ? 2 : 1, kCall = 24;
constexpr double kProduct = npu::fp32::kProductSlots;
constexpr double kMoves = 12 * 2;  // per eight positions of 32 elements, attention_tiles.h
constexpr double kInner = 20;      // an outlined function: jump and return, registers kept
// Each entry of a pipelined loop, which fills and drains: a load, three moves, a multiplication and
// a conversion (7 + 3 x 2 + 6 + 4); an fp32 product, a chain of nine multiplications.
constexpr double kFill = 24, kProductFill = 9 * 6;
constexpr double kSteps = kPartElements / (8 * 32);  // of a chunk: eight positions, 32 elements

double blocks_of(int64_t rows) { return double((rows + kRowBlock - 1) / kRowBlock); }

// The scores of a chunk, not scaled: eight positions at a time.
double multiplied_keys(const Timing& timing, double blocks, double dim) {
  const double pairs = double((int64_t(blocks) + 1) / 2), loads = kHalves * 8 / 2;
  const double tiles = kInner + kFill + dim / 32 * longest(kMoves, 8 * kHalves);
  // Of every round of the loop two tiles of keys and of q, four multiplications of 4x8x8.
  const double round = longest(4 * 4 * 8 * 8 / timing.mac_bf16_native, loads);
  constexpr double kEnds = 32;  // sums set to zero, converted, added, stored
  return kSteps * 32 / dim * (tiles + pairs * (kInner + kFill + kEnds) + blocks * dim / 16 * round);
}

// Per vector of 32 scores. First: scaled, compared with the two bounds and with the largest (two
// operations of 512 bits each), loaded and stored between. Then: minus the maximum, the power, the
// sum, and a transposition.
constexpr double kBounds = 2 * 2, kScale = kProduct + kBounds + 2 + 2 * kHalves + 2 * kHalves;
// Of the power: two conversions; npu1: eight sums or choices of 512 bits, three products.
constexpr bool kNpu1 = __AIE_ARCH__ == 20;
constexpr double kPower = kNpu1 ? 8 * 2 + 3 * kProduct : 2;
// npu1 transposes 64 weights at a time and waits: loads, shuffles, stores.
constexpr double kTurn = kNpu1 ? 20 : 0, kWeigh = 2 + kPower + 2 + 2 * kHalves + kTurn;
// Per block of rows both loops filled.
constexpr double kScaleFill = kFill + kProductFill;
constexpr double kWeighFill = kFill + (kNpu1 ? 3 * kProductFill : 16);

double score_vectors(double blocks, double dim) {
  return blocks * kPartElements / dim * kRowBlock / 32;
}

double score_cycles(const Timing& timing, const int64_t* integers) {
  const double blocks = blocks_of(integers[0]), dim = double(integers[1]);
  // Per block of rows: the function, both loops filled, reductions.
  constexpr double kBlock = kInner + kScaleFill + kWeighFill + 48;
  // Per 16 rows, each result waited for: maxima rounded up and their corrections, then sums.
  constexpr double kMaxima = 180 + 100;
  return kCall + multiplied_keys(timing, blocks, dim) +
         score_vectors(blocks, dim) * (kScale + kWeigh) + blocks * kBlock +
         double((int64_t(blocks) + 1) / 2) * kMaxima;
}

// Generated for a block of rows that see all positions: its loops, on npu1 that of transpositions,
// too. What compares with the bounds of others is counted beside them.
Parts score_parts(const Timing&, const int64_t* integers) {
  const double blocks = blocks_of(integers[0]), dim = double(integers[1]);
  const double vectors = score_vectors(blocks, dim);
  const std::array<int64_t, 3> size = {1, 1, kPartElements / integers[1]};
  const double scale = vectors * (kScale - kBounds) + blocks * kScaleFill;
  const double weigh = vectors * (kWeigh - kTurn) + blocks * kWeighFill;
  Parts parts = {
      {{"softmax_scaling", size, scale, blocks}, {"softmax_weighing", size, weigh, blocks}}};
  if (kNpu1) parts[2] = {"softmax_turning", size, vectors * kTurn, blocks};
  return parts;
}

double value_cycles(const Timing& timing, const int64_t* integers) {
  const double blocks = blocks_of(integers[0]), dim = double(integers[1]);
  const double macs = 8 * 32 * kRowBlock / timing.mac_bf16_native;
  const double loads = kHalves * (8 + 4 * 2) / 2;
  // y: multiplied by its correction in vectors of 32, beside loads and stores. Of every 32 columns
  // the loop over positions is entered anew.
  const double vectors = kRowBlock * dim / 32;
  return kCall + blocks * (kSteps * longest(longest(macs, kMoves), loads) +
                           vectors * longest(kProduct, 2 * kHalves) + dim / 32 * kFill);
}

// Copying a part.
constexpr int kTake = int(kPartElements / 32 * 2 * kHalves + kInner + kFill + kCall);

// What rows see, a row after the other; zeros behind the last one; copying a block of rows; moves
// beside loads and stores.
double pack_cycles(const Timing&, const int64_t* integers) {
  constexpr double kSee = 20;
  const double steps = double(integers[1]) / 32;
  const double block = kInner + 3 * kFill + steps * (8 * kHalves + longest(kMoves, 8 * kHalves));
  return kCall + kSee * double(integers[0]) + kRowBlock * kHalves * steps +
         blocks_of(integers[0]) * block;
}

constexpr int kClear = int(kQueries / 16 * kHalves + kCall);
// An object of vectors, each with its place, loads and stores. Rows: a product each, of up to eight
// rows the reciprocal. Partial results: at the end the statistics of absent rows, one by one.
double out_cycles(const Timing&, const int64_t* integers) {
  constexpr double kPlace = 8, kLanes = 32;
  if (integers[0] == int64_t(Output::kRows)) {
    return kCall + kOutBytes / 2 / kLanes * (kProduct + 6 * kHalves + kPlace) +
           8 * npu::fp32::kScalar;
  }
  return kCall + kOutBytes / 4 / kLanes * (6 * kHalves + kPlace) + 2 * kRows * 2;
}

constexpr Operand kPart = buffer("part", kPartElements), kQ = buffer("q", kQueries);
constexpr Operand kWordsOperand = buffer("words", kRecordWords);
// A header, and the record that a core takes of it.
constexpr Operand kHeader = kPart.steers(Steering::kReads, kRecordWords, "16 * index");
constexpr Operand kTakenRecord = kWordsOperand.steers(Steering::kCopies, kRecordWords);
constexpr Operand kScoresStateOperand = buffer("state", kScoresState);
constexpr Operand kValuesStateOperand = buffer("state", kValuesState);
constexpr Operand kY = buffer("y", kQueries), kF = buffer("f", kScoreWords);
constexpr Operand kRowsOperand = integer("rows", 1, kRows);
constexpr Operand kDimOperand = integer("head_dim", 64, kMaxDim, 64);
#endif

}  // namespace attention
}  // namespace

// The scoring core. Takes record `index` of the header's table, and the part of q behind it.
NPU_KERNEL void attention_begin(const bfloat16* part, bfloat16* q, int32_t* words, int32_t* state,
                                int32_t index) {
  using namespace attention;
  take_record(part, words, index);
  aie::store_v(state, aie::zeros<int32_t, 16>());
  aie::store_v(floats(state) + kMaximum, powers::all(kNothing));
  aie::store_v(floats(state) + kSum, aie::zeros<float, 32>());
  aie::store_v(floats(state) + kBest, aie::zeros<float, 32>());
  take_queries(part + kTableBytes / 2, kPartElements - kTableBytes / 2, q, words, state);
}

// The next part of the header.
NPU_KERNEL void attention_more(const bfloat16* part, bfloat16* q, const int32_t* words,
                               int32_t* state) {
  attention::take_queries(part, attention::kPartElements, q, words, state);
}

// Once q is complete, before the first chunk.
NPU_KERNEL void attention_pack(bfloat16* q, const int32_t* words, int32_t* state, int32_t rows,
                               int32_t head_dim) {
  (void)rows, (void)head_dim;
  using namespace attention;
  find_visible(record_of(words), state);
  pack(q, record_of(words), state);
  state[kTaken] = kPacked;
}

// The next chunk: its scores become f. `rows` and `head_dim` are those of the record.
NPU_KERNEL void attention_scores(const bfloat16* k, const bfloat16* q, float* f,
                                 const int32_t* words, int32_t* state, int32_t rows,
                                 int32_t head_dim) {
  (void)rows, (void)head_dim;
  aie::set_rounding(aie::rounding_mode::conv_even);  // of the weights; stays set
  attention::score_chunk(k, q, f, attention::record_of(words), state);
  ++state[attention::kScored];
}

// The other core: the record, and sums of nothing.
NPU_KERNEL void values_begin(const bfloat16* part, float* y, int32_t* words, int32_t* state,
                             int32_t index) {
  using namespace attention;
  take_record(part, words, index);
  const Record& r = record_of(words);
  aie::store_v(state, aie::zeros<int32_t, 16>());
  aie::store_v(floats(state) + kMaximum, powers::all(kNothing));
  aie::store_v(floats(state) + kSum, aie::zeros<float, 32>());
  const int32_t size = (r.rows + kRowBlock - 1) / kRowBlock * kRowBlock * r.head_dim;
  for (int32_t i = 0; i < size; i += 16) aie::store_v(y + i, aie::zeros<float, 16>());
}

// The next chunk of values, with the scores f of the same positions.
NPU_KERNEL void values_chunk(const bfloat16* v, const float* f, float* y, const int32_t* words,
                             int32_t* state, int32_t rows, int32_t head_dim) {
  (void)rows, (void)head_dim;
  using namespace attention;
  aie::store_v(floats(state) + kMaximum, aie::load_v<kRows>(f + kMaximumAt));
  aie::store_v(floats(state) + kSum, aie::load_v<kRows>(f + kSumAt));
  add_values(v, f, y, record_of(words));
}

// The next object of results. `output`: the record's.
NPU_KERNEL void values_out(const float* y, int32_t* out, const int32_t* words, int32_t* state,
                           int32_t output) {
  (void)output;
  using namespace attention;
  const Record& r = record_of(words);
  const int32_t part = state[kSent]++;
  if (r.output == int32_t(Output::kRows)) {
    send_rows(y, floats(state) + kSum, r, part, reinterpret_cast<bfloat16*>(out));
  } else {
    send_partial(y, floats(state) + kMaximum, r, part, floats(out));
  }
}

NPU_DECLARE(attention_begin, {.operands = {attention::kHeader, attention::kQ,
                                           attention::kTakenRecord, attention::kScoresStateOperand,
                                           integer("index", 0, npu::attention::kRecords - 1)},
                              .cycles = fixed<attention::kTake>,
                              .check = attention::check_begin});
NPU_DECLARE(attention_more, {.operands = {attention::kPart, attention::kQ, attention::kWordsOperand,
                                          attention::kScoresStateOperand},
                             .cycles = fixed<attention::kTake>,
                             .check = attention::check_more});
NPU_DECLARE(attention_pack,
            {.operands = {attention::kQ, attention::kWordsOperand, attention::kScoresStateOperand,
                          attention::kRowsOperand, attention::kDimOperand},
             .cycles = attention::pack_cycles,
             .check = attention::check_pack});
NPU_DECLARE(attention_scores,
            {.operands = {buffer("k", attention::kPartElements), attention::kQ, attention::kF,
                          attention::kWordsOperand, attention::kScoresStateOperand,
                          attention::kRowsOperand, attention::kDimOperand},
             .cycles = attention::score_cycles,
             .check = attention::check_scores,
             .parts = attention::score_parts});
NPU_DECLARE(values_begin, {.operands = {attention::kHeader, attention::kY, attention::kTakenRecord,
                                        attention::kValuesStateOperand,
                                        integer("index", 0, npu::attention::kRecords - 1)},
                           .cycles = fixed<attention::kClear>,
                           .check = attention::check_begin});
NPU_DECLARE(values_chunk,
            {.operands = {buffer("v", attention::kPartElements), attention::kF, attention::kY,
                          attention::kWordsOperand, attention::kValuesStateOperand,
                          attention::kRowsOperand, attention::kDimOperand},
             .cycles = attention::value_cycles,
             .check = attention::check_values});
NPU_DECLARE(values_out, {.operands = {attention::kY, buffer("out", attention::kOutWords),
                                      attention::kWordsOperand, attention::kValuesStateOperand,
                                      integer("output", 0, 1)},
                         .cycles = attention::out_cycles,
                         .check = attention::check_out});
