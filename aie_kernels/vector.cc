// The vector core of the decoder configuration: what lies between the products of a token, job by
// job (vector_job.h). Rows are fp32 in the store, sums and products fp32; what leaves as x, q, k or
// v is rounded once to bfloat16.
#include <stdint.h>

#include <aie_api/aie.hpp>

#include "attention.h"
#include "fp32.h"
#include "gelu.h"
#include "gemv_setup.h"
#include "kernel.h"
#include "norm.h"
#include "rope.h"
#include "vector_job.h"

namespace {
namespace vector_core {

using npu::vector::Job, npu::vector::Kind, npu::vector::kJobWords, npu::vector::kStateWords;

constexpr int32_t kInWords = npu::vector::kInBytes / 4, kOutWords = npu::vector::kOutBytes / 4;
constexpr int32_t kStoreWords = npu::vector::kStoreBytes / 4;
constexpr int32_t kXElements = npu::gemv::kXBytesOfOne / 2;
constexpr int32_t kTableParts = npu::gemv::kXBytesOfOne / npu::vector::kInBytes;  // at most
constexpr int32_t kInHalves = npu::vector::kInBytes / 2;    // bfloat16 elements of an input object
using npu::attention::kTableBytes;                          // in front of a key head's queries
constexpr int32_t kPartStatistics = npu::attention::kRows;  // maxima, then denominators
constexpr unsigned kRowLanes = 16;                          // of them, as many as a key head has

// Words of the state: objects of a table; kLeft of vector_job.h, below 0 what was applied; objects
// of x and results sent; objects of x since it began; kCombine: the next part, its piece's first
// row in the group, the group's first word of statistics, the next row's first element of x.
// kRotate: where the next head is, and goes. Then the lane sums of a norm, and lanes of a factor.
enum State : int32_t {
  kTabled,
  kLeft,
  kSentOut,
  kTurn,
  kPart,
  kRow,
  kStatistics,
  kRowX,
  kFrom,
  kTo,
  kSquares = 32,
  kFactor = 64
};
static_assert(kLeft == npu::vector::kLeft && kFactor + npu::fp32::kLanes <= kStateWords);
// kRotate, in the store's work: a head and its lower half again, its products with cosines, the
// cosines of both halves, the sines of both, negated for the lower one.
constexpr int32_t kHead = npu::attention::kMaxDim, kTurned = kHead + kHead / 2;
constexpr int32_t kCosines = kTurned + kHead, kSines = kCosines + kHead;
static_assert(4 * (kSines + kHead) <= npu::vector::kWorkBytes);
static_assert(4 * npu::gelu::passes_work(kInHalves) <= npu::vector::kWorkBytes);

// Statistics of a key head: those of its parts, in whole objects.
constexpr int32_t records(int32_t parts) { return (parts + 3) & ~3; }
static_assert(4 * 8 * kPartStatistics == npu::vector::kInBytes);

using npu::fp32::kLanes, npu::fp32::kStep, npu::vector::kLast;

inline const Job& job_of(const int32_t* words) { return *reinterpret_cast<const Job*>(words); }
inline float bits_float(int32_t bits) { return __builtin_bit_cast(float, bits); }
inline int32_t float_bits(float value) { return __builtin_bit_cast(int32_t, value); }
inline float* floats(int32_t* words) { return reinterpret_cast<float*>(words); }

template <typename T>
inline T* at(int32_t* store, int32_t byte) {
  return reinterpret_cast<T*>(reinterpret_cast<uint8_t*>(store) + byte);
}
template <typename T>
inline const T* at(const int32_t* store, int32_t byte) {
  return reinterpret_cast<const T*>(reinterpret_cast<const uint8_t*>(store) + byte);
}

inline float* work_of(int32_t* store) { return at<float>(store, npu::vector::kDataBytes); }

// Multiples of 8 words; the same 8 throughout where `step` is 0.
NPU_OUTLINED inline void copy_words(const void* from, void* to, int32_t count, int32_t step = 8) {
  const auto* source = static_cast<const int32_t*>(from);
  auto* target = static_cast<int32_t*>(to);
  NPU_ROLLED for (int32_t i = 0; i < count; i += 8, source += step) {
    aie::store_v(target + i, aie::load_v<8>(source));
  }
}

// `count` elements and zeros up to `size`; one by one where heads are no multiples of 64.
NPU_OUTLINED inline void copy_short(const bfloat16* from, bfloat16* to, int32_t count,
                                    int32_t size) {
  if ((count & 63) == 0 && count == size) {
    copy_words(from, to, count >> 1);
    return;
  }
  const auto* source = reinterpret_cast<const int16_t*>(from);
  auto* target = reinterpret_cast<int16_t*>(to);
  NPU_SERIAL_FOR(int32_t i = 0, i < size, ++i) target[i] = i < count ? source[i] : int16_t{0};
}

// The factor of `width` elements, from their squares, which begin anew.
NPU_OUTLINED inline void make_factor(int32_t* state, int32_t width, int32_t epsilon) {
  float* squares = floats(state + kSquares);
  const float total = aie::reduce_add(aie::load_v<kLanes>(squares));
  const float mean = npu::fp32::quotient(total, static_cast<float>(width));
  npu::fp32::fill(floats(state + kFactor), aie::invsqrt(mean + bits_float(epsilon)));
  npu::fp32::fill(floats(state + kSquares), 0);
}

// to = x factor weights of n elements, and the same rounded; added to `to` where that is not
// `work`.
NPU_OUTLINED inline void scale(const float* x, const float* weights, float* work, float* to,
                               bfloat16* rounded, int32_t n, int32_t* state) {
  const float* const zeros = npu::fp32::kZeros.values;
  npu::fp32::multiply_add(x, floats(state + kFactor), 0, zeros, work, rounded, n);
  npu::fp32::multiply_add(work, weights, kStep, to == work ? zeros : nullptr, to, rounded, n);
}

// The next piece of a norm: h += norm(y) w while pieces of the first one last, then x = norm(h) w.
NPU_OUTLINED inline void next_norm(const float* weights, int32_t* store, const Job& job,
                                   int32_t* state, int32_t number) {
  int32_t more = number - job.pieces, n = job.width;
  const bool second = more >= 0;
  const int32_t first = (second ? more : number) * job.piece;
  n = n - first < job.piece ? n - first : job.piece;
  bfloat16* x = at<bfloat16>(store, job.x_at) + first;
  float *row = at<float>(store, job.out_at) + first, *work = at<float>(store, job.work_at);
  if (!second) npu::norm::widen_square(x, work, kLanes, work + job.piece, n);  // y
  scale(second ? row : work, weights, work, second ? work : row, x, n, state);
  if (second) return;
  npu::fp32::multiply_add(row, row, kStep, npu::fp32::kNothing.values, floats(state + kSquares), x,
                          n);
  if (more == -1) make_factor(state, job.width, job.epsilon);
}

// What precedes the weights of a norm, then those that are kept.
NPU_OUTLINED inline void begin_norm(int32_t* store, const Job& job, int32_t* state) {
  const int32_t n = job.width;
  float *row = at<float>(store, job.out_at), *squares = floats(state + kSquares);
  bfloat16* x = at<bfloat16>(store, job.x_at);
  if (job.pieces != 0) {
    npu::norm::widen_square(x, work_of(store), 0, squares, n);  // y
  } else {                                                      // an embedding
    const float* factor = npu::fp32::fill(floats(state + kFactor), bits_float(job.scale));
    npu::fp32::multiply_add(at<float>(store, job.row_at), factor, 0, npu::fp32::kZeros.values, row,
                            x, n);
    npu::fp32::multiply_add(row, row, kStep, npu::fp32::kNothing.values, squares, x, n);
  }
  make_factor(state, n, job.epsilon);
  const float* weights = at<float>(store, job.weights_at);
  NPU_SERIAL_FOR(int32_t i = 0, i < job.kept, ++i) {
    next_norm(weights, store, job, state, i);
    weights += job.piece;
  }
}

// The gates of 512 elements, then what they multiply.
NPU_OUTLINED inline void next_geglu(const int32_t* object, int32_t* store, const Job& job,
                                    int32_t number) {
  bfloat16* gates = at<bfloat16>(store, job.y_at);
  if ((number & 1) == 0) {
    copy_words(object, gates, kInWords);
    return;
  }
  const bfloat16* up = reinterpret_cast<const bfloat16*>(object);
  bfloat16* x = at<bfloat16>(store, job.x_at) + (number >> 1) * kInHalves;
  npu::gelu::geglu_in_passes(gates, up, x, kInHalves, work_of(store));
}

// The next head of `dim` elements, normalised and rotated as one of head_dim: its halves at the
// halves' starts, so that rotation pairs the same elements; zeros between.
NPU_OUTLINED inline void turn_head(int32_t* store, const float* weights, const Job& job,
                                   int32_t* state) {
  const bfloat16* from = at<bfloat16>(store, state[kFrom]);
  bfloat16* to = at<bfloat16>(store, state[kTo]);
  const int32_t d = job.head_dim, dim = job.dim, half = d >> 1;
  state[kFrom] += 2 * dim;
  state[kTo] += 2 * d;
  if (dim != d) {
    copy_short(from, to, dim >> 1, half);
    copy_short(from + (dim >> 1), to + half, dim >> 1, half);
    from = to;
  }
  float *head = work_of(store), *turned = head + kTurned;
  npu::norm::widen_square(from, head, kLanes, floats(state + kSquares), d);
  make_factor(state, d, job.epsilon);
  scale(head, weights, head, head, to, d, state);
  copy_words(head, head + d, half);
  npu::fp32::multiply_add(head, head + kCosines, kStep, npu::fp32::kZeros.values, turned, to, d);
  npu::fp32::multiply_add(head + half, head + kSines, kStep, turned, turned, to, d);
}

// The next value as one of head_dim elements.
inline void take_value(int32_t* store, const Job& job, int32_t* state) {
  const bfloat16* from = at<bfloat16>(store, state[kFrom] + 2 * (job.kv_heads - 1) * job.dim);
  bfloat16* to = at<bfloat16>(store, state[kTo]);
  state[kTo] += 2 * job.head_dim;
  copy_short(from, to, job.dim, job.head_dim);
}

// The next table for the attention cores.
NPU_OUTLINED inline void take_table(int32_t* store, int32_t number, int32_t* state) {
  const int32_t to = state[kTo];
  state[kTo] = to + kTableBytes;
  copy_words(at<int32_t>(store, 3072 + number * kTableBytes), at<int32_t>(store, to),
             kTableBytes / 4);
}

// Headers for the attention cores, a table and the queries of a key head; then keys and values.
NPU_OUTLINED inline void rotate(int32_t* store, const Job& job, int32_t* state) {
  state[kFrom] = job.y_at;
  state[kTo] = job.out_at;
  const int32_t half = job.head_dim >> 1, *angles = store + 2048 / 4;
  int32_t* cosines = at<int32_t>(store, npu::vector::kDataBytes) + kCosines;
  int32_t* sines = cosines + kSines - kCosines;
  copy_words(angles, cosines, half);
  copy_words(angles, cosines + half, half);
  angles += kHead / 2;
  copy_words(angles, sines + half, half);
  NPU_SERIAL_FOR(int32_t i = 0, i < half, i += 16) {
    const auto negated = aie::broadcast<int32_t, 16>(INT32_MIN);
    aie::store_v(sines + i, aie::bit_xor(aie::load_v<16>(angles + i), negated));
  }
  int32_t key = 0;  // there is at least one, and one query for it
  do {
    take_table(store, key, state);
    int32_t head = 0;
    do {
      turn_head(store, floats(store), job, state);
    } while (++head < job.heads);
  } while (++key < job.kv_heads);
  key = 0;
  do {
    turn_head(store, at<float>(store, 1024), job, state);
    take_value(store, job, state);
  } while (++key < job.kv_heads);
}

// What the rows of a key head count in every part, 2^(m - M) over all parts, takes the place of
// their maxima, 1 / L that of the first part's denominators. `own`: the first part's statistics.
inline void part_factors(float* own, int32_t parts, int32_t heads) {
  using Acc = aie::accum<accfloat, kRowLanes>;
  const auto nothing = npu::fp32::broadcast<kRowLanes>(npu::attention::kNothing);
  const auto none = aie::zeros<int32_t, kRowLanes>();
  const float* const end = own + parts * 2 * kPartStatistics;
  auto most = nothing;
  NPU_SERIAL_FOR(const float* one = own, one != end, one += 2 * kPartStatistics) {
    const auto count = aie::load_v<kRowLanes>(one + kPartStatistics);
    const auto some = aie::lt(none, count.template cast_to<int32_t>());
    most = aie::max(most, aie::select(nothing, aie::load_v<kRowLanes>(one), some));
  }
  Acc sum(aie::zeros<float, kRowLanes>());
  NPU_SERIAL_FOR(float* one = own, one != end, one += 2 * kPartStatistics) {
    const auto count = aie::load_v<kRowLanes>(one + kPartStatistics);
    const auto some = aie::lt(none, count.template cast_to<int32_t>());
    const Acc below = aie::sub(npu::fp32::load<kRowLanes>(one), Acc(most));
    // A sum with 1.5 * 2^23 + 127 is a whole number, whose low bits are the exponent of 2^n.
    const auto limited =
        aie::max(npu::fp32::floats(below), npu::fp32::broadcast<kRowLanes>(-127.0f));
    const Acc shifted = aie::add(Acc(limited), Acc(npu::fp32::broadcast<kRowLanes>(12583039.0f)));
    const auto power = aie::upshift(npu::fp32::floats(shifted).template cast_to<int32_t>(), 23);
    const auto factor = aie::select(none, power, some).template cast_to<float>();
    sum = aie::mac(sum, count, factor);
    aie::store_v(one, factor);
  }
  own += kPartStatistics;
  npu::fp32::store(own, sum);
  NPU_SERIAL_FOR(int32_t i = 0, i < heads, ++i) own[i] = npu::fp32::quotient(1.0f, own[i]);
}

// A row of a partial result, elements from `i` on of the piece: added to those of earlier parts;
// after the last one into x, heads side by side.
NPU_OUTLINED inline void combine_row(const float* values, int32_t* store, const Job& job,
                                     int32_t* state, int32_t i, int32_t number) {
  const int32_t part = state[kPart];
  float* sums = at<float>(store, job.y_at) + i;
  bfloat16* rows = at<bfloat16>(store, job.y_at + npu::vector::kInBytes) + i;
  const float* own = floats(store) + state[kStatistics] + state[kRow] + number;
  const float share = own[part * 2 * kPartStatistics];
  if (float_bits(share) != 0) {  // a part that nobody wrote may hold anything
    const float* f = npu::fp32::fill(floats(state + kFactor), share * own[kPartStatistics]);
    npu::fp32::multiply_add(values + i, f, 0, sums, sums, rows, job.head_dim);
  }
  if (part + 1 < job.parts) return;
  copy_short(rows, at<bfloat16>(store, job.x_at) + state[kRowX], job.dim, job.dim);
  state[kRowX] += job.dim;
}

// The next 256 elements of a partial result: those of all parts, one after the other.
NPU_OUTLINED inline void combine(const int32_t* object, int32_t* store, const Job& job,
                                 int32_t* state) {
  const int32_t row = state[kRow], left = job.heads - row;  // at least one
  if (state[kPart] == 0) {
    copy_words(&npu::fp32::kZeros, at<float>(store, job.y_at), 3 * kInWords / 2, 0);
    if (row == 0) part_factors(floats(store) + state[kStatistics], job.parts, job.heads);
  }
  int32_t number = 0, i = 0;
  do {
    combine_row(reinterpret_cast<const float*>(object), store, job, state, i, number++);
    i += job.head_dim;
  } while (i < kInWords && number < left);
  if (++state[kPart] < job.parts) return;
  state[kPart] = 0;
  state[kRow] = row + number;
  if (number < left) return;
  state[kStatistics] += records(job.parts) * 2 * kPartStatistics;
  state[kRow] = 0;
}

#if NPU_DECLARATIONS
constexpr double kCall = 40;

// Whether a job keeps the kernels inside the store.
bool job_fits(const Job& job) {
  const int64_t store = npu::vector::kStoreBytes;
  const auto inside = [&](int64_t from, int64_t bytes) {
    return from >= 0 && from % 64 == 0 && bytes >= 0 && from + bytes <= store;
  };
  const int64_t heads = job.heads, kv = job.kv_heads, d = job.head_dim;
  const int64_t applied = int64_t{job.inputs} - job.take;
  if (job.x_elements < 0 || job.x_elements % 16 != 0 || job.x_elements > store || job.x_piece < 0 ||
      job.x_piece > kXElements || job.x_piece % 16 != 0 ||
      (job.x_objects != 0 && job.x_cycle < 1) || job.x_cycle < 0 || applied < 0 ||
      applied > store || job.take < 0 || job.take > store || job.out < 0 || job.out > store ||
      !inside(0, int64_t{job.take} * npu::vector::kInBytes) ||
      !inside(job.out_at, int64_t{job.out} * npu::vector::kOutBytes)) {
    return false;
  }
  if ((job.x_objects != 0 || job.kind != int32_t(Kind::kRotate)) &&
      !inside(job.x_at, 2 * job.x_elements)) {
    return false;
  }
  const int64_t dim = job.dim;
  const bool shape = heads >= 1 && kv >= 1 && heads <= 64 && kv <= 64 &&
                     (d == 64 || d == 128 || d == 256) && dim >= 2 && dim <= d && dim % 2 == 0;
  switch (Kind(job.kind)) {
    case Kind::kNorm:
    case Kind::kLongNorm: {
      const int64_t width = job.width, piece = job.piece, pieces = job.pieces;
      const bool kept = Kind(job.kind) == Kind::kNorm;
      return width >= 32 && width % 32 == 0 && inside(job.out_at, 4 * width) && piece >= 32 &&
             piece % 32 == 0 && (kept ? piece >= width && pieces <= 1 : piece == kInWords) &&
             pieces >= 0 && (pieces - 1) * piece < width && job.kept == (kept ? pieces + 1 : 0) &&
             inside(job.row_at, 4 * width) && inside(job.x_at, 2 * width) &&
             inside(job.work_at, 4 * (piece + kLanes)) &&
             inside(job.weights_at, 4 * piece * job.kept) && (applied - pieces - 1) * piece < width;
    }
    case Kind::kGeglu:
      return inside(job.y_at, npu::vector::kInBytes) &&
             inside(job.x_at, applied / 2 * npu::vector::kInBytes) &&
             job.y_at >= job.x_at + applied / 2 * npu::vector::kInBytes;
    case Kind::kRotate:
      return shape && job.width == d && job.rows == kv * (heads + 1) &&
             inside(3072, kv * kTableBytes) && inside(job.y_at, 2 * (heads + 2) * kv * dim) &&
             inside(job.out_at, kv * (kTableBytes + 2 * heads * d + 4 * d)) &&
             job.out_at >= job.y_at + 2 * (heads + 2) * kv * dim;
    case Kind::kCombine:
      return shape && job.width == d && job.rows == heads && job.parts >= 1 && job.parts <= 64 &&
             heads <= kRowLanes && job.take == kv * records(job.parts) / 4 &&
             inside(0, kv * records(job.parts) * 8 * int64_t{kPartStatistics}) &&
             inside(job.y_at, 4 * kInWords) &&
             job.y_at >= kv * records(job.parts) * 8 * int64_t{kPartStatistics} &&
             inside(job.y_at, 8 * kInWords) && job.x_at >= job.y_at + 8 * kInWords &&
             inside(job.x_at, 2 * (heads * kv * d + kInWords)) &&
             applied <= (heads * d + kInWords - 1) / kInWords * job.parts * kv;
    case Kind::kSend:
      return true;
  }
  return false;
}

template <int kJobOperand>
void check_job(const char* kernel, const KernelArgument* operands) {
  const auto& job = *reinterpret_cast<const Job*>(operands[kJobOperand].data);
  const auto* state = reinterpret_cast<const int32_t*>(operands[kJobOperand + 1].data);
  bool counted = state[kTabled] >= 0 && state[kTabled] < kTableParts &&
                 state[kLeft] - int64_t{kLast} < job.take &&
                 state[kLeft] - int64_t{kLast} >= int64_t{job.take} - 1 - job.inputs &&
                 state[kSentOut] >= 0 && state[kSentOut] <= job.out && state[kTurn] >= 0 &&
                 (state[kTurn] == 0 || state[kTurn] < job.x_cycle);
  if (Kind(job.kind) == Kind::kCombine) {
    const int64_t rows = int64_t{job.heads} * job.kv_heads;
    counted =
        counted && state[kPart] >= 0 && state[kPart] < job.parts && state[kRow] >= 0 &&
        state[kRow] < job.heads && state[kStatistics] >= 0 &&
        state[kStatistics] <= int64_t{job.kv_heads} * records(job.parts) * 2 * kPartStatistics &&
        state[kRowX] >= 0 && state[kRowX] <= rows * job.dim;
  }
  if (counted && job_fits(job)) return;
  npu::fail(npu::ErrorKind::kKernel,
            "[%s] the job (kind %d, inputs %d, take %d, x_objects %d, out %d) or the state of the "
            "core does not fit its buffers; send the job first",
            kernel, job.kind, job.inputs, job.take, job.x_objects, job.out);
}

// And the numbers of a call are those of its job and state, for a kind that has such objects.
void check_input(const char* kernel, const KernelArgument* operands) {
  check_job<2>(kernel, operands);
  const auto& job = *reinterpret_cast<const Job*>(operands[2].data);
  const auto* state = reinterpret_cast<const int32_t*>(operands[3].data);
  const int64_t left = int64_t{state[kLeft]} - kLast;
  const Kind kind = Kind(job.kind);
  const bool takes = kind != Kind::kSend && kind != Kind::kGeglu;
  const bool applies = kind != Kind::kSend && kind != Kind::kRotate && kind != Kind::kNorm;
  if (operands[4].value == state[kLeft] && operands[5].value == job.kind &&
      operands[6].value == job.width && operands[7].value == job.rows &&
      operands[8].value == job.parts && left >= job.take - job.inputs &&
      (left >= 0 ? takes : applies)) {
    return;
  }
  npu::fail(npu::ErrorKind::kKernel,
            "[%s] object %d of %d of a job of kind %d, or its numbers, are not what the job says",
            kernel, int(job.take - left), job.inputs, job.kind);
}

// On the way of tables for the other cores: those of the GEMV cores pass to x, those of attention
// through the store. Operands as below.
void table_copies(const KernelArgument* operands, WordCopies& out) {
  const auto* state = reinterpret_cast<const int32_t*>(operands[2].data);
  if (state[kTabled] < 0 || state[kTabled] >= kTableParts) return;
  out.add({1, 0, 1, 0, kXElements / 2});  // the other parts stay
  out.add({1, state[kTabled] * kInWords, 0, 0, kInWords});
}
void input_copies(const KernelArgument* operands, WordCopies& out) {
  const auto& job = *reinterpret_cast<const Job*>(operands[2].data);
  const auto left = int32_t(operands[4].value);
  if (left < kLast || !job_fits(job) || left - kLast >= job.take) return;
  if (left > kLast) out.add({1, 0, 1, 0, kStoreWords});  // the others stay
  out.add({1, (job.take + (kLast - 1) - left) * kInWords, 0, 0, kInWords});
  if (left > kLast || operands[5].value != int32_t(Kind::kRotate)) return;
  const int32_t step = (kTableBytes + 2 * job.heads * job.head_dim) / 4;
  for (int32_t key = 0; key < job.kv_heads; ++key) {
    const int32_t from = (3072 + key * kTableBytes) / 4;
    if (!out.add({1, job.out_at / 4 + key * step, 1, from, kTableBytes / 4})) return;
  }
}
void out_copies(const KernelArgument* operands, WordCopies& out) {
  const auto& job = *reinterpret_cast<const Job*>(operands[2].data);
  const auto* state = reinterpret_cast<const int32_t*>(operands[3].data);
  if (!job_fits(job) || state[kSentOut] < 0 || state[kSentOut] >= job.out) return;
  out.add({1, 0, 0, job.out_at / 4 + state[kSentOut] * kOutWords, kOutWords});
}

// Words of a job and counters, from which those copies follow.
constexpr int32_t kCounters = kSentOut + 1;
constexpr Operand kJob = buffer("job", kJobWords).steers(Steering::kReads, kJobWords);
constexpr Operand kCounted = buffer("state", kStateWords).steers(Steering::kUpdates, kCounters);

// Counted from the source, not measured; npu1 has half the lanes. A call of copy_words().
constexpr double copy_cycles(int64_t words) {
  return npu::fp32::kOutlined + 12 + double(words) / 8;
}
constexpr double kFactorCycles = npu::fp32::kReduction + 2 * npu::fp32::kScalar +
                                 2 * npu::fp32::kOutlined + npu::fp32::kQuotient;
constexpr double scale_cycles(int64_t n) {
  return npu::fp32::kOutlined + 2 * npu::fp32::multiply_add_cycles(n);
}
// A piece of either norm.
constexpr double add_norm_cycles(int64_t n) {
  return npu::fp32::kOutlined + 20 + npu::norm::widen_square_cycles(n) + scale_cycles(n) +
         npu::fp32::multiply_lanes_cycles(n);
}
constexpr double scale_norm_cycles(int64_t n) {
  return npu::fp32::kOutlined + 20 + scale_cycles(n);
}
double turn_head_cycles(int64_t d) {
  return npu::fp32::kOutlined + npu::norm::widen_square_cycles(d) + kFactorCycles +
         scale_cycles(d) + copy_cycles(d / 2) + 2 * npu::fp32::multiply_add_cycles(d);
}
// A part in the two loops over parts, every result of which is waited for; a head's quotient.
constexpr double kPartCycles = 40 + 130,
                 kShareCycles = 2 * npu::fp32::kOutlined + npu::fp32::kQuotient;

// When everything is taken.
double taken_cycles(Kind kind, int64_t width, int64_t rows) {
  switch (kind) {
    case Kind::kNorm:
      return npu::fp32::kOutlined + npu::norm::widen_square_cycles(width) + 2 * kFactorCycles +
             add_norm_cycles(width) + scale_norm_cycles(width);
    case Kind::kLongNorm:
      return npu::fp32::kOutlined + npu::norm::widen_square_cycles(width) + kFactorCycles;
    case Kind::kRotate:  // of every key head a table and a value, for two heads at least
      return 4 * copy_cycles(128) + 16 * 8 + double(rows) * turn_head_cycles(width) +
             double(rows / 2) *
                 (2 * npu::fp32::kOutlined + copy_cycles(kTableBytes / 4) + copy_cycles(width / 2));
    default:
      return 0;
  }
}
// Per 256 elements, gates and what they multiply 512 each.
double apply_cycles(Kind kind, int64_t width, int64_t rows, int64_t parts) {
  switch (kind) {
    case Kind::kLongNorm:  // of two calls one for either norm
      return (add_norm_cycles(kInWords) + scale_norm_cycles(kInWords)) / 2 +
             kFactorCycles * kInWords / 2 / double(width);
    case Kind::kGeglu:  // of two calls one computes
      return (copy_cycles(kInWords) + npu::gelu::passes_cycles(kInHalves)) / 2;
    case Kind::kCombine: {  // for all parts of a row once: its factors, zeros, the copy into x
      const double row =
          npu::fp32::kOutlined + 40 + npu::fp32::kScalar + npu::fp32::multiply_add_cycles(width);
      const double all = double(parts) * kPartCycles / double(rows) + kShareCycles;
      return copy_cycles(3 * kInWords / 2) / double(parts) +
             double(kInWords) / double(width) *
                 (row + (all + npu::fp32::kOutlined + copy_cycles(width / 2)) / double(parts));
    }
    default:
      return 0;
  }
}
// Of a call that has so many objects to take after its own; below 0 it applies one.
double input_cycles(const Timing&, const int64_t* integers) {
  const Kind kind = Kind(integers[1]);
  const int64_t left = integers[0], width = integers[2], rows = integers[3];
  if (left < kLast) return kCall + apply_cycles(kind, width, rows, integers[4]);
  const double copy = kCall + copy_cycles(kInWords);
  return left > kLast ? copy : copy + taken_cycles(kind, width, rows);
}
// Generated as npu2 computes it: GeGLU in one pass. Other rows are fp32.
Parts input_parts(const Timing&, const int64_t* integers) {
  const bool applies = integers[0] < kLast && Kind(integers[1]) == Kind::kGeglu;
  if (!applies || __AIE_ARCH__ == 20) return {};
  return {{npu::gelu::geglu_part(kInHalves, 1 / 2.0)}};
}
#endif

}  // namespace vector_core
}  // namespace

