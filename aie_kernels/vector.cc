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
// results sent, the bits of the current norm's factor; from kSquares on its lane sums.
enum State : int32_t {
  kTabled,
  kTaken,
  kApplied,
  kScaled,
  kSentX,
  kSentOut,
  kFactor,
  kSquares = 32
};

inline const Job& job_of(const int32_t* words) { return *reinterpret_cast<const Job*>(words); }
inline float bits_float(int32_t bits) { return __builtin_bit_cast(float, bits); }
inline int32_t float_bits(float value) { return __builtin_bit_cast(int32_t, value); }

template <typename T>
inline T* at(int32_t* store, int32_t byte) {
  return reinterpret_cast<T*>(reinterpret_cast<uint8_t*>(store) + byte);
}

inline void copy_words(const int32_t* from, int32_t* to, int32_t count) {
  for (int32_t i = 0; i < count; i += 16) aie::store_v(to + i, aie::load_v<16>(from + i));
}

inline npu::fp32::Sums squares_of(const int32_t* state) {
  return npu::fp32::load(reinterpret_cast<const float*>(state + kSquares));
}
inline void keep_squares(const npu::fp32::Sums& squares, int32_t* state) {
  npu::fp32::store(reinterpret_cast<float*>(state + kSquares), squares);
}

// Before the weights of the first norm: its factor; where there is no sublayer, the scaled row.
inline void begin_norm(int32_t* store, const Job& job, int32_t* state) {
  float* row = at<float>(store, 0);
  const npu::fp32::Sums none = npu::norm::no_squares();
  if (job.y_at >= 0) {
    bfloat16* y = at<bfloat16>(store, job.y_at);
    const npu::fp32::Sums squares = npu::norm::add_squares(none, y, job.width);
    state[kFactor] = float_bits(npu::norm::factor(squares, job.width, bits_float(job.epsilon)));
    keep_squares(none, state);
    return;
  }
  npu::norm::multiply(row, bits_float(job.scale), row, job.width);
  keep_squares(npu::norm::add_squares(none, row, job.width), state);
}

// h += norm(y) w for the next 256 elements.
inline void add_norm(const int32_t* object, int32_t* store, const Job& job, int32_t* state) {
  const int32_t first = state[kApplied] * kInWords, left = job.width - first;
  const int32_t count = left < kInWords ? left : kInWords;
  float* row = at<float>(store, 0) + first;
  const bfloat16* y = at<bfloat16>(store, job.y_at) + first;
  const float* weights = reinterpret_cast<const float*>(object);
  npu::norm::scale_add(y, bits_float(state[kFactor]), weights, row, row, count);
  keep_squares(npu::norm::add_squares(squares_of(state), row, count), state);
}

// The gates of 512 elements, then what they multiply.
inline void next_geglu(const int32_t* object, int32_t* store, const Job& job, int32_t* state) {
  const int32_t pair = state[kApplied] / 2;
  if (state[kApplied] % 2 == 0) {
    copy_words(object, at<int32_t>(store, job.y_at), kInWords);
    return;
  }
  const bfloat16* up = reinterpret_cast<const bfloat16*>(object);
  bfloat16* x = at<bfloat16>(store, job.x_at) + pair * kInHalves;
  npu::gelu::geglu(at<bfloat16>(store, job.y_at), up, x, kInHalves);
}

// A head of `dim` elements as one of head_dim: its halves at the halves' starts, so that rotation
// pairs the same elements; zeros between.
inline void spread_head(const bfloat16* from, bfloat16* to, const Job& job) {
  const int32_t half = job.dim / 2, step = job.head_dim / 2;
  if (half == step) {
    copy_words(reinterpret_cast<const int32_t*>(from), reinterpret_cast<int32_t*>(to), half);
    return;
  }
  for (int32_t i = 0; i < job.head_dim; i += 16) aie::store_v(to + i, aie::zeros<bfloat16, 16>());
  for (int32_t i = 0; i < half; ++i) {
    to[i] = from[i];
    to[step + i] = from[half + i];
  }
}

// Headers for the attention cores, a table and the queries of a key head; then keys and values.
inline void rotate(int32_t* store, const Job& job) {
  const int32_t d = job.head_dim, dim = job.dim, queries = job.heads * job.kv_heads;
  const float *q_weights = at<float>(store, 0), *k_weights = at<float>(store, 1024);
  const float *cosines = at<float>(store, 2048), *sines = at<float>(store, 2560);
  const float epsilon = bits_float(job.epsilon);
  const bfloat16* q = at<bfloat16>(store, job.y_at);
  const bfloat16 *k = q + queries * dim, *v = k + job.kv_heads * dim;
  const auto turn = [&](const bfloat16* from, const float* weights, int32_t to) {
    bfloat16* head = at<bfloat16>(store, to);
    spread_head(from, head, job);
    npu::rope::qk_norm_rope(head, weights, epsilon, cosines, sines, head, d);
  };
  int32_t to = job.out_at;
  for (int32_t g = 0; g < job.kv_heads; ++g) {
    copy_words(at<int32_t>(store, 3072 + g * kTableBytes), at<int32_t>(store, to), kTableBytes / 4);
    to += kTableBytes;
    for (int32_t h = 0; h < job.heads; ++h, q += dim, to += 2 * d) turn(q, q_weights, to);
  }
  for (int32_t g = 0; g < job.kv_heads; ++g, k += dim, v += dim, to += 4 * d) {
    turn(k, k_weights, to);
    bfloat16* value = at<bfloat16>(store, to + 2 * d);
    for (int32_t i = 0; i < d; i += 16) aie::store_v(value + i, aie::zeros<bfloat16, 16>());
    for (int32_t i = 0; i < dim; ++i) value[i] = v[i];
  }
}

