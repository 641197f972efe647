// What the cores of the prefill configuration are told about a job, and how data lies in memory.
// Stated here only: the kernels (prefill*.cc) read it, schedules (backend/ops/prefill) fill the
// headers, and the design bounds its loops by a job's words (npu._npu.facts.PREFILL_JOB).
//
// Every core runs the same program, that of one kind of job. Stream A brings objects of
// kABytes to all cores of a row of the array, stream B objects of one weight block's size to all
// cores of a column, stream C takes pieces of kPieceBytes from each core. A job is announced by a
// header, an object of A; its kind says what the other objects are:
//
//   kProduct    C = A W: a tile of 4 m x columns 32 n. A: slices of 32 columns of the core row's m
//               rows, kRowSlots / m slices per object; what an object has beyond a range does not
//               count. B: blocks of weights (weight_block.h), for each range of their columns n
//               row-blocks. With `scaled`, a last object of A has for every 8 rows
//               kOperandBytes that begin with 8 fp32 factors of these rows. Results: per row-block
//               of 32 columns and 8 rows a piece; with `wide` the last of every 8 rows in fp32,
//               kWideLines lines of 32 columns a piece, [row-block][m / 8], the rest zeros.
//   kNorm       x += norm(y) w1; a = x w2; f = 1 / sqrt(mean(x^2) + epsilon), so that a f is the
//               norm of x. A: w1, w2 (fp32, `columns` each, constants); y of each core's 8 rows in
//               turn, once for the statistics (first_groups; none if there is no y) and once more.
//               B: x in turn. Results: per block of 32 columns x (two pieces), then a (one); at the
//               end a piece with f.
//   kGeglu      gelu(gate) up; A: gate, B: up, in turn.
//   kRotation   QK-norm and rotation of 8 rows, head by head. A: weights of q and k (fp32,
//               constants) and each core's table in turn: 8 rows of head_dim / 2 cosines and as
//               many sines, fp32. B: heads in turn, q, k, v. Results: q as it came, k and v
//               row-major. A head of `dim` elements becomes one of head_dim: its halves come
//               where the halves of that begin, v as it is, and zeros elsewhere.
//   kJobs       No job: the header that a program of one kind of jobs begins with. `rounds` of them
//               follow for the cores of the row, then the program ends.
//   kAttention  kUnits units of each core, of one key head. B: queries in turn, then kHeld objects
//               of no meaning, which the cores keep to have room; A: per chunk (half of K, half of
//               K, half of V, half of V). Results: unit after unit.
//
// "In turn": objects of all cores of a row (A) or column (B) of the array one after the other; a
// core lets those of the others pass. Columns from `used` on have no part in a job of rows.
//
// Memory. Activations are blocks of 8 rows x 32 columns, [column / 32][row / 8], kPieceBytes each;
// the residual x is fp32. What is multiplied by a W next (kNorm's a, results of kGeglu and
// kAttention) is an operand, of which the first kOperandBytes count: on npu1 bfloat16 in the order
// of the cores' tiles, [2][4][4][8], on npu2 BFP16, [4] tiles of 8 x 8. All else is bfloat16 row by
// row, [8][32]. x and a lie together, a record of kRecordBytes per block. A unit is 8 rows of a
// head, [head_dim / 32][8][32]. Of A objects without operands or factors the first kAPayload bytes
// count, of B objects that are no weights the first kBPayload bytes, of 8 columns of blocks each.
#pragma once

#include <stdint.h>

#include "weight_block.h"
#ifdef AIE_HOST_VARIANT
#include "kernels/declaration.h"
#endif

