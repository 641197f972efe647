// y += W x for one block of weights, of any format (weight_block.h), and up to eight vectors x; the
// end of a row-block writes y, or keeps its largest elements. The formats' arithmetic is in
// gemv_q4nx.h, gemv_q8.h and gemv_bf16.h. A program has the formats of one size of blocks: `small`
// kernels those of the smaller one.
#include <stdint.h>

#include <aie_api/aie.hpp>

#include "gemv_bf16.h"
#include "gemv_q4nx.h"
#include "gemv_q8.h"
#include "gemv_setup.h"
#include "kernel.h"
#include "weight_block.h"

namespace {

using npu::blocks::Format, npu::blocks::columns_of;
using npu::gemv::kLongSetupWords, npu::gemv::State;
using npu::gemv::kSetupWords, npu::gemv::kMaxBatch, npu::gemv::Output, npu::gemv::Setup;

constexpr int32_t kBlockRows = npu::blocks::kRows;

#ifdef AIE_HOST_GEMV  // x86 `fast` builds
// body.operator()<format>(), of one of a size's formats.
template <bool kSmall, typename Body>
inline void with_format(Format format, const Body& body) {
  if constexpr (kSmall) {
    if (format == Format::kQ4_0) return body.template operator()<Format::kQ4_0>();
    body.template operator()<Format::kQ8_0>();
  } else {
    if (format == Format::kQ4nx) return body.template operator()<Format::kQ4nx>();
    if (format == Format::kQ8) return body.template operator()<Format::kQ8>();
    body.template operator()<Format::kBf16>();
  }
}
template <Format kFormat>
inline void multiply_on_host(const uint8_t* block, const bfloat16* x, float* y, int32_t batch) {
  if (batch == 1) return AIE_HOST_GEMV<kFormat, 1>(block, x, y);
  if (batch == 2) return AIE_HOST_GEMV<kFormat, 2>(block, x, y);
  if (batch == 4) return AIE_HOST_GEMV<kFormat, 4>(block, x, y);
  AIE_HOST_GEMV<kFormat, 8>(block, x, y);
}
template <bool kSmall, bool kBatches>
inline void multiply(const uint8_t* block, const bfloat16* x, float* y, float*, int32_t batch,
                     Format format) {
  with_format<kSmall>(format,
                      [&]<Format kFormat>() { multiply_on_host<kFormat>(block, x, y, batch); });
}
#else
template <bool kSmall, bool kBatches>
NPU_OUTLINED inline void multiply(const uint8_t* block, const bfloat16* x, float* y, float* work,
                                  int32_t batch, Format format) {
  using npu::blocks::q8, npu::blocks::q8_0;
  if (kSmall && format == Format::kQ4_0) {
    gemv_q4nx::multiply<false, kBatches>(block, x, y, work, batch);
  } else if (kSmall) {
    gemv_q8::multiply<q8_0, kBatches>(block, x, y, work, batch);
  } else if (format == Format::kQ4nx) {
    gemv_q4nx::multiply<true, kBatches>(block, x, y, work, batch);
  } else if (format == Format::kQ8) {
    gemv_q8::multiply<q8, kBatches>(block, x, y, work, batch);
  } else {
    gemv_bf16::multiply<kBatches>(block, x, y, work, batch);
  }
}
#endif

// The order of values in a list of the largest, as that of integers: zeros are equal, and NaNs come
// last.
inline int32_t order_of(int32_t bits) {
  constexpr int32_t kNan = 0x7F800001;
  const int32_t magnitude = bits & 0x7FFFFFFF, order = magnitude < kNan ? magnitude : kNan;
  return bits < 0 || order == kNan ? -order : order;
}

// Merges values of consecutive rows into a vector's list: `top` values, then their rows, -1 where
// there is none. Equal values keep their order.
inline void keep_largest(const int32_t* values, int32_t first, int32_t count, int32_t top,
                         int32_t* list) {
  int32_t* rows = list + top;
#ifdef AIE_HOST_GEMV
  // Of a full list; most blocks of a head have nothing for it.
  if (rows[top - 1] >= 0 && count == kBlockRows &&
      AIE_HOST_LARGEST_ORDER(values) <= order_of(list[top - 1])) {
    return;
  }
#endif
  NPU_ROLLED for (int32_t i = 0; i < count; ++i) {
    const int32_t value = values[i], order = order_of(value);
    int32_t place = top;
    NPU_ROLLED for (; place > 0; --place) {
      const int32_t before = list[place - 1], row = rows[place - 1];
      if (row >= 0 && order <= order_of(before)) break;
      if (place == top) continue;
      list[place] = before;
      rows[place] = row;
    }
    if (place == top) continue;
    list[place] = value;
    rows[place] = first + i;
  }
}

inline void keep_largest(const float* sums, int32_t* list, const Setup& setup, int32_t row_block,
                         int32_t batch) {
  const int32_t first = setup.first + row_block * setup.step, top = setup.top;
  const int32_t left = setup.rows - first, rows = left < kBlockRows ? left : kBlockRows;
  NPU_ROLLED for (int32_t v = 0; v < batch; ++v) {
    if (row_block == 0) {
      NPU_SERIAL_FOR(int32_t i = 0, i < top, ++i) list[top + i] = -1;
    }
    keep_largest(reinterpret_cast<const int32_t*>(sums), first, rows, top, list);
    sums += kBlockRows;
    list += 2 * top;
  }
}

// A row-block is complete: its sums go where the setup says and become zero.
NPU_OUTLINED inline void finish(float* sums, int32_t* y, const Setup& setup, int32_t* state,
                                int32_t batch) {
  const int32_t count = batch * kBlockRows, at = state[State::kRowBlock];
  state[State::kRowBlock] = at + 1 == setup.row_blocks ? 0 : at + 1;
  if (setup.output == int32_t(Output::kTop)) {
    keep_largest(sums, y, setup, at, batch);
  } else if (setup.output == int32_t(Output::kF32)) {
    float* out = reinterpret_cast<float*>(y) + at * count;
    NPU_SERIAL_FOR(int32_t i = 0, i < count, i += 16) {
      aie::store_v(out + i, aie::load_v<16>(sums + i));
    }
  } else {
    bfloat16* out = reinterpret_cast<bfloat16*>(y) + at * count;
    NPU_SERIAL_FOR(int32_t i = 0, i < count, i += 16) {
      const aie::accum<accfloat, 16> wide(aie::load_v<16>(sums + i));
      aie::store_v(out + i, wide.to_vector<bfloat16>());
    }
  }
  gemv_columns::clear(sums, count);
}

// Blocks of the row-block's object-th object of x.
inline int32_t blocks_of(const Setup& setup, int32_t object) {
  return object < setup.x_objects ? setup.x_blocks : setup.x_last;
}

// Block `at` of an object of x has been multiplied.
inline void step(const Setup& setup, int32_t at, int32_t object, float* sums, int32_t* y,
                 int32_t* state, int32_t batch) {
  if (++at == blocks_of(setup, object)) {
    at = 0;
    if (object++ == setup.x_objects) {
      object = 0;
      finish(sums, y, setup, state, batch);
    }
    state[State::kObject] = object;
    state[State::kBlocks] = blocks_of(setup, object);
  }
  state[State::kBlock] = at;
}

// columns_of() for the formats of a size: program memory has no room for the others.
template <bool kSmall>
inline int32_t columns_in(Format format) {
  if (kSmall) return int32_t(columns_of(format == Format::kQ4_0 ? Format::kQ4_0 : Format::kQ8_0));
  return int32_t(format == Format::kQ4nx ? columns_of(Format::kQ4nx)
                 : format == Format::kQ8 ? columns_of(Format::kQ8)
                                         : columns_of(Format::kBf16));
}

template <bool kSmall, bool kBatches>
inline void next_block(const uint8_t* block, const bfloat16* x, float* sums, int32_t* y,
                       const int32_t* words, int32_t* state, float* work, int32_t batch,
                       int32_t format) {
  const Setup& setup = *reinterpret_cast<const Setup*>(words);
  const int32_t columns = columns_in<kSmall>(Format(format));
  const int32_t at = state[State::kBlock], object = state[State::kObject];
  multiply<kSmall, kBatches>(block, x + at * batch * columns, sums, work, batch, Format(format));
  step(setup, at, object, sums, y, state, batch);
}

NPU_OUTLINED inline void begin(const int32_t* record, int32_t words, int32_t* to, int32_t* state,
                               float* sums, int32_t count) {
  // A core resets to floor, which would bias products of fp32 and results; the mode stays set.
  aie::set_rounding(aie::rounding_mode::conv_even);
  NPU_SERIAL_FOR(int32_t i = 0, i < words, i += kSetupWords) {
    aie::store_v(to + i, aie::load_v<kSetupWords>(record + i));
  }
  aie::store_v(state, aie::zeros<int32_t, kSetupWords>());
  const Setup& setup = *reinterpret_cast<const Setup*>(record);
  state[State::kObjects] = setup.x_objects + 1;
  state[State::kBlocks] = blocks_of(setup, 0);
  gemv_columns::clear(sums, count);
}

#if NPU_DECLARATIONS
#ifdef AIE_HOST_GEMV_JOINT
constexpr bool kHasJoint = true;
// The next blocks of cores that are equally far in equal setups, each with its own x: operands as
// of gemv_one.
template <bool kSmall, bool kKept>
bool joint_blocks(const KernelArgument* const* calls, int count, uint32_t times, int64_t stride) {
  const auto same = [&](int operand) {
    for (int i = 1; i < count; ++i) {
      if (__builtin_memcmp(calls[i][operand].data, calls[0][operand].data, 4 * kSetupWords) != 0) {
        return false;
      }
    }
    return true;
  };
  if (!same(4) || !same(5)) return false;
  constexpr int kMost = npu::kernels::kMostJointCalls;
  const bfloat16 *lines[kMost], *x[kMost];
  float* sums[kMost];
  for (int i = 0; i < count; ++i) {
    lines[i] = reinterpret_cast<const bfloat16*>(calls[i][1].data);
    sums[i] = reinterpret_cast<float*>(calls[i][2].data);
  }
  const auto state_of = [&](int i) { return reinterpret_cast<int32_t*>(calls[i][5].data); };
  const Setup& setup = *reinterpret_cast<const Setup*>(calls[0][4].data);
  const auto format = Format(setup.format);
  const int64_t columns = columns_of(format);
  const std::byte* block = calls[0][0].data;
  for (; times > 0; --times, block += stride) {
    const int32_t at = state_of(0)[State::kBlock], object = state_of(0)[State::kObject];
    for (int i = 0; i < count; ++i) x[i] = lines[i] + at * columns;
    with_format<kSmall>(format, [&]<Format kFormat>() {
      AIE_HOST_GEMV_JOINT<kFormat>(reinterpret_cast<const uint8_t*>(block), x, sums, count);
    });
    for (int i = 0; i < count; ++i) {
      step(setup, at, object, sums[i], reinterpret_cast<int32_t*>(calls[i][3].data), state_of(i),
           1);
      if constexpr (kKept) state_of(i)[State::kSent] = 0;
    }
  }
  return true;
}
#else
constexpr bool kHasJoint = false;
template <bool, bool>
constexpr npu::kernels::JointCalls joint_blocks = nullptr;
#endif

constexpr int32_t kXElements = npu::gemv::kXBytes / 2, kYWords = npu::gemv::kYBytes / 4;
constexpr int32_t kXElementsOfOne = npu::gemv::kXBytesOfOne / 2;

// Whether a setup record and a state keep the kernel inside its buffers.
bool setup_fits(const Setup& setup, const int32_t* state, int64_t batch, int64_t format,
                int64_t elements) {
  const int64_t row_blocks = setup.row_blocks, x_objects = setup.x_objects;
  const int64_t x_blocks = setup.x_blocks, x_last = setup.x_last, top = setup.top;
  const int64_t y_bytes = npu::gemv::kYBytes;
  if (batch != setup.batch || (batch != 1 && batch != 2 && batch != 4 && batch != kMaxBatch)) {
    return false;
  }
  if (format != setup.format) return false;
  const int64_t line = batch * columns_of(Format(format));
  if (x_objects < 0 || x_blocks < 1 || x_blocks > elements || x_blocks * line > elements) {
    return false;
  }
  if (x_last < 1 || x_last > x_blocks) return false;
  const int64_t object = state[State::kObject], row_block = state[State::kRowBlock];
  if (object < 0 || object > x_objects) return false;
  const int64_t at = state[State::kBlock];
  if (at < 0 || at >= (object < x_objects ? x_blocks : x_last)) return false;
  if (row_block < 0 || row_block >= row_blocks) return false;
  const auto output = Output(setup.output);
  if (output == Output::kTop) {
    return top >= 1 && top <= y_bytes && batch * top * npu::gemv::kTopBytes <= y_bytes;
  }
  if (output != Output::kBf16 && output != Output::kF32) return false;
  const int64_t bytes = output == Output::kF32 ? 4 : 2;
  return row_blocks <= y_bytes && row_blocks * batch * kBlockRows * bytes <= y_bytes;
}

void check_setup(const char* kernel, const KernelArgument* operands, int64_t batch, int64_t format,
                 int64_t elements) {
  const auto& setup = *reinterpret_cast<const Setup*>(operands[4].data);
  const auto* state = reinterpret_cast<const int32_t*>(operands[5].data);
  if (setup_fits(setup, state, batch, format, elements)) return;
  npu::fail(npu::ErrorKind::kKernel,
            "[%s] the setup (row_blocks %d, x_objects %d, x_blocks %d, batch %d, output %d, top "
            "%d, format %d) or the state of the core does not fit its buffers; send the setup "
            "object first",
            kernel, setup.row_blocks, setup.x_objects, setup.x_blocks, setup.batch, setup.output,
            setup.top, setup.format);
}

template <int64_t kElements>  // of x
void check_one(const char* kernel, const KernelArgument* operands) {
  check_setup(kernel, operands, 1, operands[7].value, kElements);
}
void check_batch(const char* kernel, const KernelArgument* operands) {
  check_setup(kernel, operands, operands[7].value, operands[8].value, kXElements);
}

template <bool kBatches>
double cycles_of(int64_t batch, int64_t format) {
  using npu::blocks::q8, npu::blocks::q8_0;
  constexpr double kCall = 24;  // call, counters, dispatch by format and batch
  switch (Format(format)) {
    case Format::kQ4nx:
      return kCall + gemv_q4nx::cycles<true, kBatches>(batch);
    case Format::kQ8:
      return kCall + gemv_q8::cycles<q8, kBatches>(batch);
    case Format::kQ4_0:
      return kCall + gemv_q4nx::cycles<false, kBatches>(batch);
    case Format::kQ8_0:
      return kCall + gemv_q8::cycles<q8_0, kBatches>(batch);
    case Format::kBf16:
      break;
  }
  return kCall + gemv_bf16::cycles(batch);
}
double one_cycles(const Timing&, const int64_t* integers) {
  return cycles_of<false>(1, integers[0]);
}
double batch_cycles(const Timing&, const int64_t* integers) {
  return cycles_of<true>(integers[0], integers[1]);
}
template <bool kBatches>
Parts parts_of(int64_t batch, int64_t format) {
  if (Format(format) == Format::kQ4nx) return gemv_q4nx::parts<kBatches>(batch);
  if (Format(format) == Format::kQ8) return gemv_q8::parts<kBatches>(batch);
  return {};
}
Parts one_parts(const Timing&, const int64_t* integers) { return parts_of<false>(1, integers[0]); }
Parts batch_parts(const Timing&, const int64_t* integers) {
  return parts_of<true>(integers[0], integers[1]);
}

using npu::blocks::kBytes, npu::blocks::kSmallBytes;
constexpr Operand kLargeFormat = integer("format", int32_t(Format::kQ4nx), int32_t(Format::kBf16));
constexpr Operand kSmallFormat = integer("format", int32_t(Format::kQ4_0), int32_t(Format::kQ8_0));
#endif

}  // namespace