// Takes the words of a job and starts it.
NPU_KERNEL void vector_begin(const int32_t* command, int32_t* job, int32_t* state) {
  using namespace vector_core;
  aie::set_rounding(aie::rounding_mode::conv_even);  // a core resets to floor
  copy_words(command, job, kJobWords);
  copy_words(&npu::fp32::kZeros, state, npu::vector::kStateWords, 0);
  state[kLeft] = job_of(job).take + (kLast - 1);
}

// A part of the table that sets up the GEMV cores.
NPU_KERNEL void vector_table(const int32_t* part, bfloat16* x, int32_t* state) {
  using namespace vector_core;
  copy_words(part, reinterpret_cast<int32_t*>(x) + state[kTabled]++ * kInWords, kInWords);
}

// The next object: kept, and when it is the last one of these, what there is to compute; then
// weights of a long norm, gates and what they multiply, partial results. left: that of the state;
// kind, width, rows, parts: those of the job.
NPU_KERNEL void vector_input(const int32_t* object, int32_t* store, const int32_t* words,
                             int32_t* state, int32_t left, int32_t kind, int32_t width,
                             int32_t rows, int32_t parts) {
  using namespace vector_core;
  (void)width, (void)rows, (void)parts;
  const Job& job = job_of(words);
  state[kLeft] = left - 1;
  const auto what = Kind(kind);
  if (left >= kLast) {
    copy_words(object, store + (job.take + (kLast - 1) - left) * kInWords, kInWords);
    if (left > kLast) return;
    if (what == Kind::kRotate) return rotate(store, job, state);
    if (what != Kind::kCombine) begin_norm(store, job, state);
    return;
  }
  const int32_t number = kLast - 1 - left;
  if (what == Kind::kGeglu) return next_geglu(object, store, job, number);
  if (what == Kind::kCombine) return combine(object, store, job, state);
  next_norm(reinterpret_cast<const float*>(object), store, job, state, number);
}

