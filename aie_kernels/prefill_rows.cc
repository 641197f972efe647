// Jobs of rows of the prefill configuration (prefill_job.h): RMSNorm with residual, GeGLU, QK-norm
// and rotation. Sums and products are fp32; what leaves as bfloat16 is rounded once, to nearest
// even. A round's calls are counted in the job, and must come in the order of the program.
#include <stdint.h>

#include <aie_api/aie.hpp>

#include "fp32.h"
#include "gelu.h"
#include "kernel.h"
#include "norm.h"
#include "prefill_job.h"
#include "prefill_operand.h"
#include "rope.h"

namespace {
namespace prefill_rows {

using namespace npu::prefill;
using npu::fp32::Floats, npu::fp32::kLanes, npu::fp32::Sums;

constexpr int32_t kBlock = kRows * kSlice;                 // elements
constexpr int32_t kBlocks = kGroup / kSlice;               // of a group
constexpr int32_t kXBlocks = kBPayload / 4 / kBlock;       // of x in an object of B
constexpr int32_t kBlockPieces = 3;                        // x in two halves, then a
constexpr int32_t kHalf = kRows / 2;                       // rows of a piece of x
constexpr int32_t kGegluPieces = kBPayload / kPieceBytes;  // results of an object of B
constexpr int32_t kGateWords = kBPayload / 4;
constexpr int32_t kMaxDim = 256, kMaxHeads = 4096;
constexpr int32_t kTileRows = __AIE_ARCH__ == 20 ? 4 : 8, kEight = 8;
static_assert(2 * kBlock == kPieceBytes && kLanes == kSlice);

// Floats of the store: kNorm has w1 and w2, kRotation q's and k's weights and the round's tables.
constexpr int32_t kTables = 1024;
static_assert(kTables + kRows * kMaxDim <= kStore);

// Words of `work`: a group of y, gates, or a unit; then, kNorm, squares of y and of x, 32 lanes per
// row, the rows' factors, a block of a; kGeglu a block of results, kRotation a row of a unit.
constexpr int32_t kYSquares = 1024, kXSquares = kYSquares + kRows * kLanes;
constexpr int32_t kFactors = kXSquares + kRows * kLanes, kA = kFactors + 64;
constexpr int32_t kResult = 1024, kRow = 1024;
static_assert(kA + kPieceWords <= kWork && kRow + kMaxDim / 2 <= kWork);

// Counters of a round: objects that row_first and row_take took, pieces that row_piece gave.
enum Counter : int32_t { kFirsts = kRowState, kTakes, kPieces };

inline const Job& job_of(const int32_t* words) { return *reinterpret_cast<const Job*>(words); }
inline float bits_float(int32_t bits) { return __builtin_bit_cast(float, bits); }
inline int32_t float_bits(float value) { return __builtin_bit_cast(int32_t, value); }
inline float* floats(int32_t* words) { return reinterpret_cast<float*>(words); }
inline const float* floats(const int32_t* words) { return reinterpret_cast<const float*>(words); }
inline bfloat16* halves(int32_t* words) { return reinterpret_cast<bfloat16*>(words); }

inline void copy_words(const int32_t* from, int32_t* to, int32_t count) {
  for (int32_t i = 0; i < count; i += 16) aie::store_v(to + i, aie::load_v<16>(from + i));
}
inline void copy_words(const bfloat16* from, int32_t* to, int32_t count) {
  copy_words(reinterpret_cast<const int32_t*>(from), to, count);
}

inline void begin_round(int32_t* job) { job[kFirsts] = job[kTakes] = job[kPieces] = 0; }

inline void clear_squares(int32_t* squares) {
  for (int32_t i = 0; i < kRows * kLanes; i += 16) {
    aie::store_v(squares + i, aie::zeros<int32_t, 16>());
  }
}

// 1 / sqrt(mean + epsilon) of row `row`.
inline float factor(const int32_t* squares, int32_t row, const Job& job) {
  const Sums sums = npu::fp32::load(floats(squares) + row * kLanes);
  return npu::norm::factor(sums, job.width, bits_float(job.epsilon));
}

// A block that is row by row as products take it.
inline void to_operand(const bfloat16* from, bfloat16* to) {
  for (int32_t row = 0; row < kRows; ++row) {
    for (int32_t i = 0; i < kSlice / kEight; ++i) {
      const auto eight = aie::load_v<kEight>(from + row * kSlice + i * kEight);
      aie::store_v(to + tile_place(row, i, kTileRows), eight);
    }
  }
  npu::prefill_operand::from_tiles(to);
}

// What a half of a block of x needs besides it: 32 weights of each norm, and of its rows the
// factors (null: there is no y), y, a, and squares of x.
struct Half {
  const float *w1, *w2, *factors;
  const bfloat16* y;
  bfloat16* a;
  float* squares;
};

#ifdef AIE_HOST_ROWS  // x86 `fast` builds
inline void square_y(const bfloat16* y, int32_t* work) {
  AIE_HOST_ROWS::square(y, kBlocks, floats(work + kYSquares));
}
inline void norm_half(const float* x, const Half& half, float* out) {
  AIE_HOST_ROWS::norm(x, half.w1, half.w2, half.factors, half.y, half.a, half.squares, out);
}
#else

// Squares of a group of y.
inline void square_y(const bfloat16* y, int32_t* work) {
  for (int32_t row = 0; row < kRows; ++row) {
    float* squares = floats(work + kYSquares) + row * kLanes;
    Sums sums = npu::fp32::load(squares);
    for (int32_t block = 0; block < kBlocks; ++block) {
      sums = npu::norm::add_squares(sums, y + block * kBlock + row * kSlice, kSlice);
    }
    npu::fp32::store(squares, sums);
  }
}

// out = x + norm(y) w1, a = out w2, squares of out.
inline void norm_half(const float* x, const Half& half, float* out) {
  for (int32_t row = 0; row < kHalf; ++row) {
    const int32_t at = row * kSlice;
    if (half.factors != nullptr) {
      npu::norm::scale_add(half.y + at, half.factors[row], half.w1, x + at, out + at, kSlice);
    } else {
      npu::fp32::store(out + at, npu::fp32::load(x + at));
    }
    const Floats sum = aie::load_v<kLanes>(out + at);
    npu::fp32::store(half.a + at, Sums(npu::fp32::product(sum, aie::load_v<kLanes>(half.w2))));
    const Sums squares = npu::fp32::load(half.squares + at);
    npu::fp32::store(half.squares + at, npu::norm::add_squares(squares, out + at, kSlice));
  }
}

#endif

inline void norm_piece(const uint8_t* object, int32_t* piece, const float* store, int32_t* work,
                       const int32_t* words) {
  const Job& job = job_of(words);
  const int32_t part = words[kPieces] % kBlockPieces, block = words[kPieces] / kBlockPieces;
  if (part == kBlockPieces - 1) {
    to_operand(halves(work + kA), halves(piece));
    return;
  }
  if (words[kPieces] == 0) clear_squares(work + kXSquares);
  const int32_t row = part * kHalf, at = row * kSlice;
  const float* w1 = store + block * kSlice;
  const Half half{w1,
                  w1 + job.columns,
                  job.a_turns != 0 ? floats(work + kFactors) + row : nullptr,
                  halves(work) + block % kBlocks * kBlock + at,
                  halves(work + kA) + at,
                  floats(work + kXSquares) + at};
  const float* x = reinterpret_cast<const float*>(object) + block % kXBlocks * kBlock + at;
  norm_half(x, half, floats(piece));
}

// A block of results.
inline void geglu_piece(const uint8_t* up, int32_t* piece, int32_t* work, int32_t block) {
  const int32_t at = block * kBlock;
  npu::gelu::geglu(halves(work) + at, reinterpret_cast<const bfloat16*>(up) + at,
                   halves(work + kResult), kBlock);
  to_operand(halves(work + kResult), halves(piece));
}

inline void copy_row(const bfloat16* from, int32_t from_step, bfloat16* to, int32_t to_step,
                     int32_t d) {
  for (int32_t i = 0; i < d / kSlice; ++i) {
    aie::store_v(to + i * to_step, aie::load_v<kSlice>(from + i * from_step));
  }
}

// A row of a head of `dim` elements as one of head_dim, with zeros between or behind its halves.
inline void take_head(const bfloat16* from, bfloat16* row, const Job& job, bool is_value) {
  const int32_t d = job.head_dim, half = job.dim / 2;
  if (job.dim == d) return copy_row(from, kBlock, row, kSlice, d);
  for (int32_t i = 0; i < d; i += 16) aie::store_v(row + i, aie::zeros<bfloat16, 16>());
  for (int32_t i = 0; i < job.dim; i += 16) {
    const int32_t to = is_value || i < half ? i : d / 2 + i - half;
    aie::store_v(row + to, aie::load_v<16>(from + i / kSlice * kBlock + i % kSlice));
  }
}

// A unit of q (in the order it came), k or v (row-major) into `work`.
inline void rotate_unit(const bfloat16* unit, const float* store, int32_t* work, const Job& job,
                        int32_t number) {
  const int32_t d = job.head_dim, key = number - job.heads;
  const bool is_query = key < 0, is_value = key >= job.kv_heads;
  const float* weights = is_query ? store : store + d;
  bfloat16 *to = halves(work), *row = halves(work + kRow);
  for (int32_t r = 0; r < kRows; ++r) {
    take_head(unit + r * kSlice, row, job, is_value);
    if (!is_value) {
      const float *cosines = store + kTables + r * d, *sines = cosines + d / 2;
      npu::rope::qk_norm_rope(row, weights, bits_float(job.epsilon), cosines, sines, row, d);
    }
    if (is_query) {
      copy_row(row, kSlice, to + r * kSlice, kBlock, d);
    } else {
      copy_row(row, kSlice, to + r * d, kSlice, d);
    }
  }
}

inline void rotation_piece(const uint8_t* object, int32_t* piece, const float* store, int32_t* work,
                           int32_t* words) {
  const Job& job = job_of(words);
  const int32_t pieces = unit_pieces(job.head_dim), unit = words[kPieces] / pieces;
  const int32_t part = words[kPieces] % pieces;
  if (part == 0) {
    rotate_unit(reinterpret_cast<const bfloat16*>(object), store, work, job, unit);
  }
  copy_words(work + part * kPieceWords, piece, kPieceWords);
  if (words[kPieces] + 1 == (job.heads + 2 * job.kv_heads) * pieces) {
    begin_round(words);
  } else {
    ++words[kPieces];
  }
}

// Objects of A that hold the tables of 8 rows, and the words of one that count.
constexpr int32_t table_objects(int32_t head_dim) {
  return (kRows * head_dim * 4 + kAPayload - 1) / kAPayload;
}
constexpr int32_t table_words(int32_t head_dim) {
  return kRows * head_dim / table_objects(head_dim);
}

#if NPU_DECLARATIONS
constexpr double kCall = 24;
constexpr bool is_dim(int64_t d) { return d == 64 || d == 128 || d == 256; }

// Whether the job describes rows that fit into the buffers.
bool fits(const Job& job) {
  switch (Kind(job.kind)) {
    case Kind::kNorm:
      return job.columns > 0 && job.columns % kGroup == 0 && job.columns <= kStore / 2 &&
             job.width > 0 && job.width <= job.columns && job.groups > 0 &&
             job.groups <= job.columns / kGroup && job.width <= job.groups * kGroup &&
             (job.a_turns == 0 || job.a_turns == 1) &&
             job.first_groups == job.a_turns * job.groups && job.b_turns == kBlocks / kXBlocks &&
             job.b_pieces == kXBlocks * kBlockPieces;
    case Kind::kGeglu:
      return job.a_turns == 1 && job.b_turns == 1 && job.b_pieces == kGegluPieces;
    case Kind::kRotation:
      return is_dim(job.head_dim) && job.dim >= kSlice && job.dim <= job.head_dim &&
             job.dim % kSlice == 0 && job.heads >= 1 && job.heads <= kMaxHeads &&
             job.kv_heads >= 1 && job.kv_heads <= kMaxHeads &&
             job.first_groups == table_objects(job.head_dim) && job.groups == 1 &&
             job.b_turns == job.heads + 2 * job.kv_heads &&
             job.b_pieces == unit_pieces(job.head_dim);
    default:
      return false;
  }
}

enum Call : int32_t { kCallFirst, kCallTake, kCallPiece, kCallTail };

// Whether the round's counters allow a call.
bool is_next(Call call, const Job& job, const int32_t* words) {
  const int64_t first = words[kFirsts], taken = words[kTakes], pieces = words[kPieces];
  if (first < 0 || taken < 0 || pieces < 0) return false;
  if (Kind(job.kind) == Kind::kGeglu) {
    return (call == kCallTake && taken == 0) ||
           (call == kCallPiece && taken == 1 && pieces < kGegluPieces);
  }
  const int64_t group_pieces = int64_t{job.b_turns} * job.b_pieces;
  if (Kind(job.kind) == Kind::kRotation) {
    return (call == kCallFirst && first < job.first_groups) ||
           (call == kCallPiece && first == job.first_groups && pieces < group_pieces);
  }
  const int64_t group = pieces / group_pieces;
  switch (call) {
    case kCallFirst:
      return first < job.first_groups && taken == 0;
    case kCallTake:
      return job.a_turns == 1 && first == job.first_groups && taken < job.groups &&
             pieces == taken * group_pieces;
    case kCallPiece:
      return group < job.groups && (job.a_turns == 0 || taken == group + 1);
    case kCallTail:
      return pieces == job.groups * group_pieces;
  }
  return false;
}

// kKind, kDim: operands that repeat words of the job; -1: none.
template <Call kCallOf, int kJobOperand, int kKind = -1, int kDim = -1>
void check_row(const char* kernel, const KernelArgument* operands) {
  const auto* words = reinterpret_cast<const int32_t*>(operands[kJobOperand].data);
  const Job& job = job_of(words);
  const bool repeated =
      kKind >= 0 ? operands[kKind].value == job.kind : job.kind == int32_t(Kind::kNorm);
  const bool sized =
      kDim < 0 || Kind(job.kind) != Kind::kRotation || operands[kDim].value == job.head_dim;
  if (repeated && sized && fits(job) && is_next(kCallOf, job, words)) return;
  npu::fail(npu::ErrorKind::kKernel,
            "[%s] the job (kind %d, groups %d, width %d, columns %d, heads %d, kv_heads %d, "
            "head_dim %d) or its counters (%d, %d, %d) do not fit; send the header first and "
            "call in the order of the program",
            kernel, job.kind, job.groups, job.width, job.columns, job.heads, job.kv_heads,
            job.head_dim, words[kFirsts], words[kTakes], words[kPieces]);
}

// Counted from the source, not measured. Copies of 512 bits; npu1 has half the load slot.
constexpr double copy_cycles(double words) { return words / (__AIE_ARCH__ == 20 ? 8 : 16); }

double first_cycles(const Timing&, const int64_t* integers) {
  if (Kind(integers[0]) == Kind::kRotation) return kCall + copy_cycles(kAPayload / 4);
  return kCall + copy_cycles(kRows * kLanes) +
         kRows * (npu::norm::squares_cycles(kGroup, false) + 8);
}
// The factors of a round are counted for each of its groups.
double take_cycles(const Timing&, const int64_t* integers) {
  const double factors = Kind(integers[0]) == Kind::kNorm ? kRows * npu::norm::factor_cycles() : 0;
  return kCall + copy_cycles(kGateWords) + factors;
}
// A block in the order of tiles: 16 bytes per load and store.
constexpr double kToTiles = kRows * (kSlice / kEight) * 2 + npu::prefill_operand::kFromTilesCycles;
// Of three pieces of kNorm two are computed. A unit of kRotation is computed once for its pieces:
// as if each were a query.
double piece_cycles(const Timing&, const int64_t* integers) {
  const int64_t d = integers[1];
  switch (Kind(integers[0])) {
    case Kind::kNorm: {
      const double row = npu::norm::scale_add_cycles(kSlice) + npu::norm::multiply_cycles(kSlice) +
                         npu::norm::squares_cycles(kSlice, true) + 8;
      return kCall + (copy_cycles(kRows * kLanes) + kRows * row + kToTiles) / kBlockPieces;
    }
    case Kind::kGeglu:
      return kCall + npu::gelu::geglu_cycles(kBlock) + kToTiles;
    case Kind::kRotation: {
      const double row = npu::rope::qk_norm_rope_cycles(d, false) + 2 * copy_cycles(d / 2.0) + 16;
      const double unit = is_dim(d) ? kRows * row / unit_pieces(int32_t(d)) : 0;
      return kCall + copy_cycles(kPieceWords) + unit;
    }
    default:
      return kCall;
  }
}
consteval Operand kind_operand() {
  return integer("kind", int32_t(Kind::kNorm), int32_t(Kind::kRotation));
}
consteval Operand dim_operand() { return integer("head_dim", 0, kMaxDim, 64); }
#endif

}  // namespace prefill_rows
}  // namespace