// Takes core `index`'s record out of the setup object and starts afresh.
NPU_KERNEL void gemv_setup(const bfloat16* table, int32_t* words, int32_t* state, float* sums,
                           int32_t index) {
  const int32_t* records = reinterpret_cast<const int32_t*>(table);
  begin(records + index * kSetupWords, kSetupWords, words, state, sums, kMaxBatch * kBlockRows);
}

// The same for the long records of the decoder, whose steps have one vector.
NPU_KERNEL void gemv_long_setup(const bfloat16* table, int32_t* words, int32_t* state, float* sums,
                                int32_t index) {
  const int32_t* records = reinterpret_cast<const int32_t*>(table);
  begin(records + index * kLongSetupWords, kLongSetupWords, words, state, sums, kBlockRows);
}

// The next block of the core's row-blocks. x: lines of a block's columns for the blocks of an
// object, `batch` each. sums: (8, 32). y: the object of results. work: for the kernel alone.
// `batch` and `format` are those of the setup.
NPU_KERNEL void gemv_block(const uint8_t* block, const bfloat16* x, float* sums, int32_t* y,
                           const int32_t* words, int32_t* state, float* work, int32_t batch,
                           int32_t format) {
  next_block<false, true>(block, x, sums, y, words, state, work, batch, format);
}
NPU_KERNEL void gemv_small_block(const uint8_t* block, const bfloat16* x, float* sums, int32_t* y,
                                 const int32_t* words, int32_t* state, float* work, int32_t batch,
                                 int32_t format) {
  next_block<true, true>(block, x, sums, y, words, state, work, batch, format);
}