// The next object of x, with zeros where x has ended.
NPU_KERNEL void vector_x(const int32_t* store, bfloat16* x, const int32_t* words, int32_t* state) {
  using namespace vector_core;
  const Job& job = job_of(words);
  const int32_t turn = state[kTurn], first = turn * job.x_piece;
  state[kTurn] = turn + 1 == job.x_cycle ? 0 : turn + 1;
  int32_t left = job.x_elements - first;
  left = left < 0 ? 0 : left < job.x_piece ? left : job.x_piece;
  copy_words(at<bfloat16>(store, job.x_at) + first, x, left >> 1);
  copy_words(&npu::fp32::kZeros, x + left, (job.x_piece - left) >> 1, 0);
}

// The next object for memory.
NPU_KERNEL void vector_out(const int32_t* store, int32_t* out, const int32_t* words,
                           int32_t* state) {
  using namespace vector_core;
  const int32_t first = job_of(words).out_at + state[kSentOut]++ * npu::vector::kOutBytes;
  copy_words(at<int32_t>(store, first), out, kOutWords);
}

NPU_DECLARE(
    vector_begin,
    {.operands =
         {buffer("command", vector_core::kInWords).steers(Steering::kReads, vector_core::kJobWords),
          buffer("job", vector_core::kJobWords).steers(Steering::kCopies, vector_core::kJobWords),
          buffer("state", vector_core::kStateWords)
              .steers(Steering::kSets, vector_core::kCounters)},
     .cycles = fixed<32>});
