// The vector core of the decoder configuration: what lies between the products of a token, job by
// job (vector_job.h). Rows are fp32 in the store, sums and products fp32; what leaves as x, q, k or
// v is rounded once to bfloat16.
#include <stdint.h>

#include <aie_api/aie.hpp>

#include "attention.h"
#include "fp32.h"
#include "gelu.h"
#include "kernel.h"
#include "norm.h"
#include "rope.h"
#include "vector_job.h"

namespace {
namespace vector_core {

using npu::vector::Job, npu::vector::Kind, npu::vector::kJobWords, npu::vector::kStateWords;

constexpr int32_t kInWords = npu::vector::kInBytes / 4, kOutWords = npu::vector::kOutBytes / 4;
constexpr int32_t kStoreWords = npu::vector::kStoreBytes / 4, kXElements = 2048;
constexpr int32_t kInHalves = npu::vector::kInBytes / 2;    // bfloat16 elements of an input object
using npu::attention::kTableBytes;                          // in front of a key head's queries
constexpr int32_t kPartStatistics = npu::attention::kRows;  // maxima, then denominators

// Words of the state: objects of a table, bytes taken, objects applied and scaled, objects of x and
// results sent; objects of x since it began; kCombine: the next part, its piece's first row in the
// group, the rows' first word of statistics and first element of x. Then the lane sums of a norm,
// lanes of a factor, 1 / L of the rows of a piece, and what steps leave for the next
// one.
enum State : int32_t {
  kTabled,
  kTaken,
  kApplied,
  kScaled,
  kSentX,
  kSentOut,
  kTurn,
  kPart,
  kRow,
  kStatistics,
  kRowX,
  kFrom,
  kTo,
  kInverses = 16,
  kSquares = 32,
  kFactor = 64,
  kWork = 96
};
// kRotate, in kWork: a head and its lower half again, its products with cosines, the cosines of
// both halves, the sines of both, negated for the lower one.
constexpr int32_t kHead = npu::attention::kMaxDim, kTurned = kHead + kHead / 2;
constexpr int32_t kCosines = kTurned + kHead, kSines = kCosines + kHead;
static_assert(kWork + kSines + kHead <= kStateWords);
static_assert(kWork + npu::gelu::passes_work(kInHalves) <= kStateWords);

using npu::fp32::kLanes, npu::fp32::kStep;

inline const Job& job_of(const int32_t* words) { return *reinterpret_cast<const Job*>(words); }
inline float bits_float(int32_t bits) { return __builtin_bit_cast(float, bits); }
inline int32_t float_bits(float value) { return __builtin_bit_cast(int32_t, value); }
inline float* floats(int32_t* words) { return reinterpret_cast<float*>(words); }

template <typename T>
inline T* at(int32_t* store, int32_t byte) {
  return reinterpret_cast<T*>(reinterpret_cast<uint8_t*>(store) + byte);
}

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

// to = x factor weights of n elements, and the same rounded. `base`: kZeros, or null: it is added.
NPU_OUTLINED inline void scale(const float* x, const float* weights, const float* base, float* to,
                               bfloat16* rounded, int32_t n, int32_t* state) {
  float* work = floats(state + kWork);
  npu::fp32::multiply_add(x, floats(state + kFactor), 0, npu::fp32::kZeros.values, work, rounded,
                          n);
  npu::fp32::multiply_add(work, weights, kStep, base, to, rounded, n);
}

// The squares of 256 elements of the row, or of as many as are left.
NPU_OUTLINED inline void square_row(const float* row, int32_t n, int32_t* state) {
  float* work = floats(state + kWork);
  npu::fp32::multiply_add(row, row, kStep, npu::fp32::kZeros.values, work,
                          reinterpret_cast<bfloat16*>(work + kInWords), n);
  npu::norm::add_lanes(work, floats(state + kSquares), n);
}

// Before the weights of the first norm: its factor; where there is no sublayer, the scaled row.
NPU_OUTLINED inline void begin_norm(int32_t* store, const Job& job, int32_t* state) {
  float *squares = floats(state + kSquares), *row = floats(store);
  if (job.y_at >= 0) {
    npu::norm::widen_square(at<bfloat16>(store, job.y_at), floats(state + kWork), 0, squares,
                            job.width);
    make_factor(state, job.width, job.epsilon);
    return;
  }
  const float* factor = npu::fp32::fill(floats(state + kFactor), bits_float(job.scale));
  npu::fp32::multiply_add(row, factor, 0, npu::fp32::kZeros.values, row,
                          at<bfloat16>(store, job.x_at), job.width);
  NPU_ROLLED for (int32_t left = job.width; left > 0; left -= kInWords, row += kInWords) {
    square_row(row, left < kInWords ? left : kInWords, state);
  }
}

// h += norm(y) w for the next 256 elements.
NPU_OUTLINED inline void add_norm(const int32_t* object, int32_t* store, const Job& job,
                                  int32_t* state, int32_t number) {
  const int32_t first = number * kInWords, left = job.width - first;
  const int32_t count = left < kInWords ? left : kInWords;
  bfloat16* y = at<bfloat16>(store, job.y_at) + first;
  float *work = floats(state + kWork), *row = floats(store) + first;
  npu::norm::widen_square(y, work, kLanes, work + kInWords, count);
  scale(work, reinterpret_cast<const float*>(object), nullptr, row, y, count, state);
  square_row(row, count, state);
}

// The gates of 512 elements, then what they multiply.
NPU_OUTLINED inline void next_geglu(const int32_t* object, int32_t* store, const Job& job,
                                    int32_t* state, int32_t number) {
  bfloat16* gates = at<bfloat16>(store, job.y_at);
  if ((number & 1) == 0) {
    copy_words(object, gates, kInWords);
    return;
  }
  const bfloat16* up = reinterpret_cast<const bfloat16*>(object);
  bfloat16* x = at<bfloat16>(store, job.x_at) + (number >> 1) * kInHalves;
  npu::gelu::geglu_in_passes(gates, up, x, kInHalves, floats(state + kWork));
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
  float *head = floats(state + kWork), *turned = head + kTurned;
  npu::norm::widen_square(from, head, kLanes, floats(state + kSquares), d);
  make_factor(state, d, job.epsilon);
  scale(head, weights, npu::fp32::kZeros.values, head, to, d, state);
  copy_words(head, head + d, half);
  npu::fp32::multiply_add(head, head + kCosines, kStep, npu::fp32::kZeros.values, turned, to, d);
  npu::fp32::multiply_add(head + half, head + kSines, kStep, turned, turned, to, d);
}

// The next value as one of head_dim elements.
NPU_OUTLINED inline void take_value(int32_t* store, const Job& job, int32_t* state) {
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
  int32_t *cosines = state + kWork + kCosines, *sines = state + kWork + kSines;
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

// 2^n for a whole number n <= 0, 0 where that is no normal number.
inline float power_of_two(float n) {
  constexpr uint32_t kLeast = 0xC2FC0000;  // -126
  if (static_cast<uint32_t>(float_bits(n)) > kLeast) return 0;
  return bits_float((static_cast<int32_t>(n) + 127) << 23);
}

// A number that compares as the float of these bits does.
inline int32_t rank(int32_t bits) { return bits ^ (bits >> 31 & INT32_MAX); }

// What a row counts in every part: 2^(m - M) / L over all parts; the result is 1 / L. `own`: the
// statistics of the first part.
NPU_OUTLINED inline float part_factors(const int32_t* own, int32_t parts, float* factors) {
  int32_t most = float_bits(npu::attention::kNothing);
  const int32_t* const end = own + parts * 2 * kPartStatistics;
  for (const int32_t* one = own; one != end; one += 2 * kPartStatistics) {
    if (one[kPartStatistics] != 0 && rank(one[0]) > rank(most)) most = one[0];
  }
  float sum = 0;
  for (; own != end; own += 2 * kPartStatistics) {
    float factor = 0;
    if (own[kPartStatistics] != 0) {
      factor = power_of_two(bits_float(own[0]) - bits_float(most));
      sum += bits_float(own[kPartStatistics]) * factor;
    }
    *factors++ = factor;
  }
  return npu::fp32::quotient(1.0f, sum);
}

// A row of a partial result, elements from `i` on of the piece: added to those of earlier parts;
// after the last one into x, heads side by side.
NPU_OUTLINED inline void combine_row(const float* values, int32_t* store, const Job& job,
                                     int32_t* state, int32_t i, int32_t number) {
  const int32_t part = state[kPart];
  float *sums = at<float>(store, job.y_at), *inverse = floats(state + kInverses + number);
  bfloat16* rows = reinterpret_cast<bfloat16*>(sums + kInWords) + i;
  float* factors = sums + 3 * kInWords / 2 + number * job.parts;  // of each row in every part
  if (part == 0) *inverse = part_factors(store + state[kStatistics] + number, job.parts, factors);
  const float share = factors[part];
  if (float_bits(share) != 0) {  // a part that nobody wrote may hold anything
    const float* f = npu::fp32::fill(floats(state + kFactor), share * *inverse);
    npu::fp32::multiply_add(values + i, f, 0, sums + i, sums + i, rows, job.head_dim);
  }
  if (part + 1 < job.parts) return;
  copy_short(rows, at<bfloat16>(store, job.x_at) + state[kRowX], job.dim, job.dim);
  state[kRowX] += job.dim;
}

// The next 256 elements of a partial result: those of all parts, one after the other.
NPU_OUTLINED inline void combine(const int32_t* object, int32_t* store, const Job& job,
                                 int32_t* state) {
  if (state[kPart] == 0)
    copy_words(&npu::fp32::kZeros, at<float>(store, job.y_at), 3 * kInWords / 2, 0);
  int32_t number = 0, i = 0;
  const int32_t left = job.heads - state[kRow];  // at least one
  do {
    combine_row(reinterpret_cast<const float*>(object), store, job, state, i, number++);
    i += job.head_dim;
  } while (i < kInWords && number < left);
  if (++state[kPart] < job.parts) return;
  state[kPart] = 0;
  state[kRow] += number;
  state[kStatistics] += number;
  if (number < left) return;
  state[kStatistics] += job.parts * 2 * kPartStatistics - job.heads;
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
  if (job.x_elements < 0 || job.x_elements % 16 != 0 || job.x_elements > store || job.x_piece < 0 ||
      job.x_piece > kXElements || job.x_piece % 16 != 0 ||
      (job.x_objects != 0 && job.x_cycle < 1) || job.x_cycle < 0 || job.apply < 0 ||
      job.apply > store || job.take < 0 || job.take > store || job.out < 0 || job.out > store ||
      job.weights < 0 || job.weights > store || job.take_bytes < 0 ||
      job.take_bytes > npu::vector::kInBytes || job.take_bytes % 64 != 0 ||
      !inside(0, int64_t{job.take} * job.take_bytes) ||
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
    case Kind::kNorm: {
      const int64_t width = job.width, padded = (width + kInWords - 1) / kInWords * kInWords;
      return width >= 32 && width % 32 == 0 && inside(0, 4 * padded) &&
             int64_t{job.apply} * kInWords <= padded && int64_t{job.weights} * kInWords <= padded &&
             inside(job.x_at, 2 * padded) && job.x_at >= 4 * padded &&
             (job.y_at < 0 || (job.y_at >= 4 * padded && inside(job.y_at, 2 * padded)));
    }
    case Kind::kGeglu:
      return inside(job.y_at, npu::vector::kInBytes) &&
             inside(job.x_at, int64_t{job.apply} / 2 * npu::vector::kInBytes) &&
             job.y_at >= job.x_at + int64_t{job.apply} / 2 * npu::vector::kInBytes;
    case Kind::kRotate:
      return shape && inside(3072, kv * kTableBytes) &&
             inside(job.y_at, 2 * (heads + 2) * kv * dim) &&
             inside(job.out_at, kv * (kTableBytes + 2 * heads * d + 4 * d)) &&
             job.out_at >= job.y_at + 2 * (heads + 2) * kv * dim;
    case Kind::kCombine:
      return shape && job.parts >= 1 && job.parts <= 64 && heads <= kPartStatistics &&
             inside(0, kv * job.parts * 8 * int64_t{kPartStatistics}) &&
             inside(job.y_at, 4 * kInWords) &&
             job.y_at >= kv * job.parts * 8 * int64_t{kPartStatistics} &&
             inside(job.y_at, 8 * kInWords) && job.x_at >= job.y_at + 8 * kInWords &&
             inside(job.x_at, 2 * (heads * kv * d + kInWords)) &&
             job.apply <= (heads * d + kInWords - 1) / kInWords * job.parts * kv;
    case Kind::kSend:
      return true;
  }
  return false;
}

template <int kJobOperand>
void check_job(const char* kernel, const KernelArgument* operands) {
  const auto& job = *reinterpret_cast<const Job*>(operands[kJobOperand].data);
  const auto* state = reinterpret_cast<const int32_t*>(operands[kJobOperand + 1].data);
  bool counted = state[kTabled] >= 0 && state[kTabled] < 4 && state[kTaken] >= 0 &&
                 state[kTaken] <= int64_t{job.take} * job.take_bytes && state[kApplied] >= 0 &&
                 state[kApplied] <= job.apply && state[kScaled] >= 0 &&
                 state[kScaled] <= job.weights && state[kSentX] >= 0 &&
                 state[kSentX] <= job.x_objects && state[kSentOut] >= 0 &&
                 state[kSentOut] <= job.out && state[kTurn] >= 0 &&
                 (state[kTurn] == 0 || state[kTurn] < job.x_cycle);
  if (Kind(job.kind) == Kind::kCombine) {
    const int64_t rows = int64_t{job.heads} * job.kv_heads;
    counted = counted && state[kPart] >= 0 && state[kPart] < job.parts && state[kRow] >= 0 &&
              state[kRow] < job.heads && state[kStatistics] >= 0 &&
              state[kStatistics] <= int64_t{job.kv_heads} * job.parts * 2 * kPartStatistics &&
              state[kRowX] >= 0 && state[kRowX] <= rows * job.dim;
  }
  if (counted && job_fits(job)) return;
  npu::fail(npu::ErrorKind::kKernel,
            "[%s] the job (kind %d, take %d, apply %d, weights %d, x_objects %d, out %d) or the "
            "state of the core does not fit its buffers; send the job first",
            kernel, job.kind, job.take, job.apply, job.weights, job.x_objects, job.out);
}

// Counted from the source, not measured; npu1 has half the lanes. A call of copy_words().
constexpr double copy_cycles(int64_t words) {
  return npu::fp32::kOutlined + 12 + double(words) / 8;
}
constexpr double kFactorCycles = npu::fp32::kReduction + 2 * npu::fp32::kScalar +
                                 2 * npu::fp32::kOutlined + npu::fp32::kQuotient;
constexpr double scale_cycles(int64_t n) {
  return npu::fp32::kOutlined + 2 * npu::fp32::multiply_add_cycles(n);
}
constexpr double square_row_cycles(int64_t n) {
  return npu::fp32::kOutlined + npu::fp32::multiply_add_cycles(n) + npu::norm::add_lanes_cycles(n);
}
double turn_head_cycles(int64_t d) {
  return npu::fp32::kOutlined + npu::norm::widen_square_cycles(d) + kFactorCycles +
         scale_cycles(d) + copy_cycles(d / 2) + 2 * npu::fp32::multiply_add_cycles(d);
}

// Per 256 or 512 elements.
double apply_cycles(const Timing&, const int64_t* integers) {
  switch (Kind(integers[0])) {
    case Kind::kNorm:
      return kCall + npu::norm::widen_square_cycles(kInWords) + scale_cycles(kInWords) +
             square_row_cycles(kInWords);
    case Kind::kGeglu:  // of two calls one computes
      return kCall + (copy_cycles(kInWords) + npu::gelu::passes_cycles(kInHalves)) / 2;
    case Kind::kCombine:  // a row's factors are made once for all its parts
      return kCall + 60 + npu::fp32::multiply_add_cycles(kInWords);
    default:
      return kCall;
  }
}
double compute_cycles(const Timing&, const int64_t* integers) {
  const int64_t width = integers[1], rows = integers[2] * integers[3] + integers[3];
  if (Kind(integers[0]) == Kind::kRotate) {
    return kCall + 4 * copy_cycles(128) + 16 * 8 + double(rows) * turn_head_cycles(integers[4]) +
           double(integers[3]) * (copy_cycles(kTableBytes / 4) + copy_cycles(integers[4] / 2));
  }
  return kCall + npu::norm::widen_square_cycles(width) + kFactorCycles;
}
consteval Operand kind_operand() { return integer("kind", 0, npu::vector::kKinds - 1); }
#endif

}  // namespace vector_core
}  // namespace

// Takes the words of a job and starts it.
NPU_KERNEL void vector_begin(const int32_t* command, int32_t* job, int32_t* state) {
  using namespace vector_core;
  aie::set_rounding(aie::rounding_mode::conv_even);  // a core resets to floor
  copy_words(command, job, kJobWords);
  copy_words(&npu::fp32::kZeros, state, kWork, 0);
}

// A part of the table that sets up the GEMV cores.
NPU_KERNEL void vector_table(const int32_t* part, bfloat16* x, int32_t* state) {
  using namespace vector_core;
  copy_words(part, reinterpret_cast<int32_t*>(x) + state[kTabled]++ * kInWords, kInWords);
}

NPU_KERNEL void vector_take(const int32_t* object, int32_t* store, const int32_t* job,
                            int32_t* state) {
  using namespace vector_core;
  const int32_t bytes = job_of(job).take_bytes, to = state[kTaken];
  state[kTaken] = to + bytes;
  copy_words(object, at<int32_t>(store, to), bytes >> 2);
}

// On what was taken. kind, width, heads, kv_heads, head_dim: those of the job.
NPU_KERNEL void vector_compute(int32_t* store, const int32_t* job, int32_t* state, int32_t kind,
                               int32_t width, int32_t heads, int32_t kv_heads, int32_t head_dim) {
  using namespace vector_core;
  (void)width, (void)heads, (void)kv_heads, (void)head_dim;
  if (kind == int32_t(Kind::kRotate)) {
    rotate(store, job_of(job), state);
  } else if (kind == int32_t(Kind::kNorm)) {
    begin_norm(store, job_of(job), state);
  }
}

// With the next object: weights of the first norm, gates and what they multiply, partial results.
NPU_KERNEL void vector_apply(const int32_t* object, int32_t* store, const int32_t* job,
                             int32_t* state, int32_t kind) {
  using namespace vector_core;
  const int32_t number = state[kApplied]++;
  if (kind == int32_t(Kind::kNorm)) {
    add_norm(object, store, job_of(job), state, number);
  } else if (kind == int32_t(Kind::kGeglu)) {
    next_geglu(object, store, job_of(job), state, number);
  } else if (kind == int32_t(Kind::kCombine)) {
    combine(object, store, job_of(job), state);
  }
}

// x = norm(h) w for the next 256 elements.
NPU_KERNEL void vector_scale(const int32_t* object, int32_t* store, const int32_t* words,
                             int32_t* state) {
  using namespace vector_core;
  const Job& job = job_of(words);
  if (state[kScaled] == 0) make_factor(state, job.width, job.epsilon);
  const int32_t first = state[kScaled]++ * kInWords;
  scale(floats(store) + first, reinterpret_cast<const float*>(object), npu::fp32::kZeros.values,
        floats(state + kWork), at<bfloat16>(store, job.x_at) + first, kInWords, state);
}

// The next object of x, with zeros where x has ended.
NPU_KERNEL void vector_x(int32_t* store, bfloat16* x, const int32_t* words, int32_t* state) {
  using namespace vector_core;
  const Job& job = job_of(words);
  const int32_t turn = state[kTurn], first = turn * job.x_piece;
  state[kTurn] = turn + 1 == job.x_cycle ? 0 : turn + 1;
  ++state[kSentX];
  int32_t left = job.x_elements - first;
  left = left < 0 ? 0 : left < job.x_piece ? left : job.x_piece;
  copy_words(at<bfloat16>(store, job.x_at) + first, x, left >> 1);
  copy_words(&npu::fp32::kZeros, x + left, (job.x_piece - left) >> 1, 0);
}

// The next object for memory.
NPU_KERNEL void vector_out(int32_t* store, int32_t* out, const int32_t* words, int32_t* state) {
  using namespace vector_core;
  const int32_t first = job_of(words).out_at + state[kSentOut]++ * npu::vector::kOutBytes;
  copy_words(at<int32_t>(store, first), out, kOutWords);
}

NPU_DECLARE(vector_begin, {.operands = {buffer("command", vector_core::kInWords),
                                        buffer("job", vector_core::kJobWords),
                                        buffer("state", vector_core::kStateWords)},
                           .cycles = fixed<32>});
NPU_DECLARE(
    vector_table,
    {.operands = {buffer("part", vector_core::kInWords), buffer("x", vector_core::kXElements),
                  buffer("state", vector_core::kStateWords).with_word(vector_core::kTabled, 0, 3)},
     .cycles = fixed<56>});
NPU_DECLARE(vector_take, {.operands = {buffer("object", vector_core::kInWords),
                                       buffer("store", vector_core::kStoreWords),
                                       buffer("job", vector_core::kJobWords),
                                       buffer("state", vector_core::kStateWords)},
                          .cycles = fixed<60>,
                          .check = vector_core::check_job<2>});
NPU_DECLARE(vector_compute,
            {.operands = {buffer("store", vector_core::kStoreWords),
                          buffer("job", vector_core::kJobWords),
                          buffer("state", vector_core::kStateWords), vector_core::kind_operand(),
                          integer("width", 0, 1 << 16), integer("heads", 0, 64),
                          integer("kv_heads", 0, 64), integer("head_dim", 0, 256)},
             .cycles = vector_core::compute_cycles,
             .check = vector_core::check_job<1>});
NPU_DECLARE(vector_apply,
            {.operands = {buffer("object", vector_core::kInWords),
                          buffer("store", vector_core::kStoreWords),
                          buffer("job", vector_core::kJobWords),
                          buffer("state", vector_core::kStateWords), vector_core::kind_operand()},
             .cycles = vector_core::apply_cycles,
             .check = vector_core::check_job<2>});
NPU_DECLARE(vector_scale, {.operands = {buffer("object", vector_core::kInWords),
                                        buffer("store", vector_core::kStoreWords),
                                        buffer("job", vector_core::kJobWords),
                                        buffer("state", vector_core::kStateWords)},
                           .cycles =
                               [](const Timing&, const int64_t*) {
                                 return vector_core::kCall +
                                        vector_core::scale_cycles(vector_core::kInWords);
                               },
                           .check = vector_core::check_job<2>});
NPU_DECLARE(vector_x, {.operands = {buffer("store", vector_core::kStoreWords),
                                    buffer("x", vector_core::kXElements),
                                    buffer("job", vector_core::kJobWords),
                                    buffer("state", vector_core::kStateWords)},
                       .cycles = fixed<160>,
                       .check = vector_core::check_job<2>});
NPU_DECLARE(vector_out, {.operands = {buffer("store", vector_core::kStoreWords),
                                      buffer("out", vector_core::kOutWords),
                                      buffer("job", vector_core::kJobWords),
                                      buffer("state", vector_core::kStateWords)},
                         .cycles = fixed<32>,
                         .check = vector_core::check_job<2>});