namespace {
template <bool kSmall>
NPU_OUTLINED inline void next_block_of_one(const uint8_t* block, const bfloat16* x, float* sums,
                                           int32_t* y, const int32_t* words, int32_t* state,
                                           float* work, int32_t format) {
  next_block<kSmall, false>(block, x, sums, y, words, state, work, 1, format);
}
}  // namespace

// The same for one vector. sums: 32.
NPU_KERNEL void gemv_one(const uint8_t* block, const bfloat16* x, float* sums, int32_t* y,
                         const int32_t* words, int32_t* state, float* work, int32_t format) {
  next_block_of_one<false>(block, x, sums, y, words, state, work, format);
}
NPU_KERNEL void gemv_small_one(const uint8_t* block, const bfloat16* x, float* sums, int32_t* y,
                               const int32_t* words, int32_t* state, float* work, int32_t format) {
  next_block_of_one<true>(block, x, sums, y, words, state, work, format);
}

// The same with x kept: it holds the lines of all blocks.
NPU_KERNEL void gemv_kept(const uint8_t* block, const bfloat16* x, float* sums, int32_t* y,
                          const int32_t* words, int32_t* state, float* work, int32_t format) {
  next_block_of_one<false>(block, x, sums, y, words, state, work, format);
  state[State::kSent] = 0;
}
NPU_KERNEL void gemv_small_kept(const uint8_t* block, const bfloat16* x, float* sums, int32_t* y,
                                const int32_t* words, int32_t* state, float* work, int32_t format) {
  next_block_of_one<true>(block, x, sums, y, words, state, work, format);
  state[State::kSent] = 0;
}

