// What a pair of attention cores is told about a job, and what it exchanges. Stated here only: the
// kernels (attention.cc) read it, schedules fill the records, and designs bound their loops by a
// record's words, which they know as npu._npu.facts.ATTENTION_RECORD.
//
// A job is one block of query rows of one kv head against consecutive chunks of its keys: row r is
// token r / group, head r % group of the kv head's group. Both cores of a pair get the job's header
// in parts of kPartBytes: [table: kRecords records][q: rows x head_dim bfloat16], the last part
// padded; then the scoring core chunks of K and the other one those of V, (positions, head_dim)
// bfloat16 of kPartBytes. Values of positions outside [keys_from, keys_end) must be finite.
#pragma once

#include <stdint.h>

namespace npu::attention {

// clang-format off
#define NPU_ATTENTION_RECORD(WORD)                                                        \
  WORD(rows)           /* 1 to kRows: tokens x group */                                   \
  WORD(group)          /* query heads of the kv head */                                   \
  WORD(head_dim)       /* 64, 128 or 256 */                                               \
  WORD(objects)        /* parts of the header after the first */                          \
  WORD(chunks)         /* of K and of V */                                                \
  WORD(query_position) /* of token 0 */                                                   \
  WORD(key_position)   /* of the first key of the first chunk */                          \
  WORD(keys_from)      /* keys that exist: positions [keys_from, keys_end) */             \
  WORD(keys_end)                                                                          \
  WORD(window)         /* not 0: a key is visible if key > query - window */              \
  WORD(causal)         /* 1: a key is visible if key <= query */                          \
  WORD(scale)          /* bits of a float32: of the softmax, times log2 e */              \
  WORD(output)         /* an Output */                                                    \
  WORD(out_objects)    /* results of kOutBytes, out_objects_of() */
// clang-format on

// kRows: the rows of the result, (rows, head_dim) bfloat16. kPartial: their numerators,
// (rows, head_dim) float32, and in a last object the rows' statistics, float32: kRows maxima, in
// units of log2, and kRows denominators. Partial results of the same rows merge exactly but for the
// sums' rounding: maxima are whole numbers, or kNothing where a row has seen no key.
enum class Output : int32_t { kRows, kPartial };

#define NPU_ATTENTION_MEMBER(name) int32_t name;
#define NPU_ATTENTION_NAME(name) #name,
struct Record {
  NPU_ATTENTION_RECORD(NPU_ATTENTION_MEMBER)
};
inline constexpr const char* kRecordNames[] = {NPU_ATTENTION_RECORD(NPU_ATTENTION_NAME)};
#undef NPU_ATTENTION_MEMBER
#undef NPU_ATTENTION_NAME

inline constexpr int32_t kRecordWords = 16;  // loaded as one vector
static_assert(sizeof(Record) <= 4 * kRecordWords);
inline constexpr int32_t kRecords = 8;  // of a table, so that up to 8 pairs may share a header
inline constexpr int32_t kTableBytes = 4 * kRecordWords * kRecords;
inline constexpr int32_t kPartBytes = 8192;
inline constexpr int32_t kRows = 32, kMaxDim = 256;
inline constexpr int32_t kOutBytes = 1024;
inline constexpr float kNothing = -3.40282347e+38f;  // the maximum of no scores

// Objects from the scoring core: weights of kRows x positions bfloat16 at most, in an order of the
// builds' own, then float32 per row: correction, maximum, denominator.
inline constexpr int32_t kWeightBytes = 4096;
inline constexpr int32_t kScoreBytes = kWeightBytes + 3 * 4 * kRows;

// int32 words of the cores' states (attention.cc).
inline constexpr int32_t kScoresState = 16 + 5 * kRows + kRows * 64, kValuesState = 16 + 2 * kRows;

constexpr int32_t positions_of(int32_t head_dim) { return kPartBytes / 2 / head_dim; }
constexpr int32_t header_objects(int32_t rows, int32_t head_dim) {
  return (kTableBytes + rows * head_dim * 2 + kPartBytes - 1) / kPartBytes;
}
constexpr int32_t out_objects_of(int32_t rows, int32_t head_dim, Output output) {
  const int32_t bytes = rows * head_dim * (output == Output::kPartial ? 4 : 2);
  return (bytes + kOutBytes - 1) / kOutBytes + (output == Output::kPartial ? 1 : 0);
}

}  // namespace npu::attention