// 2^n for a whole number, 0 where that is no normal number.
inline float power_of_two(float n) {
  return n < -126.0f ? 0.0f : bits_float((static_cast<int32_t>(n) + 127) << 23);
}

// What the rows of a piece count in every part: 2^(m - M) / L over all parts, (rows, parts).
inline void part_factors(int32_t* store, const Job& job, int32_t group, int32_t first, int32_t rows,
                         float* factors) {
  const float* statistics = at<float>(store, 0) + group * job.parts * 2 * kPartStatistics + first;
  for (int32_t row = 0; row < rows; ++row, factors += job.parts) {
    float most = npu::attention::kNothing, sum = 0;
    for (int32_t s = 0; s < job.parts; ++s) {
      const float* own = statistics + s * 2 * kPartStatistics + row;
      if (own[kPartStatistics] != 0 && own[0] > most) most = own[0];
    }
    for (int32_t s = 0; s < job.parts; ++s) {
      const float* own = statistics + s * 2 * kPartStatistics + row;
      factors[s] = own[kPartStatistics] == 0 ? 0 : power_of_two(own[0] - most);
      sum += own[kPartStatistics] * factors[s];
    }
    for (int32_t s = 0; s < job.parts; ++s) factors[s] = sum == 0 ? 0 : factors[s] / sum;
  }
}