// Before the other objects of a round: y for its squares, or a part of the tables.
NPU_KERNEL void prefill_row_first(const bfloat16* object, float* store, int32_t* work, int32_t* job,
                                  int32_t kind, int32_t head_dim) {
  using namespace prefill_rows;
  const int32_t number = job[kFirsts]++;
  if (kind == int32_t(Kind::kRotation)) {
    const int32_t words = table_words(head_dim);
    copy_words(object, reinterpret_cast<int32_t*>(store) + kTables + number * words, words);
    return;
  }
  if (number == 0) clear_squares(work + kYSquares);
  square_y(object, work);
}

// y of a group, or gates.
NPU_KERNEL void prefill_row_take(const bfloat16* object, const float* store, int32_t* work,
                                 int32_t* job, int32_t kind) {
  using namespace prefill_rows;
  (void)store;
  copy_words(object, work, kGateWords);
  if (job[kTakes]++ == 0 && kind == int32_t(Kind::kNorm)) {
    for (int32_t row = 0; row < kRows; ++row) {
      work[kFactors + row] = float_bits(factor(work + kYSquares, row, job_of(job)));
    }
  }
}

// The next result of an object of B.
NPU_KERNEL void prefill_row_piece(const uint8_t* object, int32_t* piece, const float* store,
                                  int32_t* work, int32_t* job, int32_t kind, int32_t head_dim) {
  using namespace prefill_rows;
  (void)head_dim;
  npu::fp32::round_to_nearest();
  if (kind == int32_t(Kind::kRotation)) {
    rotation_piece(object, piece, store, work, job);
  } else if (kind == int32_t(Kind::kNorm)) {
    norm_piece(object, piece, store, work, job);
    ++job[kPieces];
  } else {
    geglu_piece(object, piece, work, job[kPieces]);
    if (++job[kPieces] == kGegluPieces) begin_round(job);
  }
}