namespace npu::prefill {

enum class Kind : int32_t { kProduct, kNorm, kGeglu, kRotation, kAttention, kJobs };

inline constexpr int32_t kSlice = 32;
inline constexpr int32_t kAPayload = 4096;
inline constexpr int32_t kBBytes = int32_t(blocks::kBytes), kBPayload = 4096;
inline constexpr int32_t kPieceBytes = 512, kPieceWords = kPieceBytes / 4;
inline constexpr int32_t kWideLines = kPieceBytes / (4 * kSlice);
inline constexpr int32_t kMaxBlocks = 2;    // row-blocks of W per core and job
inline constexpr int32_t kRows = 8;         // of a tile, a unit, a record
inline constexpr int32_t kHeld = 3;         // objects of B kept during attention
inline constexpr int32_t kChunkHalves = 2;  // of a chunk's keys, of its values: objects of A
inline constexpr int32_t kGroup = 256;      // columns of an object of A in a job of rows
inline constexpr int32_t kRecordBytes = kRows * kSlice * 6;  // x, then a, of a block
inline constexpr int32_t kMaxColumns = 8;                    // of the array

// A core's buffers, in elements.
inline constexpr int32_t kStore = 6144;   // fp32: sums; constants of row jobs; sums of attention
inline constexpr int32_t kJobWords = 96;  // header words, loops, and from kState on counters
inline constexpr int32_t kState = 64, kRowState = 72, kAttentionState = 80;  // 8, 8 and 16 words

// Words of a header. Those under "of the core" are filled by prefill_begin (of products by
// prefill_begin_product); a header has zeros.
// clang-format off
#define NPU_PREFILL_JOB(WORD)                                                                    \
  WORD(kind)          /* a Kind */                                                               \
  WORD(constants)     /* objects of A that all cores keep */                                     \
  /* kProduct */                                                                                 \
  WORD(m)             /* rows of a core: 16, 32, 64, or 128 */                                   \
  WORD(blocks0) WORD(blocks1) WORD(blocks2) WORD(blocks3) /* row-blocks per column: 0 to 2 */    \
  WORD(blocks4) WORD(blocks5) WORD(blocks6) WORD(blocks7)                                        \
  WORD(format)        /* of the blocks */                                                        \
  WORD(holds)         /* ranges of W's columns: width / range_columns(format) */                 \
  WORD(before)        /* objects of A per range that are multiplied while W's blocks are held */ \
  WORD(behind)        /* and afterwards, by what was expanded last */                            \
  WORD(scaled)        /* 1: rows are multiplied by factors */                                    \
  WORD(wide)          /* 1: results are fp32, of the last of every 8 rows */                     \
  /* jobs of rows */                                                                             \
  WORD(used)          /* columns of the array, from the first on */                              \
  WORD(rounds)        /* times each core has 8 rows (kNorm, kRotation), or an object (kGeglu) */ \
  WORD(first_groups)  /* per round: objects of A before the others */                            \
  WORD(groups)                                                                                   \
  WORD(a_turns)       /* per group: objects of A, of B for each core; kAttention: kChunkHalves */\
  WORD(b_turns)                                                                                  \
  WORD(b_pieces)      /* results of an object of B */                                            \
  WORD(width)         /* kNorm: columns that count */                                            \
  WORD(columns)       /* kNorm: padded, of w1 and w2 */                                          \
  WORD(epsilon)       /* bits of a float32 */                                                    \
  WORD(heads) WORD(kv_heads)                                                                     \
  WORD(head_dim)      /* of keys and values: 64, 128 or 256 */                                   \
  WORD(dim)           /* of a head that the model has, a multiple of 32; the rest are zeros */   \
  /* kAttention */                                                                               \
  WORD(units)         /* per core: kUnits, or 0: no attention */                                 \
  WORD(chunks)        /* of K and of V, for this row of the array */                             \
  WORD(group)         /* query heads of the key head */                                          \
  WORD(first_unit)    /* of the core in row 0, column 0 */                                       \
  WORD(query_position)/* of row 0 of unit 0 */                                                   \
  WORD(queries_from)  /* rows of earlier positions see no key: their results are zeros */        \
  WORD(key_position)  /* of the first key of the first chunk */                                  \
  WORD(keys_from)     /* keys that exist: positions [keys_from, keys_end) */                     \
  WORD(keys_end)                                                                                 \
  WORD(window)        /* not 0: a key is visible if key > query - window */                      \
  WORD(causal)        /* 1: a key is visible if key <= query < keys_end */                       \
  WORD(scale)         /* bits of a float32: of the softmax, times log2 e */                      \
  /* of the core */                                                                              \
  WORD(row) WORD(column)                                                                         \
  WORD(blocks)        /* of the core's column */                                                 \
  WORD(clear)         /* 1, if it has any */                                                     \
  WORD(held)          /* blocks that it holds at once */                                         \
  WORD(own_holds)     /* holds, if it has any */                                                 \
  WORD(expands)       /* 1, if there are objects behind */                                       \
  WORD(pass)          /* objects of A that it lets pass */                                       \
  WORD(norm_rounds) WORD(geglu_rounds) WORD(rotation_rounds) /* rounds that it has a part in */  \
  WORD(factors)       /* scaled, if it has blocks */                                             \
  WORD(pieces)        /* results of a product */                                                 \
  WORD(a_before) WORD(a_after) WORD(b_before) WORD(b_after) /* of others, around its own */      \
  WORD(q_before) WORD(q_after) /* the same for queries */                                        \
  WORD(attends)       /* 1 in jobs of attention */                                               \
  WORD(out_pieces)    /* results of attention */
// clang-format on

#define NPU_PREFILL_MEMBER(name) int32_t name;
#define NPU_PREFILL_NAME(name) #name,
struct Job {
  NPU_PREFILL_JOB(NPU_PREFILL_MEMBER)
};
inline constexpr const char* kJobNames[] = {NPU_PREFILL_JOB(NPU_PREFILL_NAME)};
#undef NPU_PREFILL_MEMBER
#undef NPU_PREFILL_NAME
static_assert(sizeof(Job) <= 4 * kState);

#ifdef AIE_HOST_VARIANT
// The words of the job that a core runs: all kernels but those that take headers change counters
// only, from kState on.
constexpr kernels::Operand job_operand() {
  return kernels::buffer("job", kJobWords).steers(kernels::Steering::kKeeps, kState);
}
#endif

// Columns of W that a core holds at once: a block's, or those of two blocks of kBf16, so that they
// are whole slices. A core has one row-block of kBf16 at most.
constexpr int32_t range_columns(blocks::Format format) {
  return int32_t(blocks::columns_of(format)) * (format == blocks::Format::kBf16 ? 2 : 1);
}

// Slices of W that a core expands at once.
inline constexpr int32_t kAtOnce = 2;

// Objects of A of a range of columns: `before` while its blocks are held, `behind` afterwards, by
// what was expanded last: none if an object has more slices than that.
struct RangeParts {
  int32_t before, behind;  // words of the job
  constexpr int32_t objects() const { return before + behind; }
};
constexpr RangeParts range_parts(blocks::Format format, int32_t m, int32_t row_slots) {
  const int32_t slices = range_columns(format) / kSlice, each = row_slots / m;
  const int32_t objects = (slices + each - 1) / each;
  const int32_t left = (slices - 1) % kAtOnce + 1;  // expanded last
  const int32_t behind = each > kAtOnce ? 0 : (left + each - 1) / each;
  return {objects - behind, behind};
}

// Pieces of results that a core has of `blocks` row-blocks of W.
constexpr int32_t product_pieces(int32_t m, int32_t blocks, int32_t wide) {
  const int32_t lines = m / kRows * blocks;
  return wide == 1 ? (lines + kWideLines - 1) / kWideLines : lines;
}

// Where 8 elements of a row of a block of 8 x 32 lie in the order of the tiles.
constexpr int32_t tile_place(int32_t row, int32_t eight, int32_t r) {
  return row / r * (r * kSlice) + eight * (r * 8) + row % r * 8;
}

// What differs between the generations.
struct Sizes {
  int32_t units;          // of attention, per core
  int32_t row_slots;      // rows of a slice that fills an object of A
  int32_t operand_bytes;  // of a block
  int32_t work;           // int32 words: what a job keeps beside the store
  constexpr int32_t a_bytes() const { return row_slots / kRows * operand_bytes; }
};
constexpr Sizes sizes_of(bool npu1) {
  return npu1 ? Sizes{2, 64, kPieceBytes, 2304} : Sizes{4, 128, kRows * kSlice / 8 * 9, 3200};
}
#if defined(__AIE_ARCH__)
inline constexpr Sizes kSizes = sizes_of(__AIE_ARCH__ == 20);
inline constexpr int32_t kUnits = kSizes.units, kRowSlots = kSizes.row_slots;
inline constexpr int32_t kOperandBytes = kSizes.operand_bytes, kWork = kSizes.work;
inline constexpr int32_t kABytes = kSizes.a_bytes(), kAElements = kABytes / 2;
#endif

#if defined(__AIE_ARCH__)
// Sums of a product, n of each row. Those of npu2 do not fit the store: its end goes on in `work`,
// and rows of tiles alternate between two halves, 16 KB apart, which different banks have.
inline constexpr int32_t kSums = kRowSlots * kMaxBlocks * kSlice, kHalf = kSums / 2;
inline constexpr int32_t kTailSums = kSums > kStore ? kSums - kStore : 0;

// Sums of a row; those of the next ones of its tile follow. tail: those in `work`.
template <typename T>
inline T* sums_at(T* store, [[maybe_unused]] T* tail, int32_t row, int32_t n) {
  if constexpr (kTailSums == 0) {
    return store + row * n;
  } else {
    static_assert(kHalf <= kStore && (kStore - kHalf) % (kRows * kMaxBlocks * kSlice) == 0);
    static_assert(kRows == 8);
    const int32_t row_of_half = (row >> 4 << 3) + (row & 7);
    const int32_t at = (-(row >> 3 & 1) & kHalf) + row_of_half * n;
    return at < kStore ? store + at : tail + (at - kStore);
  }
}
#endif

// All bits if `condition`, else none: choices without jumps.
constexpr int32_t where(bool condition) { return -int32_t(condition); }

constexpr int32_t chunk_positions(int32_t head_dim) { return 4096 / head_dim; }
constexpr int32_t unit_pieces(int32_t head_dim) { return kRows * head_dim * 2 / kPieceBytes; }

}  // namespace npu::prefill
