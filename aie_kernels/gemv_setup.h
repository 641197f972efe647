// What the GEMV design's cores are told about a problem: a setup record each. Stated here only: the
// kernel reads it, the schedule (backend/ops/gemv) fills it, and the design bounds its loops by its
// words, which it knows as npu._npu.facts.GEMV_SETUP.
#pragma once

#include <stdint.h>

namespace npu::gemv {

// clang-format off
#define NPU_GEMV_SETUP(WORD)                                                              \
  WORD(y_objects)        /* objects of y that the core sends */                           \
  WORD(row_blocks)       /* row-blocks per object of y */                                 \
  WORD(x_objects)        /* objects of x per row-block before the last one */             \
  WORD(x_blocks)         /* blocks of weights for each of these */                        \
  WORD(idle)             /* objects of x to let pass at the end */                        \
  WORD(batch)            /* vectors: 1, 2, 4 or 8 */                                      \
  WORD(output)           /* an Output */                                                  \
  WORD(top)              /* entries per vector of Output::kTop */                         \
  WORD(first)            /* row of the core's first row-block */                          \
  WORD(step)             /* rows from one of its row-blocks to the next */                \
  WORD(rows)             /* of W: later rows are padding */                               \
  WORD(resident)         /* 1: one object has all of x, for all row-blocks; else 0 */     \
  WORD(resident_objects) /* objects of y that the core sends then; y_objects is 0 */      \
  WORD(resident_blocks)  /* blocks of weights per object of y then */                     \
  WORD(x_last)           /* blocks of weights for the last object of x of a row-block */  \
  WORD(format)           /* a blocks::Format */
// clang-format on

enum class Output : int32_t { kBf16, kF32, kTop };  // of y; the largest elements and their rows

#define NPU_GEMV_MEMBER(name) int32_t name;
#define NPU_GEMV_NAME(name) #name,
struct Setup {
  NPU_GEMV_SETUP(NPU_GEMV_MEMBER)
};
inline constexpr const char* kSetupNames[] = {NPU_GEMV_SETUP(NPU_GEMV_NAME)};

inline constexpr int32_t kSetupWords = 16;  // of a record, which is loaded as one vector
static_assert(sizeof(Setup) <= 4 * kSetupWords);

// In the decoder configuration (designs/decoder.py) a record has a second half: the loops of its
// cores, which keep x and send results in pieces.
// clang-format off
#define NPU_GEMV_LOOPS(WORD)                                                              \
  WORD(kept)      /* objects of x to keep before the first block */                       \
  WORD(keep)      /* elements of each that matter */                                      \
  WORD(rounds)    /* row-blocks that are multiplied with the kept x */                    \
  WORD(blocks)    /* blocks of weights for each of them */                                \
  WORD(streamed)  /* row-blocks for each of which x is sent again */                      \
  WORD(pieces)    /* pieces of y per row-block */                                         \
  WORD(last)      /* pieces of y at the end */                                            \
  WORD(before)    /* blocks of weights to let pass before the first */                    \
  WORD(after)     /* and after the last */
// clang-format on
struct Loops {
  NPU_GEMV_LOOPS(NPU_GEMV_MEMBER)
};
inline constexpr const char* kLoopNames[] = {NPU_GEMV_LOOPS(NPU_GEMV_NAME)};
inline constexpr int32_t kLongSetupWords = 2 * kSetupWords;
static_assert(sizeof(Loops) <= 4 * kSetupWords);

// Words of a core's state. Loops are bounded by `objects` and `blocks`.
// clang-format off
#define NPU_GEMV_STATE(WORD)                                                              \
  WORD(Block)     /* blocks of the object of x that are done */                           \
  WORD(RowBlock)  /* row-blocks of the object of y */                                     \
  WORD(Object)    /* objects of x of the row-block */                                     \
  WORD(Stored)    /* in the decoder: elements of x kept */                                \
  WORD(Sent)      /* and pieces of y sent */                                              \
  WORD(Objects)   /* objects of x per row-block */                                        \
  WORD(Blocks)    /* blocks of weights of the next of them */
// clang-format on
#define NPU_GEMV_WORD(name) k##name,
struct State {
  enum : int32_t { NPU_GEMV_STATE(NPU_GEMV_WORD) };
};
inline constexpr const char* kStateNames[] = {NPU_GEMV_STATE(NPU_GEMV_NAME)};

inline constexpr int32_t kKeptElements = 10240;  // of x, (blocks, batch, columns) of all its blocks
inline constexpr int32_t kPieceBytes = 64;       // of y: 32 bfloat16, 16 fp32, 8 entries of a list
inline constexpr int32_t kXBytes = 4096;       // an object of x: (blocks, batch, columns) bfloat16
inline constexpr int32_t kXBytesOfOne = 3072;  // the same of the decoder, whose cores are full
inline constexpr int32_t kYBytes = 512;  // of y: (row-blocks, batch, 32) bf16 or fp32, or lists
inline constexpr int32_t kMaxBatch = 8;  // vectors of one pass over the weights
// Floats that a product needs: scales or columns, sums of each vector, columns.
inline constexpr int32_t kWorkPart = 512;
inline constexpr int32_t kWork = (1 + kMaxBatch + 1) * kWorkPart, kWorkOfOne = 2 * kWorkPart;
inline constexpr int32_t kMaxCores = 32;
inline constexpr int32_t kTopBytes = 8;  // of an entry of a list: fp32 value, int32 row

#undef NPU_GEMV_MEMBER
#undef NPU_GEMV_NAME
#undef NPU_GEMV_WORD

}  // namespace npu::gemv