// Appends the first elements of an object of x to the kept x, as far as there is room: what ends
// there is padding.
NPU_KERNEL void gemv_keep(const bfloat16* object, bfloat16* x, int32_t* state, int32_t count) {
  bfloat16* to = x + state[State::kStored];
  const int32_t room = npu::gemv::kKeptElements - state[State::kStored];
  if (count > room) count = room;
  NPU_ROLLED for (int32_t i = 0; i < count; i += 16) {
    aie::store_v(to + i, aie::load_v<16>(object + i));
  }
  state[State::kStored] += count;
}

// The next piece of the results.
NPU_KERNEL void gemv_piece(const int32_t* y, int32_t* piece, int32_t* state) {
  aie::store_v(piece, aie::load_v<16>(y + state[State::kSent] * 16));
  ++state[State::kSent];
}

NPU_DECLARE(
    gemv_setup,
    {.operands = {buffer("table", kXElements).steers(Steering::kReads, kSetupWords, "16 * index"),
                  buffer("words", kSetupWords).steers(Steering::kCopies, kSetupWords),
                  buffer("state", kSetupWords).steers(Steering::kSets, kSetupWords),
                  buffer("sums", kMaxBatch* kBlockRows),
                  integer("index", 0, npu::gemv::kMaxCores - 1)},
     .cycles = fixed<64>});