// The next 256 elements of a partial result: those of all parts, one after the other.
inline void combine(const int32_t* object, int32_t* store, const Job& job, int32_t* state) {
  const int32_t size = job.heads * job.head_dim, objects = (size + kInWords - 1) / kInWords;
  const int32_t part = state[kApplied] % job.parts, piece = state[kApplied] / job.parts;
  const int32_t group = piece / objects, first = piece % objects * kInWords;
  float* sums = at<float>(store, job.y_at);
  float* factors = at<float>(store, job.y_at + 6 * kInWords);  // after sums and rounded rows
  const float* values = reinterpret_cast<const float*>(object);
  if (part == 0) {
    part_factors(store, job, group, first / job.head_dim, kInWords / job.head_dim, factors);
    for (int32_t i = 0; i < kInWords; i += 16) aie::store_v(sums + i, aie::zeros<float, 16>());
  }
  for (int32_t i = 0; i < kInWords && first + i < size; i += job.head_dim) {
    const float f = factors[i / job.head_dim * job.parts + part];
    if (f == 0) continue;  // a part that nobody wrote may hold anything
    const npu::fp32::Floats all = npu::fp32::broadcast(f);
    for (int32_t j = i; j < i + job.head_dim; j += npu::fp32::kLanes) {
      const auto value = npu::fp32::floats(npu::fp32::load(values + j));
      npu::fp32::store(sums + j, aie::mac(npu::fp32::load(sums + j), value, all));
    }
  }
  if (part + 1 < job.parts) return;
  bfloat16* rows = at<bfloat16>(store, job.y_at + 4 * kInWords);
  for (int32_t i = 0; i < kInWords; i += npu::fp32::kLanes) {
    npu::fp32::store(rows + i, npu::fp32::load(sums + i));
  }
  const int32_t row = group * job.heads + first / job.head_dim;  // heads side by side in x
  bfloat16* x = at<bfloat16>(store, job.x_at) + row * job.dim;
  for (int32_t i = 0; i < kInWords && first + i < size; i += job.head_dim, x += job.dim) {
    if (job.dim == job.head_dim) {
      copy_words(reinterpret_cast<const int32_t*>(rows + i), reinterpret_cast<int32_t*>(x),
                 job.dim / 2);
      continue;
    }
    for (int32_t j = 0; j < job.dim; ++j) x[j] = rows[i + j];
  }
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
  if (job.x_elements < 0 || job.x_elements > store || job.x_piece < 0 || job.x_piece > kXElements ||
      job.x_piece % 16 != 0 || (job.x_objects != 0 && job.x_cycle < 1) || job.x_cycle < 0 ||
      job.apply < 0 || job.apply > store || job.take < 0 || job.take > store || job.out < 0 ||
      job.out > store || job.weights < 0 || job.weights > store || job.take_bytes < 0 ||
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
                 state[kSentOut] <= job.out;
  if (counted && job_fits(job)) return;
  npu::fail(npu::ErrorKind::kKernel,
            "[%s] the job (kind %d, take %d, apply %d, weights %d, x_objects %d, out %d) or the "
            "state of the core does not fit its buffers; send the job first",
            kernel, job.kind, job.take, job.apply, job.weights, job.x_objects, job.out);
}

// Per 256 or 512 elements; npu1 has half the lanes. Counted from the source, not measured.
double apply_cycles(const Timing&, const int64_t* integers) {
  switch (Kind(integers[0])) {
    case Kind::kNorm:
      return kCall + npu::norm::scale_add_cycles(kInWords) +
             npu::norm::squares_cycles(kInWords, true);
    case Kind::kGeglu:  // of two calls one computes
      return kCall + npu::gelu::geglu_cycles(kInHalves) / 2;
    case Kind::kCombine:
      return kCall + 40 + npu::norm::scale_add_cycles(kInWords) / 2;
    default:
      return kCall;
  }
}
double compute_cycles(const Timing&, const int64_t* integers) {
  const int64_t width = integers[1], rows = integers[2] * integers[3] + integers[3];
  if (Kind(integers[0]) == Kind::kRotate) {
    return kCall + double(rows) * npu::rope::qk_norm_rope_cycles(integers[4], false);
  }
  return kCall + npu::norm::squares_cycles(width, false) + npu::norm::factor_cycles();
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
  for (int32_t i = 0; i < kStateWords; i += 16) {
    aie::store_v(state + i, aie::zeros<int32_t, 16>());
  }
}

// A part of the table that sets up the GEMV cores.
NPU_KERNEL void vector_table(const int32_t* part, bfloat16* x, int32_t* state) {
  using namespace vector_core;
  copy_words(part, reinterpret_cast<int32_t*>(x) + state[kTabled] * kInWords, kInWords);
  ++state[kTabled];
}

NPU_KERNEL void vector_take(const int32_t* object, int32_t* store, const int32_t* job,
                            int32_t* state) {
  using namespace vector_core;
  const int32_t bytes = job_of(job).take_bytes;
  copy_words(object, at<int32_t>(store, state[kTaken]), bytes / 4);
  state[kTaken] += bytes;
}

// On what was taken. kind, width, heads, kv_heads, head_dim: those of the job.
NPU_KERNEL void vector_compute(int32_t* store, const int32_t* job, int32_t* state, int32_t kind,
                               int32_t width, int32_t heads, int32_t kv_heads, int32_t head_dim) {
  using namespace vector_core;
  (void)width, (void)heads, (void)kv_heads, (void)head_dim;
  if (kind == int32_t(Kind::kRotate)) {
    rotate(store, job_of(job));
  } else if (kind == int32_t(Kind::kNorm)) {
    begin_norm(store, job_of(job), state);
  }
}

// With the next object: weights of the first norm, gates and what they multiply, partial results.
NPU_KERNEL void vector_apply(const int32_t* object, int32_t* store, const int32_t* job,
                             int32_t* state, int32_t kind) {
  using namespace vector_core;
  if (kind == int32_t(Kind::kNorm)) {
    add_norm(object, store, job_of(job), state);
  } else if (kind == int32_t(Kind::kGeglu)) {
    next_geglu(object, store, job_of(job), state);
  } else if (kind == int32_t(Kind::kCombine)) {
    combine(object, store, job_of(job), state);
  }
  ++state[kApplied];
}

// x = norm(h) w for the next 256 elements.
NPU_KERNEL void vector_scale(const int32_t* object, int32_t* store, const int32_t* words,
                             int32_t* state) {
  using namespace vector_core;
  const Job& job = job_of(words);
  if (state[kScaled] == 0) {
    const npu::fp32::Sums squares = squares_of(state);
    state[kFactor] = float_bits(npu::norm::factor(squares, job.width, bits_float(job.epsilon)));
  }
  const int32_t first = state[kScaled]++ * kInWords;
  const float* weights = reinterpret_cast<const float*>(object);
  npu::norm::scale(at<float>(store, 0) + first, bits_float(state[kFactor]), weights,
                   at<bfloat16>(store, job.x_at) + first, kInWords);
}

// The next object of x, with zeros where x has ended.
NPU_KERNEL void vector_x(int32_t* store, bfloat16* x, const int32_t* words, int32_t* state) {
  using namespace vector_core;
  const Job& job = job_of(words);
  const int32_t first = state[kSentX]++ % job.x_cycle * job.x_piece;
  const bfloat16* from = at<bfloat16>(store, job.x_at) + first;
  int32_t left = job.x_elements - first;
  left = left < 0 ? 0 : left < job.x_piece ? left : job.x_piece;
  for (int32_t i = 0; i < left; i += 16) aie::store_v(x + i, aie::load_v<16>(from + i));
  for (int32_t i = left; i < job.x_piece; i += 16) {
    aie::store_v(x + i, aie::zeros<bfloat16, 16>());
  }
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
                                        npu::norm::scale_cycles(vector_core::kInWords);
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
