// What the vector core of the decoder configuration (designs/decoder.py) is told about a job: the
// counts that bound its loops, and what vector.cc computes. Stated here only: the kernels read it,
// the plan (backend/ops/decoder) fills it, the design bounds loops by its words, which it knows as
// npu._npu.facts.VECTOR_JOB.
//
// A job keeps objects of its input in a store (`take`), computes when it has them, then applies
// every further object (`inputs` in all), sends the result to the GEMV cores as objects of x, after
// the table that sets these up, or to memory (`out`). The store survives, so that a job may send
// what an earlier one left.
#pragma once

#include <stdint.h>

namespace npu::vector {

// clang-format off
#define NPU_VECTOR_JOB(WORD)                                                              \
  WORD(kind)         /* a Kind */                                                         \
  WORD(tables)       /* setup tables for the GEMV cores: 0 or 1 */                        \
  WORD(table_parts)  /* objects that make one */                                          \
  WORD(inputs)       /* objects taken or applied */                                       \
  WORD(take)         /* objects kept in the store */                                      \
  WORD(x_objects)    /* objects of x to send */                                           \
  WORD(out)          /* objects to send to memory */                                      \
  WORD(x_at)         /* byte of the store where x begins; norm: and where y is */          \
  WORD(x_elements)   /* of x; zeros follow */                                             \
  WORD(x_piece)      /* elements of an object of x */                                     \
  WORD(x_cycle)      /* objects after which x begins again */                             \
  WORD(out_at)       /* byte of the store where results for memory begin; norm: the row */\
  WORD(width)        /* norm: elements of a row; rotate, combine: head_dim */             \
  WORD(rows)         /* rotate: heads of q and k; combine: of q, of a key head */         \
  WORD(y_at)         /* byte of the store: gates, q, k and v, or sums of parts */        \
  WORD(work_at)      /* norm: byte of the store that has room for a piece */              \
  WORD(piece)        /* norm: elements, 256 where the weights are applied */              \
  WORD(pieces)       /* norm: of the first one, the weights of y */                       \
  WORD(kept)         /* norm: pieces of weights that are in the store, fp32, */           \
  WORD(weights_at)   /* and the byte where they begin */                                  \
  WORD(row_at)       /* norm without y: the byte where its row is, fp32 */                \
  WORD(scale)        /* norm without y: bits of the factor of h (embedding scale) */      \
  WORD(epsilon)      /* bits of a float */                                                \
  WORD(heads)        /* rotate, combine: query heads per key head */                      \
  WORD(kv_heads)                                                                          \
  WORD(head_dim)     /* as attention has it: 64, 128, 256 */                              \
  WORD(dim)          /* as the model has it: at most that, even */                        \
  WORD(parts)        /* combine: partial results per key head */
// clang-format on

// kNorm: h += norm(y) w, x = norm(h) w', all of it taken. kLongNorm: the same where the store has
// no room for the weights, which are applied. kGeglu: x = gelu(gate) up. kRotate: q, k, v of a row
// of projections, normalised and rotated. kCombine: x = attention of partial results. kSend: x as
// it is in the store.
enum class Kind : int32_t { kNorm, kGeglu, kRotate, kCombine, kSend, kLongNorm };
inline constexpr int32_t kKinds = 6;

#define NPU_VECTOR_MEMBER(name) int32_t name;
#define NPU_VECTOR_NAME(name) #name,
struct Job {
  NPU_VECTOR_JOB(NPU_VECTOR_MEMBER)
};
inline constexpr const char* kJobNames[] = {NPU_VECTOR_JOB(NPU_VECTOR_NAME)};
#undef NPU_VECTOR_MEMBER
#undef NPU_VECTOR_NAME

inline constexpr int32_t kJobWords = 32;
static_assert(sizeof(Job) <= 4 * kJobWords);
inline constexpr int32_t kInBytes = 1024;     // an object of its input
inline constexpr int32_t kOutBytes = 256;     // an object sent to memory
inline constexpr int32_t kDataBytes = 45056;  // GeGLU of 21504 elements, or rows of 7168
inline constexpr int32_t kWorkBytes = 5376;   // behind them, for what steps leave for others
inline constexpr int32_t kStoreBytes = kDataBytes + kWorkBytes;
inline constexpr int32_t kStateWords = 96;  // counters and sums
inline constexpr int32_t kLeft = 1;        // of them: kLast and the objects to take after the next,
inline constexpr int32_t kLast = 1 << 15;  // less than that: one is applied

}  // namespace npu::vector