NPU_DECLARE(
    gemv_long_setup,
    {.operands =
         {buffer("table", kXElementsOfOne).steers(Steering::kReads, kLongSetupWords, "32 * index"),
          buffer("words", kLongSetupWords).steers(Steering::kCopies, kLongSetupWords),
          buffer("state", kSetupWords), buffer("sums", kBlockRows),
          integer("index", 0, npu::gemv::kMaxCores / 2 - 1)},
     .cycles = fixed<68>});
#if NPU_DECLARATIONS
namespace {
template <bool kSmall>
constexpr Declaration kBlockCall = {
    .operands = {buffer("block", kSmall ? kSmallBytes : kBytes), buffer("x", kXElements),
                 buffer("sums", kMaxBatch* kBlockRows), buffer("y", kYWords),
                 buffer("words", kSetupWords).steers(Steering::kReads, kSetupWords),
                 buffer("state", kSetupWords).steers(Steering::kUpdates, kSetupWords),
                 buffer("work", npu::gemv::kWork), multiple("batch", 1),
                 kSmall ? kSmallFormat : kLargeFormat},
    .cycles = batch_cycles,
    .check = check_batch,
    .parts = batch_parts};
template <bool kSmall, bool kKept>
constexpr Declaration kOneCall = {
    .operands = {buffer("block", kSmall ? kSmallBytes : kBytes),
                 buffer("x", kKept ? npu::gemv::kKeptElements : kXElementsOfOne),
                 buffer("sums", kBlockRows), buffer("y", kYWords), buffer("words", kSetupWords),
                 buffer("state", kSetupWords), buffer("work", npu::gemv::kWorkOfOne),
                 kSmall ? kSmallFormat : kLargeFormat},
    .cycles = one_cycles,
    .check = kKept ? check_one<npu::gemv::kKeptElements> : check_one<kXElementsOfOne>,
    .joint = joint_blocks<kSmall, kKept>,
    .has_joint = kHasJoint,
    .parts = one_parts};
}  // namespace
#endif
NPU_DECLARE(gemv_block, kBlockCall<false>);
NPU_DECLARE(gemv_small_block, kBlockCall<true>);
NPU_DECLARE(gemv_one, (kOneCall<false, false>));
NPU_DECLARE(gemv_small_one, (kOneCall<true, false>));
NPU_DECLARE(gemv_kept, (kOneCall<false, true>));
NPU_DECLARE(gemv_small_kept, (kOneCall<true, true>));
NPU_DECLARE(gemv_keep,
            {.operands = {buffer("object", "count"), buffer("x", npu::gemv::kKeptElements),
                          buffer("state", kSetupWords)
                              .with_word(State::kStored, 0, npu::gemv::kKeptElements, 16),
                          integer("count", 16, kXElementsOfOne, 16)},
             .cycles = [](const Timing& timing, const int64_t* count) {
               return npu::perf::elementwise_cycles(timing, double(count[0]), 2, 2);
             }});
NPU_DECLARE(
    gemv_piece,
    {.operands = {buffer("y", kYWords), buffer("piece", npu::gemv::kPieceBytes / 4).overwritten(),
                  buffer("state", kSetupWords).with_word(State::kSent, 0, kYWords / 16 - 1)},
     .cycles = fixed<24>});