// The factors of 8 rows of x; the round has ended.
NPU_KERNEL void prefill_row_tail(const int32_t* work, int32_t* piece, int32_t* job) {
  using namespace prefill_rows;
  for (int32_t i = 0; i < kPieceWords; i += 16) {
    aie::store_v(piece + i, aie::zeros<int32_t, 16>());
  }
  for (int32_t row = 0; row < kRows; ++row) {
    piece[row] = float_bits(factor(work + kXSquares, row, job_of(job)));
  }
  begin_round(job);
}

NPU_DECLARE(
    prefill_row_first,
    {.operands = {buffer("object", npu::prefill::kAElements), buffer("store", npu::prefill::kStore),
                  buffer("work", npu::prefill::kWork), buffer("job", npu::prefill::kJobWords),
                  prefill_rows::kind_operand(), prefill_rows::dim_operand()},
     .cycles = prefill_rows::first_cycles,
     .check = prefill_rows::check_row<prefill_rows::kCallFirst, 3, 4, 5>});
NPU_DECLARE(prefill_row_take,
            {.operands = {buffer("object", npu::prefill::kAElements),
                          buffer("store", npu::prefill::kStore),
                          buffer("work", npu::prefill::kWork),
                          buffer("job", npu::prefill::kJobWords), prefill_rows::kind_operand()},
             .cycles = prefill_rows::take_cycles,
             .check = prefill_rows::check_row<prefill_rows::kCallTake, 3, 4>});
NPU_DECLARE(
    prefill_row_piece,
    {.operands = {buffer("object", npu::prefill::kBBytes),
                  buffer("piece", npu::prefill::kPieceWords), buffer("store", npu::prefill::kStore),
                  buffer("work", npu::prefill::kWork), buffer("job", npu::prefill::kJobWords),
                  prefill_rows::kind_operand(), prefill_rows::dim_operand()},
     .cycles = prefill_rows::piece_cycles,
     .check = prefill_rows::check_row<prefill_rows::kCallPiece, 4, 5, 6>});
NPU_DECLARE(prefill_row_tail, {.operands = {buffer("work", npu::prefill::kWork),
                                            buffer("piece", npu::prefill::kPieceWords),
                                            buffer("job", npu::prefill::kJobWords)},
                               .cycles =
                                   [](const Timing&, const int64_t*) {
                                     return prefill_rows::kCall +
                                            prefill_rows::copy_cycles(npu::prefill::kPieceWords) +
                                            npu::prefill::kRows * npu::norm::factor_cycles();
                                   },
                               .check = prefill_rows::check_row<prefill_rows::kCallTail, 2>});