NPU_DECLARE(vector_table,
            {.operands = {buffer("part", vector_core::kInWords),
                          buffer("x", vector_core::kXElements),
                          vector_core::kCounted.with_word(vector_core::kTabled, 0,
                                                          vector_core::kTableParts - 1)},
             .cycles = fixed<56>,
             .copies = vector_core::table_copies});
NPU_DECLARE(vector_input,
            {.operands = {buffer("object", vector_core::kInWords),
                          buffer("store", vector_core::kStoreWords), vector_core::kJob,
                          vector_core::kCounted, integer("left", 0, 1 << 16),
                          integer("kind", 0, npu::vector::kKinds - 1), integer("width", 0, 1 << 16),
                          integer("rows", 0, 1 << 16), integer("parts", 0, 1 << 16)},
             .cycles = vector_core::input_cycles,
             .check = vector_core::check_input,
             .copies = vector_core::input_copies,
             .parts = vector_core::input_parts});
NPU_DECLARE(vector_x, {.operands = {buffer("store", vector_core::kStoreWords),
                                    buffer("x", vector_core::kXElements), vector_core::kJob,
                                    vector_core::kCounted},
                       .cycles = fixed<160>,
                       .check = vector_core::check_job<2>});
NPU_DECLARE(vector_out, {.operands = {buffer("store", vector_core::kStoreWords),
                                      buffer("out", vector_core::kOutWords), vector_core::kJob,
                                      vector_core::kCounted},
                         .cycles = fixed<32>,
                         .check = vector_core::check_job<2>,
                         .copies = vector_core::out_copies});
